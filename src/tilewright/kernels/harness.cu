// A tile function of the user's in the loop of any scheduler. Compiles for sm_90 and up; without clusters and
// dynamic schedulers for sm_80 too.
//
//     first tile -> [warp 0 asks for the next one] -> tile function -> [barrier] -> every warp reads the answer
//
// All warps of every CTA work. With a dynamic scheduler warp 0 asks as it begins a tile, so the answer has
// the tile's time to arrive; without config::ask_ahead it asks as the tile ends, and holds no claim behind it.
// Between tiles nothing else is needed: config::barrier says what the tile function wants there. In the plan's
// ledger the warps are role "worker".
#include "harness.cuh"
#include "example_tile.cuh"

#include "cluster.cuh"
#include "config.cuh"
#include "mbarrier.cuh"
#include "schedule.cuh"

// Everything in here is qualified: the user's source above may have any name but these namespaces'.
namespace harness {

constexpr int warps = config::threads / 32;
static_assert(config::threads % 32 == 0 && warps >= 1 && warps <= 32, "whole warps");
static_assert(schedule::cluster_size >= 1 && schedule::cluster_size <= 16, "one to sixteen CTAs");

/// Offsets in dynamic shared memory. The tile function's own comes first.
namespace at {
constexpr int answers = round_up(config::tile_bytes, 32);
constexpr int schedule_arrived = answers + (schedule::is_dynamic ? schedule::answer_stride * schedule::depth : 0);
constexpr int schedule_finished = schedule_arrived + (schedule::is_dynamic ? 8 * schedule::depth : 0);
constexpr int schedule_throttle = schedule_finished + (schedule::is_dynamic ? 8 * schedule::depth : 0);
constexpr int end = schedule_throttle + (schedule::is_dynamic ? 8 : 0);
}  // namespace at
static_assert(at::end <= config::smem_bytes, "the launch's shared memory holds the layout");

/// Whether a launch may have clusters at all.
constexpr bool clustered = config::larger_clusters || schedule::cluster_size > 1;

/// CTAs of this cluster: where the launch prefers larger clusters it differs from one to the next.
__device__ __forceinline__ u32 size_of_cluster() {
    u32 size = schedule::cluster_size;
    if constexpr (config::larger_clusters) asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

/// Everybody who works side by side meets: the cluster, or the CTA where there is none.
__device__ __forceinline__ void sync_everybody() { sync_all<clustered ? 2 : 1>(); }

/// Where this CTA's time at a tile is kept.
__device__ __forceinline__ TileTime& time_of(const Tile& tile, const TileArguments& launch) {
    return launch.timeline[static_cast<long long>(tile.id) * tile.size + tile.rank];
}

/// The last cluster to leave sets the counter back: larger clusters draw several tiles at once, so that no
/// draw knows itself to be the last.
__device__ __forceinline__ void reset_counter(u32* counter, u32 size) {
    const u32 parts = size / schedule::cluster_size, all = gridDim.x / schedule::cluster_size;
    if (atomicAdd(&counter[1], parts) + parts == all) {
        counter[0] = 0;
        counter[1] = 0;
    }
}

/// One CTA: its share of the launch's tiles.
__device__ __forceinline__ void work_through(const TileArguments& launch, unsigned char* dynamic_shared) {
    const u32 shared = shared_address(dynamic_shared);
    const int warp = threadIdx.x / 32;
    const u32 size = size_of_cluster();
    u32 rank = 0;
    if constexpr (clustered) rank = cluster_rank();
    const schedule::Shared answers{shared + at::answers, shared + at::schedule_arrived,
                                   shared + at::schedule_finished, shared + at::schedule_throttle};
    if constexpr (schedule::is_dynamic) {
        if (threadIdx.x == 0) {
            schedule::init(answers, warps * size, 0);  // the warps that ask are readers themselves
            fence_barrier_init();
        }
        __syncwarp();
    }
    sync_everybody();  // barriers are made, and a peer's shared memory is there
    schedule::Sequence<config::larger_clusters> work(answers, launch.num_tiles, rank, size);
    const int part = rank / schedule::cluster_size;
    Tile tile{};
    tile.count = launch.num_tiles;
    tile.rank = rank % schedule::cluster_size;
    tile.size = schedule::cluster_size;
    tile.cluster_rank = rank;
    tile.cluster_size = size;
    tile.threads = config::threads;
    tile.warps = warps;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        tile.id = work.tile + part;
        const bool exists = tile.id < launch.num_tiles;  // else a part of a larger cluster finds none left
        if (config::timeline && exists && threadIdx.x == 0) tile_times::begin(time_of(tile, launch));
        __syncwarp();
        if (config::ask_ahead && warp == 0) work.ask_next(rank, launch.work_counter);
        if (exists) {
            tilewright_tile(tile, launch.arguments, dynamic_shared);
            __syncwarp();
            if (config::timeline && threadIdx.x % 32 == 0) tile_times::end_latest(time_of(tile, launch));
            ++tile.turn;
        }
        __syncwarp();
        if constexpr (config::barrier == Meeting::cta) __syncthreads();
        if constexpr (config::barrier == Meeting::cluster) sync_everybody();
        if (!config::ask_ahead && warp == 0) work.ask_next(rank, launch.work_counter);
    }
    __syncwarp();
    sync_everybody();  // nobody leaves while a peer may still signal it or read its shared memory
    if constexpr (config::larger_clusters && schedule::uses_counter) {
        if (rank == 0 && threadIdx.x == 0) reset_counter(launch.work_counter, size);
    }
}

}  // namespace harness

extern "C" __global__ void __launch_bounds__(config::threads)
    tilewright_tiles(const __grid_constant__ TileArguments launch) {
    extern __shared__ __align__(1024) unsigned char tilewright_shared[];
    harness::work_through(launch, tilewright_shared);
}

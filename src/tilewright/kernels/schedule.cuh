// The tile scheduler: one interface for every kernel.
//
//     for (bool more = schedule.first(); more; more = schedule.next()) { ... schedule.tile ... }
//
//   single_tile     the cluster's own tile, then the end
//   static_stride   %clusterid, then every grid_clusters-th tile
//   static_blocked  a run of neighbouring tiles
//   dynamic_atomic  %clusterid, then draws from a counter in global memory
//   clc             %clusterid, then clusters that the hardware has not launched yet (sm_100)
//
// The dynamic ones have a role of their own, one warp, which keeps one request in flight: it asks for tile
// r + 1 when the producer begins tile r (schedule_throttle). An answer comes to every CTA of the cluster
// (schedule_arrived); every reading warp releases it to rank 0 (schedule_finished), except the last one,
// the decline: after it nobody asks and nobody signals a CTA that may have left. Declined means stop asking;
// it is no proof that nothing is pending.
//
// Kernels without a warp to spare call ask_next() in a warp that also works: the request for tile r + 1 goes
// out as that warp begins tile r, and no throttle is needed.
//
// In the plan's ledger: schedule_arrived is clc_full or work_full, schedule_finished clc_empty or work_empty,
// schedule_throttle clc_throttle or work_throttle.
#pragma once
#include "clc.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "mbarrier.cuh"
#include "timeline.cuh"

namespace schedule {

constexpr int cluster_size = config::cluster_m * config::cluster_n;
constexpr bool uses_clc = config::scheduler == Scheduler::clc;
constexpr bool uses_counter = config::scheduler == Scheduler::dynamic_atomic;
constexpr bool is_dynamic = uses_clc || uses_counter;
constexpr int depth = config::schedule_depth;
[[maybe_unused]] constexpr int answer_stride = 32;  // bytes from one answer slot to the next

static_assert(depth >= 1 && depth <= 3, "one to three answers");

/// Barriers and answers in the CTA's shared memory, as 32-bit addresses.
struct Shared {
    u32 answers;    // depth slots, answer_stride apart, 32-byte aligned
    u32 arrived;    // schedule_arrived[depth], 8 bytes each
    u32 finished;   // schedule_finished[depth]
    u32 throttle;   // schedule_throttle
};

/// One thread of each CTA, before the first barrier. `readers`: warps of the cluster that call next().
/// `askers`: warps of ask_until_declined() that read answers too, to know when to stop.
__device__ __forceinline__ void init(
    const Shared& shared, int readers, int askers = uses_clc ? cluster_size : 0) {
    if constexpr (is_dynamic) {
        for (int slot = 0; slot < depth; ++slot) {
            mbarrier_init(shared.arrived + 8 * slot, 1);
            mbarrier_init(shared.finished + 8 * slot, readers + askers);
        }
        mbarrier_init(shared.throttle, 1);
    }
}

/// The sequence of tiles, as one converged warp sees it.
///
/// With size_varies the hardware may have put several neighbouring clusters of cluster_size CTAs into one
/// larger cluster (a launch that prefers larger ones). It does their tiles side by side: `tile` and the ones
/// after it, one for each of its parts, as far as they exist. The counter then does not wrap.
template <bool size_varies>
class Sequence {
  public:
    int tile;  // linear id of the cluster tile in hand

    __device__ __forceinline__ Sequence(const Shared& shared, int num_tiles)
        : shared(shared), num_tiles(num_tiles), cluster(blockIdx.x / cluster_size),
          clusters(gridDim.x / cluster_size), size(cluster_size) {
        static_assert(!size_varies, "tell this cluster's size");
    }

    /// `rank` of this CTA in its cluster, and the CTAs that the cluster has: a multiple of cluster_size.
    __device__ __forceinline__ Sequence(const Shared& shared, int num_tiles, u32 rank, u32 size)
        : shared(shared), num_tiles(num_tiles), cluster((blockIdx.x - rank) / cluster_size),
          clusters(gridDim.x / cluster_size), size(size_varies ? size : cluster_size) {}

    /// The first tile needs no request. False: this cluster has none.
    __device__ __forceinline__ bool first() {
        tile = cluster;
        if constexpr (config::scheduler == Scheduler::static_blocked) {
            const int share = ceil_div(num_tiles, clusters);
            tile = cluster * share;
            const int run = parts() * share;
            end = tile + run < num_tiles ? tile + run : num_tiles;
        }
        return tile < num_tiles;
    }

    /// The next tile; waits for the answer of a dynamic scheduler. All lanes call it.
    __device__ __forceinline__ bool next() {
        if constexpr (config::scheduler == Scheduler::single_tile) {
            return false;
        } else if constexpr (config::scheduler == Scheduler::static_stride) {
            tile += clusters;
            return tile < num_tiles;
        } else if constexpr (config::scheduler == Scheduler::static_blocked) {
            tile += parts();
            return tile < end;
        } else {
            return read_answer();
        }
    }

    /// The warp that asks. Rank 0 asks; with clc every rank runs this, to arm its own barrier. All lanes
    /// call it. `counter`: one zero word in global memory, zero again when the launch ends. `times`: kept with
    /// config::timeline, an entry a tile.
    __device__ __forceinline__ void ask_until_declined(u32 rank, u32* counter, RequestTime* times) {
        if (!first()) return;
        RingPosition<depth> request;
        u32 begun = 0;
        bool more = true;
#pragma unroll 1
        while (more) {
            if (rank == 0) {
                mbarrier_wait(shared.throttle, begun);
                mbarrier_wait(shared.finished + 8 * request.slot, request.phase ^ 1);
            }
            const u64 asked = config::timeline ? tile_times::now_ns() : 0;
            if constexpr (uses_clc) {
                request_cluster(request.slot, rank);
                more = read_answer();
            } else {
                const u32 drawn = draw(request.slot, counter);
                more = drawn < static_cast<u32>(num_tiles);
                if constexpr (config::timeline) tile = static_cast<int>(drawn);
            }
            if (config::timeline && more && rank == 0 && threadIdx.x % 32 == 0) {
                times[tile] = {asked, tile_times::now_ns()};
            }
            begun ^= 1;
            request.advance();
        }
    }

    /// One warp of each CTA that also calls next(), as it begins a tile: ask for the next one. All lanes call
    /// it. Waits until every warp of the cluster has read the answer that lay in the slot before.
    __device__ __forceinline__ void ask_next(u32 rank, u32* counter) {
        if constexpr (is_dynamic) {
            if (rank == 0) mbarrier_wait(shared.finished + 8 * answer.slot, answer.phase ^ 1);
            if constexpr (uses_clc) {
                request_cluster(answer.slot, rank);
            } else if (rank == 0) {
                draw(answer.slot, counter);
            }
        }
    }

    /// One warp of the producer role of rank 0 calls this when it begins a tile.
    __device__ __forceinline__ void begin_tile(u32 rank) const {
        if constexpr (is_dynamic) {
            if (rank == 0 && elect_one()) mbarrier_arrive(shared.throttle);
        }
    }

  private:
    Shared shared;
    int num_tiles, cluster, clusters, end;  // clusters of cluster_size CTAs
    int size;                               // CTAs of this cluster
    RingPosition<depth> answer;

    /// Clusters of cluster_size CTAs in this one.
    __device__ __forceinline__ int parts() const { return size_varies ? size / cluster_size : 1; }

    /// Every rank arms its own barrier; rank 0 asks the hardware.
    __device__ __forceinline__ void request_cluster(int slot, u32 rank) {
        if (elect_one()) {
            const u32 barrier = shared.arrived + 8 * slot;
            mbarrier_arrive_expect_tx(barrier, 16);
            if (rank == 0) {
                if (size_varies && cluster_size == 1 && size > 1) {
                    clc_request<2>(shared.answers + answer_stride * slot, barrier);  // multicast, as for any size
                } else {
                    clc_request<cluster_size>(shared.answers + answer_stride * slot, barrier);
                }
            }
        }
        __syncwarp();
    }

    /// The last answer, the decline, is not released.
    __device__ __forceinline__ bool read_answer() {
        const u32 slot = shared.answers + answer_stride * answer.slot;
        mbarrier_wait(shared.arrived + 8 * answer.slot, answer.phase);
        bool granted;
        if constexpr (uses_clc) {
            const ClcAnswer response = clc_read(slot);
            granted = response.granted;
            tile = response.first_cta / cluster_size;
            // A ragged problem is launched for the most tiles that it may have: those past the end are empty,
            // and so are all that come after them.
            if (granted) granted = tile < num_tiles;
            if (granted) clc_release_fence();
            __syncwarp();
            if (granted && elect_one()) release(answer.slot);
        } else {
            // One lane reads and releases, so that nothing but its own read has to come before its arrival.
            if (threadIdx.x % 32 == 0) {
                asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tile) : "r"(slot) : "memory");
                if (tile < num_tiles) release(answer.slot);
            }
            tile = __shfl_sync(0xffffffff, tile, 0);
            granted = tile < num_tiles;
        }
        answer.advance();
        return granted;
    }

    /// One thread: rank 0 may overwrite the answer as far as this warp is concerned.
    __device__ __forceinline__ void release(int slot) {
        const u32 finished = shared.finished + 8 * slot;
        if constexpr (cluster_size == 1 && !size_varies) {
            mbarrier_arrive(finished);
        } else {
            mbarrier_release_at(finished, 0);
        }
    }

    /// Draw a tile, hand it to every CTA and return it. Each cluster that has a first tile draws exactly once past the
    /// end, so num_tiles draws are made in all, and the counter wraps to zero with the last of them.
    __device__ __forceinline__ u32 draw(int slot, u32* counter) {
        const u32 lane = threadIdx.x % 32;
        u32 drawn = 0;
        if (lane == 0) {
            drawn = size_varies ? atomicAdd(counter, static_cast<u32>(parts())) : atomicInc(counter, num_tiles - 1);
        }
        drawn = __shfl_sync(0xffffffff, drawn, 0) + clusters;
        const u32 to = shared.answers + answer_stride * slot, arrived = shared.arrived + 8 * slot;
        if constexpr (cluster_size == 1 && !size_varies) {
            if (lane == 0) {
                asm volatile("st.shared.u32 [%0], %1;" ::"r"(to), "r"(drawn) : "memory");
                mbarrier_arrive(arrived);
            }
        } else if (lane < static_cast<u32>(size)) {
            mbarrier_arrive_expect_tx_at(arrived, lane, sizeof(u32));
            store_async_at(to, arrived, lane, drawn);
        }
        return drawn;
    }
};

using Schedule = Sequence<false>;

}  // namespace schedule

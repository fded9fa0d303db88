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
// In the plan's ledger: schedule_arrived is clc_full or work_full, schedule_finished clc_empty or work_empty,
// schedule_throttle clc_throttle or work_throttle.
#pragma once
#include "clc.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "mbarrier.cuh"

namespace schedule {

constexpr int cluster_size = config::cluster_m * config::cluster_n;
constexpr bool uses_clc = config::scheduler == Scheduler::clc;
constexpr bool uses_counter = config::scheduler == Scheduler::dynamic_atomic;
constexpr bool is_dynamic = uses_clc || uses_counter;
constexpr int depth = config::schedule_depth;
constexpr int answer_stride = 32;  // bytes from one answer slot to the next

static_assert(depth >= 1 && depth <= 3, "one to three answers");

/// Barriers and answers in the CTA's shared memory, as 32-bit addresses.
struct Shared {
    u32 answers;    // depth slots, answer_stride apart, 32-byte aligned
    u32 arrived;    // schedule_arrived[depth], 8 bytes each
    u32 finished;   // schedule_finished[depth]
    u32 throttle;   // schedule_throttle
};

/// One thread of each CTA, before the first barrier. `readers`: warps of the cluster that call next(), the
/// asking warps of clc not counted.
__device__ __forceinline__ void init(const Shared& shared, int readers) {
    if constexpr (is_dynamic) {
        const int askers = uses_clc ? cluster_size : 0;  // they read answers too, to know when to stop
        for (int slot = 0; slot < depth; ++slot) {
            mbarrier_init(shared.arrived + 8 * slot, 1);
            mbarrier_init(shared.finished + 8 * slot, readers + askers);
        }
        mbarrier_init(shared.throttle, 1);
    }
}

/// The sequence of tiles, as one converged warp sees it.
class Schedule {
  public:
    int tile;  // linear id of the cluster tile in hand

    __device__ __forceinline__ Schedule(const Shared& shared, int num_tiles)
        : shared(shared), num_tiles(num_tiles), cluster(blockIdx.x / cluster_size),
          clusters(gridDim.x / cluster_size) {}

    /// The first tile needs no request. False: this cluster has none.
    __device__ __forceinline__ bool first() {
        tile = cluster;
        if constexpr (config::scheduler == Scheduler::static_blocked) {
            const int share = ceil_div(num_tiles, clusters);
            tile = cluster * share;
            end = tile + share < num_tiles ? tile + share : num_tiles;
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
            return ++tile < end;
        } else {
            return read_answer();
        }
    }

    /// The warp that asks. Rank 0 asks; with clc every rank runs this, to arm its own barrier. All lanes
    /// call it. `counter`: one zero word in global memory, zero again when the launch ends.
    __device__ __forceinline__ void ask_until_declined(u32 rank, u32* counter) {
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
            if constexpr (uses_clc) {
                if (elect_one()) {
                    const u32 barrier = shared.arrived + 8 * request.slot;
                    mbarrier_arrive_expect_tx(barrier, 16);
                    if (rank == 0) {
                        clc_request<cluster_size>(shared.answers + answer_stride * request.slot, barrier);
                    }
                }
                __syncwarp();
                more = read_answer();
            } else {
                more = draw(request.slot, counter);
            }
            begun ^= 1;
            request.advance();
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
    int num_tiles, cluster, clusters, end;
    RingPosition<depth> answer;

    __device__ __forceinline__ bool read_answer() {
        mbarrier_wait(shared.arrived + 8 * answer.slot, answer.phase);
        const u32 slot = shared.answers + answer_stride * answer.slot;
        bool granted;
        if constexpr (uses_clc) {
            const ClcAnswer response = clc_read(slot);
            granted = response.granted;
            tile = response.first_cta / cluster_size;
            // A ragged problem is launched for the most tiles that it may have: those past the end are empty,
            // and so are all that come after them.
            if (granted) granted = tile < num_tiles;
            if (granted) clc_release_fence();
        } else {
            asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tile) : "r"(slot) : "memory");
            granted = tile < num_tiles;
        }
        __syncwarp();
        if (granted && elect_one()) mbarrier_arrive_at(shared.finished + 8 * answer.slot, 0);
        answer.advance();
        return granted;
    }

    /// Draw a tile and hand it to every CTA. Each cluster that has a first tile draws exactly once past the
    /// end, so num_tiles draws are made in all, and the counter wraps to zero with the last of them.
    __device__ __forceinline__ bool draw(int slot, u32* counter) {
        const u32 lane = threadIdx.x % 32;
        u32 drawn = 0;
        if (lane == 0) drawn = atomicInc(counter, num_tiles - 1);
        drawn = __shfl_sync(0xffffffff, drawn, 0) + clusters;
        if (lane < cluster_size) {
            store_at(shared.answers + answer_stride * slot, lane, drawn);
            mbarrier_arrive_at(shared.arrived + 8 * slot, lane);
        }
        return drawn < static_cast<u32>(num_tiles);
    }
};

}  // namespace schedule

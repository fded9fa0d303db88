// GEMM for Blackwell (sm_100a, sm_103a): TMA producer, one thread that issues tcgen05, accumulators in TMEM,
// persistent.
//
//     TMA warp -- inputs_arrived --> MMA warp -- accumulator_arrived --> epilogue warps -- TMA store --> D
//              <-- inputs_finished --         <-- accumulator_finished --
//
// Warp 0 loads, warp 1 issues the MMAs, warp 2 asks for tiles where the scheduler is dynamic, warp 3
// allocates TMEM, warps 4 to 7 are the epilogue. With two accumulators the epilogue of a tile runs under the
// MMAs of the next one. With cta_group 2 two CTAs of neighbouring rank multiply together: each loads its rows
// of A and its half of B's, all bytes arrive at the even one, the leader, whose MMA warp issues for both; the
// accumulator of each CTA holds its own rows. CTAs of one cluster row (same x) need the same rows of A, of
// one column (same y, and for a pair the same parity) the same rows of B: each loads its share and multicasts
// it.
//
// In the plan's ledger: inputs_arrived is full, inputs_finished is empty, accumulator_arrived is acc_full,
// accumulator_finished is acc_empty.
#include "arguments.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "mbarrier.cuh"
#include "schedule.cuh"
#include "tcgen05.cuh"
#include "tile_map.cuh"
#include "tma.cuh"

namespace {

using namespace config;

constexpr int cluster_size = cluster_m * cluster_n;
constexpr int threads = 256;
constexpr int epilogue_warps = 4, epilogue_threads = 32 * epilogue_warps;
enum Warp { tma_warp, mma_warp, scheduler_warp, tmem_warp, first_epilogue_warp };

constexpr int mma_k = 32 / size_of(input);
constexpr int b_rows = tile_n / cta_group;             // columns of the tile whose B this CTA holds
constexpr int a_bytes = tile_m * tile_k * size_of(input);
constexpr int b_bytes = b_rows * tile_k * size_of(input);
constexpr int a_share = tile_m / cluster_n;            // rows that this CTA loads for its cluster row
constexpr int b_share = b_rows / (cluster_m / cta_group);
constexpr u32 instruction = tcgen05_instruction(input, tile_m * cta_group, tile_n);
constexpr int columns_allocated = tmem_columns(accumulator_stages * tile_n);

// Arrivals and bytes of a phase.
constexpr int input_bytes = cta_group * (a_bytes + b_bytes);            // of both CTAs, at the leader
constexpr int input_releases = cluster_m / cta_group + cluster_n - 1;   // MMA warps that read a CTA's loads
constexpr int accumulator_releases = cta_group * epilogue_warps;
constexpr int answer_readers = cluster_size * (1 + epilogue_warps) + cluster_size / cta_group;

static_assert(tile_k * size_of(input) == 128, "a stage is one swizzled row of 128 bytes");
static_assert(cta_group == 1 || (cta_group == 2 && cluster_m % 2 == 0), "a pair is two neighbours along M");
static_assert(tile_m == 128 || (tile_m == 64 && cta_group == 1), "M of 64 or 128 a CTA, 256 a pair");
static_assert(tile_n % 16 == 0 && tile_n >= 16 && tile_n <= 256, "N of 16 to 256 in steps of 16");
static_assert(a_share % 8 == 0 && b_share % 8 == 0, "shares keep the swizzle's groups of 8 rows");
static_assert(cluster_size <= 16, "a mask has 16 bits");
static_assert(accumulator_stages == 1 || accumulator_stages == 2, "one or two accumulators");
static_assert(columns_allocated <= 512, "TMEM has 512 columns");

/// A buffer of the output staging holds `box_columns` of the tile: one box of all its rows, or transposed a
/// box for as many rows as a line has elements.
constexpr int box_columns = epilogue::box_columns;
constexpr int box_rows = swap_ab ? epilogue::line : tile_m;
constexpr int box_lines = swap_ab ? box_columns : tile_m;
constexpr int box_bytes = box_lines * epilogue::line_bytes;
constexpr int buffer_bytes = tile_m / box_rows * box_bytes;
static_assert(tile_n % box_columns == 0 && box_lines % 8 == 0, "whole boxes, whole swizzle patterns");

/// Offsets in dynamic shared memory.
namespace at {
constexpr int buffers = 2;  // one is filled while TMA stores the other
constexpr int a = 0;
constexpr int b = a + num_stages * a_bytes;
constexpr int output = b + num_stages * b_bytes;
constexpr int answers = output + buffers * buffer_bytes;
constexpr int inputs_arrived =
    answers + (schedule::is_dynamic ? schedule::answer_stride * schedule_depth : 0);
constexpr int inputs_finished = inputs_arrived + 8 * num_stages;
constexpr int accumulator_arrived = inputs_finished + 8 * num_stages;
constexpr int accumulator_finished = accumulator_arrived + 8 * accumulator_stages;
constexpr int schedule_arrived = accumulator_finished + 8 * accumulator_stages;
constexpr int schedule_finished = schedule_arrived + 8 * schedule_depth;
constexpr int schedule_throttle = schedule_finished + 8 * schedule_depth;
constexpr int tmem_address = schedule_throttle + 8;
constexpr int group_sums = tmem_address + 4;
constexpr int end = group_sums + 4 * TileMap::shared_words;
}  // namespace at
static_assert(at::b % 1024 == 0 && at::output % 1024 == 0 && at::answers % 32 == 0, "aligned");
static_assert(at::end <= smem_bytes, "the launch's shared memory holds the layout");

using Work = schedule::Schedule;

/// Rank of the CTA that issues the MMAs of `rank`.
__device__ __forceinline__ u32 leader_of(u32 rank) { return cta_group == 2 ? rank & ~1u : rank; }

/// Load one stage's share of an operand; its bytes complete at the leader of every receiver.
template <bool multicast>
__device__ __forceinline__ void load(
    u32 to, const TensorMap* map, u32 arrived, u16 mask, int k, int row, int group) {
    if constexpr (cta_group == 2) {
        if constexpr (multicast) {
            tma_load_pair_multicast(to, map, arrived, mask, k, row, group);
        } else {
            tma_load_pair(to, map, arrived, k, row, group);
        }
    } else if constexpr (multicast) {
        tma_load_multicast(to, map, arrived, mask, k, row, group);
    } else {
        tma_load(to, map, arrived, k, row, group);
    }
}

/// One warp of every CTA: keep the ring of operand stages full.
__device__ __forceinline__ void produce(
    const GemmArguments& problem, const TileMap& map, Work work, u32 shared, u32 rank) {
    const int x = rank % cluster_m, y = rank / cluster_m;
    const int half = x % cta_group, share = x / cta_group;  // of B's columns; of that half
    u16 a_mask = 0, b_mask = 0;                             // CTAs that receive what this one loads
    for (int i = 0; i < cluster_n; ++i) a_mask |= 1 << (x + cluster_m * i);
    for (int i = half; i < cluster_m; i += cta_group) b_mask |= 1 << (i + cluster_m * y);
    const bool leads = leader_of(rank) == rank;
    const bool issues = elect_one();
    RingPosition<num_stages> stage;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        work.begin_tile(rank);
        const CtaTile tile = map.locate(work.tile, x, y);
        const int a_row = tile.row_offset + tile.row + y * a_share;
        const int b_row = tile.column_offset + tile.column + half * b_rows + share * b_share;
#pragma unroll 1
        for (int k = 0; k < tile.k; k += tile_k) {
            mbarrier_wait_async(shared + at::inputs_finished + 8 * stage.slot, stage.phase ^ 1);
            if (issues) {
                const u32 arrived = shared + at::inputs_arrived + 8 * stage.slot;
                const u32 a = shared + at::a + stage.slot * a_bytes + y * a_share * 128;
                const u32 b = shared + at::b + stage.slot * b_bytes + share * b_share * 128;
                // The peer's bytes may land first: until the leader arrives, the phase cannot end.
                if (leads) mbarrier_arrive_expect_tx(arrived, input_bytes);
                load<(cluster_n > 1)>(a, &problem.a, arrived, a_mask, tile.k_offset + k, a_row, tile.a_group);
                load<(cluster_m > cta_group)>(
                    b, &problem.b, arrived, b_mask, tile.k_offset + k, b_row, tile.b_group);
            }
            stage.advance();
        }
    }
    for (int i = 0; i < num_stages; ++i) {  // every commit has come: nobody signals this CTA any more
        mbarrier_wait_async(shared + at::inputs_finished + 8 * stage.slot, stage.phase ^ 1);
        stage.advance();
    }
}

/// Arrive in every CTA of `mask` once the MMAs issued so far are complete.
template <bool own_alone>
__device__ __forceinline__ void commit(u32 barrier, u16 mask) {
    if constexpr (own_alone) {
        tcgen05_commit(barrier);
    } else {
        tcgen05_commit_multicast<cta_group>(barrier, mask);
    }
}

/// One warp of a leader: multiply every tile of the CTA or pair. A tile without k steps has no accumulator.
__device__ __forceinline__ void multiply(
    const GemmArguments& problem, const TileMap& map, Work work, u32 shared, u32 rank, u32 tmem) {
    const int x = rank % cluster_m, y = rank / cluster_m;
    constexpr u32 own = cta_group == 2 ? 3 : 1;
    u16 release = ((1 << cluster_m) - 1) << (cluster_m * y);  // CTAs that load for this one or its peer
    for (int i = 0; i < cluster_n; ++i) release |= own << (x + cluster_m * i);
    const u64 first_a = tcgen05_descriptor(shared + at::a), first_b = tcgen05_descriptor(shared + at::b);
    RingPosition<num_stages> stage;
    RingPosition<accumulator_stages> accumulator;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        const CtaTile tile = map.locate(work.tile, x, y);
        if (ragged == Ragged::k && tile.k == 0) continue;
        tcgen05_wait(shared + at::accumulator_finished + 8 * accumulator.slot, accumulator.phase ^ 1);
        const u32 d = tmem + accumulator.slot * tile_n;
#pragma unroll 1
        for (int k = 0; k < tile.k; k += tile_k) {
            mbarrier_wait_async(shared + at::inputs_arrived + 8 * stage.slot, stage.phase);
            tcgen05_fence_after();
            if (elect_one()) {  // the same lane each time: a commit covers what its own thread has issued
                const u64 a = first_a + stage.slot * (a_bytes >> 4);
                const u64 b = first_b + stage.slot * (b_bytes >> 4);
#pragma unroll
                for (int part = 0; part < tile_k / mma_k; ++part) {
                    // Behind a ragged group's last column lies the next group's first.
                    if (ragged == Ragged::k && k + part * mma_k >= tile.k) break;
                    tcgen05_mma<cta_group, input>(d, a + 2 * part, b + 2 * part, instruction, k + part > 0);
                }
                commit<cluster_size == 1>(shared + at::inputs_finished + 8 * stage.slot, release);
            }
            __syncwarp();
            stage.advance();
        }
        if (elect_one()) {
            commit<cta_group == 1>(shared + at::accumulator_arrived + 8 * accumulator.slot, own << rank);
        }
        __syncwarp();
        accumulator.advance();
    }
}

/// Write this thread's part of a buffer: its row of the tile, columns from `first` on.
__device__ __forceinline__ void stage_row(
    const GemmArguments& problem, const CtaTile& tile, const float (&d)[box_columns], int row, int first,
    u32 staged) {
    using namespace epilogue;
    if constexpr (swap_ab) {  // a line is a column: the warp's rows lie next to each other in it
        const int at_row = row % box_rows;
        const u32 box = staged + row / box_rows * box_bytes + at_row % piece_elements * element_bytes;
#pragma unroll
        for (int i = 0; i < box_columns; i += 2) {
            const float low = finish(problem, tile, d[i], row, first + i);
            const float high = finish(problem, tile, d[i + 1], row, first + i + 1);
            const u32 to_low = box + piece_offset(i, at_row / piece_elements);
            const u32 to_high = box + piece_offset(i + 1, at_row / piece_elements);
            if constexpr (element_bytes == 4) {
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(to_low), "f"(low) : "memory");
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(to_high), "f"(high) : "memory");
            } else {
                const u32 both = pack(low, high);
                const u16 halves[2] = {static_cast<u16>(both), static_cast<u16>(both >> 16)};
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(to_low), "h"(halves[0]) : "memory");
                asm volatile("st.shared.u16 [%0], %1;" ::"r"(to_high), "h"(halves[1]) : "memory");
            }
        }
    } else {
#pragma unroll
        for (int piece = 0; piece < pieces; ++piece) {
            const int at_column = piece * piece_elements;
            u32 words[4];
            finish_piece(problem, tile, d, at_column, row, first + at_column, words);
            asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(staged + piece_offset(row, piece)),
                         "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                         : "memory");
        }
    }
}

/// Four warps of every CTA: drain the accumulator of each tile and store it, through two buffers in turn. With times
/// kept, a tile lasts from when these warps turn to it until they have handed the last of it to TMA: its products,
/// as far as they were not made while the tile before was drained, and its store.
__device__ __forceinline__ void drain(
    const GemmLaunch& problem, const TileMap& map, Work work, u32 shared, u32 rank, u32 tmem) {
    using namespace epilogue;
    const int x = rank % cluster_m, y = rank / cluster_m;
    const int thread = threadIdx.x % epilogue_threads, warp = thread / 32, lane = thread % 32;
    // A row a lane; with M = 64 each warp has 16 rows, in the lower half of its lanes.
    const int row = tile_m == 64 ? 16 * warp + lane : thread;
    const bool has_row = tile_m == 128 || lane < 16;
    const u32 lanes = tmem + (warp << 21);
    RingPosition<accumulator_stages> accumulator;
    int buffer = 0;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        if (timeline && thread == 0) tile_times::begin(problem.time_of(work.tile, rank, cluster_size));
        const CtaTile tile = map.locate(work.tile, x, y);
        const bool multiplied = ragged != Ragged::k || tile.k > 0;
        const u32 finished = shared + at::accumulator_finished + 8 * accumulator.slot;
        if (multiplied) {
            tcgen05_wait(shared + at::accumulator_arrived + 8 * accumulator.slot, accumulator.phase);
        }
#pragma unroll 1
        for (int first = 0; first < tile_n; first += box_columns) {
            const u32 staged = shared + at::output + buffer * buffer_bytes;
            float d[box_columns];
            if (multiplied) {
                tmem_load(lanes + accumulator.slot * tile_n + first, d);
            } else {
#pragma unroll
                for (int i = 0; i < box_columns; ++i) d[i] = 0.0f;
            }
            if (thread == 0) tma_store_wait_read<at::buffers - 1>();  // the buffer's last store has read it
            sync_threads(1, epilogue_threads);
            if (multiplied) {
                tmem_wait_load(d);
                if (first + box_columns == tile_n) {  // all of it is in registers: the next tile may have it
                    tcgen05_fence_before();
                    __syncwarp();
                    if (elect_one()) mbarrier_release_at(finished, leader_of(rank));
                }
            }
            if (has_row) stage_row(problem, tile, d, row, first, staged);
            fence_async_shared();
            sync_threads(1, epilogue_threads);
#pragma unroll
            for (int part = 0; part < tile_m / box_rows; ++part) {
                const Box box = box_at(tile, part * box_rows, first);
                const u32 from = staged + part * box_bytes;
                if (stored_by_tma(box, box_lines)) {
                    if (thread == 0) store_box_by_tma(problem, box, from);
                } else {
                    store_box_by_threads<box_lines, epilogue_threads>(problem, box, from, thread);
                }
            }
            if (thread == 0) tma_store_commit();
            __syncwarp();
            buffer ^= 1;
        }
        if (multiplied) accumulator.advance();
        if (timeline && thread == 0) tile_times::end(problem.time_of(work.tile, rank, cluster_size));
    }
    if (thread == 0) tma_store_wait_read<0>();  // shared memory may go once the stores have read it
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1)
    tilewright_gemm(const __grid_constant__ GemmLaunch problem) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const u32 shared = shared_address(dynamic_shared);
    const int warp = threadIdx.x / 32;
    const u32 rank = cluster_size > 1 ? cluster_rank() : 0;
    const schedule::Shared answers{shared + at::answers, shared + at::schedule_arrived,
                                   shared + at::schedule_finished, shared + at::schedule_throttle};
    if constexpr (cta_group == 2) cluster_arrive_relaxed();
    TileMap map(problem, reinterpret_cast<int*>(dynamic_shared + at::group_sums));
    if (threadIdx.x == 0) {
        tma_prefetch_map(&problem.a);
        tma_prefetch_map(&problem.b);
        if constexpr (store_by_tma) tma_prefetch_map(&problem.d);
        for (int slot = 0; slot < num_stages; ++slot) {
            mbarrier_init(shared + at::inputs_arrived + 8 * slot, 1);
            mbarrier_init(shared + at::inputs_finished + 8 * slot, input_releases);
        }
        for (int slot = 0; slot < accumulator_stages; ++slot) {
            mbarrier_init(shared + at::accumulator_arrived + 8 * slot, 1);
            mbarrier_init(shared + at::accumulator_finished + 8 * slot, accumulator_releases);
        }
        schedule::init(answers, answer_readers);
        fence_barrier_init();
    }
    __syncwarp();
    if constexpr (cta_group == 2) cluster_wait();  // allocating together needs the peer to have been launched
    if (warp == tmem_warp) tmem_allocate<cta_group, columns_allocated>(shared + at::tmem_address);
    tcgen05_fence_before();
    sync_all<cluster_size>();
    tcgen05_fence_after();
    u32 tmem;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tmem) : "r"(shared + at::tmem_address) : "memory");
    map.ready();
    Work work(answers, map.num_tiles);
    if (warp == tma_warp) {
        produce(problem, map, work, shared, rank);
    } else if (warp == mma_warp) {
        if (leader_of(rank) == rank) multiply(problem, map, work, shared, rank, tmem);
    } else if (warp == scheduler_warp) {
        if (schedule::uses_clc || (schedule::uses_counter && rank == 0)) {
            work.ask_until_declined(rank, problem.work_counter, problem.request_times());
        }
    } else if (warp >= first_epilogue_warp) {
        drain(problem, map, work, shared, rank, tmem);
    }
    __syncwarp();
    tcgen05_fence_before();
    sync_all<cluster_size>();  // nobody leaves while a peer may still signal it, nobody uses TMEM any more
    tcgen05_fence_after();
    if (warp == tmem_warp) tmem_free<cta_group, columns_allocated>(tmem);
}

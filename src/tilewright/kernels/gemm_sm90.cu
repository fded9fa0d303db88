// GEMM for Hopper (sm_90a): TMA producer, wgmma consumers, persistent.
//
//     TMA warp -- inputs_arrived --> consumer warpgroups -- TMA store --> D
//              <-- inputs_finished --
//
// A warpgroup of producers (warp 0 loads, warp 1 asks for tiles where the scheduler is dynamic) and one or
// two of consumers. A consumer warpgroup holds its rows of the tile in registers; while it stores them the
// TMA warp already fills the ring for the next tile. CTAs of one cluster row (same x) need the same rows of
// A, of one column (same y) the same rows of B: each loads its share and multicasts it.
//
// In the plan's ledger: inputs_arrived is full, inputs_finished is empty.
#include "arguments.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "mbarrier.cuh"
#include "schedule.cuh"
#include "tile_map.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace {

using namespace config;

constexpr int cluster_size = cluster_m * cluster_n;
constexpr int warpgroup = 128;
constexpr int consumers = tile_m >= 128 ? 2 : 1;  // warpgroups
constexpr int threads = warpgroup * (1 + consumers);
constexpr int rows = tile_m / consumers;          // of one consumer
constexpr int blocks = rows / 64;                 // wgmma instructions that cover them

constexpr int mma_k = 32 / size_of(input);
constexpr int a_bytes = tile_m * tile_k * size_of(input);
constexpr int b_bytes = tile_n * tile_k * size_of(input);
constexpr int a_share = tile_m / cluster_n;       // rows that this CTA loads for its cluster row
constexpr int b_share = tile_n / cluster_m;

static_assert(tile_k * size_of(input) == 128, "a stage is one swizzled row of 128 bytes");
static_assert(tile_m == 64 || tile_m == 128 || tile_m == 256, "64 rows an instruction, one or two a consumer");
static_assert(tile_n % 16 == 0 && tile_n <= 256 && blocks * tile_n <= 256, "128 accumulators a thread");
static_assert(a_share % 8 == 0 && b_share % 8 == 0, "shares keep the swizzle's groups of 8 rows");
static_assert(cta_group == 1 && accumulator_stages == 1, "pairs and TMEM are Blackwell's");
static_assert(scheduler != Scheduler::clc, "cluster launch control is Blackwell's");

/// Offsets in dynamic shared memory.
namespace at {
constexpr int box_bytes =             // a staging buffer of a consumer: 64 rows of a box's columns
    round_up(64 * (swap_ab ? epilogue::box_columns * epilogue::element_bytes : epilogue::line_bytes), 1024);
constexpr int boxes = 2;              // one is filled while TMA stores the other
constexpr int a = 0;
constexpr int b = a + num_stages * a_bytes;
constexpr int output = b + num_stages * b_bytes;
constexpr int answers = output + consumers * boxes * box_bytes;
constexpr int inputs_arrived = answers + (schedule::is_dynamic ? schedule::answer_stride * schedule_depth : 0);
constexpr int inputs_finished = inputs_arrived + 8 * num_stages;
constexpr int schedule_arrived = inputs_finished + 8 * num_stages;
constexpr int schedule_finished = schedule_arrived + 8 * schedule_depth;
constexpr int schedule_throttle = schedule_finished + 8 * schedule_depth;
constexpr int group_sums = schedule_throttle + 8;
constexpr int end = group_sums + 4 * TileMap::shared_words;
}  // namespace at
static_assert(at::end <= smem_bytes, "the launch's shared memory holds the layout");

using Work = schedule::Schedule;
using Accumulators = float[blocks][tile_n / 2];

/// One warp: keep the ring of operand stages full.
__device__ __forceinline__ void produce(
    const GemmArguments& problem, const TileMap& map, Work work, u32 shared, u32 rank) {
    const int x = rank % cluster_m, y = rank / cluster_m;
    u16 a_mask = 0, b_mask = 0;  // CTAs that receive what this one loads
    for (int i = 0; i < cluster_n; ++i) a_mask |= 1 << (x + cluster_m * i);
    for (int i = 0; i < cluster_m; ++i) b_mask |= 1 << (i + cluster_m * y);
    const bool issues = elect_one();
    RingPosition<num_stages> stage;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        work.begin_tile(rank);
        const CtaTile tile = map.locate(work.tile, x, y);
        const int a_row = tile.row_offset + tile.row + y * a_share;
        const int b_row = tile.column_offset + tile.column + x * b_share;
#pragma unroll 1
        for (int k = 0; k < tile.k; k += tile_k) {
            mbarrier_wait_async(shared + at::inputs_finished + 8 * stage.slot, stage.phase ^ 1);
            if (issues) {
                const u32 arrived = shared + at::inputs_arrived + 8 * stage.slot;
                const u32 a = shared + at::a + stage.slot * a_bytes + y * a_share * 128;
                const u32 b = shared + at::b + stage.slot * b_bytes + x * b_share * 128;
                mbarrier_arrive_expect_tx(arrived, a_bytes + b_bytes);
                if constexpr (cluster_n > 1) {
                    tma_load_multicast(a, &problem.a, arrived, a_mask, tile.k_offset + k, a_row, tile.a_group);
                } else {
                    tma_load(a, &problem.a, arrived, tile.k_offset + k, a_row, tile.a_group);
                }
                if constexpr (cluster_m > 1) {
                    tma_load_multicast(b, &problem.b, arrived, b_mask, tile.k_offset + k, b_row, tile.b_group);
                } else {
                    tma_load(b, &problem.b, arrived, tile.k_offset + k, b_row, tile.b_group);
                }
            }
            stage.advance();
        }
    }
    for (int i = 0; i < num_stages; ++i) {  // every release has come: nobody signals this CTA any more
        mbarrier_wait_async(shared + at::inputs_finished + 8 * stage.slot, stage.phase ^ 1);
        stage.advance();
    }
}

/// One consumer warpgroup: the products of one tile. The stage before the one in flight is released.
__device__ __forceinline__ void multiply(
    Accumulators& d, int k, u32 shared, int consumer, int target, RingPosition<num_stages>& stage) {
    int before = -1;  // slot whose products are complete once the next are in flight
#pragma unroll 1
    for (int done = 0; done < k; done += tile_k) {
        mbarrier_wait_async(shared + at::inputs_arrived + 8 * stage.slot, stage.phase);
        const u64 a = wgmma_descriptor(shared + at::a + stage.slot * a_bytes + consumer * rows * 128);
        const u64 b = wgmma_descriptor(shared + at::b + stage.slot * b_bytes);
#pragma unroll
        for (int block = 0; block < blocks; ++block) wgmma_hold(d[block]);
        wgmma_fence();
#pragma unroll
        for (int part = 0; part < tile_k / mma_k; ++part) {
            if (ragged == Ragged::k && done + part * mma_k >= k) break;  // the next group's columns
#pragma unroll
            for (int block = 0; block < blocks; ++block) {
                Wgmma<input, tile_n>::mma(
                    d[block], a + block * (64 * 128 >> 4) + 2 * part, b + 2 * part, done + part);
            }
        }
        wgmma_commit();
        if (before >= 0) {
            wgmma_wait<1>();
            if (target >= 0) mbarrier_release_at(shared + at::inputs_finished + 8 * before, target);
        }
        before = stage.slot;
        stage.advance();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int block = 0; block < blocks; ++block) wgmma_hold(d[block]);
    if (before >= 0 && target >= 0) mbarrier_release_at(shared + at::inputs_finished + 8 * before, target);
}

/// Write one box of a block into its staging buffer: 64 rows by `line` columns, or transposed.
template <int first>
__device__ __forceinline__ void stage_box(
    const GemmArguments& problem, const CtaTile& tile, const float (&d)[tile_n / 2], int row, u32 box) {
    using namespace epilogue;
    const int thread = threadIdx.x % warpgroup, lane = thread % 32, warp = thread / 32;
    const int r = 16 * warp + lane / 4;            // row in the block, and r + 8
#pragma unroll
    for (int j = 0; j < box_columns / 8; ++j) {    // eight columns, four accumulators
        float value[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            value[i] = finish(problem, tile, d[first / 2 + 4 * j + i], row + r + 8 * (i / 2),
                              first + 8 * j + 2 * (lane % 4) + i % 2);
        }
        if constexpr (element_bytes == 4) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int column = 8 * j + 2 * (lane % 4) + i % 2, at_row = r + 8 * (i / 2);
                // Transposed, 64 rows of four bytes are two boxes of 32.
                const int at = swap_ab ? column : at_row, element = swap_ab ? at_row % 32 : column;
                const u32 part = swap_ab ? at_row / 32 * (box_columns * 128) : 0;
                const u32 to = box + part + piece_offset(at, element / 4) + element % 4 * 4;
                asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(value[i]) : "memory");
            }
        } else {
            // Two 8x8 matrices: rows 0-7 and 8-15 of the warp's 16; each lane gives the address of one line.
            const int matrix = lane / 8 % 2, at_line = lane % 8;
            const u32 low = pack(value[0], value[1]), high = pack(value[2], value[3]);
            if constexpr (swap_ab) {
                const u32 to = box + piece_offset(8 * j + at_line, 2 * warp + matrix);
                asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(to),
                             "r"(low), "r"(high)
                             : "memory");
            } else {
                const u32 to = box + piece_offset(16 * warp + 8 * matrix + at_line, j);
                asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(to), "r"(low),
                             "r"(high)
                             : "memory");
            }
        }
    }
}

/// One consumer warpgroup: a block's boxes, from column `first` on, through two buffers in turn.
template <int first>
__device__ __forceinline__ void store_block(
    const GemmArguments& problem, const CtaTile& tile, const float (&d)[tile_n / 2], int row, u32 boxes,
    int consumer, int& buffer) {
    using namespace epilogue;
    constexpr int parts = swap_ab ? 64 / line : 1;  // TMA boxes in a buffer
    constexpr int lines = swap_ab ? box_columns : 64;
    const int thread = threadIdx.x % warpgroup;
    const u32 staged = boxes + buffer * at::box_bytes;
    if (thread == 0) tma_store_wait_read<at::boxes - 1>();  // the buffer's last store has read it
    sync_threads(1 + consumer, warpgroup);
    stage_box<first>(problem, tile, d, row, staged);
    fence_async_shared();
    sync_threads(1 + consumer, warpgroup);
#pragma unroll
    for (int part = 0; part < parts; ++part) {
        const Box box = box_at(tile, row + part * line, first);
        const u32 from = staged + part * box_columns * 128;
        if (stored_by_tma(box, lines)) {
            if (thread == 0) store_box_by_tma(problem, box, from);
        } else {
            store_box_by_threads<lines, warpgroup>(problem, box, from, thread);
        }
    }
    if (thread == 0) tma_store_commit();
    buffer ^= 1;
    if constexpr (first + box_columns < tile_n) {
        store_block<first + box_columns>(problem, tile, d, row, boxes, consumer, buffer);
    }
}

/// One consumer warpgroup: multiply and store its rows of every tile. With times kept, a tile lasts from when the
/// last consumer turned to it until the last one had handed its rows to TMA, so that tiles of a CTA never overlap.
__device__ __forceinline__ void consume(
    const GemmLaunch& problem, const TileMap& map, Work work, u32 shared, u32 rank, int consumer) {
    const int x = rank % cluster_m, y = rank / cluster_m;
    const int peer = threadIdx.x % warpgroup;
    // Thread r of the warpgroup tells rank r that its loads have been read, if rank r loads for this CTA.
    const bool feeds = peer < cluster_size && (peer % cluster_m == x || peer / cluster_m == y);
    const int target = feeds ? peer : -1;
    const u32 boxes = shared + at::output + consumer * at::boxes * at::box_bytes;
    RingPosition<num_stages> stage;
    int buffer = 0;
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        if (timeline && peer == 0) {
            TileTime& time = problem.time_of(work.tile, rank, cluster_size);
            if (consumer == 0) tile_times::place(time);
            tile_times::begin_latest(time);
        }
        const CtaTile tile = map.locate(work.tile, x, y);
        Accumulators d;
        if (ragged == Ragged::k && tile.k == 0) {
#pragma unroll
            for (int block = 0; block < blocks; ++block) {
#pragma unroll
                for (int i = 0; i < tile_n / 2; ++i) d[block][i] = 0.0f;
            }
        }
        multiply(d, tile.k, shared, consumer, target, stage);
#pragma unroll
        for (int block = 0; block < blocks; ++block) {
            store_block<0>(problem, tile, d[block], consumer * rows + 64 * block, boxes, consumer, buffer);
        }
        if (timeline && peer == 0) tile_times::end_latest(problem.time_of(work.tile, rank, cluster_size));
    }
    if (peer == 0) tma_store_wait_read<0>();  // shared memory may go once the stores have read it
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
    TileMap map(problem, reinterpret_cast<int*>(dynamic_shared + at::group_sums));
    if (threadIdx.x == 0) {
        tma_prefetch_map(&problem.a);
        tma_prefetch_map(&problem.b);
        if constexpr (store_by_tma) tma_prefetch_map(&problem.d);
        for (int slot = 0; slot < num_stages; ++slot) {
            mbarrier_init(shared + at::inputs_arrived + 8 * slot, 1);
            mbarrier_init(shared + at::inputs_finished + 8 * slot, consumers * (cluster_m + cluster_n - 1));
        }
        schedule::init(answers, cluster_size * (1 + 4 * consumers));
        fence_barrier_init();
    }
    __syncwarp();
    sync_all<cluster_size>();
    map.ready();
    Work work(answers, map.num_tiles);
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (warp == 0) produce(problem, map, work, shared, rank);
        if (schedule::is_dynamic && warp == 1 && rank == 0) work.ask_until_declined(rank, problem.work_counter, problem.request_times());
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        consume(problem, map, work, shared, rank, warp / 4 - 1);
    }
    __syncwarp();
    sync_all<cluster_size>();  // nobody leaves while a peer may still signal it
}

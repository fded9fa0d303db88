// GEMM for every part since Ampere (sm_80): cp.async, ldmatrix, mma.sync, one CTA alone.
//
//     every warp: copies its pieces -- cp.async groups, then the CTA's barrier --> multiplies --> stores
//
// No TMA, no mbarrier, no cluster. A ring of operand stages in shared memory: behind the barrier of k step i
// every warp has read stage i - 1, so that its slot takes k step i + num_stages - 1. Each k step commits one
// group of copies, an empty one at the end, so that "all but num_stages - 2 groups" always means the next
// stage. A warp holds its part of the tile in registers. It stores eight lines of D at a time through the
// last slot, which the next tile's first copies leave alone: tiles need no barrier between them.
#include "arguments.cuh"
#include "cluster.cuh"
#include "config.cuh"
#include "epilogue.cuh"
#include "mma_sync.cuh"
#include "schedule.cuh"
#include "tile_map.cuh"

namespace {

using namespace config;

constexpr int threads = tile_m * tile_n > 64 * 64 ? 256 : 128;
constexpr int warps = threads / 32;
constexpr int warp_m = tile_m * tile_n >= 128 * 128 ? 64 : 32;  // rows of one warp
constexpr int warps_m = tile_m / warp_m;
constexpr int warp_n = tile_n * warps_m / warps;                // columns of one warp
constexpr int blocks_m = warp_m / 16, blocks_n = warp_n / 8;    // instructions that cover them

constexpr int row_bytes = tile_k * size_of(input);              // of a stage
constexpr int row_chunks = row_bytes / 16;
constexpr int chunk = 16 / size_of(input);                      // elements that one copy moves
constexpr int parts = row_bytes / 32;                           // instructions along k of a stage
constexpr int copied_rows = threads / row_chunks;               // rows that the CTA copies at once
constexpr int a_bytes = tile_m * row_bytes;
constexpr int stage_bytes = a_bytes + tile_n * row_bytes;

static_assert(cluster_m * cluster_n == 1 && cta_group == 1 && accumulator_stages == 1, "one CTA alone");
static_assert(tile_m % 64 == 0 && tile_n % 64 == 0, "tiles are multiples of 64");
static_assert((warp_n == 32 || warp_n == 64) && warps_m * warp_m == tile_m, "warps cover the tile");
static_assert(blocks_m * blocks_n * 4 <= 128, "128 accumulators a thread");
static_assert(row_bytes == 64 || row_bytes == 128, "a stage's row is half a line of shared memory or one");
static_assert(tile_m % copied_rows == 0 && tile_n % copied_rows == 0, "each thread copies as much");
static_assert(num_stages >= 2, "one stage is read while the next is copied");
static_assert(scheduler == Scheduler::single_tile || scheduler == Scheduler::static_stride, "one CTA alone");
static_assert(ragged != Ragged::m || !swap_ab, "swapped, M is N");
static_assert(ragged != Ragged::n || swap_ab, "groups share D's rows, not its columns");

/// Eight lines of D that a warp stages, as float: padded so that its lanes' writes meet no bank twice.
namespace staging {
constexpr int lines = 8;
constexpr int line = swap_ab ? warp_m : warp_n;  // elements
constexpr int pitch = 4 * line + (swap_ab ? 16 : 32);
constexpr int bytes = lines * pitch;             // of one warp
}  // namespace staging

/// Offsets in dynamic shared memory. A slot holds the rows of A, then those of B.
namespace at {
constexpr int ring = 0;
constexpr int staged = ring + (num_stages - 1) * stage_bytes;  // the last slot, and past it if need be
constexpr int ring_end = ring + num_stages * stage_bytes;
constexpr int staged_end = staged + warps * staging::bytes;
constexpr int group_sums = ring_end > staged_end ? ring_end : staged_end;
constexpr int end = group_sums + 4 * TileMap::shared_words;
}  // namespace at
static_assert(at::end <= smem_bytes, "the launch's shared memory holds the layout");

using Accumulators = float[blocks_m][blocks_n][4];

/// Where 16-byte chunk `c` of row `r` lies in an operand: eight rows that are read at once, or eight chunks
/// that are written at once, fall into different banks.
__device__ __forceinline__ u32 swizzled(int r, int c) {
    return r * row_bytes + ((c ^ (r * row_bytes / 128 % row_chunks)) << 4);
}

/// The chunks of one operand that this thread copies: one in every copied_rows-th row, all at the same k.
struct Source {
    const unsigned char* from;  // in the first row, at the next k step
    long long step;             // bytes from one of its rows to the next
    int rows;                   // how many of them lie within the group

    /// `first`: row of the tensor that the tile begins with; `extent`: rows from there to the group's end.
    __device__ __forceinline__ Source(
        const void* data, long long group_start, long long row_stride, int first, int extent, int k_offset) {
        const int row = threadIdx.x / row_chunks, k = k_offset + threadIdx.x % row_chunks * chunk;
        const long long element = group_start + (static_cast<long long>(first) + row) * row_stride + k;
        from = static_cast<const unsigned char*>(data) + element * size_of(input);
        step = copied_rows * row_stride * size_of(input);
        rows = extent > row ? (extent - row - 1) / copied_rows + 1 : 0;
    }

    /// Copy one k step of `count` rows; `bytes` of each chunk exist.
    template <int count>
    __device__ __forceinline__ void copy(u32 to, int bytes) {
        const unsigned char* row = from;
#pragma unroll
        for (int i = 0; i < count / copied_rows; ++i) {
            copy_async(to + i * copied_rows * row_bytes, row, i < rows ? bytes : 0);
            row += step;
        }
        from += row_bytes;
    }
};

/// Everything that this thread copies for one tile, k step by k step.
class Copies {
  public:
    __device__ __forceinline__ Copies(const GemmArguments& problem, const CtaTile& tile)
        : a(problem.a_data, tile.a_group * problem.a_group_stride, problem.a_row_stride,
            tile.row_offset + tile.row, tile.rows - tile.row, tile.k_offset),
          b(problem.b_data, tile.b_group * problem.b_group_stride, problem.b_row_stride,
            tile.column_offset + tile.column, tile.columns - tile.column, tile.k_offset),
          to(swizzled(threadIdx.x / row_chunks, threadIdx.x % row_chunks)),
          left(tile.k - static_cast<int>(threadIdx.x % row_chunks) * chunk) {}

    /// The next k step, into a slot. What lies past the group's end in k is zero in both operands: the
    /// neighbouring group's numbers, and their infinities, must not meet.
    __device__ __forceinline__ void next(u32 slot) {
        const int bytes = left <= 0 ? 0 : left < chunk ? left * size_of(input) : 16;
        a.copy<tile_m>(slot + to, bytes);
        b.copy<tile_n>(slot + a_bytes + to, bytes);
        left -= tile_k;
    }

  private:
    Source a, b;
    u32 to;    // offset of the thread's first chunk in an operand
    int left;  // elements from the thread's chunk to the group's end in k
};

/// Operands of one instruction's extent in k, for all blocks of a warp.
struct Fragments {
    u32 a[blocks_m][4], b[blocks_n][2];

    /// `a_rows`, `b_rows`: the lane's row in a slot (Multiplier). Swizzling commutes with the step along k.
    __device__ __forceinline__ void load(u32 a_rows, u32 b_rows, int part) {
        load_a(a_rows, part);
#pragma unroll
        for (int j = 0; j < blocks_n; j += 2) load_b(b_rows, part, j);
    }

    __device__ __forceinline__ void multiply(Accumulators& d) const {
#pragma unroll
        for (int i = 0; i < blocks_m; ++i) {
#pragma unroll
            for (int j = 0; j < blocks_n; ++j) mma_sync<input>(d[i][j], a[i], b[j]);
        }
    }

    /// Both at once, two blocks of B at a time: the fewest registers.
    __device__ __forceinline__ void multiply_as_loaded(Accumulators& d, u32 a_rows, u32 b_rows, int part) {
        load_a(a_rows, part);
#pragma unroll
        for (int j = 0; j < blocks_n; j += 2) {
            load_b(b_rows, part, j);
#pragma unroll
            for (int i = 0; i < blocks_m; ++i) {
                mma_sync<input>(d[i][j], a[i], b[j]);
                mma_sync<input>(d[i][j + 1], a[i], b[j + 1]);
            }
        }
    }

  private:
    __device__ __forceinline__ void load_a(u32 rows, int part) {
#pragma unroll
        for (int i = 0; i < blocks_m; ++i) {
            load_matrices((rows ^ part << 5) + i * 16 * row_bytes, a[i][0], a[i][1], a[i][2], a[i][3]);
        }
    }

    __device__ __forceinline__ void load_b(u32 rows, int part, int j) {
        load_matrices((rows ^ part << 5) + j * 8 * row_bytes, b[j][0], b[j][1], b[j + 1][0], b[j + 1][1]);
    }
};

/// ptxas makes fp8 products of two for fp16 where the part has no such instruction (sm_90, sm_100, sm_103): the
/// converted fragments take the registers that loading ahead would need.
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
constexpr bool loads_ahead = size_of(input) > 1;
#else
constexpr bool loads_ahead = true;
#endif

/// One warp's products of one tile. Fragments are loaded one part ahead, across stages too: the barrier of the
/// next k step stands before the last part's instructions, whose operands are in registers by then.
__device__ __forceinline__ void multiply(
    Accumulators& d, const GemmArguments& problem, const CtaTile& tile, u32 shared, int row, int column) {
    const int lane = threadIdx.x % 32;
    // Matrices of A: rows 0-7, rows 8-15, then the same 16 bytes on. Of B: 16 bytes on, then rows 8-15.
    const u32 a_rows = swizzled(row + lane % 16, lane / 16);
    const u32 b_rows = a_bytes + swizzled(column + lane % 8 + lane / 16 * 8, lane / 8 % 2);
    const int steps = ceil_div(tile.k, tile_k);
    Copies copies(problem, tile);
#pragma unroll 1
    for (int step = 0; step < num_stages - 1; ++step) {
        if (step < steps) copies.next(shared + at::ring + step * stage_bytes);
        copy_async_commit();
    }
    u32 slot = shared + at::ring;                                    // that is read
    u32 refill = shared + at::ring + (num_stages - 1) * stage_bytes; // that was read before
    Fragments fragments[2];
    copy_async_wait<num_stages - 2>();
    __syncthreads();
    if (loads_ahead && steps > 0) fragments[0].load(slot + a_rows, slot + b_rows, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
#pragma unroll(loads_ahead ? parts : 1)
        for (int part = 0; part < parts; ++part) {
            if (!loads_ahead) {
                fragments[0].multiply_as_loaded(d, slot + a_rows, slot + b_rows, part);
            } else if (part + 1 < parts) {
                fragments[(part + 1) % 2].load(slot + a_rows, slot + b_rows, part + 1);
            }
            if (part == 0) {
                if (step + num_stages - 1 < steps) copies.next(refill);
                copy_async_commit();
            }
            if (part + 1 == parts) {
                copy_async_wait<num_stages - 2>();
                __syncthreads();
                refill = slot;
                slot += stage_bytes;
                if (slot == shared + at::ring_end) slot = shared + at::ring;
                if (loads_ahead && step + 1 < steps) fragments[0].load(slot + a_rows, slot + b_rows, 0);
            }
            if (loads_ahead) fragments[part % 2].multiply(d);
        }
    }
    copy_async_wait<0>();  // empty groups only: the ring is drained
}

/// Two neighbouring elements of a 2-byte C.
__device__ __forceinline__ void unpack(u32 packed, float& low, float& high) {
    if constexpr (output == Type::bf16) {
        low = __int_as_float(static_cast<int>(packed << 16));
        high = __int_as_float(static_cast<int>(packed & 0xffff0000));
    } else {
        asm("{\n"
            ".reg .b16 l, h;\n"
            "mov.b32 {l, h}, %2;\n"
            "cvt.f32.f16 %0, l;\n"
            "cvt.f32.f16 %1, h;\n"
            "}"
            : "=f"(low), "=f"(high)
            : "r"(packed));
    }
}

/// One lane: the staged 16-byte pieces of D that are its share, finished and stored.
__device__ __forceinline__ void store_lines(const GemmArguments& problem, const epilogue::Box& box, u32 staged) {
    constexpr int elements = 16 / epilogue::element_bytes;  // of a piece
    constexpr int pieces = staging::line / elements;        // of a line
#pragma unroll
    for (int i = 0; i < staging::lines * pieces / 32; ++i) {
        const int at = (threadIdx.x % 32 + 32 * i) / pieces, piece = (threadIdx.x % 32 + 32 * i) % pieces;
        const int row = box.row + at, column = box.column + piece * elements;
        if (row >= box.rows || column >= box.columns) continue;
        const bool whole = store_by_tma && column + elements <= box.columns;  // and rows are 16-byte aligned
        const long long index = box.group * problem.group_stride +
                                (static_cast<long long>(box.row_offset) + row) * problem.row_stride + column;
        float value[elements];
#pragma unroll
        for (int e = 0; e < elements; e += 4) {
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(value[e]), "=f"(value[e + 1]), "=f"(value[e + 2]), "=f"(value[e + 3])
                         : "r"(staged + at * staging::pitch + 4 * (piece * elements + e))
                         : "memory");
        }
#pragma unroll
        for (int e = 0; e < elements; ++e) value[e] *= problem.alpha;
        if constexpr (has_c) {
            float c[elements] = {};
            if (whole && reinterpret_cast<u64>(problem.c) % 16 == 0) {
                u32 words[4];
                asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                             : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                             : "l"(static_cast<const char*>(problem.c) + index * epilogue::element_bytes)
                             : "memory");
#pragma unroll
                for (int w = 0; w < 4; ++w) {
                    if constexpr (output == Type::fp32) {
                        c[w] = __int_as_float(static_cast<int>(words[w]));
                    } else {
                        unpack(words[w], c[2 * w], c[2 * w + 1]);
                    }
                }
            } else {
#pragma unroll
                for (int e = 0; e < elements; ++e) {
                    if (column + e < box.columns) c[e] = epilogue::load_c(problem.c, index + e);
                }
            }
#pragma unroll
            for (int e = 0; e < elements; ++e) value[e] += problem.beta * c[e];
        }
        if constexpr (has_bias) {
#pragma unroll
            for (int e = 0; e < elements; ++e) {
                if (column + e < box.columns) value[e] += problem.bias[column + e];
            }
        }
        union {
            u32 words[4];
            u16 halves[8];
        } packed;
#pragma unroll
        for (int w = 0; w < 4; ++w) {
            if constexpr (output == Type::fp32) {
                packed.words[w] = __float_as_uint(value[w]);
            } else {
                packed.words[w] = epilogue::pack(value[2 * w], value[2 * w + 1]);
            }
        }
        if (whole) {
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                             static_cast<char*>(problem.output) + index * epilogue::element_bytes),
                         "r"(packed.words[0]), "r"(packed.words[1]), "r"(packed.words[2]), "r"(packed.words[3])
                         : "memory");
            continue;
        }
#pragma unroll
        for (int e = 0; e < elements; ++e) {
            if (column + e >= box.columns) break;
            if constexpr (output == Type::fp32) {
                static_cast<u32*>(problem.output)[index + e] = packed.words[e];
            } else {
                static_cast<u16*>(problem.output)[index + e] = packed.halves[e];
            }
        }
    }
}

/// One warp: its part of the tile from registers to D, through its own staging memory.
__device__ __forceinline__ void store(
    const GemmArguments& problem, const CtaTile& tile, const Accumulators& d, u32 staged, int row, int column) {
    const int r = threadIdx.x % 32 / 4, c = threadIdx.x % 4 * 2;  // of an 8x8 matrix, and c + 1
    if constexpr (swap_ab) {  // a line of D is a column of accumulators
#pragma unroll
        for (int j = 0; j < blocks_n; ++j) {
#pragma unroll
            for (int i = 0; i < blocks_m; ++i) {
#pragma unroll
                for (int e = 0; e < 4; ++e) {
                    const u32 to = staged + (c + e % 2) * staging::pitch + 4 * (16 * i + 8 * (e / 2) + r);
                    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(d[i][j][e]) : "memory");
                }
            }
            __syncwarp();
            store_lines(problem, epilogue::box_at(tile, row, column + 8 * j), staged);
            __syncwarp();
        }
    } else {
#pragma unroll
        for (int half = 0; half < 2 * blocks_m; ++half) {  // rows 0-7 and 8-15 of each block
#pragma unroll
            for (int j = 0; j < blocks_n; ++j) {
                const float* value = d[half / 2][j] + half % 2 * 2;
                const u32 to = staged + r * staging::pitch + 4 * (8 * j + c);
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(value[0]), "f"(value[1])
                             : "memory");
            }
            __syncwarp();
            store_lines(problem, epilogue::box_at(tile, row + 8 * half, column), staged);
            __syncwarp();
        }
    }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(threads, 1)
    tilewright_gemm(const __grid_constant__ GemmLaunch problem) {
    extern __shared__ __align__(1024) unsigned char dynamic_shared[];
    const u32 shared = shared_address(dynamic_shared);
    const int warp = threadIdx.x / 32;
    const int row = warp % warps_m * warp_m, column = warp / warps_m * warp_n;  // of this warp in the tile
    TileMap map(problem, reinterpret_cast<int*>(dynamic_shared + at::group_sums));
    if constexpr (ragged != Ragged::none) __syncthreads();
    map.ready();
    schedule::Schedule work(schedule::Shared{}, map.num_tiles);
#pragma unroll 1
    for (bool more = work.first(); more; more = work.next()) {
        if (timeline && threadIdx.x == 0) tile_times::begin(problem.time_of(work.tile, 0, 1));
        const CtaTile tile = map.locate(work.tile, 0, 0);
        Accumulators d = {};
        multiply(d, problem, tile, shared, row, column);
        store(problem, tile, d, shared + at::staged + warp * staging::bytes, row, column);
        if (timeline && threadIdx.x % 32 == 0) tile_times::end_latest(problem.time_of(work.tile, 0, 1));
    }
}

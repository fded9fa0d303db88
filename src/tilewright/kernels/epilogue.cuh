// From accumulators to D: scaled, converted, staged in shared memory, stored by TMA or by predicated writes.
//
// A box is what one TMA store moves: `box_lines` lines of `line` elements along D's contiguous axis, at most
// 128 bytes, swizzled. With swap_ab lines run along the accumulator's rows. A box that ends past its group's
// rows would overwrite the next group's: it is written line by line instead, and so is every box when D's
// rows are not 16-byte aligned.
#pragma once
#include "arguments.cuh"
#include "config.cuh"
#include "tile_map.cuh"
#include "tma.cuh"

namespace epilogue {

constexpr int element_bytes = size_of(config::output);

/// Bytes of a line: the widest swizzle that divides the tile.
constexpr int line_bytes = config::swap_ab || config::tile_n * element_bytes % 128 == 0  ? 128
                           : config::tile_n * element_bytes % 64 == 0                    ? 64
                                                                                         : 32;
constexpr int line = line_bytes / element_bytes;
constexpr int pieces = line_bytes / 16;  // of 16 bytes, a line

/// Accumulator columns of a box: along its lines, or transposed as many lines as divide the tile.
[[maybe_unused]] constexpr int box_columns = !config::swap_ab               ? line
                            : config::tile_n % line == 0   ? line
                            : config::tile_n % 32 == 0     ? 32
                                                           : 16;

/// Where 16-byte piece `piece` of line `at` lies in a swizzled box.
__device__ __forceinline__ u32 piece_offset(int at, int piece) {
    return at * line_bytes + ((piece ^ (at * line_bytes / 128 % pieces)) << 4);
}

/// Where a box lies in D.
struct Box {
    int row, column;           // first, within the group
    int rows, columns;         // of the group
    int row_offset, group;
};

/// The box whose first accumulator is (row, column) of the tile.
__device__ __forceinline__ Box box_at(const CtaTile& tile, int row, int column) {
    if constexpr (config::swap_ab) {
        return {tile.column + column, tile.row + row, tile.columns, tile.rows, tile.column_offset, tile.d_group};
    } else {
        return {tile.row + row, tile.column + column, tile.rows, tile.columns, tile.row_offset, tile.d_group};
    }
}

/// Two neighbouring elements, the first in the low half.
__device__ __forceinline__ u32 pack(float low, float high) {
    u32 packed;
    if constexpr (config::output == Type::bf16) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
    }
    return packed;
}

__device__ __forceinline__ float load_c(const void* c, long long index) {
    if constexpr (config::output == Type::fp32) return static_cast<const float*>(c)[index];
    const u16 bits = static_cast<const u16*>(c)[index];
    float value;
    if constexpr (config::output == Type::bf16) {
        value = __int_as_float(static_cast<int>(bits) << 16);
    } else {
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    }
    return value;
}

/// alpha * accumulator + beta * C + bias for the accumulator at (row, column) of the tile.
__device__ __forceinline__ float finish(
    const GemmArguments& problem, const CtaTile& tile, float accumulator, int row, int column) {
    float value = problem.alpha * accumulator;
    if constexpr (config::has_c || config::has_bias) {
        const Box at = box_at(tile, row, column);
        if (at.row < at.rows && at.column < at.columns) {
            if constexpr (config::has_c) {
                const long long index = at.group * problem.group_stride +
                                        (at.row_offset + at.row) * problem.row_stride + at.column;
                value += problem.beta * load_c(problem.c, index);
            }
            if constexpr (config::has_bias) value += problem.bias[at.column];
        }
    }
    return value;
}

constexpr int piece_elements = 16 / element_bytes;

/// The 16 bytes of C at (row, column) of the tile, zeros outside the group: one load where C allows it.
__device__ __forceinline__ void load_c_piece(
    const GemmArguments& problem, const CtaTile& tile, int row, int column, u32 (&words)[4]) {
    const Box at = box_at(tile, row, column);
    const long long index =
        at.group * problem.group_stride + (at.row_offset + at.row) * problem.row_stride + at.column;
    const bool is_aligned = config::store_by_tma && (reinterpret_cast<u64>(problem.c) & 15) == 0;
    words[0] = words[1] = words[2] = words[3] = 0;
    if (at.row >= at.rows) return;
    if (is_aligned && at.column + piece_elements <= at.columns) {
        const auto* from = static_cast<const unsigned char*>(problem.c) + index * element_bytes;
        asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                     : "l"(from)
                     : "memory");
        return;
    }
#pragma unroll
    for (int e = 0; e < piece_elements; ++e) {
        if (at.column + e >= at.columns) break;
        if constexpr (element_bytes == 4) {
            words[e] = static_cast<const u32*>(problem.c)[index + e];
        } else {
            words[e / 2] |= static_cast<u32>(static_cast<const u16*>(problem.c)[index + e]) << 16 * (e % 2);
        }
    }
}

/// Element `e` of a piece.
__device__ __forceinline__ float element_of(const u32 (&words)[4], int e) {
    if constexpr (config::output == Type::fp32) return __uint_as_float(words[e]);
    const u32 both = words[e / 2];
    float value;
    if constexpr (config::output == Type::bf16) {
        value = __uint_as_float(e % 2 ? both & 0xffff0000 : both << 16);
    } else {
        asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(static_cast<u16>(e % 2 ? both >> 16 : both)));
    }
    return value;
}

/// finish for the 16 bytes of D that start at (row, column) of the tile, not transposed. The accumulators are
/// d[first] and the following.
template <int columns>
__device__ __forceinline__ void finish_piece(
    const GemmArguments& problem, const CtaTile& tile, const float (&d)[columns], int first, int row,
    int column, u32 (&words)[4]) {
    float value[piece_elements];
    u32 c[4];
    if constexpr (config::has_c) load_c_piece(problem, tile, row, column, c);
#pragma unroll
    for (int e = 0; e < piece_elements; ++e) {
        value[e] = problem.alpha * d[first + e];
        if constexpr (config::has_c) value[e] += problem.beta * element_of(c, e);
        if constexpr (config::has_bias) {
            if (tile.column + column + e < tile.columns) value[e] += problem.bias[tile.column + column + e];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if constexpr (element_bytes == 4) {
            words[i] = __float_as_uint(value[i]);
        } else {
            words[i] = pack(value[2 * i], value[2 * i + 1]);
        }
    }
}

/// Whether TMA may store a box of `lines` lines: it clips at D's own edges, not at a ragged group's.
__device__ __forceinline__ bool stored_by_tma(const Box& box, int lines) {
    if constexpr (!config::store_by_tma) return false;
    constexpr bool ragged_rows = config::ragged == (config::swap_ab ? Ragged::n : Ragged::m);
    return !ragged_rows || box.row + lines <= box.rows;
}

/// Store a box from shared memory by TMA. One thread, after fence_async_shared by all writers and a barrier.
__device__ __forceinline__ void store_box_by_tma(const GemmArguments& problem, const Box& box, u32 staged) {
    tma_store(staged, &problem.d, box.column, box.row_offset + box.row, box.group);
}

/// Store a box of `lines` lines from shared memory by `threads` threads, inside the group's extents.
template <int lines, int threads>
__device__ __forceinline__ void store_box_by_threads(
    const GemmArguments& problem, const Box& box, u32 staged, int thread) {
    constexpr int elements = 16 / element_bytes;
#pragma unroll 1
    for (int i = thread; i < lines * pieces; i += threads) {
        const int at = i / pieces, piece = i % pieces;
        const int row = box.row + at, column = box.column + piece * elements;
        if (row >= box.rows || column >= box.columns) continue;
        union {
            u32 words[4];
            u16 halves[8];
        } value;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(value.words[0]), "=r"(value.words[1]), "=r"(value.words[2]), "=r"(value.words[3])
                     : "r"(staged + piece_offset(at, piece))
                     : "memory");
        const long long index =
            box.group * problem.group_stride + (box.row_offset + row) * problem.row_stride + column;
        if (config::store_by_tma && column + elements <= box.columns) {
            auto* to = static_cast<unsigned char*>(problem.output) + index * element_bytes;
            asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.words[0]),
                         "r"(value.words[1]), "r"(value.words[2]), "r"(value.words[3])
                         : "memory");
            continue;
        }
#pragma unroll
        for (int e = 0; e < elements; ++e) {
            if (column + e >= box.columns) break;
            if constexpr (element_bytes == 4) {
                static_cast<u32*>(problem.output)[index + e] = value.words[e];
            } else {
                static_cast<u16*>(problem.output)[index + e] = value.halves[e];
            }
        }
    }
}

}  // namespace epilogue

// What every GEMM kernel here is launched with: D = alpha * A B^T + beta * C + bias.
#pragma once
#include "config.cuh"
#include "timeline.cuh"
#include "types.cuh"

/// Passed as __grid_constant__, in GemmLaunch. The host's mirror is tilewright.kernels.abi.
///
///   a    (k, rows, group): box tile_k x (tile_m / cluster_n), 128-byte swizzle
///   b    (k, rows, group): box tile_k x (tile_n / cluster_m), 128-byte swizzle
///   d    (contiguous axis, rows, group) of the output; box and swizzle are the epilogue's
/// Ragged along M: the groups' rows of A and D lie one after the other in group 0, B has a group each.
/// Ragged along K: the groups' columns of A and B lie one after the other in group 0, D has a group each.
/// With swap_ab the host hands over B as a and A as b: m and n below are those of the swapped product, and
/// a problem ragged along M is ragged along N here. a_data and b_data follow a and b in all of this.
struct GemmArguments {
    TensorMap a, b, d;
    void* output;             // D
    const void* c;            // of D's type and strides; read when has_c
    const float* bias;        // a value a column of D; read when has_bias
    const int* counts;        // extent of each group on the device; read when ragged
    u32* work_counter;        // one zero word; used when dynamic_atomic, zero again at the end
    long long row_stride;     // of D and C in elements
    long long group_stride;   // of D and C in elements
    int m, n, k;              // extents; the ragged one is not read
    int groups;               // batch entries, or groups
    float alpha, beta;
    const void *a_data, *b_data;                 // the operands of a and b; read by kernels without TMA
    long long a_row_stride, b_row_stride;        // of these in elements, multiples of 16 bytes
    long long a_group_stride, b_group_stride;
};

/// What a kernel that keeps times is given besides, zeros both: an entry for each cluster tile and rank in it, rank
/// fastest, and one for each cluster tile.
template <bool keeps_times>
struct TimelineArgument {
    __device__ TileTime* tile_times() const { return nullptr; }
    __device__ RequestTime* request_times() const { return nullptr; }
};
template <>
struct TimelineArgument<true> {
    TileTime* timeline;
    RequestTime* requests;
    __device__ TileTime* tile_times() const { return timeline; }
    __device__ RequestTime* request_times() const { return requests; }
};

/// The launch's parameter: as large as GemmArguments where no times are kept.
struct GemmLaunch : GemmArguments, TimelineArgument<config::timeline> {
    /// Where CTA `rank` of a cluster of `size` keeps its time at a tile.
    __device__ __forceinline__ TileTime& time_of(int tile, u32 rank, int size) const {
        return tile_times()[static_cast<long long>(tile) * size + rank];
    }
};
static_assert(sizeof(GemmLaunch) == sizeof(GemmArguments) || config::timeline, "times cost nothing where none are kept");

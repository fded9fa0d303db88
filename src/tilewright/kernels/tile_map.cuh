// Linear cluster id to tile: which rows and columns of which group. The same map as tilewright.tile_map.
//
// Ids count group by group. Within a group the order runs in strips, raster_swizzle cluster tiles wide along
// the minor axis and the whole group long along the major one. The groups of a ragged problem are found by
// binary search in prefix sums that lie in shared memory; one that is empty along M or N has no tile, one
// that is empty along K has tiles without k steps, which are stored as zeros.
#pragma once
#include "arguments.cuh"
#include "config.cuh"

/// What one CTA computes, in the kernel's frame (with swap_ab its M is the problem's N).
struct CtaTile {
    int row, column;                 // first output row and column of this CTA within its group
    int rows, columns;               // extents of the group: rows and columns past them are not stored
    int row_offset, column_offset;   // of the group where groups lie one after the other, else 0
    int k_offset, k;                 // of the group along K
    int a_group, b_group, d_group;   // third coordinate in each tensor
};

class TileMap {
  public:
    static constexpr int cluster_rows = config::tile_m * config::cluster_m;
    static constexpr int cluster_columns = config::tile_n * config::cluster_n;
    /// Shared memory for the prefix sums: the first row and the first tile of each group, and the totals.
    static constexpr int shared_words = config::ragged == Ragged::none ? 0 : 2 * (config::max_groups + 1);

    int num_tiles;  // cluster tiles of all groups

    /// Every thread of the CTA calls this; after the CTA's next barrier, ready().
    /// `sums`: shared_words words of shared memory.
    __device__ __forceinline__ TileMap(const GemmArguments& problem, int* sums)
        : problem(problem), sums(sums), m_tiles(ceil_div(problem.m, cluster_rows)),
          n_tiles(ceil_div(problem.n, cluster_columns)) {
        if constexpr (config::ragged != Ragged::none) {
            if (threadIdx.x < 32) sum_groups();
        } else {
            num_tiles = m_tiles * n_tiles * problem.groups;
        }
    }

    /// Read the totals.
    __device__ __forceinline__ void ready() {
        if constexpr (config::ragged != Ragged::none) num_tiles = tile_starts()[problem.groups];
    }

    /// The part of cluster tile `id` that the CTA at (x, y) of its cluster computes.
    __device__ __forceinline__ CtaTile locate(int id, int x, int y) const {
        CtaTile tile{0, 0, problem.m, problem.n, 0, 0, 0, problem.k, 0, 0, 0};
        int of_m = m_tiles, of_n = n_tiles;  // cluster tiles of the group
        if constexpr (config::ragged == Ragged::none) {
            const int group = id / (of_m * of_n);
            id -= group * of_m * of_n;
            tile.a_group = tile.b_group = tile.d_group = group;
        } else {
            const int group = group_of(id);
            id -= tile_starts()[group];
            const int offset = group_starts()[group];
            const int extent = group_starts()[group + 1] - offset;
            if constexpr (config::ragged == Ragged::m) {
                tile.rows = extent, tile.row_offset = offset, tile.b_group = group;
                of_m = ceil_div(extent, cluster_rows);
            } else if constexpr (config::ragged == Ragged::n) {
                tile.columns = extent, tile.column_offset = offset, tile.a_group = group;
                of_n = ceil_div(extent, cluster_columns);
            } else {
                tile.k = extent, tile.k_offset = offset, tile.d_group = group;
            }
        }
        const int major = config::raster_along_m ? of_m : of_n;
        const int minor = config::raster_along_m ? of_n : of_m;
        const int strip = id / (config::raster_swizzle * major);
        id -= strip * config::raster_swizzle * major;
        const int left = minor - strip * config::raster_swizzle;
        const int width = left < config::raster_swizzle ? left : config::raster_swizzle;
        const int down = id / width;
        const int across = strip * config::raster_swizzle + id - down * width;
        tile.row = (config::raster_along_m ? down : across) * cluster_rows + x * config::tile_m;
        tile.column = (config::raster_along_m ? across : down) * cluster_columns + y * config::tile_n;
        return tile;
    }

  private:
    const GemmArguments& problem;
    int* sums;
    int m_tiles, n_tiles;

    __device__ __forceinline__ int* group_starts() const { return sums; }
    __device__ __forceinline__ int* tile_starts() const { return sums + config::max_groups + 1; }

    __device__ __forceinline__ int tiles_of(int extent) const {
        if constexpr (config::ragged == Ragged::m) return ceil_div(extent, cluster_rows) * n_tiles;
        if constexpr (config::ragged == Ragged::n) return ceil_div(extent, cluster_columns) * m_tiles;
        return m_tiles * n_tiles;
    }

    /// The group that holds tile `id`: the last whose first tile is not past it.
    __device__ __forceinline__ int group_of(int id) const {
        int low = 0, high = problem.groups;  // tile_starts[low] <= id < tile_starts[high]
#pragma unroll 1
        while (high - low > 1) {
            const int middle = (low + high) / 2;
            if (tile_starts()[middle] <= id) {
                low = middle;
            } else {
                high = middle;
            }
        }
        return low;
    }

    /// Prefix sums of extents and tiles by one warp.
    __device__ __forceinline__ void sum_groups() const {
        const int lane = threadIdx.x;
        int extents = 0, tiles = 0;
#pragma unroll 1
        for (int first = 0; first < problem.groups; first += 32) {
            const int group = first + lane;
            const bool exists = group < problem.groups;
            const int extent = exists ? problem.counts[group] : 0;
            const int own_tiles = exists ? tiles_of(extent) : 0;
            int extent_sum = extent, tile_sum = own_tiles;
#pragma unroll
            for (int step = 1; step < 32; step *= 2) {
                const int extent_part = __shfl_up_sync(0xffffffff, extent_sum, step);
                const int tile_part = __shfl_up_sync(0xffffffff, tile_sum, step);
                if (lane >= step) extent_sum += extent_part, tile_sum += tile_part;
            }
            if (exists) {
                group_starts()[group] = extents + extent_sum - extent;
                tile_starts()[group] = tiles + tile_sum - own_tiles;
            }
            extents += __shfl_sync(0xffffffff, extent_sum, 31);
            tiles += __shfl_sync(0xffffffff, tile_sum, 31);
        }
        if (lane == 0) {
            group_starts()[problem.groups] = extents;
            tile_starts()[problem.groups] = tiles;
        }
    }
};

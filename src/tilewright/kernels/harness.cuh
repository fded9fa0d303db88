// What a tile function of the user's is given, and what the kernel around it is launched with.
//
//     __device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared);
//
// All threads of every CTA that shares the tile call it. It may meet at barriers of the CTA and of the
// cluster and may use `shared` as it likes; it ends by return, in every thread.
#pragma once
#include "timeline.cuh"
#include "types.cuh"

/// One tile, as one CTA sees it. All values are the same in all threads of the CTA.
struct Tile {
    int id;                          // 0 to count - 1
    int count;                       // tiles of the launch
    int rank, size;                  // of this CTA among those that share the tile
    int cluster_rank, cluster_size;  // in its cluster: as above, unless the launch prefers larger clusters
    int threads, warps;              // of this CTA
    int turn;                        // tiles that this CTA was at before
};

/// Who meets between two tiles.
enum class Meeting { none, cta, cluster };

/// One parameter. The host's mirror is tilewright.kernels.harness.
struct TileArguments {
    void* arguments;     // handed to the tile function
    u32* work_counter;   // two zero words; used when dynamic_atomic, zero again at the end
    TileTime* timeline;  // zeros; one for each tile and each rank in it; used when timeline
    int num_tiles;
};

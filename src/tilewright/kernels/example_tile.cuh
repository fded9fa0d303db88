// A tile that costs what it is told: `arguments` is an array of cycles, one for each tile. Put in place of a
// real tile it shows what a scheduler and a cluster size do to a list of costs.
#pragma once
#include "harness.cuh"

__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char*) {
    const long long start = clock64();
    const long long cycles = static_cast<const long long*>(arguments)[tile.id];
    while (clock64() - start < cycles) {
    }
}

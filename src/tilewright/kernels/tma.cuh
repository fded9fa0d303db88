// TMA: tensor copies between global memory and swizzled shared memory, and their proxy fences.
// All maps here have three dimensions: (contiguous axis, rows, group).
#pragma once
#include "types.cuh"

__device__ __forceinline__ void tma_prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/// Writes of this thread to shared memory become visible to TMA, wgmma and tcgen05.
__device__ __forceinline__ void fence_async_shared() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Load a box into this CTA; its bytes complete on `barrier`.
__device__ __forceinline__ void tma_load(u32 to, const TensorMap* map, u32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/// Load a box into the same offset of every CTA in `mask`; its bytes complete on each one's own `barrier`.
__device__ __forceinline__ void tma_load_multicast(
    u32 to, const TensorMap* map, u32 barrier, u16 mask, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to), "l"(map), "r"(barrier),
        "h"(mask), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/// Address of this barrier in the leader of the CTA's pair: the even rank. The rank lies above bit 24.
__device__ __forceinline__ u32 leader_barrier(u32 barrier) { return barrier & 0xfeffffff; }

/// Load a box into this CTA for a pair's MMA; its bytes complete on the barrier of the pair's leader.
__device__ __forceinline__ void tma_load_pair(
    u32 to, const TensorMap* map, u32 barrier, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.cta_group::2 "
        "[%0], [%1, {%3, %4, %5}], [%2];" ::"r"(to), "l"(map), "r"(leader_barrier(barrier)), "r"(x), "r"(y),
        "r"(z)
        : "memory");
}

/// Load a box into the same offset of every CTA in `mask`; its bytes complete on the barrier of each one's
/// leader.
__device__ __forceinline__ void tma_load_pair_multicast(
    u32 to, const TensorMap* map, u32 barrier, u16 mask, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".multicast::cluster.cta_group::2 [%0], [%1, {%4, %5, %6}], [%2], %3;" ::"r"(to), "l"(map),
        "r"(leader_barrier(barrier)), "h"(mask), "r"(x), "r"(y), "r"(z)
        : "memory");
}

/// Store a box; complete for reuse after tma_store_wait_read, in memory when the kernel ends.
__device__ __forceinline__ void tma_store(u32 from, const TensorMap* map, int x, int y, int z) {
    asm volatile(
        "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group [%1, {%2, %3, %4}], [%0];" ::"r"(from),
        "l"(map), "r"(x), "r"(y), "r"(z)
        : "memory");
}

__device__ __forceinline__ void tma_store_commit() {
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/// Wait until at most `left` of this thread's groups still read shared memory.
template <int left>
__device__ __forceinline__ void tma_store_wait_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(left) : "memory");
}

// Thread block clusters: ranks, the cluster barrier, writes into a peer's shared memory.
#pragma once
#include "types.cuh"

/// Rank of this CTA in its cluster.
__device__ __forceinline__ u32 cluster_rank() {
    u32 rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

/// Every thread of the cluster meets here; memory before it is visible after it. Warps must be converged.
__device__ __forceinline__ void cluster_sync() {
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n"
        "barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// The two halves of a meeting that publishes nothing: after the wait every CTA of the cluster is running.
__device__ __forceinline__ void cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_wait() {
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Every thread of the launch unit meets: the CTA when it is alone, else its cluster.
template <int cluster_size>
__device__ __forceinline__ void sync_all() {
    if constexpr (cluster_size == 1) {
        asm volatile("bar.sync 0;" ::: "memory");
    } else {
        cluster_sync();
    }
}

/// Write a word at the same offset in CTA `rank`'s shared memory; its four bytes complete on `barrier` there.
__device__ __forceinline__ void store_async_at(u32 address, u32 barrier, u32 rank, u32 value) {
    asm volatile(
        "{\n"
        ".reg .b32 there, done;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 done, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [there], %3, [done];\n"
        "}" ::"r"(address), "r"(barrier), "r"(rank), "r"(value) : "memory");
}

/// Threads of some warps of the CTA meet at hardware barrier `id` (1 to 15).
__device__ __forceinline__ void sync_threads(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

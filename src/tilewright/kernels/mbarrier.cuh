// mbarrier: phases of pending arrivals and pending bytes. PTX ISA, "mbarrier".
#pragma once
#include "types.cuh"

/// Make a barrier that completes a phase after `arrivals`; before fence_barrier_init and a cluster barrier.
__device__ __forceinline__ void mbarrier_init(u32 barrier, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

/// Make the initialised barriers visible to the cluster and to the async proxy.
__device__ __forceinline__ void fence_barrier_init() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

/// Wait until the phase of this parity has completed; acquires what threads of the cluster published.
__device__ __forceinline__ void mbarrier_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
}

/// The same where only asynchronous copies and products follow or are announced: TMA, wgmma, tcgen05 read and
/// write the slot, no generic access does. The default scope (the CTA) is what CUTLASS ships; the letter of
/// the PTX ISA asks for the cluster's, which invalidates L1 each time (rule MBAR-08).
__device__ __forceinline__ void mbarrier_wait_async(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
}

/// One arrival on a barrier of this CTA.
__device__ __forceinline__ void mbarrier_arrive(u32 barrier) {
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}

/// One arrival on the barrier at the same offset in CTA `rank` of the cluster, for a thread that has nothing
/// generic to publish: wgmma or tcgen05 read the slot and has been waited for, or the value that was read
/// decides about this arrival. release.cluster compiles to a fence of the whole GPU, about a microsecond a
/// stage on Hopper (docs/facts.md).
__device__ __forceinline__ void mbarrier_release_at(u32 barrier, u32 rank) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
        "}" ::"r"(barrier), "r"(rank) : "memory");
}

/// One arrival that also announces bytes which asynchronous copies will bring.
__device__ __forceinline__ void mbarrier_arrive_expect_tx(u32 barrier, u32 bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
        : "memory");
}

/// The same on the barrier at the same offset in CTA `rank`.
__device__ __forceinline__ void mbarrier_arrive_expect_tx_at(u32 barrier, u32 rank, u32 bytes) {
    asm volatile(
        "{\n"
        ".reg .b32 remote;\n"
        "mapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [remote], %2;\n"
        "}" ::"r"(barrier), "r"(rank), "r"(bytes) : "memory");
}

/// Position in a ring of `depth` barriers: the slot, and the parity of the phase to wait for next.
template <int depth>
struct RingPosition {
    int slot = 0;
    u32 phase = 0;

    __device__ __forceinline__ void advance() {
        if (++slot == depth) {
            slot = 0;
            phase ^= 1;
        }
    }
};

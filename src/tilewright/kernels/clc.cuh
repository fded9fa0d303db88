// Cluster launch control: ask the hardware for a pending cluster. PTX ISA, clusterlaunchcontrol (sm_100).
#pragma once
#include "types.cuh"

/// An answer as it lies in shared memory: 16 bytes, 16-byte aligned.
struct ClcAnswer {
    bool granted;
    int first_cta;  // %ctaid.x of the cancelled cluster's first CTA; unspecified unless granted
};

/// Ask once for the whole cluster. The 16-byte answer comes to the same offset in every CTA and completes
/// on each one's own barrier. One thread of the cluster; never again after a decline was seen.
template <int cluster_size>
__device__ __forceinline__ void clc_request(u32 answer, u32 barrier) {
    // The readers released the slot by generic reads; order this write of the async proxy after them.
    asm volatile("fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
    if constexpr (cluster_size == 1) {
        asm volatile(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%0], [%1];" ::"r"(
                answer),
            "r"(barrier)
            : "memory");
    } else {
        asm volatile(
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes"
            ".multicast::cluster::all.b128 [%0], [%1];" ::"r"(answer),
            "r"(barrier)
            : "memory");
    }
}

/// Read an answer whose phase has completed: one 128-bit load, coordinates only when granted.
__device__ __forceinline__ ClcAnswer clc_read(u32 answer) {
    u32 granted, first = 0;
    asm volatile(
        "{\n"
        ".reg .b128 response;\n"
        ".reg .pred granted;\n"
        "ld.shared.b128 response, [%2];\n"
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 granted, response;\n"
        "selp.u32 %0, 1, 0, granted;\n"
        "@granted clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %1, response;\n"
        "}"
        : "=r"(granted), "+r"(first)
        : "r"(answer)
        : "memory");
    return {granted != 0, static_cast<int>(first)};
}

/// After clc_read and before the release of the slot: this thread's read stays before the next answer.
__device__ __forceinline__ void clc_release_fence() {
    asm volatile("fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}

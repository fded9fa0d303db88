// tcgen05: one thread multiplies swizzled tiles in shared memory into TMEM, for its CTA or for a pair.
// PTX ISA, tcgen05 (sm_100a, sm_103a). `group` is cta_group: one value for every instruction of a kernel.
//
// TMEM addresses are lane << 16 | column. Warp w of a warpgroup reaches lanes 32 w to 32 w + 31 only.
#pragma once
#include "types.cuh"

/// tcgen05 operations of this thread come before what it signals next. A commit needs no such fence.
__device__ __forceinline__ void tcgen05_fence_before() {
    asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
}

/// tcgen05 operations of this thread come after what it has waited for.
__device__ __forceinline__ void tcgen05_fence_after() {
    asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory");
}

/// Wait until the phase of this parity has completed, where only tcgen05 operations come before and after it:
/// the fence orders them, so the wait itself acquires nothing. PTX ISA, 9.7.16.6.4.4.
__device__ __forceinline__ void tcgen05_wait(u32 barrier, u32 parity) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}" ::"r"(barrier), "r"(parity) : "memory");
    tcgen05_fence_after();
}

/// Columns to allocate for `used` of them: a power of two from 32.
__host__ __device__ constexpr int tmem_columns(int used) {
    int columns = 32;
    while (columns < used) columns *= 2;
    return columns;
}

/// Allocate `columns` of TMEM and write their address to shared memory. One warp, in both CTAs of a pair, and
/// only once the peer is known to run: it blocks until the peer's warp is there too. The permit is given back
/// at once, so that a CTA that comes to this SM later can allocate what is left.
template <int group, int columns>
__device__ __forceinline__ void tmem_allocate(u32 address) {
    static_assert(columns == tmem_columns(columns) && columns <= 512, "a power of two from 32 to 512");
    if constexpr (group == 1) {
        asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address),
                     "n"(columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;" ::: "memory");
    } else {
        asm volatile("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%0], %1;" ::"r"(address),
                     "n"(columns)
                     : "memory");
        asm volatile("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;" ::: "memory");
    }
}

/// Give back what tmem_allocate took. The warp that allocated, in both CTAs of a pair, once nobody of either
/// uses the columns any more; it may block until the peer's warp is there, so nothing may wait behind it.
template <int group, int columns>
__device__ __forceinline__ void tmem_free(u32 tmem) {
    if constexpr (group == 1) {
        asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(columns)
                     : "memory");
    } else {
        asm volatile("tcgen05.dealloc.cta_group::2.sync.aligned.b32 %0, %1;" ::"r"(tmem), "n"(columns)
                     : "memory");
    }
}

/// Matrix descriptor of a K-major tile: rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes
/// apart. The next K of one instruction lies 32 bytes on: 2 in the descriptor.
__device__ __forceinline__ u64 tcgen05_descriptor(u32 address) {
    constexpr u64 leading = 1;            // not used by swizzled K-major tiles
    constexpr u64 stride = 1024 >> 4;     // from one group of 8 rows to the next
    constexpr u64 version = 1;            // bits 46 to 48 are 0b001
    constexpr u64 swizzle_128 = 2;
    return static_cast<u64>((address & 0x3ffff) >> 4) | leading << 16 | stride << 32 | version << 46 |
           swizzle_128 << 61;
}

/// Instruction descriptor: A[m, k] and B[n, k] K-major and of one type, fp32 accumulators. m spans the pair.
__host__ __device__ constexpr u32 tcgen05_instruction(Type type, int m, int n) {
    constexpr u32 fp32 = 1;
    // Each kind numbers its types: fp16 0 and bf16 1, e4m3 0 and e5m2 1.
    const u32 format = type == Type::bf16 || type == Type::fp8_e5m2 ? 1 : 0;
    return fp32 << 4 | format << 7 | format << 10 | static_cast<u32>(n / 8) << 17 |
           static_cast<u32>(m / 16) << 24;
}

/// D = A B^T + D * accumulate over 32 bytes of K. One thread, of the leader CTA for a pair.
template <int group, Type type>
__device__ __forceinline__ void tcgen05_mma(u32 d, u64 a, u64 b, u32 instruction, bool accumulate) {
#define TCGEN05_MMA(GROUP, KIND)                                                                      \
    asm volatile(                                                                                     \
        "{\n"                                                                                         \
        ".reg .pred accumulate;\n"                                                                    \
        "setp.ne.b32 accumulate, %4, 0;\n"                                                            \
        "tcgen05.mma.cta_group::" #GROUP ".kind::" KIND " [%0], %1, %2, %3, accumulate;\n"            \
        "}" ::"r"(d), "l"(a), "l"(b), "r"(instruction), "r"(static_cast<u32>(accumulate)) : "memory")
    constexpr bool is_f16 = size_of(type) == 2;
    if constexpr (group == 1 && is_f16) TCGEN05_MMA(1, "f16");
    if constexpr (group == 1 && !is_f16) TCGEN05_MMA(1, "f8f6f4");
    if constexpr (group == 2 && is_f16) TCGEN05_MMA(2, "f16");
    if constexpr (group == 2 && !is_f16) TCGEN05_MMA(2, "f8f6f4");
#undef TCGEN05_MMA
}

/// Arrive on a barrier of this CTA, which is no pair's, once all that this thread has issued is complete.
__device__ __forceinline__ void tcgen05_commit(u32 barrier) {
    asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" ::"r"(barrier)
                 : "memory");
}

/// The same on the barrier at this offset in every CTA of `mask`, one arrival each.
template <int group>
__device__ __forceinline__ void tcgen05_commit_multicast(u32 barrier, u16 mask) {
    if constexpr (group == 1) {
        asm volatile(
            "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster"
            ".multicast::cluster.b64 [%0], %1;" ::"r"(barrier), "h"(mask) : "memory");
    } else {
        asm volatile(
            "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster"
            ".multicast::cluster.b64 [%0], %1;" ::"r"(barrier), "h"(mask) : "memory");
    }
}

#define TMEM_D_8(d, at)                                                                                  \
    "=f"(d[at]), "=f"(d[at + 1]), "=f"(d[at + 2]), "=f"(d[at + 3]), "=f"(d[at + 4]), "=f"(d[at + 5]),   \
        "=f"(d[at + 6]), "=f"(d[at + 7])

/// Load columns from TMEM: register i of lane l is the cell at lane l of the warp's 32, column i. A whole
/// warp. The registers are good after tmem_wait_load.
template <int columns>
__device__ __forceinline__ void tmem_load(u32 tmem, float (&d)[columns]) {
    static_assert(columns % 16 == 0, "16 or 32 columns an instruction");
#pragma unroll
    for (int at = 0; at + 32 <= columns; at += 32) {
        asm volatile(
            "tcgen05.ld.sync.aligned.32x32b.x32.b32 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
            "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
            : TMEM_D_8(d, at), TMEM_D_8(d, at + 8), TMEM_D_8(d, at + 16), TMEM_D_8(d, at + 24)
            : "r"(tmem + at)
            : "memory");
    }
    if constexpr (columns % 32 != 0) {
        constexpr int at = columns - 16;
        asm volatile(
            "tcgen05.ld.sync.aligned.32x32b.x16.b32 "
            "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, [%16];"
            : TMEM_D_8(d, at), TMEM_D_8(d, at + 8)
            : "r"(tmem + at)
            : "memory");
    }
}

/// Wait for this warp's loads; keeps the compiler from moving readers of the registers up.
template <int columns>
__device__ __forceinline__ void tmem_wait_load(float (&d)[columns]) {
    asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
    for (int i = 0; i < columns; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

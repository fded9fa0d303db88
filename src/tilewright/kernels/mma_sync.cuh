// cp.async, ldmatrix, mma.sync: what every part since Ampere (sm_80) has. PTX ISA, the sections of these names.
#pragma once
#include "types.cuh"

/// Copy `bytes` (0 to 16) from global memory, past L1, and fill up to 16 bytes with zeros. Both addresses on
/// 16 bytes; with 0 bytes nothing is read, wherever `from` points.
__device__ __forceinline__ void copy_async(u32 to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/// This thread's copies since the last commit are one group; it may be empty.
__device__ __forceinline__ void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Wait until at most `left` of this thread's groups are in flight. Others see the bytes after a barrier.
template <int left>
__device__ __forceinline__ void copy_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}

/// Four 8x8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8, 16 bytes. Lane l gets
/// elements 2 (l % 4) and the next of row l / 4 of each. Two fp8 stand for one 16-bit element.
__device__ __forceinline__ void load_matrices(u32 row, u32& a, u32& b, u32& c, u32& d) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "r"(row)
                 : "memory");
}

/// D[16, 8] += A[16, k] B[8, k]^T, k of 32 bytes. a: rows 0-7 and 8-15 of the first 16 bytes of k, then of
/// the second; b: first and second 16 bytes. d[i] is row lane / 4 + 8 (i / 2), column 2 (lane % 4) + i % 2.
template <Type type>
__device__ __forceinline__ void mma_sync(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]);

#define MMA_SYNC(TYPE, SHAPE, PTX_TYPE)                                                                       \
    template <>                                                                                               \
    __device__ __forceinline__ void mma_sync<TYPE>(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {     \
        asm("mma.sync.aligned." SHAPE ".row.col.f32." PTX_TYPE "." PTX_TYPE ".f32 "                           \
            "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                 \
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                  \
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                              \
    }

MMA_SYNC(Type::bf16, "m16n8k16", "bf16")
MMA_SYNC(Type::fp16, "m16n8k16", "f16")
MMA_SYNC(Type::fp8_e4m3, "m16n8k32", "e4m3")  // sm_89
MMA_SYNC(Type::fp8_e5m2, "m16n8k32", "e5m2")

// Names that every file here uses. No header of the toolkit is included anywhere.
#pragma once

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

/// Element types of A, B and D.
enum class Type { bf16, fp16, fp8_e4m3, fp8_e5m2, fp32 };

/// How clusters come by their tiles; see schedule.cuh.
enum class Scheduler { single_tile, static_stride, static_blocked, dynamic_atomic, clc };

/// The axis along which groups differ; their extents lie on the device.
enum class Ragged { none, m, n, k };

/// Bytes an element.
__host__ __device__ constexpr int size_of(Type type) {
    return type == Type::fp32 ? 4 : type == Type::fp8_e4m3 || type == Type::fp8_e5m2 ? 1 : 2;
}

__host__ __device__ constexpr int ceil_div(int a, int b) { return (a + b - 1) / b; }
__host__ __device__ constexpr int round_up(int a, int b) { return ceil_div(a, b) * b; }

/// A CUtensorMap, opaque to the kernel.
struct alignas(64) TensorMap {
    u64 opaque[16];
};

/// 32-bit shared-memory address of a pointer into the CTA's window.
__device__ __forceinline__ u32 shared_address(const void* pointer) {
    return static_cast<u32>(__cvta_generic_to_shared(pointer));
}

/// One lane of a converged warp: the same one each time, not necessarily lane 0.
__device__ __forceinline__ bool elect_one() {
#if __CUDA_ARCH__ >= 900
    u32 elected;
    asm volatile(
        "{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.u32 %0, 1, 0, p; }" : "=r"(elected));
    return elected != 0;
#else
    return threadIdx.x % 32 == 0;
#endif
}

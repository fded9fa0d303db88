// wgmma: a warpgroup multiplies swizzled tiles in shared memory into registers. PTX ISA, wgmma (sm_90a).
#pragma once
#include "types.cuh"

/// Registers of accumulators are about to be read or written by wgmma.
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ __forceinline__ void wgmma_commit() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/// Wait until at most `left` of this warpgroup's groups are in flight.
template <int left>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
}

/// Matrix descriptor of a K-major tile: rows of 128 bytes, 128-byte swizzle, groups of 8 rows 1024 bytes apart.
/// The next K of one instruction lies 32 bytes on: 2 in the descriptor.
__device__ __forceinline__ u64 wgmma_descriptor(u32 address) {
    return static_cast<u64>((address & 0x3ffff) >> 4) | (1ull << 16) | (static_cast<u64>(1024 >> 4) << 32) |
           (1ull << 62);
}

/// Registers now hold what wgmma wrote; keeps the compiler from moving their readers up.
template <int count>
__device__ __forceinline__ void wgmma_hold(float (&d)[count]) {
#pragma unroll
    for (int i = 0; i < count; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// D[64, n] = A[64, k] B[n, k]^T + D * accumulate, k of 32 bytes. n / 2 registers a thread:
/// d[4 j + i] is row 16 * warp + lane / 4 + 8 * (i / 2), column 8 j + 2 * (lane % 4) + i % 2.
template <Type type, int n>
struct Wgmma;

#define WGMMA_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define WGMMA_REGISTERS_16 WGMMA_REGISTERS_8 ", " "%8, %9, %10, %11, %12, %13, %14, %15"
#define WGMMA_REGISTERS_24 WGMMA_REGISTERS_16 ", " "%16, %17, %18, %19, %20, %21, %22, %23"
#define WGMMA_REGISTERS_32 WGMMA_REGISTERS_24 ", " "%24, %25, %26, %27, %28, %29, %30, %31"
#define WGMMA_REGISTERS_40 WGMMA_REGISTERS_32 ", " "%32, %33, %34, %35, %36, %37, %38, %39"
#define WGMMA_REGISTERS_48 WGMMA_REGISTERS_40 ", " "%40, %41, %42, %43, %44, %45, %46, %47"
#define WGMMA_REGISTERS_56 WGMMA_REGISTERS_48 ", " "%48, %49, %50, %51, %52, %53, %54, %55"
#define WGMMA_REGISTERS_64 WGMMA_REGISTERS_56 ", " "%56, %57, %58, %59, %60, %61, %62, %63"
#define WGMMA_REGISTERS_72 WGMMA_REGISTERS_64 ", " "%64, %65, %66, %67, %68, %69, %70, %71"
#define WGMMA_REGISTERS_80 WGMMA_REGISTERS_72 ", " "%72, %73, %74, %75, %76, %77, %78, %79"
#define WGMMA_REGISTERS_88 WGMMA_REGISTERS_80 ", " "%80, %81, %82, %83, %84, %85, %86, %87"
#define WGMMA_REGISTERS_96 WGMMA_REGISTERS_88 ", " "%88, %89, %90, %91, %92, %93, %94, %95"
#define WGMMA_REGISTERS_104 WGMMA_REGISTERS_96 ", " "%96, %97, %98, %99, %100, %101, %102, %103"
#define WGMMA_REGISTERS_112 WGMMA_REGISTERS_104 ", " "%104, %105, %106, %107, %108, %109, %110, %111"
#define WGMMA_REGISTERS_120 WGMMA_REGISTERS_112 ", " "%112, %113, %114, %115, %116, %117, %118, %119"
#define WGMMA_REGISTERS_128 WGMMA_REGISTERS_120 ", " "%120, %121, %122, %123, %124, %125, %126, %127"

#define WGMMA_D_8(d) "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define WGMMA_D_16(d) WGMMA_D_8(d), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define WGMMA_D_24(d) WGMMA_D_16(d), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define WGMMA_D_32(d) WGMMA_D_24(d), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define WGMMA_D_40(d) WGMMA_D_32(d), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define WGMMA_D_48(d) WGMMA_D_40(d), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define WGMMA_D_56(d) WGMMA_D_48(d), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define WGMMA_D_64(d) WGMMA_D_56(d), "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define WGMMA_D_72(d) WGMMA_D_64(d), "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define WGMMA_D_80(d) WGMMA_D_72(d), "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define WGMMA_D_88(d) WGMMA_D_80(d), "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define WGMMA_D_96(d) WGMMA_D_88(d), "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define WGMMA_D_104(d) WGMMA_D_96(d), "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define WGMMA_D_112(d) WGMMA_D_104(d), "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define WGMMA_D_120(d) WGMMA_D_112(d), "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define WGMMA_D_128(d) WGMMA_D_120(d), "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, N, REGISTERS, A, B, ACCUMULATE)                              \
    template <>                                                                                            \
    struct Wgmma<TYPE, N> {                                                                                \
        static __device__ __forceinline__ void mma(                                                        \
            float (&d)[REGISTERS], u64 a, u64 b, int accumulate) {                                         \
            asm volatile(                                                                                  \
                "{\n.reg .pred p;\nsetp.ne.b32 p, %" #ACCUMULATE ", 0;\n"                                 \
                "wgmma.mma_async.sync.aligned.m64n" #N "k" #K ".f32." PTX_TYPES " {"                       \
                WGMMA_REGISTERS_##REGISTERS "}, %" #A ", %" #B ", p, 1, 1" TAIL ";\n}"                     \
                : WGMMA_D_##REGISTERS(d)                                                                   \
                : "l"(a), "l"(b), "r"(accumulate)                                                          \
                : "memory");                                                                               \
        }                                                                                                  \
    };

#define WGMMA_TYPE(TYPE, PTX_TYPES, TAIL, K)                             \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 16, 8, 8, 9, 10) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 32, 16, 16, 17, 18) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 48, 24, 24, 25, 26) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 64, 32, 32, 33, 34) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 80, 40, 40, 41, 42) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 96, 48, 48, 49, 50) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 112, 56, 56, 57, 58) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 128, 64, 64, 65, 66) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 144, 72, 72, 73, 74) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 160, 80, 80, 81, 82) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 176, 88, 88, 89, 90) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 192, 96, 96, 97, 98) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 208, 104, 104, 105, 106) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 224, 112, 112, 113, 114) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 240, 120, 120, 121, 122) \
    WGMMA_SHAPE(TYPE, PTX_TYPES, TAIL, K, 256, 128, 128, 129, 130)

WGMMA_TYPE(Type::bf16, "bf16.bf16", ", 0, 0", 16)
WGMMA_TYPE(Type::fp16, "f16.f16", ", 0, 0", 16)
WGMMA_TYPE(Type::fp8_e4m3, "e4m3.e4m3", "", 32)
WGMMA_TYPE(Type::fp8_e5m2, "e5m2.e5m2", "", 32)

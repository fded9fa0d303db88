// Bandwidth and latency of L2 and HBM, without headers.
// Loads are ld.global.cg, past L1. Every parameter is 64 bits wide.
typedef unsigned long long u64;

static __device__ uint4 load_past_l1(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Every thread reads 16 bytes at a stride of the whole grid, eight loads in flight.
extern "C" __global__ void read_all(const uint4* data, u64 count, u64 passes, unsigned* sink) {
    unsigned sum = 0;
    const u64 stride = u64(gridDim.x) * blockDim.x;
    for (u64 pass = 0; pass < passes; ++pass) {
        u64 i = u64(blockIdx.x) * blockDim.x + threadIdx.x;
        for (; i + 7 * stride < count; i += 8 * stride) {
            uint4 v[8];
#pragma unroll
            for (int u = 0; u < 8; ++u) v[u] = load_past_l1(data + i + u * stride);
#pragma unroll
            for (int u = 0; u < 8; ++u) sum ^= v[u].x ^ v[u].y ^ v[u].z ^ v[u].w;
        }
        for (; i < count; i += stride) sum ^= load_past_l1(data + i).x;
    }
    if (sum == 0x12345678u) *sink = sum;
}

// One thread follows a ring of indices, one a 128-byte line: each load waits for the one before.
extern "C" __global__ void chase(const unsigned* next, u64 steps, long long* cycles, unsigned* sink) {
    unsigned at = 0;
    const long long start = clock64();
    for (u64 i = 0; i < steps; ++i)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at));
    *cycles = clock64() - start;
    *sink = at;
}

// One thread a CTA adds to the same counter; each address depends on the value before it.
// `zero` is 0, which the compiler cannot know.
extern "C" __global__ void atomic_chain(unsigned* counter, u64 steps, u64 zero, long long* cycles) {
    u64 at = 0;
    const long long start = clock64();
    for (u64 i = 0; i < steps; ++i) {
        unsigned old;
        asm volatile("atom.global.add.u32 %0, [%1], 1;" : "=r"(old) : "l"(counter + at) : "memory");
        at = old & zero;
    }
    cycles[blockIdx.x] = clock64() - start + (long long)at;
}

// Spin for `cycles`; out[0] cycles and out[1] nanoseconds that passed.
extern "C" __global__ void spin(u64 cycles, u64* out) {
    u64 before, after;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(before));
    const long long start = clock64();
    long long passed = 0;
    while (passed < (long long)cycles) passed = clock64() - start;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(after));
    out[0] = (u64)passed;
    out[1] = after - before;
}

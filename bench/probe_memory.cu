// Memory figures of the GPU at hand: HBM and L2 bandwidth and latency, as CSV lines "name,value,unit".
// Build: nvcc -O3 -arch=sm_90 bench/probe_memory.cu -o probe_memory
// Method: bandwidth by 16-byte ld.global.cg (past L1) over a buffer far larger than L2, and over one that
// fits L2 and was read before; latency by a dependent pointer chase of one thread. Medians of 9 runs.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call)                                                                   \
    do {                                                                              \
        cudaError_t e = (call);                                                       \
        if (e != cudaSuccess) {                                                       \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e));           \
            std::exit(1);                                                             \
        }                                                                             \
    } while (0)

__device__ uint4 load_past_l1(const uint4* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

__global__ void read_all(const uint4* data, size_t count, int passes, unsigned* sink) {
    unsigned sum = 0;
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (int pass = 0; pass < passes; ++pass) {
        size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
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

__global__ void copy_all(const uint4* from, uint4* to, size_t count) {
    const size_t stride = size_t(gridDim.x) * blockDim.x;
    for (size_t i = size_t(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += stride)
        to[i] = load_past_l1(from + i);
}

__global__ void chase(const unsigned* next, int steps, long long* cycles, unsigned* sink) {
    unsigned at = 0;
    const long long start = clock64();
    for (int i = 0; i < steps; ++i)
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(at) : "l"(next + at));
    *cycles = clock64() - start;
    *sink = at;
}

template <class F>
float median_ms(F launch) {
    cudaEvent_t a, b;
    CHECK(cudaEventCreate(&a));
    CHECK(cudaEventCreate(&b));
    std::vector<float> times;
    for (int i = 0; i < 11; ++i) {
        CHECK(cudaEventRecord(a));
        launch();
        CHECK(cudaEventRecord(b));
        CHECK(cudaEventSynchronize(b));
        float ms = 0;
        CHECK(cudaEventElapsedTime(&ms, a, b));
        if (i >= 2) times.push_back(ms);
    }
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
}

// `flush`: a buffer larger than L2 that is written before each run, so that every load goes to HBM.
double chase_cycles(size_t bytes, unsigned* buffer, long long* cycles, unsigned* sink, void* flush) {
    const unsigned line = 128 / 4, lines = unsigned(bytes / 128);
    std::vector<unsigned> order(lines), next(bytes / 4, 0);
    for (unsigned i = 0; i < lines; ++i) order[i] = i;
    unsigned long long state = 88172645463325252ull;
    for (unsigned i = lines - 1; i > 0; --i) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        std::swap(order[i], order[state % (i + 1)]);
    }
    unsigned first = 0;
    while (order[first] != 0) ++first;
    for (unsigned i = 0; i < lines; ++i)
        next[size_t(order[(first + i) % lines]) * line] = order[(first + i + 1) % lines] * line;
    CHECK(cudaMemcpy(buffer, next.data(), bytes, cudaMemcpyHostToDevice));
    const int steps = int(std::min<size_t>(lines, 40000));
    std::vector<double> each;
    for (int i = 0; i < 5; ++i) {
        if (flush) CHECK(cudaMemset(flush, i, size_t(1) << 30));
        else chase<<<1, 1>>>(buffer, int(lines), cycles, sink);  // every line into L2
        chase<<<1, 1>>>(buffer, steps, cycles, sink);
        CHECK(cudaDeviceSynchronize());
        long long c = 0;
        CHECK(cudaMemcpy(&c, cycles, sizeof c, cudaMemcpyDeviceToHost));
        each.push_back(double(c) / steps);
    }
    std::sort(each.begin(), each.end());
    return each[2];
}

int main() {
    cudaDeviceProp prop;
    CHECK(cudaGetDeviceProperties(&prop, 0));
    std::printf("gpu,%s,\nsm_count,%d,SMs\nl2_bytes,%d,bytes\n", prop.name, prop.multiProcessorCount,
                prop.l2CacheSize);
    const size_t big = size_t(4) << 30;
    uint4 *data, *other;
    unsigned* sink;
    long long* cycles;
    CHECK(cudaMalloc(&data, big));
    CHECK(cudaMalloc(&other, big));
    CHECK(cudaMalloc(&sink, 4));
    CHECK(cudaMalloc(&cycles, 8));
    CHECK(cudaMemset(data, 1, big));
    const int grid = prop.multiProcessorCount * 2;
    float ms = median_ms([&] { read_all<<<grid, 1024>>>(data, big / 16, 1, sink); });
    std::printf("hbm_read_gbps,%.0f,GB/s\n", big / ms / 1e6);
    ms = median_ms([&] { copy_all<<<grid, 1024>>>(data, other, big / 16); });
    std::printf("hbm_copy_gbps,%.0f,GB/s (read and written)\n", 2.0 * big / ms / 1e6);
    for (size_t mib : {4, 8, 16, 24, 32, 40, 48}) {
        const size_t bytes = mib << 20;
        ms = median_ms([&] { read_all<<<grid, 1024>>>(data, bytes / 16, 100, sink); });
        std::printf("l2_read_gbps_%zuMiB,%.0f,GB/s\n", mib, 100.0 * bytes / ms / 1e6);
    }
    for (int sms : {1, 8, 33, 66, 99}) {
        ms = median_ms([&] { read_all<<<sms, 1024>>>(data, (size_t(16) << 20) / 16, 20, sink); });
        std::printf("l2_read_gbps_16MiB_%dctas,%.1f,GB/s\n", sms, 20.0 * (16 << 20) / ms / 1e6);
        ms = median_ms([&] { read_all<<<sms, 1024>>>(data, (size_t(256) << 20) / 16, 1, sink); });
        std::printf("hbm_read_gbps_%dctas,%.1f,GB/s\n", sms, double(256 << 20) / ms / 1e6);
    }
    std::printf("l2_latency_cycles_4MiB,%.0f,cycles\n", chase_cycles(size_t(4) << 20, (unsigned*)data, cycles, sink, nullptr));
    std::printf("l2_latency_cycles_24MiB,%.0f,cycles\n", chase_cycles(size_t(24) << 20, (unsigned*)data, cycles, sink, nullptr));
    std::printf("hbm_latency_cycles_256MiB,%.0f,cycles\n", chase_cycles(size_t(256) << 20, (unsigned*)data, cycles, sink, other));
    return 0;
}

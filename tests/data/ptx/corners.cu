// Source of corners_*.ptx: device code whose PTX uses the less common parts of the grammar.
#include <cstdio>

__constant__ float table[4] = {1.0f, -2.5f, 3.25f, 0.0f};
__device__ const char *names[2] = {"one", "two"};
__device__ int counter = 7;
__managed__ int shared_with_host;
extern __shared__ unsigned char dynamic[];

struct alignas(16) Pair {
  int first;
  double second;
};
__device__ Pair pairs[2] = {{1, 2.0}, {3, 4.0}};

__device__ __noinline__ int twice(int x) { return 2 * x + counter; }
__device__ __noinline__ Pair swap(Pair p) { return Pair{int(p.second), double(p.first)}; }
typedef int (*Unary)(int);
__device__ Unary chosen = twice;

__device__ int factorial(int n) { return n < 2 ? 1 : n * factorial(n - 1); }

__device__ int select(int k, int x) {
  switch (k) {
    case 0: return x + 1;
    case 1: return x * 3;
    case 2: return x ^ 5;
    case 3: return x / 7;
    case 4: return x << 2;
    case 5: return x - 11;
    case 6: return factorial(x);
    default: return 0;
  }
}

__global__ void __launch_bounds__(128, 2) corners(int *out, cudaTextureObject_t texture, Pair by_value, int k) {
  __shared__ double tile[32];
  int x = threadIdx.x;
  tile[x & 31] = table[x & 3];
  __syncthreads();
  asm volatile("{ .reg .pred p; setp.ne.s32 p, %0, 0; @p bra DONE; nanosleep.u32 20; DONE: }" ::"r"(x));
  float4 t = tex2D<float4>(texture, 0.5f, float(x));
  printf("%d %f %s\n", x, tile[0], names[x & 1]);
  out[x] = select(k, x) + chosen(x) + swap(by_value).first + int(t.y) + dynamic[x] + pairs[x & 1].first;
  atomicAdd(&shared_with_host, __shfl_xor_sync(~0u, x, 1));
}

// Thread block clusters: barrier and distributed shared memory, without headers.
// Every parameter is 64 bits wide. Compiles for sm_90 and up.
typedef unsigned long long u64;

static __device__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

static __device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

static __device__ unsigned map_shared(const void* own, unsigned rank) {
    unsigned address;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(address)
                 : "r"((unsigned)__cvta_generic_to_shared(own)), "r"(rank));
    return address;
}

// What the driver is asked about: no static shared memory, few registers.
extern "C" __global__ void resident(unsigned* sink) {
    if (sink) *sink = threadIdx.x;
}

// `steps` cluster barriers in a row; cycles of CTA 0.
extern "C" __global__ void barrier_chain(u64 steps, long long* cycles) {
    cluster_sync();
    const long long start = clock64();
    for (u64 i = 0; i < steps; ++i) cluster_sync();
    const long long passed = clock64() - start;
    if (cluster_rank() == 0 && threadIdx.x == 0) *cycles = passed;
}

// CTA 0 follows a ring of addresses in the shared memory of CTA `peer`; peer 0 is its own.
extern "C" __global__ void dsmem_chase(u64 peer, u64 steps, long long* cycles, unsigned* sink) {
    __shared__ unsigned ring[1024];
    const unsigned own = map_shared(ring, cluster_rank());
    for (unsigned i = threadIdx.x; i < 1024; i += blockDim.x) ring[i] = own + 4 * ((i + 33) % 1024);
    cluster_sync();
    if (cluster_rank() == 0 && threadIdx.x == 0) {
        unsigned at = map_shared(ring, (unsigned)peer);
        const long long start = clock64();
        for (u64 i = 0; i < steps; ++i)
            asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(at) : "r"(at) : "memory");
        *cycles = clock64() - start;
        *sink = at;
    }
    cluster_sync();
}

// When and where a CTA was at a tile. A kernel without config::timeline holds nothing of this.
#pragma once
#include "types.cuh"

/// When one CTA was at a tile; zeros before the launch.
struct TileTime {
    u64 start_ns, end_ns;  // %globaltimer; who of the CTA reads it is the kernel's to say
    u32 sm, cta;           // %smid; %ctaid.x, which names the worker
};

/// When the request that brought a tile was made, and when its answer was read; zeros for tiles that came without.
struct RequestTime {
    u64 ask_ns, answer_ns;
};

namespace tile_times {

__device__ __forceinline__ u64 now_ns() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time)::"memory");
    return time;
}

/// One thread of the CTA: where it runs.
__device__ __forceinline__ void place(TileTime& time) {
    u32 sm;
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    time.sm = sm;
    time.cta = blockIdx.x;
}

/// One thread, the only one that says so: the CTA begins a tile, or ends it.
__device__ __forceinline__ void begin(TileTime& time) {
    place(time);
    time.start_ns = now_ns();
}
__device__ __forceinline__ void end(TileTime& time) { time.end_ns = now_ns(); }

/// One thread of each part of the CTA that comes to the tile and leaves it by itself: the latest counts, so that
/// the parts need not meet.
__device__ __forceinline__ void begin_latest(TileTime& time) { atomicMax(&time.start_ns, now_ns()); }
__device__ __forceinline__ void end_latest(TileTime& time) { atomicMax(&time.end_ns, now_ns()); }

}  // namespace tile_times

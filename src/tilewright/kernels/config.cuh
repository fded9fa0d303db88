// What this kernel was built for. `tilewright emit` writes this file anew for each plan; the values below
// are those of a bf16 GEMM on one CTA and make the sources compile as they stand.
#pragma once
#include "types.cuh"

namespace config {
constexpr int tile_m = 128, tile_n = 128, tile_k = 64;  // output rows and columns of one CTA, K of a stage
constexpr int cluster_m = 1, cluster_n = 1;             // CTAs of a cluster along M and along N
constexpr int cta_group = 1;                            // CTAs that issue one MMA together (tcgen05)
constexpr int num_stages = 4;                           // operand ring
constexpr int accumulator_stages = 1;                   // accumulators in TMEM
constexpr Scheduler scheduler = Scheduler::static_stride;
constexpr int schedule_depth = 1;                       // answers in flight or unread, dynamic schedulers
constexpr bool raster_along_m = true;                   // strips follow M from end to end
constexpr int raster_swizzle = 8;                       // width of a strip in cluster tiles
constexpr Type input = Type::bf16, output = Type::bf16;
constexpr Ragged ragged = Ragged::none;                 // axis along which groups differ
constexpr int max_groups = 1;                           // room for their prefix sums
constexpr int smem_bytes = 164864;                      // dynamic shared memory of the launch
constexpr bool swap_ab = false;                         // computes B A^T and stores it transposed
constexpr bool has_c = false, has_bias = false;
constexpr bool store_by_tma = true;                     // D's rows are 16-byte aligned
constexpr bool timeline = false;                        // keep when and where each tile ran
}  // namespace config

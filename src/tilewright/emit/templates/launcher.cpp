// Launch kernel.ARCH.cubin through the driver API: pick a path, check, run on random data, compare, time.
//
//     g++ -std=c++17 -O2 launcher.cpp -o launcher -lcuda
//     ./launcher [GPU]
//
// The same decisions as launcher.py, from the same numbers (launch.h). Exit code 0 when every sampled element
// is right, 1 when one is not, 2 when nothing can run here.
#include <cmath>
#include <cstdint>
#include <random>

#include "driver.h"

struct Problem {
    long long m, n, k;  // the ragged one is the sum over the groups
    int groups;
    const char *ragged, *dtype, *out_dtype;
};

struct Map {
    int box[3], swizzle_bytes;
    bool groups;
};

/// What the GEMM of one path was compiled for.
struct Gemm {
    int cta_tile[3], cluster_shape[2];
    const char* ragged;  // in the kernel's frame: with swap_ab its M is the problem's N
    bool swap_ab, store_by_tma, uses_tma;
    Map maps[3];  // a, b, D
};

#include "launch.h"

/// The kernel's one argument, as kernel.cu declares it.
struct alignas(64) GemmArguments {
    CUtensorMap a, b, d;
    CUdeviceptr output, c, bias, counts, work_counter;
    long long row_stride, group_stride;
    int m, n, k, groups;
    float alpha, beta;
    CUdeviceptr a_data, b_data;
    long long a_row_stride, b_row_stride, a_group_stride, b_group_stride;
};
static_assert(sizeof(GemmArguments) == argument_bytes, "as the kernel reads it");

// ---- the grid -----------------------------------------------------------------------------------------

/// Cluster tiles of the problem as emitted.
static long long count_tiles(const Gemm& gemm) {
    const long long rows = gemm.cta_tile[0] * gemm.cluster_shape[0];
    const long long columns = gemm.cta_tile[1] * gemm.cluster_shape[1];
    const long long m = gemm.swap_ab ? problem.n : problem.m, n = gemm.swap_ab ? problem.m : problem.n;
    if (is(gemm.ragged, "none") || is(gemm.ragged, "k")) {
        return ceil_div(m, rows) * ceil_div(n, columns) * problem.groups;
    }
    const bool along_m = is(gemm.ragged, "m");
    long long tiles = 0;
    for (int group = 0; group < problem.groups; ++group) {
        tiles += ceil_div(counts[group], along_m ? rows : columns);
    }
    return tiles * (along_m ? ceil_div(n, columns) : ceil_div(m, rows));
}

// ---- data ---------------------------------------------------------------------------------------------

static int size_of(const char* type) { return is(type, "fp32") ? 4 : is(type, "bf16") || is(type, "fp16") ? 2 : 1; }

/// What the bits of one element mean.
static double decode(const unsigned char* at, const char* type) {
    if (is(type, "fp32")) {
        float value;
        std::memcpy(&value, at, 4);
        return value;
    }
    uint16_t half = 0;
    if (size_of(type) == 2) std::memcpy(&half, at, 2);
    if (is(type, "bf16")) {
        const uint32_t bits = static_cast<uint32_t>(half) << 16;
        float value;
        std::memcpy(&value, &bits, 4);
        return value;
    }
    int bits = *at, exponent_bits = 4, mantissa_bits = 3;
    if (is(type, "fp8_e5m2")) exponent_bits = 5, mantissa_bits = 2;
    if (is(type, "fp16")) bits = half, exponent_bits = 5, mantissa_bits = 10;
    const int mantissa = bits & ((1 << mantissa_bits) - 1);
    const int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const double size = exponent ? std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits)
                                 : std::ldexp(mantissa, 1 - bias - mantissa_bits);
    return bits >> (exponent_bits + mantissa_bits) & 1 ? -size : size;
}

/// Random values of about unit size: any bits whose exponent keeps them under 2.
static std::vector<unsigned char> random_values(size_t elements, const char* type, std::mt19937_64& random) {
    std::vector<unsigned char> bytes(elements * size_of(type));
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random() >> 32);
    const int size = size_of(type);
    for (size_t i = 0; i < elements; ++i) {
        unsigned char& high = bytes[i * size + size - 1];  // sign, then the exponent's upper bits
        if (is(type, "fp8_e4m3")) high = (high & 0x87) | 0x30;       // 0.5 to 1
        if (is(type, "fp8_e5m2")) high = (high & 0x83) | 0x38;       // 0.5 to 1
        if (is(type, "fp16")) high = (high & 0x83) | 0x38;           // 0.5 to 1
        if (is(type, "bf16")) high = (high & 0x80) | 0x3f, bytes[i * size] &= 0x7f;  // 0.5 to 1
        if (is(type, "fp32")) high = (high & 0x80) | 0x3f, bytes[i * size + 2] &= 0x7f;
    }
    return bytes;
}

static CUtensorMap encode(const Map& map, const char* type, CUdeviceptr at, cuuint64_t columns, cuuint64_t rows) {
    const cuuint64_t row_bytes = columns ? columns * size_of(type) : 16;  // without k the map is not used
    if (row_bytes % 16) fail("rows of " + std::to_string(row_bytes) + " bytes: TMA takes multiples of 16");
    const cuuint64_t dims[] = {std::max<cuuint64_t>(columns, 1), rows,
                               map.groups ? static_cast<cuuint64_t>(problem.groups) : 1};
    const cuuint64_t strides[] = {row_bytes, rows * row_bytes};
    const cuuint32_t box[] = {cuuint32_t(map.box[0]), cuuint32_t(map.box[1]), cuuint32_t(map.box[2])};
    const cuuint32_t steps[] = {1, 1, 1};
    const CUtensorMapDataType kind = is(type, "bf16")   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : is(type, "fp16") ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                     : is(type, "fp32") ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                                        : CU_TENSOR_MAP_DATA_TYPE_UINT8;
    const CUtensorMapSwizzle swizzle = map.swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : map.swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                                                 : CU_TENSOR_MAP_SWIZZLE_32B;
    CUtensorMap encoded;
    CHECK(cuTensorMapEncodeTiled(&encoded, kind, 3, reinterpret_cast<void*>(at), dims, strides, box, steps,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
    return encoded;
}

/// Operands on both sides, the output on the GPU.
struct Data {
    std::vector<unsigned char> a, b, c;
    std::vector<float> bias;
    CUdeviceptr at_a, at_b, at_c = 0, at_bias = 0, at_counts = 0, at_d;
    size_t out_elements;
};

static Data make_data() {
    const bool m = is(problem.ragged, "m"), k = is(problem.ragged, "k");
    const size_t groups = problem.groups;
    std::mt19937_64 random(1);
    Data data;
    data.a = random_values((m || k ? 1 : groups) * problem.m * problem.k, problem.dtype, random);
    data.b = random_values((k ? 1 : groups) * problem.n * problem.k, problem.dtype, random);
    data.out_elements = (m ? 1 : groups) * problem.m * problem.n;
    data.at_a = upload(data.a.data(), data.a.size());
    data.at_b = upload(data.b.data(), data.b.size());
    if (has_c) {
        data.c = random_values(data.out_elements, problem.out_dtype, random);
        data.at_c = upload(data.c.data(), data.c.size());
    }
    if (has_bias) {
        for (long long i = 0; i < problem.n; ++i) data.bias.push_back(static_cast<float>(i % 7) - 3);
        data.at_bias = upload(data.bias.data(), data.bias.size() * sizeof(float));
    }
    if (m || k) data.at_counts = upload(counts, groups * sizeof(int));
    const size_t out_bytes = data.out_elements * size_of(problem.out_dtype);
    CHECK(cuMemAlloc(&data.at_d, std::max<size_t>(out_bytes, 16)));
    CHECK(cuMemsetD8(data.at_d, 0xc5, std::max<size_t>(out_bytes, 16)));
    return data;
}

static GemmArguments make_arguments(const Gemm& gemm, const Data& data) {
    const bool swap = gemm.swap_ab, grouped = is(gemm.ragged, "m") || is(gemm.ragged, "n");
    const long long m = swap ? problem.n : problem.m, n = swap ? problem.m : problem.n;
    GemmArguments arguments{};
    arguments.a_data = swap ? data.at_b : data.at_a;
    arguments.b_data = swap ? data.at_a : data.at_b;
    if (gemm.uses_tma) {
        arguments.a = encode(gemm.maps[0], problem.dtype, arguments.a_data, problem.k, m);
        arguments.b = encode(gemm.maps[1], problem.dtype, arguments.b_data, problem.k, n);
        if (gemm.store_by_tma) {
            arguments.d = encode(gemm.maps[2], problem.out_dtype, data.at_d, problem.n, problem.m);
        }
    }
    arguments.output = data.at_d;
    arguments.c = data.at_c;
    arguments.bias = data.at_bias;
    arguments.counts = data.at_counts;
    const long long zeros[2] = {0, 0};
    arguments.work_counter = upload(zeros, sizeof zeros);
    arguments.row_stride = problem.n;
    arguments.group_stride = grouped ? 0 : problem.m * problem.n;
    arguments.m = static_cast<int>(m);
    arguments.n = static_cast<int>(n);
    arguments.k = static_cast<int>(problem.k);
    arguments.groups = problem.groups;
    arguments.alpha = 1.0f;
    arguments.beta = has_c ? 0.5f : 0.0f;
    arguments.a_row_stride = arguments.b_row_stride = problem.k;
    arguments.a_group_stride = is(gemm.ragged, "m") || is(gemm.ragged, "k") ? 0 : m * problem.k;
    arguments.b_group_stride = is(gemm.ragged, "n") || is(gemm.ragged, "k") ? 0 : n * problem.k;
    return arguments;
}

// ---- the check ----------------------------------------------------------------------------------------

/// One output element in double, and the sum of the magnitudes that it is made of.
static double reference(const Data& data, int group, long long row, long long column, double* size) {
    const bool by_m = is(problem.ragged, "m"), by_k = is(problem.ragged, "k");
    const int bytes = size_of(problem.dtype), out_bytes = size_of(problem.out_dtype);
    long long start = 0;
    for (int i = 0; i < group && (by_m || by_k); ++i) start += counts[i];
    const long long first = by_k ? start : 0, last = by_k ? start + counts[group] : problem.k;
    const long long a_row = (by_m || by_k ? 0 : group * problem.m) + (by_m ? start : 0) + row;
    const long long b_row = (by_k ? 0 : group * problem.n) + column;
    double sum = 0;
    *size = 0;
    for (long long k = first; k < last; ++k) {
        const double product = decode(&data.a[(a_row * problem.k + k) * bytes], problem.dtype) *
                               decode(&data.b[(b_row * problem.k + k) * bytes], problem.dtype);
        sum += product;
        *size += std::fabs(product);
    }
    const long long index = ((by_m ? 0 : group * problem.m) + (by_m ? start : 0) + row) * problem.n + column;
    if (has_c) sum += 0.5 * decode(&data.c[index * out_bytes], problem.out_dtype);
    if (has_bias) sum += data.bias[column];
    return sum;
}

/// Random elements of every group against the reference; the number that are wrong.
static int compare(const Data& data, int samples) {
    std::vector<unsigned char> d(data.out_elements * size_of(problem.out_dtype));
    if (!d.empty()) CHECK(cuMemcpyDtoH(d.data(), data.at_d, d.size()));
    const bool by_m = is(problem.ragged, "m"), fp8 = size_of(problem.dtype) == 1;
    const double round = is(problem.out_dtype, "fp32") ? 0x1p-24 : is(problem.out_dtype, "fp16") ? 0x1p-11 : 0x1p-8;
    std::mt19937_64 random(2);
    int wrong = 0, done = 0;
    long long start = 0;
    const int each = std::max(1, samples / std::max(problem.groups, 1));
    for (int group = 0; group < problem.groups; ++group) {
        const long long rows = by_m ? counts[group] : problem.m;
        for (int i = 0; rows && i < each; ++i, ++done) {
            const long long row = i ? random() % rows : rows - 1;  // the last one is at an edge
            const long long column = i ? random() % problem.n : problem.n - 1;
            double size = 0;
            const double exact = reference(data, group, row, column, &size);
            const long long index = ((by_m ? start : group * problem.m) + row) * problem.n + column;
            const double got = decode(&d[index * size_of(problem.out_dtype)], problem.out_dtype);
            const double bound = round * std::fabs(exact) + (fp8 ? 0x1p-12 : 0x1p-19) * size + 0x1p-20;
            if (!(std::fabs(got - exact) <= bound)) {
                if (wrong++ == 0) {
                    std::printf("wrong: D[%d][%lld, %lld] is %g; %g is right\n", group, row, column, got, exact);
                }
            }
        }
        start += by_m ? counts[group] : 0;
    }
    std::printf("check: %d of %d sampled elements are right\n", done - wrong, done);
    return wrong;
}

int main(int count, char** words) {
    const Kernel kernel = open_kernel(paths, absent, entry, planned_for, count > 1 ? std::atoi(words[1]) : 0);
    const Gemm& gemm = gemms[kernel.path - paths];
    const long long ctas = kernel.grid_ctas(count_tiles(gemm));
    if (ctas == 0) {
        std::printf("nothing to launch: no group has an output tile\n");
        return 0;
    }
    const Data data = make_data();
    GemmArguments arguments = make_arguments(gemm, data);
    void* parameters[] = {&arguments};
    CUlaunchAttribute attributes[2]{};
    const CUlaunchConfig config = make_config(*kernel.path, ctas, attributes);
    CHECK(cuLaunchKernelEx(&config, kernel.function, parameters, nullptr));
    CHECK(cuCtxSynchronize());
    const int wrong = compare(data, 512);
    print_time(*kernel.path, time_us(kernel.function, config, parameters));
    return wrong ? 1 : 0;
}

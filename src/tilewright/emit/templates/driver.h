// One GPU through the driver API: pick a path, load its cubin, ask for the grid, time a launch. Nothing here
// knows what the kernel computes; the numbers come from launch.h.
#pragma once
#include <cuda.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

/// A section of kernel.cu and how it is launched.
struct Path {
    const char *name, *instruction;
    int capabilities[2][2];
    bool or_later;
    const char *arch_suffix, *planned_for;
    double predicted_us;  // 0 where nothing was predicted
    int cluster_size, threads, smem_bytes;
    const char* scheduler;
    bool persistent;
};

struct Absent {
    const char *name, *why;
};

[[noreturn]] static void fail(const std::string& message) {
    std::fprintf(stderr, "error: %s\n", message.c_str());
    std::exit(2);
}

static void check(CUresult status, const char* call) {
    if (status == CUDA_SUCCESS) return;
    const char* name = nullptr;
    cuGetErrorName(status, &name);
    std::string message = std::string(call) + " failed: " + (name ? name : "unknown error");
    if (status == CUDA_ERROR_NO_DEVICE) message = "an NVIDIA driver, but no GPU that this process may use";
    if (status == CUDA_ERROR_OUT_OF_MEMORY) message += "; the problem does not fit the GPU's free memory";
    fail(message);
}
#define CHECK(call) check(call, #call)

inline bool is(const char* text, const char* other) { return std::strcmp(text, other) == 0; }
inline long long ceil_div(long long a, long long b) { return (a + b - 1) / b; }

// ---- the path -----------------------------------------------------------------------------------------

static bool fits(const Path& path, int major, int minor) {
    if (path.or_later) return 10 * major + minor >= 10 * path.capabilities[0][0] + path.capabilities[0][1];
    for (const auto& each : path.capabilities) {
        if (each[0] == major && each[1] == minor) return true;
    }
    return false;
}

/// The first path that runs here; says which and why.
template <size_t count>
const Path& choose_path(const Path (&paths)[count], const Absent* absent, int major, int minor) {
    std::string why;
    for (const Path& path : paths) {
        if (fits(path, major, minor)) {
            std::printf("path:  %s (%s)\nwhy:   compute capability %d.%d%s\n", path.name, path.instruction, major, minor,
                        why.c_str());
            return path;
        }
        why += std::string("; not ") + path.name + " (" + path.instruction + "), which needs compute capability " +
               std::to_string(path.capabilities[0][0]) + "." + std::to_string(path.capabilities[0][1]);
        if (path.capabilities[1][0]) {
            why += " or " + std::to_string(path.capabilities[1][0]) + "." + std::to_string(path.capabilities[1][1]);
        }
        if (path.or_later) why += " or later";
    }
    for (const Absent* entry = absent; entry->name != nullptr; ++entry) {
        why += std::string("; no ") + entry->name + " path: " + entry->why;
    }
    fail("nothing here runs on compute capability " + std::to_string(major) + "." + std::to_string(minor) + ": " +
         why.substr(2));
}

static CUfunction load(const Path& path, const char* entry, int major, int minor) {
    std::string file, missing;
    std::ifstream stream;
    do {  // without a suffix a cubin of an older minor runs too
        file = "kernel.sm_" + std::to_string(major) + std::to_string(minor) + path.arch_suffix + ".cubin";
        if (missing.empty()) missing = file;
        stream.open(file, std::ios::binary);
    } while (!stream.is_open() && path.arch_suffix[0] == 0 && minor-- > 0);
    if (!stream.is_open()) fail(missing + " is not here: compile it first (README.md), without a GPU if need be");
    const std::vector<char> cubin{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
    CUmodule module;
    const CUresult status = cuModuleLoadData(&module, cubin.data());
    if (status != CUDA_SUCCESS) {
        int version = 0;
        cuDriverGetVersion(&version);
        fail("this driver (CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10) +
             ") does not take " + file + ": compile it with a toolkit no newer than the driver");
    }
    CUfunction function;
    CHECK(cuModuleGetFunction(&function, module, entry));
    return function;
}

/// A launch along x. `attributes`: room for two; `preferred`: CTAs of the cluster that the GPU may form where it
/// can, 0 without one (compute capability 10.0 or later).
static CUlaunchConfig make_config(const Path& path, long long ctas, CUlaunchAttribute* attributes, int preferred = 0) {
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(ctas);
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = path.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = path.smem_bytes;
    config.attrs = attributes;
    if (path.cluster_size > 1 || preferred) {
        attributes[0].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
        attributes[0].value.clusterDim.x = path.cluster_size;
        attributes[0].value.clusterDim.y = attributes[0].value.clusterDim.z = 1;
        config.numAttrs = 1;
    }
    if (preferred) {
        attributes[1].id = CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION;
        attributes[1].value.preferredClusterDim.x = preferred;
        attributes[1].value.preferredClusterDim.y = attributes[1].value.preferredClusterDim.z = 1;
        config.numAttrs = 2;
    }
    return config;
}

/// Clusters on the chip at once, after the attributes that the launch needs. Zero is a hard stop.
static int find_resident(const Path& path, CUfunction function, CUdevice device) {
    int most = 0, has_clusters = 0, sms = 0, resident = 0;
    CHECK(cuDeviceGetAttribute(&most, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device));
    CHECK(cuDeviceGetAttribute(&has_clusters, CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH, device));
    CHECK(cuDeviceGetAttribute(&sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device));
    if (path.smem_bytes > most) {
        fail("the kernel takes " + std::to_string(path.smem_bytes) + " bytes of shared memory a CTA; this GPU allows " +
             std::to_string(most) + ". Emit again with --device set to this GPU");
    }
    if (path.cluster_size > 1 && !has_clusters) fail("this GPU cannot launch clusters, which the kernel needs");
    CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, path.smem_bytes));
    if (path.cluster_size > 8) {
        CHECK(cuFuncSetAttribute(function, CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1));
    }
    if (path.cluster_size == 1) {
        CHECK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&resident, function, path.threads, path.smem_bytes));
        resident *= sms;
    } else {
        CUlaunchAttribute attributes[2]{};
        const CUlaunchConfig config = make_config(path, path.cluster_size, attributes);
        CHECK(cuOccupancyMaxActiveClusters(&resident, function, &config));
    }
    if (resident < 1) {
        fail("the GPU places no cluster of " + std::to_string(path.cluster_size) + " CTAs with " +
             std::to_string(path.threads) + " threads and " + std::to_string(path.smem_bytes) +
             " bytes of shared memory each (cuOccupancyMaxActiveClusters is 0). Emit again with a smaller --cluster");
    }
    return resident;
}

static CUdeviceptr upload(const void* from, size_t bytes) {
    CUdeviceptr at;
    CHECK(cuMemAlloc(&at, std::max<size_t>(bytes, 16)));
    if (bytes) CHECK(cuMemcpyHtoD(at, from, bytes));
    return at;
}

static double time_us(CUfunction function, const CUlaunchConfig& config, void** arguments) {
    constexpr int samples = 9, launches = 20;
    CUevent begin, end;
    CHECK(cuEventCreate(&begin, CU_EVENT_DEFAULT));
    CHECK(cuEventCreate(&end, CU_EVENT_DEFAULT));
    std::vector<float> times;
    for (int sample = 0; sample < samples + 2; ++sample) {
        CHECK(cuEventRecord(begin, nullptr));
        for (int i = 0; i < launches; ++i) CHECK(cuLaunchKernelEx(&config, function, arguments, nullptr));
        CHECK(cuEventRecord(end, nullptr));
        CHECK(cuEventSynchronize(end));
        float milliseconds = 0;
        CHECK(cuEventElapsedTime(&milliseconds, begin, end));
        if (sample >= 2) times.push_back(1e3f * milliseconds / launches);
    }
    std::sort(times.begin(), times.end());
    return times[samples / 2];
}

/// The GPU, its context, its path and the loaded kernel.
struct Kernel {
    CUdevice device;
    const Path* path;
    CUfunction function;
    int resident;

    /// CTAs of a launch: the resident clusters of a persistent kernel, else a cluster a tile; whole clusters of
    /// `preferred` CTAs where there are such.
    long long grid_ctas(long long tiles, int preferred = 0) const {
        const long long size = path->cluster_size, largest = preferred ? preferred : size;
        long long ctas = ceil_div(tiles * size, largest) * largest;
        if (path->persistent) ctas = std::min(ctas, std::max<long long>(resident * size / largest, 1) * largest);
        if (ctas > 0x7fffffff) fail("more CTAs than a grid takes along x");
        std::printf("grid:  %lld clusters = %lld CTAs along x for %lld tiles; %d clusters are resident\n", ctas / size,
                    ctas, tiles, resident);
        return ctas;
    }
};

template <size_t count>
Kernel open_kernel(const Path (&paths)[count], const Absent* absent, const char* entry, const char* planned_for,
                   int gpu) {
    CHECK(cuInit(0));
    Kernel kernel;
    CHECK(cuDeviceGet(&kernel.device, gpu));
    CUcontext context;
    CHECK(cuDevicePrimaryCtxRetain(&context, kernel.device));
    CHECK(cuCtxSetCurrent(context));
    int major = 0, minor = 0;
    CHECK(cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kernel.device));
    CHECK(cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, kernel.device));
    char name[128] = "";
    CHECK(cuDeviceGetName(name, sizeof name, kernel.device));
    std::printf("GPU:   %s; planned for %s\n", name, planned_for);
    kernel.path = &choose_path(paths, absent, major, minor);
    kernel.function = load(*kernel.path, entry, major, minor);
    kernel.resident = find_resident(*kernel.path, kernel.function, kernel.device);
    return kernel;
}

static void print_time(const Path& path, double us) {
    std::printf("time:  %.1f us a launch, back to back", us);
    if (path.predicted_us > 0) std::printf("; predicted %.1f us on %s", path.predicted_us, path.planned_for);
    std::printf("\n");
}

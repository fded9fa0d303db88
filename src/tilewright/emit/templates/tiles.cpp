// Launch the tile function of kernel.ARCH.cubin through the driver API and time it.
//
//     g++ -std=c++17 -O2 tiles.cpp -o tiles -lcuda
//     ./tiles [GPU] [PREFERRED]
//
// PREFERRED: CTAs of the cluster that the GPU may form where it can, if the kernel was emitted for that; the
// kernel's own is the fallback. Exit code 2 when nothing can run here.
#include "driver.h"

#include "launch.h"

/// The kernel's one argument, as kernel.cu declares it.
struct TileArguments {
    CUdeviceptr arguments;     // handed to the tile function
    CUdeviceptr work_counter;  // two zero words
    CUdeviceptr timeline;      // none
    int num_tiles;
};
static_assert(sizeof(TileArguments) == argument_bytes, "as the kernel reads it");

/// What the tile function is handed. Change this for a tile function of your own.
static CUdeviceptr make_arguments() {
    if (!example_tile) fail("make_arguments() does not say yet what your tile function is handed");
    std::ifstream file("costs.csv");
    std::string header;
    std::getline(file, header);
    std::vector<long long> cycles{std::istream_iterator<long long>(file), std::istream_iterator<long long>()};
    if (static_cast<long long>(cycles.size()) != num_tiles) fail("costs.csv does not hold a line a tile");
    return upload(cycles.data(), cycles.size() * sizeof(long long));
}

int main(int count, char** words) {
    const Kernel kernel = open_kernel(paths, absent, entry, planned_for, count > 1 ? std::atoi(words[1]) : 0);
    const int preferred = count > 2 ? std::atoi(words[2]) : 0;
    if (preferred && (!larger_clusters || preferred % kernel.path->cluster_size)) {
        fail("a preferred cluster must be a multiple of " + std::to_string(kernel.path->cluster_size) +
             " CTAs, and the kernel emitted with --larger-clusters");
    }
    const long long ctas = kernel.grid_ctas(num_tiles, preferred);
    if (ctas == 0) return 0;
    const long long zeros[2] = {0, 0};
    TileArguments arguments{make_arguments(), upload(zeros, sizeof zeros), 0, num_tiles};
    void* parameters[] = {&arguments};
    CUlaunchAttribute attributes[2]{};
    const CUlaunchConfig config = make_config(*kernel.path, ctas, attributes, preferred);
    print_time(*kernel.path, time_us(kernel.function, config, parameters));
    return 0;
}

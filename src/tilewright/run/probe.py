"""Read the GPU at hand: attributes, resident clusters by size, micro-benchmarks."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from tilewright.run.compiler import compile_source
from tilewright.run.device_file import find_base
from tilewright.run.gpu import Gpu
from tilewright.run.measure import load_source, measure_clusters, measure_memory, read_source
from tilewright.run.record import Counts, ProbeRecord

if TYPE_CHECKING:
    from typing import Any

ATTRIBUTES = (
    "multiprocessor_count",
    "compute_capability_major",
    "compute_capability_minor",
    "max_shared_memory_per_multiprocessor",
    "max_shared_memory_per_block_optin",
    "reserved_shared_memory_per_block",
    "max_registers_per_multiprocessor",
    "max_threads_per_multiprocessor",
    "max_threads_per_block",
    "max_blocks_per_multiprocessor",
    "warp_size",
    "l2_cache_size",
    "clock_rate",
    "memory_clock_rate",
    "global_memory_bus_width",
    "cluster_launch",
)
"""CU_DEVICE_ATTRIBUTE_…; clocks in kHz, the bus in bits, sizes in bytes."""

THREADS = 128
CLUSTER_SIZES_ASKED = range(1, 21)
"""Past the 16 that a launch may have: the driver places larger ones where a GPC is larger, which settles
the largest groups."""


def probe_gpu(ordinal: int = 0) -> ProbeRecord:
    """Read one GPU; some seconds, a quarter of its free memory, at most 5 GiB.

    Raises:
        MissingCuda: no extra, driver or GPU.
        Unsupported: no device file of this compute capability to start from.
        CudaFailed: a driver call failed.
    """
    with Gpu(ordinal) as gpu:
        attributes = {name: gpu.attribute(name) for name in ATTRIBUTES}
        capability = (
            attributes["compute_capability_major"],
            attributes["compute_capability_minor"],
        )
        find_base(gpu.name, capability)  # refuse now rather than after the measurements
        toolkit = compile_source(
            read_source("memory.cu"), "memory.cu", "sm_{}{}".format(*capability)
        ).toolkit
        measurements = list(measure_memory(gpu))
        largest, filling, tiny = 1, None, None
        if attributes["cluster_launch"]:
            kernel = load_source(gpu, "cluster.cu")("resident")
            smem_bytes = attributes["max_shared_memory_per_block_optin"]
            gpu.allow(kernel, smem_bytes=smem_bytes, nonportable=True)
            largest = gpu.largest_cluster(kernel, THREADS)
            filling, tiny = count_clusters(gpu, kernel, smem_bytes), count_clusters(gpu, kernel, 0)
            measurements += measure_clusters(gpu, largest)
        return ProbeRecord(
            gpu=gpu.name,
            compute_capability=capability,
            driver=gpu.driver_version,
            toolkit=toolkit,
            date=datetime.now(UTC).date().isoformat(),
            memory_bytes=gpu.memory_bytes,
            attributes=attributes,
            cluster_size_max=largest,
            one_cta_per_sm=filling,
            tiny=tiny,
            measurements=tuple(measurements),
        )


def count_clusters(gpu: Gpu, kernel: Any, smem_bytes: int) -> Counts:
    """Resident clusters of every size that the driver places."""
    found = {
        size: gpu.resident_clusters(kernel, size, THREADS, smem_bytes)
        for size in CLUSTER_SIZES_ASKED
    }
    return Counts(
        threads=THREADS,
        smem_bytes=smem_bytes,
        ctas_per_sm=gpu.resident_ctas(kernel, THREADS, smem_bytes),
        clusters={size: count for size, count in found.items() if count is not None},
    )

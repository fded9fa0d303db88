"""Micro-benchmarks of one GPU: the clock, HBM and L2, clusters and DSMEM, atomics.

Bandwidth: 16-byte loads past L1, two CTAs of 1024 threads an SM,
over a buffer far larger than L2 and over ones that fit it and were read before; nine runs. Latency: one
thread, each load's address from the load before; five runs. GB/s is 1e9 bytes a second. Clocks are not
locked.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

from tilewright.run.compiler import compile_source
from tilewright.run.record import Measurement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from numpy.typing import NDArray

    from tilewright.run.gpu import Gpu

MIB = 1 << 20
LINE_BYTES = 128
RUNS = 5
READ_BYTES = 16 << 30
"""Read in one timed run, over and over the same buffer: some milliseconds, beside which the microseconds
that Python takes to launch do not count."""

LATENCY_STEPS = 40_000
CHAIN_STEPS = 2_000
SPIN_CYCLES = 100_000_000
L2_SIZES_MIB = (4, 8, 16, 24, 32, 40, 48)
COUNTERS = 16
PAGE_BYTES = 4096
CLUSTER_SIZES = (1, 2, 4, 8, 16)


def read_source(name: str) -> str:
    """A CUDA source of this package."""
    return (resources.files("tilewright.run") / "sources" / name).read_text(encoding="utf-8")


def load_source(gpu: Gpu, name: str) -> Callable[[str], Any]:
    """Compile a source for this GPU and load it."""
    major, minor = (
        gpu.attribute("compute_capability_major"),
        gpu.attribute("compute_capability_minor"),
    )
    compiled = compile_source(read_source(name), name, f"sm_{major}{minor}")
    return gpu.load(compiled.cubin)


def measure_memory(gpu: Gpu) -> Iterator[Measurement]:
    """Clock, HBM and L2 bandwidth and latency, atomics."""
    find = load_source(gpu, "memory.cu")
    big = min(4096 * MIB, gpu.free_bytes // 4 // MIB * MIB)
    data = gpu.allocate(big)
    gpu.fill(data, big, 1)
    read = find("read_all")
    yield measure_read(gpu, read, data, big, "hbm_read_gbps")
    l2_bytes = gpu.attribute("l2_cache_size")
    for mib in L2_SIZES_MIB:
        if mib * MIB < l2_bytes:
            yield measure_read(gpu, read, data, mib * MIB, "l2_bandwidth_gbps")
    yield measure_clock(gpu, find("spin"))  # now that it has left its idle clock
    chase = find("chase")
    small = min(4 * MIB, l2_bytes // 4)
    yield measure_chase(gpu, chase, data, small, None, "l2_latency_cycles")
    flush_bytes = min(1024 * MIB, big)
    flush = gpu.allocate(flush_bytes), flush_bytes
    yield measure_chase(gpu, chase, data, min(256 * MIB, big), flush, "hbm_latency_cycles")
    for ctas in (1, gpu.attribute("multiprocessor_count")):
        yield measure_atomic(gpu, find("atomic_chain"), ctas)


def measure_clusters(gpu: Gpu, largest: int) -> Iterator[Measurement]:
    """Cluster barrier and DSMEM load latency in one cluster of each size up to `largest`."""
    find = load_source(gpu, "cluster.cu")
    barrier, chase = find("barrier_chain"), find("dsmem_chase")
    for kernel in (barrier, chase):
        gpu.allow(kernel, nonportable=True)
    out = gpu.allocate(16)
    sizes = [size for size in CLUSTER_SIZES if size <= largest]
    for size in sizes:
        samples = []
        for _ in range(RUNS):
            gpu.launch(barrier, size, 128, CHAIN_STEPS, out, cluster=size)
            samples.append(gpu.read(out, 1)[0] / CHAIN_STEPS)
        yield result("cluster_sync_cycles", f"cluster {size}", "cycles", samples)
    for size in sizes:
        for peer in sorted({0, 1, size - 1} if size > 1 else {0}):
            samples = []
            for _ in range(RUNS):
                gpu.launch(chase, size, 128, peer, CHAIN_STEPS, out, out + 8, cluster=size)
                samples.append(gpu.read(out, 1)[0] / CHAIN_STEPS)
            name = "dsmem_latency_cycles" if peer else "smem_latency_cycles"
            yield result(name, f"cluster {size} peer {peer}", "cycles", samples)


def measure_clock(gpu: Gpu, kernel: Any) -> Measurement:
    """SM clock while one CTA spins: cycles over nanoseconds."""
    out = gpu.allocate(16)
    samples = []
    for _ in range(RUNS):
        gpu.launch(kernel, 1, 1, SPIN_CYCLES, out)
        cycles, time_ns = gpu.read(out, 2)
        samples.append(cycles / time_ns * 1e3)
    return result("sm_clock_mhz", "one CTA spins", "MHz", samples)


def measure_read(gpu: Gpu, kernel: Any, data: int, size_bytes: int, name: str) -> Measurement:
    """Read a buffer from every SM, as often as `READ_BYTES` holds it."""
    sink = gpu.allocate(8)
    ctas = 2 * gpu.attribute("multiprocessor_count")
    passes = max(1, READ_BYTES // size_bytes)
    times = gpu.time_ms(
        lambda: gpu.launch(kernel, ctas, 1024, data, size_bytes // 16, passes, sink)
    )
    gbps = (passes * size_bytes / ms / 1e6 for ms in times)
    return result(name, f"{size_bytes // MIB} MiB", "GB/s", gbps)


def measure_chase(
    gpu: Gpu, kernel: Any, data: int, size_bytes: int, flush: tuple[int, int] | None, name: str
) -> Measurement:
    """Dependent loads over a random ring.

    Args:
        flush: address and bytes of a buffer larger than L2 that is written before each run, so that
            every load goes to HBM; None reads the ring first, so that every load hits L2.
    """
    gpu.write(data, ring_of_lines(size_bytes))
    out = gpu.allocate(16)
    lines = size_bytes // LINE_BYTES
    steps = min(lines, LATENCY_STEPS)
    samples = []
    for run in range(RUNS):
        if flush:
            gpu.fill(*flush, run)
        else:
            gpu.launch(kernel, 1, 1, data, lines, out, out + 8)
        gpu.launch(kernel, 1, 1, data, steps, out, out + 8)
        samples.append(gpu.read(out, 1)[0] / steps)
    return result(name, f"{size_bytes // MIB} MiB", "cycles", samples)


def measure_atomic(gpu: Gpu, kernel: Any, ctas: int) -> Measurement:
    """Dependent atomicAdd to one counter from one thread of each CTA; the mean over the CTAs.

    Each sample has a counter of its own in another page: the way from an SM to an L2 slice differs.
    """
    counters, cycles = gpu.allocate(COUNTERS * PAGE_BYTES), gpu.allocate(8 * ctas)
    gpu.fill(counters, COUNTERS * PAGE_BYTES, 0)
    samples = []
    for i in range(COUNTERS):
        gpu.launch(kernel, ctas, 1, counters + i * PAGE_BYTES, CHAIN_STEPS, 0, cycles)
        samples.append(sum(gpu.read(cycles, ctas)) / ctas / CHAIN_STEPS)
    return result("atomic_cycles", f"{ctas} CTA{'s' * (ctas > 1)}", "cycles", samples)


def result(name: str, situation: str, unit: str, samples: Iterable[float]) -> Measurement:
    """A measurement with its samples cut to six digits, which is more than they repeat to."""
    return Measurement(name, situation, unit, tuple(float(f"{s:.6g}") for s in samples))


def ring_of_lines(size_bytes: int) -> NDArray[np.uint32]:
    """A buffer whose 128-byte lines each begin with the word index of the next, in one random cycle."""
    words = LINE_BYTES // 4
    lines = size_bytes // LINE_BYTES
    order = np.random.default_rng(0).permutation(lines)
    ring = np.zeros((lines, words), dtype=np.uint32)
    ring[order, 0] = np.roll(order, -1) * words
    return ring

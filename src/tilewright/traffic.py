"""Traffic: bytes at each level of memory for a tiling and a raster order.

    HBM     operands read once a reuse window, outputs written once
    L2      what CTAs request after multicast and pair sharing
    SMEM    what arrives in shared memory, and what the matrix instructions read from it

HBM. Clusters run about in step along K, so operands shared inside a wave are read once. Across waves a
strip (see `tile_map`) keeps its panel of the minor operand if that fits L2; the major operand is read
again on every pass over the strips, less the part of it that L2 still holds:

    reads(minor) = 1                         if the panel and a wave's slab of the major one fit
                   waves of a strip          otherwise
    reads(major) = 1 + (passes - 1) * (1 - held),   held = clamp((usable L2 - panel) / bytes(major), 0, 1)

Both are at least 1, so no estimate falls under the compulsory bytes. Usable L2 is a fraction of its size,
`L2_USABLE`. Left out: drift between clusters (which costs hits), and hashing across two L2 partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.problem import DTYPES
from tilewright.tile_map import Raster

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Groups, Matmul
    from tilewright.tiling import Tiling

L2_USABLE = 0.6
"""Fraction of L2 that holds reused operands. Kind: derived. Source: vllm-project/vllm#55180 and #55661, where the
better raster order flips at activations of 14 MiB on a device of 24 MiB; plausible 0.5 to 1."""

RASTERS: tuple[Raster, ...] = tuple(
    Raster(along, swizzle) for swizzle in (1, 2, 4, 8, 16) for along in ("m", "n")
)


class OperandReads(NamedTuple):
    """How often each operand is read from HBM, averaged over groups by bytes."""

    a: float
    b: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one launch.

    Attributes:
        compulsory_bytes: each operand read once, each output written once.
        hbm_read_bytes, hbm_write_bytes: estimate at HBM.
        l2_bytes: requests of the SMs to L2, with multicast and pair sharing.
        l2_bytes_unshared: the same if every CTA loaded all it needs itself.
        dsmem_bytes: delivered to a CTA that did not request them (multicast, pair).
        smem_write_bytes: arriving in shared memory.
        smem_read_bytes: read by the matrix instructions.
        wave_bytes: distinct operands of one full wave, whole K.
        reads: how often A and B are read from HBM.
    """

    compulsory_bytes: float
    hbm_read_bytes: float
    hbm_write_bytes: float
    l2_bytes: float
    l2_bytes_unshared: float
    dsmem_bytes: float
    smem_write_bytes: float
    smem_read_bytes: float
    wave_bytes: float
    reads: OperandReads

    @property
    def hbm_bytes(self) -> float:
        """Read and written."""
        return self.hbm_read_bytes + self.hbm_write_bytes


class UniqueGroups(NamedTuple):
    """Distinct GEMMs of a problem and how often each occurs; those without output dropped.

    Attributes:
        place: of each group of the problem, which of the distinct ones it is; -1 without output.
    """

    m: NDArray[np.float64]
    n: NDArray[np.float64]
    k: NDArray[np.float64]
    times: NDArray[np.float64]
    place: NDArray[np.int64]

    def spread(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """A value of each distinct group given to every group of the problem; 0 without output."""
        return np.append(values, 0.0)[self.place]


def unique_groups(groups: Groups) -> UniqueGroups:
    """Distinct (m, n, k) with their number: what makes 100,000 groups quick."""
    used = (groups.m > 0) & (groups.n > 0)
    table = np.stack([groups.m[used], groups.n[used], groups.k[used]], axis=1)
    place = np.full(len(used), -1)
    if len(table) == 0:
        empty = np.zeros(0)
        return UniqueGroups(empty, empty, empty, empty, place)
    if len(table) == 1:
        rows, places, times = table, np.zeros(1, np.int64), np.ones(1, np.int64)
    else:
        rows, places, times = np.unique(table, axis=0, return_inverse=True, return_counts=True)
    place[used] = places
    m, n, k = rows.T.astype(float)
    return UniqueGroups(m, n, k, times.astype(float) * groups.repeat, place)


def best_raster(
    problem: Matmul, tiling: Tiling, resident: int, device: Device, unique: UniqueGroups
) -> tuple[Raster, OperandReads]:
    """The order with the least HBM traffic; the narrowest strip, along m, where orders tie."""
    reads_a, reads_b = _reads(problem, tiling, resident, device, unique, RASTERS)
    element = problem.element.bits / 8
    weight_a = unique.m * unique.k * unique.times * element
    weight_b = unique.n * unique.k * unique.times * element
    total = (reads_a * weight_a + reads_b * weight_b).sum(axis=1)
    # orders within 1 % tie: the first in RASTERS is the simplest
    best = int(np.flatnonzero(total <= total.min() * 1.01)[0]) if total.size else 0
    return RASTERS[best], _mean_reads(reads_a[best], reads_b[best], weight_a, weight_b)


def reads_of(
    problem: Matmul,
    tiling: Tiling,
    resident: int,
    device: Device,
    raster: Raster,
    groups: Groups | None = None,
) -> OperandReads:
    """How often one raster order reads each operand from HBM; `groups` where the frame is swapped."""
    unique = unique_groups(problem.groups() if groups is None else groups)
    reads_a, reads_b = _reads(problem, tiling, resident, device, unique, (raster,))
    return _mean_reads(
        reads_a[0],
        reads_b[0],
        unique.m * unique.k * unique.times,
        unique.n * unique.k * unique.times,
    )


def hbm_weights(
    problem: Matmul,
    tiling: Tiling,
    resident: int,
    device: Device,
    raster: Raster,
    unique: UniqueGroups,
) -> NDArray[np.float64]:
    """HBM bytes that a stage of each group takes, over those of the mean stage.

    A group of few rows reads its weights for few tiles; one of many keeps them in L2 for the next rows.
    """
    reads_a, reads_b = _reads(problem, tiling, resident, device, unique, (raster,))
    element = problem.element.bytes_of(1.0)
    operands = (unique.m * reads_a[0] + unique.n * reads_b[0]) * unique.k * element
    outputs = unique.m * unique.n * (problem.out_bytes + problem.epilogue_bytes)
    tile_m, tile_n, tile_k = tiling.cluster_tile
    stages = np.ceil(unique.m / tile_m) * np.ceil(unique.n / tile_n) * np.ceil(unique.k / tile_k)
    total = float((stages * unique.times).sum())
    if not total:
        return np.ones(len(stages))
    mean = float(((operands + outputs) * unique.times).sum()) / total
    return np.asarray((operands + outputs) / np.maximum(stages, 1.0) / mean)


def _mean_reads(
    reads_a: NDArray[np.float64],
    reads_b: NDArray[np.float64],
    weight_a: NDArray[np.float64],
    weight_b: NDArray[np.float64],
) -> OperandReads:
    def mean(reads: NDArray[np.float64], weight: NDArray[np.float64]) -> float:
        total = float(weight.sum())
        return float((reads * weight).sum()) / total if total else 1.0

    return OperandReads(mean(reads_a, weight_a), mean(reads_b, weight_b))


def _reads(
    problem: Matmul,
    tiling: Tiling,
    resident: int,
    device: Device,
    unique: UniqueGroups,
    rasters: Sequence[Raster],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Reads of A and of B for every raster (rows) and distinct group (columns)."""
    element = problem.element.bytes_of(1.0)
    tile_m, tile_n, _ = tiling.cluster_tile
    usable = L2_USABLE * (device.l2_bytes or 0) / (device.l2_partitions or 1)
    along_m = np.array([[r.along == "m"] for r in rasters])
    swizzle = np.array([[float(r.swizzle)] for r in rasters])
    m_tiles, n_tiles = np.ceil(unique.m / tile_m), np.ceil(unique.n / tile_n)
    major = np.where(along_m, m_tiles, n_tiles)
    minor = np.where(along_m, n_tiles, m_tiles)
    bytes_a, bytes_b = unique.m * unique.k * element, unique.n * unique.k * element
    bytes_major = np.where(along_m, bytes_a, bytes_b)
    bytes_minor = np.where(along_m, bytes_b, bytes_a)

    width = np.minimum(swizzle, minor)
    panel = bytes_minor * width / minor
    in_flight = max(resident, 1)
    slab = bytes_major * np.minimum(1.0, np.ceil(in_flight / width) / major)
    waves = np.ceil(width * major / in_flight)
    minor_reads = np.where(panel + slab <= usable, 1.0, waves)
    strips_at_once = np.maximum(1.0, np.floor(in_flight / (width * major)))
    passes = np.ceil(np.ceil(minor / width) / strips_at_once)
    held = np.clip((usable - panel) / np.maximum(bytes_major, 1.0), 0.0, 1.0)
    major_reads = 1.0 + (passes - 1.0) * (1.0 - held)
    return (
        np.where(along_m, major_reads, minor_reads),
        np.where(along_m, minor_reads, major_reads),
    )


def find_traffic(
    problem: Matmul, tiling: Tiling, resident: int, reads: OperandReads, unique: UniqueGroups
) -> Traffic:
    """Bytes at every level for a tiling whose operands are read `reads` times from HBM."""
    element = problem.element
    size_x, size_y, _ = tiling.cluster_shape
    tile_m, tile_n, tile_k = tiling.cluster_tile
    clusters = np.ceil(unique.m / tile_m) * np.ceil(unique.n / tile_n) * unique.times
    steps = np.ceil(unique.k / tile_k)
    stages = float((clusters * steps).sum())  # cluster stages
    # one stage of a cluster: every CTA needs tile_m rows of A and tile_n columns of B
    a_stage, b_stage = (
        element.bytes_of(extent * tile_k) for extent in (tiling.cta_tile.m, tiling.cta_tile.n)
    )
    unshared = stages * size_x * size_y * (a_stage + b_stage)
    l2 = stages * size_x * size_y * l2_bytes_a_stage(tiling)
    arriving = stages * size_x * size_y * (a_stage + b_stage / tiling.cta_group)
    out = float((unique.m * unique.n * unique.times).sum())
    read_a = element.bytes_of(float((unique.m * unique.k * unique.times).sum()))
    read_b = element.bytes_of(float((unique.n * unique.k * unique.times).sum()))
    read = read_a * reads.a + read_b * reads.b + out * problem.epilogue_bytes
    return Traffic(
        compulsory_bytes=problem.compulsory_bytes,
        hbm_read_bytes=read,
        hbm_write_bytes=out * problem.out_bytes,
        l2_bytes=l2,
        l2_bytes_unshared=unshared,
        dsmem_bytes=unshared - l2,
        smem_write_bytes=arriving,
        smem_read_bytes=stages * size_x * size_y * smem_read_bytes_a_stage(tiling),
        wave_bytes=_wave_bytes(problem, tiling, resident, unique),
        reads=reads,
    )


def l2_bytes_a_stage(tiling: Tiling) -> float:
    """Bytes that one CTA requests from L2 in one stage, less what its cluster sends it."""
    element = DTYPES[tiling.mma.dtype]
    size_x, size_y, _ = tiling.cluster_shape
    m, n, k = tiling.cta_tile
    share_a = size_y if tiling.multicast else 1
    share_b = size_x if tiling.multicast else tiling.cta_group
    return element.bytes_of(m * k) / share_a + element.bytes_of(n * k) / share_b


def smem_read_bytes_a_stage(tiling: Tiling) -> float:
    """Bytes that the matrix instructions of one CTA read from shared memory in one stage.

    tcgen05 reads A once and this CTA's part of B once (the pair exchanges halves). A wgmma of 64 rows reads
    all of B, so B is read once for every 64 rows; warps of mma.sync, in a grid of two rows, twice each.
    """
    m, n, k = tiling.cta_tile
    bytes_k = DTYPES[tiling.mma.dtype].bits / 8 * k
    if tiling.mma.family == "tcgen05":
        return (m + n / tiling.cta_group) * bytes_k
    if tiling.mma.family == "wgmma":
        return (m + n * (m / 64)) * bytes_k
    warps_n = tiling.threads // 32 // 2
    return (m * warps_n + n * 2) * bytes_k


def _wave_bytes(problem: Matmul, tiling: Tiling, resident: int, unique: UniqueGroups) -> float:
    """Distinct operands of one wave of the largest group, for the squarest block a wave can cover."""
    if len(unique.m) == 0:
        return 0.0
    largest = int(np.argmax(unique.m * unique.n * unique.k))
    tile_m, tile_n, _ = tiling.cluster_tile
    m_tiles = np.ceil(unique.m[largest] / tile_m)
    n_tiles = np.ceil(unique.n[largest] / tile_n)
    in_flight = min(max(resident, 1), m_tiles * n_tiles)
    across = min(n_tiles, max(1.0, np.sqrt(in_flight * tile_m / tile_n)))
    down = min(m_tiles, np.ceil(in_flight / across))
    k = float(unique.k[largest])
    rows = min(float(unique.m[largest]), down * tile_m)
    columns = min(float(unique.n[largest]), across * tile_n)
    return problem.element.bytes_of((rows + columns) * k)

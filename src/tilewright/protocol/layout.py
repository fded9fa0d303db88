"""Where things lie: the shared memory and the tensor memory of one CTA, and the launch.

Every CTA of a cluster has the same layout, because multicast, commit and CLC address the same offset in
each of them. The dynamic shared memory must start on 1024 bytes for 128-byte swizzled buffers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.attention import SLOT_ALIGNMENT
from tilewright.errors import BadInput, NoFit
from tilewright.protocol.model import MBARRIER_BYTES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.attention import AttentionTiling
    from tilewright.device import Device
    from tilewright.protocol.model import Barrier, Ring
    from tilewright.tiling import Tiling

ANSWER_RINGS = ("clc", "work")
ANSWER_STRIDE = 32
"""Bytes from one answer slot to the next: 16 are used, and DSMEM writes start on 32."""

SMEM_WITHOUT_OPT_IN = 48 * 1024
"""Dynamic shared memory that needs no attribute. Source: CUDA Programming Guide."""


class Region(NamedTuple):
    """Buffers in shared memory: `copies` of `size` bytes, one after the other."""

    name: str
    size: int
    copies: int
    alignment: int


def gemm_regions(tiling: Tiling) -> list[Region]:
    """Operand ring and output staging."""
    smem, stages = tiling.smem, tiling.num_stages
    regions = [
        Region("A", smem.a_bytes, stages, 1024),
        Region("B", smem.b_bytes, stages, 1024),
        Region("scale factors", smem.scale_bytes, stages, 128),
        Region("output staging", smem.epilogue_bytes // 2, 2, 128),
    ]
    return [region for region in regions if region.size]


def attention_regions(tiling: AttentionTiling) -> list[Region]:
    """Q (O leaves through it), the rings of K and V, the row statistics."""
    regions = [
        Region("Q, later O", tiling.q_slot_bytes, tiling.q_tiles, SLOT_ALIGNMENT),
        Region("K", tiling.kv_slot_bytes, tiling.kv_stages, SLOT_ALIGNMENT),
        Region("V", tiling.kv_slot_bytes, tiling.kv_stages, SLOT_ALIGNMENT),
        Region("row statistics", tiling.statistics_bytes, 1, 128),
    ]
    return [region for region in regions if region.size]


def smem_table(
    regions: Sequence[Region],
    barriers: Sequence[Barrier],
    rings: Sequence[Ring],
    most_bytes: int,
    *,
    tmem: bool,
) -> dict[str, Any]:
    """Offsets of every buffer, barrier and answer slot in the dynamic shared memory.

    Args:
        most_bytes: what the launch has, or the most that the device allows.
    Raises:
        NoFit: they take more.
    """
    answers = [
        Region(f"{ring.name} answers", ANSWER_STRIDE, ring.depth, ANSWER_STRIDE)
        for ring in rings
        if ring.name in ANSWER_RINGS
    ]
    small = [Region(f"mbarrier {b.name}", MBARRIER_BYTES, b.depth, 8) for b in barriers]
    if tmem:
        small.append(Region("tmem address", 4, 1, 4))
    rows, offset = [], 0
    for region in [*regions, *answers, *small]:
        offset = -(-offset // region.alignment) * region.alignment
        rows.append({"offset": offset, **region._asdict()})
        offset += region.size * region.copies
    if offset > most_bytes:
        raise NoFit(
            f"buffers and barriers take {offset} bytes of shared memory a CTA; {most_bytes} are there",
            given=offset,
            allowed=str(most_bytes),
            nearest=f"{offset - most_bytes} bytes less of buffers",
        )
    return {
        "used_bytes": offset,
        "base_alignment_bytes": max((r.alignment for r in regions), default=16),
        "regions": rows,
        "rules": ["MBAR-01", "CLC-01", "TMA-01", "TMA-02"],
    }


def tmem_table(
    regions: Sequence[tuple[str, int]], columns: int, cta_group: int, allocator: str
) -> dict[str, Any]:
    """Columns of the allocation, and the life of it; empty where the accumulator is in registers."""
    if not columns:
        return {}
    rows, start = [], 0
    for name, width in regions:
        rows.append({"name": name, "columns": [start, start + width]})
        start += width
    return {
        "columns": columns,
        "used_columns": start,
        "cta_group": cta_group,
        "allocated_by": allocator,
        "both_ctas": cta_group == 2,
        "regions": rows,
        "alloc": "one warp, before the first barrier; the address goes through shared memory; relinquish next",
        "dealloc": "the same warp, same address and columns, after the exit barrier",
        "rules": ["TC-01", "TC-02", "TC-03", "TC-05", "TC-06", "TC-07", "TC-08"],
    }


def gemm_tmem(tiling: Tiling) -> list[tuple[str, int]]:
    """Accumulators first, then one stage's scale factors."""
    regions = [
        (f"accumulator {a}", tiling.accumulator_columns) for a in range(tiling.accumulator_stages)
    ]
    return regions + ([("scale factors", tiling.scale_columns)] if tiling.scale_columns else [])


_GRID = {
    "single_tile": "one cluster a tile",
    "static": "min(num_tiles, resident clusters); tile += grid_clusters",
    "static_blocked": "min(num_tiles, resident clusters); a contiguous run of tiles each",
    "dynamic_atomic": "min(num_tiles, resident clusters); first tile %clusterid, then draws",
    "clc": "one cluster a tile; resident ones cancel pending ones and do their tiles",
}


def launch_table(
    scheduler: str,
    cluster_shape: tuple[int, int, int],
    threads: int,
    smem_bytes: int,
    device: Device,
) -> dict[str, Any]:
    """Launch configuration; the grid is a rule because the problem is not known here."""
    size = cluster_shape[0] * cluster_shape[1] * cluster_shape[2]
    portable = size <= device.cluster_size_portable_max
    attributes = []
    if size > 1 or scheduler == "clc":
        attributes.append(
            f"cluster dimension {cluster_shape}; __cluster_dims__ or .reqnctapercluster"
        )
    if not portable:
        attributes.append("cudaFuncAttributeNonPortableClusterSizeAllowed")
    if smem_bytes > SMEM_WITHOUT_OPT_IN:
        attributes.append(f"cudaFuncAttributeMaxDynamicSharedMemorySize {smem_bytes}")
    return {
        "cluster_shape": list(cluster_shape),
        "cluster_size": size,
        "portable": portable,
        "threads": threads,
        "dynamic_smem_bytes": smem_bytes,
        "persistent": scheduler != "single_tile",
        "grid_clusters": _GRID[scheduler],
        "grid_ctas": f"grid_clusters * {size}, along x",
        "attributes": attributes,
        "rules": ["CLU-13", "CLU-14"] + (["CLC-20"] if scheduler == "clc" else []),
    }


def grid_counts(grid_clusters: int, cluster_shape: tuple[int, int, int]) -> dict[str, int]:
    """Both counts of one launch: cuda.core's `grid` counts clusters, CUDA's gridDim counts CTAs.

    Raises:
        BadInput: nothing to launch.
    """
    if grid_clusters < 1:
        raise BadInput(
            f"{grid_clusters} clusters: nothing to launch", given=grid_clusters, allowed="1 or more"
        )
    x, y, z = cluster_shape
    return {"grid_clusters": grid_clusters, "grid_ctas": grid_clusters * x * y * z}

"""What a schedule is made of on a device: the overheads of its kernels, the tile counts to look at.

The model is `tilewright.sim`: tiles of known cost, slots for clusters, and overheads taken from the
device. On an H200 it reproduces 256 measured launches (tests/null/test_schedule_h200.py) with four fitted
overheads. What it leaves out: tiles do not slow each other down, so a tile's cost must already hold its
share of the memory bandwidth; and a clock that falls during the run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.sim import (
    SCHEDULERS,
    Overheads,
    Scheduler,
)

if TYPE_CHECKING:
    from tilewright.device import Device

# what the overheads of a run are made of, as names of `Device` facts
_OVERHEAD_FACTS = (
    "cluster_sync_cycles",
    "tile_overhead_cycles",
    "cluster_tile_cycles",
    "queue_fetch_cycles",
    "cta_turnover_cycles",
    "cta_start_cycles",
)


def schedulers_for(device: Device) -> tuple[Scheduler, ...]:
    """The schedulers that the device can run: all, or all but `clc`."""
    return tuple(name for name in SCHEDULERS if name != "clc" or device.clc)


def overheads_for(
    device: Device, cluster_size: int, prologue_cycles: int = 0, *, fixup_cycles: int = 0
) -> Overheads:
    """The overheads of a kernel on a device.

    A tile ends with a cluster barrier. The queue's fetch is a barrier more, to broadcast the answer. A
    value that the device does not have counts as 0: see `unknown_overheads`.

    Args:
        device: whose facts are used.
        cluster_size: CTAs a cluster; above 1 each tile costs `device.cluster_tile_cycles` more.
        prologue_cycles: what each launched cluster spends before its first tile.
        fixup_cycles: of a tile cut by `stream_k`, for each cut.
    """
    sync = device.cluster_sync_cycles or 0
    tile = sync + (device.tile_overhead_cycles or 0)
    if cluster_size > 1:
        tile += device.cluster_tile_cycles or 0
    return Overheads(
        prologue_cycles=prologue_cycles,
        tile_overhead_cycles=round(tile),
        fetch_cycles=round(sync + (device.queue_fetch_cycles or device.atomic_cycles or 0)),
        turnover_cycles=round(device.cta_turnover_cycles or 0),
        clc_latency_cycles=round(device.clc_latency_cycles or 0),
        launch_stagger_cycles=round(cluster_size * (device.cta_start_cycles or 0)),
        fixup_cycles=fixup_cycles,
    )


def unknown_overheads(device: Device) -> tuple[str, ...]:
    """Names of the device's overhead facts that are unknown, and so count as 0."""
    names = _OVERHEAD_FACTS + (("clc_latency_cycles",) if device.clc else ())
    return tuple(name for name in names if getattr(device, name) is None)


def boundary_counts(tiles: int, resident_clusters: int) -> list[int]:
    """The tile counts where waves fill or spill, R-1, R, R+1, 2R, 2R+1, and the real count last."""
    r = resident_clusters
    counts = dict.fromkeys((r - 1, r, r + 1, 2 * r, 2 * r + 1))
    return [*(n for n in counts if n > 0 and n != tiles), tiles]

"""Makespan, tail and fairness of a tile list under each scheduler.

The model is `tilewright.sim`: tiles of known cost, slots for clusters, and overheads taken from the
device. On an H200 it reproduces 256 measured launches (tests/null/test_schedule_h200.py) with four fitted
overheads. What it leaves out: tiles do not slow each other down, so a tile's cost must already hold its
share of the memory bandwidth; and a clock that falls during the run.

Which SMs a foreign kernel takes is not known, so with clusters of two or more and busy SMs there is an
interval (`slots_with_busy`, `makespan_interval`), not a number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.errors import BadInput
from tilewright.residency import busy_bounds
from tilewright.sim import (
    NO_OVERHEADS,
    SCHEDULERS,
    Busy,
    Disturbance,
    Metrics,
    Order,
    Overheads,
    Scheduler,
    metrics,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import ArrayLike

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


def compare(
    costs_cycles: ArrayLike,
    slots: int,
    clock_mhz: float,
    *,
    schedulers: Iterable[Scheduler] = SCHEDULERS,
    **options: Any,
) -> dict[str, Metrics]:
    """The metrics of each scheduler on the same tiles.

    Args:
        costs_cycles: cycles of each tile.
        slots: resident clusters.
        clock_mhz: SM clock.
        schedulers: the ones to run.
        options: any of `simulate`: workers, overheads, order, clc, disturbance, classes.
    """
    return {
        name: metrics(simulate(name, costs_cycles, slots, **options), clock_mhz)
        for name in schedulers
    }


class BoundaryCase(NamedTuple):
    """The schedulers at one tile count."""

    tiles: int
    resident_clusters: int
    schedulers: dict[str, Metrics]

    def as_dict(self) -> dict[str, Any]:
        """The same as a JSON object."""
        rows = {name: found.as_dict() for name, found in self.schedulers.items()}
        return {
            "tiles": self.tiles,
            "resident_clusters": self.resident_clusters,
            "schedulers": rows,
        }


def boundary_counts(tiles: int, resident_clusters: int) -> list[int]:
    """The tile counts where waves fill or spill, R-1, R, R+1, 2R, 2R+1, and the real count last."""
    r = resident_clusters
    counts = dict.fromkeys((r - 1, r, r + 1, 2 * r, 2 * r + 1))
    return [*(n for n in counts if n != tiles), tiles]


def boundary_cases(
    costs_cycles: ArrayLike, resident_clusters: int, clock_mhz: float, **options: Any
) -> list[BoundaryCase]:
    """The schedulers at each boundary count; the real count is the last case.

    Other counts than the real one take the list from its start, over again as often as needed (or only
    its first tiles). With unequal costs that changes their mix: only equal costs make it exact.

    Args:
        costs_cycles: cycles of each tile.
        resident_clusters: R.
        clock_mhz: SM clock.
        options: as for `compare`.
    """
    costs = np.asarray(costs_cycles)
    return [
        BoundaryCase(
            count,
            resident_clusters,
            compare(np.resize(costs, count), resident_clusters, clock_mhz, **options),
        )
        for count in boundary_counts(len(costs), resident_clusters)
        if count == 0 or len(costs)
    ]


def slots_with_busy(
    gpc_sms: Sequence[int], cluster_size: int, ctas_per_sm: int, busy_sms: int
) -> tuple[int, int]:
    """Clusters that still fit when foreign CTAs hold SMs, each one SM wholly: (kindest, worst).

    Kindest: over all placements, and a cluster may use any free SM of its GPC. Worst: for even cluster
    sizes a cluster needs whole SM pairs and each foreign CTA breaks a pair of its own, as long as
    there are whole ones. On an H200, 33 busy SMs left about 44 of 66 clusters of two: between 49 and
    33.

    Args:
        gpc_sms: SMs of each cluster-capable group.
        cluster_size: CTAs a cluster.
        ctas_per_sm: of this kernel, on a free SM.
        busy_sms: SMs in foreign hands.

    Raises:
        BadInput: more SMs are busy than there are.
    """
    total = sum(gpc_sms)
    if not 0 <= busy_sms <= total:
        raise BadInput(
            f"{busy_sms} busy SMs; there are {total}", given=busy_sms, allowed=f"0 to {total}"
        )
    if cluster_size == 1:
        exact = ctas_per_sm * (total - busy_sms)
        return exact, exact
    worst, kindest = busy_bounds(gpc_sms, ctas_per_sm, cluster_size, busy_sms)
    if busy_sms and cluster_size % 2 == 0:
        pairs = [sms // 2 for sms in gpc_sms]
        broken = min(busy_sms, sum(pairs))
        worst = min(worst, busy_bounds(pairs, ctas_per_sm, cluster_size // 2, broken)[0])
    return kindest, worst


def makespan_interval(
    scheduler: Scheduler,
    costs_cycles: ArrayLike,
    slots: int,
    left: tuple[int, int],
    *,
    clock_mhz: float,
    overheads: Overheads = NO_OVERHEADS,
    order: Order = "given",
) -> tuple[float, float | None]:
    """Shortest and longest makespan in us when only some of the slots are left.

    Args:
        scheduler: as for `simulate`, like the costs, overheads and order.
        costs_cycles: cycles of each tile.
        slots: resident clusters on the idle device, and the persistent workers launched.
        left: (most, fewest) slots left by a foreign kernel that outlasts the run, from
            `slots_with_busy`.
        clock_mhz: SM clock.
        overheads: of the kernel.
        order: in which tiles are handed out.

    Returns:
        (shortest, longest) over every count in between; longest is None when no slot may be left,
        because then the kernel waits for the other one to end.

    Raises:
        BadInput: no slot is left even with the kindest placement.
    """
    most, fewest = left
    if most < 1:
        raise BadInput("no slot is left beside the other kernel", given=most, allowed=">= 1")
    spans = []
    for count in range(max(fewest, 1), most + 1):
        held = Disturbance(busy=(Busy(slots=slots - count),))
        run = simulate(
            scheduler, costs_cycles, slots, overheads=overheads, order=order, disturbance=held
        )
        spans.append(run.makespan_cycles / clock_mhz)
    return min(spans), max(spans) if fewest else None

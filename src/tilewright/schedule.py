"""Makespan, tail and fairness of a tile list under each scheduler.

The model is `tilewright.sim`: tiles of known cost, slots for clusters, and overheads taken from the
device. On an H200 it reproduces 256 measured launches (tests/null/test_schedule_h200.py) with four fitted
overheads. What it leaves out: tiles do not slow each other down, so a tile's cost must already hold its
share of the memory bandwidth; and a clock that falls during the run.

Which SMs a foreign kernel takes is not known, so with clusters of two or more and busy SMs there is an
interval (`slots_with_busy`, `makespan_interval`), not a number.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.device import load
from tilewright.errors import BadInput, NoFit, UnknownName
from tilewright.residency import CtaResources, busy_bounds, find_residency
from tilewright.sim import (
    NO_OVERHEADS,
    SCHEDULERS,
    Busy,
    Clc,
    Disturbance,
    Metrics,
    Order,
    Overheads,
    Scheduler,
    metrics,
    simulate,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a kernel asks of a device, and what else is there.

    Attributes:
        busy_sms: SMs that another kernel holds from the start, for `busy_us` (None: for good).
        sm_budget: SMs that this kernel may use; all unless given.
        workers: persistent workers launched, as many as are resident unless given. Without a device,
            the slots of the pure model as well.
    """

    cluster_shape: tuple[int, int, int] = (1, 1, 1)
    threads: int = 256
    smem_bytes: int = 0
    regs: int = 32
    tmem_columns: int = 0
    prologue_cycles: int = 0
    busy_sms: int = 0
    busy_us: float | None = None
    sm_budget: int | None = None
    workers: int | None = None
    clc_depth: int = 1


@dataclass(frozen=True, slots=True)
class Simulation:
    """The answer to `simulate_launch`.

    Attributes:
        where: what it ran on, for a heading.
        metrics: by scheduler; with the kindest placement of the busy SMs where that is not known.
        worst: the same with the worst placement; empty where the placement makes no difference.
        notes: assumptions that a reader must know.
    """

    num_tiles: int
    where: str
    metrics: dict[str, Metrics]
    worst: dict[str, Metrics] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The metrics by scheduler, as a JSON object."""
        rows: dict[str, Any] = {name: found.as_dict() for name, found in self.metrics.items()}
        for name, found in self.worst.items():
            rows[name]["makespan_worst_us"] = found.makespan_us
        return rows


@dataclass(frozen=True, slots=True)
class _Place:
    """Slots, clock and overheads of a launch, on a device or in the pure model."""

    where: str
    slots: int
    left: tuple[int, int]
    clock_mhz: float
    overheads: Overheads
    schedulers: tuple[Scheduler, ...]
    notes: tuple[str, ...]


PURE_CLOCK_MHZ = 1000.0  # one cycle is one ns


def simulate_launch(
    costs: Mapping[str, Sequence[float]],
    device: Device | str | None,
    launch: Launch,
    *,
    scheduler: str = "all",
    order: str = "given",
) -> Simulation:
    """Tail, fairness and makespan of a tile list on a device, or on `launch.workers` slots.

    Args:
        costs: {"costs_cycles": …} or {"costs_us": …}, as `problem.parse_costs` returns it.
        device: a device, its name or file; None for the pure model without overheads.
        launch: the kernel and its surroundings.
        scheduler: one of them, or "all" that the device has.
        order: "given" or "longest-first".

    Raises:
        UnknownName, BadInput: as `simulate`.
        NoFit: no cluster is resident.
    """
    place = _pure(launch) if device is None else _on(device, launch)
    cycles = np.asarray(costs.get("costs_cycles", ()), dtype=np.float64)
    if "costs_us" in costs:
        cycles = np.asarray(costs["costs_us"], dtype=np.float64) * place.clock_mhz
    names = place.schedulers if scheduler == "all" else (scheduler,)
    if names[0] not in place.schedulers:
        raise UnknownName(f"scheduler on {place.where}:", scheduler, ["all", *place.schedulers])

    def at(left: int) -> dict[str, Metrics]:
        end = None if launch.busy_us is None else round(launch.busy_us * place.clock_mhz)
        held = Busy(slots=place.slots - left, end_cycles=end)
        options = {
            "workers": launch.workers,
            "overheads": place.overheads,
            "order": order,
            "clc": Clc(depth=launch.clc_depth),
            "disturbance": Disturbance(busy=(held,)),
        }
        return compare(cycles, place.slots, place.clock_mhz, schedulers=names, **options)  # type: ignore[arg-type]

    kindest, worst = place.left
    notes = list(place.notes)
    answers = worst or launch.busy_us is not None
    if kindest != worst and not answers:
        notes.append("with the worst placement of the busy SMs no cluster fits until they are free")
    return Simulation(
        len(cycles),
        place.where,
        at(kindest),
        at(worst) if kindest != worst and answers else {},
        tuple(notes),
    )


def _pure(launch: Launch) -> _Place:
    if launch.workers is None:
        raise BadInput("a device or a number of workers is needed", given="neither")
    slots = launch.workers
    return _Place(
        f"{slots} workers, the pure model",
        slots,
        (slots - launch.busy_sms,) * 2,
        PURE_CLOCK_MHZ,
        Overheads(prologue_cycles=launch.prologue_cycles),
        SCHEDULERS,
        ("no device: no overheads, one cycle is one ns, each busy SM takes one slot",),
    )


def _on(device: Device | str, launch: Launch) -> _Place:
    chip = load(device) if isinstance(device, str) else device
    size = math.prod(launch.cluster_shape)
    cta = CtaResources(launch.threads, launch.smem_bytes, launch.regs, launch.tmem_columns)
    idle = find_residency(cta, size, chip, sm_budget=launch.sm_budget)
    if not idle.resident_clusters:
        raise NoFit(f"no cluster of {size} is resident on {chip.name}: {idle.limited_by}")
    slots = idle.resident_clusters
    held = find_residency(cta, size, chip, sm_budget=launch.sm_budget, busy_sms=launch.busy_sms)
    left = held.resident_clusters_max, held.resident_clusters
    if chip.gpc_sms and launch.busy_sms:
        away = 0 if launch.sm_budget is None else chip.sm_count - launch.sm_budget
        left = slots_with_busy(chip.gpc_sms, size, held.ctas_per_sm, launch.busy_sms + away)
    notes = []
    if unknown := unknown_overheads(chip):
        notes.append(f"unknown on {chip.name} and counted as 0: {', '.join(unknown)}")
    if idle.decides:
        notes.append(f"{slots} slots counted on; {idle.decides} decides")
    return _Place(
        f"{chip.name}: {slots} slots for clusters of {size}",
        slots,
        (min(slots, left[0]), min(slots, left[1])),
        chip.sm_clock_mhz,
        overheads_for(chip, size, launch.prologue_cycles),
        schedulers_for(chip),
        tuple(notes),
    )

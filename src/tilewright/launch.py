"""A launch of measured tiles: what the `simulate` command runs.

From a kernel's resources and a device come the slots and the overheads; from foreign kernels the slots
that are missing and for how long. With clusters of several CTAs nobody knows which SMs a foreign kernel
takes, so there are two results: the shortest and the longest over every number of slots that may be left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput, UnknownName
from tilewright.problem import TileList
from tilewright.records import Records
from tilewright.residency import CtaResources, find_residency
from tilewright.schedule import overheads_for, schedulers_for, unknown_overheads
from tilewright.sim import (
    NO_OVERHEADS,
    ORDERS,
    SCHEDULERS,
    Busy,
    Clc,
    Disturbance,
    Metrics,
    Order,
    Overheads,
    Run,
    Scheduler,
    metrics,
    simulate,
)
from tilewright.timeline import of_run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tilewright.device import Device
    from tilewright.timeline import Timeline

PURE_CLOCK_MHZ = 1000.0
"""Clock of the pure model (`workers` and no device): a nanosecond a cycle, so that results have a unit."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How the kernel is launched and what runs beside it.

    Attributes:
        prologue_cycles: spent once by every cluster before its first tile.
        busy_sms: SMs that a foreign kernel holds from the start, for `busy_us` or for good.
        sm_budget: SMs that this kernel may use.
        workers: slots of the pure model; with a device, persistent workers launched.
        clc_depth: requests that a CLC worker keeps ahead.
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


@dataclass(frozen=True)
class Simulation:
    """Metrics by scheduler, over the slots that may be left: `metrics` the shortest run, `worst` the longest.

    `worst` is empty where one number of slots is certain. `timelines` are of the shortest runs, when asked for.
    """

    num_tiles: int
    where: str
    metrics: dict[Scheduler, Metrics]
    worst: dict[Scheduler, Metrics]
    notes: list[str] = field(default_factory=list)
    timelines: tuple[Timeline, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """{scheduler: metrics}; with `makespan_us_worst` where placement matters."""
        out: dict[str, Any] = {}
        for name, found in self.metrics.items():
            out[name] = found.as_dict()
            if name in self.worst:
                out[name]["makespan_us_worst"] = self.worst[name].makespan_us
        return out

    def table(self) -> Records:
        """A row a scheduler, for pandas, polars and notebooks."""
        return Records({"scheduler": name, **row} for name, row in self.as_dict().items())

    def _repr_html_(self) -> str:
        from tilewright.report.fragment import render_fragment  # noqa: PLC0415  (only notebooks show)
        from tilewright.report.tables import simulation_document  # noqa: PLC0415

        return render_fragment(simulation_document(self))


def simulate_launch(
    costs: Mapping[str, Sequence[float]],
    device: Device | None,
    launch: Launch,
    *,
    scheduler: str = "all",
    order: str = "given",
    record: bool = False,
) -> Simulation:
    """Run tile costs under one scheduler or all of them.

    Args:
        costs: costs_cycles or costs_us, as `parse_costs` gives them.
        device: None for the pure model with `launch.workers` slots.
        record: keep a timeline of each scheduler.
    Raises:
        BadInput: neither a device nor workers; nothing resident.
        UnknownName: no such scheduler.
    """
    if order not in ORDERS:
        raise UnknownName("order", order, ORDERS)
    if scheduler != "all" and scheduler not in SCHEDULERS:
        raise UnknownName("scheduler", scheduler, ("all", *SCHEDULERS))
    if device is None:
        return _pure(costs, launch, scheduler, order, record=record)
    size = math.prod(launch.cluster_shape)
    cta = CtaResources(launch.threads, launch.smem_bytes, launch.regs, launch.tmem_columns)
    idle = find_residency(cta, size, device, sm_budget=launch.sm_budget)
    left = find_residency(cta, size, device, sm_budget=launch.sm_budget, busy_sms=launch.busy_sms)
    slots = idle.resident_clusters
    if slots == 0:
        raise BadInput(f"no cluster of {launch.cluster_shape} is resident: {idle.limited_by}")
    tiles = TileList.of(costs).costs(device.sm_clock_mhz)
    overheads = overheads_for(device, size, launch.prologue_cycles)
    until = None if launch.busy_us is None else round(device.us_to_cycles(launch.busy_us))
    names = _names(scheduler, device)

    def run(name: Scheduler, free: int, *, record: bool = False) -> Run:
        held = Busy(slots=slots - free, end_cycles=until)
        return simulate(
            name,
            tiles,
            slots,
            workers=launch.workers,
            overheads=overheads,
            order=order,
            clc=Clc(depth=launch.clc_depth),
            disturbance=Disturbance(busy=(held,) if held.slots else ()),
            record=record,
        )

    kindest, worst = min(left.resident_clusters_max, slots), left.resident_clusters
    ends = until is not None
    if kindest == 0 and not ends:
        raise BadInput(
            "no slot is left beside the other kernel, which never ends", given=launch.busy_sms
        )
    left_over = [free for free in range(worst, kindest + 1) if free or ends]
    runs = {
        name: {free: metrics(run(name, free), device.sm_clock_mhz) for free in left_over}
        for name in names
    }
    best = {
        name: min(found, key=lambda free: found[free].makespan_us) for name, found in runs.items()
    }
    notes = _notes(device, names, scheduler, overheads)
    if worst == 0 and not ends:
        notes.append(
            "with the worst placement no slot is left: the kernel waits for the other one to end"
        )
    return Simulation(
        num_tiles=len(tiles),
        where=_where(slots, size, device, launch, kindest, worst),
        metrics={name: runs[name][best[name]] for name in names},
        worst={
            name: max(runs[name].values(), key=lambda found: found.makespan_us) for name in names
        }
        if len(left_over) > 1
        else {},
        notes=notes,
        timelines=tuple(
            of_run(
                run(name, best[name], record=True),
                device.sm_clock_mhz,
                response_cycles=overheads.response_cycles(name),
                ctas_per_slot=size,
                sms_per_slot=size if idle.ctas_per_sm == 1 else None,
            )
            for name in (names if record else ())
        ),
    )


def _names(scheduler: str, device: Device) -> tuple[Scheduler, ...]:
    """Those asked for; `all` leaves out what the device cannot run."""
    if scheduler == "all":
        return schedulers_for(device)
    return tuple(name for name in SCHEDULERS if name == scheduler)


def _pure(
    costs: Mapping[str, Sequence[float]],
    launch: Launch,
    scheduler: str,
    order: Order,
    *,
    record: bool,
) -> Simulation:
    if launch.workers is None:
        raise BadInput(
            "give --device, or --workers for the pure model", allowed="--device, --workers"
        )
    if launch.workers < 1:
        raise BadInput(
            f"{launch.workers} workers; at least 1 is needed", given=launch.workers, nearest="1"
        )
    tiles = TileList.of(costs).costs(PURE_CLOCK_MHZ)
    names = SCHEDULERS if scheduler == "all" else tuple(n for n in SCHEDULERS if n == scheduler)
    runs = [
        simulate(
            name,
            tiles,
            launch.workers,
            overheads=Overheads(prologue_cycles=launch.prologue_cycles),
            order=order,
            clc=Clc(depth=launch.clc_depth),
            record=record,
        )
        for name in names
    ]
    return Simulation(
        len(tiles),
        f"{launch.workers} workers, no device: no overheads, a cycle is 1 ns",
        {run.scheduler: metrics(run, PURE_CLOCK_MHZ) for run in runs},
        {},
        timelines=tuple(of_run(run, PURE_CLOCK_MHZ) for run in (runs if record else ())),
    )


def _where(slots: int, size: int, device: Device, launch: Launch, kindest: int, worst: int) -> str:
    what = f"{slots} slots of {device.name} (clusters of {size})"
    if not launch.busy_sms:
        return what
    left = str(kindest) if kindest == worst else f"{worst} to {kindest}"
    how_long = "for good" if launch.busy_us is None else f"for {launch.busy_us:g} us"
    return f"{what}; {launch.busy_sms} SMs are busy {how_long}, which leaves {left}"


def _notes(device: Device, names: Sequence[str], scheduler: str, overheads: Overheads) -> list[str]:
    notes = []
    unknown = unknown_overheads(device)
    if unknown:
        notes.append(f"unknown on {device.name} and counted as nothing: {', '.join(unknown)}")
    if scheduler == "all" and "clc" not in names:
        notes.append(f"{device.name} has no cluster launch control: clc is left out")
    if overheads != NO_OVERHEADS:
        notes.append(
            f"cycles: {overheads.tile_overhead_cycles} a tile, {overheads.turnover_cycles} from one launch to the "
            f"next in a slot, {overheads.fetch_cycles} a fetch from the queue, {overheads.clc_latency_cycles} a CLC "
            "request"
        )
    return notes

"""`simulate`: tile costs and slots in, a finished `Run` out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import BadInput, UnknownName
from tilewright.sim.engine import Engine, Launch
from tilewright.sim.foreign import Foreign, foreign_kernels
from tilewright.sim.items import Items, items_for
from tilewright.sim.launch_control import launch_control
from tilewright.sim.model import (
    NO_OVERHEADS,
    ORDERS,
    SCHEDULERS,
    UNDISTURBED,
    Clc,
    Disturbance,
    Order,
    Overheads,
    Scheduler,
    WorkerClass,
)
from tilewright.sim.policies import Assigned, Counter, OneEach, Policy
from tilewright.sim.run import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    Cycles = NDArray[np.int64]


def simulate(
    scheduler: Scheduler,
    costs_cycles: ArrayLike,
    slots: int,
    *,
    workers: int | None = None,
    overheads: Overheads = NO_OVERHEADS,
    order: Order = "given",
    clc: Clc | None = None,
    disturbance: Disturbance = UNDISTURBED,
    classes: Sequence[WorkerClass] = (),
    record: bool = False,
) -> Run:
    """Run every tile once under a scheduler.

    Args:
        scheduler: who hands the tiles out.
        costs_cycles: cycles of each tile; rounded to whole cycles.
        slots: clusters that fit the device at once, before any carve-out.
        workers: persistent workers launched; as many as slots unless given. More than slots means that
            the rest start when others exit. `single_tile` and `clc` launch one cluster a tile.
        overheads: what the kernel spends beside its tiles.
        order: "longest-first" hands tiles out by falling cost, ties as given.
        clc: how `clc` workers ask.
        disturbance: other kernels, declined requests, an SM budget.
        classes: slots that are faster or slower than the rest.
        record: keep CLC requests, and the launches of `single_tile`, for `Run.events`.

    Raises:
        UnknownName: no such scheduler or order.
        BadInput: a cost is negative or not finite, there is no slot, or work is left that never runs.
    """
    _check_names(scheduler, order)
    costs = _whole_cycles(costs_cycles)
    slots = _slots_left(slots, disturbance)
    persistent = _at_least_one("workers", slots if workers is None else workers)
    items = items_for(scheduler, costs, order, persistent, overheads.fixup_cycles)
    speeds = _speeds(slots, classes)
    durations = {
        percent: -(-items.cost_cycles * percent // 100) + overheads.tile_overhead_cycles
        for percent in set(speeds)
    }
    waiting: list[Foreign] = []
    foreign = foreign_kernels(disturbance)
    policy: Policy
    if scheduler == "clc":
        policy = launch_control(
            slots,
            len(items.tile),
            overheads,
            clc or Clc(),
            disturbance,
            waiting,
            record=record,
        )
    elif scheduler == "single_tile":
        policy = OneEach(slots, len(items.tile), overheads, waiting)
    elif scheduler == "dynamic_atomic":
        policy = Counter(slots, len(items.tile), persistent, overheads)
    else:
        policy = Assigned(slots, items.shares, overheads)
    as_lists = {percent: column.tolist() for percent, column in durations.items()}
    engine = Engine(
        [as_lists[percent] for percent in speeds],
        policy,
        foreign,
        waiting,
        overheads.launch_stagger_cycles,
    )
    engine.run()
    return _finished(
        scheduler, costs, items, durations, speeds, engine, policy, foreign, record=record
    )


def _finished(
    scheduler: Scheduler,
    costs: Cycles,
    items: Items,
    durations: dict[int, Cycles],
    speeds: list[int],
    engine: Engine,
    policy: Policy,
    foreign: Sequence[Foreign],
    *,
    record: bool,
) -> Run:
    """The engine's columns, with the tiles' own numbers."""
    item, slot, start = (
        np.frombuffer(column, dtype=np.int64)
        for column in (engine.items, engine.slots_of, engine.starts)
    )
    end = start + _durations_of(item, slot, durations, speeds)
    launches, exits = engine.launches, engine.exits
    if scheduler == "single_tile":  # each row is a worker of its own
        launches = _moments(start - policy.lead[0], slot) if record else []
        exits = _moments(end, slot) if record else []
    return Run(
        scheduler=scheduler,
        slots=len(speeds),
        costs_cycles=costs,
        tile=items.tile[item],
        slot=slot,
        start_cycles=start,
        end_cycles=end,
        launches=tuple(launches),
        exits=tuple(exits),
        requests=tuple(
            request._replace(item=int(items.tile[request.item])) if request.item >= 0 else request
            for request in (policy.requests if record else ())
        ),
        holds=tuple(hold for kernel in foreign for hold in kernel.holds),
    )


def _moments(times: Cycles, slots: Cycles) -> list[Launch]:
    """The launch or the exit of each row's own worker."""
    pairs = zip(times.tolist(), slots.tolist(), strict=True)
    return [Launch(time, slot, row) for row, (time, slot) in enumerate(pairs)]


def _durations_of(
    item: Cycles, slot: Cycles, durations: dict[int, Cycles], speeds: list[int]
) -> Cycles:
    if len(durations) == 1:
        return next(iter(durations.values()))[item]
    speed = np.array(speeds, dtype=np.int64)[slot]
    took = np.zeros(len(item), dtype=np.int64)
    for percent, column in durations.items():
        mine = speed == percent
        took[mine] = column[item[mine]]
    return took


def _check_names(scheduler: str, order: str) -> None:
    if scheduler not in SCHEDULERS:
        raise UnknownName("scheduler", scheduler, SCHEDULERS)
    if order not in ORDERS:
        raise UnknownName("order", order, ORDERS)


def _whole_cycles(costs_cycles: ArrayLike) -> Cycles:
    costs = np.asarray(costs_cycles, dtype=np.float64)
    if costs.ndim != 1:
        raise BadInput(
            f"tile costs have shape {costs.shape}; a flat list is needed", given=costs.shape
        )
    bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0) & (costs < 2**52)))
    if len(bad):
        at = int(bad[0])
        raise BadInput(
            f"tile {at} costs {costs[at]:g} cycles; finite costs of at least 0 are needed",
            given=costs[at],
            allowed="0 to 2**52 cycles",
        )
    return np.rint(costs).astype(np.int64)


def _slots_left(slots: int, disturbance: Disturbance) -> int:
    return _at_least_one("slots after the carve-out", slots - disturbance.carve_out_slots)


def _at_least_one(name: str, count: int) -> int:
    if count < 1:
        raise BadInput(f"{count} {name}; at least 1 is needed", given=count, allowed=">= 1")
    return count


def _speeds(slots: int, classes: Sequence[WorkerClass]) -> list[int]:
    """The time_percent of each slot."""
    speeds = [kind.time_percent for kind in classes for _ in range(kind.count)]
    if len(speeds) > slots:
        raise BadInput(
            f"worker classes fill {len(speeds)} slots; there are {slots}",
            given=len(speeds),
            allowed=f"<= {slots}",
        )
    return speeds + [100] * (slots - len(speeds))

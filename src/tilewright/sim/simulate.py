"""`simulate`: tile costs and slots in, a finished `Run` out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import BadInput, UnknownName
from tilewright.sim.engine import Engine, Launch
from tilewright.sim.foreign import foreign_kernels
from tilewright.sim.items import Items, items_for
from tilewright.sim.launch_control import launch_control
from tilewright.sim.model import (
    MOST_CYCLES,
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
from tilewright.sim.policies import Assigned, Dispatch, Policy, Queue, Request
from tilewright.sim.run import Run

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import ArrayLike, NDArray

    from tilewright.sim.foreign import Foreign

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
        record: keep requests for work, and the launches of `single_tile`, for `Run.events`.

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
    by_speed = {
        percent: -(-items.cost_cycles * percent // 100) + overheads.tile_overhead_cycles
        for percent in set(speeds)
    }
    durations = [by_speed[percent] for percent in speeds]
    waiting: list[Foreign] = []
    policy: Policy
    if scheduler == "clc":
        asking = clc or Clc()
        policy = launch_control(durations, overheads, asking, disturbance, waiting, record=record)
    elif scheduler == "single_tile":
        policy = Dispatch(durations, overheads, waiting)
    elif scheduler == "dynamic_atomic":
        policy = Queue(durations, overheads, persistent)
    else:
        policy = Assigned(durations, overheads, items.shares)
    foreign = foreign_kernels(disturbance)
    engine = Engine(policy, foreign, waiting, overheads.launch_stagger_cycles)
    engine.run()
    run = _finished(scheduler, costs, items, durations, engine, policy)
    return _recorded(run, items, policy, overheads) if record else run


def _finished(
    scheduler: Scheduler,
    costs: Cycles,
    items: Items,
    durations: Sequence[Cycles],
    engine: Engine,
    policy: Policy,
) -> Run:
    """The engine's rows, with the tiles' own numbers."""
    item = np.frombuffer(policy.items, dtype=np.int64)
    moment = np.frombuffer(policy.begun, dtype=np.int64)
    slot = moment & (1 << policy.bits) - 1
    start = moment >> policy.bits
    alone = scheduler == "single_tile"  # there each row is a worker of its own
    return Run(
        scheduler=scheduler,
        slots=policy.slots,
        costs_cycles=costs,
        tile=items.tile[item],
        slot=slot,
        start_cycles=start,
        end_cycles=start + _durations_of(item, slot, durations),
        launches=() if alone else tuple(engine.launches),
        exits=() if alone else tuple(engine.exits),
        holds=engine.holds(),
    )


def _recorded(run: Run, items: Items, policy: Policy, overheads: Overheads) -> Run:
    """The run with its requests, by tile, and with the workers of `single_tile`."""
    if run.scheduler == "dynamic_atomic":
        return replace(run, requests=tuple(_draws(run, overheads.fetch_cycles)))
    requests = tuple(
        request._replace(item=int(items.tile[request.item])) if request.item >= 0 else request
        for request in policy.requests
    )
    if run.scheduler != "single_tile":
        return replace(run, requests=requests)
    launched = run.start_cycles - overheads.prologue_cycles
    return replace(
        run, launches=_moments(launched, run.slot), exits=_moments(run.end_cycles, run.slot)
    )


def _draws(run: Run, fetch_cycles: int) -> Iterator[Request]:
    """Each tile but a worker's first is drawn as the worker is done with the one before."""
    drawn: Counter[int] = Counter()
    begun: set[int] = set()
    columns = (run.worker, run.slot, run.start_cycles, run.tile)
    for worker, slot, start, tile in zip(*(column.tolist() for column in columns), strict=True):
        if worker in begun:
            yield Request(start - fetch_cycles, slot, worker, drawn[worker], tile)
            drawn[worker] += 1
        begun.add(worker)


def _moments(times: Cycles, slots: Cycles) -> tuple[Launch, ...]:
    """The launch or the exit of each row's own worker."""
    pairs = zip(times.tolist(), slots.tolist(), strict=True)
    return tuple(Launch(time, slot, row) for row, (time, slot) in enumerate(pairs))


def _durations_of(item: Cycles, slot: Cycles, durations: Sequence[Cycles]) -> Cycles:
    """What each row took in its slot."""
    took = np.empty(len(item), dtype=np.int64)
    for column in {id(column): column for column in durations}.values():
        mine = np.array([other is column for other in durations])[slot]
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
    bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if len(bad):
        at = int(bad[0])
        raise BadInput(
            f"tile {at} costs {costs[at]:g} cycles; finite costs of at least 0 are needed",
            given=costs[at],
            allowed="0 or more cycles",
        )
    if costs.sum() > MOST_CYCLES:
        raise BadInput(
            f"the tiles cost {costs.sum():g} cycles in all; at most {MOST_CYCLES} can be simulated",
            given=costs.sum(),
            allowed=f"<= {MOST_CYCLES}",
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

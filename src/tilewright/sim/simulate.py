"""`simulate`: tile costs and slots in, a finished `Run` out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tilewright.errors import BadInput, UnknownName
from tilewright.sim.engine import Engine
from tilewright.sim.foreign import Foreign, foreign_kernels
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
from tilewright.sim.policies import Assigned, Counter, LaunchControl, OneEach, Policy
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
        costs_cycles: cycles of each tile; rounded to whole cycles.
        slots: clusters that fit the device at once, before any carve-out.
        workers: persistent workers launched; as many as slots unless given. More than slots means that
            the rest start when others exit. `single_tile` and `clc` launch one cluster a tile.
        order: "longest-first" hands tiles out by falling cost, ties as given.
        record: keep CLC requests for `Run.events`.
    Raises:
        UnknownName: no such scheduler or order.
        BadInput: a cost is negative or not finite, there is no slot, or work is left that never runs.
    """
    _check_names(scheduler, order)
    costs = _whole_cycles(costs_cycles)
    slots = _slots_left(slots, disturbance)
    persistent = slots if workers is None else workers
    if persistent < 1:
        raise BadInput(f"{persistent} workers; at least 1 is needed", given=persistent)

    tile_of, item_costs = _items(scheduler, costs, order, persistent, overheads)
    item_costs = item_costs + overheads.tile_overhead_cycles
    speeds = _speeds(slots, classes)
    scaled = {p: -(-item_costs * p // 100) for p in set(speeds)}
    lists: dict[int, list[int]] = {p: c.tolist() for p, c in scaled.items()}

    waiting: list[Foreign] = []
    foreign = foreign_kernels(disturbance)
    policy: Policy
    if scheduler == "clc":
        policy = LaunchControl(
            slots, len(tile_of), overheads, clc or Clc(), disturbance, waiting, record=record
        )
    elif scheduler == "single_tile":
        policy = OneEach(slots, len(tile_of), overheads, waiting)
    elif scheduler == "dynamic_atomic":
        policy = Counter(slots, len(tile_of), persistent, overheads)
    else:
        shares = _shares(scheduler, costs, item_costs - overheads.tile_overhead_cycles, persistent)
        policy = Assigned(slots, shares, overheads)

    engine = Engine(
        [lists[p] for p in speeds], policy, foreign, waiting, overheads.launch_stagger_cycles
    )
    engine.run()
    return _finished(scheduler, costs, tile_of, scaled, speeds, engine, policy, foreign, overheads)

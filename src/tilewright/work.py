"""Work: what a scheduler is given, whatever the problem was, and what it makes of it.

Matrix products, attention and tile lists all end as costs of cluster tiles in launch order on a number
of slots. One tile a cluster pays fill and epilogue in every tile; a persistent kernel pays them once, at
its start and its end. `kernel_us` counts both, so that schedulers can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tilewright.sim import (
    UNDISTURBED,
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

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from tilewright.device import Device


SIMULATED_TILES = 200_000
"""Tiles that a plan simulates one by one; `tilewright simulate` has no such limit."""

UNEQUAL = 0.05
"""Relative spread of tile costs from which their order is worth choosing."""


@dataclass(frozen=True)
class Work:
    """Tiles of clusters in launch order, and the slots they run on.

    Attributes:
        alone_cycles: cost of each tile when a cluster does only that one.
        persistent_cycles: cost of each tile inside a persistent loop.
        slots: resident clusters.
        start_cycles: before the first tile of a persistent kernel.
        drain_cycles: after its last.
        overheads: of the schedulers, in cycles.
        clock_mhz: cycles a microsecond.
        clc_depth: requests that a worker keeps ahead.
    """

    alone_cycles: NDArray[np.float64]
    persistent_cycles: NDArray[np.float64]
    slots: int
    start_cycles: float
    drain_cycles: float
    overheads: Overheads
    clock_mhz: float
    clc_depth: int = 1

    @property
    def num_tiles(self) -> int:
        """Cluster tiles."""
        return len(self.persistent_cycles)

    @property
    def uniform(self) -> bool:
        """Every tile costs the same to within a part in a thousand."""
        costs = self.persistent_cycles
        return not len(costs) or float(np.ptp(costs)) <= 1e-3 * float(costs.max())

    @property
    def spread(self) -> float:
        """Standard deviation of the tile costs over their mean."""
        costs = self.persistent_cycles
        mean = float(costs.mean()) if len(costs) else 0.0
        return float(costs.std()) / mean if mean else 0.0

    def run(
        self,
        scheduler: Scheduler,
        *,
        order: Order = "given",
        disturbance: Disturbance = UNDISTURBED,
        record: bool = False,
    ) -> Outcome:
        """Simulate one scheduler.

        Of more than `SIMULATED_TILES` tiles the last are simulated; those before them, whole waves, count
        as spread evenly over the slots.
        """
        alone = scheduler == "single_tile"
        costs = self.alone_cycles if alone else self.persistent_cycles
        waves = max(0, len(costs) - SIMULATED_TILES) // self.slots
        if waves and order == "longest-first":
            costs = np.sort(costs)[::-1]
        before, costs = np.split(costs, [waves * self.slots])
        run = simulate(
            scheduler,
            costs,
            self.slots,
            overheads=self.overheads,
            order=order,
            clc=Clc(depth=self.clc_depth),
            disturbance=disturbance,
            record=record,
        )
        found = metrics(run, self.clock_mhz)
        if waves:
            between = _cycles_between(scheduler, self.overheads) * len(before)
            spread = (float(before.sum()) + between) / self.slots / self.clock_mhz
            found = _lengthened(found, spread, float(before.sum()) / self.clock_mhz, waves)
        around = 0.0 if alone or not self.num_tiles else self.start_cycles + self.drain_cycles
        return Outcome(scheduler, found, found.makespan_us + around / self.clock_mhz, run, order)

    def run_all(
        self, schedulers: Iterable[Scheduler], *, disturbance: Disturbance = UNDISTURBED
    ) -> dict[Scheduler, Outcome]:
        """Simulate several schedulers on the same tiles."""
        return {name: self.run(name, disturbance=disturbance) for name in schedulers}

    def resized(self, count: int) -> Work:
        """The same list cut or repeated to `count` tiles."""
        return replace(
            self,
            alone_cycles=np.resize(self.alone_cycles[:count], count),
            persistent_cycles=np.resize(self.persistent_cycles[:count], count),
        )

    def compare(self, dynamic: Scheduler, only: Scheduler | None = None) -> list[Outcome]:
        """The three schedulers that a decision is between; unequal tiles also longest first.

        Args:
            dynamic: the device's dynamic scheduler.
            only: the user's choice, in place of the three.
        """
        names: tuple[Scheduler, ...] = ("single_tile", "static", dynamic)
        if only is not None:
            names = (only,)
        outcomes = [self.run(name) for name in names]
        if self.spread > UNEQUAL:
            persistent = [name for name in names if name != "single_tile"]
            outcomes += [self.run(name, order="longest-first") for name in persistent]
        return outcomes

    def jittered(self, spread: float, seed: int = 0) -> Work:
        """The same tiles with random costs: lognormal factors of mean 1 and this relative spread.

        Of very long lists only the part that is simulated.
        """
        rng = np.random.default_rng(seed)
        sigma = float(np.sqrt(np.log1p(spread**2)))
        factor = np.ones(self.num_tiles)
        simulated = min(self.num_tiles, SIMULATED_TILES + self.slots)
        factor[-simulated:] = rng.lognormal(-0.5 * sigma**2, sigma, simulated)
        return replace(
            self,
            alone_cycles=self.alone_cycles * factor,
            persistent_cycles=self.persistent_cycles * factor,
        )


def _cycles_between(scheduler: Scheduler, overheads: Overheads) -> int:
    """What a scheduler spends a tile beside the tile."""
    if scheduler == "single_tile":
        return (
            overheads.turnover_cycles + overheads.prologue_cycles + overheads.tile_overhead_cycles
        )
    fetch = overheads.fetch_cycles if scheduler == "dynamic_atomic" else 0
    return overheads.tile_overhead_cycles + fetch


def _lengthened(found: Metrics, span_us: float, work_us: float, waves: int) -> Metrics:
    """The metrics of a run before which `waves` even waves took `span_us` and held `work_us` of tiles."""
    makespan = found.makespan_us + span_us
    bound = found.bound_work_us + work_us / found.workers
    return replace(
        found,
        makespan_us=makespan,
        efficiency=bound / makespan,
        tail_fraction=found.tail_us / makespan,
        tiles_max=found.tiles_max + waves,
        tiles_min=found.tiles_min + waves,
        bound_work_us=bound,
    )


@dataclass(frozen=True)
class Outcome:
    """One scheduler's run.

    Attributes:
        kernel_us: from the start of the first cluster to the end of the last, without launch latency.
    """

    scheduler: Scheduler
    metrics: Metrics
    kernel_us: float
    run: Run
    order: Order = "given"


def dynamic_scheduler(device: Device) -> Scheduler:
    """The dynamic scheduler that a device has: CLC where it exists, an atomic counter elsewhere."""
    return "clc" if device.clc else "dynamic_atomic"

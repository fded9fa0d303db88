"""Fit the scheduler overheads that no micro-benchmark isolates, from measured launches of spinning tiles.

At most four values of a device, the same for all launches. The cluster barrier and the interval between two
CTA launches are taken as measured. The fit minimises the mean absolute relative error of the makespan, by
reweighted least squares on finite differences. Nothing here needs a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.schedule import overheads_for
from tilewright.sim import Busy, Disturbance, simulate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.sim import Scheduler

FITTED: dict[str, float] = {
    "tile_overhead_cycles": 100.0,
    "cluster_tile_cycles": 500.0,
    "queue_fetch_cycles": 1000.0,
    "cta_turnover_cycles": 1000.0,
}
"""Device values that are fitted, and where the search starts."""

STEP_CYCLES = 40.0
ITERATIONS = 15
GRAIN_CYCLES = 5.0
"""Fitted values are rounded to this: less than the launches' spread tells apart."""


@dataclass(frozen=True, slots=True)
class Launch:
    """One measured launch.

    Attributes:
        tiles: cost of each tile in cycles, in order.
        makespan_us: from the first tile's start to the last one's end.
        busy_sms: SMs that another kernel held.
    """

    scheduler: Scheduler
    tiles: tuple[int, ...]
    cluster: int
    resident_clusters: int
    makespan_us: float
    prologue_cycles: int = 0
    busy_sms: int = 0


def simulated_us(launch: Launch, device: Device) -> float:
    """What the simulator says of a measured launch."""
    run = simulate(
        launch.scheduler,
        launch.tiles,
        launch.resident_clusters,
        overheads=overheads_for(device, launch.cluster, launch.prologue_cycles),
        disturbance=Disturbance(busy=(Busy(slots=launch.busy_sms),)),
    )
    return device.cycles_to_us(run.makespan_cycles)


def errors_of(launches: Sequence[Launch], device: Device) -> NDArray[np.float64]:
    """Relative errors of the simulated makespans."""
    return np.array([simulated_us(each, device) / each.makespan_us - 1 for each in launches])


def fit_overheads(launches: Sequence[Launch], device: Device) -> dict[str, float]:
    """The fitted overheads, to 5 cycles.

    Those that the launches do not show keep the device's value: what a cluster costs without a launch of
    one, a counter's fetch without `dynamic_atomic`.
    """
    shown = [name for name in FITTED if _shows(launches, name)]
    values = np.array([FITTED[name] for name in shown])

    def at(point: NDArray[np.float64]) -> NDArray[np.float64]:
        changed: dict[str, Any] = dict(zip(shown, point.tolist(), strict=True))
        return errors_of(launches, replace(device, **changed))

    for _ in range(ITERATIONS):
        here = at(values)
        steps = np.eye(len(shown)) * STEP_CYCLES
        slopes = [(at(values + step) - here) / STEP_CYCLES for step in steps]
        weight = np.sqrt(1 / np.maximum(np.abs(here), 1e-3))
        step, *_ = np.linalg.lstsq((np.array(slopes) * weight).T, -here * weight, rcond=None)
        values = np.maximum(values + step, 0.0)
    rounded = GRAIN_CYCLES * np.round(values / GRAIN_CYCLES)
    return dict(zip(shown, rounded.tolist(), strict=True))


def _shows(launches: Sequence[Launch], name: str) -> bool:
    if name == "cluster_tile_cycles":
        return any(launch.cluster > 1 for launch in launches)
    if name == "queue_fetch_cycles":
        return any(launch.scheduler == "dynamic_atomic" for launch in launches)
    if name == "cta_turnover_cycles":
        return any(launch.scheduler in {"single_tile", "clc"} for launch in launches)
    return True

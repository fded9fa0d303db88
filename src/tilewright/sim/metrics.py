"""Tail and fairness of a run, as the design defines them.

For W workers, which are the slots that this kernel could use at some time of the run:
`efficiency` is Σ cost / (W · makespan); `tail_us` runs from the first moment a worker is idle for good
to the end (a slot that never ran a tile is idle from the start); `fairness` is Jain's index of the
workers' busy times, (Σ x)² / (W · Σ x²); `drift_us` is the spread of finish times over the slots that
ran anything. A run of no tiles took no time, perfectly.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.sim.run import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """How a run went.

    Attributes:
        tiles_max, tiles_min: tiles (pieces for `stream_k`) of the busiest and the idlest worker.
        bound_work_us: Σ cost / W, which no schedule can beat.
        bound_tile_us: the longest tile, which no schedule that does not cut tiles can beat.
    """

    makespan_us: float
    efficiency: float
    tail_us: float
    tail_fraction: float
    fairness: float
    drift_us: float
    tiles_max: int
    tiles_min: int
    bound_work_us: float
    bound_tile_us: float
    workers: int

    def as_dict(self) -> dict[str, float | int]:
        """The same as a JSON object."""
        return asdict(self)


def metrics(run: Run, clock_mhz: float) -> Metrics:
    """The metrics of a run at an SM clock.

    Args:
        run: a finished run.
        clock_mhz: cycles a microsecond.
    """
    workers = int(run.usable.sum())
    makespan = run.makespan_cycles
    work = int(run.costs_cycles.sum())
    tiles = np.bincount(run.slot, minlength=run.slots)
    busy = np.bincount(run.slot, weights=run.end_cycles - run.start_cycles, minlength=run.slots)
    finish = _finish(run)
    tail = run.last_end_cycles - int(finish[run.usable].min(initial=run.last_end_cycles))
    squares = float(np.square(busy).sum())
    return Metrics(
        makespan_us=makespan / clock_mhz,
        efficiency=work / (workers * makespan) if makespan else 1.0,
        tail_us=tail / clock_mhz,
        tail_fraction=tail / makespan if makespan else 0.0,
        fairness=float(busy.sum()) ** 2 / (workers * squares) if squares else 1.0,
        drift_us=int(np.ptp(finish[tiles > 0])) / clock_mhz if len(run.tile) else 0.0,
        tiles_max=int(tiles.max()),
        tiles_min=int(tiles[run.usable].min(initial=int(tiles.max()))),
        bound_work_us=work / max(workers, 1) / clock_mhz,
        bound_tile_us=int(run.costs_cycles.max(initial=0)) / clock_mhz,
        workers=workers,
    )


def _finish(run: Run) -> NDArray[np.int64]:
    """The last end in each slot; the first start of the run where nothing ran."""
    finish = np.full(run.slots, run.first_start_cycles, dtype=np.int64)
    np.maximum.at(finish, run.slot, run.end_cycles)
    return finish

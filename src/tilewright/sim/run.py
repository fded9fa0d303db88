"""A finished run: columns, and the events read from them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tilewright.sim.engine import Launch
    from tilewright.sim.foreign import Hold
    from tilewright.sim.model import Scheduler
    from tilewright.sim.policies import Request

EventKind = Literal[
    "foreign_end",
    "foreign_start",
    "tile_end",
    "exit",
    "launch",
    "tile_start",
    "granted",
    "declined",
]
_RANK: dict[str, int] = {
    kind: rank
    for rank, kind in enumerate(
        (
            "foreign_end",
            "tile_end",
            "exit",
            "foreign_start",
            "launch",
            "tile_start",
            "granted",
            "declined",
        )
    )
}


class Event(NamedTuple):
    """Something that happened at `time_cycles` after launch.

    `worker` and `tile` are -1 where they do not apply: a foreign kernel has neither, and the
    coordinates of a declined request mean nothing.
    """

    time_cycles: int
    kind: EventKind
    slot: int
    worker: int
    tile: int


@dataclass(frozen=True, eq=False)
class Run:
    """What happened: a row in `tile`, `slot`, `start_cycles`, `end_cycles` for each tile that ran.

    For `stream_k` a row is a piece, and a tile that was cut has several. Rows are in the order in
    which the work was handed out.

    Attributes:
        costs_cycles: the tiles' costs as they were given, in the order given.
        launches, exits: of workers; for `single_tile` only when the run was recorded.
        requests: for work, only when the run was recorded.
        holds: slots in foreign hands.
    """

    scheduler: Scheduler
    slots: int
    costs_cycles: NDArray[np.int64]
    tile: NDArray[np.int64]
    slot: NDArray[np.int64]
    start_cycles: NDArray[np.int64]
    end_cycles: NDArray[np.int64]
    launches: tuple[Launch, ...] = ()
    exits: tuple[Launch, ...] = ()
    requests: tuple[Request, ...] = ()
    holds: tuple[Hold, ...] = ()

    @cached_property
    def first_start_cycles(self) -> int:
        """When the first tile started; 0 when there is none."""
        return int(self.start_cycles.min()) if len(self.tile) else 0

    @cached_property
    def last_end_cycles(self) -> int:
        """When the last tile ended; 0 when there is none."""
        return int(self.end_cycles.max()) if len(self.tile) else 0

    @property
    def makespan_cycles(self) -> int:
        """From the first tile's start to the last tile's end: launch and first prologue left out."""
        return self.last_end_cycles - self.first_start_cycles

    @property
    def priority_start_cycles(self) -> list[int]:
        """When clusters of priority kernels got their slots."""
        return [hold.start_cycles for hold in self.holds if hold.has_priority]

    @cached_property
    def worker(self) -> NDArray[np.int64]:
        """The worker of each row, numbered in launch order."""
        if self.scheduler == "single_tile":
            return np.arange(len(self.tile), dtype=np.int64)
        launches = np.array(self.launches, dtype=np.int64).reshape(-1, 3)
        by_slot = launches[np.lexsort((launches[:, 0], launches[:, 1]))]
        horizon = self.last_end_cycles + 1
        entered = by_slot[:, 1] * horizon + np.minimum(by_slot[:, 0], horizon - 1)
        rows = self.slot * horizon + self.start_cycles
        found: NDArray[np.int64] = by_slot[np.searchsorted(entered, rows, side="right") - 1, 2]
        return found

    @cached_property
    def usable(self) -> NDArray[np.bool_]:
        """The slots that count as workers: all but those in foreign hands for the whole run."""
        usable = np.ones(self.slots, dtype=bool)
        for hold in self.holds:
            begins = hold.start_cycles <= self.first_start_cycles
            if begins and (hold.end_cycles is None or hold.end_cycles >= self.last_end_cycles):
                usable[hold.slot] = False
        usable[self.slot] = True
        return usable

    def events(self) -> Iterator[Event]:
        """All events in order of time; at equal times ends come before starts, then by slot.

        Made as they are read: a million tiles cost no memory until then.
        """
        columns = [
            self._rows("tile_start", self.start_cycles),
            self._rows("tile_end", self.end_cycles),
        ]
        columns.append(self._small_events())
        rows = np.concatenate(columns)
        kinds = tuple(_RANK)
        for time, rank, slot, worker, tile in rows[np.lexsort(rows.T[[2, 1, 0]])]:
            yield Event(int(time), kinds[rank], int(slot), int(worker), int(tile))

    def _rows(self, kind: EventKind, times: NDArray[np.int64]) -> NDArray[np.int64]:
        rank = np.full(len(times), _RANK[kind], dtype=np.int64)
        return np.stack([times, rank, self.slot, self.worker, self.tile], axis=1)

    def _small_events(self) -> NDArray[np.int64]:
        found = [(e.time_cycles, _RANK["launch"], e.slot, e.worker, -1) for e in self.launches]
        found += [(e.time_cycles, _RANK["exit"], e.slot, e.worker, -1) for e in self.exits]
        for ask in self.requests:
            kind = _RANK["declined" if ask.item < 0 else "granted"]
            found.append((ask.time_cycles, kind, ask.slot, ask.worker, ask.item))
        for hold in self.holds:
            found.append((hold.start_cycles, _RANK["foreign_start"], hold.slot, -1, -1))
            if hold.end_cycles is not None:
                found.append((hold.end_cycles, _RANK["foreign_end"], hold.slot, -1, -1))
        return np.array(found, dtype=np.int64).reshape(-1, 5)

"""Who runs which item next: one policy for each way of handing out work.

An item is a tile, or a piece of one for `stream_k`. A *moment* is one integer, `cycles << bits | slot`,
as the engine's heap holds it; it sorts by time and then by slot, and costs no tuple.

The engine asks a policy for two things. `launch` puts the next pending worker into an open slot and says
when that worker first asks for work, or `None` when nothing is pending. `advance` serves the workers in
the heap, earliest first, until the first moment is past a limit or its worker is done. Each policy has
a loop of its own there, because a call for each item would double the time of a long list.
"""

from __future__ import annotations

from array import array
from functools import cached_property
from heapq import heapreplace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.model import Overheads

    Cycles = NDArray[np.int64]

NONE = -1


class Request(NamedTuple):
    """One request for work, the `number`-th of its worker; granted when `item` is not -1.

    CLC's, or a draw from the counter of `dynamic_atomic`: for the first tile neither is needed, and the last draw of a
    worker, past the end, is not kept.
    """

    time_cycles: int
    slot: int
    worker: int
    number: int
    item: int


class Policy:
    """What the engine needs from a scheduler; its result is a row for each item begun.

    Attributes:
        items: the item of each row.
        begun: the moment, with the slot, at which it began.
        rows: how many there are.
        exit_gap_cycles: from a worker's end until its slot can be used again.
    """

    def __init__(self, durations: Sequence[Cycles], overheads: Overheads) -> None:
        """Set up for one run.

        Args:
            durations: for each slot, the cycles of each item there.
            overheads: of the kernel.
        """
        count = len(durations[0])
        self.slots = len(durations)
        self.bits = self.slots.bit_length()
        self.items, self.begun = array("q", bytes(8 * count)), array("q", bytes(8 * count))
        self.rows = 0
        self.launched = 0
        self.exit_gap_cycles = overheads.turnover_cycles
        self.requests: list[Request] = []
        self._durations = durations
        self._prologue = overheads.prologue_cycles << self.bits

    def launch(self, moment: int) -> int | None:
        """Put the next pending worker into the moment's slot; when it first asks, or None."""
        raise NotImplementedError

    def advance(self, heap: list[int], limit: int) -> None:
        """Hand out items until `heap[0]` is at or past `limit`, or its worker is done."""
        raise NotImplementedError

    def _moments(self, trail_cycles: int = 0, least_cycles: int = 0) -> list[list[int]]:
        """For each slot, the durations, at least some cycles, with a trail behind, shifted as moments are."""
        columns = {id(column): column for column in self._durations}
        shifted = {
            key: (np.maximum(column, least_cycles) + trail_cycles << self.bits).tolist()
            for key, column in columns.items()
        }
        return [shifted[id(column)] for column in self._durations]


class Assigned(Policy):
    """Persistent workers whose items are fixed at launch: `static`, `static_blocked`, `stream_k`.

    Nothing that happens later changes what a worker runs or when, so all its rows are written at its
    launch, and the moment that goes into the heap is its end.
    """

    def __init__(
        self, durations: Sequence[Cycles], overheads: Overheads, shares: Sequence[range]
    ) -> None:
        super().__init__(durations, overheads)
        counts = np.fromiter((len(share) for share in shares), np.int64, len(shares))
        lasts = np.cumsum(counts)
        self._firsts, self._lasts = (lasts - counts).tolist(), lasts.tolist()
        items = np.frombuffer(self.items, np.int64)
        items[:] = np.fromiter(chain.from_iterable(shares), np.int64, len(items))
        self._begun = np.frombuffer(self.begun, np.int64)
        columns = {id(column): column for column in durations}
        tables = {key: self._table(c[items], counts, lasts) for key, c in columns.items()}
        self._tables = [tables[id(column)] for column in durations]

    def _table(self, took: Cycles, counts: Cycles, lasts: Cycles) -> tuple[Cycles, list[int]]:
        """From a worker's first item: when each of its items begins, and when the worker ends."""
        ends = np.cumsum(took)
        whole = np.concatenate([[0], ends])[lasts]
        before = np.concatenate([[0], whole[:-1]])
        begins = ends - took - np.repeat(before, counts)
        return begins << self.bits, (whole - before << self.bits).tolist()

    def launch(self, moment: int) -> int | None:
        """The next worker, with its own share."""
        worker = self.launched
        if worker >= len(self._lasts):
            return None
        self.launched += 1
        first, self.rows = self._firsts[worker], self._lasts[worker]
        begins, ends = self._tables[moment & (1 << self.bits) - 1]
        start = moment + self._prologue
        self._begun[first : self.rows] = begins[first : self.rows] + start
        return start + ends[worker]

    def advance(self, heap: list[int], limit: int) -> None:
        """Nothing: a worker in the heap is at its end."""


class Queue(Policy):
    """Items in order to whoever asks first: `dynamic_atomic`, and `single_tile` below."""

    def __init__(self, durations: Sequence[Cycles], overheads: Overheads, workers: int) -> None:
        super().__init__(durations, overheads)
        self._workers = workers
        self._lead = overheads.fetch_cycles << self.bits
        self._trail_cycles = 0
        np.frombuffer(self.items, dtype=np.int64)[:] = np.arange(len(self.items))

    def launch(self, moment: int) -> int | None:
        """The next worker."""
        if self.launched >= self._workers:
            return None
        self.launched += 1
        return moment + self._prologue

    def advance(self, heap: list[int], limit: int) -> None:
        """The next item to the earliest worker, again and again."""
        begun, lead, mask = self.begun, self._lead, (1 << self.bits) - 1
        columns = self._took
        item, last = self.rows, self._closing()
        if columns[0] is columns[-1]:  # slots of one speed: the hot loop of long lists
            took = columns[0]
            while item < last and (moment := heap[0]) < limit:
                begun[item] = moment = moment + lead
                heapreplace(heap, moment + took[item])
                item += 1
        else:
            while item < last and (moment := heap[0]) < limit:
                begun[item] = moment = moment + lead
                heapreplace(heap, moment + columns[moment & mask][item])
                item += 1
        self.rows = item

    @cached_property
    def _took(self) -> list[list[int]]:
        return self._moments(self._trail_cycles)

    def _closing(self) -> int:
        """The first item that is not handed out for now."""
        return len(self.begun)


class Dispatch(Queue):
    """One cluster an item, launched by hardware in order: `single_tile`.

    A cluster's end and the next launch into its slot are one event here, so a worker in the heap is a
    slot that can be used again. It is left to a foreign kernel that waits for it.
    """

    def __init__(
        self, durations: Sequence[Cycles], overheads: Overheads, waiting: Sequence[Foreign]
    ) -> None:
        super().__init__(durations, overheads, workers=0)
        self._lead = overheads.prologue_cycles << self.bits
        self._trail_cycles = overheads.turnover_cycles
        self.exit_gap_cycles = 0
        self._waiting = waiting

    def launch(self, moment: int) -> int | None:
        """Open the slot while a cluster is pending; `advance` launches it."""
        return moment if self.rows < len(self.begun) else None

    def _closing(self) -> int:
        return self.rows if self._waiting else len(self.begun)

"""Who runs which tile next: one policy for each way of handing out work.

A policy is asked two things. `launch(slot, now)` puts the next pending worker into an open slot and
returns its number, or -1 when nothing is pending. `take(slot, now)` returns the item that the slot's
worker runs next, or -1 when the worker is done. Items are tiles, or pieces of tiles for `stream_k`.

The engine starts the item `lead[slot]` cycles after `take`, asks again `trail` cycles after its end,
but not before `ready[slot]`, and opens the slot `exit_gap` cycles after the worker is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.model import Overheads

DONE = -1


class Request(NamedTuple):
    """One CLC request, the `number`-th of its worker; granted when `item` is not -1."""

    time_cycles: int
    slot: int
    worker: int
    number: int
    item: int


class Policy(Protocol):
    """What the engine needs from a scheduler."""

    lead: list[int]
    ready: list[int]
    requests: list[Request]
    trail: int
    launch_delay: int
    exit_gap: int

    def launch(self, slot: int, now: int) -> int:
        """Put the next pending worker into `slot`; its number, or -1."""

    def take(self, slot: int, now: int) -> int:
        """The item that the worker in `slot` runs next, or -1."""


class Assigned:
    """Persistent workers whose items are fixed at launch: `static`, `static_blocked`, `stream_k`."""

    def __init__(self, slots: int, shares: Sequence[range], overheads: Overheads) -> None:
        self.lead = [0] * slots
        self.ready = [0] * slots
        self.requests: list[Request] = []
        self.trail = 0
        self.launch_delay = overheads.prologue_cycles
        self.exit_gap = overheads.turnover_cycles
        self._shares = shares
        self._left = [iter(range(0))] * slots
        self._launched = 0

    def launch(self, slot: int, now: int) -> int:  # noqa: ARG002 (the Policy signature)
        """The next worker, with its own share."""
        worker = self._launched
        if worker >= len(self._shares):
            return DONE
        self._launched += 1
        self._left[slot] = iter(self._shares[worker])
        return worker

    def take(self, slot: int, now: int) -> int:  # noqa: ARG002
        """The next item of the worker's own share."""
        return next(self._left[slot], DONE)


class Counter:
    """Persistent workers that draw from one global counter: `dynamic_atomic`."""

    def __init__(self, slots: int, items: int, workers: int, overheads: Overheads) -> None:
        self.lead = [overheads.fetch_cycles] * slots
        self.ready = [0] * slots
        self.requests: list[Request] = []
        self.trail = 0
        self.launch_delay = overheads.prologue_cycles
        self.exit_gap = overheads.turnover_cycles
        self._items = iter(range(items))
        self._workers = iter(range(workers))

    def launch(self, slot: int, now: int) -> int:  # noqa: ARG002
        """The next worker."""
        return next(self._workers, DONE)

    def take(self, slot: int, now: int) -> int:  # noqa: ARG002
        """The next item of all."""
        return next(self._items, DONE)


class OneEach:
    """One cluster an item, dispatched by hardware in order: `single_tile`.

    A worker's end and the next launch are one event here: `take` is asked when the slot can be used
    again, and leaves the slot to a foreign kernel that waits for it.
    """

    def __init__(
        self, slots: int, items: int, overheads: Overheads, waiting: Sequence[Foreign]
    ) -> None:
        self.lead = [overheads.prologue_cycles] * slots
        self.ready = [0] * slots
        self.requests: list[Request] = []
        self.trail = overheads.turnover_cycles
        self.launch_delay = 0
        self.exit_gap = 0
        self._items = items
        self._next = 0
        self._waiting = waiting

    def launch(self, slot: int, now: int) -> int:  # noqa: ARG002
        """Say whether a cluster is pending; `take` launches it."""
        return self._next if self._next < self._items else DONE

    def take(self, slot: int, now: int) -> int:  # noqa: ARG002
        """Launch the next cluster into the slot."""
        item = self._next
        if item >= self._items or self._waiting:
            return DONE
        self._next = item + 1
        return item

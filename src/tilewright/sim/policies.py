"""Who runs which tile next: one policy for each way of handing out work.

A policy is asked two things. `launch(slot, now)` puts the next pending worker into an open slot and
returns its number, or -1 when nothing is pending. `take(slot, now)` returns the item that the slot's
worker runs next, or -1 when the worker is done. Items are tiles, or pieces of tiles for `stream_k`.

The engine starts the item `lead[slot]` cycles after `take`, asks again `trail` cycles after its end,
but not before `ready[slot]`, and opens the slot `exit_gap` cycles after the worker is done.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.model import Clc, Disturbance, Overheads

DONE = -1


class Request(NamedTuple):
    """One CLC request: granted when `item` is not -1. The coordinates of a declined one mean nothing."""

    time_cycles: int
    slot: int
    worker: int
    index: int
    item: int


class Policy(Protocol):
    """What the engine needs from a scheduler."""

    lead: list[int]
    ready: list[int]
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


class LaunchControl:
    """Cluster launch control: the grid covers all items and workers cancel pending clusters.

    A request claims the first pending cluster when it is issued; the response takes the latency.
    A declined worker stops asking, runs what it holds and exits; what is still pending launches
    into the slots that open, and such a cluster asks like any other.
    """

    def __init__(
        self,
        slots: int,
        items: int,
        overheads: Overheads,
        clc: Clc,
        disturbance: Disturbance,
        waiting: Sequence[Foreign],
        *,
        record: bool,
    ) -> None:
        self.lead = [0] * slots
        self.ready = [0] * slots
        self.trail = 0
        self.launch_delay = overheads.prologue_cycles
        self.exit_gap = overheads.turnover_cycles
        self.requests: list[Request] | None = [] if record else None
        self._latency = overheads.clc_latency_cycles
        self._ahead = clc.ahead
        self._items = items
        self._next = 0
        self._held: list[deque[tuple[int, int]]] = [deque() for _ in range(slots)]
        self._asking = [False] * slots
        self._asked = [0] * slots
        self._worker = [DONE] * slots
        self._launched = 0
        self._waiting = waiting
        self._why_not = disturbance
        self._random = Random(disturbance.seed)  # noqa: S311 (a simulation)
        self._calm = not (
            disturbance.declined
            or disturbance.decline_probability
            or disturbance.decline_windows
            or disturbance.priority
            or record
        )

    def launch(self, slot: int, now: int) -> int:
        """Launch the first pending cluster; its item is its own, with no request."""
        if self._next >= self._items:
            return DONE
        self._held[slot].append((self._next, now))
        self._next += 1
        self._asking[slot] = True
        self._asked[slot] = 0
        self.lead[slot] = 0
        worker = self._worker[slot] = self._launched
        self._launched = worker + 1
        return worker

    def take(self, slot: int, now: int) -> int:
        """Run the oldest claim, and ask for more where the settings say so."""
        held = self._held[slot]
        if not held and self._asking[slot]:  # only when nothing is held ahead: ask now, then wait
            self._ask(slot, now)
            self.lead[slot] = self._latency
        if not held:
            return DONE
        item = held.popleft()[0]
        while len(held) < self._ahead and self._asking[slot]:
            self._ask(slot, now)
        self.ready[slot] = held[0][1] if held else 0
        return item

    def _ask(self, slot: int, now: int) -> None:
        granted = self._next < self._items and (self._calm or self._is_granted(slot, now))
        item = DONE
        if granted:
            item = self._next
            self._next = item + 1
            self._held[slot].append((item, now + self._latency))
        else:
            self._asking[slot] = False
        if self.requests is not None:
            self.requests.append(Request(now, slot, self._worker[slot], self._asked[slot], item))
        self._asked[slot] += 1

    def _is_granted(self, slot: int, now: int) -> bool:
        why = self._why_not
        chance = why.decline_probability
        return not (
            any(foreign.has_priority for foreign in self._waiting)
            or (self._worker[slot], self._asked[slot]) in why.declined
            or any(begin <= now < end for begin, end in why.decline_windows)
            or (chance and self._random.random() < chance)
        )

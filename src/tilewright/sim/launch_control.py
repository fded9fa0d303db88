"""Cluster launch control: the grid covers all items, and workers cancel pending clusters.

A request claims the first pending cluster when it is issued; the response takes the latency, and the
claim can be run from then on. A declined worker stops asking, runs what it holds and exits; what is
still pending launches into the slots that open, and such a cluster asks like any other. So a
declined request never loses an item, and never means that none is left.

Left out: requests that overtake each other on their way to the hardware.
"""

from __future__ import annotations

from collections import deque
from heapq import heapreplace
from random import Random
from typing import TYPE_CHECKING

from tilewright.sim.policies import NONE, Policy, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.model import Clc, Disturbance, Overheads
    from tilewright.sim.policies import Cycles


def launch_control(
    durations: Sequence[Cycles],
    overheads: Overheads,
    clc: Clc,
    disturbance: Disturbance,
    waiting: Sequence[Foreign],
    *,
    record: bool,
) -> Policy:
    """The policy for these settings: the quick one where nothing can decline a request early."""
    declines = (
        disturbance.declined
        or disturbance.decline_probability
        or disturbance.decline_windows
        or disturbance.priority
    )
    if clc.ahead == 1 and not declines and not record:
        return QuickLaunchControl(durations, overheads)
    return LaunchControl(durations, overheads, clc, disturbance, waiting)


class QuickLaunchControl(Policy):
    """`LaunchControl` with one claim ahead, requests granted while anything is pending, no record.

    The common case of long lists, in a third of the time. It runs the same items at the same times.
    """

    def __init__(self, durations: Sequence[Cycles], overheads: Overheads) -> None:
        super().__init__(durations, overheads)
        self._next = 0
        self._claim = [NONE] * self.slots
        # a worker's next tile waits for its end and for the response that was asked for at its start
        self._took = self._moments(least_cycles=overheads.clc_latency_cycles)

    def launch(self, moment: int) -> int | None:
        """Launch the first pending cluster; its item is its own, with no request."""
        if self._next >= len(self.begun):
            return None
        self._claim[moment & (1 << self.bits) - 1] = self._next
        self._next += 1
        self.launched += 1
        return moment + self._prologue

    def advance(self, heap: list[int], limit: int) -> None:
        """Run the earliest worker's claim, and claim the next item for it."""
        items, begun, claim = self.items, self.begun, self._claim
        mask, count = (1 << self.bits) - 1, len(self.begun)
        row, pending = self.rows, self._next
        one_speed = self._took[0] is self._took[-1]
        took = self._took[0]
        while (moment := heap[0]) < limit:
            slot = moment & mask
            item = claim[slot]
            if item < 0:
                break
            if pending < count:
                claim[slot] = pending
                pending += 1
            else:
                claim[slot] = NONE
            items[row] = item
            begun[row] = moment
            row += 1
            if not one_speed:
                took = self._took[slot]
            heapreplace(heap, moment + took[item])
        self.rows, self._next = row, pending


class LaunchControl(Policy):
    """The protocol in full: any depth, either issue point, declines, and a record of requests."""

    def __init__(
        self,
        durations: Sequence[Cycles],
        overheads: Overheads,
        clc: Clc,
        disturbance: Disturbance,
        waiting: Sequence[Foreign],
    ) -> None:
        super().__init__(durations, overheads)
        self._latency = overheads.clc_latency_cycles << self.bits
        self._ahead = clc.ahead
        self._next = 0
        # claims of each slot's worker, oldest first: the item, and the moment of the response
        self._held: list[deque[tuple[int, int]]] = [deque() for _ in durations]
        self._asking = [False] * self.slots
        self._asked = [0] * self.slots
        self._worker = [NONE] * self.slots
        self._took = self._moments()
        self._waiting = waiting
        self._why_not = disturbance
        self._random = Random(disturbance.seed)  # noqa: S311 (a simulation)

    def launch(self, moment: int) -> int | None:
        """Launch the first pending cluster; its item is its own, with no request."""
        if self._next >= len(self.begun):
            return None
        slot = moment & (1 << self.bits) - 1
        first_ask = moment + self._prologue
        self._held[slot].append((self._next, first_ask))
        self._next += 1
        self._asking[slot] = True
        self._asked[slot] = 0
        self._worker[slot] = self.launched
        self.launched += 1
        return first_ask

    def advance(self, heap: list[int], limit: int) -> None:
        """Run the earliest worker's oldest claim, and ask for more."""
        mask = (1 << self.bits) - 1
        while (moment := heap[0]) < limit:
            slot = moment & mask
            held = self._held[slot]
            if not held and self._asking[slot]:  # nothing was held ahead: ask now, then wait
                heapreplace(heap, self._ask(slot, moment))
                continue
            if not held:
                break
            item = held.popleft()[0]
            self.items[self.rows] = item
            self.begun[self.rows] = moment
            self.rows += 1
            again = moment + self._took[slot][item]
            while len(held) < self._ahead and self._asking[slot]:
                response = self._ask(slot, moment)
                again = max(again, held[0][1] if held else response)
            heapreplace(heap, max(again, held[0][1] if held else again))

    def _ask(self, slot: int, moment: int) -> int:
        """Issue one request; the moment of its response."""
        now = moment >> self.bits
        item = NONE
        if self._next < len(self.begun) and self._is_granted(slot, now):
            item = self._next
            self._next = item + 1
            self._held[slot].append((item, moment + self._latency))
        else:
            self._asking[slot] = False
        self.requests.append(Request(now, slot, self._worker[slot], self._asked[slot], item))
        self._asked[slot] += 1
        return moment + self._latency

    def _is_granted(self, slot: int, now: int) -> bool:
        why = self._why_not
        chance = why.decline_probability
        return not (
            any(foreign.has_priority for foreign in self._waiting)
            or (self._worker[slot], self._asked[slot]) in why.declined
            or any(begin <= now < end for begin, end in why.decline_windows)
            or (chance and self._random.random() < chance)
        )

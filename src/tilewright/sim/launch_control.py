"""Cluster launch control: the grid covers all items, and workers cancel pending clusters.

A request claims the first pending cluster when it is issued; the response takes the latency, and the
claim can be run from then on. A declined worker stops asking, runs what it holds and exits; what is
still pending launches into the slots that open, and such a cluster asks like any other. So a
declined request never loses an item, and never means that none is left.

Left out: requests that overtake each other on their way to the hardware.
"""

from __future__ import annotations

from collections import deque
from random import Random
from typing import TYPE_CHECKING

from tilewright.sim.policies import DONE, Policy, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.model import Clc, Disturbance, Overheads


def launch_control(
    slots: int,
    items: int,
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
        return QuickLaunchControl(slots, items, overheads)
    return LaunchControl(slots, items, overheads, clc, disturbance, waiting)


class QuickLaunchControl:
    """`LaunchControl` with one claim ahead, requests granted while anything is pending, no record.

    The common case of long lists, at a third of the time. It runs the same items at the same times.
    """

    def __init__(self, slots: int, items: int, overheads: Overheads) -> None:
        self.lead = [0] * slots
        self.ready = [0] * slots
        self.requests: list[Request] = []
        self.trail = 0
        self.launch_delay = overheads.prologue_cycles
        self.exit_gap = overheads.turnover_cycles
        self._latency = overheads.clc_latency_cycles
        self._items = items
        self._next = 0
        self._claim = [DONE] * slots
        self._launched = 0

    def launch(self, slot: int, now: int) -> int:  # noqa: ARG002 (the Policy signature)
        """Launch the first pending cluster; its item is its own, with no request."""
        if self._next >= self._items:
            return DONE
        self._claim[slot] = self._next
        self._next += 1
        self._launched += 1
        return self._launched - 1

    def take(self, slot: int, now: int) -> int:
        """Run the claim, and claim the next."""
        item = self._claim[slot]
        pending = self._next
        if pending < self._items:
            self._claim[slot] = pending
            self._next = pending + 1
            self.ready[slot] = now + self._latency
        else:
            self._claim[slot] = DONE
            self.ready[slot] = 0
        return item


class LaunchControl:
    """The protocol in full: any depth, either issue point, declines, and a record of requests."""

    def __init__(
        self,
        slots: int,
        items: int,
        overheads: Overheads,
        clc: Clc,
        disturbance: Disturbance,
        waiting: Sequence[Foreign],
    ) -> None:
        self.lead = [0] * slots
        self.ready = [0] * slots
        self.requests: list[Request] = []
        self.trail = 0
        self.launch_delay = overheads.prologue_cycles
        self.exit_gap = overheads.turnover_cycles
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
        granted = self._next < self._items and self._is_granted(slot, now)
        item = DONE
        if granted:
            item = self._next
            self._next = item + 1
            self._held[slot].append((item, now + self._latency))
        else:
            self._asking[slot] = False
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

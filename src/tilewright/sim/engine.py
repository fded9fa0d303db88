"""The event loop: slots, launches, tiles and foreign kernels in integer cycles.

**Ordering promise.** Events happen in order of time. At equal times foreign kernels arrive first (those
with priority before busy ones), then slots open, in slot order, then workers take their next
item, in slot order. Pending clusters and workers launch in grid order, the first of them into slot
0, so that at the start slot order is worker order. The same input gives the same events.

**Left out.** Slots do not slow each other down (no shared bandwidth, no clock changes), and nothing
is preempted once it runs.

Workers that ask for items live in a heap of moments, which the policy serves. Launches, exits and foreign
kernels are rarer; they have a heap of their own, and `Policy.advance` stops at the first of them.
"""

from __future__ import annotations

from bisect import insort
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign, Hold
    from tilewright.sim.policies import Policy

_ARRIVAL, _OPEN = 0, 1
_NEVER = 1 << 200


class Launch(NamedTuple):
    """A worker enters a slot, or leaves it."""

    time_cycles: int
    slot: int
    worker: int


class Engine:
    """One run; the policy keeps its rows."""

    def __init__(
        self,
        policy: Policy,
        foreign: Sequence[Foreign],
        waiting: list[Foreign],
        stagger_cycles: int,
    ) -> None:
        """Set up a run.

        Args:
            policy: who runs what next.
            foreign: other kernels, by arrival.
            waiting: shared with the policy: the foreign kernels that wait for slots.
            stagger_cycles: between two launches of the first wave.
        """
        self.launches: list[Launch] = []
        self.exits: list[Launch] = []
        self._policy = policy
        self._bits = policy.bits
        self._foreign = foreign
        self._waiting = waiting
        self._stagger = stagger_cycles
        self._heap: list[int] = []
        self._rare: list[tuple[int, int, int]] = []
        self._free: list[int] = []
        self._resident = [-1] * policy.slots
        self._all_launched = False

    def run(self) -> None:
        """Run to the end.

        Raises:
            BadInput: work is left that nothing will ever run.
        """
        for index, kernel in enumerate(self._foreign):
            if kernel.arrival_cycles > 0:
                heappush(self._rare, (kernel.arrival_cycles, _ARRIVAL, index))
        self._open_first_wave()
        while self._rare or self._heap:
            self._serve_workers()
            if self._rare:
                now, kind, which = heappop(self._rare)
                if kind == _ARRIVAL:
                    self._arrive(self._foreign[which], now)
                else:
                    self._open(which, now)
        self._check_done()

    def holds(self) -> tuple[Hold, ...]:
        """The slots that foreign kernels held."""
        return tuple(hold for kernel in self._foreign for hold in kernel.holds)

    def _open_first_wave(self) -> None:
        self._free = list(range(self._policy.slots))
        for kernel in self._foreign:
            if kernel.arrival_cycles == 0:
                self._arrive(kernel, 0)
        usable, self._free = self._free, []
        for ordinal, slot in enumerate(usable):
            heappush(self._rare, (ordinal * self._stagger, _OPEN, slot))

    def _serve_workers(self) -> None:
        """Let workers run until the next rare event; that one goes first at equal times."""
        limit = self._rare[0][0] << self._bits if self._rare else _NEVER
        while self._heap and self._heap[0] < limit:
            self._policy.advance(self._heap, limit)
            if self._heap[0] < limit:
                limit = min(limit, self._leave(heappop(self._heap)))

    def _leave(self, moment: int) -> int:
        """End the worker of this moment; when its slot opens."""
        now, slot = moment >> self._bits, moment & (1 << self._bits) - 1
        self.exits.append(Launch(now, slot, self._resident[slot]))
        self._resident[slot] = -1
        if self._all_launched and not self._foreign:
            return _NEVER  # nobody will ever ask for the slot
        opens = now + self._policy.exit_gap_cycles
        heappush(self._rare, (opens, _OPEN, slot))
        return opens << self._bits

    def _open(self, slot: int, now: int) -> None:
        """A slot can be used: by a waiting foreign kernel, else by what is pending, else by nobody."""
        if self._give_away(slot, now):
            return
        first_ask = self._policy.launch(now << self._bits | slot)
        if first_ask is None:
            self._all_launched = True
            insort(self._free, slot)
            return
        worker = self._resident[slot] = self._policy.launched - 1
        self.launches.append(Launch(now, slot, worker))
        heappush(self._heap, first_ask)

    def _arrive(self, kernel: Foreign, now: int) -> None:
        self._waiting.append(kernel)
        self._waiting.sort(key=lambda k: not k.has_priority)
        while self._free and self._give_away(self._free[-1], now):
            self._free.pop()

    def _give_away(self, slot: int, now: int) -> bool:
        """Hand `slot` to the first foreign kernel in line, if there is one."""
        if not self._waiting:
            return False
        self._waiting[:] = [kernel for kernel in self._waiting if not kernel.is_over(now)]
        if not self._waiting:
            return False
        hold = self._waiting[0].hold(slot, now)
        if hold.end_cycles is not None:
            heappush(self._rare, (hold.end_cycles, _OPEN, slot))
        self._waiting[:] = [kernel for kernel in self._waiting if not kernel.is_over(now)]
        return True

    def _check_done(self) -> None:
        left = len(self._policy.begun) - self._policy.rows
        if not left:
            return
        held = sum(hold.end_cycles is None for hold in self.holds())
        slots = self._policy.slots
        raise BadInput(
            f"{left} of {len(self._policy.begun)} tiles never run: {held} of {slots} slots are held by "
            "another kernel for good. Give it an end, or leave one slot",
            given=held,
            allowed=f"fewer than {slots} slots held for good",
        )

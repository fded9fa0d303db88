"""The event loop: slots, launches, tiles and foreign kernels in integer cycles.

**Ordering promise.** Events happen in order of time. At equal times foreign kernels arrive first (those
with priority before busy ones), then slots open, in slot order, then workers take their next
item, in slot order. Pending clusters and workers launch in grid order, the first of them into slot
0, so that at the start slot order is worker order. The same input gives the same events.

**Left out.** Slots do not slow each other down (no shared bandwidth, no clock changes), and nothing
is preempted once it runs.

Keys are single integers, `time << bits | slot`, because a heap of integers is several times quicker
than a heap of tuples. Rare events have a heap of their own; the loop stops at the first of them.
"""

from __future__ import annotations

from array import array
from bisect import insort
from heapq import heappop, heappush, heapreplace
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.sim.foreign import Foreign
    from tilewright.sim.policies import Policy

_ARRIVAL, _OPEN = 0, 1
_NEVER = 1 << 200


class Launch(NamedTuple):
    """A worker enters a slot, or leaves it."""

    time_cycles: int
    slot: int
    worker: int


class Engine:
    """One run. `items`, `slots_of` and `starts` are its columns, a row for each item begun."""

    def __init__(
        self,
        durations: Sequence[Sequence[int]],
        policy: Policy,
        foreign: Sequence[Foreign],
        waiting: list[Foreign],
        stagger_cycles: int = 0,
    ) -> None:
        """Set up a run.

        Args:
            durations: for each slot, the cycles of each item there.
            policy: who runs what next.
            foreign: other kernels, by arrival.
            waiting: shared with the policy: the foreign kernels that wait for slots.
            stagger_cycles: between two launches of the first wave.
        """
        count = len(durations[0]) if durations else 0
        self.items, self.slots_of, self.starts = (array("q", bytes(8 * count)) for _ in range(3))
        self.begun = 0
        self.launches: list[Launch] = []
        self.exits: list[Launch] = []
        self._durations = durations
        self._policy = policy
        self._foreign = foreign
        self._waiting = waiting
        self._stagger = stagger_cycles
        self._bits = len(durations).bit_length()
        self._heap: list[int] = []
        self._rare: list[tuple[int, int, int]] = []
        self._free: list[int] = []
        self._resident = [-1] * len(durations)

    def run(self) -> None:
        """Run to the end.

        Raises:
            BadInput: work is left that nothing will ever run.
        """
        for index, kernel in enumerate(self._foreign):
            if kernel.arrival_cycles > 0:
                heappush(self._rare, (kernel.arrival_cycles, _ARRIVAL, index))
        self._open_first_wave()
        while True:
            self._advance()
            if not self._rare:
                break
            now, kind, which = heappop(self._rare)
            if kind == _ARRIVAL:
                self._arrive(self._foreign[which], now)
            else:
                self._open(which, now)
        self._check_done()

    def _open_first_wave(self) -> None:
        self._free = list(range(len(self._durations)))
        for kernel in self._foreign:
            if kernel.arrival_cycles == 0:
                self._arrive(kernel, 0)
        usable, self._free = self._free, []
        for ordinal, slot in enumerate(usable):
            heappush(self._rare, (ordinal * self._stagger, _OPEN, slot))

    def _advance(self) -> None:
        """Let workers run until the next rare event."""
        heap, bits, durations = self._heap, self._bits, self._durations
        take, lead, ready, trail = (
            self._policy.take,
            self._policy.lead,
            self._policy.ready,
            self._policy.trail,
        )
        items, slots_of, starts, row = self.items, self.slots_of, self.starts, self.begun
        mask = (1 << bits) - 1
        limit = self._limit()
        while heap and (key := heap[0]) < limit:
            now = key >> bits
            slot = key & mask
            item = take(slot, now)
            if item < 0:
                heappop(heap)
                self._leave(slot, now)
                limit = self._limit()
                continue
            start = now + lead[slot]
            items[row] = item
            slots_of[row] = slot
            starts[row] = start
            row += 1
            again = start + durations[slot][item] + trail
            if again < ready[slot]:  # noqa: PLR1730 (the hot loop: max() is a call)
                again = ready[slot]
            heapreplace(heap, again << bits | slot)
        self.begun = row

    def _limit(self) -> int:
        """The first key at or after the next rare event: rare events go first."""
        return self._rare[0][0] << self._bits if self._rare else _NEVER

    def _leave(self, slot: int, now: int) -> None:
        self.exits.append(Launch(now, slot, self._resident[slot]))
        self._resident[slot] = -1
        heappush(self._rare, (now + self._policy.exit_gap, _OPEN, slot))

    def _open(self, slot: int, now: int) -> None:
        """A slot can be used: by a waiting foreign kernel, else by what is pending, else by nobody."""
        if self._give_away(slot, now):
            return
        worker = self._policy.launch(slot, now)
        if worker < 0:
            insort(self._free, slot)
            return
        self._resident[slot] = worker
        self.launches.append(Launch(now, slot, worker))
        heappush(self._heap, now + self._policy.launch_delay << self._bits | slot)

    def _arrive(self, kernel: Foreign, now: int) -> None:
        self._waiting.append(kernel)
        self._waiting.sort(key=lambda k: not k.has_priority)
        while self._free and self._give_away(self._free[-1], now):
            self._free.pop()

    def _give_away(self, slot: int, now: int) -> bool:
        """Hand `slot` to the first foreign kernel in line, if there is one."""
        self._waiting[:] = [kernel for kernel in self._waiting if not kernel.is_over(now)]
        if not self._waiting:
            return False
        hold = self._waiting[0].hold(slot, now)
        if hold.end_cycles is not None:
            heappush(self._rare, (hold.end_cycles, _OPEN, slot))
        self._waiting[:] = [kernel for kernel in self._waiting if not kernel.is_over(now)]
        return True

    def _check_done(self) -> None:
        left = len(self.items) - self.begun
        if left:
            held = sum(hold.end_cycles is None for k in self._foreign for hold in k.holds)
            raise BadInput(
                f"{left} of {len(self.items)} tiles never run: {held} of {len(self._durations)} "
                "slots are held by another kernel for good. Give it an end, or leave one slot",
                given=held,
                allowed=f"fewer than {len(self._durations)} slots held for good",
            )

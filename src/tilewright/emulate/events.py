"""Accesses to memory as the race detector remembers them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from tilewright.emulate.clocks import SEEN, mark_number

if TYPE_CHECKING:
    from collections.abc import Hashable

    from tilewright.emulate.clocks import Clock, Published
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


@dataclass(eq=False, slots=True)
class Event:
    """One access by lanes of a warp.

    Attributes:
        time: the warp's clock then.
        strong: made by an atomic or a `.relaxed`, `.volatile`, `.acquire`, `.release` access: such do not race
            with one another.
        silent: a write of what was there already.
    """

    warp: Warp
    op: Op
    time: int
    cluster: int
    base: int
    strong: bool
    silent: bool = False
    is_async: bool = False

    def who(self, lane: int) -> str:
        """For messages."""
        return self.warp.thread_name(lane)


@dataclass(eq=False, slots=True)
class AsyncEvent:
    """One access by something that runs by itself: a copy, a matrix instruction, an answer of the hardware.

    Attributes:
        op: the instruction that issued it.
        warp, lane: who issued it.
        issued: what the issuer knew.
        marks: keys and times, any of which says that it is over; empty while it is not.
        what: "bulk copy", "CLC answer": for messages and for the choice of a rule.
        strong: atomic, element by element: reductions.
        name: of what has no issuer in this launch.
        follows: events that come before it by the rules of its own pipeline.
        level: at which it must know that other asynchronous accesses are over: TENSOR for tcgen05 instructions.
        silent: the write that it makes now is of what was there already.
    """

    op: Op
    warp: Warp
    lane: int
    issued: Published
    what: str
    marks: list[tuple[Hashable, int]] = field(default_factory=list)
    strong: bool = False
    follows: frozenset[AsyncEvent] = frozenset()
    is_async: bool = True
    is_remote: bool = False
    name: str = ""
    level: int = SEEN
    silent: bool = False

    def known_to(self, clock: Clock) -> bool:
        """Whether a clock says that it is over."""
        known = clock.marks
        for key, time in self.marks:  # noqa: SIM110  (asked all the time: a generator costs twice as much)
            if known.get(mark_number(key), -1) >= time:
                return True
        return False

    def known_at(self, clocks: Published, level: int = SEEN) -> bool:
        """The same at one level of a published clock."""
        return self.known_to(clocks[level])

    def who(self, _lane: int = 0) -> str:
        """For messages."""
        if self.name:
            return self.name
        return f"the {self.what} of {self.warp.thread_name(self.lane)}"


class Side(NamedTuple):
    """One side of a race."""

    event: Event | AsyncEvent
    lane: int
    writes: bool


def same_event(last: Event | None, warp: Warp, op: Op, time: int) -> bool:
    """Whether an access belongs to the event that its warp made last."""
    return last is not None and last.op is op and last.time == time and last.warp is warp

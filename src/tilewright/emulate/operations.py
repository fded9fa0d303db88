"""What runs by itself: copies, arrivals, answers. Each is an agent that the scheduler may pick at any time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.emulate.events import AsyncEvent
from tilewright.emulate.schedule import OPERATIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


class Operation:
    """Something asynchronous, made of parts that happen one by one.

    Attributes:
        number: in the order of issue, the same in every run of a schedule.
        parts: what is still to happen, in order; between two parts anybody else may act.
        touches: CTAs whose shared memory or barriers it uses; none of them may leave before it is over.
        event: its access, for the race detector and for messages.
        done: whether all parts are over.
    """

    def __init__(
        self,
        machine: Machine,
        event: AsyncEvent,
        parts: Iterable[Callable[[], None]],
        touches: Iterable[Cta] = (),
    ) -> None:
        machine.operations_made += 1
        self.number = machine.operations_made
        self.machine = machine
        self.event = event
        self.parts = list(parts)
        self.touches = tuple(touches)
        self.done = False
        self.after_done: list[Callable[[], None]] = []
        for cta in self.touches:
            cta.incoming.add(self)

    @property
    def name(self) -> tuple[int, int, int, int]:
        """Sorts behind the warps of its issuer's cluster."""
        return (self.event.warp.cta.cluster.index, OPERATIONS, self.number, 0)

    def start(self) -> None:
        """Become something that the scheduler may pick."""
        self.machine.add_agent(self)

    def act(self) -> bool:
        """Do the next part: whether more are to come."""
        self.parts.pop(0)()
        self.machine.changed()
        if self.parts:
            return True
        self.finish()
        return False

    def finish(self) -> None:
        """All parts are over."""
        self.done = True
        for cta in self.touches:
            cta.incoming.discard(self)
        for call in self.after_done:
            call()


def new_event(warp: Warp, lane: int, op: Op, what: str, *, strong: bool = False) -> AsyncEvent:
    """The access of something that a lane issues now."""
    return AsyncEvent(op, warp, lane, warp.clocks.lane_clock(lane), what, strong=strong)

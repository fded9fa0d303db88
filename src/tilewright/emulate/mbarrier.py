"""The mbarrier object, as the PTX ISA (parallel synchronization, mbarrier) defines it.

A phase ends when its pending arrivals and its transaction bytes are both zero. The object is kept apart from
memory: its eight bytes are opaque to the kernel, and an ordinary write over them is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.emulate.clocks import (
    BEFORE,
    EMPTY,
    NOTHING,
    SCOPED,
    SEEN,
    Clock,
    Published,
    init_mark,
    join,
    join_levels,
    with_mark,
    with_scoped,
)
from tilewright.emulate.warp import Condition

if TYPE_CHECKING:
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.memory import Segment
    from tilewright.ptx.flow import Op

COUNT_MAX = 2**20 - 1
"""Of arrivals, and of transaction bytes either way."""


class Mbarrier(Condition):
    """One live object.

    Attributes:
        phase: phases completed since init.
        expected: arrivals of each coming phase.
        pending: arrivals still to come in this one.
        tx_bytes: bytes announced and not yet complete; negative if more have come than were announced.
        made_by: its mbarrier.init.
        observed: the last phase whose end some wait has seen.
        opened, opened_near: what the last phase published, to waits at cluster and at CTA scope.
    """

    __slots__ = (
        "arrivals",
        "clock",
        "expected",
        "init_mark",
        "key",
        "machine",
        "made_by",
        "near",
        "observed",
        "offset",
        "opened",
        "opened_near",
        "pending",
        "phase",
        "segment",
        "tx_bytes",
        "waits_for",
    )

    def __init__(
        self, machine: Machine, segment: Segment, offset: int, count: int, made_by: Op
    ) -> None:
        super().__init__()
        self.machine = machine
        self.segment = segment
        self.offset = offset
        self.expected = self.pending = count
        self.phase = 0
        self.tx_bytes = 0
        self.made_by = made_by
        machine.barriers_made += 1
        self.key = ("mbarrier", machine.barriers_made)
        self.init_mark = init_mark(self.key)
        self.clock: Published = NOTHING
        self.near: Clock = EMPTY
        self.opened: Published = NOTHING
        self.opened_near: Published = NOTHING
        self.observed = -1
        self.arrivals: list[str] = []

    @property
    def where(self) -> str:
        """For messages: whose it is and where."""
        return self.segment.describe(self.offset)

    @property
    def state(self) -> str:
        """For messages: phase, arrivals and bytes."""
        return (
            f"phase {self.phase}, {self.pending} of {self.expected} arrivals pending, "
            f"{self.tx_bytes} bytes pending"
        )

    def expect(self, nbytes: int, op: Op, who: str) -> None:
        """Announce bytes."""
        self.machine.note(self.key, writes=True)
        self.tx_bytes += nbytes
        if abs(self.tx_bytes) > COUNT_MAX or nbytes > COUNT_MAX:
            self.machine.stop(
                "MBAR-11",
                f"{who} expects {nbytes} bytes: the transaction count of {self.where} would be "
                f"{self.tx_bytes}, beyond {COUNT_MAX}",
                op,
            )

    def arrive(
        self,
        count: int,
        op: Op,
        who: str,
        clock: Published,
        *,
        near: bool = False,
        drop: bool = False,
        bytes_: int = 0,
    ) -> int:
        """Arrive: the phase that it counts for.

        Args:
            clock: what the arrival publishes.
            near: it comes from a thread of the barrier's CTA, so that a wait at CTA scope takes it in.
            drop: and no more in later phases.
            bytes_: announced in the same step.
        """
        if bytes_:
            self.expect(bytes_, op, who)
        if not 1 <= count <= COUNT_MAX:
            self.machine.stop("MBAR-14", f"{who} arrives {count} times on {self.where}", op)
        if count > self.pending:
            self.machine.stop(
                "MBAR-05",
                f"{who} arrives {count} times on the mbarrier in {self.where}, which has {self.state}",
                op,
                self.made_by,
                "initialised here",
            )
        if self.phase > 0 and self.observed < self.phase - 1 and self.pending == self.expected:
            self.machine.report(
                "MBAR-12",
                f"{who} arrives in phase {self.phase} of {self.where} before any wait has seen "
                f"phase {self.phase - 1} end",
                op,
                self.made_by,
                "initialised here",
                severity="warning",
            )
        self.pending -= count
        if drop:
            self.expected -= count
        self.clock = join_levels(self.clock, clock)
        if near:
            self.near = join(self.near, clock[SCOPED])
        phase = self.phase
        self._settle()
        return phase

    def complete(self, nbytes: int, event: AsyncEvent | None, op: Op, who: str) -> None:
        """Bytes have come; the event that brought them is over with this phase."""
        if event is not None:
            event.marks.append((self.key, self.phase))
        self.tx_bytes -= nbytes
        if abs(self.tx_bytes) > COUNT_MAX:
            self.machine.stop(
                "MBAR-11", f"{who}: the transaction count of {self.where} is {self.tx_bytes}", op
            )
        self._settle()

    def _settle(self) -> None:
        self.machine.note(self.key, writes=True)
        self.machine.changed()
        if self.pending or self.tx_bytes:
            return
        self.opened = with_mark(self.clock, self.key, self.phase, (SEEN, BEFORE))
        self.opened_near = with_scoped(self.opened, self.near)
        self.clock, self.near = NOTHING, EMPTY
        self.phase += 1
        self.pending = self.expected
        self.machine.wake(self)

    def ended(self, parity: int) -> bool:
        """Whether the phase of that parity is the last that has ended."""
        self.machine.note(self.key, writes=False)
        return (self.phase & 1) != parity

"""clusterlaunchcontrol: take a pending cluster. PTX ISA, 9.7.13.17 and 9.7.13.18.

The request decides at some moment after it is issued: a pending cluster is cancelled and its first CTA's
coordinates are the answer, or the request is declined. The 16 bytes then come to each target CTA on its own.
The bits of an answer are opaque; here word 3 says whether it was granted and words 0 to 2 are coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.events import AsyncEvent, Event
from tilewright.emulate.history import Ask
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.cluster import complete_at
from tilewright.emulate.instructions.loads import space_of
from tilewright.emulate.instructions.mbarriers import place_of_barrier
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import B128, PRED, U32

if TYPE_CHECKING:
    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.memory import Place
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

GRANTED, DECLINED = 0x600D_600D_0000_0001, 0x0DEC_11ED_0000_0000
"""The upper half of an answer; x and y lie in the lower half, z in bits 16 to 31 of the upper."""

POISON = 0xDEAD_0000
"""What coordinates of a declined answer hold."""


@dataclass
class Requests:
    """What cluster launch control has done in a launch.

    Attributes:
        made: requests decided so far.
        taken: cancelled clusters, and the request that did.
        used: cancelled clusters whose coordinates some thread has asked for.
        declined: of each cluster that was declined one, its last such request.
    """

    made: int = 0
    taken: dict[int, Op] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)
    declined: dict[int, Op] = field(default_factory=dict)


def requests_of(machine: Machine) -> Requests:
    """The launch's requests; the first caller has the end checked."""
    found = machine.extras.get("requests")
    if not isinstance(found, Requests):
        found = machine.extras["requests"] = Requests()
        requests = found

        def check() -> None:
            for cluster in sorted(set(requests.taken) - requests.used):
                machine.report(
                    "CLC-17",
                    f"cluster {cluster} was cancelled and nobody asked for its coordinates: its work is lost",
                    requests.taken[cluster],
                )

        machine.end_checks.append(check)
    return found


@instruction("clusterlaunchcontrol.try_cancel", visible=True)
def try_cancel(op: Decoder) -> Run:
    """Ask for a pending cluster."""
    answer, barrier = op.address(op.operands[0]), op.address(op.operands[1])
    multicast = op.has("multicast::cluster::all")
    space, place_op = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            one = np.array([lane])
            to, signal = (int(warp.addresses(a, one)[0]) for a in (answer, barrier))
            _ask(warp, lane, place_op, space, to, signal, multicast=multicast)

    return run


def _ask(
    warp: Warp, lane: int, op: Op, space: str, to: int, signal: int, *, multicast: bool
) -> None:
    machine, who = warp.machine, warp.thread_name(lane)
    if to % 16:
        machine.stop("CLC-01", f"{who}: the answer at {to:#x} is not 16-byte aligned", op)
    lanes = np.array([lane])
    place = next(
        iter(machine.accesses.targets(warp, op, space, np.array([to], np.int64), 16, lanes))
    )
    there = place_of_barrier(warp, op, space, signal, lane)
    for what, found in (("answer", place), ("mbarrier", there)):
        if found.segment.cta is not warp.cta:
            machine.stop(
                "CLC-02", f"{who}: the {what} is in {found.segment.name}, not in its own CTA", op
            )
    _check_no_decline(warp, lane, op)
    if multicast:
        for cta in warp.cta.cluster.ctas:
            cta.check_there("CLC-13", f"{who} asks for a cluster with", op)
            started = ("started", cta.cluster.index, cta.rank)
            if not warp.clocks.knows_mark(lane, started, 1):
                machine.stop("CLC-10", f"{who} asks for {cta.who}, which may not have started", op)
    _Request(warp, lane, op, place, there, multicast=multicast)


def _check_no_decline(warp: Warp, lane: int, op: Op) -> None:
    """No request after a decline that the CTA has seen; one that the asker cannot know of is a warning."""
    seen = warp.cta.saw_decline
    if seen is None:
        return
    message = f"{warp.thread_name(lane)} asks again after its CTA has seen a declined answer"
    if warp.clocks.knows_event(lane, seen):
        warp.machine.stop("CLC-08", message, op, seen.op, "seen here")
    message = f"{message}, which nothing orders before"
    warp.machine.report("CLC-08", message, op, seen.op, "seen here", severity="warning")


class _Request:
    """One request: it decides, then its answer comes to each target."""

    def __init__(
        self, warp: Warp, lane: int, op: Op, place: Place, there: Place, *, multicast: bool
    ) -> None:
        self.machine = warp.machine
        self.offset, self.signal = int(place.offsets[0]), int(there.offsets[0])
        self.targets = warp.cta.cluster.ctas if multicast else [warp.cta]
        self.answer = np.zeros(16, np.uint8)
        self.op = op
        self.ask = Ask(warp.cta.cluster.index, warp.cta.cluster.stay.slot, self.machine.executed)
        self.machine.history.asks.append(self.ask)
        first = new_event(warp, lane, op, "CLC answer")
        self.deliveries: list[Operation] = []
        for cta in self.targets:
            event = AsyncEvent(op, warp, lane, first.issued, "CLC answer")
            event.is_remote = cta is not warp.cta
            parts = [partial(self._deliver, cta, event)]
            self.deliveries.append(Operation(self.machine, event, parts, [cta]))
        Operation(self.machine, first, [self._decide]).start()

    def _decide(self) -> None:
        machine = self.machine
        machine.note("clusters", writes=True)
        requests = requests_of(machine)
        number, requests.made = requests.made, requests.made + 1
        words = self.answer.view(np.uint64)
        if machine.pending and number not in machine.options.decline_at:
            cluster = machine.pending.pop(machine.strategy.pending(len(machine.pending)))
            requests.taken[cluster] = self.op
            self.ask.granted = cluster
            x, y, z = machine.first_cta(cluster)
            words[0] = y << 32 | x
            words[1] = GRANTED | z << 16
        else:
            self.ask.declined = True
            requests.declined[self.targets[0].cluster.index] = self.op
            words[0], words[1] = POISON, DECLINED
        for delivery in self.deliveries:
            delivery.start()

    def _deliver(self, cta: Cta, event: AsyncEvent) -> None:
        at = slice(self.offset, self.offset + 16)
        self.machine.accesses.async_write(event, cta.shared, at, self.answer)
        complete_at(event, cta.shared, self.signal, 16)
        self.ask.answered = self.machine.executed


# --- answers ------------------------------------------------------------------------------------------


def _granted(words: Array) -> Array:
    """Of 32 answers, which were granted."""
    upper = words[:, 1] & ~np.uint64(0xFFFF_0000)
    found: Array = np.equal(upper, np.uint64(GRANTED))
    return found


@instruction("clusterlaunchcontrol.query_cancel.is_canceled")
def is_canceled(op: Decoder) -> Run:
    """Whether an answer was granted."""
    p, a = op.destination(op.operands[0], PRED), op.source(op.operands[1], B128)
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        words = warp.rows[B128][a]
        granted = _granted(words)
        declined = words[:, 1] == np.uint64(DECLINED)
        lanes = np.ones(32, np.bool_) if where is True else where
        if (~granted & ~declined & lanes).any():
            warp.machine.report(
                "CLC-06", f"{warp.group.who} queries 16 bytes that are no answer", place
            )
        if (declined & lanes).any() and warp.cta.saw_decline is None:
            warp.cta.saw_decline = Event(
                warp, place, warp.clocks.now, warp.clocks.cluster, warp.clocks.base, strong=True
            )
        np.copyto(warp.rows[PRED][p], granted, where=where)

    return run


@instruction(
    *(
        f"clusterlaunchcontrol.query_cancel.get_first_ctaid{axis}"
        for axis in ("", "::x", "::y", "::z")
    )
)
def get_first_ctaid(op: Decoder) -> Run:
    """Coordinates of a granted cluster's first CTA."""
    axes = [op.one_of("get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")]
    operands = op.elements(op.operands[0])
    if op.has("v4"):
        axes = ["x", "y", "z", "none"]
    a = op.source(op.operands[1], B128)
    rows_to = [op.destination(o, U32) for o in operands]
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        words = warp.rows[B128][a]
        lanes = np.ones(32, np.bool_) if where is True else where
        granted = _granted(words)
        if (~granted & lanes).any():
            warp.machine.report(
                "CLC-07",
                f"{warp.group.who} asks for the coordinates of an answer that was declined",
                place,
                requests_of(warp.machine).declined.get(warp.cta.cluster.index),
                "requested here",
            )
        x, y = words[:, 0] & np.uint64(0xFFFFFFFF), words[:, 0] >> np.uint64(32)
        z = words[:, 1] >> np.uint64(16) & np.uint64(0xFFFF)
        values = {"x": x, "y": y, "z": z, "none": np.full(32, POISON, np.uint64)}
        for axis, row in zip(axes, rows_to, strict=True):
            found = values[axis[-1] if axis != "none" else axis]
            np.copyto(warp.rows[U32][row], found, where=where, casting="unsafe")
        _note_used(warp, words[granted & lanes])

    return run


def _note_used(warp: Warp, words: Array) -> None:
    """Cancelled clusters whose coordinates were asked for."""
    machine = warp.machine
    requests = requests_of(machine)
    for low, high in {(int(w[0]), int(w[1])) for w in words}:
        first = (low & 0xFFFFFFFF, low >> 32, high >> 16 & 0xFFFF)
        cluster = machine.cluster_of(first)
        requests.used.add(cluster)
        warp.cta.cluster.stay.turns[cluster] = machine.executed

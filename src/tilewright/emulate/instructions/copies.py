"""cp.async and cp.async.bulk (without tensors), their groups, st.bulk. PTX ISA, 9.7.9.25.

A bulk copy reads and writes in two halves, at any time after it is issued; then its bytes complete on the
barrier, each multicast target on its own. A copy out of shared memory is over for its bulk group when it has
read, and again when it has written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import NOTHING, SEEN
from tilewright.emulate.copy_groups import CopyGroups, GroupCopy
from tilewright.emulate.events import AsyncEvent
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.atomics import combine
from tilewright.emulate.instructions.cluster import complete_at
from tilewright.emulate.instructions.mbarriers import one_lane, place_of_barrier
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import U16, U32, U64
from tilewright.emulate.warp import Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Outcome, Run
    from tilewright.emulate.mbarrier import Mbarrier
    from tilewright.emulate.memory import Place, Segment
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


def groups_of(warp: Warp, lane: int, kind: str) -> CopyGroups:
    """The copies of one kind ("cp.async", "bulk") that a thread has issued."""
    found = warp.copy_groups.get((kind, lane))
    if found is None:
        key = (kind, warp.cta.cluster.index, warp.cta.rank, warp.index, lane)
        found = warp.copy_groups[kind, lane] = CopyGroups(warp.machine, key)
    return found


def wait_for_groups(
    warp: Warp, where: Where, kind: str, left: int, op: Op, *, reads: bool = False
) -> Wait | None:
    """Until at most `left` of the newest groups of each lane are pending."""
    lanes = warp.lanes(where).tolist()
    mine = [
        (lane, warp.copy_groups[kind, lane]) for lane in lanes if (kind, lane) in warp.copy_groups
    ]

    def learn() -> None:
        for lane, groups in mine:
            over = len(groups.committed) - left - 1
            if over < 0:
                continue
            one = one_lane(lane)
            names = ("read",) if reads else ("read", "done")
            for name in names:
                warp.clocks.learn(one, (*groups.key, name), over, (SEEN,))

    behind = [(lane, g) for lane, g in mine if g.pending(reads=reads) > left]
    if not behind:
        learn()
        return None
    first = behind[0][1]
    del op
    return Wait(
        first,
        lambda: first.pending(reads=reads) <= left,
        lambda: f"{first.pending(reads=reads)} {kind} groups pending, {left} allowed",
    )


# --- cp.async -----------------------------------------------------------------------------------------


@instruction("cp.async.ca", "cp.async.cg", "cp.async.shared", visible=True)
def cp_async(op: Decoder) -> Run:
    """4, 8 or 16 bytes a thread from global to shared memory; fewer are filled up with zeros."""
    to, of = op.address(op.operands[0]), op.address(op.operands[1])
    nbytes = op.immediate(op.operands[2])
    rest = list(op.operands[3:])
    has_policy = op.has("L2::cache_hint")
    if has_policy:
        rest = rest[:-1]
    ignore = op.has("ignore_src")
    size = op.source(rest[0], U32) if rest and not ignore else None
    place_op = op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        sources, targets = warp.addresses(of, lanes), warp.addresses(to, lanes)
        accesses = warp.machine.accesses
        copies: list[tuple[AsyncEvent, Callable[[], None]]] = []
        for lane, source, target in zip(
            lanes.tolist(), sources.tolist(), targets.tolist(), strict=True
        ):
            count = min(nbytes, int(warp.rows[U32][size][lane])) if size is not None else nbytes
            one = np.array([lane])
            there = next(
                iter(accesses.targets(warp, place_op, "shared", np.array([target]), nbytes, one))
            )
            here = None
            if count:
                here = next(
                    iter(
                        accesses.targets(warp, place_op, "global", np.array([source]), nbytes, one)
                    )
                )
            copies.append(_copy_one(warp, lane, place_op, here, there, nbytes, count))

        # One agent for all lanes: which of them comes first shows nowhere.
        def deliver() -> None:
            for _, copy in copies:
                copy()

        Operation(warp.machine, copies[0][0], [deliver], [warp.cta]).start()

    return run


def _copy_one(
    warp: Warp, lane: int, op: Op, here: Place | None, there: Place, nbytes: int, count: int
) -> tuple[AsyncEvent, Callable[[], None]]:
    """One thread's cp.async, and what it does; it belongs to the generic proxy, so it needs no proxy fence."""
    machine = warp.machine
    event = new_event(warp, lane, op, "cp.async")
    event.issued = (*(event.issued[SEEN],) * 3, *event.issued[3:])
    copy = GroupCopy(groups_of(warp, lane, "cp.async"), None, event)

    def deliver() -> None:
        data = np.zeros(nbytes, np.uint8)
        if here is not None:
            at = int(here.offsets[0])
            data[:count] = machine.accesses.async_read(event, here.segment, slice(at, at + count))
        to = int(there.offsets[0])
        machine.accesses.async_write(event, there.segment, slice(to, to + nbytes), data)
        copy.is_done()

    return event, deliver


@instruction("cp.async.commit_group", visible=True)
def cp_async_commit(op: Decoder) -> Run:
    """The thread's copies so far become a group."""
    del op
    return _commit("cp.async")


@instruction("cp.async.bulk.commit_group", visible=True)
def bulk_commit(op: Decoder) -> Run:
    """The thread's bulk copies so far become a group."""
    del op
    return _commit("bulk")


def _commit(kind: str) -> Run:
    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            groups_of(warp, lane, kind).commit()

    return run


@instruction("cp.async.wait_group", "cp.async.wait_all", visible=True)
def cp_async_wait(op: Decoder) -> Run:
    """Until at most N groups are pending; wait_all commits first."""
    whole = op.op.node.opcode.modifiers[1] == "wait_all"
    left = 0 if whole else op.immediate(op.operands[0])
    place_op = op.op

    def run(warp: Warp, where: Where) -> Outcome:
        if whole:
            for lane in warp.lanes(where).tolist():
                groups = groups_of(warp, lane, "cp.async")
                if groups.open:
                    groups.commit()
        return wait_for_groups(warp, where, "cp.async", left, place_op)

    return run


@instruction("cp.async.bulk.wait_group", visible=True)
def bulk_wait(op: Decoder) -> Run:
    """Until at most N bulk groups are pending, or have yet to read."""
    left, reads, place_op = op.immediate(op.operands[0]), op.has("read"), op.op
    return lambda warp, where: wait_for_groups(warp, where, "bulk", left, place_op, reads=reads)


def after_copies(warp: Warp, lane: int, op: Op, barrier: Mbarrier) -> None:
    """An arrival that comes when all cp.async of a thread are over."""
    groups = groups_of(warp, lane, "cp.async")
    waiting = [c for group in (*groups.committed, groups.open) for c in group if not c.done]
    event = new_event(warp, lane, op, "cp.async arrival")
    events = [
        c.write_event
        for group in (*groups.committed, groups.open)
        for c in group
        if c.write_event is not None
    ]

    def arrive() -> None:
        for each in events:
            each.marks.append((barrier.key, barrier.phase))
        barrier.arrive(1, op, event.who(), NOTHING)

    operation = Operation(warp.machine, event, [arrive], [warp.cta])
    if not waiting:
        operation.start()
        return
    count = [len(waiting)]

    def one_over() -> None:
        count[0] -= 1
        if count[0] == 0:
            operation.start()

    for copy in waiting:
        copy.when_done.append(one_over)


# --- cp.async.bulk ------------------------------------------------------------------------------------


@instruction("cp.async.bulk", "cp.reduce.async.bulk", visible=True)
def bulk(op: Decoder) -> Run:
    """A copy of a multiple of 16 bytes, or a reduction of one."""
    to_space, of_space = op.spaces[0], op.spaces[1]
    reduces = op.op.node.opcode.modifiers[0] == "reduce"
    operands = list(op.operands)
    to, of = op.address(operands[0]), op.address(operands[1])
    size = op.source(operands[2], U32)
    signals = op.has("mbarrier::complete_tx::bytes")
    barrier = op.address(operands[3]) if signals else None
    mask = op.source(operands[4], U16) if op.has("multicast::cluster") else None
    bytes_mask = op.source(operands[3], U16) if op.has("cp_mask") else None
    if bytes_mask is not None:
        raise op.unknown()
    name = op.one_of("and", "or", "xor", "add", "inc", "dec", "min", "max") if reduces else ""
    function = combine(name, op.type) if reduces else None
    dtype = np.dtype(f"u{op.type_bytes(op.type)}") if reduces else np.dtype(np.uint8)
    place_op = op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        for lane in lanes.tolist():
            one = np.array([lane])
            issue = _Bulk(
                warp,
                lane,
                place_op,
                int(warp.rows[U32][size][lane]),
                (of_space, int(warp.addresses(of, one)[0])),
                (to_space, int(warp.addresses(to, one)[0])),
            )
            issue.combine, issue.dtype = function, dtype
            if barrier is not None:
                at = int(warp.addresses(barrier, one)[0])
                ranks = int(warp.rows[U16][mask][lane]) if mask is not None else None
                issue.into_shared(at, ranks)
            else:
                issue.into_global()

    return run


class _Bulk:
    """One bulk copy that a lane issues."""

    def __init__(
        self,
        warp: Warp,
        lane: int,
        op: Op,
        nbytes: int,
        source: tuple[str, int],
        target: tuple[str, int],
    ) -> None:
        self.warp, self.lane, self.op, self.nbytes = warp, lane, op, nbytes
        self.machine = warp.machine
        self.combine: Callable[[Array, Array], Array] | None = None
        self.dtype = np.dtype(np.uint8)
        who = warp.thread_name(lane)
        for what, number in (("size", nbytes), ("source", source[1]), ("target", target[1])):
            if number % 16:
                self.machine.stop(
                    "CLU-09", f"{who}: {what} {number:#x} is not a multiple of 16", op
                )
        self.source = self._place(*source)
        self.target = self._place(*target)

    def _place(self, space: str, address: int) -> Place:
        lanes, addresses = np.array([self.lane]), np.array([address], np.int64)
        accesses = self.machine.accesses
        first = next(iter(accesses.targets(self.warp, self.op, space, addresses, 16, lanes)))
        if self.nbytes > 16:
            last = addresses + (self.nbytes - 16)
            list(accesses.targets(self.warp, self.op, space, last, 16, lanes))
        return first

    def _read(self, event: AsyncEvent) -> Array:
        at = int(self.source.offsets[0])
        return self.machine.accesses.async_read(
            event, self.source.segment, slice(at, at + self.nbytes)
        ).copy()

    def _write(self, event: AsyncEvent, segment: Segment, at: int, data: Array) -> None:
        span = slice(at, at + data.size)
        if self.combine is not None:
            old = np.ascontiguousarray(segment.data[span]).view(self.dtype)
            new = np.ascontiguousarray(data).view(self.dtype)
            data = np.ascontiguousarray(self.combine(old, new)).view(np.uint8)
        self.machine.accesses.async_write(event, segment, span, data)

    def into_shared(self, barrier: int, ranks: int | None) -> None:
        """To the target's CTA, or to the same offset of every CTA of a mask; bytes complete there."""
        warp, op = self.warp, self.op
        there = place_of_barrier(warp, op, "shared::cluster", barrier, self.lane)
        targets = self._targets(there, ranks)
        from_shared = self.source.segment.cta is not None
        what = "multicast bulk copy" if ranks is not None else "bulk copy"
        offset, signal = int(self.target.offsets[0]), int(there.offsets[0])
        for cta in targets:
            event = new_event(warp, self.lane, op, what)
            event.is_remote = cta is not warp.cta
            touches = [cta, self.source.segment.cta] if from_shared else [cta]
            Operation(
                self.machine,
                event,
                self._parts(event, cta, offset, signal),
                [c for c in touches if c is not None],
            ).start()

    def _parts(
        self, event: AsyncEvent, cta: Cta, offset: int, signal: int
    ) -> list[Callable[[], None]]:
        """A copy into one CTA: it reads, writes one half, writes the other and completes its bytes."""
        data: list[Array] = []
        half = self.nbytes // 32 * 16

        def read() -> None:
            data.append(self._read(event))

        def write() -> None:
            self._write(event, cta.shared, offset, data[0][:half])

        def end() -> None:
            self._write(event, cta.shared, offset + half, data[0][half:])
            complete_at(event, cta.shared, signal, self.nbytes)

        return [read, write, end]

    def _targets(self, there: Place, ranks: int | None) -> list[Cta]:
        warp, who = self.warp, self.warp.thread_name(self.lane)
        owner = self.target.segment.cta
        if owner is None or there.segment.cta is None:
            self.machine.stop("CLU-09", f"{who}: the target is not shared memory", self.op)
        if ranks is None:
            if there.segment.cta is not owner:
                self.machine.stop(
                    "CLU-10", f"{who}: the mbarrier is not in the CTA of the target", self.op
                )
            if self.source.segment.cta is not None and owner is warp.cta:
                self.machine.stop("CLU-10", f"{who} copies into its own CTA", self.op)
            return [owner]
        return masked_ctas(warp, self.lane, self.op, ranks)

    def into_global(self) -> None:
        """Out of shared memory, in the thread's bulk group."""
        reading = new_event(self.warp, self.lane, self.op, "bulk store")
        writing = AsyncEvent(
            self.op,
            self.warp,
            self.lane,
            reading.issued,
            "bulk store",
            strong=self.combine is not None,
        )
        copy = GroupCopy(groups_of(self.warp, self.lane, "bulk"), reading, writing)
        data: list[Array] = []

        def read() -> None:
            data.append(self._read(reading))
            if self.source.segment.cta is not None:
                self.source.segment.cta.arrived.append(reading)  # to be waited for before it leaves
            copy.has_read()

        def write() -> None:
            self._write(writing, self.target.segment, int(self.target.offsets[0]), data[0])
            copy.is_done()

        reader = Operation(self.machine, reading, [read], [self.warp.cta])
        writer = Operation(self.machine, writing, [write])
        reader.after_done.append(writer.start)
        reader.start()


def masked_ctas(warp: Warp, lane: int, op: Op, ranks: int) -> list[Cta]:
    """The CTAs of a 16-bit mask; each must be known to run."""
    ctas, who = warp.cta.cluster.ctas, warp.thread_name(lane)
    if ranks == 0 or ranks >> len(ctas):
        warp.machine.stop("TMA-05", f"{who}: mask {ranks:#x} in a cluster of {len(ctas)} CTAs", op)
    found = [cta for cta in ctas if ranks >> cta.rank & 1]
    for cta in found:
        if cta is not warp.cta:
            warp.machine.accesses.check_alive(cta, warp, lane, op)
    return found


@instruction("st.bulk", visible=True)
def st_bulk(op: Decoder) -> Run:
    """Zeros over a run of shared memory."""
    address = op.address(op.operands[0])
    size = op.source(op.operands[1], U64)
    place_op = op.op

    def run(warp: Warp, where: Where) -> None:
        for lane in warp.lanes(where).tolist():
            one = np.array([lane])
            first = int(warp.addresses(address, one)[0])
            count = int(warp.rows[U64][size][lane])
            for at in range(first, first + count, 8):
                warp.machine.accesses.store(
                    warp, place_op, "shared", np.array([at]), np.zeros((1, 1), np.uint64), one
                )
        warp.machine.changed()

    return run

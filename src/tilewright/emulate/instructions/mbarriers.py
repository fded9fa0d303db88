"""mbarrier: PTX ISA, 9.7.13.15."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilewright.emulate.clocks import EMPTY, SEEN, with_scoped
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.loads import space_of
from tilewright.emulate.mbarrier import COUNT_MAX, Mbarrier
from tilewright.emulate.registers import PRED, U32, U64
from tilewright.emulate.warp import Wait
from tilewright.ptx.nodes import Memory, Sink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.emulate.decoder import Address, Decoder
    from tilewright.emulate.instructions import Outcome, Run
    from tilewright.emulate.memory import Place, Segment
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

# --- finding the object -------------------------------------------------------------------------------


def place_of_barrier(warp: Warp, op: Op, space: str, address: int, lane: int) -> Place:
    """Where a lane's mbarrier operand points: eight aligned bytes of shared memory."""
    if address % 8:
        warp.machine.stop(
            "MBAR-01",
            f"{warp.thread_name(lane)}: mbarrier at {address:#x}, not a multiple of 8",
            op,
        )
    lanes, addresses = np.array([lane]), np.array([address], np.int64)
    place = next(iter(warp.machine.accesses.targets(warp, op, space, addresses, 8, lanes)))
    if place.segment.cta is None:
        warp.machine.stop(
            "MBAR-01", f"{warp.thread_name(lane)}: an mbarrier in {place.segment.name}", op
        )
    return place


def find_barrier(
    warp: Warp,
    op: Op,
    space: str,
    address: int,
    lane: int,
    *,
    own: bool = False,
    rule: str = "MBAR-10",
) -> Mbarrier:
    """The live object that a lane names and uses now.

    Args:
        own: it must be of the lane's own CTA: waits, init, inval.
        rule: broken where there is none.
    """
    place = place_of_barrier(warp, op, space, address, lane)
    warp.machine.accesses.visit(warp, op, place)
    offset = int(place.offsets[0])
    if own and place.segment.cta is not warp.cta:
        warp.machine.stop(
            "CLU-12",
            f"{warp.thread_name(lane)} waits on an mbarrier of {place.segment.name}",
            op,
        )
    barrier = barrier_at(warp, op, place.segment, offset, rule, warp.thread_name(lane))
    if not warp.clocks.knows_mark(lane, barrier.init_mark, 1, SEEN):
        warp.machine.stop(
            "MBAR-04",
            f"{warp.thread_name(lane)} uses the mbarrier in {barrier.where} whose initialisation "
            "nothing orders before",
            op,
            barrier.made_by,
            "initialised here",
        )
    return barrier


def barriers_at(
    warp: Warp, where: Where, address: Address, space: str, op: Op
) -> Iterator[tuple[int, Mbarrier]]:
    """Each lane that takes part with the live object that it names, one after another."""
    lanes = warp.lanes(where)
    for lane, at in zip(lanes.tolist(), warp.addresses(address, lanes).tolist(), strict=True):
        yield lane, find_barrier(warp, op, space, at, lane)


def barrier_at(warp: Warp, op: Op, segment: Segment, offset: int, rule: str, who: str) -> Mbarrier:
    """The live object at an offset of a CTA's shared memory."""
    barrier = segment.barriers.get(offset)
    if barrier is None:
        warp.machine.stop(
            rule,
            f"{who} uses the mbarrier in {segment.describe(offset)}, which is not initialised",
            op,
        )
    return barrier


def reaches_cluster(op: Decoder) -> bool:
    """Whether a signal or wait has a scope beyond the CTA, which is what it has unless something is written."""
    return bool(op.one_of("cluster", "gpu", "sys"))


# --- init and inval -----------------------------------------------------------------------------------


def one_lane(lane: int) -> Array:
    """32 bools with one set."""
    found = np.zeros(32, np.bool_)
    found[lane] = True
    return found


@instruction("mbarrier.init", visible=True)
def mbarrier_init(op: Decoder) -> Run:
    """Make an object."""
    address, count = op.address(op.operands[0]), op.source(op.operands[1], U32)
    space, place_op = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        for lane, at in zip(lanes.tolist(), warp.addresses(address, lanes).tolist(), strict=True):
            _init_one(warp, place_op, space, at, lane, int(warp.rows[U32][count][lane]))

    return run


def _init_one(warp: Warp, op: Op, space: str, address: int, lane: int, count: int) -> None:
    machine, who = warp.machine, warp.thread_name(lane)
    place = place_of_barrier(warp, op, space, address, lane)
    segment, offset = place.segment, int(place.offsets[0])
    if segment.cta is not warp.cta:
        machine.stop("MBAR-13", f"{who} initialises an mbarrier of {segment.name}", op)
    if not 1 <= count <= COUNT_MAX:
        machine.stop("MBAR-02", f"{who} initialises an mbarrier to {count} arrivals", op)
    live = segment.barriers.get(offset)
    if live is not None:
        machine.stop(
            "MBAR-09",
            f"{who} initialises the mbarrier in {live.where}, which is live",
            op,
            live.made_by,
            "initialised here",
        )
    machine.accesses.store(
        warp,
        op,
        space,
        np.array([address], np.int64),
        np.zeros((1, 1), np.uint64),
        np.array([lane]),
    )
    barrier = Mbarrier(machine, segment, offset, count, op)
    segment.barriers[offset] = barrier
    if segment.under_barrier is None:
        segment.under_barrier = np.zeros(segment.nbytes, np.bool_)
    segment.under_barrier[offset : offset + 8] = True
    warp.clocks.learn(one_lane(lane), barrier.init_mark, 1, (SEEN,))
    machine.changed()


@instruction("mbarrier.inval", visible=True)
def mbarrier_inval(op: Decoder) -> Run:
    """End an object; its bytes may be used for anything."""
    address, space, place_op = op.address(op.operands[0]), space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        lanes = warp.lanes(where)
        for lane, at in zip(lanes.tolist(), warp.addresses(address, lanes).tolist(), strict=True):
            place = place_of_barrier(warp, place_op, space, at, lane)
            if place.segment.cta is not warp.cta:
                warp.machine.stop(
                    "MBAR-13",
                    f"{warp.thread_name(lane)} invalidates an mbarrier of {place.segment.name}",
                    place_op,
                )
            barrier = find_barrier(warp, place_op, space, at, lane, own=True)
            del barrier.segment.barriers[barrier.offset]
            under = barrier.segment.under_barrier
            if under is not None:
                under[barrier.offset : barrier.offset + 8] = False

    return run


# --- arrivals and bytes -------------------------------------------------------------------------------


@instruction("mbarrier.arrive", "mbarrier.arrive_drop", visible=True)
def mbarrier_arrive(op: Decoder) -> Run:
    """Arrive, once or `count` times; .expect_tx announces bytes in the same step."""
    operands = list(op.operands)
    returns = len(operands) > 1 and not isinstance(operands[0], Memory)
    state = operands.pop(0) if returns else None
    keeps = state is not None and not isinstance(state, Sink)
    d = op.destination(state, U64) if state is not None and keeps else None
    address = op.address(operands[0])
    extra = op.source(operands[1], U32) if len(operands) > 1 else None
    expects, drops = op.has("expect_tx"), op.op.node.opcode.modifiers[0] == "arrive_drop"
    relaxed, incomplete = op.has("relaxed"), op.has("noComplete")
    wide = reaches_cluster(op)
    space, place_op = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane, barrier in barriers_at(warp, where, address, space, place_op):
            number = int(warp.rows[U32][extra][lane]) if extra is not None else None
            count = number if number is not None and not expects else 1
            bytes_ = number if number is not None and expects else 0
            who = warp.thread_name(lane)
            if incomplete and count >= barrier.pending:
                warp.machine.stop(
                    "MBAR-14", f"{who}: .noComplete, yet it completes {barrier.where}", place_op
                )
            one = one_lane(lane)
            clock = warp.clocks.publish_relaxed(one) if relaxed else warp.clocks.publish(one)
            near = barrier.segment.cta is warp.cta
            if not near and not wide:
                clock = with_scoped(clock, EMPTY)
            before = barrier.pending
            phase = barrier.arrive(
                count, place_op, who, clock, near=near, drop=drops, bytes_=bytes_
            )
            if d is not None:
                warp.rows[U64][d][lane] = phase << 20 | before

    return run


@instruction("mbarrier.expect_tx", visible=True)
def mbarrier_expect(op: Decoder) -> Run:
    """Announce bytes."""
    address, nbytes = op.address(op.operands[0]), op.source(op.operands[1], U32)
    space, place_op = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane, barrier in barriers_at(warp, where, address, space, place_op):
            barrier.expect(int(warp.rows[U32][nbytes][lane]), place_op, warp.thread_name(lane))
            warp.machine.changed()

    return run


@instruction("mbarrier.complete_tx", visible=True)
def mbarrier_complete(op: Decoder) -> Run:
    """Say that bytes are complete, as a copy would."""
    address, nbytes = op.address(op.operands[0]), op.source(op.operands[1], U32)
    space, place_op = space_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        for lane, barrier in barriers_at(warp, where, address, space, place_op):
            count = int(warp.rows[U32][nbytes][lane])
            barrier.complete(count, None, place_op, warp.thread_name(lane))

    return run


@instruction("cp.async.mbarrier.arrive", visible=True)
def copy_arrive(op: Decoder) -> Run:
    """Arrive once this thread's earlier cp.async are over; without .noinc the arrival is added first."""
    from tilewright.emulate.instructions.copies import after_copies  # noqa: PLC0415  (copies signal barriers)

    address, space, place_op = op.address(op.operands[0]), space_of(op), op.op
    adds = not op.has("noinc")

    def run(warp: Warp, where: Where) -> None:
        for lane, barrier in barriers_at(warp, where, address, space, place_op):
            if adds:
                barrier.pending += 1
            after_copies(warp, lane, place_op, barrier)

    return run


# --- waits --------------------------------------------------------------------------------------------


Ended: TypeAlias = "Callable[[Mbarrier, int, int, Warp], bool]"
"""Whether the phase that a lane of a warp asks for, by parity or state, has ended."""


@instruction("mbarrier.test_wait", "mbarrier.try_wait", visible=True)
def mbarrier_wait(op: Decoder) -> Run:  # noqa: C901  (two small functions, and no more)
    """Whether a phase has ended; try_wait may block until it has, or give up."""
    p = op.destination(op.operands[0], PRED)
    address = op.address(op.operands[1])
    by_parity = op.has("parity")
    awaited = op.source(op.operands[2], U32 if by_parity else U64)
    kind = U32 if by_parity else U64
    blocks = op.op.node.opcode.modifiers[0] == "try_wait"
    relaxed, wide = op.has("relaxed"), reaches_cluster(op)
    space, place_op = space_of(op), op.op

    def ended(barrier: Mbarrier, value: int, lane: int, warp: Warp) -> bool:
        if by_parity:
            return barrier.ended(value & 1)
        phase = value >> 20
        if not barrier.phase - 1 <= phase <= barrier.phase:
            warp.machine.stop(
                "MBAR-07",
                f"{warp.thread_name(lane)} waits for phase {phase} of {barrier.where}, which is in "
                f"phase {barrier.phase}",
                place_op,
            )
        return barrier.phase > phase

    def run(warp: Warp, where: Where) -> Outcome:
        lanes = warp.lanes(where)
        machine = warp.machine
        missing: tuple[Mbarrier, int, int] | None = None
        found = np.zeros(32, np.bool_)
        seen: dict[int, Mbarrier] = {}
        for lane, at in zip(lanes.tolist(), warp.addresses(address, lanes).tolist(), strict=True):
            barrier = seen.get(at)
            if barrier is None or not warp.clocks.knows_mark(lane, barrier.init_mark, 1, SEEN):
                barrier = seen[at] = find_barrier(warp, place_op, space, at, lane, own=True)
            value = int(warp.rows[kind][awaited][lane])
            found[lane] = ended(barrier, value, lane, warp)
            if not found[lane] and missing is None:
                missing = barrier, value, lane
        if missing is not None and not found.any():
            machine.waits.missing(warp.who, place_op.span.line)
            group = warp.group
            if blocks and not machine.strategy.gives_up():
                return _blocked(warp, where, p, missing, ended)
            if group.asked_at == machine.version:  # asked before, and nothing has happened since
                return _blocked(warp, where, p, missing, ended)
            group.asked_at = machine.version
        warp.rows[PRED][p][lanes] = found[lanes]
        if found.any():
            machine.waits.found(warp.who, place_op.span.line)
            _observe(warp, found, seen, lanes, address, relaxed=relaxed, wide=wide)
        return None

    return run


def _observe(
    warp: Warp,
    found: Array,
    seen: dict[int, Mbarrier],
    lanes: Array,
    address: Address,
    *,
    relaxed: bool,
    wide: bool,
) -> None:
    """Lanes that saw a phase end come to know what was published in it."""
    places = warp.addresses(address, lanes)
    for at, barrier in seen.items():
        who = np.zeros(32, np.bool_)
        who[lanes[places == at]] = True
        who &= found
        if not who.any():
            continue
        barrier.observed = barrier.phase - 1
        where: Where = True if who.all() else who
        opened = barrier.opened if wide else barrier.opened_near
        if relaxed:
            warp.clocks.acquire_relaxed(where, opened)
        else:
            warp.clocks.acquire(where, opened)


def _blocked(
    warp: Warp, where: Where, p: int, missing: tuple[Mbarrier, int, int], ended: Ended
) -> Wait:
    """The wait of a group whose lanes all have to wait."""
    barrier, value, lane = missing
    lanes = warp.lanes(where)

    def story() -> str:
        return f"mbarrier in {barrier.where} ({barrier.state}), wants parity {value & 1} to end"

    def gives_up() -> None:
        warp.rows[PRED][p][lanes] = False

    return Wait(barrier, lambda: ended(barrier, value, lane, warp), story, None, gives_up)


@instruction("mbarrier.pending_count")
def pending_count(op: Decoder) -> Run:
    """The pending count that the barrier had before the arrival that gave the state."""
    d, a = op.destination(op.operands[0], U32), op.source(op.operands[1], U64)

    def run(warp: Warp, where: Where) -> None:
        found = warp.rows[U64][a] & np.uint64(2**20 - 1)
        np.copyto(warp.rows[U32][d], found, where=where, casting="unsafe")

    return run

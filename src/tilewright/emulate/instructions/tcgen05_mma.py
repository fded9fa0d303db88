"""tcgen05 by one thread: mma and cp, which run by themselves, and commit, which tells barriers of their end.

An mma reads shared memory and changes tensor memory at any time after it is issued, and after those that the
hardware runs before it (`tensor_memory`). A commit arrives once everything that its thread has issued is over, at
each CTA of its mask apart.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.clocks import BEFORE, EMPTY, LEVELS, LOOSE, SEEN, TENSOR, Clock, with_mark
from tilewright.emulate.cluster import LEAVES
from tilewright.emulate.descriptors import decode_instruction, decode_tcgen05_matrix
from tilewright.emulate.faults import Fault
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.copies import masked_ctas
from tilewright.emulate.instructions.mbarriers import barrier_at, place_of_barrier
from tilewright.emulate.instructions.tcgen05 import check_group, ctas_of
from tilewright.emulate.operations import Operation, new_event
from tilewright.emulate.registers import PRED, U16, U32, U64
from tilewright.emulate.tcgen05 import (
    a_addresses,
    a_from_cells,
    a_in_tensor_memory,
    accumulator,
    accumulator_columns,
    b_addresses,
    multiply,
    shared_bytes,
    shared_elements,
)
from tilewright.emulate.tensor_memory import (
    CellAccess,
    bits_of,
    pair_of,
    span,
    tensor_memory,
    thread_of,
)
from tilewright.emulate.tmem import column_of, copy, copy_form, lane_of
from tilewright.emulate.told import decoded, told
from tilewright.ptx.nodes import Memory, Vector

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.descriptors import InstructionDescriptor
    from tilewright.emulate.events import AsyncEvent
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.tensor_memory import Thread
    from tilewright.emulate.tmem import Copy
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

UNSUPPORTED = ("ws", "sp", "block_scale", "ashift")


def members(warp: Warp, lane: int, op: Op, ctas: int) -> list[Cta]:
    """The CTAs that an instruction of this thread works on, the even rank first."""
    if ctas == 1:
        return [warp.cta]
    pair = pair_of(warp.cta)
    if len(pair) == 1:
        raise Fault("TC-19", "cta_group::2 in a cluster without a peer")
    peer = pair[1 - warp.cta.rank % 2]
    warp.machine.accesses.check_alive(peer, warp, lane, op)
    return pair


def issue(
    warp: Warp,
    event: AsyncEvent,
    ctas: Iterable[Cta],
    accesses: Iterable[tuple[Cta, CellAccess]],
    act: Callable[[], None],
) -> None:
    """Begin something that commit tracks, behind what the hardware runs before it."""
    thread = thread_of(warp, event.lane)
    thread.issued += 1
    number = thread.issued

    def part() -> None:
        with told(warp.machine, event.op, event.who()):
            act()

    operation = Operation(warp.machine, event, [part], ctas)
    first: list[Operation] = []
    for cta, access in accesses:
        access.operation, access.thread, access.number = operation, thread, number
        first += tensor_memory(cta).enter(access)
    one = np.zeros(32, np.bool_)
    one[event.lane] = True
    warp.clocks.learn(one, thread.issued_key, number, (SEEN,))
    thread.pending.append(operation)

    def over() -> None:
        event.marks.append((thread.key, number))
        thread.pending.remove(operation)

    operation.after_done.append(over)
    start_after(operation, first)


def start_after(operation: Operation, first: Iterable[Operation]) -> None:
    """Let an operation act once others are done."""
    waits_for = {each.number: each for each in first if not each.done}
    if not waits_for:
        operation.start()
        return

    def one_done(number: int) -> None:
        del waits_for[number]
        if not waits_for:
            operation.start()

    for number, each in list(waits_for.items()):
        each.after_done.append(partial(one_done, number))


# --- mma --------------------------------------------------------------------------------------------------------------


class _Mma(NamedTuple):
    """One mma as one thread issues it.

    Attributes:
        d, a: addresses in tensor memory; a is None where A lies in shared memory.
        a_matrix, b_matrix: descriptors.
        disabled: lanes of each CTA that D leaves alone, as bits.
    """

    form: InstructionDescriptor
    ctas: list[Cta]
    d: int
    a: int | None
    a_matrix: int
    b_matrix: int
    accumulates: bool
    scale_d: int
    disabled: tuple[int, ...]

    def accesses(self, event: AsyncEvent) -> list[tuple[Cta, CellAccess]]:
        """The cells that it touches, checked against the allocations."""
        group = len(self.ctas)
        at = accumulator(self.form.m, self.form.n, group)
        count = accumulator_columns(self.form.m, self.form.n, group)
        found = []
        for index, cta in enumerate(self.ctas):
            lanes = bits_of(set((_part(at.lanes, index, group) + lane_of(self.d)).ravel().tolist()))
            columns = self._span(cta, column_of(self.d), count, "tcgen05.mma (D)")
            pipeline = ("mma", group, self.d, self.form.m, self.form.n)
            found.append((cta, CellAccess(event, lanes, columns, writes=True, pipeline=pipeline)))
            if self.a is not None:
                rows, width = a_in_tensor_memory(self.form, group)
                lanes = bits_of((rows + lane_of(self.a)).tolist())
                columns = self._span(cta, column_of(self.a), width, "tcgen05.mma (A)")
                read = CellAccess(event, lanes, columns, writes=False, pipeline=("mma", "A", group))
                found.append((cta, read))
        return found

    def _span(self, cta: Cta, first: int, count: int, what: str) -> int:
        tensor_memory(cta).allocations.check_columns(first, count, what)
        return span(first, count)

    def act(self, event: AsyncEvent) -> None:
        """Read the operands and change D."""
        form, group = self.form, len(self.ctas)
        right = np.concatenate(
            [
                self._shared(
                    event,
                    cta,
                    b_addresses(form, decode_tcgen05_matrix(self.b_matrix), group),
                    form.b,
                    mn_major=form.b_mn_major,
                )
                for cta in self.ctas
            ]
        )
        at = accumulator(form.m, form.n, group)
        for index, cta in enumerate(self.ctas):
            cells = tensor_memory(cta).cells
            lanes = _part(at.lanes, index, group) + lane_of(self.d)
            columns = _part(at.columns, index, group) + column_of(self.d)
            before = cells[lanes, columns]
            sums = multiply(
                form,
                self._left(event, cta, group),
                right,
                before if self.accumulates else None,
                scale_d=self.scale_d,
            )
            if self.disabled:
                kept = np.array([self.disabled[index] >> lane & 1 for lane in range(128)], np.bool_)
                sums = np.where(kept[lanes], before, sums)
            cells[lanes, columns] = sums

    def _left(self, event: AsyncEvent, cta: Cta, group: int) -> NDArray[np.uint32]:
        """One CTA's rows of A."""
        if self.a is None:
            at = a_addresses(self.form, decode_tcgen05_matrix(self.a_matrix), group)
            return self._shared(event, cta, at, self.form.a, mn_major=self.form.a_mn_major)
        rows, width = a_in_tensor_memory(self.form, group)
        lanes = rows + lane_of(self.a)
        columns = np.arange(width) + column_of(self.a)
        return a_from_cells(self.form, tensor_memory(cta).cells[lanes[:, None], columns])

    def _shared(
        self,
        event: AsyncEvent,
        cta: Cta,
        addresses: NDArray[np.int64],
        name: str,
        *,
        mn_major: bool,
    ) -> NDArray[np.uint32]:
        data = cta.machine.accesses.async_elements(event, cta.shared, addresses, shared_bytes(name))
        return shared_elements(data, name, mn_major=mn_major)


def _part(values: NDArray[np.int64], index: int, group: int) -> NDArray[np.int64]:
    """One CTA's rows of an array over D; what is the same for all rows stays whole."""
    return values if len(values) == 1 else np.split(values, group)[index]


@instruction("tcgen05.mma", visible=True)
def tcgen05_mma(op: Decoder) -> Run:
    """D = A B + D by one thread, for its CTA or its pair."""
    if any(word in UNSUPPORTED for word in op.modifiers):
        raise op.unknown()
    kind = next(m.removeprefix("kind::") for m in op.modifiers if m.startswith("kind::"))
    operands = list(op.operands)
    d = op.address(operands[0])
    a_memory = op.address(operands[1]) if isinstance(operands[1], Memory) else None
    a_matrix = op.source(operands[1], U64) if a_memory is None else None
    b_matrix, instruction_row = op.source(operands[2], U64), op.source(operands[3], U32)
    rest = operands[4:]
    mask: list[int] = []
    if rest and isinstance(rest[0], Vector):
        mask = [op.source(each, U32) for each in op.elements(rest.pop(0))]
    accumulates = op.source(rest[0], PRED)
    scale_d = op.immediate(rest[1]) if len(rest) > 1 else 0
    ctas, place = ctas_of(op), op.op
    if mask and len(mask) != 4 * ctas:
        raise op.unknown(f"`{op.op.name}` with a mask of {len(mask)} words")

    def run(warp: Warp, where: Where) -> None:
        check_group(warp, place, ctas)
        rows = warp.rows
        for lane in warp.lanes(where).tolist():
            one = np.array([lane])
            with told(warp.machine, place, warp.thread_name(lane)):
                words = [int(rows[U32][row][lane]) for row in mask]
                form = decode_instruction(int(rows[U32][instruction_row][lane]), kind, ctas)
                mma = _Mma(
                    form,
                    members(warp, lane, place, ctas),
                    int(warp.addresses(d, one)[0]),
                    int(warp.addresses(a_memory, one)[0]) if a_memory is not None else None,
                    int(rows[U64][a_matrix][lane]) if a_matrix is not None else 0,
                    int(rows[U64][b_matrix][lane]),
                    bool(rows[PRED][accumulates][lane]),
                    scale_d,
                    tuple(
                        sum(word << 32 * i for i, word in enumerate(words[first : first + 4]))
                        for first in range(0, len(words), 4)
                    ),
                )
                event = new_event(warp, lane, place, "tcgen05.mma")
                event.level = TENSOR
                accesses = mma.accesses(event)
            issue(warp, event, mma.ctas, accesses, partial(mma.act, event))

    return run


# --- cp ---------------------------------------------------------------------------------------------------------------


@instruction("tcgen05.cp", visible=True)
def tcgen05_cp(op: Decoder) -> Run:
    """Rows of shared memory to lanes of tensor memory, in each CTA of the group."""
    if op.has("b8x16"):
        raise op.unknown()
    shape = op.one_of("128x256b", "4x256b", "128x128b", "64x128b", "32x128b")
    multicast = op.one_of("warpx2::02_13", "warpx2::01_23", "warpx4")
    form = decoded(op, lambda: copy_form(shape, multicast))
    address, matrix = op.address(op.operands[0]), op.source(op.operands[1], U64)
    ctas, place = ctas_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        check_group(warp, place, ctas)
        for lane in warp.lanes(where).tolist():
            to = int(warp.addresses(address, np.array([lane]))[0])
            with told(warp.machine, place, warp.thread_name(lane)):
                at = decode_tcgen05_matrix(int(warp.rows[U64][matrix][lane]))
                group = members(warp, lane, place, ctas)
                event = new_event(warp, lane, place, "tcgen05.cp")
                event.level = TENSOR
                columns = span(column_of(to), form.row_bytes // 4)
                lanes = bits_of(set((form.lanes + lane_of(to)).ravel().tolist()))
                for cta in group:
                    tensor_memory(cta).allocations.check_columns(
                        column_of(to), form.row_bytes // 4, "tcgen05.cp"
                    )
                accesses = [
                    (cta, CellAccess(event, lanes, columns, writes=True, pipeline=("cp", ctas)))
                    for cta in group
                ]

            act = partial(
                _copy, event, group, at.element_addresses(form.rows, form.row_bytes, 1), to, form
            )
            issue(warp, event, group, accesses, act)

    return run


def _copy(
    event: AsyncEvent, group: list[Cta], source: NDArray[np.int64], to: int, form: Copy
) -> None:
    for cta in group:
        data = cta.machine.accesses.async_elements(event, cta.shared, source, 1)
        copy(tensor_memory(cta).cells, to, form, data)


# --- commit -----------------------------------------------------------------------------------------------------------


@instruction("tcgen05.commit", visible=True)
def tcgen05_commit(op: Decoder) -> Run:
    """An arrival at one barrier, or at one of each CTA of a mask, when this thread's instructions are over."""
    address = op.address(op.operands[0])
    space = op.spaces[0] if op.spaces else ""
    mask = op.source(op.operands[1], U16) if len(op.operands) > 1 else None
    ctas, place = ctas_of(op), op.op

    def run(warp: Warp, where: Where) -> None:
        check_group(warp, place, ctas, "TC-11")
        for lane in warp.lanes(where).tolist():
            thread = thread_of(warp, lane)
            with told(warp.machine, place, warp.thread_name(lane)):
                at = int(warp.addresses(address, np.array([lane]))[0])
                there = place_of_barrier(warp, place, space, at, lane)
                targets = [cta for cta in (there.segment.cta,) if cta is not None]
                if mask is not None:
                    targets = masked_ctas(warp, lane, place, int(warp.rows[U16][mask][lane]))
            for cta in targets:
                _commit_to(warp, lane, place, thread, cta, int(there.offsets[0]))

    return run


def _commit_to(warp: Warp, lane: int, place: Op, thread: Thread, cta: Cta, offset: int) -> None:
    event = new_event(warp, lane, place, "tcgen05.commit")
    number = thread.issued

    def arrive() -> None:
        if cta.has_exited:  # nobody is left to be told: the arrival is lost
            message = f"{event.who()} arrives at {cta.who}, which has left"
            warp.machine.report("TC-18", message, place, cta.left_at, LEAVES)
            return
        barrier = barrier_at(warp, place, cta.shared, offset, "MBAR-10", event.who())
        # What the thread had seen to be over when it issued is over before its own instructions are.
        over = Clock({}, event.issued[SEEN].marks)
        known = tuple(over if level in {BEFORE, LOOSE} else EMPTY for level in range(LEVELS))
        news = with_mark(known, thread.key, number, (SEEN, BEFORE))
        event.marks.append((barrier.key, barrier.phase))
        cta.arrived.append(event)
        barrier.arrive(1, place, event.who(), news)

    start_after(Operation(warp.machine, event, [arrive], [cta]), thread.pending)

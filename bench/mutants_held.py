"""Mutants of what a CTA holds: tensor memory and registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from mutants import Break, Subject, operator
from mutants_order import MEETINGS

from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.flow import Op

# --- TMEM -------------------------------------------------------------------------------------------------------------


@operator(
    "TC-14",
    breaks="race: the accumulator is declared free, or its registers are read, before the loads are done",
)
def drop_wait_ld(subject: Subject) -> Iterator[Break]:
    """tcgen05.wait::ld dropped, or behind the release."""
    for op in subject.kernel.ops("tcgen05.wait::ld"):
        yield Break("no wait for the loads", op, subject.drop(op))
        behind = subject.flow.ops[op.index + 1 : op.index + 24]
        release = next((o for o in behind if o.is_a("mbarrier.arrive")), None)
        after = subject.next_op(release) if release is not None else None
        if after is not None:
            edits = subject.drop(op) + subject.before(after, print_statement(op.node))
            yield Break("the loads are waited for behind the release", op, edits)


@operator(
    "TC-10", breaks="race: a thread's arrival does not wait for the products that it has issued"
)
def arrive_for_commit(subject: Subject) -> Iterator[Break]:
    """mbarrier.arrive for tcgen05.commit."""
    for op in subject.kernel.ops("tcgen05.commit"):
        address = print_operand(subject.raw(op, "mbar"))
        yield Break(
            f"an arrival for the commit{subject.on(op)}", op,
            subject.put(op, f"mbarrier.arrive.release.cta.shared::cta.b64 _, {address};"),
        )  # fmt: skip


@operator(
    "MBAR-03",
    "TC-10",
    "TC-17",
    "TC-11",
    breaks="deadlock: nobody says that the products are complete",
)
def drop_commit(subject: Subject) -> Iterator[Break]:
    """tcgen05.commit dropped."""
    for op in subject.kernel.ops("tcgen05.commit"):
        yield Break(f"no commit{subject.on(op)}", op, subject.drop(op))


@operator(
    "TC-05",
    "TC-06",
    breaks="hang: the columns stay taken, and the next CTA on the SM waits for them",
)
def drop_dealloc(subject: Subject) -> Iterator[Break]:
    """TMEM not given back."""
    for op in subject.kernel.ops("tcgen05.dealloc"):
        yield Break("no tcgen05.dealloc", op, subject.drop(op))


@operator(
    "TC-08",
    "TC-01",
    breaks="undefined: what is freed is not what was allocated, or no power of two from 32",
)
def wrong_columns(subject: Subject) -> Iterator[Break]:
    """Other columns freed than allocated, or allocated than freed."""
    for op in subject.kernel.ops("tcgen05.dealloc", "tcgen05.alloc"):
        columns = constant(op.node.operands[1])
        for wrong in (columns // 2, columns - 32) if columns is not None else ():
            if wrong >= 16:
                yield Break(
                    f"{wrong} columns for {columns} in {op.entry}", op,
                    subject.put(op, subject.set_to(op, "columns", "b32", wrong)),
                )  # fmt: skip


@operator("TC-03", breaks="undefined: no allocation may follow relinquish_alloc_permit")
def alloc_late(subject: Subject) -> Iterator[Break]:
    """The permit given back before the allocation."""
    relinquish = subject.kernel.ops("tcgen05.relinquish_alloc_permit")
    for op in subject.kernel.ops("tcgen05.alloc"):
        later = [o for o in relinquish if o.index > op.index]
        if later:
            edits = subject.drop(later[0]) + subject.before(op, print_statement(later[0].node))
            yield Break("tcgen05.alloc behind the permit's return", op, edits)


@operator(
    "TC-07",
    "TC-06",
    breaks="race: columns are freed while products or loads of either CTA may still use them",
)
def dealloc_early(subject: Subject) -> Iterator[Break]:
    """The freeing warp frees before the last meeting."""
    for op in subject.kernel.ops("tcgen05.dealloc"):
        meetings = [o for o in subject.kernel.ops(*MEETINGS) if o.index < op.index]
        last = next((o for o in reversed(meetings) if not o.is_a("barrier.cluster.wait")), None)
        if last is None:
            continue
        warps = _warp_of(subject, op)
        if warps is not None:
            text = (
                "{ .reg .b32 mutant; .reg .pred mine; mov.u32 mutant, %tid.x; shr.u32 mutant, mutant, 5; "
                f"setp.eq.u32 mine, mutant, {warps}; @mine {print_statement(op.node)} }}"
            )
            yield Break(
                "tcgen05.dealloc before the last meeting",
                op,
                subject.drop(op) + subject.before(last, text),
            )


def _warp_of(subject: Subject, op: Op) -> int | None:
    warps = _warps(subject, op)
    return warps.pop() if len(warps) == 1 else None


# --- registers --------------------------------------------------------------------------------------------------------

REGISTER_FILE = 65_536
"""32-bit registers a CTA. Source: CUDA C++ Programming Guide, technical specifications, from 8.0 on."""


@operator("REG-02", breaks="deadlock: setmaxnreg.inc waits for registers that nobody gives back")
def too_many_registers(subject: Subject) -> Iterator[Break]:
    """More registers than the file holds, or the producers keep theirs."""
    ops = subject.kernel.ops("setmaxnreg")
    threads = subject.kernel.shape.threads
    held = {op: len(_warps(subject, op)) * 32 for op in ops}
    before = REGISTER_FILE // max(threads, 1) // 8 * 8
    raised = [op for op in ops if op.has("inc")]
    for op in raised:
        others = sum(held[o] * (constant(o.node.operands[0]) or 0) for o in ops if o is not op)
        if held[op] * 256 + others > REGISTER_FILE:
            text = print_statement(subject.with_operand(op, "registers", Integer(256, "256")))
            yield Break(f"256 registers in each of {held[op]} threads", op, subject.put(op, text))
    for op in ops:
        wanted = sum(held[o] * (constant(o.node.operands[0]) or 0) for o in raised)
        if op.has("dec") and wanted + held[op] * before > REGISTER_FILE:
            yield Break(f"{held[op]} threads keep their registers", op, subject.drop(op))


def _warps(subject: Subject, op: Op) -> set[int]:
    mask, _ = subject.kernel.threads(op)
    return {int(thread) // 32 for thread in np.flatnonzero(np.any(mask, axis=0))}

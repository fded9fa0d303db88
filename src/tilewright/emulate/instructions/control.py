"""Control flow: branches, calls, ends. PTX ISA, 9.7.12 and miscellaneous instructions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import SEEN
from tilewright.emulate.instructions import GONE, instruction
from tilewright.emulate.memory import PREREQUISITE
from tilewright.emulate.register_file import Change, register_file
from tilewright.emulate.registers import U32, U64
from tilewright.emulate.warp import ALL, Frame
from tilewright.ptx.nodes import Group as Arguments, Name

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Outcome, Run
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


def _nothing(_warp: Warp, _where: Where) -> None:
    """For instructions that only give advice."""


@instruction("bra")
def bra(op: Decoder) -> Run:
    """The loop that runs a warp branches by itself: it knows the target and the meeting point."""
    del op
    return _nothing


@instruction("brx")
def brx(op: Decoder) -> Run:
    """Branch to one of a table's labels by index."""
    from tilewright.emulate.execute import split  # noqa: PLC0415  (it imports the instructions)

    index = op.source(op.operands[0], U32)
    table = next(
        (o.name for o in op.operands[1:] if isinstance(o, Name) and o.name in op.flow.tables), None
    )
    if table is None:
        raise op.unknown()
    targets = [op.first + op.flow.labels[name] for name in op.flow.tables[table]]
    number = op.first + op.op.index

    def run(warp: Warp, where: Where) -> Outcome:
        values = warp.rows[U32][index]
        lanes = warp.lanes(where)
        wanted = np.unique(values[lanes]).tolist()
        if wanted[-1] >= len(targets):
            warp.machine.stop(
                "CFG", f"{warp.who}: index {wanted[-1]} of a table of {len(targets)}", op.op
            )
        join = warp.machine.program.steps[number].join
        group = warp.group
        for value in wanted[1:]:
            split(warp.machine, group, (values == value) & group.lanes, targets[value], join)
        return targets[wanted[0]]

    return run


def leave(op: Op, warp: Warp, where: Where) -> Outcome:
    """The end of a thread, or of a call."""
    from tilewright.emulate.execute import take_out  # noqa: PLC0415  (it imports the instructions)

    group = warp.group
    if group.frames:
        frame = group.frames[-1]
        for source, destination, nbytes in frame.results:
            rows = warp.lanes(where)
            warp.local[rows, destination : destination + nbytes] = warp.local[
                rows, source : source + nbytes
            ]
        group.frames = group.frames[:-1]
        return frame.back_to
    lanes = group.lanes if where is True else where
    gone = np.array_equal(lanes, group.lanes)
    warp.cta.left_at = op
    take_out(warp.machine, group, np.array(lanes))
    return GONE if gone else None


@instruction("ret", visible=True)
def ret(op: Decoder) -> Run:
    """Return from a call, or end the thread."""
    return partial(leave, op.op)


@instruction("exit", visible=True)
def exit_(op: Decoder) -> Run:
    """End the thread."""

    def run(warp: Warp, where: Where) -> Outcome:
        warp.group.frames = ()
        return leave(op.op, warp, where)

    return run


@instruction("trap", visible=True)
def trap(op: Decoder) -> Run:
    """The kernel gives up."""

    def run(warp: Warp, _where: Where) -> None:
        warp.machine.stop("TRAP", f"{warp.group.who} executes trap", op.op)

    return run


@instruction("brkpt", "nanosleep", "pmevent", visible=True)
def pause(op: Decoder) -> Run:
    """Let others go first."""
    del op
    return _nothing


@instruction("setmaxnreg", visible=True)
def setmaxnreg(op: Decoder) -> Run:
    """Give registers back, or take some, which may not be there yet."""
    change = Change(op.op, op.has("inc"), op.immediate(op.operands[0]))

    def run(warp: Warp, _where: Where) -> Outcome:
        return register_file(warp.cta).change(warp, change)

    return run


@instruction("discard", "applypriority")
def advice(op: Decoder) -> Run:
    """Nothing that a result depends on."""
    del op
    return _nothing


@instruction("griddepcontrol.wait", "griddepcontrol.launch_dependents", visible=True)
def dependency(op: Decoder) -> Run:
    """From .wait on, what the prerequisite grid wrote may be used; launching dependents changes nothing here."""
    if op.has("launch_dependents"):
        return _nothing

    def run(warp: Warp, where: Where) -> None:
        warp.clocks.learn(where, PREREQUISITE, 1, (SEEN,))

    return run


@instruction("prefetch", "prefetchu", "cp.async.bulk.prefetch")
def prefetch(op: Decoder) -> Run:
    """Into a cache, which is not modelled."""
    del op
    return _nothing


@instruction("createpolicy")
def createpolicy(op: Decoder) -> Run:
    """A cache policy: opaque, and without effect."""
    d = op.destination(op.operands[0], U64)

    def run(warp: Warp, where: Where) -> None:
        np.copyto(warp.rows[U64][d], np.uint64(1), where=where)

    return run


# --- calls --------------------------------------------------------------------------------------------


def _names(operand: object) -> list[str]:
    if isinstance(operand, Arguments):
        return [e.name for e in operand.elements if isinstance(e, Name)]
    return []


@instruction("call")
def call(op: Decoder) -> Run:
    """Call a function by name; its parameters are copied in, its result out."""
    operands = list(op.operands)
    results = _names(operands.pop(0)) if isinstance(operands[0], Arguments) else []
    target = operands.pop(0)
    if not isinstance(target, Name):
        raise op.unknown("a call through a pointer")
    arguments = _names(operands[0]) if operands else []
    callee = op.program.function_named(target.name)
    if callee is None:
        return _external(op, target.name)
    layout = op.program.layout

    def pairs(formals: list[str], actuals: list[str]) -> list[tuple[int, int, int]]:
        found = []
        for formal, actual in zip(formals, actuals, strict=True):
            inside = layout.symbols[f"{callee.name}:{formal}"]
            outside = layout.symbols[op.symbol(actual)]
            found.append((inside.offset, outside.offset, inside.nbytes))
        return found

    formals = [d.name for p in callee.parameters or () for d in p.declarators]
    returned = [d.name for p in callee.results for d in p.declarators]
    copied_in, copied_out = pairs(formals, arguments), pairs(returned, results)
    entry, back_to = op.program.entries[callee.name], op.first + op.op.index + 1
    frame = Frame(back_to, tuple(copied_out))

    def run(warp: Warp, where: Where) -> Outcome:
        rows = ALL if where is True else np.flatnonzero(where)
        for inside, outside, nbytes in copied_in:
            warp.local[rows, inside : inside + nbytes] = warp.local[
                rows, outside : outside + nbytes
            ]
        group = warp.group
        if where is not True and not np.array_equal(where, group.lanes):
            warp.machine.stop("CFG", f"{group.who}: a call under a divergent predicate", op.op)
        group.frames = (*group.frames, frame)
        return entry

    return run


def _external(op: Decoder, name: str) -> Run:
    """Functions of the system: printf prints nothing, a failed assertion is a finding."""
    if name == "vprintf":
        return _nothing
    if name == "__assertfail":

        def run(warp: Warp, _where: Where) -> None:
            warp.machine.stop("ASSERT", f"{warp.group.who}: an assertion fails", op.op)

        return run
    raise op.unknown(f"the function `{name}`, which is only declared,")

"""A kernel decoded once: registers become rows of banks, each instruction one Python function over 32 lanes.

Literals, symbols and special registers that never change are rows as well, filled when a warp begins; so every
source operand is a row number. The kernel and the functions that it calls lie in one list of steps.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.coverage import Coverage, blocks_of, waits_of
from tilewright.emulate.decoder import Decoder
from tilewright.emulate.errors import NotModelled
from tilewright.emulate.instructions import find_instruction
from tilewright.emulate.layout import KernelLayout
from tilewright.emulate.registers import (
    DTYPES,
    KIND_OF_TYPE,
    UNSIGNED,
    WIDTHS,
    Array,
    new_bank,
)
from tilewright.errors import UnknownName
from tilewright.ptx.flow import Flow, immediate_dominators
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.emulate.instructions import Meeting, Run
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Function, Module

NOWHERE = -1


@dataclass(slots=True)
class Step:
    """One decoded instruction.

    Attributes:
        run: what it does.
        guard: row of the predicate of `@p`; -1 without.
        visible: other warps may tell when it happens: the scheduler may switch before it.
        meets: lanes that must execute it together (`.aligned`, a member mask); None for none.
        target: of `bra`, where it jumps; -1 for other instructions.
        join: of `bra`, where its two sides come together again; -1 if only at the end.
    """

    run: Run
    op: Op
    guard: int
    holds: bool
    visible: bool
    meets: Meeting | None
    target: int = NOWHERE
    join: int = NOWHERE


@dataclass(slots=True)
class _Banks:
    """Rows handed out so far: per width their number, and what some hold from the start."""

    rows: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    names: dict[tuple[object, ...], int] = field(default_factory=dict)
    constants: list[tuple[int, int, int]] = field(default_factory=list)  # width, row, bits

    def row(self, width: int, key: tuple[object, ...]) -> tuple[int, bool]:
        """The row of `key`, and whether it is new."""
        known = self.names.get((width, *key))
        if known is not None:
            return known, False
        row = self.names[(width, *key)] = self.rows[width]
        self.rows[width] += 1
        return row, True


class Program:
    """One kernel and what it calls.

    Attributes:
        steps: all instructions; the kernel's own come first.
        layout: where its variables and parameters lie.
        entries: first step of each function.
        coverage: what there is to come by; `block_starts` has the first step of each of its blocks.
    """

    def __init__(self, module: Module, kernel: str | None = None) -> None:
        """Decode.

        Args:
            kernel: name of the entry; None if the module has just one.
        Raises:
            UnknownName: no such kernel, or several and none named.
            NotModelled: an instruction or form that the emulator does not have.
        """
        self.module = module
        self.function = choose_kernel(module, kernel)
        self.name = self.function.name
        self._banks = _Banks()
        self.specials: dict[tuple[str, int], int] = {}
        self.addresses: dict[tuple[str, int, int], int] = {}
        self._functions = {f.name: f for f in module.functions if f.body is not None}
        self._flows: dict[str, Flow] = {}
        self.entries: dict[str, int] = {}
        self._link()
        self.layout = KernelLayout(module, self.function, self._flows)
        self.steps: list[Step] = []
        for name, flow in self._flows.items():
            self._decode(name, flow)
        self._find_blocks()

    # --- functions and their order ----------------------------------------------------------------

    def _link(self) -> None:
        """Every function that can be called, the kernel first, and where each begins."""
        waiting = [self.name]
        length = 0
        while waiting:
            name = waiting.pop()
            if name in self._flows:
                continue
            flow = self._flows[name] = Flow(self._functions[name], self.module)
            self.entries[name] = length
            length += len(flow.ops) + 1  # and the return that a body may leave out
            waiting.extend(callee for callee in _called(flow) if callee in self._functions)

    def _find_blocks(self) -> None:
        self.block_starts: list[int] = []
        blocks: list[tuple[int, int]] = []
        waits: list[int] = []
        for name, flow in self._flows.items():
            for first, last in blocks_of(flow):
                self.block_starts.append(self.entries[name] + first)
                blocks.append((flow.ops[first].span.line, flow.ops[last].span.line))
            waits += waits_of(flow)
        self.coverage = Coverage(tuple(blocks), waits=tuple(dict.fromkeys(waits)))

    def function_named(self, name: str) -> Function | None:
        """A function with a body, by name."""
        return self._functions.get(name)

    def _decode(self, name: str, flow: Flow) -> None:
        first = self.entries[name]
        joins = _joins(flow)
        for op in flow.ops:
            decoder = Decoder(self, name, flow, op, first)
            known = find_instruction(op.node.opcode)
            if known is None:
                raise NotModelled(f"`{op.name}`", op.span)
            guard = self.register(name, flow, op.guard, 1, op) if op.guard else NOWHERE
            run = known.decode(decoder)
            visible = known.visible and not decoder.is_private
            step = Step(run, op, guard, op.guard_holds, visible, decoder.meets(known))
            if op.node.opcode.root == "bra":
                target = op.operands[0]
                label = target.name if isinstance(target, Name) else ""
                if label not in flow.labels:
                    raise NotModelled(f"a branch to `{label}`, which is no label", op.span)
                step.target = first + flow.labels[label]
            if op.node.opcode.root in {"bra", "brx"} and op.index in joins:
                step.join = first + joins[op.index]
            self.steps.append(step)
        self.steps.append(_final_return(flow))

    # --- rows -------------------------------------------------------------------------------------

    def register(self, function: str, flow: Flow, name: str, width: int, op: Op) -> int:
        """The row of a register; `width` is what the instruction reads, the declaration decides."""
        declared = flow.type_of(name)
        kind = KIND_OF_TYPE.get(declared.removeprefix("."))
        if kind is None:
            raise NotModelled(f"`{name}`, which no .reg declares,", op.span)
        if WIDTHS[kind] != width:
            raise NotModelled(f"`{name}` of {WIDTHS[kind]} bits where {width} are used", op.span)
        return self._banks.row(width, (function, name))[0]

    def constant(self, width: int, bits: int) -> int:
        """A row that holds `bits` in every lane."""
        row, new = self._banks.row(width, ("constant", bits))
        if new:
            self._banks.constants.append((width, row, bits))
        return row

    def special(self, name: str, width: int) -> int:
        """A row that holds a special register which never changes."""
        row, new = self._banks.row(width, ("special", name))
        if new:
            self.specials[name, width] = row
        return row

    def address(self, name: str, offset: int, width: int) -> int:
        """A row that holds the address of a symbol in its own state space, plus an offset."""
        row, new = self._banks.row(width, ("address", name, offset))
        if new:
            self.addresses[name, offset, width] = row
        return row

    def scratch(self, width: int) -> int:
        """A row that nobody reads: where a result written to `_` goes."""
        return self._banks.row(width, ("scratch",))[0]

    def carry(self) -> int:
        """The row of the condition code that add.cc leaves for addc."""
        return self._banks.row(1, ("carry",))[0]

    def new_banks(self) -> dict[int, Array]:
        """Registers of one warp with the constants in them."""
        banks = {width: new_bank(width, max(1, rows)) for width, rows in self._banks.rows.items()}
        for width, row, bits in self._banks.constants:
            if width == 128:
                banks[width][row] = (bits & (2**64 - 1), bits >> 64)
            else:
                banks[width][row] = DTYPES[UNSIGNED[width]](bits)
        return banks


def choose_kernel(module: Module, kernel: str | None) -> Function:
    """The entry of that name, or the only one.

    Raises:
        UnknownName: no such kernel, or several and none named.
    """
    entries = {f.name: f for f in module.functions if f.kind == ".entry" and f.body is not None}
    if kernel is None and len(entries) == 1:
        return next(iter(entries.values()))
    if kernel is None or kernel not in entries:
        raise UnknownName("kernel", kernel or "", entries)
    return entries[kernel]


def _called(flow: Flow) -> Iterator[str]:
    for op in flow.ops:
        if op.node.opcode.root == "call":
            yield from (each.name for each in op.operands if isinstance(each, Name))


def _joins(flow: Flow) -> dict[int, int]:
    """For each branch the instruction at which its sides meet again: its immediate post-dominator."""
    count = len(flow.ops)
    backward: dict[int, tuple[int, ...]] = defaultdict(tuple)  # node 0 is the end, i + 1 is op i
    for op in flow.ops:
        after = flow.following(op.index)
        ends = op.node.opcode.root in {"ret", "exit", "trap"} or not after
        for each in after:
            backward[each + 1] = (*backward[each + 1], op.index + 1)
        if ends:
            backward[0] = (*backward[0], op.index + 1)
    above = immediate_dominators(dict(backward), count + 1)
    return {
        op.index: above[op.index + 1] - 1
        for op in flow.ops
        if op.node.opcode.root in {"bra", "brx"} and above.get(op.index + 1, 0) > 0
    }


def _final_return(flow: Flow) -> Step:
    """The return after the last instruction, which a body may leave out."""
    from tilewright.emulate.instructions.control import leave  # noqa: PLC0415  (control needs Step)

    last = flow.ops[-1]
    return Step(partial(leave, last), last, NOWHERE, holds=True, visible=True, meets=None)


def widen(value: int, width: int) -> int:
    """An integer literal as the bits of a register."""
    return value & ((1 << width) - 1)


@lru_cache(maxsize=1024)
def lanes_of(mask: int) -> Array:
    """A member mask as 32 bools, which must not be changed."""
    found = (np.uint32(mask) >> np.arange(32, dtype=np.uint32) & np.uint32(1)).astype(np.bool_)
    found.flags.writeable = False
    return found

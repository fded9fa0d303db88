"""Protocol mutants: one kernel with one break of its contract put in, by named operators.

    subject = Subject(Kernel(module, function, options))
    for mutant in make_mutants(subject): mutant.text is PTX again

An operator yields every distinct mutant that it finds in a kernel, and its `breaks` says why each one
deadlocks, races or is undefined. What would be the same kernel in other words is left out: a fence that
another fence covers, a wait that nothing rests on, a leader predicate in front of work that all may do.
A mutant is the kernel's own text with a few statements replaced in their line, so that all other lines keep
their numbers. Where an operand is changed, the instruction gets a scope of its own with a register `mutant`.

    mutants_barrier.py   waits, arrivals, bytes, counts, parities, initialisation
    mutants_order.py     fences, meetings, bulk groups, wgmma groups
    mutants_held.py      TMEM, registers
    mutants_who.py       leaders, ranks, masks, who signals whom, exits
    mutants_clc.py       requests, answers, declines
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from tilewright.audit.contract import COMPLETIONS, SIGNALS, WAITS
from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.nodes import Binary, Block, Integer, Memory, Name, Opcode, Variable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Instruction, Operand, Statement

FAMILIES = ("mutants_barrier", "mutants_order", "mutants_held", "mutants_who", "mutants_clc")

DEPENDENT = (
    "cp.async", "cp.reduce.async", "wgmma.mma_async", "tcgen05.mma", "tcgen05.cp", "tcgen05.ld",
    "tcgen05.st", "tcgen05.commit", "mbarrier.arrive", "clusterlaunchcontrol", "st", "ld", "atom",
    "red", "stmatrix", "ldmatrix",
)  # fmt: skip
"""What may rest on a wait or a meeting, parameters and constants aside."""


class Edit(NamedTuple):
    """Characters [start, end) of the text, and what stands there instead."""

    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Mutant:
    """One broken kernel.

    Attributes:
        operator: name of what made it.
        what: in a line.
        line: the first that changes.
        near: lines that name the barrier object that this is about.
        edits: of the original text, in order.
    """

    operator: str
    what: str
    line: int
    near: frozenset[int]
    source: str
    edits: tuple[Edit, ...]

    @property
    def text(self) -> str:
        """The PTX with the break in it."""
        parts, at = [], 0
        for start, end, text in self.edits:
            parts += [self.source[at:start], text]
            at = end
        return "".join([*parts, self.source[at:]])

    @property
    def changed(self) -> str:
        """The replaced statements, as they are now."""
        return "; ".join(" ".join(edit.text.split()) or "(dropped)" for edit in self.edits)


class Break(NamedTuple):
    """What an operator yields: what, where, and the edits.

    Attributes:
        about: the instructions whose barriers it breaks, beside `at`.
    """

    what: str
    at: Op
    edits: Iterable[Edit]
    about: Iterable[Op] = ()


@dataclass(frozen=True)
class Operator:
    """One way to break a kernel.

    Attributes:
        rules: ids of the catalogue that the break violates; any may report it.
        breaks: why every mutant is wrong.
    """

    name: str
    rules: tuple[str, ...]
    breaks: str
    make: Callable[[Subject], Iterator[Break]]


OPERATORS: dict[str, Operator] = {}


def operator(
    *rules: str, breaks: str
) -> Callable[[Callable[[Subject], Iterator[Break]]], Callable[[Subject], Iterator[Break]]]:
    """Register an operator under the name of its function."""

    def register(
        make: Callable[[Subject], Iterator[Break]],
    ) -> Callable[[Subject], Iterator[Break]]:
        name = make.__name__
        OPERATORS[name] = Operator(name, rules, breaks, make)
        return make

    return register


def load_operators() -> dict[str, Operator]:
    """Every operator by name; the family files register on import."""
    for family in FAMILIES:
        importlib.import_module(family)
    return OPERATORS


def make_mutants(subject: Subject) -> list[Mutant]:
    """Every distinct mutant of a kernel, by operator in the order of their files."""
    found: dict[tuple[Edit, ...], Mutant] = {}
    for each in load_operators().values():
        for what, at, edits, about in each.make(subject):
            ordered = tuple(sorted(set(edits)))
            if ordered and ordered not in found:
                line = subject.text.count("\n", 0, ordered[0].start) + 1
                near = frozenset().union(*(subject.lines_near(op) for op in (at, *about)))
                found[ordered] = Mutant(each.name, what, line, near, subject.text, ordered)
    return list(found.values())


class Subject:
    """A kernel to break: its text, what is known of it, and how statements of it are replaced."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel, self.flow, self.values = kernel, kernel.flow, kernel.values
        self.text: str = kernel.function.at[0].text
        self._outer: dict[int, Statement] = {}
        if kernel.function.body is not None:
            for statement in kernel.function.body.statements:
                for inner in _instructions(statement):
                    self._outer[id(inner)] = statement

    @property
    def cluster(self) -> int:
        """CTAs of the cluster."""
        return self.kernel.shape.ranks

    # --- edits -----------------------------------------------------------------------------------

    def drop(self, *ops: Op) -> list[Edit]:
        """Nothing where they stood."""
        return [self._edit(op.node.at[1], op.node.at[2], "") for op in ops]

    def put(self, op: Op, text: str) -> list[Edit]:
        """Something else in place of one instruction."""
        return [self._edit(op.node.at[1], op.node.at[2], text)]

    def before(self, op: Op, text: str) -> list[Edit]:
        """Something in front of the outermost scope that an instruction is in; behind its label."""
        start = self._outer[id(op.node)].at[1]
        return [self._edit(start, start, f"{text} ")]

    def behind(self, op: Op, text: str) -> list[Edit]:
        """Something right behind an instruction, in its scope."""
        return [self._edit(op.node.at[2], op.node.at[2], f" {text}")]

    def behind_scope(self, op: Op, text: str) -> list[Edit]:
        """Something behind the outermost scope that an instruction is in."""
        end = self._outer[id(op.node)].at[2]
        return [self._edit(end, end, f" {text}")]

    def scope(self, op: Op) -> str:
        """The text of the outermost scope that an instruction is in, in one line."""
        start, end = self._outer[id(op.node)].at[1:]
        return " ".join(self.text[start:end].split())

    def drop_scope(self, op: Op) -> list[Edit]:
        """Without the outermost scope that an instruction is in: an inline asm's braces, or itself."""
        start, end = self._outer[id(op.node)].at[1:]
        return [self._edit(start, end, "")]

    @staticmethod
    def _edit(start: int, end: int, text: str) -> Edit:
        return Edit(start, end, text)

    # --- instructions ----------------------------------------------------------------------------

    def with_operand(self, op: Op, role: str, operand: Operand) -> Instruction:
        """The instruction with another operand."""
        place = list(op.roles).index(role)
        operands = op.node.operands
        return replace(op.node, operands=(*operands[:place], operand, *operands[place + 1 :]))

    def raw(self, op: Op, role: str) -> Operand:
        """An operand as it is written."""
        return op.node.operands[list(op.roles).index(role)]

    def shifted(self, op: Op, role: str, offset: int) -> str:
        """The instruction with an address moved by some bytes."""
        address = self.raw(op, role)
        assert isinstance(address, Memory)
        moved = address.offset + offset
        whole = Memory((Binary("+", address.base, Integer(moved, str(moved))), *address.parts[1:]))
        return print_statement(self.with_operand(op, role, whole))

    def changed(self, op: Op, role: str, type_: str, how: str, by: int) -> str:
        """The instruction with an operand changed by one more: `how` is xor, or, add."""
        source = print_operand(self.raw(op, role))
        operation = f"{how}.u32" if how == "add" else f"{how}.{type_}"
        text = print_statement(self.with_operand(op, role, Name("mutant")))
        return f"{{ .reg .{type_} mutant; {operation} mutant, {source}, {by}; {text} }}"

    def set_to(self, op: Op, role: str, type_: str, value: int) -> str:
        """The instruction with a number for an operand, in a register."""
        text = print_statement(self.with_operand(op, role, Name("mutant")))
        return f"{{ .reg .{type_} mutant; mov.{type_} mutant, {value}; {text} }}"

    @staticmethod
    def with_modifiers(op: Op, *modifiers: str) -> Instruction:
        """The instruction with other modifiers."""
        return replace(op.node, opcode=Opcode(op.node.opcode.root, modifiers))

    def without(self, op: Op, *gone: str) -> str:
        """The instruction without some modifiers."""
        kept = (word for word in op.node.opcode.modifiers if word not in gone)
        return print_statement(self.with_modifiers(op, *kept))

    def swapped(self, op: Op, old: str, new: str) -> str:
        """The instruction with one modifier for another."""
        words = (new if word == old else word for word in op.node.opcode.modifiers)
        return print_statement(self.with_modifiers(op, *words))

    # --- barriers --------------------------------------------------------------------------------

    @cached_property
    def waits(self) -> list[Op]:
        """Waits that something rests on."""
        return [op for op in self.kernel.ops(*WAITS) if self._is_needed(op)]

    def _is_needed(self, wait: Op) -> bool:
        """Behind a producer's tail comes nothing but the end; it still takes in what commits signal late."""
        ring = self.kernel.ring(wait)
        commits = ring is not None and self.kernel.of_ring(ring, "tcgen05.commit")
        return bool(commits) or self.reaches_work(wait)

    def reaches_work(self, op: Op) -> bool:
        """Whether anything that could race comes behind an instruction, on a way of its own threads."""
        ways = self.flow.reachable((op.index,), self.kernel.elsewhere(op))
        return any(
            after.is_a(*DEPENDENT) and not after.has("param") and after.index != op.index
            and self.kernel.together(after, op)
            for after in map(self.flow.ops.__getitem__, ways)
        )  # fmt: skip

    def retries(self, wait: Op) -> list[Op]:
        """Branches that ask the wait again: guarded by its result, back to it."""
        done = wait.operands[0]
        return [
            op
            for op in self.flow.ops
            if isinstance(done, Name) and op.guard == done.name and op.node.opcode.root == "bra"
            and self.flow.path((op.index,), (wait.index,))
            and any(n in {wait.index, wait.index - 1} for n in self.flow.following(op.index))
        ]  # fmt: skip

    def signals(self) -> list[Op]:
        """Arrivals and completions on barriers."""
        ops = [*self.kernel.ops(*SIGNALS), *self.kernel.ops(*COMPLETIONS)]
        return sorted({op for op in ops if "mbar" in op.roles}, key=lambda op: op.index)

    def loads(self) -> list[Op]:
        """Asynchronous copies that complete on a barrier."""
        return [op for op in self.kernel.ops("cp.async.bulk", "st.async") if "mbar" in op.roles]

    def neighbour(self, ring: Ring) -> int | None:
        """Bytes to another barrier object, the next one of its symbol; None where there is no other."""
        others = [r for r in self.kernel.rings if r.base == ring.base and r is not ring]
        behind = [r.start for r in others if r.start > ring.start]
        if not others:
            return None
        return (min(behind) if behind else min(r.start for r in others)) - ring.start

    @cached_property
    def _lines(self) -> dict[Ring, set[int]]:
        """Lines of the instructions on each barrier object."""
        found: dict[Ring, set[int]] = {}
        for op in self.flow.ops:
            if "mbar" in op.roles and (ring := self.kernel.ring(op)) is not None:
                found.setdefault(ring, set()).add(op.span.line)
        return found

    def lines_near(self, op: Op) -> frozenset[int]:
        """Lines of the instructions on the same barrier object, its own included."""
        ring = self.kernel.ring(op) if "mbar" in op.roles else None
        return frozenset({op.span.line} | (self._lines[ring] if ring is not None else set()))

    def on(self, op: Op) -> str:
        """` on NAME`, if the barrier is understood."""
        ring = self.kernel.ring(op) if "mbar" in op.roles else None
        return f" on {ring.name}" if ring is not None else ""

    def next_op(self, op: Op) -> Op | None:
        """The instruction behind the scope of this one."""
        end = self._outer[id(op.node)].at[2]
        behind = (o for o in self.flow.ops[op.index + 1 :] if o.node.at[1] >= end)
        return next(behind, None)


def _instructions(statement: Statement) -> Iterator[Instruction]:
    if isinstance(statement, Block):
        for inner in statement.statements:
            yield from _instructions(inner)
    elif hasattr(statement, "opcode") and not isinstance(statement, Variable):
        yield statement  # type: ignore[misc]

"""What a predicate says of the instructions that it was computed from.

A kernel asks an instruction (a barrier wait, a query) and carries the answer through `selp`, `setp`, logic and
flags to a branch. `Logic.answers` follows it back: which answers are possible once the branch went one way. A flag
that meets in a loop is taken by induction: it holds what its definitions gave it.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, NamedTuple

from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Memory, Name, Pair, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.flow import Flow, Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Values

Answers = frozenset[bool]
BOTH: Answers = frozenset({True, False})
NEITHER: Answers = frozenset()

_COMPARE = {
    "eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
    "ge": operator.ge, "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge,
}  # fmt: skip
_OPPOSITE = {
    "eq": "ne", "ne": "eq", "lt": "ge", "ge": "lt", "gt": "le", "le": "gt",
    "lo": "hs", "hs": "lo", "hi": "ls", "ls": "hi",
}  # fmt: skip


class Test(NamedTuple):
    """A question about a register: its bits under `mask`, compared with a number."""

    compare: str = "ne"
    number: int = 0
    mask: int = -1

    def holds(self, value: int) -> bool:
        """Whether a value passes."""
        return bool(_COMPARE[self.compare](value & self.mask, self.number))


HOLDS, FAILS = Test("ne"), Test("eq")


class Logic:
    """Backward reasoning over one function's predicates."""

    def __init__(self, flow: Flow, values: Values) -> None:
        self.flow, self.values = flow, values
        self._slices: dict[tuple[str, tuple[int, ...]], frozenset[int]] = {}

    # --- answers ----------------------------------------------------------------------------------

    def answers(self, register: str, at: int, test: Test, asked: frozenset[int]) -> Answers:
        """Answers that instructions of `asked` may have given, if the register passes `test` at `at`.

        Empty where the register cannot pass; both where nothing follows.
        """
        return _Question(self, asked).of(register, at, test)

    def edges(self, asked: frozenset[int]) -> dict[tuple[int, bool], Answers]:
        """Of every guarded instruction, by what its predicate was: the answers that fit."""
        question = _Question(self, asked)
        return {
            (op.index, holds): question.of(op.guard, op.index, HOLDS if holds else FAILS)
            for op in self.flow.ops
            if op.guard
            for holds in (True, False)
        }

    # --- slices -----------------------------------------------------------------------------------

    def slice(self, register: str, at: int) -> frozenset[int]:
        """Instructions that a register's value was computed by; what memory held is left aside."""
        key = register, self.values.reaching(register, at)
        if key not in self._slices:
            found: set[int] = set()
            stack = list(key[1])
            while stack:
                here = stack.pop()
                if here in found:
                    continue
                found.add(here)
                op = self.flow.ops[here]
                for name in registers_read(op):
                    stack.extend(self.values.reaching(name, here))
            self._slices[key] = frozenset(found)
        return self._slices[key]


class _Question:
    """One set of instructions that were asked, with what is known so far."""

    def __init__(self, logic: Logic, asked: frozenset[int]) -> None:
        self.logic, self.asked = logic, asked
        self.flow, self.values = logic.flow, logic.values
        self._known: dict[tuple[str, tuple[int, ...], Test], Answers] = {}
        self._busy: set[tuple[str, tuple[int, ...], Test]] = set()
        self._open: set[tuple[str, tuple[int, ...], Test]] = set()

    def of(self, register: str, at: int, test: Test) -> Answers:
        definitions = self.values.reaching(register, at)
        if not definitions:
            return BOTH
        key = register, definitions, test
        if key in self._known:
            return self._known[key]
        if key in self._busy:
            self._open.add(key)
            return NEITHER
        self._busy.add(key)
        outer, self._open = self._open, set()
        found = NEITHER
        for definition in definitions:
            found |= self._left_by(self.flow.ops[definition], test)
        self._busy.discard(key)
        self._open.discard(key)
        if not self._open:
            self._known[key] = found
        self._open |= outer
        return found

    def _left_by(self, op: Op, test: Test) -> Answers:
        if op.index in self.asked:
            return frozenset(answer for answer in BOTH if test.holds(int(answer)))
        found = self._computed(op, test)
        if found != BOTH:
            return found
        for condition in self.flow.conditions(op):  # a definition says that its place was reached
            needed = HOLDS if condition.holds else FAILS
            found &= self.of(condition.register, condition.at, needed)
        return found

    def _operand(self, operand: Operand, op: Op, test: Test) -> Answers:
        number = constant(operand)
        if (
            number is None
            and isinstance(operand, Name)
            and not self.values.definitions(operand.name)
        ):
            number = self.values.of(operand, op).number()
        if number is not None:
            return BOTH if test.holds(number) else NEITHER
        if isinstance(operand, Name):
            return self.of(operand.name, op.index, test)
        return BOTH

    def _computed(self, op: Op, test: Test) -> Answers:  # noqa: PLR0911  (a case an opcode)
        root, sources = op.node.opcode.root, op.operands[1:]
        if root in {"mov", "cvt"} and len(sources) == 1:
            return self._operand(sources[0], op, test)
        if root == "not" and op.has("pred"):
            return self._both_ways(op, test, sources[0], swap=True)
        if root in {"and", "or"} and op.has("pred"):
            return self._combined(op, test, root)
        if root == "and" and (mask := constant(sources[1])) is not None:
            return self._operand(sources[0], op, test._replace(mask=test.mask & mask))
        if root == "selp":
            yes, no, chooser = sources
            return (self._operand(yes, op, test) & self._operand(chooser, op, HOLDS)) | (
                self._operand(no, op, test) & self._operand(chooser, op, FAILS)
            )
        if root == "setp":
            return self._compared(op, test)
        return BOTH

    def _both_ways(self, op: Op, test: Test, source: Operand, *, swap: bool) -> Answers:
        found = NEITHER
        for truth in (True, False):
            if test.holds(int(truth)):
                found |= self._operand(source, op, HOLDS if truth != swap else FAILS)
        return found

    def _combined(self, op: Op, test: Test, how: str) -> Answers:
        left, right = op.operands[1:3]
        found = NEITHER
        for truth in (True, False):
            if test.holds(int(truth)):
                wanted = HOLDS if truth else FAILS
                a, b = self._operand(left, op, wanted), self._operand(right, op, wanted)
                found |= a & b if truth == (how == "and") else a | b
        return found

    def _compared(self, op: Op, test: Test) -> Answers:
        compare = next((m for m in op.node.opcode.modifiers if m in _COMPARE), None)
        number = self.values.of(op.operands[2], op).number()
        if compare is None or number is None or isinstance(op.operands[0], Pair):
            return BOTH
        combine = next((m for m in op.node.opcode.modifiers if m in {"and", "or"}), None)
        if len(op.operands) > 3 and combine is None:
            return BOTH
        found = NEITHER
        for truth in (True, False):
            if not test.holds(int(truth)):
                continue
            asks = Test(compare if truth else _OPPOSITE[compare], number)
            one = self._operand(op.operands[1], op, asks)
            if combine is not None:
                other = self._operand(op.operands[3], op, HOLDS if truth else FAILS)
                one = one & other if truth == (combine == "and") else one | other
            found |= one
        return found


def registers_read(op: Op) -> Iterator[str]:
    """Registers whose value an instruction uses; its guard is not among them."""
    if op.facts is not None and op.roles:
        for role in op.facts.operands:
            if role.access != "write" and role.name in op.roles:
                yield from _names(op.roles[role.name])
        return
    first = 0 if op.node.opcode.root in {"st", "bar", "barrier", "red"} else 1
    for operand in op.operands[:first]:
        if isinstance(operand, Memory):
            yield from _names(operand)
    for operand in op.operands[first:]:
        yield from _names(operand)


def _names(operand: Operand) -> Iterator[str]:
    match operand:
        case Name():
            yield operand.name
        case Vector():
            for element in operand.elements:
                yield from _names(element)
        case Pair():
            yield from _names(operand.first)
            yield from _names(operand.second)
        case Memory():
            for part in operand.parts:
                yield from _names(part)
        case _:
            for side in ("left", "right", "operand"):
                inner = getattr(operand, side, None)
                if inner is not None:
                    yield from _names(inner)

"""What a kernel can still do from an instruction on, as its PTX says, when some of its values are known.

A walk in the order of control: one way at a branch whose predicate is known, both ways where it is not, and
on each the predicate is known, as is a register that it compared with a constant and found equal. A register
is known when every way to an instruction gives it the same constant; what no rule below computes is unknown.
So what the walk does not reach cannot happen, and what it reaches may.

Left out: calls, indirect branches, values in memory.
"""

from __future__ import annotations

from collections import ChainMap, Counter
from typing import TYPE_CHECKING, NamedTuple

from tilewright.ptx import parse_ptx
from tilewright.ptx.nodes import (
    Block,
    Instruction,
    Integer,
    Label,
    Memory,
    Name,
    Pair,
    Unary,
    Variable,
    Vector,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tilewright.ptx.nodes import Operand

SHARED = ("dynamic_shared", "tilewright_shared")
"""Dynamic shared memory, as the kernels and the harness call it."""

Known = dict[str, int]
"""Constants by register; predicates are 0 and 1."""


class Step(NamedTuple):
    """One instruction, its names made unique: each `{ }` has registers and labels of its own."""

    instruction: Instruction
    names: Mapping[str, str]

    def opens(self, *starts: str) -> bool:
        """Whether the opcode begins with one of `starts`."""
        return str(self.instruction.opcode).startswith(starts)

    def has(self, *modifiers: str) -> bool:
        """Whether the opcode has every one of `modifiers`."""
        return self.instruction.opcode.has(*modifiers)

    def points(self, index: int) -> bool:
        """Whether operand number `index` is an address in brackets."""
        return isinstance(self.instruction.operands[index], Memory)

    def register(self, index: int) -> str:
        """The name that operand number `index` is."""
        operand = self.instruction.operands[index]
        assert isinstance(operand, Name), self.instruction.text
        return self.names.get(operand.name, operand.name)

    def address(self, index: int, known: Known) -> int | None:
        """Where operand number `index` points, from the start of dynamic shared memory."""
        operand = self.instruction.operands[index]
        assert isinstance(operand, Memory), self.instruction.text
        base = self.value(operand.base, known)
        return None if base is None else base + operand.offset

    def value(self, operand: Operand, known: Known) -> int | None:
        """A literal, or what the register is known to hold; addresses count from dynamic shared memory's start."""
        if isinstance(operand, Integer):
            return operand.value
        if isinstance(operand, Unary) and operand.operator == "-":
            inner = self.value(operand.operand, known)
            return None if inner is None else -inner
        if isinstance(operand, Name) and not operand.component:
            if operand.name in SHARED:
                return 0
            return known.get(self.names.get(operand.name, operand.name))
        return None


class Flow:
    """The instructions of a module's one kernel, and which can follow which."""

    def __init__(self, ptx: str) -> None:
        (kernel,) = (each for each in parse_ptx(ptx).functions if each.kind == ".entry")
        assert kernel.body is not None
        self.steps: list[Step] = []
        self.labels: dict[str, int] = {}
        self._flatten(kernel.body, ChainMap())
        writes = [(name, step) for step in self.steps for name in _results(step)]
        times = Counter(name for name, _ in writes)
        self.equal = {
            name: equal
            for name, step in writes
            if times[name] == 1 and (equal := _equality(step)) and times[equal[0]] == 1
        }
        """Predicate -> (register, constant, the predicate's value if they are equal), all written once."""

    def _flatten(self, block: Block, outer: ChainMap[str, str]) -> None:
        own: dict[str, str] = {}
        names = ChainMap(own, *outer.maps)
        for statement in block.statements:
            declared: Iterable[str] = ()
            if isinstance(statement, Variable):
                declared = (each.name for each in statement.declarators if each.count is None)
            elif isinstance(statement, Label):
                declared = (statement.name,)
            own |= {name: f"{name}@{len(self.steps)}" for name in declared}
        for statement in block.statements:
            if isinstance(statement, Block):
                self._flatten(statement, names)
            elif isinstance(statement, Label):
                self.labels[names[statement.name]] = len(self.steps)
            elif isinstance(statement, Instruction):
                self.steps.append(Step(statement, names))

    def find(self, *starts: str) -> list[int]:
        """Where the instructions are whose opcode begins with one of `starts`."""
        return [index for index, step in enumerate(self.steps) if step.opens(*starts)]

    def reach(
        self, start: int = 0, known: Known | None = None, stop: Iterable[int] = ()
    ) -> dict[int, Known]:
        """Every instruction that can come at or after `start`, with what is known there.

        Args:
            known: registers as they are before `start`.
            stop: instructions that are reached and not passed.
        """
        seen: dict[int, Known] = {start: dict(known or {})}
        waiting, ends = [start], frozenset(stop)
        while waiting:
            index = waiting.pop()
            if index in ends:
                continue
            for following, after in self._follow(index, seen[index]):
                before = seen.get(following)
                met = after if before is None else dict(before.items() & after.items())
                if before != met:
                    seen[following] = met
                    waiting.append(following)
        return seen

    def _follow(self, index: int, known: Known) -> Iterator[tuple[int, Known]]:
        """What can come next, and what is known there."""
        step = self.steps[index]
        guard = step.instruction.guard
        runs: int | None = 1
        if guard is not None:
            runs = step.value(guard.predicate, known)
            runs = None if runs is None else runs ^ guard.negated
        assert not step.opens("brx", "call"), step.instruction.text
        done = known if runs == 0 else _run(step, known)
        if runs is None:
            done = dict(done.items() & known.items())
        if step.opens("bra"):
            if runs != 0:
                yield self.labels[step.register(0)], self._learn(step, known, taken=True)
        elif step.opens("ret", "exit"):
            pass
        elif runs != 0:
            yield index + 1, done
            return
        if runs != 1:
            yield index + 1, self._learn(step, known, taken=False) if step.opens("bra") else done

    def _learn(self, branch: Step, known: Known, *, taken: bool) -> Known:
        """What is known beyond a branch that is taken or is not."""
        guard = branch.instruction.guard
        if guard is None or not isinstance(guard.predicate, Name):
            return known
        predicate, value = (
            branch.names.get(guard.predicate.name, guard.predicate.name),
            taken ^ guard.negated,
        )
        learnt = known | {predicate: int(value)}
        register, constant, equal = self.equal.get(predicate, ("", 0, None))
        if value == equal:
            learnt[register] = constant
        return learnt


def _run(step: Step, known: Known) -> Known:
    """What is known after an instruction that ran."""
    operands = step.instruction.operands
    results = _results(step)
    if not results:
        return known
    after = {name: value for name, value in known.items() if name not in results}
    value = _compute(step, [step.value(each, known) for each in operands[1:]])
    first = operands[0].first if isinstance(operands[0], Pair) else operands[0]
    if value is not None and isinstance(first, Name):
        after[step.names.get(first.name, first.name)] = value
    return after


def _results(step: Step) -> list[str]:
    """Registers that an instruction writes: its first operand, or what that is made of."""
    found: list[str] = []
    waiting = list(step.instruction.operands[:1])
    while waiting:
        operand = waiting.pop()
        if isinstance(operand, Name):
            found.append(step.names.get(operand.name, operand.name))
        elif isinstance(operand, Pair):
            waiting += operand.first, operand.second
        elif isinstance(operand, Vector):
            waiting += operand.elements
    return found


def _equality(step: Step) -> tuple[str, int, int] | None:
    """(register, constant, result when they are equal) of a setp.eq or setp.ne."""
    compares = {"eq": 1, "ne": 0}.get(next(iter(step.instruction.opcode.modifiers), ""))
    if not step.opens("setp") or compares is None or len(step.instruction.operands) != 3:
        return None
    constant = step.value(step.instruction.operands[2], {})
    if constant is None or not isinstance(step.instruction.operands[1], Name):
        return None
    return step.register(1), constant, compares


def _compute(step: Step, values: list[int | None]) -> int | None:
    """The result of the few operations that addresses and predicates are made of."""
    root, modifiers = step.instruction.opcode.root, step.instruction.opcode.modifiers
    is_predicate = modifiers[-1:] == ("pred",)
    if is_predicate:
        values = [None if value is None else int(value != 0) for value in values]
    match root, values:
        case ("mov", [value]):
            found = value
        case ("not", [int(value)]) if is_predicate:
            found = 1 - value
        case ("and", [0, _] | [_, 0]):
            found = 0
        case ("or", [1, _] | [_, 1]) if is_predicate:
            found = 1
        case ("selp", [yes, no, int(chosen)]):
            found = yes if chosen else no
        case ("shfl", [value, 0, _, _]) if "idx" in modifiers:
            found = value  # every lane gets lane 0's, which took the path that is followed
        case (_, [int(left), int(right)]):
            found = _combine(root, modifiers, left, right)
        case _:
            found = None
    return found


def _combine(root: str, modifiers: tuple[str, ...], left: int, right: int) -> int | None:
    comparisons = {
        "eq": left == right,
        "ne": left != right,
        "lt": left < right,
        "le": left <= right,
        "gt": left > right,
        "ge": left >= right,
    }
    if root == "setp":
        return int(comparisons[modifiers[0]]) if modifiers[0] in comparisons else None
    return {
        "add": left + right,
        "sub": left - right,
        "and": left & right,
        "or": left | right,
        "xor": left ^ right,
    }.get(root)

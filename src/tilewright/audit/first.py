"""What a register holds the first time that an instruction is reached: loops not yet gone round.

A phase bit is a loop-carried register; its first value is what tells a wait that blocks on a fresh barrier
(parity 0) from one that passes at once (parity 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.signals import WAITS
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

DEPTH_MAX = 40
FOLLOWED = frozenset({"mov", "cvt", "selp", "setp", "xor", "and", "or", "add", "sub", "shr"})


def first_number(kernel: Kernel, operand: Operand | None, op: Op, depth: int = 0) -> int | None:
    """The number that an operand is in every thread when `op` is first reached; None where that is not known."""
    number = constant(operand)
    if number is not None or not isinstance(operand, Name) or depth > DEPTH_MAX:
        return number
    key = operand.name, op.index
    kept = kernel.reach.first
    if key not in kept:
        kept[key] = None  # going round: not known
        settled = kernel.values.of(operand, op).number()
        kept[key] = _of_definitions(kernel, *key, depth) if settled is None else settled
    return kept[key]


def _of_definitions(kernel: Kernel, name: str, at: int, depth: int) -> int | None:
    results = {
        _result(kernel, kernel.flow.ops[index], depth)
        if _not_in_a_loop_before(kernel, index, at)
        else None
        for index in _first_definitions(kernel, name, at)
    }
    return results.pop() if len(results) == 1 else None


def _first_definitions(kernel: Kernel, name: str, at: int) -> list[int]:
    """Definitions that reach `at` without going back to the head of a loop."""
    flow = kernel.flow
    defs = {each.index for each in kernel.values.definitions(name)}
    found: list[int] = []
    seen: set[int] = set()
    stack = [i for i in flow.preceding(at) if not flow.dominates(at, i)]
    while stack:
        here = stack.pop()
        if here in seen:
            continue
        seen.add(here)
        if here in defs:
            found.append(here)
            if not flow.ops[here].guard:
                continue
        stack.extend(i for i in flow.preceding(here) if not flow.dominates(here, i))
    return found


def _not_in_a_loop_before(kernel: Kernel, definition: int, at: int) -> bool:
    return all(at in members for _, members in kernel.flow.loops(definition))


def _result(kernel: Kernel, op: Op, depth: int) -> int | None:
    root = op.node.opcode.root
    if op.guard or root not in FOLLOWED:
        return None
    values = [first_number(kernel, each, op, depth + 1) for each in op.operands[1:]]
    if root in {"mov", "cvt"}:
        return values[0] if values else None
    if root == "selp":
        return _selected(kernel, op, depth)
    if any(value is None for value in values) or len(values) != 2:
        return None
    a, b = values[0] or 0, values[1] or 0
    table = {
        "xor": a ^ b,
        "and": a & b,
        "or": a | b,
        "add": a + b,
        "sub": a - b,
        "shr": a >> max(b, 0),
    }
    if root == "setp":
        compare = {"eq": a == b, "ne": a != b, "lt": a < b, "ge": a >= b, "gt": a > b, "le": a <= b}
        how = next((m for m in op.node.opcode.modifiers if m in compare), None)
        return None if how is None else int(compare[how])
    return table.get(root)


def _selected(kernel: Kernel, op: Op, depth: int) -> int | None:
    chosen = first_number(kernel, op.operands[3], op, depth + 1)
    if chosen is None:
        return None
    return first_number(kernel, op.operands[1 if chosen else 2], op, depth + 1)


def first_parity(kernel: Kernel, wait: Op) -> int | None:
    """Bit 0 of the parity that a wait first waits for."""
    number = first_number(kernel, wait.role("parity"), wait)
    return None if number is None else number & 1


def spins(kernel: Kernel, wait: Op) -> bool:
    """Whether nobody gets past a wait before it has returned true: a loop that only its result leaves."""
    if wait.guard:
        return False
    for _, members in kernel.flow.loops(wait.index)[:1]:
        ways_out = [
            each
            for each in members
            if any(after not in members for after in kernel.flow.following(each))
        ]
        return bool(ways_out) and all(
            _is_result(kernel, kernel.flow.ops[each].guard, each, wait) for each in ways_out
        )
    return False


def _is_result(kernel: Kernel, register: str, at: int, wait: Op) -> bool:
    """Whether a predicate is a wait's result, through the selp and setp that carry it."""
    for _ in range(4):
        defs = kernel.values.reaching(register, at)
        if len(defs) != 1:
            return False
        op = kernel.flow.ops[defs[0]]
        if op is wait:
            return True
        carried = {"selp": 3, "setp": 1, "mov": 1, "not": 1}.get(op.node.opcode.root)
        operand = op.operands[carried] if carried is not None else None
        if not isinstance(operand, Name):
            return False
        register, at = operand.name, op.index
    return False


def blocking_waits(kernel: Kernel, ring: Ring) -> set[int]:
    """Waits of one barrier object that first wait for phase 0: they pass only once it is complete."""
    return {
        op.index
        for op in kernel.of_ring(ring, *WAITS)
        if first_parity(kernel, op) == 0 and spins(kernel, op)
    }

"""Where a register's value comes from: what it depends on, which of its bits are known, which allocation it is.

`Values` says what a register is; here is what it is made of, for questions that need no number: may it differ
between the lanes of a warp, are the upper bits of a descriptor what the ISA wants, is it the address that
tcgen05.alloc wrote.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Memory, Name, Vector
from tilewright.ptx.values import defined_by

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Condition, Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Value

LANES_DIFFER = frozenset(
    {"%tid", "%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"}
    | {"elect", "atom", "red", "call", "%clock", "%clock64", "%globaltimer", "ld.local", "activemask"}
)  # fmt: skip
"""Sources that may differ between the lanes of a warp."""

WARPS_DIFFER = LANES_DIFFER | {"%warpid", "ld"}
"""Sources that may differ between the warps of a CTA."""

CTAS_DIFFER = frozenset(
    {"%ctaid", "%cluster_ctarank", "%cluster_ctaid", "%smid", "ld", "atom", "call"}
)
"""Sources that may differ between the CTAs of a cluster."""

DEPTH_MAX = 60
"""Definitions that known bits are followed through, one from the next."""


def sources(
    kernel: Kernel, register: str, at: int | None = None, given: Collection[Condition] = ()
) -> frozenset[str]:
    """Special registers and kinds of instruction that a register depends on, whatever the way it takes.

    Over the definitions that reach an instruction, and what decides between them. `%tid.x` is `%tid`; a load is
    "ld" with what its address depends on, and "ld.local" where it is of the thread's own.

    Args:
        at: the instruction; None for all definitions of the name.
        given: conditions that hold anyway and decide nothing.
    """
    values = kernel.values
    found: set[str] = set()
    seen: set[tuple[str, tuple[int, ...]]] = set()
    stack: list[tuple[str, int | None]] = [(register, at)]
    while stack:
        name, place = stack.pop()
        if place is None:
            ops = list(values.definitions(name))
        else:
            ops = [kernel.flow.ops[index] for index in values.reaching(name, place)]
        key = name, tuple(op.index for op in ops)
        if key in seen:
            continue
        seen.add(key)
        if not ops and name.startswith("%"):
            found.add(name)
        for op in ops:
            found |= _kinds(op)
            if not _agreed(kernel, op):
                stack.extend((each, op.index) for each in _read(op))
            stack.extend(_deciding(kernel, op, ops, given))
    return frozenset(found)


def _deciding(
    kernel: Kernel, op: Op, defs: list[Op], given: Collection[Condition]
) -> Iterator[tuple[str, int]]:
    """Predicates that decide whether this definition or another is made."""
    if len(defs) > 1:
        shared = set.intersection(*(set(kernel.flow.conditions(each)) for each in defs))
        for condition in set(kernel.flow.conditions(op)) - shared - set(given):
            yield condition.register, condition.at


def _agreed(kernel: Kernel, op: Op) -> bool:
    """Whether a warp agrees on the result: votes, a broadcast from a constant lane, and waits in the end."""
    if op.is_a("mbarrier.try_wait", "mbarrier.test_wait"):
        return True
    root = op.node.opcode.root
    if root == "shfl" and op.has("idx") and len(op.operands) > 2:
        return kernel.values.of(op.operands[2], op).number() is not None
    return root in {"vote", "redux"}


def _kinds(op: Op) -> set[str]:
    root = op.node.opcode.root
    if root == "ld":
        words = set(op.node.opcode.modifiers)
        if any(word.startswith("param") for word in words):
            return set()
        return {"ld", "ld.local"} if "local" in words else {"ld"}
    return {root} if root in {"elect", "atom", "red", "call", "activemask"} else set()


def _read(op: Op) -> Iterator[str]:
    written = set(defined_by(op))
    for operand in op.operands:
        yield from (name for name in _registers(operand) if name not in written)
    if op.guard:
        yield op.guard


def _registers(operand: Operand) -> Iterator[str]:
    match operand:
        case Name():
            yield operand.name
        case Memory():
            yield from (name for part in operand.parts for name in _registers(part))
        case Vector():
            yield from (name for part in operand.elements for name in _registers(part))
        case _:
            for each in ("left", "right", "operand", "first", "second"):
                inner = getattr(operand, each, None)
                if inner is not None:
                    yield from _registers(inner)


def may_split(kernel: Kernel, op: Op, differ: frozenset[str]) -> bool:
    """Whether an unknown condition of the instruction may depend on one of these sources."""
    return any(
        sources(kernel, condition.register, condition.at) & differ
        for condition in unknown_conditions(kernel, op)
    )


def unknown_conditions(kernel: Kernel, op: Op) -> list[Condition]:
    """Conditions of an instruction that no value decides, those that are and, or, not taken apart."""
    found: list[Condition] = []
    stack = kernel.flow.conditions(op)
    while stack:
        condition = stack.pop()
        if kernel.values.register(condition.register, condition.at).known:
            continue
        parts = kernel.values.implied(condition)
        stack.extend(parts)
        if not parts:
            found.append(condition)
    return found


# --- bits -----------------------------------------------------------------------------------------

_ALL = (1 << 64) - 1


@dataclass(frozen=True)
class Bits:
    """A 64-bit pattern of which some bits are known."""

    known: int = 0
    value: int = 0

    def field(self, low: int, width: int) -> int | None:
        """Bits `low` and up, if all of them are known."""
        mask = (1 << width) - 1
        return self.value >> low & mask if self.known >> low & mask == mask else None


class BitTracer:
    """Which bits of a kernel's registers are known; keeps what it found."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._found: dict[tuple[str, tuple[int, ...]], Bits] = {}
        self._depth = 0

    def of(self, operand: Operand, op: Op) -> Bits:
        """The bits of an operand that are the same on every way to the instruction; of a loop's none."""
        number = constant(operand)
        if number is not None:
            return Bits(_ALL, number & _ALL)
        if not isinstance(operand, Name) or operand.component:
            return Bits()
        defs = self.kernel.values.reaching(operand.name, op.index)
        key = operand.name, defs
        if key not in self._found:
            self._found[key] = Bits()  # what it is to itself, on the way round a loop
            if self._depth < DEPTH_MAX:
                self._depth += 1
                self._found[key] = self._meet(operand.name, defs)
                self._depth -= 1
        return self._found[key]

    def _meet(self, name: str, defs: tuple[int, ...]) -> Bits:
        each = [self._result(self.kernel.flow.ops[index], name) for index in defs]
        meet = each[0] if each else Bits()
        for bits in each[1:]:
            meet = _agreement(meet, bits)
        return meet

    def _result(self, op: Op, name: str) -> Bits:
        root = op.node.opcode.root
        if isinstance(op.operands[0], Vector):
            return self._half(op, name)
        wide = any(word in {"b64", "u64", "s64"} for word in op.node.opcode.modifiers)
        width = _ALL if wide else (1 << 32) - 1
        sources = [self.of(operand, op) for operand in op.operands[1:]]
        result = Bits()
        if root == "mov" and wide and isinstance(op.operands[1], Vector):
            result = self._packed(op.operands[1], op)
        elif root == "mov":
            result = sources[0]
        elif root == "cvt":
            return _converted(op, sources[0])
        elif root in {"and", "or", "xor"}:
            result = _bitwise(root, *sources[:2])
        elif root in {"shl", "shr"} and sources[1].field(0, 8) is not None:
            result = _shifted(op, sources[0], sources[1].value & 0xFF, width)
        elif root in {"add", "sub"}:
            result = _sum(sources[0], sources[1], subtract=root == "sub")
        elif root == "selp":
            result = _agreement(sources[0], sources[1])
        known = result.known & width | _ALL & ~width
        return Bits(known, result.value & result.known & width)

    def _half(self, op: Op, name: str) -> Bits:
        """Of `mov.b64 {low, high}, wide`."""
        halves = op.operands[0].elements if isinstance(op.operands[0], Vector) else ()
        if op.node.opcode.root != "mov" or len(halves) != 2 or not op.has("b64"):
            return Bits()
        wide = self.of(op.operands[1], op)
        by = 32 * [getattr(half, "name", "") for half in halves].index(name)
        upper = _ALL & ~((1 << 32) - 1)
        return Bits(wide.known >> by | upper, wide.value >> by & ~upper)

    def _packed(self, halves: Vector, op: Op) -> Bits:
        if len(halves.elements) != 2:
            return Bits()
        low, high = (self.of(half, op) for half in halves.elements)
        word = (1 << 32) - 1
        return Bits(
            low.known & word | (high.known & word) << 32,
            low.value & word | (high.value & word) << 32,
        )


def _agreement(a: Bits, b: Bits) -> Bits:
    same = a.known & b.known & ~(a.value ^ b.value)
    return Bits(same, a.value & same)


def _converted(op: Op, bits: Bits) -> Bits:
    """Of `cvt.u64.u32` and its like: zero above an unsigned source, unknown above a signed one."""
    kinds = [word for word in op.node.opcode.modifiers if word[:1] in "usb" and word[1:].isdigit()]
    if len(kinds) != 2:
        return Bits()
    source = int(kinds[1][1:])
    mask = (1 << source) - 1
    if kinds[1].startswith("s"):
        return Bits(bits.known & mask, bits.value & mask)
    return Bits(bits.known & mask | _ALL & ~mask, bits.value & mask)


def _bitwise(root: str, a: Bits, b: Bits) -> Bits:
    both = a.known & b.known
    if root == "and":
        zero = a.known & ~a.value | b.known & ~b.value
        return Bits(both | zero & _ALL, a.value & b.value & (both | zero))
    if root == "or":
        one = a.known & a.value | b.known & b.value
        return Bits(both | one, (a.value | b.value) & (both | one))
    return Bits(both, (a.value ^ b.value) & both)


def _shifted(op: Op, bits: Bits, by: int, width: int) -> Bits:
    if op.node.opcode.root == "shl":
        low = (1 << by) - 1
        return Bits((bits.known << by | low) & width, bits.value << by & width)
    known, value = bits.known & width, bits.value & width
    upper = width & ~(width >> by)
    if any(word in {"s32", "s64"} for word in op.node.opcode.modifiers):
        return Bits(known >> by & ~upper, value >> by & ~upper)
    return Bits(known >> by | upper, value >> by)


def _sum(a: Bits, b: Bits, *, subtract: bool) -> Bits:
    """Ripple carry over bits that are 0, 1 or unknown."""
    if subtract:
        b = Bits(b.known, ~b.value & b.known & _ALL)
    carry: int | None = 1 if subtract else 0
    known = value = 0
    for place in range(64):
        bits = (_bit(a, place), _bit(b, place), carry)
        ones, unknown = bits.count(1), bits.count(None)
        if not unknown:
            known |= 1 << place
            value |= (ones & 1) << place
        carry = 1 if ones >= 2 else 0 if ones + unknown < 2 else None
    return Bits(known, value)


def _bit(bits: Bits, place: int) -> int | None:
    return bits.value >> place & 1 if bits.known >> place & 1 else None


# --- allocations ----------------------------------------------------------------------------------


def allocations(kernel: Kernel) -> dict[str, list[Op]]:
    """Unknown terms that stand for the address that tcgen05.alloc wrote, and the allocations that may have.

    The term is what a load of the alloc's own shared address gives.
    """
    places = [(kernel.value(op, "address"), op) for op in kernel.ops("tcgen05.alloc")]
    found: dict[str, list[Op]] = {}
    for op in kernel.flow.ops:
        if op.node.opcode.root != "ld" or not isinstance(op.operands[0], Name):
            continue
        if not isinstance(op.operands[1], Memory):
            continue
        where = kernel.values.of(op.operands[1], op)
        by = [a for value, a in places if value is not None and _same_address(value, where)]
        if by:
            found[f"{op.operands[0].name} = {op.index}"] = by
    return found


def _same_address(a: Value, b: Value) -> bool:
    return bool(a.base) and a.same_place(b) and not a.unknown and not b.unknown


def allocation_of(value: Value | None, terms: dict[str, list[Op]]) -> list[Op]:
    """Allocations that an address in tensor memory belongs to; empty when that is not understood."""
    if value is None or value.base:
        return []
    for name, coefficient in value.unknown:
        if coefficient == 1 and name in terms:
            return terms[name]
    return []

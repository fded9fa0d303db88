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
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Value

LANES_DIFFER = frozenset(
    {"%tid", "%laneid", "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"}
    | {"elect", "atom", "red", "call", "%clock", "%clock64", "%globaltimer", "ld.local", "activemask"}
)  # fmt: skip
"""Sources that may differ between the lanes of a warp."""

WARPS_DIFFER = LANES_DIFFER | {"%warpid", "ld"}
"""Sources that may differ between the warps of a CTA."""

CTAS_DIFFER = frozenset({"%ctaid", "%cluster_ctarank", "%cluster_ctaid", "%smid", "ld", "atom", "call"})
"""Sources that may differ between the CTAs of a cluster."""

DEPTH_MAX = 60
"""Definitions that known bits are followed through."""


def sources(kernel: Kernel, register: str) -> frozenset[str]:
    """Special registers and kinds of instruction that a register depends on, whatever the way it takes.

    Over all definitions of its name, and what decides between them. `%tid.x` is `%tid`; a load is "ld" with
    what its address depends on, and "ld.local" where it is of the thread's own.
    """
    found: set[str] = set()
    seen: set[str] = set()
    stack = [register]
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        defs = kernel.values.definitions(name)
        if not defs and name.startswith("%"):
            found.add(name)
        for op in defs:
            found |= _kinds(op)
            if not _agreed(kernel, op):
                stack.extend(_read(op))
            if len(defs) > 1:
                stack.extend(condition.register for condition in kernel.flow.conditions(op))
    return frozenset(found)


def _agreed(kernel: Kernel, op: Op) -> bool:
    """Whether a warp agrees on the result: votes, matches, and a broadcast from a constant lane."""
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
    for condition in kernel.flow.conditions(op):
        value = kernel.values.register(condition.register, condition.at)
        if not value.known and sources(kernel, condition.register) & differ:
            return True
    return False


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


def known_bits(kernel: Kernel, operand: Operand, op: Op, depth: int = 0) -> Bits:
    """The bits of an operand that are the same on every way to the instruction."""
    number = constant(operand)
    if number is not None:
        return Bits(_ALL, number & _ALL)
    if not isinstance(operand, Name) or operand.component or depth > DEPTH_MAX:
        return Bits()
    defs = kernel.values.reaching(operand.name, op.index)
    meet: Bits | None = None
    for index in defs:
        bits = _bits_of(kernel, kernel.flow.ops[index], depth + 1)
        if meet is None:
            meet = bits
        else:
            same = meet.known & bits.known & ~(meet.value ^ bits.value)
            meet = Bits(same, meet.value & same)
        if not meet.known:
            break
    return meet or Bits()


def _bits_of(kernel: Kernel, op: Op, depth: int) -> Bits:
    root = op.node.opcode.root
    wide = any(word in {"b64", "u64", "s64"} for word in op.node.opcode.modifiers)
    width = _ALL if wide else (1 << 32) - 1

    def at(place: int) -> Bits:
        return known_bits(kernel, op.operands[place], op, depth)

    result = Bits()
    if root == "mov" and isinstance(op.operands[1], Vector):
        parts = [known_bits(kernel, part, op, depth) for part in op.operands[1].elements]
        if wide and len(parts) == 2:
            low = (1 << 32) - 1
            result = Bits(
                parts[0].known & low | (parts[1].known & low) << 32,
                parts[0].value & low | (parts[1].value & low) << 32,
            )
    elif root == "mov":
        result = at(1)
    elif root == "cvt":
        result = _converted(op, at(1))
    elif root in {"and", "or", "xor"}:
        result = _bitwise(root, at(1), at(2))
    elif root in {"shl", "shr"} and (by := at(2)).known & 0xFF == 0xFF:
        result = _shifted(op, at(1), by.value & 0xFF, width)
    elif root in {"add", "sub"}:
        result = _sum(at(1), at(2), subtract=root == "sub")
    elif root == "selp":
        yes, no = at(1), at(2)
        same = yes.known & no.known & ~(yes.value ^ no.value)
        result = Bits(same, yes.value & same)
    known = result.known | (0 if wide else _ALL & ~width)
    return Bits(known, result.value & result.known & width)


def _converted(op: Op, bits: Bits) -> Bits:
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

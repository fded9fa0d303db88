"""Phases as the waiters count them: a slot index and a parity that go round together.

A thread that walks a ring keeps two registers: `slot` goes 0, 1, ... and back to 0 where a predicate holds, and
`parity` flips by that same predicate. What a wait names is then so many steps ahead of the registers, and its parity
that of the register or the other one. All waits of one walk must agree on which; and the first parity says whether
the slot is waited for full (0) or free (1).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.audit.first import first_parity
from tilewright.audit.signals import WAITS
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

STEPS_MAX = 64
SAME = frozenset({"mov", "cvt"})


@dataclass(frozen=True)
class Parity:
    """What a wait's parity is made of.

    Attributes:
        register: whose bit it is, some steps ago; "" of a number.
        flip: 1 where it is the other one.
        wraps: definitions of the predicates that flipped it since, in order.
    """

    register: str
    flip: int
    wraps: tuple[int, ...] = ()


def parity_of(kernel: Kernel, wait: Op) -> Parity | None:
    """The parity of a wait as flips of a register; None where it is made otherwise."""
    operand = wait.role("parity")
    flip, at = 0, wait
    wraps: list[int] = []
    for _ in range(STEPS_MAX):
        value = None if operand is None else kernel.values.of(operand, at).number()
        if value is not None:
            return Parity("", flip ^ value & 1, tuple(reversed(wraps)))
        if not isinstance(operand, Name):
            return None
        defs = kernel.values.reaching(operand.name, at.index)
        if len(defs) != 1:
            return Parity(operand.name, flip, tuple(reversed(wraps)))
        at = kernel.flow.ops[defs[0]]
        root, sources = at.node.opcode.root, at.operands[1:]
        if (root in SAME and len(sources) == 1 and not at.guard) or (
            root == "and" and constant(sources[1]) == 1
        ):
            operand = sources[0]
        elif root == "xor" and not at.guard:
            step = _flip(kernel, at)
            if step is None:
                return None
            operand, by = step
            if by < 0:
                flip ^= 1
            else:
                wraps.append(by)
        else:
            return Parity(operand.name, flip, tuple(reversed(wraps)))
    return None


def _flip(kernel: Kernel, op: Op) -> tuple[Operand, int] | None:
    """What an `xor` flips, and by what: -1 for always, or the definition of the predicate that decides."""
    for mine, other in ((1, 2), (2, 1)):
        number = kernel.values.of(op.operands[other], op).number()
        if number is not None:
            return (op.operands[mine], -1) if number & 1 else None
        wrap = _chosen(kernel, op.operands[other], op)
        if wrap is not None:
            return op.operands[mine], wrap
    return None


def _chosen(kernel: Kernel, operand: Operand, at: Op) -> int | None:
    """The definition of `p` in an operand that is `selp 1, 0, p`."""
    if not isinstance(operand, Name):
        return None
    defs = kernel.values.reaching(operand.name, at.index)
    op = kernel.flow.ops[defs[0]] if len(defs) == 1 else None
    if op is None or op.node.opcode.root != "selp" or op.guard:
        return None
    if (constant(op.operands[1]), constant(op.operands[2])) != (1, 0):
        return None
    return _defined(kernel, op.operands[3], op)


def _defined(kernel: Kernel, operand: Operand, at: Op) -> int | None:
    if not isinstance(operand, Name):
        return None
    defs = kernel.values.reaching(operand.name, at.index)
    return defs[0] if len(defs) == 1 else None


@dataclass(frozen=True)
class Slot:
    """A wait's slot: the register that it is some steps ahead of, and the predicates that sent it back to 0."""

    register: str
    wraps: tuple[int, ...]


def slot_of(kernel: Kernel, wait: Op) -> Slot | None:
    """The slot of a wait as steps of a register; None where it is not walked by one index."""
    value = kernel.value(wait, "mbar")
    wraps: list[int] = []
    while value is not None and len(value.unknown) == 1 and len(wraps) < STEPS_MAX:
        term = value.unknown[0][0]
        name, _, made = term.partition(" = ")
        if not made.isdigit():
            return Slot(term.split(" by ")[0], tuple(reversed(wraps))) if " by " in term else None
        op = kernel.flow.ops[int(made)]
        chooser = _defined(kernel, op.operands[3], op) if op.node.opcode.root == "selp" else None
        if chooser is None:
            return Slot(name, tuple(reversed(wraps)))
        wraps.append(chooser)
        sides = [kernel.values.of(each, op) for each in op.operands[1:3]]
        ahead = [side for side in sides if side.unknown]
        value = ahead[0] if len(ahead) == 1 else None
    return None


def registers_walk(kernel: Kernel, slot: str, parity: str) -> bool:
    """Whether two registers go round together: the parity flips by the predicate that sends the slot back to 0."""
    back = {
        made for op in kernel.values.definitions(slot) for made in [_wraps_at(kernel, op)] if made
    }
    flips = {
        made for op in kernel.values.definitions(parity) for made in [_flips_at(kernel, op)] if made
    }
    return bool(back) and back == flips


def _wraps_at(kernel: Kernel, op: Op) -> int | None:
    choice = _behind_copies(kernel, op, "selp")
    return _defined(kernel, choice.operands[3], choice) if choice is not None else None


def _flips_at(kernel: Kernel, op: Op) -> int | None:
    flip = _behind_copies(kernel, op, "xor")
    step = _flip(kernel, flip) if flip is not None else None
    return step[1] if step is not None and step[1] >= 0 else None


def _behind_copies(kernel: Kernel, op: Op, root: str) -> Op | None:
    """The instruction of this opcode whose result `op` is, or copies."""
    for _ in range(STEPS_MAX):
        if op.node.opcode.root == root:
            return op
        if op.node.opcode.root not in SAME:
            return None
        made = _defined(kernel, op.operands[1], op)
        if made is None:
            return None
        op = kernel.flow.ops[made]
    return None


# --- waits that do not agree ----------------------------------------------------------------------


def _walked(kernel: Kernel, ring: Ring) -> Iterator[tuple[Op, Slot, Parity]]:
    for wait in kernel.of_ring(ring, *WAITS):
        slot, parity = slot_of(kernel, wait), parity_of(kernel, wait)
        if slot is not None and parity is not None and parity.register:
            yield wait, slot, parity


def waits_agree(kernel: Kernel, ring: Ring) -> Iterator[Outcome]:
    """MBAR-07: waits of one walk over a ring, of which one is for the other parity than the rest."""
    groups: dict[tuple[str, str], list[tuple[Op, Parity]]] = {}
    for wait, slot, parity in _walked(kernel, ring):
        if slot.wraps == parity.wraps and registers_walk(kernel, slot.register, parity.register):
            groups.setdefault((slot.register, parity.register), []).append((wait, parity))
    for group in groups.values():
        flips = [parity.flip for _, parity in group]
        if len(set(flips)) < 2:
            continue
        usual = (
            flips[0]
            if 2 * flips.count(flips[0]) == len(flips)
            else max(set(flips), key=flips.count)
        )
        odd = next(wait for wait, parity in group if parity.flip != usual)
        fine = next(wait for wait, parity in group if parity.flip == usual)
        yield kernel.finding(
            "MBAR-07",
            f"{ring.name} is waited for with one parity here and with the other elsewhere, though slot and phase bit are of one walk: one of the two waits is a phase off",
            odd, fine, "waits for the other parity",
        )  # fmt: skip


def _of_walk(kernel: Kernel, ring: Ring, wait: Op) -> list[Op]:
    """Waits by the same two registers; their parities are those of the same walk."""
    parts = {op: (slot.register, parity.register) for op, slot, parity in _walked(kernel, ring)}
    return [op for op, registers in parts.items() if registers == parts.get(wait)] or [wait]


def unproven(kernel: Kernel, ring: Ring) -> tuple[Op, str] | None:
    """The first wait of a ring whose parity is not shown to follow the phases, and why; None where all do."""
    for wait in kernel.of_ring(ring, *WAITS):
        parity = parity_of(kernel, wait) if "parity" in wait.roles else None
        if parity is None:
            return wait, "the parity is not made of flips of one register"
        known = (first_parity(kernel, each) for each in _of_walk(kernel, ring, wait))
        if all(first is None for first in known):
            return wait, "the first parity is not known"
        why = _begins(kernel, parity) or _unlike(kernel, ring, wait, parity)
        if why:
            return wait, why
    return None


def _begins(kernel: Kernel, parity: Parity) -> str:
    """Whether the register is set to one value in one place and to the other in another."""
    made = kernel.values.definitions(parity.register)
    starts = {
        number & 1
        for op in made
        if op.node.opcode.root == "mov"
        and (number := kernel.values.of(op.operands[1], op).number()) is not None
    }
    return "the register of its parity begins with 0 and with 1" if len(starts) > 1 else ""


def _unlike(kernel: Kernel, ring: Ring, wait: Op, parity: Parity) -> str:
    value = kernel.value(wait, "mbar")
    if ring.slots == 1 or value is None or not value.unknown:
        return _unlike_of_one(kernel, wait, parity)
    slot = slot_of(kernel, wait)
    if slot is None:
        return "the slot is not a counted index"
    if value.single != ring.start:
        return "the index does not begin at the first slot"
    if slot.wraps != parity.wraps:
        return "the slot has come round by other conditions than the parity has flipped"
    together = parity.register and registers_walk(kernel, slot.register, parity.register)
    return "" if together else "slot and parity do not go round together"


def _unlike_of_one(kernel: Kernel, wait: Op, parity: Parity) -> str:
    """The same of a slot that does not move."""
    if parity.wraps:
        return "the parity flips by a condition, the slot does not move"
    if not parity.register:
        return "the parity is the same in every round" if _outer(kernel, wait) else ""
    made = kernel.values.definitions(parity.register)
    flips = any(op.node.opcode.root == "xor" for op in made)
    return "" if flips else "nothing flips the parity"


def _outer(kernel: Kernel, wait: Op) -> bool:
    """Whether a loop around a wait does more than ask again."""
    loops = kernel.flow.loops(wait.index)
    return len(loops) > 1 or (len(loops) == 1 and len(loops[0][1]) > 8)

"""Where a result goes: the instructions that it flows into through registers, and those that touch memory with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.logic import registers_read
from tilewright.ptx.nodes import Memory, Name, Vector
from tilewright.ptx.values import defined_by

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand

OWN_PLACE = ("%cluster_ctaid", "%cluster_ctarank", "%ctaid")
"""Special registers that tell a CTA from the others of its cluster."""


class Flowing:
    """Registers that a value flows into, through any instruction but memory."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.readers: dict[str, list[Op]] = {}
        for op in kernel.flow.ops:
            for name in set(registers_read(op)):
                self.readers.setdefault(name, []).append(op)

    def from_results(self, ops: Iterable[Op], *, only: bool = False) -> dict[int, set[str]]:
        """Of each instruction that the results of `ops` flow into: the registers that bring them.

        Args:
            only: leave out registers that other definitions reach as well.
        """
        found: dict[int, set[str]] = {}
        stack = [(op.index, name) for op in ops for name in defined_by(op)]
        seen = set(stack)
        while stack:
            made, name = stack.pop()
            for op in self.readers.get(name, ()):
                reaching = self.kernel.values.reaching(name, op.index)
                if made not in reaching or (only and len(reaching) > 1):
                    continue
                found.setdefault(op.index, set()).add(name)
                if op.node.opcode.root in {"ld", "atom"}:
                    continue
                for result in defined_by(op):
                    if (op.index, result) not in seen:
                        seen.add((op.index, result))
                        stack.append((op.index, result))
        return found

    def from_specials(self) -> dict[int, set[str]]:
        """The same of the special registers that tell the CTAs of a cluster apart."""
        names = {name for name in self.readers if name.startswith(OWN_PLACE)}
        first = {op.index: op for name in names for op in self.readers[name]}
        found = self.from_results(first.values())
        for name in names:
            for op in self.readers[name]:
                found.setdefault(op.index, set()).add(name)
        return found


def flowing(kernel: Kernel) -> Flowing:
    """Readers of every register, made once."""
    return kernel.view(Flowing)


def touches_memory(op: Op) -> bool:
    """Whether an instruction reads or writes memory, parameters left aside."""
    return op.node.opcode.root in {"ld", "st", "atom", "red", "cp"} and not op.has("param")


def in_address(op: Op) -> set[str]:
    """Registers in the addresses and coordinates of an instruction."""
    found: set[str] = set()
    for operand in op.operands:
        if isinstance(operand, Memory):
            found |= set(names_in(operand))
    return found


def names_in(operand: Operand) -> Iterator[str]:
    """Registers in an operand."""
    match operand:
        case Name():
            yield operand.name
        case Vector():
            yield from (name for each in operand.elements for name in names_in(each))
        case Memory():
            yield from (name for each in operand.parts for name in names_in(each))
        case _:
            for each in ("left", "right"):
                inner = getattr(operand, each, None)
                if inner is not None:
                    yield from names_in(inner)

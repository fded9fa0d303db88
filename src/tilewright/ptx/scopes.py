"""Names of a body, resolved: which declaration an operand means where scopes are nested, and what a vector is made of.

A register or label of an inner `{ }` block gets a name of its own (`p@3`). A vector register is its components:
`.reg .v4 .b32 v` makes `v.x` to `v.w` registers by these names, and `v` alone is `{v.x, v.y, v.z, v.w}`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tilewright.ptx.nodes import Binary, Group, Memory, Name, Pair, Unary, Vector

if TYPE_CHECKING:
    from tilewright.ptx.nodes import Operand, Variable

COMPONENTS = "xyzw"
COLOURS = "rgba"
"""The components' other names."""


@dataclass
class Scope:
    """One block.

    Attributes:
        number: of the block, 0 for the body itself.
        names: what its declarations are called in the whole function.
        counted: prefixes of `%r<10>`, with the suffix that marks the block.
        lengths: components of its vector registers, by name or prefix.
    """

    number: int
    names: dict[str, str] = field(default_factory=dict)
    counted: dict[str, str] = field(default_factory=dict)
    lengths: dict[str, int] = field(default_factory=dict)

    @property
    def suffix(self) -> str:
        """What marks its names."""
        return f"@{self.number}" if self.number else ""

    def declare(self, variable: Variable) -> None:
        """A `.reg` or a variable of another space."""
        for declared in variable.declarators:
            if declared.count is not None:
                self.counted[declared.name] = self.suffix
            else:
                self.names[declared.name] = declared.name + self.suffix
            if variable.vector and variable.space == ".reg":
                self.lengths[declared.name] = int(variable.vector.removeprefix(".v"))


def resolve(operand: Operand, scopes: list[Scope]) -> Operand:  # noqa: PLR0911  (a case a node)
    """The operand with every name resolved from the innermost scope out."""
    match operand:
        case Name():
            return _name(operand, scopes)
        case Vector():
            return Vector(tuple(resolve(element, scopes) for element in operand.elements))
        case Group():
            return Group(tuple(resolve(element, scopes) for element in operand.elements))
        case Pair():
            return Pair(resolve(operand.first, scopes), resolve(operand.second, scopes))
        case Memory():
            return Memory(tuple(resolve(part, scopes) for part in operand.parts))
        case Unary():
            return Unary(operand.operator, resolve(operand.operand, scopes))
        case Binary():
            left, right = resolve(operand.left, scopes), resolve(operand.right, scopes)
            return Binary(operand.operator, left, right)
        case _:
            return operand


def resolve_name(name: str, scopes: list[Scope]) -> str:
    """What a name is called in the whole function."""
    return _find(name, scopes)[0]


def _name(operand: Name, scopes: list[Scope]) -> Operand:
    name, length = _find(operand.name, scopes)
    if not length:
        return Name(name, operand.component)
    parts = [component_of(name, each) for each in COMPONENTS[:length]]
    if not operand.component:
        return Vector(tuple(Name(part) for part in parts))
    letters = COLOURS if operand.component in COLOURS else COMPONENTS
    place = letters.find(operand.component)
    return Name(parts[place]) if 0 <= place < length else Name(name, operand.component)


def component_of(name: str, component: str) -> str:
    """The register that a component of a vector register is: `v@3` has `v.x@3`."""
    base, mark, scope = name.partition("@")
    return f"{base}.{component}{mark}{scope}"


def _find(name: str, scopes: list[Scope]) -> tuple[str, int]:
    """The name in the whole function, and how many components it has if it is a vector register."""
    prefix = name.rstrip("0123456789")
    for scope in reversed(scopes):
        if name in scope.names:
            return scope.names[name], scope.lengths.get(name, 0)
        if prefix != name and prefix in scope.counted:
            return name + scope.counted[prefix], scope.lengths.get(prefix, 0)
    return name, 0

"""The PTX syntax tree: frozen nodes that compare by content, never by place.

Two layers. **Operands** are values without a place (`Name("%r1")` is the same everywhere, and may be shared); the
instruction that uses them knows where each stands. **Statements** carry their place: `.span` has file, line, column
and offset. Comments and the layout of the text are not kept.

An identifier stays a `Name`, whether register, variable or label: inside `{ }` the same word means different things, so
what it names is for whoever knows the scopes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from tilewright.ptx.tokens import operand_places, tokenize_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.source import Place, Span


# --- operands: values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Name:
    """A register, special register, variable, function or label; `%tid.x` has component `x`."""

    name: str
    component: str = ""


@dataclass(frozen=True, slots=True)
class Sink:
    """The `_` that throws a result away."""


@dataclass(frozen=True, slots=True)
class Integer:
    """An integer literal and the text that spelled it (`0x10`, `16U`)."""

    value: int
    text: str


@dataclass(frozen=True, slots=True)
class Float:
    """A floating-point literal by its text: `0f3F800000` (bits of binary32), `0d…` (binary64) or decimal."""

    text: str

    @property
    def value(self) -> float:
        """The number that the text stands for."""
        kind = self.text[:2].lower()
        if kind == "0f":
            return float(struct.unpack(">f", bytes.fromhex(self.text[2:]))[0])
        if kind == "0d":
            return float(struct.unpack(">d", bytes.fromhex(self.text[2:]))[0])
        return float(self.text)


@dataclass(frozen=True, slots=True)
class String:
    """A quoted string; `text` keeps the escapes and not the quotes."""

    text: str


@dataclass(frozen=True, slots=True)
class Unary:
    """`-x`, `!%p`, `~x`, or a cast such as `(.s64)x`, whose operator is then `(.s64)`."""

    operator: str
    operand: Operand


@dataclass(frozen=True, slots=True)
class Binary:
    """Two operands of a constant expression, or an address and its offset."""

    operator: str
    left: Operand
    right: Operand


@dataclass(frozen=True, slots=True)
class Conditional:
    """`condition ? yes : no` in a constant expression."""

    condition: Operand
    yes: Operand
    no: Operand


@dataclass(frozen=True, slots=True)
class Apply:
    """`generic(symbol)`, or the byte mask of an initialiser, `0xff00(symbol)`."""

    function: Operand
    argument: Operand


@dataclass(frozen=True, slots=True)
class Assigned:
    """`name = value` inside the initialiser of a sampler or texture."""

    name: str
    value: Operand


@dataclass(frozen=True, slots=True)
class Vector:
    """`{a, b, _}`: a vector operand, or an initialiser, nested or not."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Group:
    """`(a, b)`: the results or the arguments of a call."""

    elements: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`%p|%q`: the two destinations of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Memory:
    """`[address]`, `[map, {x, y}]` or `[texture, sampler, {x, y}]`, as its comma-separated parts."""

    parts: tuple[Operand, ...]

    @property
    def base(self) -> Operand:
        """The address without a constant offset."""
        return _base_and_offset(self.parts[0])[0]

    @property
    def offset(self) -> int:
        """The constant offset in bytes: 8 for `[%rd1+8]`, -4 for `[%rd1+-4]`, 0 when none is written."""
        return _base_and_offset(self.parts[0])[1]


@dataclass(frozen=True, slots=True)
class Index:
    """`array[i]`, the older way to write an element's address."""

    base: Operand
    index: Operand


Operand: TypeAlias = (
    Name
    | Sink
    | Integer
    | Float
    | String
    | Unary
    | Binary
    | Conditional
    | Apply
    | Assigned
    | Vector
    | Group
    | Pair
    | Memory
    | Index
)


def _constant(operand: Operand) -> int | None:
    """The value of a literal with at most a sign before it."""
    if isinstance(operand, Integer):
        return operand.value
    if isinstance(operand, Unary) and operand.operator in {"-", "+"}:
        inner = _constant(operand.operand)
        return None if inner is None else -inner if operand.operator == "-" else inner
    return None


def _base_and_offset(address: Operand) -> tuple[Operand, int]:
    offset = 0
    while isinstance(address, Binary) and address.operator in {"+", "-"}:
        step = _constant(address.right)
        if step is None:
            break
        offset += step if address.operator == "+" else -step
        address = address.left
    return address, offset


# --- statements: nodes with a place -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """Anything that stands at one place of a source; the place takes no part in comparison."""

    at: Place = field(compare=False, repr=False)

    @property
    def span(self) -> Span:
        """Where the node stands, first character to last."""
        source, start, end = self.at
        return source.span(start, end)

    @property
    def text(self) -> str:
        """The node as it was written."""
        source, start, end = self.at
        return source.text[start:end]


@dataclass(frozen=True, slots=True)
class Opcode:
    """`mbarrier.init.shared::cta.b64`: the root `mbarrier` and the modifiers in the order written, without their dots."""

    root: str
    modifiers: tuple[str, ...]

    def __str__(self) -> str:
        return ".".join((self.root, *self.modifiers))

    def has(self, *modifiers: str) -> bool:
        """Whether every one of `modifiers` is written, in any order."""
        return all(modifier in self.modifiers for modifier in modifiers)


@dataclass(frozen=True, slots=True)
class Guard:
    """`@%p` or, negated, `@!%p`."""

    predicate: Operand
    negated: bool


@dataclass(frozen=True, slots=True)
class Instruction(Node):
    """One instruction; an opcode that nobody knows is as good as any other."""

    opcode: Opcode
    operands: tuple[Operand, ...]
    guard: Guard | None

    def operand_span(self, index: int) -> Span:
        """Where operand number `index` stands, found by cutting the instruction's text again."""
        source, start, end = self.at
        return source.span(*operand_places(tokenize_part(source, start, end))[index])


@dataclass(frozen=True, slots=True)
class Label(Node):
    """`name:`."""

    name: str


@dataclass(frozen=True, slots=True)
class Block(Node):
    """A `{ }` scope, with registers and labels of its own."""

    statements: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Attribute:
    """`.managed` or `.unified(a, b)`, from `.attribute(…)`."""

    name: str
    arguments: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pointer:
    """`.ptr .global .align 8` of a kernel parameter; space `""` is generic."""

    space: str
    align: Operand | None


@dataclass(frozen=True, slots=True)
class Declarator(Node):
    """One declared name: `%r<10>` has a count, `a[4][]` dimensions (None where open), `b = 3` an initialiser."""

    name: str
    count: Operand | None
    dimensions: tuple[Operand | None, ...]
    initializer: Operand | None


@dataclass(frozen=True, slots=True)
class Variable(Node):
    """A declaration in any state space, `.reg` included, or a parameter.

    `linkage` (`.visible`, `.extern`, `.weak`, `.common`), `space`, `vector` (`.v4`) and `type` keep their dots; each is
    `""` when not written.
    """

    linkage: str
    space: str
    align: Operand | None
    attributes: tuple[Attribute, ...]
    vector: str
    type: str
    pointer: Pointer | None
    declarators: tuple[Declarator, ...]


@dataclass(frozen=True, slots=True)
class Directive(Node):
    """`.version`, `.target`, `.maxntid 128`, `.pragma "…"` and whatever else is a name and a list of arguments."""

    name: str
    arguments: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class FileDirective(Node):
    """`.file 1 "kernel.cu"`, with time stamp and size when both are written."""

    number: Operand
    path: String
    stamp: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class LocDirective(Node):
    """`.loc file line column`, with the function and the call site where code was inlined."""

    position: tuple[Operand, Operand, Operand]
    function_name: Operand | None
    inlined_at: tuple[Operand, Operand, Operand] | None


@dataclass(frozen=True, slots=True)
class Prototype(Node):
    """`.callprototype (results) _ (parameters)`, for an indirect call."""

    results: tuple[Variable, ...]
    name: str
    parameters: tuple[Variable, ...]
    directives: tuple[Directive, ...]


@dataclass(frozen=True, slots=True)
class SectionData(Node):
    """`.b8 1, 2` inside a section."""

    type: str
    values: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Section(Node):
    """`.section .debug_info { … }`: DWARF data."""

    name: str
    items: tuple[SectionData | Label, ...]


Statement: TypeAlias = (
    Instruction
    | Label
    | Block
    | Variable
    | Directive
    | FileDirective
    | LocDirective
    | Prototype
    | Section
)


@dataclass(frozen=True, slots=True)
class Function(Node):
    """An `.entry` or a `.func`; `body` is None where it is only declared."""

    linkage: str
    kind: str
    attributes: tuple[Attribute, ...]
    results: tuple[Variable, ...]
    name: str
    parameters: tuple[Variable, ...] | None
    directives: tuple[Directive, ...]
    body: Block | None

    def directive(self, name: str) -> Directive | None:
        """The performance directive `name` (`.reqnctapercluster`), or None."""
        return next((item for item in self.directives if item.name == name), None)

    def instructions(self) -> Iterator[Instruction]:
        """Every instruction of the body in the order written, those of inner scopes included."""
        if self.body is not None:
            yield from _instructions(self.body)


@dataclass(frozen=True, slots=True)
class Module(Node):
    """One PTX file."""

    items: tuple[Statement | Function, ...]

    @property
    def version(self) -> tuple[int, int] | None:
        """The PTX ISA version that the text declares: (9, 0)."""
        for item in self.items:
            if isinstance(item, Directive) and item.name == ".version":
                number = item.arguments[0]
                if isinstance(number, Float):
                    major, _, minor = number.text.partition(".")
                    return int(major), int(minor or 0)
        return None

    @property
    def target(self) -> tuple[str, ...]:
        """What `.target` lists, the architecture first: ("sm_100a", "debug")."""
        for item in self.items:
            if isinstance(item, Directive) and item.name == ".target":
                return tuple(part.name for part in item.arguments if isinstance(part, Name))
        return ()

    @property
    def functions(self) -> tuple[Function, ...]:
        """Kernels and functions, declarations included, in the order written."""
        return tuple(item for item in self.items if isinstance(item, Function))


def _instructions(block: Block) -> Iterator[Instruction]:
    for statement in block.statements:
        if isinstance(statement, Instruction):
            yield statement
        elif isinstance(statement, Block):
            yield from _instructions(statement)

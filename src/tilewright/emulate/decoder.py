"""What a decode function may ask about its instruction: rows of operands, addresses, modifiers."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from tilewright.emulate.errors import NotModelled
from tilewright.emulate.registers import BYTES_OF_TYPE, KIND_OF_TYPE, PRED, U32, U64, WIDTHS
from tilewright.emulate.special import is_special
from tilewright.ptx.nodes import (
    Apply,
    Binary,
    Float,
    Integer,
    Memory,
    Name,
    Pair,
    Sink,
    Unary,
    Vector,
)
from tilewright.ptx.opcodes import state_spaces

if TYPE_CHECKING:
    from tilewright.emulate.instructions import Known, Meeting
    from tilewright.emulate.program import Program
    from tilewright.ptx.flow import Flow, Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.source import Span

WARP_SIZE = 32
_DYNAMIC = frozenset(
    {"%clock", "%clock_hi", "%clock64", "%globaltimer", "%globaltimer_lo", "%globaltimer_hi"}
)
"""Special registers whose value changes while a warp runs."""


class Address(NamedTuple):
    """A memory operand: the row that holds the base, its kind, and bytes to add."""

    row: int
    kind: int
    offset: int


class Decoder:
    """One instruction while it is decoded.

    Attributes:
        op: the instruction, with place, facts and roles.
        operands: with every name resolved to its scope.
        first: number of the function's first step, for jumps.
        is_private: set by the decode function where nobody else can tell when it happens.
    """

    def __init__(self, program: Program, function: str, flow: Flow, op: Op, first: int) -> None:
        self.program = program
        self.function = function
        self.flow = flow
        self.op = op
        self.operands = op.operands
        self.first = first
        self.is_private = False

    # --- the instruction --------------------------------------------------------------------------

    @property
    def modifiers(self) -> tuple[str, ...]:
        """The opcode's words after the first."""
        return self.op.node.opcode.modifiers

    @property
    def span(self) -> Span:
        """Where it stands."""
        return self.op.span

    @property
    def type(self) -> str:
        """The last modifier: the type that it works on."""
        return self.modifiers[-1]

    @property
    def kind(self) -> int:
        """The register kind of `type`."""
        return self.kind_of(self.type)

    @property
    def spaces(self) -> tuple[str, ...]:
        """State spaces named, destination before source."""
        return state_spaces(self.op.node.opcode)

    def has(self, *modifiers: str) -> bool:
        """Whether every one of these is written."""
        return self.op.has(*modifiers)

    def one_of(self, *modifiers: str, default: str = "") -> str:
        """The first of these that is written."""
        return next((m for m in modifiers if m in self.modifiers), default)

    def kind_of(self, type_: str) -> int:
        """The register kind of a PTX type."""
        kind = KIND_OF_TYPE.get(type_)
        if kind is None:
            raise self.unknown(f"`.{type_}` in `{self.op.name}`")
        return kind

    def unknown(self, what: str = "") -> NotModelled:
        """The error that stops the run: this instruction, or this part of it, is not emulated."""
        return NotModelled(what or f"`{self.op.name}`", self.span)

    def meets(self, known: Known) -> Meeting | None:
        """The lanes that execute it together."""
        if known.mask is not None:
            return self.source(self.operands[known.mask], U32)
        return "warp" if self.has("aligned") else None

    # --- operands ---------------------------------------------------------------------------------

    def source(self, operand: Operand, kind: int) -> int:
        """The row that holds a source operand, as a register of `kind`."""
        width = WIDTHS[kind]
        if isinstance(operand, Name):
            return self._name(operand, width)
        if isinstance(operand, Float):
            return self.program.constant(width, _bits(operand.value, width))
        if isinstance(operand, Sink):
            return self.program.scratch(width)
        symbol, value = self.constant_expression(operand)
        if symbol:
            return self.program.address(symbol, value, width)
        return self.program.constant(width, value & ((1 << width) - 1))

    def destination(self, operand: Operand, kind: int) -> int:
        """The row that a result goes to; a row that nobody reads for `_`."""
        if isinstance(operand, Sink):
            return self.program.scratch(WIDTHS[kind])
        if isinstance(operand, Name):
            return self._register(operand, WIDTHS[kind])
        raise self.unknown(f"a destination like this in `{self.op.name}`")

    def own_kind(self, operand: Operand, type_: str) -> int:
        """The kind of an operand that may be wider than the type moved: ld, st and cvt."""
        kind = self.kind_of(type_)
        if isinstance(operand, Name):
            declared = KIND_OF_TYPE.get(self.flow.type_of(operand.name).removeprefix("."))
            if declared is not None and WIDTHS[declared] != WIDTHS[kind]:
                signed = type_.startswith("s") and declared != PRED
                return _SIGNED.get(WIDTHS[declared], declared) if signed else _PLAIN[declared]
        return kind

    def is_dynamic(self, operand: Operand) -> bool:
        """Whether it is a special register that changes while the warp runs."""
        return isinstance(operand, Name) and operand.name in _DYNAMIC

    def predicate(self, operand: Operand) -> tuple[int, bool]:
        """The row of a predicate operand, and whether it is negated."""
        if isinstance(operand, Unary) and operand.operator == "!":
            return self.source(operand.operand, PRED), True
        return self.source(operand, PRED), False

    def elements(self, operand: Operand) -> tuple[Operand, ...]:
        """The parts of a vector; a lone operand is one part."""
        return operand.elements if isinstance(operand, Vector) else (operand,)

    def pair(self, operand: Operand) -> tuple[Operand, Operand | None]:
        """`d|p`: both destinations; the second is None where there is just one."""
        if isinstance(operand, Pair):
            return operand.first, operand.second
        return operand, None

    def immediate(self, operand: Operand) -> int:
        """An operand that must be a literal."""
        symbol, value = self.constant_expression(operand)
        if symbol:
            raise self.unknown(f"an address as a constant in `{self.op.name}`")
        return value

    def address(self, operand: Operand) -> Address:
        """A memory operand; the row holds an address of 32 or 64 bits."""
        if not isinstance(operand, Memory):
            raise self.unknown(f"an operand without brackets in `{self.op.name}`")
        base, offset = operand.base, operand.offset
        if isinstance(base, Name) and self.is_register(base.name):
            declared = KIND_OF_TYPE[self.flow.type_of(base.name).removeprefix(".")]
            kind = U64 if WIDTHS[declared] == 64 else U32
            return Address(self._register(base, WIDTHS[kind]), kind, offset)
        symbol, value = self.constant_expression(base)
        if symbol:
            return Address(self.program.address(symbol, value, 64), U64, offset)
        return Address(self.program.constant(64, value & (2**64 - 1)), U64, offset)

    def symbol(self, name: str) -> str:
        """The name under which the layout knows a variable or parameter that is seen from here."""
        known = self.program.layout.resolve(name, self.function)
        if known is None:
            raise self.unknown(f"`{name}`, which nothing declares,")
        return known

    def constant_expression(self, operand: Operand) -> tuple[str, int]:  # noqa: PLR0911  (a case a node)
        """A literal, or a symbol plus bytes: (symbol or "", value)."""
        match operand:
            case Integer():
                return "", operand.value
            case Unary(operator="-"):
                return "", -self.immediate(operand.operand)
            case Unary(operator="~"):
                return "", ~self.immediate(operand.operand)
            case Unary(operator="(.s64)" | "(.u64)" | "+"):
                return self.constant_expression(operand.operand)
            case Name():
                return self.symbol(operand.name), 0
            case Apply(function=Name(name="generic")):
                symbol, value = self.constant_expression(operand.argument)
                return f"generic({symbol})", value
            case Binary():
                symbol, left = self.constant_expression(operand.left)
                right = self.immediate(operand.right)
                operations = {
                    "+": left + right,
                    "-": left - right,
                    "*": left * right,
                    "<<": left << (right & 63),
                    ">>": left >> (right & 63),
                    "|": left | right,
                    "&": left & right,
                }
                if operand.operator in operations:
                    return symbol, operations[operand.operator]
        raise self.unknown(f"an operand of `{self.op.name}`")

    def is_register(self, name: str) -> bool:
        """Whether the body declares `name` as a register."""
        variable = self.flow.variables.get(name)
        space = variable.space if variable is not None else ".reg"
        return bool(self.flow.type_of(name)) and space == ".reg"

    def _name(self, operand: Name, width: int) -> int:
        if self.is_register(operand.name):
            return self._register(operand, width)
        if operand.name == "WARP_SZ":
            return self.program.constant(width, WARP_SIZE)
        if operand.name.startswith("%"):
            text = f"{operand.name}.{operand.component}" if operand.component else operand.name
            if not is_special(text):
                raise self.unknown(f"`{text}`")
            return self.program.special(text, width)
        return self.program.address(self.symbol(operand.name), 0, width)

    def _register(self, operand: Name, width: int) -> int:
        if operand.component:  # those of vectors have names of their own
            raise self.unknown(f"component `.{operand.component}` of `{operand.name}`")
        return self.program.register(self.function, self.flow, operand.name, width, self.op)

    def type_bytes(self, type_: str) -> int:
        """Bytes of one element of a type in memory."""
        if type_ not in BYTES_OF_TYPE:
            raise self.unknown(f"`.{type_}` in `{self.op.name}`")
        return BYTES_OF_TYPE[type_]


_SIGNED = {16: KIND_OF_TYPE["s16"], 32: KIND_OF_TYPE["s32"], 64: KIND_OF_TYPE["s64"]}
_PLAIN = {
    kind: KIND_OF_TYPE[f"b{WIDTHS[kind]}"] for kind in set(KIND_OF_TYPE.values()) if kind != PRED
} | {PRED: PRED}


def _bits(value: float, width: int) -> int:
    """A floating-point literal as the bits of a register; literals for 16 bits are integers in PTX."""
    if width == 64:
        return int.from_bytes(struct.pack("<d", value), "little")
    return int.from_bytes(struct.pack("<f", value), "little")

"""Declarations: variables of every state space, registers, parameters, their arrays and initialisers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ptx.nodes import (
    Assigned,
    Attribute,
    Declarator,
    Name,
    Pointer,
    Variable,
    Vector,
)
from tilewright.ptx.operands import parse_expression, parse_number

if TYPE_CHECKING:
    from tilewright.ptx.cursor import Cursor
    from tilewright.ptx.nodes import Operand

LINKAGES = frozenset({".extern", ".visible", ".weak", ".common"})
SPACES = frozenset(
    {".reg", ".sreg", ".const", ".global", ".local", ".param", ".shared", ".tex"}
    | {".shared::cta", ".shared::cluster", ".param::entry", ".param::func"}
)
_VECTORS = frozenset({".v2", ".v4", ".v8"})


class _Specifiers:
    """The dotted words before the names, gathered in whatever order they were written."""

    __slots__ = ("align", "attributes", "linkage", "pointer", "space", "type", "vector")

    def __init__(self) -> None:
        self.linkage = self.space = self.vector = self.type = ""
        self.align: Operand | None = None
        self.attributes: tuple[Attribute, ...] = ()
        self.pointer: Pointer | None = None


def parse_variable(cursor: Cursor) -> Variable:
    """A declaration statement with its semicolon: `.shared .align 16 .b8 a[32], b;`."""
    first = cursor.index
    specifiers = _specifiers(cursor)
    declarators = [_declarator(cursor)]
    while cursor.take_if(","):
        declarators.append(_declarator(cursor))
    cursor.expect(";", "after a declaration")
    return _variable(cursor, first, specifiers, tuple(declarators))


def parse_parameter(cursor: Cursor) -> Variable:
    """One parameter of a function: a declaration of one name, without a semicolon."""
    first = cursor.index
    specifiers = _specifiers(cursor)
    return _variable(cursor, first, specifiers, (_declarator(cursor),))


def parse_parameters(cursor: Cursor) -> tuple[Variable, ...]:
    """`(parameter, …)`, brackets included."""
    cursor.expect("(", "before the parameters")
    return cursor.many(parse_parameter, ")", "after a parameter")


def parse_attributes(cursor: Cursor) -> tuple[Attribute, ...]:
    """The list of `.attribute(…)`, whose keyword has been stepped over."""
    cursor.expect("(", "after `.attribute`")
    return cursor.many(_attribute, ")", "after an attribute")


def _attribute(cursor: Cursor) -> Attribute:
    name = cursor.take()
    if not name.startswith("."):
        cursor.index -= 1
        raise cursor.error("expected an attribute such as `.managed`")
    values = cursor.many(parse_expression, ")", "in an attribute") if cursor.take_if("(") else ()
    return Attribute(name, values)


def _variable(
    cursor: Cursor, first: int, found: _Specifiers, declarators: tuple[Declarator, ...]
) -> Variable:
    return Variable(
        cursor.place(first),
        found.linkage,
        found.space,
        found.align,
        found.attributes,
        found.vector,
        found.type,
        found.pointer,
        declarators,
    )


def _specifiers(cursor: Cursor) -> _Specifiers:
    found = _Specifiers()
    while cursor.text.startswith("."):
        word = cursor.take()
        if word == ".align":
            found.align = parse_expression(cursor)
        elif word == ".attribute":
            found.attributes += parse_attributes(cursor)
        elif word == ".ptr":
            found.pointer = _pointer(cursor)
        else:
            _classify(cursor, word, found)
    if not found.type:
        raise cursor.error("expected a type such as `.b32`")
    return found


def _classify(cursor: Cursor, word: str, found: _Specifiers) -> None:
    """Put `word` where it belongs; a word that is none of the known ones is the type."""
    if word in LINKAGES:
        slot = "linkage"
    elif word in SPACES and not (word == ".tex" and found.space):
        slot = "space"
    elif word in _VECTORS:
        slot = "vector"
    else:
        slot = "type"
    if getattr(found, slot):
        cursor.index -= 1
        raise cursor.error(f"a second {slot} in one declaration")
    setattr(found, slot, word)


def _pointer(cursor: Cursor) -> Pointer:
    space = cursor.take() if cursor.text in SPACES else ""
    return Pointer(space, parse_expression(cursor) if cursor.take_if(".align") else None)


def _declarator(cursor: Cursor) -> Declarator:
    first = cursor.index
    name = cursor.take_name("the name that is declared")
    count: Operand | None = None
    if cursor.take_if("<"):
        count = parse_number(cursor)  # `>` would read as an operator
        cursor.expect(">", "after the number of registers")
    dimensions: list[Operand | None] = []
    while cursor.take_if("["):
        dimensions.append(None if cursor.text == "]" else parse_expression(cursor))
        cursor.expect("]", "after the array size")
    initializer = _initializer(cursor) if cursor.take_if("=") else None
    return Declarator(cursor.place(first), name, count, tuple(dimensions), initializer)


def _initializer(cursor: Cursor) -> Operand:
    """A value, a braced list of values at any depth, or the `name = value` pairs of a sampler."""
    if cursor.text == "{":
        cursor.take()
        cursor.descend()
        values = cursor.many(_initializer, "}", "in an initialiser")
        cursor.depth -= 1
        return Vector(values)
    value = parse_expression(cursor)
    if isinstance(value, Name) and cursor.take_if("="):
        return Assigned(value.name, parse_expression(cursor))
    return value

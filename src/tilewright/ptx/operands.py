"""Operands and constant expressions: names, literals, vectors, addresses, and operators by precedence."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tilewright.ptx.nodes import (
    Apply,
    Binary,
    Conditional,
    Float,
    Group,
    Index,
    Integer,
    Memory,
    Name,
    Pair,
    Sink,
    String,
    Unary,
    Vector,
)

if TYPE_CHECKING:
    from tilewright.ptx.cursor import Cursor
    from tilewright.ptx.nodes import Operand

_PRECEDENCE = {
    operator: level
    for level, operators in enumerate(
        ("||", "&&", "|", "^", "&", "== !=", "< <= > >=", "<< >>", "+ -", "* / %"), start=1
    )
    for operator in operators.split()
}
_AFTER = frozenset(",;]})")
_UNARY = frozenset("+-!~")

_INTEGER = re.compile(r"(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9][0-9]*)U?")
_FLOAT = re.compile(
    r"0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|[0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+"
)
_INTEGER_LIMIT = 1 << 128


def parse_operand(cursor: Cursor) -> Operand:
    """One operand of an instruction; `a|b` of two names is a pair of destinations."""
    if cursor.text == "(" and not cursor.texts[cursor.index + 1].startswith("."):
        return _group_or_expression(cursor)
    node = parse_expression(cursor)
    if isinstance(node, Binary) and node.operator == "|" and _is_pair(node):
        return Pair(node.left, node.right)
    return node


def _is_pair(node: Binary) -> bool:
    return isinstance(node.left, Name | Sink) and isinstance(node.right, Name | Sink)


def _group_or_expression(cursor: Cursor) -> Operand:
    """`(a, b)` of a call; `(1+2)*3` when an operator follows the bracket."""
    first = cursor.index
    cursor.take()
    cursor.descend()
    group = Group(cursor.many(parse_expression, ")", "in a list of arguments"))
    cursor.depth -= 1
    if cursor.text not in _PRECEDENCE and cursor.text != "?":
        return group
    cursor.index = first
    return parse_expression(cursor)


def parse_expression(cursor: Cursor) -> Operand:
    """An expression with the conditional operator, which binds last; a lone known token is looked up."""
    texts, index = cursor.texts, cursor.index
    node = cursor.atoms.get(texts[index])
    if node is not None and texts[index + 1] in _AFTER:
        cursor.index = index + 1
        return node
    condition = _binary(cursor, 1)
    if not cursor.take_if("?"):
        return condition
    cursor.descend()
    yes = parse_expression(cursor)
    cursor.expect(":", "between the two values of `?`")
    no = parse_expression(cursor)
    cursor.depth -= 1
    return Conditional(condition, yes, no)


def _binary(cursor: Cursor, lowest: int) -> Operand:
    """Operators of level `lowest` and tighter, left to right."""
    before = cursor.depth
    left = _unary(cursor)
    while (level := _PRECEDENCE.get(cursor.text, 0)) >= lowest:
        operator = cursor.take()
        cursor.descend()  # a chain of operators is as deep a tree as brackets are
        left = Binary(operator, left, _binary(cursor, level + 1))
    cursor.depth = before
    return left


def _unary(cursor: Cursor) -> Operand:
    text = cursor.text
    if text in _UNARY and text:
        cursor.take()
        cursor.descend()
        node = Unary(text, _unary(cursor))
        cursor.depth -= 1
        return node
    if text == "(" and cursor.texts[cursor.index + 1].startswith("."):
        return _cast(cursor)
    return _postfix(cursor)


def _cast(cursor: Cursor) -> Operand:
    cursor.take()
    kind = cursor.take()
    cursor.expect(")", "after the type of a cast")
    cursor.descend()
    node = Unary(f"({kind})", _unary(cursor))
    cursor.depth -= 1
    return node


def _postfix(cursor: Cursor) -> Operand:
    node = _primary(cursor)
    while cursor.text in {"(", "["} and isinstance(node, Name | Integer | Index | Apply):
        opening = cursor.take()
        cursor.descend()
        inner = parse_expression(cursor)
        if opening == "(":
            cursor.expect(")", "after the argument")
            node = Apply(node, inner)
        else:
            cursor.expect("]", "after the index")
            node = Index(node, inner)
        cursor.depth -= 1
    return node


def _primary(cursor: Cursor) -> Operand:
    text = cursor.text
    node = cursor.atoms.get(text)
    if node is not None:
        cursor.index += 1
        return node
    if text in _BRACKETS:
        cursor.descend()
        node = _BRACKETS[text](cursor)
        cursor.depth -= 1
        return node
    node = cursor.atoms[text] = _atom(cursor, text)
    cursor.index += 1
    return node


def _atom(cursor: Cursor, text: str) -> Operand:
    """The node of one token, which stays the same wherever the token stands."""
    first = text[:1]
    if first.isdigit():
        return _number(cursor, text)
    if text == "_":
        return Sink()
    if first == '"' and len(text) > 1:
        return String(text[1:-1])
    if first == ".":  # `.managed`, `.debug_str`
        if len(text) > 1:
            return Name(text)
    elif (
        text != "%"
        and text[-1:] != ";"
        and (first.isalpha() or first in {"_", "$", "%"})
        and text.isascii()
    ):
        name, _, component = text.partition(".")
        return Name(name, component)
    raise cursor.error("expected an operand", allowed="a name, a number, `{`, `[`, `(`")


def parse_number(cursor: Cursor) -> Operand:
    """A literal number and no more than that."""
    if not cursor.text[:1].isdigit():
        raise cursor.error("expected a number")
    return _primary(cursor)


def _number(cursor: Cursor, text: str) -> Operand:
    if _FLOAT.fullmatch(text):
        return Float(text)
    if not _INTEGER.fullmatch(text) or len(text) > 140:
        raise cursor.error("a number that is none in PTX")
    digits = text.removesuffix("U")
    is_octal = digits[:1] == "0" and digits.isdigit()
    value = int(digits, 8) if is_octal else int(digits, 0)
    if value >= _INTEGER_LIMIT:
        raise cursor.error("an integer of more than 128 bits")
    return Integer(value, text)


def _vector(cursor: Cursor) -> Operand:
    cursor.take()
    return Vector(cursor.many(parse_expression, "}", "in a vector"))


def _memory(cursor: Cursor) -> Operand:
    cursor.take()
    parts = cursor.many(parse_expression, "]", "in an address")
    if not parts:
        raise cursor.error("an address without a base", found=False)
    return Memory(parts)


def _brackets(cursor: Cursor) -> Operand:
    cursor.take()
    node = parse_expression(cursor)
    cursor.expect(")", "after the expression")
    return node


_BRACKETS = {"{": _vector, "[": _memory, "(": _brackets}

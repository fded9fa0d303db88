"""Operands of a line that is one token: cut out as text, and turned into nodes once for each different text.

This is the fast way to what `operands` defines. Names and plain addresses are recognised here; whatever else a piece
is goes through the grammar. What does not fit raises ValueError, and the line is then read token by token.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tilewright.ptx.cursor import Cursor
from tilewright.ptx.errors import PtxSyntaxError
from tilewright.ptx.nodes import Binary, Memory, Name, Operand, Sink, Vector
from tilewright.ptx.operands import parse_operand
from tilewright.ptx.source import Source
from tilewright.ptx.tokens import END, tokenize

if TYPE_CHECKING:
    from collections.abc import Callable

_PARTS = re.compile(r"\[[^\[\]]*\]|\{[^{}]*\}|[^,\s{}\[\]]+")
_NAME = re.compile(r"(%?[A-Za-z$_][\w$]*|%[\w$]+)(?:\.(\w+))?", re.ASCII)
_VECTOR = re.compile(r"\{[^{}\[\]]+\}")
_ADDRESS = re.compile(r"\[([%A-Za-z$_][\w$]+)(?:\+(-?\d+))?\]", re.ASCII)


def split_operands(text: str) -> list[str]:
    """Operands between commas, when some of them have commas of their own.

    Raises:
        ValueError: if anything but commas stands between them.
    """
    parts: list[str] = _PARTS.findall(text)
    if text not in {", ".join(parts), ",".join(parts)}:
        raise ValueError(text)
    return parts


class _Pieces(dict[str, Operand]):
    """Operand text to node, filled as texts are asked for."""

    def __missing__(self, text: str) -> Operand:
        node = self[text] = self._parse(text)
        return node

    def _parse(self, text: str) -> Operand:
        if name := _NAME.fullmatch(text):
            return Sink() if text == "_" else Name(name[1], name[2] or "")
        if address := _ADDRESS.fullmatch(text):
            base, offset = address.groups()
            return Memory(
                (self[base] if offset is None else Binary("+", self[base], self[offset]),)
            )
        if _VECTOR.fullmatch(text):
            return Vector(tuple(self[part.strip()] for part in text[1:-1].split(",")))
        return _by_grammar(text)


def _by_grammar(text: str) -> Operand:
    cursor = Cursor(tokenize(Source("", text)))
    try:
        node = parse_operand(cursor)
    except PtxSyntaxError as problem:
        raise ValueError(text) from problem
    if cursor.text != END:
        raise ValueError(text)
    return node


def piece_parser() -> Callable[[str], Operand]:
    """A function from operand text to node that remembers what it has seen."""
    return _Pieces().__getitem__

"""PTX text to tokens: one regular expression, run once over the whole text by the C engine.

A token is its text; what kind it is follows from its first character, so no kind is stored. White space and
comments stand between tokens and are dropped. A dotted opcode (`cp.async.bulk.shared::cluster…`), a special register
(`%tid.x`) and a directive (`.reg`) are one token each. A character that begins nothing becomes a token of its own,
which the parser then refuses with its place.

Most lines of compiled PTX are a tab, an opcode, operands, and `;`. With `whole_lines` such a line, or an
instruction that stands after another one on its line, is one token, from guard or opcode to semicolon, which the parser takes apart by its commas: that is where its speed comes from.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tilewright.ptx.source import Source

_TRIVIA = r"\s*(?:(?://[^\n]*|/\*(?s:.*?)\*/)\s*)*"

_PLAIN = (
    r"[%A-Za-z_$][\w$]*(?:(?:\.|::)[\w$]+)*"  # name, register, dotted opcode
    r"|[,;]"
    r"|\.[A-Za-z_$][\w$]*(?:::[\w$]+)*"  # directive or type
    r"|0[xXfFdD][0-9a-fA-F]+U?"  # before decimals: 0x1e-3 is a difference
    r"|\d[\w.]*(?:(?<=[eE])[+-]\d+)?"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|<<|>>|<=|>=|==|!=|&&|\|\|"
    r"|\S"
)

_LINE = (
    r"(?:(?<=\n\t)|(?<=[;:{] ))(?:@!?[%\w$]+[ \t]+)?[a-z]\w*(?:(?:\.|::)\w+)*[ \t]+"
    r"[%$\w\[{-][%$\w.,+\[\]{}|! \t-]*;"
)

_LEADING = re.compile(_TRIVIA, re.ASCII)
_TOKENS = re.compile(f"({_PLAIN})({_TRIVIA})", re.ASCII)
_LINES_AND_TOKENS = re.compile(f"({_LINE}|{_PLAIN})({_TRIVIA})", re.ASCII)

_OPENING = frozenset("([{")
_CLOSING = frozenset(")]}")

END = ""
"""The token after the last one."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of one source: `texts[i]` starts at offset `starts[i]`; two `END` close the list."""

    source: Source
    texts: list[str]
    starts: list[int]


def tokenize(source: Source, *, whole_lines: bool = False) -> Tokens:
    """Cut `source` into tokens; never fails, since a stray character is a token too."""
    leading = _LEADING.match(source.text)
    begin = leading.end() if leading else 0
    pattern = _LINES_AND_TOKENS if whole_lines else _TOKENS
    return _tokens(source, pattern.findall(source.text, begin), begin)


def tokenize_part(source: Source, start: int, end: int) -> Tokens:
    """The tokens of the characters [start, end), which begin with one."""
    return _tokens(source, _TOKENS.findall(source.text, start, end), start)


def _tokens(source: Source, pairs: list[tuple[str, str]], begin: int) -> Tokens:
    texts = [text for text, _ in pairs]
    starts = list(accumulate(map(len, chain.from_iterable(pairs)), initial=begin))[::2]
    texts += (END, END)
    starts.append(starts[-1])
    return Tokens(source, texts, starts)


def operand_places(tokens: Tokens) -> list[tuple[int, int]]:
    """First offset and end of each operand, `tokens` being those of one instruction that parsed."""
    texts, starts = tokens.texts, tokens.starts
    index = 0
    if texts[0] == "@":
        index = 3 if texts[1] == "!" else 2
    index += 1  # the opcode, and modifiers that stand apart from it
    while texts[index][:1] == ".":
        index += 1
    places: list[tuple[int, int]] = []
    first, depth = index, 0
    for here in range(first, len(texts) - 2):
        text = texts[here]
        depth += (text in _OPENING) - (text in _CLOSING)
        if depth == 0 and text in {",", ";"} and here > first:
            last = here - 1
            places.append((starts[first], starts[last] + len(texts[last])))
            first = here + 1
    return places

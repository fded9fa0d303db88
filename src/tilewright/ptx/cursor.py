"""A place in the token list: look, step, expect, or refuse with the one error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.ptx.errors import PtxSyntaxError
from tilewright.ptx.tokens import END, Tokens, tokenize_part

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from tilewright.ptx.nodes import Guard, Opcode, Operand
    from tilewright.ptx.source import Place, Source

    T = TypeVar("T")

MAX_DEPTH = 60
"""How deep brackets, scopes and operator chains may nest: far above compiled code, far below Python's own stack."""

_NAME_START = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz_$%")


class Cursor:
    """The tokens of one source, the index of the next one, and what has been parsed often enough to share.

    The caches live as long as one parse: operands and opcodes have no place, so one node serves every use.
    """

    __slots__ = (
        "atoms",
        "depth",
        "guards",
        "index",
        "opcodes",
        "shared",
        "source",
        "starts",
        "texts",
        "tokens",
    )

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.source: Source = tokens.source
        self.texts = tokens.texts
        self.starts = tokens.starts
        self.index = 0
        self.depth = 0
        self.atoms: dict[str, Operand] = {}
        self.opcodes: dict[str, Opcode] = {}
        self.guards: dict[str, Guard] = {}
        self.shared: Callable[[str], Operand] = _no_pieces

    def part(self, start: int, end: int) -> Cursor:
        """A cursor over the characters [start, end) of the same source, with the same caches."""
        part = Cursor(tokenize_part(self.source, start, end))
        part.atoms, part.opcodes, part.guards = self.atoms, self.opcodes, self.guards
        return part

    @property
    def text(self) -> str:
        """The next token; `END` after the last."""
        return self.texts[self.index]

    def take(self) -> str:
        """Step over the next token."""
        text = self.texts[self.index]
        if text == END:
            raise self.error("the text ends here")
        self.index += 1
        return text

    def take_if(self, text: str) -> bool:
        """Step over the next token if it is `text`."""
        if self.texts[self.index] == text:
            self.index += 1
            return True
        return False

    def expect(self, text: str, where: str) -> None:
        """Step over `text`, which `where` cannot do without."""
        if self.texts[self.index] != text:
            raise self.error(f"expected `{text}` {where}", allowed=text)
        self.index += 1

    def take_name(self, what: str) -> str:
        """Step over an identifier, `what` says of what."""
        text = self.texts[self.index]
        if text[:1] not in _NAME_START or text == "%" or text[-1] == ";":
            raise self.error(f"expected {what}", allowed="an identifier")
        self.index += 1
        return text

    def place(self, first: int) -> Place:
        """From token number `first` to the last one stepped over."""
        last = max(self.index - 1, first)
        return self.source, self.starts[first], self.starts[last] + len(self.texts[last])

    def many(self, parse: Callable[[Cursor], T], close: str, where: str) -> tuple[T, ...]:
        """Items between commas, up to and over `close`; the list may be empty."""
        items: list[T] = []
        if self.take_if(close):
            return ()
        while True:
            items.append(parse(self))
            if self.take_if(close):
                return tuple(items)
            if not self.take_if(","):
                raise self.error(f"expected `,` or `{close}` {where}", allowed=f", {close}")

    def descend(self) -> None:
        """Go one level deeper; the caller steps `depth` back when the level ends."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH} levels", found=False)

    def error(self, problem: str, *, allowed: str = "", found: bool = True) -> PtxSyntaxError:
        """The error at the next token, which it names unless `found` is False."""
        text = self.texts[self.index]
        start = self.starts[self.index]
        if found:
            problem += f", found {_describe(text)}"
        span = self.source.span(start, start + len(text))
        return PtxSyntaxError(problem, span, self.source.line_text(span.line), allowed=allowed)


def _no_pieces(text: str) -> Operand:
    """Stands in until a parser of whole lines brings its own."""
    raise ValueError(text)


def _describe(text: str) -> str:
    if text == END:
        return "the end of the file"
    if text == '"':
        return "a string that does not end on its line"
    return f"`{text if len(text) <= 40 else text[:37] + '...'}`"

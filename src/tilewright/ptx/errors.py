"""The one error that reading PTX raises: where it is, what stood there, what could have stood there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.errors import BadInput

if TYPE_CHECKING:
    from tilewright.ptx.source import Span


class PtxSyntaxError(BadInput):
    """Text that is no PTX.

    Attributes:
        span: the place, with file, line, column and offset.
        source_line: the whole line that holds it.
        caret: blanks and carets that underline the place when printed below `source_line`.
    """

    def __init__(self, problem: str, span: Span, source_line: str, *, allowed: str = "") -> None:
        width = span.end_column - span.column if span.end_line == span.line else 1
        blanks = "".join("\t" if char == "\t" else " " for char in source_line[: span.column - 1])
        self.span = span
        self.source_line = source_line
        self.caret = blanks + "^" * max(1, min(width, len(source_line) - span.column + 1))
        super().__init__(
            f"{span}: {problem}\n{source_line}\n{self.caret}", given=problem, allowed=allowed
        )

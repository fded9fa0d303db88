"""A PTX text and the places in it: offsets are kept, lines and columns are worked out when asked for."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of a file, from its first character to the one after its last.

    Lines and columns count from 1, columns and offsets in characters, a tab as one.
    """

    file: str
    line: int
    column: int
    offset: int
    end_line: int
    end_column: int
    end_offset: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, eq=False)
class Source:
    """A whole PTX text under the name that findings call it by."""

    name: str
    text: str

    @cached_property
    def _line_starts(self) -> list[int]:
        starts = [0]
        found = self.text.find("\n")
        while found >= 0:
            starts.append(found + 1)
            found = self.text.find("\n", found + 1)
        return starts

    def _line_and_column(self, offset: int) -> tuple[int, int]:
        line = bisect_right(self._line_starts, offset)
        return line, offset - self._line_starts[line - 1] + 1

    def span(self, start: int, end: int) -> Span:
        """The span of the characters [start, end)."""
        line, column = self._line_and_column(start)
        end_line, end_column = self._line_and_column(end)
        return Span(self.name, line, column, start, end_line, end_column, end)

    def line_text(self, line: int) -> str:
        """The text of line number `line`, without its line end."""
        start = self._line_starts[line - 1]
        end = self.text.find("\n", start)
        return self.text[start : end if end >= 0 else len(self.text)].rstrip("\r")


Place: TypeAlias = tuple[Source, int, int]
"""Where a node stands: the source, its first offset, the offset after it. A bare tuple, because one is made per node."""

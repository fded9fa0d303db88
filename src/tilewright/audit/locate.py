"""Where a finding stands for its reader: the CUDA line that `.loc` names, or the PTX line; and what silences it.

    // tilewright: ignore[CLC-09] the readers are fenced by the caller

on the line, or alone on the line before, silences that rule there. A baseline is the JSON of an earlier
audit: findings of the same rule, kernel and message are known.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from tilewright.errors import BadInput
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Block, FileDirective, Function, LocDirective

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from tilewright.ptx.finding import Finding
    from tilewright.ptx.nodes import Module, Statement
    from tilewright.ptx.source import Span

_IGNORE = re.compile(r"//\s*tilewright:\s*ignore\[([\w\-, ]+)\]\s*(.*)")


class PlaceOf(NamedTuple):
    """A place in a file that the reader has."""

    file: str
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Located:
    """A finding at its place, with the text of the lines involved."""

    finding: Finding
    place: PlaceOf
    line_text: str
    other: PlaceOf | None = None
    other_text: str = ""


class Locator:
    """Maps places in a module's PTX to places in the source that it was compiled from.

    Args:
        sources: text of the files that `.file` may name; the PTX's own under its name. A compiler names a file from
            the root on, whatever it was called: a path that ends in a source's name is that source.
    """

    def __init__(self, module: Module, sources: Mapping[str, str]) -> None:
        self._lines = {name: text.split("\n") for name, text in sources.items()}
        self._files: dict[int, str] = {}
        self._locs: list[tuple[int, PlaceOf]] = []
        for item in module.items:
            if isinstance(item, FileDirective) and (number := constant(item.number)) is not None:
                self._files[number] = _source_named(item.path.text, sources)
        for item in module.items:
            if isinstance(item, Function) and item.body is not None:
                self._locs += _locs(item.body, self._files)

    def place(self, span: Span) -> PlaceOf:
        """Where the reader finds it: the CUDA source where that text is at hand, else the PTX."""
        at = bisect_right(self._locs, span.offset, key=lambda loc: loc[0]) - 1
        if at >= 0 and self._locs[at][1].file in self._lines:
            return self._locs[at][1]
        return PlaceOf(span.file, span.line, span.column)

    def text(self, place: PlaceOf) -> str:
        """The line."""
        lines = self._lines.get(place.file, [])
        return lines[place.line - 1] if 0 < place.line <= len(lines) else ""

    def locate(self, finding: Finding) -> Located:
        """A finding where its reader finds it."""
        place = self.place(finding.span)
        other = self.place(finding.other) if finding.other is not None else None
        text = self.text(other) if other is not None else ""
        return Located(finding, place, self.text(place), other, text)

    def is_ignored(self, located: Located) -> bool:
        """Whether a comment on the line, or alone on the one before, silences the rule."""
        before = self.text(located.place._replace(line=located.place.line - 1)).strip()
        lines = [located.line_text, *([before] if before.startswith("//") else [])]
        silenced = [match for line in lines if (match := _IGNORE.search(line))]
        return any(
            located.finding.rule in {each.strip() for each in match[1].split(",")}
            for match in silenced
        )


def _locs(block: Block, files: Mapping[int, str]) -> Iterator[tuple[int, PlaceOf]]:
    statement: Statement
    for statement in block.statements:
        if isinstance(statement, Block):
            yield from _locs(statement, files)
        elif isinstance(statement, LocDirective):
            number, line, column = (constant(part) for part in statement.position)
            if number is not None and number in files and line is not None:
                yield statement.span.offset, PlaceOf(files[number], line, column or 1)


def _source_named(path: str, sources: Iterable[str]) -> str:
    """The source that a `.file` means, or its path as it stands."""
    parts = PurePath(path).parts
    for name in sources:
        own = tuple(part for part in PurePath(name).parts if part != "..")
        if own and parts[-len(own) :] == own:
            return name
    return path


class Baseline:
    """Findings of an earlier audit, which are no news.

    Raises:
        BadInput: the file is not what `audit --json` printed.
    """

    def __init__(self, path: Path | None) -> None:
        self._known: set[tuple[str, str, str]] = set()
        if path is None:
            return
        try:
            found = json.loads(path.read_text(encoding="utf-8"))["findings"]
            self._known = {(f["id"], f["kernel"], f["message"]) for f in found}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(
                f"baseline {path} is not the output of tilewright audit --json ({error})",
                given=path,
            ) from None

    def fresh(self, findings: Iterable[Located]) -> list[Located]:
        """Those that the baseline does not know."""
        return [
            located
            for located in findings
            if (located.finding.rule, located.finding.kernel, located.finding.message)
            not in self._known
        ]

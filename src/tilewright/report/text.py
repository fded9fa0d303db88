"""The report for a terminal, with rich: plain text where colour or width is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich import box
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from tilewright.report.document import Bullets, Code, Figure, Heading, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

    from tilewright.report.document import Block


def print_document(blocks: Iterable[Block], console: Console) -> None:
    """Lay the blocks out on a console."""
    for block in blocks:
        for renderable in _render(block, console.width):
            console.print(renderable)


def _render(block: Block, width: int) -> Iterable[RenderableType]:
    match block:
        case Heading(text, 1):
            yield Text()
            yield Text(text, style="bold underline")
        case Heading(text, _):
            yield Text()
            yield Text(text, style="bold")
        case Paragraph(text, strong):
            yield Text(text, style="bold green" if strong else "")
        case Code(text):
            yield Padding(Text(f"$ {text}", style="cyan"), (0, 0, 0, 2))
        case Bullets(items):
            for item in items:
                yield Padding(Text(f"- {item}"), (0, 0, 0, 2))
        case Figure():
            pass
        case Table():
            yield from _table(block, width)


SHORT = 18
"""Columns up to this width are never folded."""

FOLDED = 16
"""Least width that a folded column is worth; a table that cannot give it becomes a list."""


def _table(table: Table, width: int) -> Iterable[RenderableType]:
    """A table where it fits; otherwise each row as a paragraph of "column value" pairs."""
    widths = [
        max([len(name), *(len(row[i]) for row in table.rows)])
        for i, name in enumerate(table.columns)
    ]
    short = [i for i, w in enumerate(widths) if w <= SHORT]
    folded = len(widths) - len(short)
    needed = sum(widths[i] for i in short) + folded * FOLDED + 3 * (len(widths) - 1)
    if needed > width:
        yield from _rows(table)
        return
    out = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for index, name in enumerate(table.columns):
        out.add_column(
            name,
            justify="right" if index in table.numeric else "left",
            no_wrap=index in short,
            overflow="fold",
        )
    for row in table.rows:
        out.add_row(*(Text(cell) for cell in row))
    yield out


def _rows(table: Table) -> Iterable[RenderableType]:
    for row in table.rows:
        line = Text()
        line.append(row[0] or "-", style="bold")
        pairs = [(n, c) for n, c in zip(table.columns[1:], row[1:], strict=True) if c]
        for index, (name, cell) in enumerate(pairs):
            line.append("; " if index else ": ")
            line.append(f"{name} ", style="dim")
            line.append(cell)
        yield Padding(line, (0, 0, 0, 2))

"""The report as Markdown: headings, lists and pipe tables that GitHub renders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.document import Bullets, Code, Figure, Heading, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.report.document import Block


def render_markdown(blocks: Iterable[Block]) -> str:
    """The whole document."""
    written = [_render(block) for block in blocks if not isinstance(block, Figure)]
    return "\n\n".join(written) + "\n"


def _render(block: Heading | Paragraph | Bullets | Code | Table) -> str:
    match block:
        case Heading(text, level):
            return f"{'#' * (level + 1)} {text}"
        case Paragraph(text, strong):
            return f"**{text}**" if strong else text
        case Code(text):
            return f"```\n{text}\n```"
        case Bullets(items):
            return "\n".join(f"- {item}" for item in items)
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

    rule = ["---:" if i in table.numeric else "---" for i in range(len(table.columns))]
    return "\n".join([line(table.columns), line(rule), *(line(row) for row in table.rows)])

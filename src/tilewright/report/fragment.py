"""A document as a piece of HTML for a notebook's cell: no script, no ids, no style but what keeps a table readable.

A notebook has a style of its own and shows many cells, so this is not the page of a report: sections are folded, the
first one is open.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from tilewright.report.document import Bullets, Code, Figure, Heading, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.report.document import Block

RIGHT, LEFT = 'style="text-align:right"', 'style="text-align:left"'


def render_fragment(blocks: Iterable[Block]) -> str:
    """The blocks; each heading of level 1 begins a section."""
    out: list[str] = []
    sections = 0
    for block in blocks:
        if isinstance(block, Figure):
            continue
        if isinstance(block, Heading) and block.level == 1:
            out.append("</details>" if sections else "")
            opened = "" if sections else " open"
            out.append(f"<details{opened}><summary><b>{escape(block.text)}</b></summary>")
            sections += 1
        else:
            out.append(_render(block))
    out.append("</details>" if sections else "")
    return f'<div class="tilewright">{"".join(out)}</div>'


def _render(block: Heading | Paragraph | Bullets | Code | Table) -> str:
    match block:
        case Heading(text, _):
            return f"<h4>{escape(text)}</h4>"
        case Paragraph(text, strong):
            return f"<p><b>{escape(text)}</b></p>" if strong else f"<p>{escape(text)}</p>"
        case Code(text):
            return f"<pre>{escape(text)}</pre>"
        case Bullets(items):
            return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"
        case Table():
            return _table(block)


def _table(table: Table) -> str:
    def line(cells: Iterable[str], tag: str) -> str:
        sides = (RIGHT if i in table.numeric else LEFT for i in range(len(table.columns)))
        found = (
            f"<{tag} {side}>{escape(cell)}</{tag}>" for cell, side in zip(cells, sides, strict=True)
        )
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(line(row, "td") for row in table.rows)
    return f"<table><thead>{line(table.columns, 'th')}</thead><tbody>{body}</tbody></table>"

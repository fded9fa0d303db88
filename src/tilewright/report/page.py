"""One self-contained page: a document's blocks as HTML, with figures drawn in, style and script inside.

No template engine and no chart library: a page is a few hundred elements, a canvas and 20 kB of script, and
loads nothing. `render_page` is the frame, `render_blocks` the content; `plan_page`, `simulation_page` and
`audit_page` say what goes in.
"""

from __future__ import annotations

import json
import re
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.report.document import Bullets, Code, Figure, Heading, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from tilewright.report.document import Block

KINDS = ("documented", "queried", "measured", "derived", "assumed")
"""Of numbers. Each has a mark of its own shape beside its word, so that colour carries nothing alone."""

SHORT, LONG = 24, 40
"""Characters up to which a column is never folded, and from which its cells are prose."""

NARROW = 52
"""Characters that a phone shows side by side; wider rows become lists there, unless they are all numbers."""

_KIND = re.compile(r"\[(" + "|".join(KINDS) + r")\]")
_HEADING = re.compile(r'<h([23]) id="([^"]+)">([^<]+)</h')
_SOURCE = re.compile(r"^\[(\d+)\]")
_QUOTED = re.compile(r"`([^`]+)`")


def render_page(
    title: str,
    body: str,
    *,
    lead: str = "",
    scripts: Sequence[str] = ("page.js",),
    data: Mapping[str, Any] | None = None,
) -> str:
    """A whole page.

    Args:
        body: HTML of the sections; its headings make the list that leads to them.
        lead: a line of HTML below the title.
        scripts: files of `assets`, in order.
        data: JSON that the page carries, by element id.
    """
    carried = "".join(
        f'<script type="application/json" id="{id_}">{_json(value)}</script>\n'
        for id_, value in (data or {}).items()
    )
    code = "\n".join(_asset(name) for name in scripts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="tilewright {__version__}">
<title>{escape(title)}</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header class="top">
<div class="brand">tilewright {__version__}</div>
<h1>{escape(title)}</h1>
{lead}
<div class="tools"><button type="button" id="theme" aria-live="polite">theme: as the system</button></div>
</header>
<nav aria-label="Sections">{_links(body)}</nav>
<main id="main">
{body}
</main>
{carried}<script>
{code}</script>
</body>
</html>
"""


def _links(body: str) -> str:
    """The headings of the sections and of their parts."""
    items = [
        f'<li class="level{level}"><a href="#{id_}">{name}</a></li>'
        for level, id_, name in _HEADING.findall(body)
    ]
    return f"<ol>{''.join(items)}</ol>"


def _asset(name: str) -> str:
    return (resources.files("tilewright.report") / "assets" / name).read_text(encoding="utf-8")


def _json(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def render_blocks(
    blocks: Iterable[Block],
    figures: Mapping[str, str] | None = None,
    *,
    first: str = "",
    prefix: str = "",
) -> str:
    """The blocks as sections.

    Args:
        figures: HTML by name; a figure that is not there is left out.
        first: in place of the first heading, which the page's title says already.
        prefix: of the element ids, where a page holds several documents.
    """
    out: list[str] = []
    for block in blocks:
        if isinstance(block, Heading):
            name = block.text if out else first or block.text
            if block.level == 1:
                end = "</section>\n" if out else ""
                out.append(f'{end}<section aria-labelledby="{slug(prefix + name)}">')
            out.append(heading(name, block.level, prefix))
        elif isinstance(block, Figure):
            out.append((figures or {}).get(block.name, ""))
        else:
            out.append(_render(block))
    return "\n".join(out) + ("\n</section>" if out else "")


def heading(name: str, level: int, prefix: str = "") -> str:
    """A heading that the list of sections leads to."""
    return f'<h{level + 1} id="{slug(prefix + name)}">{escape(name)}</h{level + 1}>'


def slug(name: str) -> str:
    """A name as an element id."""
    return re.sub(r"\W+", "-", name.lower()).strip("-")


def text(value: str) -> str:
    """Escaped, with kinds of numbers as chips and quoted words as code."""
    marked = _KIND.sub(lambda found: chip(found[1]), escape(value, quote=False))
    return _QUOTED.sub(r"<code>\1</code>", marked)


def chip(kind: str) -> str:
    """How a number is known: its word, with a mark."""
    return f'<span class="kind {kind}">{kind}</span>'


KINDS_LEGEND = (
    f'<p class="lead">Each number says how it is known: {chip("documented")} by the vendor, {chip("queried")} from a '
    f"driver, {chip('measured')}, {chip('derived')} from those, {chip('assumed')}.</p>"
)


def _render(block: Paragraph | Bullets | Code | Table) -> str:
    match block:
        case Paragraph(words, strong):
            return f'<p class="answer">{text(words)}</p>' if strong else f"<p>{text(words)}</p>"
        case Code(words):
            return f'<pre class="command" tabindex="0"><code>{escape(words)}</code></pre>'
        case Bullets(items):
            return "<ul>" + "".join(map(_item, items)) + "</ul>"
        case Table():
            return render_table(block)


def _item(item: str) -> str:
    """A list's item; a source's is what its number in a table leads to."""
    number = _SOURCE.match(item)
    return f"<li{f' id=source-{number[1]}' if number else ''}>{text(item)}</li>"


def render_table(table: Table) -> str:
    """Side by side where a reader can follow a row, else a record each row."""
    widths = [
        max([len(name), *(len(row[i]) for row in table.rows)])
        for i, name in enumerate(table.columns)
    ]
    longest = max(widths, default=0)
    if (longest > LONG and len(widths) > 6) or longest > 6 * LONG:
        return _records(table)
    numbers = len(table.numeric) >= len(widths) - 1
    stack = " stack" if sum(widths) > NARROW and not numbers else ""
    kinds = [_class(table, i, width) for i, width in enumerate(widths)]
    head = "".join(
        f'<th scope="col"{kinds[i]}>{escape(name)}</th>' for i, name in enumerate(table.columns)
    )
    rows = "".join(f"<tr>{_cells(table, row, kinds)}</tr>" for row in table.rows)
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="table: {escape(table.columns[0])}, …">'
        f'<table class="data{stack}"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    )


def _cells(table: Table, row: Sequence[str], kinds: Sequence[str]) -> str:
    return "".join(
        f'<td data-label="{escape(table.columns[i])}"{kinds[i]}>{_cell(table.columns[i], cell)}</td>'
        for i, cell in enumerate(row)
    )


def _cell(column: str, cell: str) -> str:
    if column == "kind" and cell in KINDS:
        return chip(cell)
    if column == "source":
        return _SOURCE.sub(r'<a href="#source-\1">[\1]</a>', escape(cell))
    return text(cell)


def _class(table: Table, column: int, width: int) -> str:
    if column in table.numeric and width <= LONG:
        return ' class="number"'
    return ' class="short"' if width <= SHORT else ""


def _records(table: Table) -> str:
    """A card a row: its first cell as title, the others by name."""
    cards = []
    for row in table.rows:
        pairs = "".join(
            f"<div><dt>{escape(name)}</dt><dd>{_cell(name, cell)}</dd></div>"
            for name, cell in zip(table.columns[1:], row[1:], strict=True)
            if cell
        )
        cards.append(f"<article><h4>{text(row[0] or '-')}</h4><dl>{pairs}</dl></article>")
    return f'<div class="records">{"".join(cards)}</div>'

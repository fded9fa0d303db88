"""An audit as one page: findings, each in its place in the source, and the contracts recovered from it.

A short file is shown whole; of a long one the lines around what is spoken of, the rest folded.
"""

from __future__ import annotations

import re
from html import escape
from itertools import accumulate
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from tilewright.audit.document import contract_document
from tilewright.audit.outputs import as_json
from tilewright.audit.rules import RULES
from tilewright.report.page import heading, render_blocks, render_page, slug

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.audit.contract import KernelContract
    from tilewright.audit.locate import PlaceOf
    from tilewright.audit.run import Audited

WHOLE, AROUND = 3_000, 12
"""Lines that are shown whole, of all files together; of more, those around what is spoken of."""

MARKS = {"error": "&#10006;", "warning": "&#9650;", "note": "&#9679;", "undecided": "?"}
"""A shape of its own for each severity."""

_LINES = re.compile(r"\blines? (\d+(?:, \d+)*)")
_WORD = re.compile(r"(//.*$)|(&quot;.*?&quot;)|((?<![\w%$])[.][a-z_][\w.]*)|([%$]\w+)")


class _Note(NamedTuple):
    """Something said about a line; `number` counts through the page."""

    place: PlaceOf
    severity: str
    rule: str
    message: str
    kernel: str
    detail: str
    number: int = 0


def render_audit_page(audits: Sequence[Audited]) -> str:
    """The page of one or more audited files."""
    notes = [sorted(_notes(audit), key=lambda n: (n.place.file, n.place.line)) for audit in audits]
    firsts = [0, *accumulate(map(len, notes))]
    notes = [
        [note._replace(number=first + i) for i, note in enumerate(own, 1)]
        for first, own in zip(firsts, notes, strict=False)
    ]
    lines = sum(text.count("\n") for audit in audits for text in audit.sources.values())
    body = [_summary(audits), _list([note for own in notes for note in own])]
    for audit, own in zip(audits, notes, strict=True):
        body += [
            _source(audit, file, text.split("\n"), own, whole=lines <= WHOLE)
            for file, text in audit.sources.items()
        ]
    for number, audit in enumerate(audits):
        body += [_contract(audit, contract, number) for contract in audit.contracts]
    names = [_name(audit.file) for audit in audits]
    title = f"Audit of {', '.join(names[:3])}" + (
        f" and {len(names) - 3} more" if names[3:] else ""
    )
    return render_page(
        title,
        "\n".join(body),
        lead='<p class="lead">Keys: <kbd>j</kbd> next finding, <kbd>k</kbd> the one before, <kbd>/</kbd> filter.</p>',
        scripts=("page.js", "audit.js"),
        data={"audit": as_json(audits)},
    )


def _name(file: str) -> str:
    return PurePath(file).name or file


def _notes(audit: Audited) -> Iterator[_Note]:
    """What is said."""
    for located in audit.findings:
        finding = located.finding
        rule = RULES[finding.rule]
        other = ""
        if located.other is not None:
            says = finding.other_says or "the other place involved"
            other = (
                f"<p>{_link(located.other)}: {escape(says)}</p>"
                f"<pre>{escape(located.other_text.strip())}</pre>"
            )
        detail = (
            f'{other}<p><b>help</b> {escape(rule.help)}</p><p class="soft">{escape(rule.what)} '
            f"PTX ISA {escape(rule.section)}; kernel <code>{escape(finding.kernel)}</code></p>"
        )
        yield _Note(
            located.place,
            finding.severity,
            finding.rule,
            finding.message,
            finding.kernel,
            detail,
        )
    for place, undecided in audit.not_decided:
        detail = f'<p class="soft">Not decided: neither a break nor a pass; kernel <code>{escape(undecided.kernel)}</code></p>'
        yield _Note(place, "undecided", undecided.rule, undecided.why, undecided.kernel, detail)


def _summary(audits: Sequence[Audited]) -> str:
    counts = dict.fromkeys(("error", "warning", "note"), 0)
    for audit in audits:
        for located in audit.findings:
            counts[located.finding.severity] += 1
    undecided = sum(len(audit.not_decided) for audit in audits)
    kernels = sum(len(audit.contracts) for audit in audits)
    cells = [(f"{name}s", str(count), MARKS[name]) for name, count in counts.items()]
    cells += [("not decided", str(undecided), MARKS["undecided"]), ("kernels", str(kernels), "")]
    facts = "".join(
        f"<div><dt>{name}</dt><dd><b>{value}</b> <small>{mark}</small></dd></div>"
        for name, value, mark in cells
    )
    differences = "".join(
        f"<li>differs from the plan: {escape(line)}</li>"
        for audit in audits
        for line in audit.differences
    )
    more = f"<ul>{differences}</ul>" if differences else ""
    return f'<section aria-labelledby="result">{heading("Result", 1)}<dl class="facts">{facts}</dl>{more}</section>'


def _list(notes: Sequence[_Note]) -> str:
    if not notes:
        return ""
    severities = [name for name in MARKS if any(note.severity == name for note in notes)]
    boxes = "".join(
        f'<label><input type="checkbox" value="{name}" checked> {MARKS[name]} {name}</label>'
        for name in severities
    )
    rows = "".join(
        f'<li data-severity="{note.severity}"><a href="#finding-{note.number}">{_badge(note)} '
        f"<span>{escape(note.message)}</span> <small>{escape(_name(note.place.file))}:{note.place.line}</small></a></li>"
        for note in notes
    )
    return (
        f'<section aria-labelledby="findings">{heading("Findings", 1)}<div class="filter" id="severities">'
        f'<input type="search" placeholder="filter by words" aria-label="Filter findings by words">{boxes}'
        f'<output></output></div><ol class="findings">{rows}</ol></section>'
    )


def _badge(note: _Note) -> str:
    word = "not decided" if note.severity == "undecided" else note.severity
    return f'<span class="badge {note.severity}">{MARKS[note.severity]} {note.rule} {word}</span>'


def _source(
    audit: Audited, file: str, lines: Sequence[str], notes: Sequence[_Note], *, whole: bool
) -> str:
    """One text with what is said about it inside."""
    here = [note for note in notes if note.place.file == file]
    others = (f.other for f in audit.findings if f.other is not None)
    marked = {note.place.line for note in here} | {o.line for o in others if o.file == file}
    if file == audit.file:
        marked |= {line for contract in audit.contracts for line in _contract_lines(contract)}
    rows = "".join(_rows(file, lines, _shown(len(lines), marked, whole=whole), here))
    name, prefix = _name(file), f"{file} "
    return (
        f'<section aria-labelledby="{slug(prefix + name)}">{heading(name, 1, prefix)}'
        f'<div class="source" tabindex="0" role="group" aria-label="source of {escape(name)}">{rows}</div></section>'
    )


def _contract(audit: Audited, contract: KernelContract, number: int) -> str:
    """The tables of one kernel, lines linked."""
    prefix = f"{number} {contract.kernel} " if number else f"{contract.kernel} "
    words = render_blocks(contract_document(contract), prefix=prefix)

    def link(found: re.Match[str]) -> str:
        numbers = found[1].split(", ")
        links = (f'<a href="#{_id(audit.file, int(n))}">{n}</a>' for n in numbers)
        return found[0].replace(found[1], ", ".join(links))

    return _LINES.sub(link, words)


def _contract_lines(contract: KernelContract) -> Iterator[int]:
    """Lines that a contract's tables name."""
    for block in contract_document(contract):
        for found in _LINES.finditer(repr(block)):
            yield from map(int, found[1].split(", "))


def _shown(count: int, marked: Iterable[int], *, whole: bool) -> list[bool]:
    """Which lines are written out, from 1; index 0 is unused."""
    if whole:
        return [True] * (count + 1)
    shown = [False] * (count + 1)
    for line in marked:
        for near in range(max(1, line - AROUND), min(count, line + AROUND) + 1):
            shown[near] = True
    return shown


def _rows(
    file: str, lines: Sequence[str], shown: Sequence[bool], notes: Sequence[_Note]
) -> Iterator[str]:
    by_line: dict[int, list[_Note]] = {}
    for note in notes:
        by_line.setdefault(note.place.line, []).append(note)
    at = 1
    while at <= len(lines):
        if not shown[at]:
            end = at
            while end < len(lines) and not shown[end + 1]:
                end += 1
            folded = "\n".join(f"{n:>6}  {lines[n - 1]}" for n in range(at, end + 1))
            yield f"<details><summary>lines {at} to {end}</summary><pre>{escape(folded)}</pre></details>"
            at = end + 1
            continue
        here = by_line.get(at, [])
        worst = f" {here[0].severity}" if here else ""
        yield (
            f'<div class="line{worst}" id="{_id(file, at)}"><span class="at">{at}</span>'
            f"<code>{_coloured(lines[at - 1], here[0].place.column if here else 0)}</code></div>"
        )
        for note in here:
            yield (
                f'<article class="finding {note.severity}" id="finding-{note.number}" tabindex="-1">'
                f"<p>{_badge(note)} <b>{escape(note.message)}</b></p>{note.detail}</article>"
            )
        at += 1


def _coloured(line: str, column: int) -> str:
    """A line with comments, registers and directives told apart; from `column` on it is what is meant."""
    if 0 < column <= len(line):
        rest = line[column - 1 :]
        return f"{_words(line[: column - 1])}<mark>{_words(rest)}</mark>"
    return _words(line)


def _words(text: str) -> str:
    names = ("comment", "string", "directive", "register")

    def mark(found: re.Match[str]) -> str:
        return f'<i class="{names[(found.lastindex or 1) - 1]}">{found[0]}</i>'

    return _WORD.sub(mark, escape(text)) or " "


def _id(file: str, line: int) -> str:
    return f"{slug(file)}-L{line}"


def _link(place: PlaceOf) -> str:
    return f'<a href="#{_id(place.file, place.line)}">{escape(_name(place.file))}:{place.line}</a>'

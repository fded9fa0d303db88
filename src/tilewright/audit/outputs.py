"""Findings as compilers print them, as JSON, as SARIF 2.1.0 and as GitHub annotations."""

from __future__ import annotations

import json
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from tilewright import __version__
from tilewright.audit.json_model import AuditReport, FindingRow, NotDecidedRow
from tilewright.audit.rules import RULES
from tilewright.audit.sections import links

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.audit.locate import Located
    from tilewright.audit.run import Audited

SARIF_SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
NAME_MAX = 60
_LEVELS = {"error": "error", "warning": "warning", "note": "note"}


def render_text(audits: Sequence[Audited]) -> Iterator[str]:
    """Each finding with its source line, a caret, the other place and the help; a summary last."""
    for audit in audits:
        for located in audit.findings:
            yield from _finding_lines(located)
        for undecided in audit.not_decided:
            place, finding = undecided
            yield f"{place}: {finding.rule} not decided: {finding.why}"
    counts = dict.fromkeys(_LEVELS, 0)
    for audit in audits:
        for located in audit.findings:
            counts[located.finding.severity] += 1
    kernels = sum(len(audit.contracts) for audit in audits)
    undecided_count = sum(len(audit.not_decided) for audit in audits)
    parts = [f"{count} {level}{'s' * (count != 1)}" for level, count in counts.items()]
    yield f"{kernels} kernel{'s' * (kernels != 1)}: {', '.join(parts)}, {undecided_count} not decided"


def _finding_lines(located: Located) -> Iterator[str]:
    finding = located.finding
    yield f"{located.place}: {finding.rule} {finding.severity}: {finding.message}"
    yield from _excerpt(located.place.line, located.place.column, located.line_text)
    if located.other is not None:
        yield f"  {located.other}: {finding.other_says or 'the other place involved'}"
        yield from _excerpt(located.other.line, located.other.column, located.other_text)
    rule = RULES[finding.rule]
    yield f"  help: {rule.help} (PTX ISA {rule.section}; kernel {_short(finding.kernel)})"


def _short(name: str) -> str:
    """A kernel's name; the middle of a long one, mangled by CuTe DSL, says nothing."""
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX - 8]}…{name[-7:]}"


def _excerpt(line: int, column: int, text: str) -> Iterator[str]:
    if text:
        number = f"{line:>7} | "
        shown = text.replace("\t", " ")
        yield f"{number}{shown}"
        yield " " * 7 + " | " + " " * (column - 1) + "^"


def as_json(audits: Sequence[Audited]) -> dict[str, Any]:
    """What `audit --json` prints; docs/audit.schema.json is its schema."""
    report = AuditReport(
        tilewright=__version__,
        findings=tuple(_finding_row(f) for audit in audits for f in audit.findings),
        not_decided=tuple(
            NotDecidedRow(id=n.rule, file=place.file, line=place.line, kernel=n.kernel, why=n.why)
            for audit in audits
            for place, n in audit.not_decided
        ),
        contract=tuple(c for audit in audits for c in audit.contracts),
        differences=tuple(d for audit in audits for d in audit.differences),
    )
    return report.model_dump(mode="json")


def _finding_row(located: Located) -> FindingRow:
    finding, rule = located.finding, RULES[located.finding.rule]
    other = located.other
    return FindingRow(
        id=finding.rule,
        severity=finding.severity,
        file=located.place.file,
        line=located.place.line,
        column=located.place.column,
        message=finding.message,
        kernel=finding.kernel,
        other_file=other.file if other else None,
        other_line=other.line if other else None,
        other_says=finding.other_says,
        section=rule.section,
        help=rule.help,
    )


def as_sarif(audits: Sequence[Audited]) -> dict[str, Any]:
    """SARIF 2.1.0 for code scanning."""
    used = {f.finding.rule for audit in audits for f in audit.findings}
    listed = [rule for rule in RULES.values() if rule.id in used]
    rules = [
        {
            "id": rule.id,
            "shortDescription": {"text": rule.what},
            "help": {"text": f"{rule.help}. PTX ISA {rule.section}"},
            "helpUri": links(rule.section)[0],
            "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        }
        for rule in listed
    ]
    places = {rule.id: i for i, rule in enumerate(listed)}
    results = [_sarif_result(f, places) for audit in audits for f in audit.findings]
    driver = {"name": "tilewright", "version": __version__, "rules": rules}
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}


def _sarif_result(located: Located, places: dict[str, int]) -> dict[str, Any]:
    finding = located.finding
    result: dict[str, Any] = {
        "ruleId": finding.rule,
        "ruleIndex": places[finding.rule],
        "level": _LEVELS[finding.severity],
        "message": {"text": finding.message},
        "locations": [
            _sarif_location(located.place.file, located.place.line, located.place.column)
        ],
    }
    if located.other is not None:
        other = located.other
        place = _sarif_location(other.file, other.line, other.column)
        place["message"] = {"text": finding.other_says or "the other place involved"}
        result["relatedLocations"] = [{"id": 1, **place}]
    return result


def _sarif_location(file: str, line: int, column: int) -> dict[str, Any]:
    region = {"startLine": max(line, 1), "startColumn": max(column, 1)}
    return {"physicalLocation": {"artifactLocation": {"uri": _uri(file)}, "region": region}}


def _uri(file: str) -> str:
    """A path as SARIF wants it: a URI, relative where the path is."""
    path = PurePath(file)
    return Path(file).as_uri() if path.is_absolute() else quote(path.as_posix())


def render_github(audits: Iterable[Audited]) -> Iterator[str]:
    """Workflow commands that annotate a pull request."""
    levels = {"error": "error", "warning": "warning", "note": "notice"}
    for audit in audits:
        for located in audit.findings:
            finding, place = located.finding, located.place
            yield (
                f"::{levels[finding.severity]} file={_property(place.file)},line={place.line},"
                f"col={place.column},title={finding.rule}::{_data(finding.message)}"
            )


def _data(text: str) -> str:
    """Text of a workflow command: percent signs and line ends are written as codes."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A value of a workflow command: what ends a value is written as a code too."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def dump(data: dict[str, Any]) -> str:
    """JSON text."""
    return json.dumps(data, indent=2)

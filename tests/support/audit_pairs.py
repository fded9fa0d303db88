"""The catalogue's PTX as the audit's tests use it: read, edited, audited, by rule."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.audit import audit_module
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from tilewright.audit.kernel import Options

PAIRS_FOLDER = Path(__file__).parents[1] / "data" / "rules"


def text_of(name: str) -> str:
    return (PAIRS_FOLDER / f"{name}.ptx").read_text(encoding="utf-8")


def edited(name: str, *edits: tuple[str, str]) -> str:
    """A kernel with texts replaced; each must be there."""
    text = text_of(name)
    for old, new in edits:
        assert old in text, old
        text = text.replace(old, new)
    return text


def said(text: str, rule: str, options: Options | None = None) -> list[tuple[str, int]]:
    """Severity and line of a rule's findings."""
    report = audit_module(parse_ptx(text), options)
    return [(f.severity, f.span.line) for f in report.findings if f.rule == rule]


def undecided(text: str, rule: str) -> list[int]:
    report = audit_module(parse_ptx(text))
    return [each.span.line for each in report.not_decided if each.rule == rule]


def errors_of(
    families: tuple[str, ...], text: str, options: Options | None = None
) -> list[tuple[str, int]]:
    """Rule and line of the errors of rules whose ids begin so."""
    report = audit_module(parse_ptx(text), options)
    return [(f.rule, f.span.line) for f in report.errors if f.rule.startswith(families)]

"""The catalogue's cases as tests use them: each clean kernel and the violating one, read, edited, audited.

A kernel is asked for by name: `CLC-07_ok` and `CLC-07_bad` of a case, or a kernel's own, `gemm_clc2_full`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tilewright.audit import audit_module
from tilewright.audit.catalogue import Case, catalogue
from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from tilewright.audit.kernel import Options

KERNELS = Path(__file__).parents[1] / "data" / "rules"
WHOLE = ("gemm_clc2_full", "gemm_wgmma_full")
"""Kernels meant to be clean, as nvcc wrote them."""


@dataclass(frozen=True)
class Pair:
    """A case with the text of both kernels."""

    id: str
    case: Case
    bad: str
    ok: str


@cache
def pairs() -> dict[str, Pair]:
    """Every case of the catalogue by its id."""
    found = {}
    for entry in catalogue().values():
        for case in entry.cases:
            ok = kernel_text(case.kernel)
            found[case.id] = Pair(case.id, case, case.violating(ok), ok)
    return found


def kernel_text(name: str) -> str:
    return (KERNELS / f"{name}.ptx").read_text(encoding="utf-8")


def kernels() -> list[str]:
    """Names of the clean kernels."""
    return sorted(path.stem for path in KERNELS.glob("*.ptx"))


def text_of(name: str) -> str:
    case, _, which = name.rpartition("_")
    if case not in pairs():
        return kernel_text(name)
    return pairs()[case].bad if which == "bad" else pairs()[case].ok


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

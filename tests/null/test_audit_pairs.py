"""Every Markdown case of the catalogue: the violating kernel is found at its lines, the clean one has no error.

A case is a difference from a clean kernel; its lines were read by hand from the violating text. Cases of public
bug reports are named C5 and so on.
"""

from __future__ import annotations

import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from audit_pairs import kernel_text, kernels, pairs
from tilewright.audit import Report, audit_module
from tilewright.audit.catalogue import Entry, catalogue, explain
from tilewright.audit.rules import RULES
from tilewright.audit.run import load_rules
from tilewright.audit.sections import ANCHORS
from tilewright.ptx import parse_ptx

HOST = {"TMA-14"}
NO_CASE = {"CLC-21", "CLC-22", "PDL-02"}
"""They allow something: no kernel breaks them by what it says, and no check looks for them."""

REPORTS = {"C5": "CLC-03", "C6": "TC-11", "C7": "TMA-03", "C8": "CLC-16", "C13": "CLC-09", "C14": "MBAR-07", "C24": "CLC-07"}  # fmt: skip
"""Public bug reports and the rule that each breaks; tests/toolkit/test_emitted_cases.py asks C5 to C8 of what `emit` writes."""

load_rules()


@cache
def report(text: str) -> Report:
    return audit_module(parse_ptx(text))


@pytest.mark.parametrize("name", pairs())
def test_a_violating_kernel_is_found_at_its_lines(name: str) -> None:
    pair = pairs()[name]
    found = report(pair.bad)
    for expected in pair.case.expected:
        lines = tuple(
            f.span.line for f in found.findings
            if (f.rule, f.severity) == (expected.rule, expected.outcome)
        )  # fmt: skip
        undecided = [n.span.line for n in found.not_decided if n.rule == expected.rule]
        if expected.outcome == "not decided":
            assert expected.rule not in {f.rule for f in found.findings}
            assert undecided == list(expected.lines)
        else:
            assert lines == expected.lines


@pytest.mark.parametrize("name", pairs())
def test_the_clean_twin_is_not_found(name: str) -> None:
    pair = pairs()[name]
    said = {(f.rule, f.severity) for f in report(pair.ok).findings}
    assert not said & {(each.rule, each.outcome) for each in pair.case.expected}


@pytest.mark.parametrize("name", kernels())
def test_a_clean_kernel_has_no_error(name: str) -> None:
    errors = report(kernel_text(name)).errors
    assert [(f.rule, f.span.line, f.message) for f in errors] == []


def test_every_clean_kernel_has_a_case() -> None:
    assert {pair.case.kernel for pair in pairs().values()} == set(kernels())


def test_a_case_is_made_from_its_own_kernel_alone() -> None:
    with pytest.raises(ValueError, match="case CLC-07: line"):
        pairs()["CLC-07"].case.violating(kernel_text("dsmem"))


# --- what there is -----------------------------------------------------------------------------------


def decided(entry: Entry) -> bool:
    return any(each.outcome != "not decided" for case in entry.cases for each in case.expected)


def test_what_can_be_decided_statically_is() -> None:
    """Every rule that the text shows, at least four fifths of those that it shows in part; the rest says why not."""
    rules = catalogue().values()
    assert {entry.id for entry in rules if entry.detect == "static" and not decided(entry)} == set()
    both = [entry for entry in rules if entry.detect == "both"]
    assert sum(map(decided, both)) >= 0.8 * len(both)
    assert {entry.id for entry in rules if not entry.cases} == HOST | NO_CASE
    assert {entry.id for entry in rules if entry.detect == "host"} == HOST
    assert all(catalogue()[rule].detect == "execution" for rule in NO_CASE)


def test_public_reports_are_cases_of_their_rules() -> None:
    cases = {
        case.id: entry.id for entry in catalogue().values() for case in entry.cases if case.report
    }
    assert cases == REPORTS
    for name in REPORTS:
        test_a_violating_kernel_is_found_at_its_lines(name)
        assert report(pairs()[name].ok).errors == ()


def test_catalogue_and_checks_say_the_same() -> None:
    assert set(RULES) == set(catalogue()) - HOST - NO_CASE
    for rule in RULES.values():
        entry = catalogue()[rule.id]
        assert (entry.text, entry.severity) == (rule.what, rule.severity), rule.id
        assert rule.help
        for section in rule.section.split(", "):
            assert section in ANCHORS, rule.id
    assert len(catalogue()) >= 95


@pytest.mark.parametrize("name", catalogue())
def test_every_rule_is_explained_with_both_kernels(name: str) -> None:
    entry = catalogue()[name]
    text = "\n".join(explain(entry, RULES.get(name)))
    assert entry.text.splitlines()[0] in text
    if not entry.cases:
        assert "needs execution" in text or "host code" in text
        return
    violating, correct = re.search(
        r"violating.*?:\n(.*?)\n\ncorrect:\n(.*?)(\n\n|\Z)", text, re.DOTALL
    ).groups()[:2]  # type: ignore[union-attr]
    assert violating != correct
    changed = [line[1:] for line in entry.cases[0].diff if line[0] in "+-"]
    assert any(line.replace("\t", "    ") in violating + correct for line in changed)
    assert "parallel-thread-execution/#" in text


def test_the_table_in_the_docs_is_the_script_s() -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("table", root / "bench" / "write_audit_table.py")
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    assert "\n".join(table.rows()) in (root / "docs" / "audit.md").read_text(encoding="utf-8")

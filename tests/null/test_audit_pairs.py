"""Every pair of the rule catalogue: the violating kernel is found, its clean twin has no error.

`catalogue.csv` has each rule's severity and how it can be detected: S statically, X by execution. A pair's
name is its rule with the letter of the case; cases of public bug reports are named C5 and so on.
"""

from __future__ import annotations

import csv
import importlib.util
import re
from functools import cache
from pathlib import Path

import pytest

from tilewright.audit import Report, audit_module
from tilewright.audit.rules import RULES
from tilewright.audit.run import load_rules
from tilewright.ptx import parse_ptx_file

PAIRS = Path(__file__).parent.parent / "data" / "rules"
CASES = {"C5": "CLC-03", "C6": "TC-11", "C7": "TMA-03", "C8": "CLC-16", "C13": "CLC-09", "C14": "MBAR-07", "C24": "CLC-07"}  # fmt: skip
"""Public bug reports and the rule that each breaks."""

UNDECIDED = {"TMA-02", "TMA-03"}
"""Pairs whose break is in the tensor map, which PTX does not show: said to be not decided."""

REJECTED = {"CLC-19", "TC-21"}
"""ptxas refuses any kernel that breaks these: no pair."""


@cache
def report(name: str) -> Report:
    return audit_module(parse_ptx_file(PAIRS / f"{name}.ptx"))


def catalogue() -> dict[str, str]:
    with (PAIRS / "catalogue.csv").open(encoding="utf-8", newline="") as file:
        return {row["id"]: row["detect"] for row in csv.DictReader(file)}


def rule_of(pair: str) -> str:
    found = re.match(r"[A-Z]+-\d+", pair)
    return found[0] if found else CASES[pair]


BAD = sorted(path.stem.removesuffix("_bad") for path in PAIRS.glob("*_bad.ptx"))
CLEAN = sorted(path.stem for path in PAIRS.glob("*.ptx") if not path.stem.endswith("_bad"))


@pytest.mark.parametrize("pair", BAD)
def test_the_violation_is_found(pair: str) -> None:
    rule = rule_of(pair)
    found = {finding.rule for finding in report(f"{pair}_bad").findings}
    if pair in UNDECIDED:
        assert rule in {each.rule for each in report(f"{pair}_bad").not_decided}
        assert rule not in found
    else:
        assert rule in found


@pytest.mark.parametrize("name", CLEAN)
def test_the_clean_twin_has_no_error(name: str) -> None:
    assert [(f.rule, f.span.line, f.message) for f in report(name).errors] == []


def test_what_can_be_decided_statically_is() -> None:
    """Every rule marked S that a kernel in PTX can break, and at least four fifths of those marked S+X."""
    have = {rule_of(pair) for pair in BAD if pair not in UNDECIDED}
    static = {id_ for id_, detect in catalogue().items() if detect == "S"} - REJECTED - {"TMA-14"}
    assert static <= have, static - have
    mixed = {id_ for id_, detect in catalogue().items() if detect == "S+X"}
    assert len(mixed & have) >= 0.8 * len(mixed), mixed - have


def test_every_rule_says_where_it_comes_from() -> None:
    load_rules()
    for rule in RULES.values():
        assert re.fullmatch(r"[\d.]+(, [\d.]+)*|.*[A-Za-z].*", rule.section), rule.id
        assert rule.help
        assert not rule.what.endswith(" ")
    assert len(RULES) >= 90


def test_the_table_in_the_docs_is_the_script_s() -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("table", root / "bench" / "write_audit_table.py")
    assert spec is not None
    assert spec.loader is not None
    table = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(table)
    assert "\n".join(table.rows()) in (root / "docs" / "audit.md").read_text(encoding="utf-8")

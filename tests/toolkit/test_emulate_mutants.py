"""The mutants that bench/emulate_mutants.py has run: a seeded sample again, by the seed that shows each.

tests/data/emulate_mutants.csv     bench/emulate_mutants.py --write: a row a mutant; docs/emulate_mutants.md
"""

from __future__ import annotations

import importlib
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.toolkit

BENCH = Path(__file__).parents[2] / "bench"
SEED, EACH = 0, 3
"""Rows of each kernel that are replayed."""

MUTANTS_MIN = 60
SHARE_MIN = 0.95
"""Of each kernel: an error of the audit or of the emulator."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("emulate_mutants")
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def rows(bench: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {str(case): [] for case in bench.CASES}
    for row in bench.read_rows():
        found[row.kernel].append(row)
    return found


def test_each_kernel_has_its_mutants_and_nearly_all_are_errors(rows: dict[str, list[Any]]) -> None:
    for kernel, mine in rows.items():
        assert len(mine) >= MUTANTS_MIN, kernel
        assert sum(row.is_error for row in mine) / len(mine) >= SHARE_MIN, kernel


def test_what_is_no_error_has_a_reason(bench: Any, rows: dict[str, list[Any]]) -> None:
    open_ones = [row for mine in rows.values() for row in mine if not row.is_error]
    assert open_ones
    assert [row for row in open_ones if bench.reason(row) == "?"] == []


@pytest.mark.parametrize("place", range(9))
def test_the_seed_shows_the_rule(bench: Any, rows: dict[str, list[Any]], place: int) -> None:
    case = bench.CASES[place]
    found = [row for row in rows[str(case)] if row.emulator == "found"]
    mutants = {(m.operator, m.line, m.what): m for m in bench.mutants_of(case)}
    for row in random.Random(SEED).sample(found, EACH):
        mutant = mutants.get((row.operator, row.line, row.what))
        assert mutant is not None, (
            f"the kernel is another one: run bench/emulate_mutants.py --write; {row}"
        )
        assert bench.errors(case, mutant.text, row.seed)[0] == row.rule, row
        assert bench.errors(case, bench.ptx_of(case), row.seed) == [], row

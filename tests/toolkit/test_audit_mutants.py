"""The audit on emitted kernels that bench/mutants*.py have broken: what it reports, operator by operator.

The sample is `EACH` mutants of every operator, drawn by seed from all kernels. The whole measurement is
docs/audit_mutants.md.
"""

from __future__ import annotations

import importlib
import os
import random
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tilewright.ptx import parse_ptx

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.toolkit

BENCH = Path(__file__).parents[2] / "bench"
EACH, SEED = 2, 0
MUTANTS_MIN = 200
"""Of every kernel."""

OPERATORS_MIN = 15
REPORTED_MIN = 0.7
"""Share of the whole sample: found by an error or a warning, not just said to be open."""

ALWAYS = {
    "wait_once", "narrow_wait", "plain_arrive", "only_expect", "expect_late", "wrong_slot_count", "drop_init",
    "init_twice", "misaligned_barrier", "spoil_barrier", "wrong_depth", "drop_mapa", "double_copy", "misaligned_copy",
    "leave_early", "touch_after_exit", "touch_before_start", "drop_fence", "move_fence", "half_cluster_barrier",
    "double_cluster_arrive", "divergent_cluster_barrier", "wrong_threads", "drop_bulk_commit", "drop_wgmma_commit",
    "drop_wait_ld", "arrive_for_commit", "drop_commit", "drop_dealloc", "wrong_columns", "alloc_late", "dealloc_early",
    "too_many_registers", "ask_after_decline", "work_after_decline", "read_declined", "read_elsewhere",
    "answer_to_peer",
}  # fmt: skip
"""Operators of which every mutant is reported."""


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    sys.path.insert(0, str(BENCH))
    try:
        yield importlib.import_module("audit_mutants")
    finally:
        sys.path.remove(str(BENCH))


@pytest.fixture(scope="module")
def mutants(bench: Any) -> dict[Any, list[Any]]:
    return {case: bench.mutants_of(case) for case in bench.CASES}


@pytest.fixture(scope="module")
def sampled(mutants: dict[Any, list[Any]]) -> list[tuple[Any, Any]]:
    groups: dict[str, list[tuple[Any, Any]]] = {}
    for case, found in mutants.items():
        for mutant in found:
            groups.setdefault(mutant.operator, []).append((case, mutant))
    rng = random.Random(SEED)
    return [one for group in groups.values() for one in rng.sample(group, min(EACH, len(group)))]


@pytest.fixture(scope="module")
def outcomes(bench: Any, sampled: list[tuple[Any, Any]]) -> list[Any]:
    found: list[Any] = bench.judge_all(sampled, workers=os.cpu_count() or 1)
    return found


def test_the_kernels_themselves_have_no_error(bench: Any) -> None:
    assert {str(case): bench.clean_report(case).errors for case in bench.CASES} == {
        str(case): () for case in bench.CASES
    }


def test_both_architectures_have_four_kernels_and_each_has_its_mutants(
    mutants: dict[Any, list[Any]],
) -> None:
    archs = [case.arch for case in mutants]
    assert min(archs.count("sm_90a"), archs.count("sm_100a")) >= 4
    assert {
        str(case): len(found) for case, found in mutants.items() if len(found) < MUTANTS_MIN
    } == {}


def test_every_operator_breaks_some_kernel_and_says_why(
    bench: Any, mutants: dict[Any, list[Any]]
) -> None:
    operators = bench.load_operators()
    assert len(operators) >= OPERATORS_MIN
    assert {mutant.operator for found in mutants.values() for mutant in found} == set(operators)
    assert [
        each.name for each in operators.values() if not each.breaks or not each.make.__doc__
    ] == []


def test_a_mutant_is_another_ptx_module_and_changes_the_line_it_names(
    bench: Any, sampled: list[tuple[Any, Any]]
) -> None:
    for case, mutant in sampled:
        before, after = mutant.source.splitlines(), mutant.text.splitlines()
        changed = [
            i for i, lines in enumerate(zip(before, after, strict=False), 1) if len(set(lines)) > 1
        ]
        assert parse_ptx(mutant.text) != parse_ptx(bench.ptx_of(case)), mutant
        assert changed[0] == mutant.line, mutant


def test_no_two_mutants_of_a_kernel_are_the_same(mutants: dict[Any, list[Any]]) -> None:
    for case, found in mutants.items():
        assert len({mutant.edits for mutant in found}) == len(found), case


def test_what_is_reported(bench: Any, outcomes: list[Any]) -> None:
    shares = {name: bench.share(found) for name, found in bench.by_operator(outcomes).items()}
    assert {name for name in ALWAYS if shares.get(name, 0) < 1} == set()
    assert bench.share(outcomes) >= REPORTED_MIN


def test_no_mutant_is_called_clean(outcomes: list[Any]) -> None:
    """What is not reported is said to be open: a rule that the break violates, at the place that is broken."""
    silent = [
        f"{o.case}, line {o.mutant.line}: {o.mutant.operator}: {o.mutant.what}"
        for o in outcomes
        if o.verdict == "missed"
    ]
    assert silent == []

"""The audit on emitted kernels that bench/mutants*.py have broken: what it reports, operator by operator.

The sample is `EACH` mutants of every operator, drawn by seed from all kernels; `REPORTED` holds how many
percent of them were reported when this was written, rounded down to 5. More may come, none may go. The whole
measurement is docs/audit_mutants.md.
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

OPERATORS_MIN = 18
REPORTED_MIN = 0.6
"""Share of the whole sample."""

REPORTED = {
    "drop_wait": 100, "drop_tail": 100, "flip_parity": 50, "wait_elsewhere": 50,
    "narrow_wait": 100, "double_arrive": 50, "only_expect": 100, "expect_late": 100,
    "wrong_bytes": 50, "init_twice": 100, "misaligned_barrier": 100, "spoil_barrier": 50,
    "drop_fence": 100, "move_fence": 50, "unpublished_init": 50, "half_cluster_barrier": 100,
    "double_cluster_arrive": 100, "cta_for_cluster_barrier": 50, "divergent_cluster_barrier": 100,
    "drop_wgmma_commit": 100, "drop_wgmma_wait": 100, "drop_wait_ld": 100,
    "arrive_for_commit": 50, "drop_commit": 100, "drop_dealloc": 100, "wrong_columns": 100,
    "alloc_late": 100, "drop_leader": 50, "drop_mapa": 100, "rank_outside": 50, "wrong_mask": 100,
    "drop_multicast": 50, "drop_pair_form": 50, "own_for_leader": 50, "signal_elsewhere": 50,
    "signal_next_slot": 50, "drop_copy": 100, "double_copy": 50, "misaligned_copy": 100,
    "leave_early": 50, "ask_after_decline": 100, "work_after_decline": 50, "read_declined": 100,
    "answer_to_peer": 100,
}  # fmt: skip
"""Percent of the sample, by operator; 0 for those that are not here."""


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


def test_what_was_reported_still_is(bench: Any, outcomes: list[Any]) -> None:
    shares = {name: bench.share(found) for name, found in bench.by_operator(outcomes).items()}
    fallen = {
        name: (shares[name], percent)
        for name, percent in REPORTED.items()
        if shares[name] < percent / 100
    }
    assert fallen == {}
    assert bench.share(outcomes) >= REPORTED_MIN

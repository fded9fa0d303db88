"""The catalogue's pairs of TMA, wgmma and tcgen05: the broken kernel is found out, its clean twin is not.

Here the small kernels; those built around whole GEMMs take seconds each and are in tests/toolkit.
"""

from __future__ import annotations

import numpy as np
import pytest

from audit_pairs import text_of
from emulated_pairs import SMALL, WARNED, broken_rules, messages, prepared, run

SEEDS = 3
"""Schedules until which a broken kernel must be found; the catalogue's hard ones need a rare order."""


@pytest.mark.parametrize("name", SMALL)
def test_the_broken_kernel_is_found(name: str) -> None:
    text = text_of(f"{name}_bad")
    found: set[str] = set()
    for seed in range(SEEDS):
        found |= broken_rules(run(prepared(text), seed))
        if found & SMALL[name]:
            return
    pytest.fail(f"found {found or 'nothing'}, not {SMALL[name]}")


@pytest.mark.parametrize("name", [*SMALL, *WARNED])
def test_the_clean_twin_is_not(name: str) -> None:
    case = prepared(text_of(f"{name}_ok"))
    outcome = run(case, seed=1)
    assert messages(outcome) == []
    if case.expected is not None:
        np.testing.assert_array_equal(case.output, case.expected)


def test_what_the_manual_does_not_say_is_a_warning() -> None:
    # TMA-06: under multicast only the barrier's offset counts; an H200 was right 200 times of 200.
    case = prepared(text_of("TMA-06_bad"))
    outcome = run(case, seed=0)
    assert {(found.rule, found.severity) for found in outcome.findings} == {("TMA-06", "warning")}
    np.testing.assert_array_equal(case.output, case.expected)

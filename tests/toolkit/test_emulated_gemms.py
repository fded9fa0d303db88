"""Every kind of emitted GEMM on the CPU: compiled by NVRTC, run by the emulator, held against float64 as on a GPU.

TILEWRIGHT_SCHEDULES sets the schedules of each problem; 2 by default, so that the suite stays quick.
bench/emulate_schedules.py runs hundreds.
"""

from __future__ import annotations

import os

import numpy as np
import pytest

from audit_pairs import text_of
from emulated_gemms import CONFIGS, Schedules, problems
from emulated_pairs import LARGE, broken_rules, messages, prepared, run

pytestmark = pytest.mark.toolkit

SCHEDULES = int(os.environ.get("TILEWRIGHT_SCHEDULES", "2"))
ALL = {f"{name}, {problem.what}": problem for name in CONFIGS for problem in problems(name)}


@pytest.mark.parametrize("name", ALL)
def test_an_emitted_gemm(name: str) -> None:
    schedules = Schedules(ALL[name])
    for seed in range(SCHEDULES):
        assert schedules.failure(seed) == "", seed


@pytest.mark.parametrize("name", LARGE)
def test_a_pair_around_a_gemm(name: str) -> None:
    text = text_of(f"{name}_bad")
    found: set[str] = set()
    for seed in range(4):
        found |= broken_rules(run(prepared(text), seed))
        if found & LARGE[name]:
            break
    assert found & LARGE[name]
    for seed in range(SCHEDULES):
        case = prepared(text_of(f"{name}_ok"))
        assert messages(run(case, seed)) == []
        np.testing.assert_array_equal(case.output, case.expected)

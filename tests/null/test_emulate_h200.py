"""Micro-kernels in the emulator against what an H200 gave for the same PTX and the same inputs.

tests/data/h200/micro.json     tests/gpu/record_micro.py: every output, exact

Bits are equal, but for approximations (the manual's error of each) and sums of tensor cores (a unit of the
accumulator for each addend; micro/tensor.py). Each replay is one schedule, with races looked for. Kernels that the
H200 ended as an illegal instruction are stopped by the emulator with the rule that the case names.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from micro.cases import ALL, COUNT
from micro.record import SEED, differences, packed, unpacked
from micro.run import emulated
from tilewright.emulate import CheckFailed

FILE = Path(__file__).parent.parent / "data" / "h200" / "micro.json"
RECORD: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
ROWS: dict[str, Any] = RECORD.get("cases", {})

EXPECTED = [name for name, case in ALL.items() if case.expected is not None]


def test_names_are_told_apart() -> None:
    assert len(ALL) == COUNT >= 45


@pytest.mark.parametrize("name", EXPECTED)
def test_what_numpy_expects(name: str) -> None:
    case = ALL[name]
    assert case.expected is not None
    found = emulated(case, seed=3, schedule=2)
    np.testing.assert_array_equal(found, case.expected(case.arrays(3)))


def test_what_the_record_holds() -> None:
    assert set(ROWS) == set(ALL)
    for name, row in ROWS.items():
        assert row["digest"] == ALL[name].digest, (
            "recorded of another PTX: run tests/gpu/record_micro.py again"
        )
        assert row["inputs"] == ALL[name].inputs_digest(SEED)


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if not case.fault])
def test_the_h200_gave_the_same(name: str) -> None:
    case, row = ALL[name], ROWS[name]
    assert row["repeats"]
    assert differences(case, unpacked(row), emulated(case, SEED, schedule=1)) == ""


@pytest.mark.parametrize("name", [name for name, case in ALL.items() if case.fault])
def test_the_h200_ended_the_launch(name: str) -> None:
    assert "CUDA_ERROR_ILLEGAL_INSTRUCTION" in ROWS[name]["error"]
    with pytest.raises(CheckFailed) as failed:
        emulated(ALL[name], SEED)
    assert [finding.rule for finding in failed.value.report.findings] == [ALL[name].fault]


def test_a_difference_is_told() -> None:
    exact, near = ALL["shuffles"], ALL["mma_k16_f32_f16_f16_normal"]
    for case in (exact, near):
        result = emulated(case)
        assert differences(case, unpacked(packed(result)), result) == ""
        other = result.copy()
        other.flat[5] ^= 1 << 12
        assert differences(case, result, other).startswith("1 of ")
    last_bit = emulated(near) ^ np.uint32(1)
    assert differences(near, emulated(near), last_bit) == ""

"""What one H200 said of the kernels, replayed without it.

gemm_checks.json       tests/gpu/record_gemm.py: every case against a float64 reference
harness_checks.json    tests/gpu/record_harness.py: how often each tile ran
bench.json             bench/bench_gemm.py: the plans of 19 problems, and a library in the same rounds
calibration.json       tilewright calibrate: launches of spinning tiles, and the fit
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gemm_cases import SUITES
from tilewright import Gemm, GroupedGemm, load, make_plan
from tilewright.residency import CtaResources, find_residency
from tilewright.run.calibrate import CalibrationRecord
from tilewright.run.check import tile_map
from tilewright.run.fit import errors_of, fit_overheads

ROOT = Path(__file__).parent.parent
DATA = ROOT / "data" / "h200"
H200 = load("h200")


def read(name: str) -> Any:
    return json.loads((DATA / name).read_text(encoding="utf-8"))


CHECKS = read("gemm_checks.json")["suites"]
BENCH = read("bench.json")
CALIBRATION = CalibrationRecord.from_json((DATA / "calibration.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("suite", list(SUITES))
def test_every_gemm_case_was_right(suite: str) -> None:
    rows = CHECKS[suite]
    assert [row["case"] for row in rows] == [case.name for case in SUITES[suite]]
    assert len(rows) >= 60
    assert all(row["passed"] and row["worst"] <= 1 for row in rows)


@pytest.mark.parametrize("suite", list(SUITES))
def test_launches_had_the_grid_that_the_model_says(suite: str) -> None:
    """Tiles from the tile map, clusters resident from the GPC rule: equal to the driver's."""
    for row, case in zip(CHECKS[suite], SUITES[suite], strict=True):
        config = case.config()
        tiling = config.tiling
        if tiling.mma.family == "wgmma":  # the portable kernel has no clusters and other limits
            cta = CtaResources(tiling.threads, config.smem_bytes, tiling.regs)
            resident = find_residency(cta, tiling.cluster_size, H200).resident_clusters
            assert resident == row["resident_clusters"], case.name
        tiles = tile_map(config, case.resolve(row["resident_clusters"])).num_tiles
        assert tiles == row["tiles"], case.name
        grid = min(tiles, row["resident_clusters"]) if config.is_persistent else tiles
        assert grid == row["grid_clusters"], case.name


def test_tiles_around_the_resident_clusters_were_among_them() -> None:
    for rows in CHECKS.values():
        beyond = {row["tiles"] - row["resident_clusters"] for row in rows}
        assert "grouped" in next(k for k, v in CHECKS.items() if v is rows) or {-1, 0, 1} <= beyond


def test_the_harness_ran_every_tile_once_in_each_rank() -> None:
    rows = read("harness_checks.json")["rows"]
    assert len(rows) >= 60
    assert all(row["passed"] for row in rows)
    assert {row["scheduler"] for row in rows} == {
        "single_tile",
        "static",
        "static_blocked",
        "dynamic_atomic",
    }
    assert {row["cluster"] for row in rows} == {1, 2, 4, 8, 16}
    for row in rows:
        persistent = row["scheduler"] != "single_tile"
        most = row["resident_clusters"] if persistent else row["tiles"]
        assert row["grid_clusters"] == min(row["tiles"], most)


def test_the_hopper_gemm_reaches_the_library() -> None:
    ratios = [
        r["library_us"] / r["rows"][0]["measured_us"] for n, r in BENCH.items() if n[0] != "E"
    ]
    assert len(ratios) == 14
    assert math.exp(np.mean(np.log(ratios))) >= 0.95


def test_skewed_groups_pass_the_library() -> None:
    ratios = [
        r["library_us"] / r["rows"][0]["measured_us"] for n, r in BENCH.items() if "skew" in n
    ]
    assert len(ratios) == 3
    assert math.exp(np.mean(np.log(ratios))) >= 1.1


def test_measured_plans_were_right_and_are_predicted() -> None:
    """The model of today against the recorded times: 7.9 % mean error and 14.1 % worst when recorded."""
    errors = []
    for record in BENCH.values():
        assert all(row["worst"] <= 1 for row in record["rows"])
        values = {k: v for k, v in record["problem"].items() if v is not None}
        problem = (Gemm if values["kind"] == "gemm" else GroupedGemm).of(values)
        predicted = make_plan(problem, H200).conclusion.predicted_us + record["launch_us"]
        errors.append(predicted / record["rows"][0]["measured_us"] - 1)
    assert len(errors) == 19
    assert np.mean(np.abs(errors)) <= 0.10
    assert max(np.abs(errors)) <= 0.20


def test_the_calibration_follows_from_its_launches() -> None:
    unit = replace(H200, sm_clock_mhz=CALIBRATION.clock_mhz)
    assert fit_overheads(CALIBRATION.launches, unit) == CALIBRATION.fitted
    changed: dict[str, Any] = dict(CALIBRATION.fitted)
    errors = np.abs(errors_of(CALIBRATION.launches, replace(unit, **changed)))
    assert round(float(errors.mean()), 5) == CALIBRATION.mean_error <= 0.015
    assert round(float(errors.max()), 5) == CALIBRATION.worst_error <= 0.05


def test_the_calibration_stands_beside_the_device_file() -> None:
    """The same overheads by another kernel: of the same size, except the queue's, which st.async halves."""
    assert len(CALIBRATION.fitted) == 4
    for name in ("cluster_tile_cycles", "cta_turnover_cycles"):
        assert CALIBRATION.fitted[name] == pytest.approx(getattr(H200, name), rel=0.25)
    queue = H200.queue_fetch_cycles
    assert queue is not None
    assert 0 < CALIBRATION.fitted["queue_fetch_cycles"] < queue

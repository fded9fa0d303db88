"""Every kind of emitted GEMM on the CPU: compiled by NVRTC, run by the emulator, held against float64 as on a GPU.

Sizes put as many cluster tiles as are resident, one fewer, one more, and twice as many and one more, with edges that
no tile divides. TILEWRIGHT_SCHEDULES sets the schedules of each case; 2 by default, so that the suite stays quick.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from audit_pairs import text_of
from emulated_pairs import LARGE, broken_rules, messages, prepared, run
from tilewright.device import load
from tilewright.kernels.config import GemmConfig
from tilewright.problem import OUT_BYTES
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gemm import GemmKernel
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

pytestmark = pytest.mark.toolkit

SCHEDULES = int(os.environ.get("TILEWRIGHT_SCHEDULES", "2"))
RESIDENT = 2


def config(
    device: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    scheduler: str,
    *,
    group: int = 1,
    dtype: str = "bf16",
    out: str = "bf16",
    **more: Any,
) -> GemmConfig:
    pair: dict[str, Any] = {"cta_group": group} if device == "b200" else {}
    tiling = make_tiling(
        dtype,
        OUT_BYTES[out],
        load(device),
        cta_tile=tile,
        cluster_shape=(*cluster, 1),
        num_stages=2,
        **pair,
    )
    return GemmConfig(tiling, Raster("m", 8), scheduler, out_dtype=out, **more)


def blackwell(scheduler: str, cluster: tuple[int, int], group: int, **more: Any) -> GemmConfig:
    return config("b200", (128, 64), cluster, scheduler, group=group, **more)


def hopper(scheduler: str, cluster: tuple[int, int], **more: Any) -> GemmConfig:
    return config("h200", (128, 64), cluster, scheduler, **more)


CONFIGS = {
    "portable": config("a100", (64, 64), (1, 1), "static"),
    "hopper single_tile": hopper("single_tile", (1, 1)),
    "hopper static 2x1": hopper("static", (2, 1)),
    "hopper static_blocked 1x2": hopper("static_blocked", (1, 2)),
    "hopper dynamic_atomic 2x2": hopper("dynamic_atomic", (2, 2), schedule_depth=2),
    "hopper fp8 2x1": hopper("static", (2, 1), dtype="fp8_e4m3"),
    "hopper 256 rows, addends": config(
        "h200", (256, 64), (1, 1), "static", has_c=True, has_bias=True
    ),
    "hopper swapped, fp32": hopper("static", (1, 1), out="fp32", swap_ab=True),
    "alone single_tile": blackwell("single_tile", (1, 1), 1),
    "alone static": blackwell("static", (1, 1), 1),
    "alone clc 1": blackwell("clc", (1, 1), 1),
    "alone 64 rows": config("b200", (64, 64), (1, 2), "static"),
    "two ctas static": blackwell("static", (2, 1), 1),
    "pair single_tile": blackwell("single_tile", (2, 1), 2),
    "pair static": blackwell("static", (2, 1), 2),
    "pair clc 1": blackwell("clc", (2, 1), 2),
    "pair clc 2": blackwell("clc", (2, 1), 2, schedule_depth=2),
    "pair clc 3": blackwell("clc", (2, 1), 2, schedule_depth=3),
    "pair dynamic_atomic": blackwell("dynamic_atomic", (2, 1), 2),
    "pair fp8 clc": blackwell("clc", (2, 1), 2, dtype="fp8_e4m3"),
    "pair swapped": blackwell("static", (2, 1), 2, swap_ab=True),
    "two pairs clc": blackwell("clc", (4, 1), 2, schedule_depth=2),
    "two pairs 2x2 static": blackwell("static", (2, 2), 2),
}


def sized(made: GemmConfig, tiles: int) -> GemmCase:
    """So many cluster tiles along M, rows and columns short of whole tiles."""
    m, n = made.tiling.cluster_tile.m * tiles - 24, made.tiling.cluster_tile.n - 8
    if made.swap_ab:
        m, n = n, m
    k = 200 * 2 // (1 if made.tiling.mma.dtype.startswith("fp8") else 2)
    alpha, beta = (0.5, 2.0) if made.has_c else (1.0, 0.0)
    return GemmCase(m, n, k // 16 * 16 + 16, alpha=alpha, beta=beta)


def architecture(made: GemmConfig) -> str:
    return {"mma.sync": "sm_80", "wgmma": "sm_90a", "tcgen05": "sm_100a"}[made.tiling.mma.family]


def check(made: GemmConfig, case: GemmCase, resident: int = RESIDENT, **options: Any) -> None:
    with EmulatedGpu(architecture(made), resident=resident, **options) as gpu:
        kernel = GemmKernel(gpu, made)
        checked = GemmRun(gpu, kernel, case).check()
        assert checked.passed, checked
        assert [found.message for found in gpu.outcomes[-1].findings] == []


@pytest.mark.parametrize("around", [-1, 0, 1, RESIDENT + 1], ids="R{:+}".format)
@pytest.mark.parametrize("name", CONFIGS)
def test_an_emitted_gemm(name: str, around: int) -> None:
    made = CONFIGS[name]
    for seed in range(SCHEDULES):
        check(made, sized(made, RESIDENT + around), seed=seed)


@pytest.mark.parametrize("name", ["hopper static 2x1", "alone static", "pair static", "pair clc 2"])
def test_one_cluster_does_everything(name: str) -> None:
    """Five tiles in one cluster: every ring goes round twice."""
    for seed in range(SCHEDULES):
        check(CONFIGS[name], sized(CONFIGS[name], 5), resident=1, seed=seed)


COUNTS = (100, 0, 300, 1, 0, 129)
K_COUNTS = (0, 64, 16, 0, 80)


@pytest.mark.parametrize(
    "name", ["hopper static 2x1", "alone static", "pair static", "pair clc 1", "pair clc 2"]
)
def test_groups_some_of_them_empty(name: str) -> None:
    rows = replace(CONFIGS[name], ragged="m", max_groups=64)
    depth = replace(CONFIGS[name], ragged="k", max_groups=64)
    for seed in range(SCHEDULES):
        check(rows, GemmCase(0, 72, 136, counts=COUNTS), seed=seed)
        check(depth, GemmCase(130, 72, 0, counts=K_COUNTS), seed=seed)


@pytest.mark.parametrize("declined", [(0,), (1,), (0, 1, 2, 3), (2, 5)])
@pytest.mark.parametrize("name", ["alone clc 1", "pair clc 1", "pair clc 3", "two pairs clc"])
def test_requests_declined_early(name: str, declined: tuple[int, ...]) -> None:
    for seed in range(SCHEDULES):
        check(CONFIGS[name], sized(CONFIGS[name], 7), seed=seed, decline_at=declined)


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

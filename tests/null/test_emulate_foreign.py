"""Kernels that others' compilers wrote (tests/data/ptx): the right numbers, and what the letter of PTX says of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from emulated_pairs import prepared, run
from tilewright.emulate import Options, prepare
from tilewright.emulate.schedule import strategy_for

PTX = Path(__file__).parents[1] / "data" / "ptx"


def test_triton_adds() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1500), np.float32)
    out = np.zeros(1500, np.float32)
    scratch = np.zeros(64, np.uint8)
    launch = prepare(PTX / "triton_add_sm100.ptx", grid=2, args=[x, y, out, 1500, scratch, scratch])
    assert launch.run(strategy_for(1, 1)).findings == ()
    np.testing.assert_array_equal(out, x + y)


def test_triton_multiplies() -> None:
    # Tensor maps made on the device, B's rows along K (MN-major), tcgen05.ld and .st of 128 columns.
    m, n, k = 128, 256, 128
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-6, 7, shape).astype(np.float16) / 4 for shape in ((m, k), (k, n)))
    c = np.zeros((m, n), np.float16)
    scratch, profile = np.zeros(2 * 384 + 128, np.uint8), np.zeros(64, np.uint8)
    launch = prepare(
        PTX / "triton_matmul_sm100.ptx",
        grid=(m // 128, n // 128),
        args=[a, b, c, m, n, k, scratch, profile],
        smem_bytes=133_120,
    )
    outcome = launch.run(strategy_for(1, 1), Options(findings_max=1_000_000))
    assert outcome.ended
    np.testing.assert_array_equal(
        c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    )
    # Triton 3.9 writes no tcgen05.fence, which the manual asks for between a wait and what depends on it.
    assert {found.rule for found in outcome.findings} == {"TC-12", "TC-13"}


@pytest.mark.parametrize("name", ["gemm_clc2_full", "gemm_wgmma_full"])
def test_nvccs_gemms(name: str) -> None:
    case = prepared((PTX / f"{name}.ptx").read_text(encoding="utf-8"))
    assert run(case, seed=1).findings == ()
    np.testing.assert_array_equal(case.output, case.expected)

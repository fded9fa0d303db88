"""Kernels that others' compilers wrote (tests/data/ptx): the right numbers, and what the letter of PTX says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from emulated_pairs import messages, prepared, run
from tilewright.emulate import Options, prepare
from tilewright.emulate.numbers import decode, encode

PTX = Path(__file__).parents[1] / "data" / "ptx"


def test_triton_adds() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((2, 1500), np.float32)
    out = np.zeros(1500, np.float32)
    scratch = np.zeros(64, np.uint8)
    launch = prepare(PTX / "triton_add_sm100.ptx", grid=2, args=[x, y, out, 1500, scratch, scratch])
    assert launch.run(launch.strategy(1)).findings == ()
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
    outcome = launch.run(launch.strategy(1), Options(findings_max=1_000_000))
    assert outcome.ended
    np.testing.assert_array_equal(
        c, (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)
    )
    # Triton 3.9 writes no tcgen05.fence, which the manual asks for between a wait and what depends on it.
    assert {found.rule for found in outcome.findings} == {"TC-12", "TC-13"}


def triton(name: str, grid: int | tuple[int, int], args: list[Any], smem_bytes: int) -> set[str]:
    """Run one of Triton's kernels; the rules of what was found."""
    scratch = np.zeros(64, np.uint8)
    launch = prepare(
        PTX / f"{name}.ptx", grid=grid, args=[*args, scratch, scratch], smem_bytes=smem_bytes
    )
    outcome = launch.run(launch.strategy(1), Options(findings_max=1_000_000))
    assert outcome.ended
    return {found.rule for found in outcome.findings}


def quarters(shape: tuple[int, int], seed: int) -> Any:
    return np.random.default_rng(seed).integers(-6, 7, shape).astype(np.float32) / 4


# D, BM, BN = 64, 64, 32 (wgmma, A in registers) and 32, 32, 32 with two warps (mma.sync, ldmatrix, cp.async).
@pytest.mark.parametrize(
    ("name", "dtype", "width", "rows", "smem_bytes"),
    [
        ("triton_attention_sm90", "f16", 64, 64, 12_288),
        ("triton_attention_sm80", "bf16", 32, 32, 4_096),
    ],
)
def test_triton_attends(name: str, dtype: str, width: int, rows: int, smem_bytes: int) -> None:
    q, k, v = (quarters((64, width), seed) for seed in range(3))
    out = np.zeros((64, width), np.uint16)
    given = [encode(each, dtype) for each in (q, k, v)]
    assert triton(name, 64 // rows, [*given, out, 64, 0.125], smem_bytes) == set()
    scores = np.exp(q @ k.T * 0.125)
    expected = scores @ v / scores.sum(1, keepdims=True)
    rounding = {"f16": 2.0**-10, "bf16": 2.0**-7}[dtype]  # of the weights and of the result
    np.testing.assert_allclose(decode(out, dtype), expected, atol=2 * rounding)


def test_triton_softmax() -> None:
    x = np.random.default_rng(3).standard_normal((3, 200)).astype(np.float32)
    out = np.zeros_like(x)
    assert triton("triton_softmax_sm90", 3, [x, out, 200], 16) == set()
    weights = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(out, weights / weights.sum(1, keepdims=True), rtol=1e-6)


def test_triton_multiplies_tf32_by_wgmma() -> None:
    # BM, BN, BK = 64, 32, 32; 4-byte cp.async with masks, rows and columns short of whole tiles.
    a, b = quarters((60, 40), 1), quarters((40, 28), 2)
    c = np.zeros((60, 28), np.float32)
    assert triton("triton_matmul_tf32_sm90", 1, [a, b, c, 60, 28, 40], 36_864) == set()
    np.testing.assert_array_equal(c, a @ b)


def test_triton_multiplies_fp8_by_tcgen05() -> None:
    # Tiles of 128x32, 32 of K a step.
    a, b = quarters((100, 48), 1), quarters((48, 40), 2)
    c = np.zeros((100, 40), np.float16)
    given = [encode(a, "e4m3"), encode(b, "e4m3")]
    found = triton("triton_matmul_fp8_sm100", (1, 2), [*given, c, 100, 40, 48], 10_256)
    assert found <= {"TC-12", "TC-13"}
    np.testing.assert_array_equal(c, (a @ b).astype(np.float16))


@pytest.mark.parametrize("name", ["gemm_clc2_full", "gemm_wgmma_full"])
def test_nvccs_gemms(name: str) -> None:
    case = prepared((PTX / f"{name}.ptx").read_text(encoding="utf-8"))
    assert messages(run(case, seed=1)) == []
    np.testing.assert_array_equal(case.output, case.expected)

"""Element types as numpy sees them: random values that a type holds exactly, and what its bits mean.

numpy has no bf16 or fp8: those are uint16 and uint8 arrays of bits here, decoded to float64 by table or shift.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

STORAGE: dict[str, Any] = {
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp8_e4m3": np.uint8,
    "fp8_e5m2": np.uint8,
    "fp32": np.float32,
}
UNIT_ROUNDOFF: dict[str, float] = {
    "bf16": 2.0**-8,
    "fp16": 2.0**-11,
    "fp32": 2.0**-24,
}
"""Largest relative error of rounding to nearest, by output type."""


def random_values(
    shape: tuple[int, ...], dtype: str, rng: np.random.Generator
) -> NDArray[np.generic]:
    """Values of about unit size in the type's storage, uniform in [-1, 1) before rounding toward zero."""
    if dtype.startswith("fp8"):
        # every finite pattern below 1 in magnitude is as likely: exponents are uniform
        table = decode(np.arange(256, dtype=np.uint8), dtype)
        small = np.flatnonzero(np.abs(np.nan_to_num(table, nan=9.0)) < 1).astype(np.uint8)
        return small[rng.integers(0, len(small), shape)]
    values = rng.random(shape, dtype=np.float32) * 2 - 1
    if dtype == "bf16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(STORAGE[dtype])


def decode(bits: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """What the stored values mean.

    Source of the fp8 formats: Micikevicius et al., FP8 Formats for Deep Learning (arXiv 2209.05433), table 1.
    """
    if dtype == "bf16":
        return np.asarray((bits.astype(np.uint32) << 16).view(np.float32), np.float64)
    if dtype in {"fp8_e4m3", "fp8_e5m2"}:
        return np.asarray(_fp8_table(dtype)[bits], np.float64)
    return np.asarray(bits, np.float64)


def _fp8_table(dtype: str) -> NDArray[np.float64]:
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype == "fp8_e4m3" else (5, 2, 15)
    bits = np.arange(256)
    sign = np.where(bits & 0x80, -1.0, 1.0)
    exponent = bits >> mantissa_bits & (1 << exponent_bits) - 1
    mantissa = (bits & (1 << mantissa_bits) - 1) / (1 << mantissa_bits)
    normal = (1 + mantissa) * 2.0 ** (exponent - bias)
    values = sign * np.where(exponent == 0, mantissa * 2.0 ** (1 - bias), normal)
    last = (1 << exponent_bits) - 1
    if dtype == "fp8_e4m3":  # no infinities: one pattern of each sign is not a number
        return np.where((bits & 0x7F) == 0x7F, np.nan, values)
    return np.where(exponent == last, np.where(mantissa == 0, sign * np.inf, np.nan), values)

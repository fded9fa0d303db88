"""Formats of tensor cores: bits against ml_dtypes' record, numpy, the OCP tables and the PTX manual's rules."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.emulate.numbers import (
    FORMATS,
    decode,
    decode_scale,
    encode,
    encode_scale,
)
from tilewright.errors import UnknownName

RECORD = Path(__file__).parents[1] / "data" / "peers" / "ml_dtypes_0.6.0.csv"
"""float32 patterns and what ml_dtypes 0.6.0 makes of them with `astype`, in hexadecimal."""


def one(value: float, name: str, *rounding: Any, **how: Any) -> int:
    return int(encode(np.array([value], np.float32), name, *rounding, **how)[0])


@pytest.mark.parametrize("name", ["f16", "bf16", "e5m2", "e4m3", "e3m2", "e2m3", "e2m1"])
def test_rounds_like_ml_dtypes(name: str) -> None:
    rows = list(csv.DictReader(RECORD.open()))
    values = np.array([int(row["f32"], 16) for row in rows], np.uint32).view(np.float32)
    expected = [int(row[name], 16) for row in rows]
    assert encode(values, name).tolist() == expected


def test_f16_is_numpys() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        numbers = bits.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(decode(bits, "f16"), numbers)
    finite = ~np.isnan(numbers)
    np.testing.assert_array_equal(encode(numbers, "f16")[finite], bits[finite])
    between = np.random.default_rng(1).standard_normal(100_000).astype(np.float32) * 100
    np.testing.assert_array_equal(
        encode(between, "f16"), between.astype(np.float16).view(np.uint16)
    )


# OCP Microscaling Formats 1.0 (section 5.3) and OCP 8-bit Floating Point 1.0 (tables 1 and 2).
@pytest.mark.parametrize(
    ("name", "bits", "value"),
    [
        ("e4m3", 0x7E, 448.0),
        ("e4m3", 0x08, 2.0**-6),
        ("e4m3", 0x01, 2.0**-9),
        ("e5m2", 0x7B, 57344.0),
        ("e5m2", 0x7C, np.inf),
        ("e5m2", 0x01, 2.0**-16),
        ("e3m2", 0x1F, 28.0),
        ("e3m2", 0x01, 0.0625),
        ("e2m3", 0x1F, 7.5),
        ("e2m3", 0x01, 0.125),
        ("e2m1", 0x7, 6.0),
        ("e2m1", 0x1, 0.5),
        ("e2m1", 0xF, -6.0),
        ("bf16", 0x3F80, 1.0),
    ],
)
def test_values_of_the_ocp_tables(name: str, bits: int, value: float) -> None:
    assert decode(np.array([bits]), name)[0] == value
    assert one(value, name) == bits


def test_what_is_no_number() -> None:
    # PTX ISA, cvt: NaN becomes 0x7fff in f16 and bf16, 0x7f in fp8, the largest number where there is none.
    for sign in (1.0, -1.0):
        nan = sign * np.nan
        assert one(nan, "f16") == one(nan, "bf16") == 0x7FFF
        assert one(nan, "e4m3") == one(nan, "e5m2") == 0x7F
        assert one(nan, "e2m1") == 0x7
        assert one(nan, "tf32") == 0x7FFFE000
    assert np.isnan(decode(np.array([0x7F, 0xFF]), "e4m3")).all()


def test_satfinite_and_relu() -> None:
    assert one(np.inf, "f16") == 0x7C00
    assert one(np.inf, "f16", satfinite=True) == 0x7BFF
    assert one(-1e9, "e5m2", satfinite=True) == 0xFB
    assert one(1e9, "e4m3", satfinite=True) == 0x7E
    assert one(-3.0, "bf16", relu=True) == 0
    assert one(-np.inf, "f16", satfinite=True, relu=True) == 0
    assert one(3.0, "bf16", relu=True) == 0x4040


def test_tf32_roundings() -> None:
    # 1 + 2^-11 is a tie between 1 and 1 + 2^-10, the last bit that tf32 keeps.
    tie = 1 + 2.0**-11
    assert one(tie, "tf32", "rn") == 0x3F800000
    assert one(tie, "tf32", "rna") == 0x3F802000
    assert one(tie, "tf32", "rz") == 0x3F800000
    assert one(1 + 3 * 2.0**-11, "tf32", "rn") == 0x3F804000
    assert (
        decode(np.array([0x3F801FFF], np.uint32), "tf32")[0] == 1.0
    )  # the low 13 bits do not count


def test_directed_roundings() -> None:
    third = 1 / 3
    down, up = one(third, "f16", "rm"), one(third, "f16", "rp")
    assert (down, up) == (0x3555, 0x3556)
    assert one(third, "f16", "rz") == down
    assert one(-third, "f16", "rm") == 0x8000 | up
    assert one(-third, "f16", "rp") == one(-third, "f16", "rz") == 0x8000 | down
    assert one(1e6, "f16", "rz") == one(1e6, "f16", "rm") == 0x7BFF  # IEEE 754, 7.4: overflow
    assert one(1e6, "f16", "rp") == 0x7C00


@pytest.mark.parametrize("name", ["e5m2", "e4m3", "e3m2", "e2m3", "e2m1"])
def test_nearest_of_all(name: str) -> None:
    form = FORMATS[name]
    codes = np.arange(1 << form.exponent_bits + form.mantissa_bits)
    table = decode(codes, name)
    table = table[np.isfinite(table)]
    values = np.random.default_rng(2).random(500).astype(np.float32) * form.largest
    nearest = np.argmin(np.abs(table[None, :] - values[:, None]), axis=1)
    rounded = table[encode(values, name, satfinite=True)]
    np.testing.assert_allclose(np.abs(rounded - values), np.abs(table[nearest] - values))


def test_scales_are_powers_of_two() -> None:
    assert decode_scale(np.array([0, 127, 128, 254])).tolist() == [2.0**-127, 1.0, 2.0, 2.0**127]
    assert np.isnan(decode_scale(np.array([255]))[0])
    values = np.array([1.0, 1.5, 2.0, 3.9, np.nan, 0.0], np.float32)
    assert encode_scale(values).tolist() == [127, 127, 128, 128, 255, 0]
    assert encode_scale(values, "rp").tolist() == [127, 128, 128, 129, 255, 0]


def test_unknown_format() -> None:
    with pytest.raises(UnknownName, match='Did you mean "e4m3"'):
        decode(np.zeros(1, np.uint8), "e4m3fn")

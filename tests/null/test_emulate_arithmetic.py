"""Arithmetic of the emulator against Python's integers and exact fractions."""

from __future__ import annotations

import struct
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ptx_lines import compute, dtype_of
from tilewright.emulate.numbers import decode, encode

if TYPE_CHECKING:
    from collections.abc import Callable

RNG = np.random.default_rng(0)


def integers(type_: str, seed: int) -> Any:
    """Corners and random values."""
    dtype = dtype_of(type_)
    info = np.iinfo(dtype)
    rng = np.random.default_rng(seed)
    corners = [0, 1, 2, 7, 31, 32, 255, info.max, info.max - 1, info.min, info.min + 1]
    rest = rng.integers(info.min, info.max, 32 - len(corners), dtype, endpoint=True)
    return rng.permutation(np.concatenate([np.array(corners, dtype), rest]))


def signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


def bits_of(type_: str) -> int:
    return int(type_[1:])


def quotient(a: int, b: int) -> int:
    return -1 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def permuted(a: int, b: int, control: int) -> int:
    pool = (b << 32 | a).to_bytes(8, "little")
    out = 0
    for i in range(4):
        nibble = control >> 4 * i & 15
        byte = pool[nibble & 7]
        if nibble & 8:
            byte = 0xFF if byte & 0x80 else 0
        out |= byte << 8 * i
    return out


def field(a: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    return (a >> start) & ((1 << length) - 1)


def inserted(a: int, b: int, start: int, length: int) -> int:
    start, length = start & 255, length & 255
    mask = ((1 << length) - 1) << start & 0xFFFFFFFF
    return b & ~mask | a << start & mask


def funnel(low: int, high: int, by: int) -> int:
    return (high << 32 | low) << (by & 31) >> 32


def forward(a: int, b: int, control: int) -> int:
    """prmt.f4e: four bytes from byte `control` on."""
    return (b << 32 | a) >> 8 * (control & 3) & 0xFFFFFFFF


def of_24_bits(a: int, b: int) -> int:
    return signed(a, 24) * signed(b, 24) >> 16


def extended(a: int, b: int) -> int:
    """szext.wrap.s32."""
    return signed(a, b & 31) if b & 31 else 0


def clamped(value: int) -> int:
    return max(-(2**31), min(2**31 - 1, value))


def lop3(a: int, b: int, c: int) -> int:
    return a & b | c  # table 0xEA


CASES: list[tuple[str, tuple[str, ...], Callable[..., int]]] = [
    ("add.u32 x, a, b;", ("u32", "u32", "u32"), lambda a, b: a + b),
    ("add.s64 x, a, b;", ("s64", "s64", "s64"), lambda a, b: a + b),
    ("add.sat.s32 x, a, b;", ("s32", "s32", "s32"), lambda a, b: max(-(2**31), min(2**31 - 1, a + b))),
    ("sub.s32 x, a, b;", ("s32", "s32", "s32"), lambda a, b: a - b),
    ("mul.lo.s32 x, a, b;", ("s32", "s32", "s32"), lambda a, b: a * b),
    ("mul.hi.s32 x, a, b;", ("s32", "s32", "s32"), lambda a, b: a * b >> 32),
    ("mul.hi.u64 x, a, b;", ("u64", "u64", "u64"), lambda a, b: a * b >> 64),
    ("mul.hi.s64 x, a, b;", ("s64", "s64", "s64"), lambda a, b: a * b >> 64),
    ("mul.wide.s32 x, a, b;", ("s64", "s32", "s32"), lambda a, b: a * b),
    ("mul.wide.u16 x, a, b;", ("u32", "u16", "u16"), lambda a, b: a * b),
    ("mad.lo.u32 x, a, b, c;", ("u32", "u32", "u32", "u32"), lambda a, b, c: a * b + c),
    ("mad.wide.u32 x, a, b, c;", ("u64", "u32", "u32", "u64"), lambda a, b, c: a * b + c),
    ("div.s32 x, a, b;", ("s32", "s32", "s32"), quotient),
    ("div.u32 x, a, b;", ("u32", "u32", "u32"), quotient),
    ("rem.s32 x, a, b;", ("s32", "s32", "s32"), lambda a, b: a if b == 0 else a - b * quotient(a, b)),
    ("min.s32 x, a, b;", ("s32", "s32", "s32"), min),
    ("max.u64 x, a, b;", ("u64", "u64", "u64"), max),
    ("abs.s32 x, a;", ("s32", "s32"), abs),
    ("neg.s64 x, a;", ("s64", "s64"), lambda a: -a),
    ("not.b32 x, a;", ("u32", "u32"), lambda a: ~a),
    ("xor.b64 x, a, b;", ("u64", "u64", "u64"), lambda a, b: a ^ b),
    ("shl.b32 x, a, b;", ("u32", "u32", "u32"), lambda a, b: a << min(b, 40)),
    ("shr.s32 x, a, b;", ("s32", "s32", "u32"), lambda a, b: a >> min(b, 40)),
    ("shr.u64 x, a, b;", ("u64", "u64", "u32"), lambda a, b: a >> min(b, 70)),
    ("shf.l.wrap.b32 x, a, b, c;", ("u32", "u32", "u32", "u32"), funnel),
    ("bfe.u32 x, a, b, c;", ("u32", "u32", "u32", "u32"), field),
    ("bfi.b32 x, a, c, 5, 9;", ("u32", "u32", "u32", "u32"), lambda a, _b, c: inserted(a, c, 5, 9)),
    ("prmt.b32 x, a, b, c;", ("u32", "u32", "u32", "u32"), permuted),
    ("lop3.b32 x, a, b, c, 0xEA;", ("u32", "u32", "u32", "u32"), lop3),
    ("prmt.b32.f4e x, a, b, c;", ("u32", "u32", "u32", "u32"), forward),
    ("mul24.hi.s32 x, a, b;", ("s32", "s32", "s32"), of_24_bits),
    ("mad24.hi.sat.s32 x, a, b, c;", ("s32", "s32", "s32", "s32"), lambda a, b, c: clamped(of_24_bits(a, b) + c)),
    ("mad.hi.sat.s32 x, a, b, c;", ("s32", "s32", "s32", "s32"), lambda a, b, c: clamped((a * b >> 32) + c)),
    ("szext.wrap.s32 x, a, b;", ("s32", "s32", "u32"), extended),
    ("szext.clamp.u32 x, a, b;", ("u32", "u32", "u32"), lambda a, b: a & (1 << min(b, 32)) - 1),
    ("popc.b64 x, a;", ("u32", "u64"), lambda a: a.bit_count()),
    ("clz.b32 x, a;", ("u32", "u32"), lambda a: 32 - a.bit_length()),
    ("brev.b32 x, a;", ("u32", "u32"), lambda a: int(f"{a:032b}"[::-1], 2)),
    ("bfind.u32 x, a;", ("u32", "u32"), lambda a: a.bit_length() - 1),
    ("bfind.s32 x, a;", ("u32", "s32"), lambda a: (~a if a < 0 else a).bit_length() - 1),
    ("sad.u32 x, a, b, c;", ("u32", "u32", "u32", "u32"), lambda a, b, c: abs(a - b) + c),
    ("cvt.s64.s32 x, a;", ("s64", "s32"), lambda a: a),
    ("cvt.u32.u16 x, a;", ("u32", "u16"), lambda a: a),
    ("cvt.s8.s32 x, a;", ("s32", "s32"), lambda a: signed(a, 8)),
    ("cvt.sat.u8.s32 x, a;", ("u32", "s32"), lambda a: max(0, min(255, a))),
    ("selp.b32 x, a, b, %p0;", ("u32", "u32", "u32"), min),
    ("add.u16x2 x, a, b;", ("u32", "u32", "u32"), lambda a, b: (a + b & 0xFFFF) | ((a >> 16) + (b >> 16) & 0xFFFF) << 16),
]  # fmt: skip


@pytest.mark.parametrize(("line", "types", "exact"), CASES, ids=[case[0] for case in CASES])
def test_integers(line: str, types: tuple[str, ...], exact: Callable[..., int]) -> None:
    inputs = [integers(type_, 10 + i) for i, type_ in enumerate(types[1:])]
    code = f"setp.lt.u32 %p0, a, b;\n{line}" if "%p0" in line else line
    found = compute(code, types, *inputs)
    bits = bits_of(types[0])
    wanted = [exact(*map(int, row)) & (1 << bits) - 1 for row in zip(*inputs, strict=True)]
    assert [int(v) & (1 << bits) - 1 for v in found] == wanted


def test_dp4a_is_a_sum_of_byte_products() -> None:
    a, b, c = (integers("u32", seed) for seed in (1, 2, 3))
    found = compute("dp4a.s32.u32 x, a, b, c;", ("u32", "u32", "u32", "u32"), a, b, c)
    for i in range(32):
        left = np.frombuffer(struct.pack("<I", a[i]), np.int8).astype(int)
        right = np.frombuffer(struct.pack("<I", b[i]), np.uint8).astype(int)
        assert int(found[i]) == (int((left * right).sum()) + int(c[i])) & 0xFFFFFFFF


def test_128_bits_are_added_with_a_carry() -> None:
    a, b = integers("u64", 4), integers("u64", 5)
    code = "add.cc.u64 %d20, a, b;\naddc.u64 x, a, b;"
    found = compute(code, ("u64", "u64", "u64"), a, b)
    carried = [
        (int(x) + int(y) >> 64) + int(x) + int(y) & 2**64 - 1 for x, y in zip(a, b, strict=True)
    ]
    assert found.tolist() == carried


def test_a_product_of_128_bits_is_made_of_halves_with_a_carry() -> None:
    a, b, c = (integers("u64", seed) for seed in (6, 7, 8))
    code = "mad.lo.cc.u64 %d20, a, b, c;\nmadc.hi.u64 x, a, b, 0;"
    found = compute(code, ("u64", "u64", "u64", "u64"), a, b, c)
    wide = [int(x) * int(y) + int(z) >> 64 for x, y, z in zip(a, b, c, strict=True)]
    assert found.tolist() == wide


# --- floating point -----------------------------------------------------------------------------------


def floats(seed: int) -> Any:
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-20, 20, 32)
    return (rng.standard_normal(32) * 2.0**exponents).astype(np.float32)


def rounded(exact: Fraction, mode: str) -> float:
    """binary32 of an exact value; normal numbers only."""
    if exact == 0:
        return 0.0
    sign, magnitude = (-1, -exact) if exact < 0 else (1, exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (exponent - 23)
    whole, rest = divmod(magnitude, unit)
    half = unit / 2
    up = {
        "rn": rest > half or (rest == half and whole % 2 == 1),
        "rz": False,
        "rm": rest > 0 and sign < 0,
        "rp": rest > 0 and sign > 0,
    }[mode]
    return float(sign * (whole + up) * unit)


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_products_and_sums_are_rounded_once(mode: str) -> None:
    a, b, c = floats(1), floats(2), floats(3)
    types = ("f32",) * 4
    exact = [[Fraction(float(v)) for v in row] for row in zip(a, b, c, strict=True)]
    cases: list[tuple[str, Callable[[Fraction, Fraction, Fraction], Fraction]]] = [
        (f"fma.{mode}.f32 x, a, b, c;", lambda x, y, z: x * y + z),
        (f"add.{mode}.f32 x, a, b;", lambda x, y, _z: x + y),
        (f"sub.{mode}.f32 x, a, c;", lambda x, _y, z: x - z),
        (f"mul.{mode}.f32 x, b, c;", lambda _x, y, z: y * z),
    ]
    for line, value in cases:
        found = compute(line, types, a, b, c)
        assert found.tolist() == [rounded(value(*row), mode) for row in exact], line


def test_fma_keeps_what_two_roundings_lose() -> None:
    a = np.full(32, 1 + 2.0**-12, np.float32)
    c = np.full(32, -(1 + 2.0**-11), np.float32)
    found = compute("fma.rn.f32 x, a, a, b;", ("f32", "f32", "f32"), a, c)
    assert set(found.tolist()) == {2.0**-24}


def test_subnormals_are_flushed_where_asked() -> None:
    a = np.full(32, 2.0**-127, np.float32)
    assert compute("add.f32 x, a, a;", ("f32", "f32"), a)[0] == np.float32(2.0**-126)
    assert compute("add.ftz.f32 x, a, a;", ("f32", "f32"), a)[0] == 0


def test_nan_gives_way_to_a_number_in_min_unless_asked_for() -> None:
    a = np.array([np.nan, 1, -0.0, 5] * 8, np.float32)
    b = np.array([2, np.nan, 3, -7] * 8, np.float32)
    assert compute("min.f32 x, a, b;", ("f32",) * 3, a, b)[:4].tolist() == [2, 1, -0.0, -7]
    assert np.isnan(compute("max.NaN.f32 x, a, b;", ("f32",) * 3, a, b)[:2]).all()


def test_conversions_to_integers_clamp_and_take_nan_for_zero() -> None:
    a = np.array([3e9, -3e9, np.nan, 2.5, 3.5, -2.5, np.inf, -1] * 4, np.float32)
    to_zero = compute("cvt.rzi.s32.f32 x, a;", ("s32", "f32"), a)[:8].tolist()
    assert to_zero == [2**31 - 1, -(2**31), 0, 2, 3, -2, 2**31 - 1, -1]
    near = compute("cvt.rni.u32.f32 x, a;", ("u32", "f32"), a)[:8].tolist()
    assert near == [3_000_000_000, 0, 0, 2, 4, 0, 2**32 - 1, 0]


def test_bf16_pairs_have_the_first_operand_above() -> None:
    a, b = floats(7), floats(8)
    found = compute("cvt.rn.bf16x2.f32 x, a, b;", ("u32", "f32", "f32"), a, b)

    def nearest(value: float) -> int:
        (raw,) = struct.unpack("<I", struct.pack("<f", value))
        low, high = raw & 0xFFFF0000, (raw & 0xFFFF0000) + 0x10000
        ways = [struct.unpack("<f", struct.pack("<I", r))[0] for r in (low, high)]
        errors = [abs(Fraction(w) - Fraction(value)) for w in ways]
        return int(low if errors[0] < errors[1] else high) >> 16

    wanted = [nearest(float(x)) << 16 | nearest(float(y)) for x, y in zip(a, b, strict=True)]
    assert found.tolist() == wanted


def test_halves_are_computed_and_rounded_once() -> None:
    a, b = (RNG.standard_normal(32).astype(np.float16) for _ in range(2))
    found = compute("fma.rn.f16 x, a, b, a;", ("f16", "f16", "f16"), a, b)
    exact = [
        Fraction(float(x)) * Fraction(float(y)) + Fraction(float(x))
        for x, y in zip(a, b, strict=True)
    ]
    assert found.tolist() == [float(np.float16(float(e))) for e in exact]


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("half", ["f16", "bf16"])
def test_mixed_precision_converts_the_halves_and_rounds_once(half: str, mode: str) -> None:
    # PTX ISA, "Mixed Precision Floating Point Instructions": d = cvt(a) + c, cvt(a) - c, cvt(a) * cvt(b) + c.
    given, c = (encode(floats(seed) / 64, half) for seed in (1, 2)), floats(3)
    a, b = given
    exact = [
        [Fraction(float(v)) for v in row]
        for row in zip(decode(a, half), decode(b, half), c, strict=True)
    ]
    cases: list[tuple[str, tuple[Any, ...], Callable[[Fraction, Fraction, Fraction], Fraction]]] = [
        (f"add.{mode}.f32.{half} x, a, b;", (a, c), lambda x, _y, z: x + z),
        (f"sub.{mode}.f32.{half} x, a, b;", (a, c), lambda x, _y, z: x - z),
        (f"fma.{mode}.f32.{half} x, a, b, c;", (a, b, c), lambda x, y, z: x * y + z),
    ]
    for line, sources, value in cases:
        found = compute(line, ("f32", *["b16"] * (len(sources) - 1), "f32"), *sources)
        assert found.tolist() == [rounded(value(*row), mode) for row in exact], line


def test_mixed_precision_saturates() -> None:
    a = encode(np.array([0.5, 3, -2, np.nan] * 8, np.float32), "bf16")
    c = np.full(32, 0.25, np.float32)
    found = compute("add.sat.f32.bf16 x, a, b;", ("f32", "b16", "f32"), a, c)
    assert found[:4].tolist() == [0.75, 1, 0, 0]


@pytest.mark.parametrize(
    ("line", "function"),
    [
        ("rcp.approx.f32 x, a;", lambda a: 1 / a),
        ("sqrt.rn.f32 x, a;", np.sqrt),
        ("ex2.approx.f32 x, a;", np.exp2),
        ("lg2.approx.f32 x, a;", np.log2),
        ("tanh.approx.f32 x, a;", np.tanh),
    ],
)
def test_functions(line: str, function: Callable[[Any], Any]) -> None:
    a = np.linspace(0.25, 8, 32).astype(np.float32)
    found = compute(line, ("f32", "f32"), a)
    np.testing.assert_allclose(found, function(a.astype(np.float64)), rtol=2.0**-22)


def test_the_smaller_magnitude_with_the_sign_of_the_product() -> None:
    a, b = floats(11), floats(12)
    found = compute("min.xorsign.abs.f32 x, a, b;", ("f32", "f32", "f32"), a, b)
    wanted = np.minimum(np.abs(a), np.abs(b)) * np.sign(a) * np.sign(b)
    np.testing.assert_array_equal(found, wanted)


def test_set_gives_a_number_in_each_half() -> None:
    a, b = (RNG.standard_normal(64).astype(np.float16) for _ in range(2))
    types = ("u32", "u32", "u32")
    found = compute("set.gt.f16x2.f16x2 x, a, b;", types, a.view(np.uint32), b.view(np.uint32))
    np.testing.assert_array_equal(found.view(np.float16), (a > b).astype(np.float16))
    one = compute("set.gt.f16.f16 x, a, b;", ("f16", "f16", "f16"), a[:32], b[:32])
    np.testing.assert_array_equal(one, (a > b).astype(np.float16)[:32])

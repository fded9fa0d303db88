"""Kernels that are lists of single instructions: every thread runs each on numbers of its own.

An entry is a line that reads a, b, c and writes x, and the types of x, a, b, c. The numbers come from one pool a type:
corners at first, then random ones. Result i of thread t is OUT[i, t], 8 bytes each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micro.case import Case

if TYPE_CHECKING:
    from collections.abc import Sequence

    from micro.case import Array, Bound, Values

Line = tuple[str, str]
"""The instruction, and "u32 = u32 s32" for the types of x, a and b."""

POOLS = (
    "b16",
    "b32",
    "b64",
    "f16",
    "bf16",
    "f16x2",
    "bf16x2",
    "f32",
    "f64",
    "unit",
    "near",
    "angle",
    "fp8",
)
BITS = {"b16": 16, "b32": 32, "b64": 64, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32, "f32": 32, "f64": 64,
        "unit": 32, "near": 32, "angle": 32, "fp8": 16}  # fmt: skip
THREADS = 128


def lines_case(
    name: str, lines: Sequence[Line], bound: Bound | None = None, values: Values | None = None
) -> Case:
    """One kernel that runs all of `lines`."""
    return Case(
        name,
        "\n".join(_of_line(i, *line) for i, line in enumerate(lines)),
        ((len(lines), THREADS), "u8"),
        inputs=lambda rng: [pool(name, rng) for name in POOLS],
        threads=THREADS,
        bound=bound,
        values=values,
    )


def _register(type_: str) -> str:
    bits = BITS[pool_of(type_)]
    return f"{'f' if type_ in {'f32', 'f64', 'unit', 'near', 'angle'} else 'b'}{bits}"


def pool_of(type_: str) -> str:
    """Integers of a width share a pool."""
    return f"b{type_[1:]}" if type_[0] in "us" and type_[1:].isdigit() else type_


def _of_line(index: int, line: str, types: str) -> str:
    result, sources = (part.split() for part in types.split("="))
    text = ["{", f".reg .{_register(result[0])} x; .reg .b64 at; .reg .pred %p<4>;"]
    for place, (letter, type_) in enumerate(zip("abc", sources, strict=False)):
        register, source = _register(type_), f"IN{POOLS.index(pool_of(type_))}"
        size = int(register[1:]) // 8
        text += [
            f".reg .{register} {letter}; mad.wide.u32 at, t, {size}, {source};",
            f"ld.global.{register} {letter}, [at+{place * THREADS * size}];",
        ]
    return "\n".join(
        [
            *text,
            line,
            f"mad.wide.u32 at, t, 8, OUT; st.global.{_register(result[0])} [at+{index * THREADS * 8}], x;",
            "}",
        ]
    )


def pool(name: str, rng: np.random.Generator) -> Array:
    """Three times as many numbers as threads: for a, b and c, shuffled apart."""
    parts = []
    for _ in range(3):
        corners = CORNERS[name]
        rest = THREADS - len(corners)
        bits = BITS[name]
        if name[0] == "b" and name[1:].isdigit():
            some = rng.integers(0, 1 << bits, rest, np.uint64, endpoint=False) if bits < 64 else (
                rng.integers(0, (1 << 64) - 1, rest, np.uint64, endpoint=True)
            )  # fmt: skip
            some[::3] >>= rng.integers(0, bits, len(some[::3]), np.uint64)
        else:
            some = _random(name, rng, rest)
        whole = np.concatenate([np.array(corners, np.uint64), some]).astype(f"u{bits // 8}")
        parts.append(rng.permutation(whole))
    return np.concatenate(parts)


def _random(name: str, rng: np.random.Generator, count: int) -> Array:
    """Bits of random numbers of a floating-point pool."""
    wide = rng.standard_normal(count) * 2.0 ** rng.integers(-12, 12, count)
    if name in {"f16", "bf16", "fp8"}:
        return _half(name, wide, rng)
    if name in {"f16x2", "bf16x2"}:
        low, high = (_half(name[:-2], part, rng) for part in (wide, np.roll(wide, 7)))
        both: Array = low | high << np.uint64(16)
        return both
    if name == "f64":
        return wide.view(np.uint64)
    if name == "unit":  # from 2^-100 to 2^100, positive
        wide = 2.0 ** rng.uniform(-100, 100, count)
    elif name == "near":  # near 1, above it and below
        wide = 2.0 ** rng.uniform(-1, 1, count)
    elif name == "angle":
        wide = rng.uniform(-np.pi, np.pi, count)
    return wide.astype(np.float32).view(np.uint32).astype(np.uint64)


def _half(name: str, values: Array, rng: np.random.Generator) -> Array:
    if name == "fp8":
        return rng.integers(0, 1 << 16, len(values), np.uint64)
    if name == "f16":
        return values.astype(np.float16).view(np.uint16).astype(np.uint64)
    cut: Array = values.astype(np.float32).view(np.uint32) >> np.uint32(16)
    return cut.astype(np.uint64)


def _f32(*values: float) -> list[int]:
    return [int(np.float32(v).view(np.uint32)) for v in values]


_F32 = [
    *_f32(0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 3.5, np.inf, -np.inf, 2**31, -(2.0**31), 2**32, 65504, 65520, 448, 464, 465),
    *_f32(57344, 61440, 61441, 255, 255.5, 256, -0.5, 2.0**-14, 2.0**-24, 2.0**-25, 3 * 2.0**-26, 2.0**-9, 2.0**-10, 2.0**-17),
    1, 0x007FFFFF, 0x00800000, 0x7F7FFFFF, 0xFF7FFFFF, 0x7FC00000, 0x3F808000, 0x3F818000, 0x3F801000, 0x3F803000, 0x3F800FFF,
    0xFFC00000, 0x7FC01234, 0x7F800001, 0xFF812345,
]  # fmt: skip
_F16 = [
    0,
    0x8000,
    1,
    0x83FF,
    0x0400,
    0x7BFF,
    0xFBFF,
    0x7C00,
    0xFC00,
    0x3C00,
    0xBC00,
    0x3C01,
    0x3800,
    0x4200,
    0x7E00,
    0xFE01,
    0x7C01,
]
_BF16 = [
    0,
    0x8000,
    1,
    0x807F,
    0x0080,
    0x7F7F,
    0xFF7F,
    0x7F80,
    0xFF80,
    0x3F80,
    0xBF80,
    0x3F81,
    0x3F00,
    0x4040,
    0x7FC0,
    0xFFC1,
    0x7F81,
]
CORNERS: dict[str, list[int]] = {
    "b16": [0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0x8001, 0xFFFF],
    "b32": [0, 1, 2, 7, 31, 32, 33, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF],
    "b64": [0, 1, 2, 63, 64, 0x7FFFFFFF, 0xFFFFFFFF, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 63) + 1, (1 << 64) - 2, (1 << 64) - 1],
    "f16": _F16,
    "bf16": _BF16,
    "f16x2": [a | b << 16 for a, b in zip(_F16, _F16[3:] + _F16[:3], strict=True)],
    "bf16x2": [a | b << 16 for a, b in zip(_BF16, _BF16[3:] + _BF16[:3], strict=True)],
    "f32": _F32,
    "f64": [int(np.float64(v).view(np.uint64)) for v in (0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, 2.0**63, -(2.0**63), 1e300, 1e-300, 5e-324)] + [0x7FF8000000000000, 0xFFF8000012345678, 0x7FF0000000000001],
    "unit": _f32(1, 2, 4, 0.5, 3, 10),
    "near": _f32(1, 0.75, 1.25),
    "angle": _f32(0, 1, -1, 3, -3),
    "fp8": [0x7E7F, 0x7F7E, 0x7B7C, 0x7D80, 0x0100, 0x8001, 0xFFFE, 0x0708],
}  # fmt: skip

"""Arithmetic, one instruction a line: integers, floating point in every rounding, conversions, approximations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from micro.lines import THREADS, lines_case

if TYPE_CHECKING:
    from micro.case import Array, Case
    from micro.lines import Line


def three(line: str, type_: str) -> Line:
    """x, a, b, c of one type."""
    return line, f"{type_} = {type_} {type_} {type_}"


def each(template: str, type_: str, **words: str) -> list[Line]:
    """A line for each of the words in place of {w}."""
    return [three(template.format(w=word), type_) for word in words["w"].split()]


INTEGER_32 = [
    *each("add.{w} x, a, b;", "b32", w="u32 s32 sat.s32 u16x2 s16x2"),
    *each("sub.{w} x, a, b;", "b32", w="u32 sat.s32"),
    *each("mul.{w} x, a, b;", "b32", w="lo.u32 hi.u32 hi.s32"),
    *each("mad.{w} x, a, b, c;", "b32", w="lo.u32 hi.u32 hi.s32 hi.sat.s32"),
    *each("{w} x, a, b;", "b32", w="mul24.lo.u32 mul24.lo.s32 mul24.hi.u32 mul24.hi.s32"),
    *each("{w} x, a, b, c;", "b32", w="mad24.lo.u32 mad24.lo.s32 mad24.hi.u32"),
    *each("sad.{w} x, a, b, c;", "b32", w="u32 s32"),
    *each("{w} x, a, b;", "b32", w="min.u32 min.s32 max.u32 max.s32 min.u16x2 max.s16x2"),
    *each("{w} x, a;", "b32", w="abs.s32 neg.s32 not.b32 cnot.b32 popc.b32 clz.b32 brev.b32"),
    *each("bfind.{w} x, a;", "b32", w="u32 s32 shiftamt.u32 shiftamt.s32"),
    *each("{w} x, a, b;", "b32", w="and.b32 or.b32 xor.b32 shl.b32 shr.u32 shr.s32"),
    *each("shf.{w}.b32 x, a, b, c;", "b32", w="l.wrap r.wrap l.clamp r.clamp"),
    *each("lop3.b32 x, a, b, c, {w};", "b32", w="0x96 0xE8 0xCA 0x1D 0x80 0x00 0xFF"),
    *each("and.b32 b, b, 255; and.b32 c, c, 255; bfe.{w} x, a, b, c;", "b32", w="u32 s32"),
    three("bfi.b32 x, a, b, c, 9;", "b32"),
    three("{ .reg .b32 n; and.b32 n, c, 63; bfi.b32 x, a, b, 5, n; }", "b32"),
    three("bmsk.clamp.b32 x, a, b;", "b32"),
    three("bmsk.wrap.b32 x, a, b;", "b32"),
    three("szext.clamp.s32 x, a, b;", "b32"),
    three("szext.wrap.u32 x, a, b;", "b32"),
    *each("fns.b32 x, a, 3, {w};", "b32", w="1 2 -1 0"),
    three("prmt.b32 x, a, b, c;", "b32"),
    *each("prmt.b32{w} x, a, b, c;", "b32", w=".f4e .b4e .rc8 .ecl .ecr .rc16"),
    *each("dp4a.{w} x, a, b, c;", "b32", w="u32.u32 s32.s32 u32.s32 s32.u32"),
    *each("dp2a.{w} x, a, b, c;", "b32", w="lo.u32.u32 hi.s32.s32 lo.s32.u32"),
    *each("setp.{w} %p0, a, b; selp.b32 x, a, c, %p0;", "b32", w="lt.u32 lt.s32 ge.s32 hi.u32 ls.u32 eq.b32"),
    *each("set.{w} x, a, b;", "b32", w="lt.u32.s32 ge.u32.u32"),
    three("slct.b32.s32 x, a, b, c;", "b32"),
    *each("or.b32 b, b, 1; {w} x, a, b;", "b32", w="div.u32 rem.u32"),
    *each("and.b32 b, b, 0x7fffffff; or.b32 b, b, 2; {w} x, a, b;", "b32", w="div.s32 rem.s32"),
    three("add.cc.u32 x, a, b; addc.cc.u32 x, a, c; addc.u32 x, x, 0;", "b32"),
    three("sub.cc.u32 x, a, b; subc.u32 x, a, c;", "b32"),
    three("mad.lo.cc.u32 x, a, b, c; madc.hi.u32 x, a, b, c;", "b32"),
    ("mul.lo.u16 x, a, b;", "b16 = b16 b16"),
    ("mul.hi.s16 x, a, b;", "b16 = b16 b16"),
    ("mad.lo.s16 x, a, b, c;", "b16 = b16 b16 b16"),
    ("shr.s16 x, a, 3;", "b16 = b16"),
    ("min.s16 x, a, b;", "b16 = b16 b16"),
]  # fmt: skip

INTEGER_64 = [
    *each("{w} x, a, b;", "b64", w="add.u64 sub.s64 mul.lo.u64 mul.hi.u64 mul.hi.s64 and.b64 or.b64 xor.b64"),
    *each("{w} x, a, b;", "b64", w="min.u64 min.s64 max.u64 max.s64"),
    *each("{w} x, a, b, c;", "b64", w="mad.lo.u64 mad.hi.s64 mad.hi.u64"),
    *each("{w} x, a;", "b64", w="abs.s64 neg.s64 not.b64 cnot.b64 brev.b64"),
    *each("or.b64 b, b, 1; {w} x, a, b;", "b64", w="div.u64 rem.u64"),
    *each("shr.u64 b, b, 1; or.b64 b, b, 2; {w} x, a, b;", "b64", w="div.s64 rem.s64"),
    ("mul.wide.u32 x, a, b;", "b64 = b32 b32"),
    ("mul.wide.s32 x, a, b;", "b64 = b32 b32"),
    ("mul.wide.u16 x, a, b;", "b32 = b16 b16"),
    ("mul.wide.s16 x, a, b;", "b32 = b16 b16"),
    ("mad.wide.u32 x, a, b, c;", "b64 = b32 b32 b64"),
    ("mad.wide.s32 x, a, b, c;", "b64 = b32 b32 b64"),
    ("mad.wide.s16 x, a, b, c;", "b32 = b16 b16 b32"),
    ("popc.b64 x, a;", "b32 = b64"),
    ("clz.b64 x, a;", "b32 = b64"),
    ("bfind.u64 x, a;", "b32 = b64"),
    ("bfind.s64 x, a;", "b32 = b64"),
    ("shl.b64 x, a, b;", "b64 = b64 b32"),
    ("shr.u64 x, a, b;", "b64 = b64 b32"),
    ("shr.s64 x, a, b;", "b64 = b64 b32"),
    ("and.b32 b, b, 255; bfe.u64 x, a, b, 17;", "b64 = b64 b32"),
    ("and.b32 b, b, 255; bfe.s64 x, a, 11, b;", "b64 = b64 b32"),
    ("{ .reg .b32 n; and.b32 n, c, 63; bfi.b64 x, a, b, n, 13; }", "b64 = b64 b64 b32"),
    ("add.cc.u64 x, a, b; addc.u64 x, a, c;", "b64 = b64 b64 b64"),
    ("setp.lt.s64 %p0, a, b; selp.b64 x, b, c, %p0;", "b64 = b64 b64 b64"),
]  # fmt: skip

_MODES = "rn rz rm rp"
FLOAT_32 = [
    *(
        three(f"{op}.{mode}{ftz}.f32 x, a, b{c};", "f32")
        for op, c in (("add", ""), ("sub", ""), ("mul", ""), ("fma", ", c"))
        for mode in _MODES.split()
        for ftz in ("", ".ftz")
    ),
    *each("sub.{w}.f32 x, a, a;", "f32", w="rn rz rm rp"),
    *each("neg.f32 b, a; fma.{w}.f32 x, a, 0f3F800000, b;", "f32", w="rm rp"),
    *each("{w} x, a, b;", "f32", w="add.sat.f32 mul.sat.f32 add.rz.sat.f32 sub.ftz.sat.f32"),
    *each("{w} x, a, b, c;", "f32", w="fma.rn.sat.f32 fma.rn.ftz.sat.f32"),
    *each("{w} x, a, b;", "f32", w="min.f32 max.f32 min.NaN.f32 max.NaN.f32 min.ftz.f32 max.ftz.f32"),
    *each("{w} x, a, b;", "f32", w="min.xorsign.abs.f32 max.xorsign.abs.f32 copysign.f32"),
    *each("{w} x, a;", "f32", w="abs.f32 neg.f32 abs.ftz.f32 neg.ftz.f32"),
    *each("setp.{w}.f32 %p0, a, b; selp.f32 x, a, c, %p0;", "f32", w="lt le gt ge eq ne ltu leu gtu geu equ neu num nan"),
    *(
        (f"testp.{kind}.f32 %p0, a; selp.b32 x, 1, 0, %p0;", "b32 = f32")
        for kind in ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    ),
    ("slct.f32.f32 x, a, b, c;", "f32 = f32 f32 f32"),
    *each("{w} x, a, b;", "f32", w="div.rn.f32 div.rn.ftz.f32"),
    *each("{w} x, a;", "f32", w="rcp.rn.f32 sqrt.rn.f32 rcp.rn.ftz.f32 sqrt.rn.ftz.f32"),
]  # fmt: skip

FLOAT_64 = [
    *each("{w} x, a, b;", "f64", w="add.f64 sub.f64 mul.f64 min.f64 max.f64 copysign.f64 div.rn.f64"),
    *each("{w} x, a, b, c;", "f64", w="fma.rn.f64"),
    *each("{w} x, a;", "f64", w="abs.f64 neg.f64 sqrt.rn.f64 rcp.rn.f64"),
    *each("setp.{w}.f64 %p0, a, b; selp.f64 x, a, c, %p0;", "f64", w="lt ge equ nan"),
]  # fmt: skip

HALVES = [
    *(
        three(f"{op}.{type_} x, a, b{c};", type_)
        for type_ in ("f16", "f16x2")
        for op, c in (
            *(("add", ""), ("sub", ""), ("mul", ""), ("add.sat", ""), ("mul.sat", "")),
            *(("fma.rn", ", c"), ("fma.rn.sat", ", c"), ("fma.rn.relu", ", c"), ("fma.rn.ftz", ", c")),
            *(("min", ""), ("max", ""), ("min.NaN", ""), ("max.NaN", ""), ("add.ftz", ""), ("max.xorsign.abs", "")),
        )
    ),
    *(
        three(f"{op}.{type_} x, a, b{c};", type_)
        for type_ in ("bf16", "bf16x2")
        for op, c in (
            *(("add.rn", ""), ("sub.rn", ""), ("mul.rn", ""), ("fma.rn", ", c"), ("fma.rn.relu", ", c")),
            *(("min", ""), ("max", ""), ("min.NaN", ""), ("max.NaN", ""), ("min.xorsign.abs", "")),
        )
    ),
    *(three(f"{op}.{t} x, a;", t) for op in ("abs", "neg") for t in ("f16", "f16x2", "bf16", "bf16x2")),
    ("setp.lt.f16 %p0, a, b; selp.b16 x, a, c, %p0;", "f16 = f16 f16 f16"),
    ("setp.ge.bf16 %p0, a, b; selp.b16 x, a, c, %p0;", "bf16 = bf16 bf16 bf16"),
    ("setp.ltu.f16x2 %p0|%p1, a, b; selp.b32 x, a, 7, %p0; selp.b32 x, x, 9, %p1;", "f16x2 = f16x2 f16x2"),
    ("set.gt.f16x2.f16x2 x, a, b;", "f16x2 = f16x2 f16x2"),
]  # fmt: skip

CONVERT_INTEGER = [
    *(
        (f"cvt.{mode}.{to}.{of} x, a;", f"{'b64' if '64' in to else 'b32'} = {of}")
        for of in ("f32", "f64", "f16")
        for to in ("s32", "u32", "s64", "u64")
        for mode in ("rni", "rzi", "rmi", "rpi")
    ),
    ("cvt.rzi.ftz.s32.f32 x, a;", "b32 = f32"),
    ("cvt.rni.s16.f32 x, a;", "b16 = f32"),
    ("cvt.rni.u16.f32 x, a;", "b16 = f32"),
    ("cvt.rzi.s8.f32 x, a;", "b32 = f32"),
    ("cvt.rzi.u8.f32 x, a;", "b32 = f32"),
    ("cvt.rzi.s32.bf16 x, a;", "b32 = bf16"),
    *((f"cvt.{mode}.f32.f32 x, a;", "f32 = f32") for mode in ("rni", "rzi", "rmi", "rpi", "sat")),
    ("cvt.rni.ftz.f32.f32 x, a;", "f32 = f32"),
    ("cvt.rni.f16.f16 x, a;", "f16 = f16"),
    ("cvt.s64.s32 x, a;", "b64 = b32"),
    ("cvt.u64.u32 x, a;", "b64 = b32"),
    ("cvt.u32.u64 x, a;", "b32 = b64"),
    ("cvt.s32.s16 x, a;", "b32 = b16"),
    ("cvt.s32.s8 x, a;", "b32 = b32"),
    ("cvt.u32.u8 x, a;", "b32 = b32"),
    ("cvt.s64.s8 x, a;", "b64 = b32"),
    *(
        (f"cvt.sat.{to}.{of} x, a;", f"b32 = b{of[1:]}")
        for to, of in (
            *(("s8", "s32"), ("u8", "s32"), ("u8", "u32"), ("s8", "u32")),
            *(("u32", "s32"), ("s32", "u32"), ("s32", "s64"), ("u32", "s64")),
        )
    ),
    ("cvt.sat.s16.s32 x, a;", "b16 = b32"),
    ("cvt.sat.u16.s64 x, a;", "b16 = b64"),
]  # fmt: skip

CONVERT_FLOAT = [
    *(
        (f"cvt.{mode}.f32.{of} x, a;", f"f32 = b{of[1:]}")
        for of in ("s32", "u32", "s64", "u64")
        for mode in ("rn", "rz", "rm", "rp")
    ),
    *((f"cvt.rn.f64.{of} x, a;", f"f64 = b{of[1:]}") for of in ("s32", "u32", "s64", "u64")),
    *((f"cvt.{mode}.f16.{of} x, a;", f"f16 = b{of[1:]}") for of in ("s32", "u64") for mode in ("rn", "rz")),
    *((f"cvt.rn.{to}.f32 x, a;", f"{to} = f32") for to in ("f16", "bf16")),
    *((f"cvt.rz.{to}.f32 x, a;", f"{to} = f32") for to in ("f16", "bf16")),
    *((f"cvt.{mode}.f16.f32 x, a;", "f16 = f32") for mode in ("rm", "rp", "rn.sat", "rn.ftz", "rz.ftz.sat")),
    *(
        (f"cvt.{mode}.{to}.f32 x, a;", f"{to} = f32")
        for to in ("f16", "bf16")
        for mode in ("rn.relu", "rz.relu")
    ),
    *(
        (f"cvt.{mode}.{to}.f32 x, a, b;", f"{to} = f32 f32")
        for to in ("f16x2", "bf16x2")
        for mode in ("rn", "rz", "rn.relu", "rz.relu")
    ),
    ("cvt.f32.f16 x, a;", "f32 = f16"),
    ("cvt.f32.bf16 x, a;", "f32 = bf16"),
    ("cvt.ftz.f32.f16 x, a;", "f32 = f16"),
    ("cvt.f64.f32 x, a;", "f64 = f32"),
    ("cvt.f64.f16 x, a;", "f64 = f16"),
    *((f"cvt.{mode}.f32.f64 x, a;", "f32 = f64") for mode in ("rn", "rz", "rm", "rp", "rn.ftz")),
    ("cvt.rn.f16.f64 x, a;", "f16 = f64"),
    *((f"cvt.{mode}.tf32.f32 x, a;", "b32 = f32") for mode in ("rna", "rn", "rz", "rn.relu")),
    *(
        (f"cvt.rn.satfinite{relu}.{to}.f32 x, a, b;", "b16 = f32 f32")
        for to in ("e4m3x2", "e5m2x2")
        for relu in ("", ".relu")
    ),
    *((f"cvt.rn.satfinite.{to}.f16x2 x, a;", "b16 = f16x2") for to in ("e4m3x2", "e5m2x2")),
    *(
        (f"cvt.rn{relu}.f16x2.{of} x, a;", "f16x2 = fp8")
        for of in ("e4m3x2", "e5m2x2")
        for relu in ("", ".relu")
    ),
]  # fmt: skip


# --- approximations -----------------------------------------------------------------------------------------------------

APPROXIMATE: list[tuple[str, str, float, float]] = [
    # line, pool, largest relative error, largest absolute error: PTX ISA, 9.7.3, of each instruction
    ("rcp.approx.ftz.f32 x, a;", "unit", 2.0**-23, 0),
    ("rcp.approx.f32 x, a;", "near", 2.0**-23, 0),
    ("sqrt.approx.ftz.f32 x, a;", "unit", 2.0**-23, 0),
    ("sqrt.approx.f32 x, a;", "near", 2.0**-23, 0),
    ("rsqrt.approx.ftz.f32 x, a;", "unit", 2.0**-22.9, 0),
    ("rsqrt.approx.f32 x, a;", "near", 2.0**-22.9, 0),
    ("ex2.approx.ftz.f32 x, a;", "angle", 2.0**-22, 0),
    ("ex2.approx.f32 x, a;", "near", 2.0**-22, 0),
    ("lg2.approx.ftz.f32 x, a;", "near", 0, 2.0**-22),
    ("lg2.approx.ftz.f32 x, a;", "unit", 2.0**-22, 2.0**-22),
    ("sin.approx.ftz.f32 x, a;", "angle", 0, 2.0**-20.5),
    ("cos.approx.ftz.f32 x, a;", "angle", 0, 2.0**-20.5),
    ("tanh.approx.f32 x, a;", "angle", 2.0**-11, 0),
    ("div.approx.f32 x, a, b;", "near", 2.0**-22, 0),
    ("div.approx.ftz.f32 x, a, b;", "near", 2.0**-22, 0),
    ("div.full.f32 x, a, b;", "near", 2.0**-22, 0),
]


def approximation_bound(_inputs: list[Array], result: Array) -> Array:
    """The manual's error of each line, and half a unit for the emulator's own rounding."""
    relative, absolute = (np.array([row[i] for row in APPROXIMATE])[:, None] for i in (2, 3))
    return np.asarray((relative + 2.0**-24) * np.abs(result) + absolute)


HALF_APPROXIMATE: list[tuple[str, str, float]] = [
    # line, type, largest relative error: ex2.approx.atype 2^-9.9 of f16 and 2^-7 of bf16, tanh 2^-10.987 and 2^-8
    ("ex2.approx.f16 x, a;", "f16", 2.0**-9.9),
    ("tanh.approx.f16 x, a;", "f16", 2.0**-10.987),
    ("ex2.approx.ftz.bf16 x, a;", "bf16", 2.0**-7),
    ("tanh.approx.bf16 x, a;", "bf16", 2.0**-8),
]


def half_bound(_inputs: list[Array], result: Array) -> Array:
    """The manual's error and half a unit; in values, of results that `value_of_halves` has widened."""
    relative = np.array([row[2] for row in HALF_APPROXIMATE])[:, None]
    unit = np.array([2.0**-11 if row[1] == "f16" else 2.0**-8 for row in HALF_APPROXIMATE])[:, None]
    return np.asarray((relative + unit) * np.abs(result) + 2.0**-25)


def value_of_singles(result: Array) -> Array:
    """Results of APPROXIMATE as numbers."""
    return np.asarray(result.astype(np.uint32).view(np.float32), np.float64)


def value_of_halves(result: Array) -> Array:
    """Results of HALF_APPROXIMATE as numbers."""
    rows = []
    for row, (_, type_, _) in zip(result.reshape(-1, THREADS), HALF_APPROXIMATE, strict=True):
        bits = row.astype(np.uint16)
        wide = (
            bits.view(np.float16)
            if type_ == "f16"
            else (bits.astype(np.uint32) << 16).view(np.float32)
        )
        rows.append(wide.astype(np.float64))
    return np.stack(rows)


def split(name: str, lines: list[Line], size: int = 48) -> list[Case]:
    """Kernels of at most so many lines."""
    parts = [lines[i : i + size] for i in range(0, len(lines), size)]
    return [lines_case(f"{name}_{i}", part) for i, part in enumerate(parts)]


CASES = [
    *split("integer_32", INTEGER_32),
    *split("integer_64", INTEGER_64),
    *split("float_32", FLOAT_32),
    *split("float_64", FLOAT_64),
    *split("halves", HALVES),
    *split("convert_integer", CONVERT_INTEGER),
    *split("convert_float", CONVERT_FLOAT),
    lines_case(
        "approximate",
        [(line, f"f32 = {pool} {pool}") for line, pool, _, _ in APPROXIMATE],
        approximation_bound,
        value_of_singles,
    ),
    lines_case(
        "approximate_halves",
        [(line, f"{type_} = {type_}") for line, type_, _ in HALF_APPROXIMATE],
        half_bound,
        value_of_halves,
    ),
]

"""cvt: between integers, floating point and their narrow forms. PTX ISA, 9.7.9.21."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate import numbers
from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.floating import (
    DIRECTED,
    canonical,
    f32_to_bf16,
    f32_to_f16,
    flushed,
    halves_to_f32,
    round_to,
    saturated,
    to_odd,
    two_sum,
)
from tilewright.emulate.registers import F32, U16, U32

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp

_INTEGER_TYPES: dict[str, Any] = {
    f"{sign}{bits}": np.dtype(f"{'i' if sign == 's' else 'u'}{bits // 8}")
    for sign in "us"
    for bits in (8, 16, 32, 64)
}
_FLOAT_TYPES = {"f16", "bf16", "tf32", "f32", "f64"}
_ROUND: dict[str, Callable[[Array], Array]] = {
    "rni": np.rint,
    "rzi": np.trunc,
    "rmi": np.floor,
    "rpi": np.ceil,
}


@instruction("cvt")
def cvt(op: Decoder) -> Run:
    """One conversion, or two into a packed result."""
    types = [m for m in op.modifiers if m in _INTEGER_TYPES or m in _FLOAT_TYPES or "x2" in m]
    if len(types) < 2:
        raise op.unknown()
    to, of = types[-2], types[-1]
    if to.endswith("x2") or of.endswith("x2"):
        return _packed(op, to, of)
    d_kind = op.own_kind(op.operands[0], _stored(to))
    a_kind = op.own_kind(op.operands[1], _stored(of))
    d, a = op.destination(op.operands[0], d_kind), op.source(op.operands[1], a_kind)
    convert = _conversion(op, to, of)

    def run(warp: Warp, where: Where) -> None:
        out = warp.rows[d_kind][d]
        np.copyto(out, convert(warp.rows[a_kind][a]), where=where, casting="unsafe")

    return run


def _stored(type_: str) -> str:
    return "b16" if type_ in {"f16", "bf16"} else "b32" if type_ == "tf32" else type_


def _conversion(op: Decoder, to: str, of: str) -> Callable[[Array], Array]:
    if to in _INTEGER_TYPES and of in _INTEGER_TYPES:
        return _integers(op, _INTEGER_TYPES[to], _INTEGER_TYPES[of])
    widen = _widen(of)
    if to in _INTEGER_TYPES:
        round_ = _ROUND[op.one_of(*_ROUND, default="rzi")]
        dtype = _INTEGER_TYPES[to]
        ftz = op.has("ftz")
        # PTX ISA, `cvt`: NaN gives 0, but 1 << (bits - 1) from .f64 and to 64 bits.
        nan = 1 << 8 * dtype.itemsize - 1 if of == "f64" or dtype.itemsize == 8 else 0
        return lambda a: _to_integer(round_(flushed(widen(a)) if ftz else widen(a)), dtype, nan)
    narrow = _narrow(op, to, of)
    return lambda a: narrow(widen(a))


def _integers(op: Decoder, to: Any, of: Any) -> Callable[[Array], Array]:
    low, high = int(np.iinfo(to).min), int(np.iinfo(to).max)
    saturates = op.has("sat")

    def convert(a: Array) -> Array:
        given = a.astype(of)  # the low part of a wider register
        if saturates:
            bottom = max(low, int(np.iinfo(of).min))
            given = np.clip(given, bottom, min(high, int(np.iinfo(of).max)))
        return given.astype(to)

    return convert


def _to_integer(values: Array, dtype: Any, nan: int) -> Array:
    """Clamped to the range; `nan` is the bits of what NaN gives."""
    info = np.iinfo(dtype)
    exact = np.clip(np.nan_to_num(values.astype(np.float64), nan=0.0), -(2.0**63), 2.0**64)
    whole = [min(max(int(v), int(info.min)), int(info.max)) for v in exact.tolist()]
    unsigned = np.dtype(f"u{dtype.itemsize}")
    return np.where(np.isnan(values), np.array(nan, unsigned).view(dtype), np.array(whole, dtype))


def _odd(values: Array) -> Array:
    """Numbers or integers in binary64, those of more than 53 bits rounded to odd."""
    if values.dtype.kind == "f" or values.dtype.itemsize < 8:
        return values.astype(np.float64)
    shift, low = values.dtype.type(32), values.dtype.type(0xFFFFFFFF)
    return to_odd(
        *two_sum((values >> shift).astype(np.float64) * 2.0**32, (values & low).astype(np.float64))
    )


def _widen(of: str) -> Callable[[Array], Array]:
    """A source as numbers that hold it exactly, 64-bit integers apart."""
    if of in {"f16", "bf16"}:
        return partial(halves_to_f32, is_bf16=of == "bf16")
    if of in {"f32", "tf32"}:
        return lambda a: a.view(np.float32)
    if of == "f64":
        return lambda a: a.view(np.float64)
    dtype = _INTEGER_TYPES[of]
    return lambda a: a.astype(dtype)


def _narrow(op: Decoder, to: str, of: str) -> Callable[[Array], Array]:
    """Numbers into a floating-point type with the mode of the instruction; f16, bf16 and tf32 as bits."""
    mode: Any = op.one_of("rn", "rna", "rz", "rm", "rp", default="rn")
    integral = op.one_of("rni", "rzi", "rmi", "rpi")
    saturates, ftz = op.has("sat"), op.has("ftz")
    relu, satfinite = op.has("relu"), op.has("satfinite")
    target: Any = np.float64 if to == "f64" else np.float32
    renews_nan = to == "f32" and of in {"f16", "f32"}  # others keep a NaN's bits, on an H200
    plain = not (integral or saturates or ftz or relu or satfinite)

    def round_(values: Array) -> Array:
        if to in {"f16", "bf16", "tf32"}:
            return numbers.encode(values, to, mode, relu=relu, satfinite=satfinite)
        if mode in DIRECTED:
            return round_to(_odd(values), target, mode)
        return values.astype(target)

    def narrow(values: Array) -> Array:
        given = flushed(values) if ftz and values.dtype == np.float32 else values
        if integral:
            given = _ROUND[integral](given)
        if saturates:
            given = saturated(given)
        found = round_(given)
        return canonical(found) if renews_nan else found

    if plain and to == "bf16" and mode == "rn":
        return f32_to_bf16  # what epilogues do all the time
    if to == "f16" and of == "f64":
        return lambda a: np.where(np.isnan(a), _nan_of_f16(a), narrow(a))
    if to == "tf32" and mode == "rna":
        cut = np.uint32(0xFFFFE000)
        return lambda a: np.where(np.isnan(a), a.view(np.uint32) & cut, narrow(a))
    return narrow


def _nan_of_f16(values: Array) -> Array:
    """Quiet NaNs with the sign and the upper payload of binary64 ones: an H200 converts them so, and no others."""
    high = values.view(np.uint64) >> np.uint64(42)
    sign = high >> np.uint64(6) & np.uint64(0x8000)
    return (sign | high & np.uint64(0x3FF) | np.uint64(0x7E00)).astype(np.uint16)


def _packed(op: Decoder, to: str, of: str) -> Run:
    """cvt.rn.bf16x2.f32 d, a, b: a becomes the upper half. fp8 pairs and their inverses."""
    if to in {"f16x2", "bf16x2"} and of == "f32":
        narrow = _narrow(op, to.removesuffix("x2"), of)
        d = op.destination(op.operands[0], U32)
        high, low = (op.source(o, F32) for o in op.operands[1:3])

        def run(warp: Warp, where: Where) -> None:
            rows = warp.rows[F32]
            upper = narrow(rows[high]).astype(np.uint32)
            lower = narrow(rows[low]).astype(np.uint32)
            np.copyto(warp.rows[U32][d], upper << np.uint32(16) | lower, where=where)

        return run
    return _fp8(op, to, of)


def _fp8(op: Decoder, to: str, of: str) -> Run:
    """Pairs of fp8: from two f32 or an f16x2, and to an f16x2."""
    formats = {"e4m3x2": "e4m3", "e5m2x2": "e5m2"}
    if to in formats:
        d = op.destination(op.operands[0], U16)
        encode = partial(numbers.encode, name=formats[to], satfinite=True, relu=op.has("relu"))
        if of == "f32":
            rows_of = [op.source(o, F32) for o in op.operands[1:3]]

            def run(warp: Warp, where: Where) -> None:
                upper, lower = (encode(warp.rows[F32][r]).astype(np.uint16) for r in rows_of)
                np.copyto(warp.rows[U16][d], upper << np.uint16(8) | lower, where=where)

            return run
        a = op.source(op.operands[1], U32)

        def from_halves(warp: Warp, where: Where) -> None:
            raw = warp.rows[U32][a].view(np.uint16)
            wide = halves_to_f32(raw, is_bf16=of == "bf16x2")
            found = encode(wide).astype(np.uint8).view(np.uint16)
            np.copyto(warp.rows[U16][d], found, where=where)

        return from_halves
    if of in formats and to == "f16x2":
        d, a = op.destination(op.operands[0], U32), op.source(op.operands[1], U16)
        decode, relu = partial(numbers.decode, name=formats[of]), op.has("relu")

        def to_halves(warp: Warp, where: Where) -> None:
            wide = decode(np.ascontiguousarray(warp.rows[U16][a]).view(np.uint8))
            if relu:
                wide = np.where(wide <= 0, np.float32(0), wide)  # -0 as well
            found = np.ascontiguousarray(f32_to_f16(wide)).view(np.uint32)
            np.copyto(warp.rows[U32][d], found, where=where)

        return to_halves
    raise op.unknown()

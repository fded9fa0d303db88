"""Floating-point arithmetic, and the opcodes that integers share with it: PTX ISA, 9.7.3 to 9.7.5.

Every result is rounded once. fma in binary32 goes through binary64 rounded to odd, which rounds right
(Boldo and Melquiond, 2008); directed roundings take the error of the sum with them. `.ftz` flushes.
NaNs are those of an H200 (tests/data/h200/micro.json): one of binary32 and of halves, while binary64 keeps payloads.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.integer import (
    INTEGERS,
    add_or_sub,
    binary,
    computed,
    divide,
    halves,
    multiply,
    multiply_add,
    unary,
)
from tilewright.emulate.registers import F32, F64, PRED, U16, U32, U64

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp

DIRECTED = ("rz", "rm", "rp")
_TINY = np.float32(2**-126)
_TINY_F16 = np.float32(2**-14)
_NAN = np.uint32(0x7FFFFFFF).view(np.float32)
NAN_OF_HALVES = np.uint16(0x7FFF)


def flushed(values: Array, tiny: np.float32 = _TINY) -> Array:
    """Subnormal binary32 numbers as zeros of their sign; with `tiny` 2^-14, f16 ones in binary32."""
    return np.where(np.abs(values) < tiny, np.copysign(np.float32(0), values), values)


def canonical(values: Array) -> Array:
    """binary32 results with the one NaN that arithmetic gives."""
    nan = np.isnan(values)
    return np.where(nan, _NAN, values) if nan.any() else values


def saturated(values: Array) -> Array:
    """Clamped to [0, 1]; NaN and -0 become +0."""
    found: Array = np.where(np.isnan(values), 0, np.clip(values, 0, 1)) + values.dtype.type(0)
    return found


def to_odd(exact: Array, error: Array) -> Array:
    """A binary64 sum rounded to odd, given what rounding it to nearest left over."""
    bits = exact.view(np.int64)
    wrong = (error != 0) & (bits & 1 == 0) & np.isfinite(exact)
    other = np.nextafter(exact, np.where(error > 0, np.inf, -np.inf))
    return np.where(wrong, other, exact)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Knuth: a + b and its rounding error."""
    total = a + b
    part = total - a
    error = (a - (total - part)) + (b - part)
    return total, np.where(np.isfinite(error), error, 0.0)


def round_to(values: Array, dtype: Any, mode: str) -> Array:
    """binary64 values, exact or rounded to odd, in a narrower type."""
    near = values.astype(dtype)
    if mode not in DIRECTED:
        return near
    back = near.astype(np.float64)
    if mode == "rz":
        too_far = np.abs(back) > np.abs(values)
        towards = np.zeros_like(near)
    elif mode == "rm":
        too_far, towards = back > values, np.full_like(near, -np.inf)
    else:
        too_far, towards = back < values, np.full_like(near, np.inf)
    return np.where(too_far, np.nextafter(near, towards), near)


def sum32(a: Array, b: Array, mode: str = "rn") -> Array:
    """The sum of binary32 or binary64 numbers in binary32, rounded once."""
    total = to_odd(*two_sum(a.astype(np.float64), b.astype(np.float64)))
    if mode == "rm":  # what cancels is -0
        total = np.where((total == 0) & (np.signbit(a) != np.signbit(b)), -0.0, total)
    return round_to(total, np.float32, mode)


def fma32(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """A * b + c in binary32, rounded once."""
    return sum32(a.astype(np.float64) * b.astype(np.float64), c.astype(np.float64), mode)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """A * b + c in binary64: Dekker's product and Knuth's sum; the last bit may be off in ties."""
    product = a * b
    factor = np.float64(134217729.0)

    def cut(x: Array) -> tuple[Array, Array]:
        high = factor * x - (factor * x - x)
        return high, x - high

    (ah, al), (bh, bl) = cut(a), cut(b)
    low = ((ah * bh - product) + ah * bl + al * bh) + al * bl
    total, error = two_sum(product, c)
    extra = np.where(np.isfinite(low), low, 0.0) + error
    return np.asarray(total + extra)


def _mode(op: Decoder) -> str:
    return op.one_of("rn", "rz", "rm", "rp", default="rn")


def _finish(op: Decoder, function: Callable[..., Array], kind: int, count: int) -> Run:
    """Wrap a function of registers of one kind with .ftz and .sat."""
    ftz, sat = op.has("ftz") and kind == F32, op.has("sat")

    def whole(*values: Array) -> Array:
        given = [flushed(v) for v in values] if ftz else values
        found = function(*given)
        if ftz:
            found = flushed(found)
        if sat:
            found = saturated(found)
        return canonical(found) if kind == F32 else found

    return computed(op, whole, *[kind] * count)


def _arithmetic(op: Decoder, ufunc: Any, directed: Callable[..., Array]) -> Run:
    """Two operands: numpy's own rounding to nearest, or a directed one of binary64 numbers."""
    kind, mode = op.kind, _mode(op)
    if kind == F32 and mode in DIRECTED:
        return _finish(
            op, lambda a, b: directed(a.astype(np.float64), b.astype(np.float64), mode), F32, 2
        )
    if mode in DIRECTED:
        raise op.unknown(f"rounding .{mode} of .{op.type}")
    if op.has("ftz") or op.has("sat"):
        return _finish(op, ufunc, kind, 2)
    return _nearest32(op, ufunc) if kind == F32 else binary(op, ufunc)


def _nearest32(op: Decoder, ufunc: Any) -> Run:
    """What kernels do most: `binary` of binary32, and `canonical`."""
    d, a, b = (
        op.destination(op.operands[0], F32),
        *(op.source(operand, F32) for operand in op.operands[1:3]),
    )

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[F32]
        ufunc(rows[a], rows[b], out=rows[d], where=where)
        nan = np.isnan(rows[d])
        if nan.any():
            np.copyto(rows[d], _NAN, where=nan & where)

    return run


# --- packed and 16-bit types --------------------------------------------------------------------------


def bf16_to_f32(bits: Array) -> Array:
    """bf16 bits as binary32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def f32_to_bf16(values: Array) -> Array:
    """binary32 to bf16 bits, to nearest even; NaN becomes 0x7fff."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), NAN_OF_HALVES, rounded).astype(np.uint16)


def f32_to_f16(values: Array) -> Array:
    """binary32 to f16 bits, to nearest even; NaN becomes 0x7fff."""
    return np.where(np.isnan(values), NAN_OF_HALVES, values.astype(np.float16).view(np.uint16))


def halves_to_f32(bits: Array, *, is_bf16: bool) -> Array:
    """Bits of f16 or bf16 as binary32."""
    return bf16_to_f32(bits) if is_bf16 else bits.view(np.float16).astype(np.float32)


def f32_to_halves(values: Array, *, is_bf16: bool) -> Array:
    """binary32 to bits of f16 or bf16, to nearest even."""
    return f32_to_bf16(values) if is_bf16 else f32_to_f16(values)


def _of_halves(op: Decoder, function: Callable[..., Array]) -> Run:
    """f16, bf16, f16x2, bf16x2: computed in binary32 (binary64 for fma), rounded once."""
    is_bf16, packed = "bf16" in op.type, op.type.endswith("x2")
    kind = U32 if packed else U16
    d = op.destination(op.operands[0], kind)
    sources = [op.source(o, kind) for o in op.operands[1:]]
    relu, sat, ftz = op.has("relu"), op.has("sat"), op.has("ftz")

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[kind]
        wide = [halves_to_f32(rows[s].view(np.uint16), is_bf16=is_bf16) for s in sources]
        if ftz:
            wide = [flushed(each, _TINY_F16) for each in wide]
        found = function(*wide)
        if ftz:
            found = flushed(found, _TINY_F16)
        if relu:
            found = np.where(np.isnan(found), found, np.maximum(found, 0))
        if sat:
            found = saturated(found)
        out = np.ascontiguousarray(f32_to_halves(found, is_bf16=is_bf16))
        np.copyto(rows[d], out.view(np.uint32) if packed else out, where=where)

    return run


def _fma_halves(a: Array, b: Array, c: Array) -> Array:
    """Product and sum of 16-bit numbers, rounded to odd so that the last rounding is the only one."""
    product = a.astype(np.float64) * b.astype(np.float64)
    total, error = two_sum(product, c.astype(np.float64))
    odd = to_odd(total, error)
    near = odd.astype(np.float32)
    left = odd - near.astype(np.float64)
    bits = near.view(np.int32)
    wrong = (left != 0) & (bits & 1 == 0) & np.isfinite(near)
    return np.where(
        wrong, np.nextafter(near, np.where(left > 0, np.inf, -np.inf).astype(np.float32)), near
    )


_HALF_TYPES = frozenset({"f16", "bf16", "f16x2", "bf16x2"})


# --- mixed precision ---------------------------------------------------------------------------------


def _is_mixed(op: Decoder) -> bool:
    """Whether 16-bit operands meet one of binary32: .f32.f16, .f32.bf16."""
    return op.modifiers[-2:] in {("f32", "f16"), ("f32", "bf16")}


def _mixed(op: Decoder, function: Callable[..., Array]) -> Run:
    """Every operand but the last has 16 bits and is converted, which is exact; then `function(…, mode)`."""
    widen = partial(halves_to_f32, is_bf16=op.type == "bf16")
    mode, sat, narrow = _mode(op), op.has("sat"), len(op.operands) - 2

    def whole(*values: Array) -> Array:
        found = function(*map(widen, values[:narrow]), values[narrow], mode)
        return canonical(saturated(found) if sat else found)

    return computed(op, whole, *[U16] * narrow, F32, result=F32)


# --- opcodes ------------------------------------------------------------------------------------------


def _pairs_of_f32(op: Decoder, function: Callable[..., Array]) -> Run:
    """f32x2: two binary32 in 64 bits."""
    d = op.destination(op.operands[0], U64)
    sources = [op.source(o, U64) for o in op.operands[1:]]

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[U64]
        found = canonical(function(*(rows[s].view(np.float32) for s in sources)))
        np.copyto(rows[d], np.ascontiguousarray(found, np.float32).view(np.uint64), where=where)

    return run


@instruction("add")
def add(op: Decoder) -> Run:
    """Sum."""
    if op.type in INTEGERS:
        return add_or_sub(op, np.add)
    if _is_mixed(op):
        return _mixed(op, sum32)
    if op.type in _HALF_TYPES:
        return _of_halves(op, np.add)
    if op.type == "f32x2":
        return _pairs_of_f32(op, np.add)
    return _arithmetic(op, np.add, sum32)


@instruction("sub")
def sub(op: Decoder) -> Run:
    """Difference."""
    if op.type in INTEGERS:
        return add_or_sub(op, np.subtract)
    if _is_mixed(op):
        return _mixed(op, lambda a, c, mode: sum32(a, -c, mode))
    if op.type in _HALF_TYPES:
        return _of_halves(op, np.subtract)
    if op.type == "f32x2":
        return _pairs_of_f32(op, np.subtract)
    return _arithmetic(op, np.subtract, lambda a, b, mode: sum32(a, -b, mode))


@instruction("mul")
def mul(op: Decoder) -> Run:
    """Product."""
    if op.type in INTEGERS:
        return multiply(op)
    if op.type in _HALF_TYPES:
        return _of_halves(op, np.multiply)
    if op.type == "f32x2":
        return _pairs_of_f32(op, np.multiply)
    return _arithmetic(op, np.multiply, lambda a, b, mode: round_to(a * b, np.float32, mode))


@instruction("fma", "mad")
def fma(op: Decoder) -> Run:
    """Product and sum, rounded once; mad of integers."""
    if op.type in INTEGERS:
        return multiply_add(op)
    if _is_mixed(op):
        return _mixed(op, fma32)
    if op.type in _HALF_TYPES:
        return _of_halves(op, _fma_halves)
    if op.type == "f32x2":
        return _pairs_of_f32(op, fma32)
    mode = _mode(op)
    if op.kind == F64:
        if mode in DIRECTED:
            raise op.unknown(f"rounding .{mode} of .f64")
        return _finish(op, fma64, F64, 3)
    return _finish(op, lambda a, b, c: fma32(a, b, c, mode), F32, 3)


@instruction("div")
def div(op: Decoder) -> Run:
    """Quotient; .approx and .full are rounded to nearest as well."""
    if op.type in INTEGERS:
        return computed(op, divide, op.kind, op.kind)
    if _mode(op) in DIRECTED:
        raise op.unknown(f"rounding .{_mode(op)} of a quotient")
    return _finish(op, np.divide, op.kind, 2)


def _of_magnitudes(function: Callable[[Array, Array], Array]) -> Callable[[Array, Array], Array]:
    """.xorsign.abs: of the magnitudes, with the product's sign."""

    def signed(a: Array, b: Array) -> Array:
        found = function(np.abs(a), np.abs(b))
        return np.where(np.signbit(a) ^ np.signbit(b), -found, found)

    return signed


def _least_or_most(op: Decoder, plain: Any, ignoring: Any, comparing: Any) -> Run:
    if op.type in {"u16x2", "s16x2"}:
        return halves(op, comparing)
    if op.type in INTEGERS:
        run = binary(op, comparing)
        if op.has("relu"):
            return computed(op, lambda a, b: np.maximum(comparing(a, b), 0), op.kind, op.kind)
        return run
    function = plain if op.has("NaN") else ignoring
    if op.has("xorsign"):
        function = _of_magnitudes(function)
    if op.type in _HALF_TYPES:
        return _of_halves(op, function)
    if len(op.operands) == 4:
        return _finish(op, lambda a, b, c: function(function(a, b), c), op.kind, 3)
    return _finish(op, function, op.kind, 2)


@instruction("min")
def least(op: Decoder) -> Run:
    """The smaller; of a number and NaN the number, unless .NaN."""
    return _least_or_most(op, np.minimum, np.fmin, np.minimum)


@instruction("max")
def most(op: Decoder) -> Run:
    """The larger."""
    return _least_or_most(op, np.maximum, np.fmax, np.maximum)


def _of_one(op: Decoder, ufunc: Any, bits: Callable[[Array], Array]) -> Run:
    """Of abs and neg: `ufunc` of numbers, `bits` of halves as 16-bit integers. A NaN comes out quiet and keeps its sign."""
    if op.type in _HALF_TYPES:
        kind = U32 if op.type.endswith("x2") else U16
        infinity = np.uint16(0x7F80 if "bf16" in op.type else 0x7C00)

        def of_halves(a: Array) -> Array:
            given = a.view(np.uint16)
            nan = (given & np.uint16(0x7FFF)) > infinity
            return np.ascontiguousarray(np.where(nan, NAN_OF_HALVES, bits(given))).view(a.dtype)

        return computed(op, of_halves, kind, result=kind)
    if op.kind == F64:
        return computed(op, lambda a: np.where(np.isnan(a), a + 0.0, ufunc(a)), F64)
    if op.kind == F32:
        return _finish(op, ufunc, F32, 1)
    return unary(op, ufunc)


@instruction("abs")
def absolute(op: Decoder) -> Run:
    """Without its sign."""
    return _of_one(op, np.abs, lambda a: a & np.uint16(0x7FFF))


@instruction("neg")
def negate(op: Decoder) -> Run:
    """With the other sign."""
    return _of_one(op, np.negative, lambda a: a ^ np.uint16(0x8000))


@instruction("copysign")
def copysign(op: Decoder) -> Run:
    """The magnitude of b with the sign of a."""
    return computed(op, lambda a, b: np.copysign(b, a), op.kind, op.kind)


@instruction("testp")
def testp(op: Decoder) -> Run:
    """Of what class a number is."""
    tiny = np.finfo(np.float32 if op.kind == F32 else np.float64).tiny
    tests: dict[str, Callable[[Array], Array]] = {
        "finite": np.isfinite,
        "infinite": np.isinf,
        "number": lambda a: ~np.isnan(a),
        "notanumber": np.isnan,
        "normal": lambda a: (
            np.isfinite(a) & ((np.abs(a) >= tiny) | (a == 0))
        ),  # zero counts as normal
        "subnormal": lambda a: (a != 0) & (np.abs(a) < tiny),
    }
    return computed(op, tests[op.one_of(*tests)], op.kind, result=PRED)

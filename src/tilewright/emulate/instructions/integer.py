"""Integer arithmetic: PTX ISA, 9.7.1 and 9.7.2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.registers import (
    DTYPES,
    PRED,
    S32,
    U32,
    UNSIGNED,
    WIDTHS,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp

INTEGERS = frozenset(f"{sign}{bits}" for sign in "usb" for bits in (16, 32, 64)) | {
    "u16x2",
    "s16x2",
    "pred",
}
WIDER = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}


def binary(op: Decoder, ufunc: Any, kind: int | None = None) -> Run:
    """D = ufunc(a, b) on registers of one kind."""
    k = op.kind if kind is None else kind
    d = op.destination(op.operands[0], k)
    a, b = op.source(op.operands[1], k), op.source(op.operands[2], k)

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[k]
        ufunc(rows[a], rows[b], out=rows[d], where=where)

    return run


def unary(op: Decoder, ufunc: Any, kind: int | None = None) -> Run:
    """D = ufunc(a)."""
    k = op.kind if kind is None else kind
    d, a = op.destination(op.operands[0], k), op.source(op.operands[1], k)

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[k]
        ufunc(rows[a], out=rows[d], where=where)

    return run


def computed(
    op: Decoder, function: Callable[..., Array], *kinds: int, result: int | None = None
) -> Run:
    """D = function(sources…), any function of arrays; `kinds` are those of the sources."""
    out = op.kind if result is None else result
    d = op.destination(op.operands[0], out)
    sources = [(k, op.source(o, k)) for o, k in zip(op.operands[1:], kinds, strict=True)]

    def run(warp: Warp, where: Where) -> None:
        values = [warp.rows[k][row] for k, row in sources]
        np.copyto(warp.rows[out][d], function(*values), where=where, casting="unsafe")

    return run


# --- add, sub, mul, mad -------------------------------------------------------------------------------


def add_or_sub(op: Decoder, ufunc: Any) -> Run:
    """Wrapping, saturating (.sat.s32), of halves (.u16x2), or with a carry out (.cc)."""
    if op.type in {"u16x2", "s16x2"}:
        return halves(op, ufunc)
    if op.has("cc"):
        return with_carry(op, carry_in=False)
    if op.has("sat"):

        def saturate(a: Array, b: Array) -> Array:
            wide = ufunc(a.astype(np.int64), b.astype(np.int64))
            return np.asarray(np.clip(wide, -(2**31), 2**31 - 1))

        return computed(op, saturate, S32, S32)
    return binary(op, ufunc)


def halves(op: Decoder, ufunc: Any) -> Run:
    """The same on the two 16-bit halves of 32 bits."""
    dtype = np.int16 if op.type == "s16x2" else np.uint16
    d = op.destination(op.operands[0], U32)
    sources = [op.source(o, U32) for o in op.operands[1:]]

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[U32]
        found = ufunc(*(rows[s].view(dtype) for s in sources))
        np.copyto(rows[d], np.ascontiguousarray(found, dtype).view(np.uint32), where=where)

    return run


def with_carry(op: Decoder, *, carry_in: bool) -> Run:
    """add.cc, sub.cc, mad.cc and what takes the carry in: it is a predicate of the warp's."""
    k = UNSIGNED[WIDTHS[op.kind]]
    bits = WIDTHS[k]
    d = op.destination(op.operands[0], k)
    *factors, a, b = (op.source(o, k) for o in op.operands[1:])
    multiply = product_high if op.has("hi") else np.multiply
    signed = DTYPES[op.kind]
    carry = op.program.carry()
    subtracts = op.op.node.opcode.root in {"sub", "subc"}
    writes = op.has("cc")
    mask = (1 << bits) - 1

    def run(warp: Warp, where: Where) -> None:
        rows, flag = warp.rows[k], warp.rows[PRED][carry]
        left = rows[a]
        if factors:
            found = multiply(rows[factors[0]].view(signed), left.view(signed))
            left = found.astype(signed).view(DTYPES[k])
        first, second = left.astype(object), rows[b].astype(object)
        extra = flag.astype(int).astype(object) if carry_in else 0
        whole = first - second - extra if subtracts else first + second + extra
        out = np.array([int(w) & mask for w in whole], DTYPES[k])
        if writes:
            np.copyto(flag, np.array([not 0 <= int(w) <= mask for w in whole]), where=where)
        np.copyto(rows[d], out, where=where)

    return run


@instruction("addc", "subc", "madc")
def addc(op: Decoder) -> Run:
    """Add, subtract, or multiply and add with the carry."""
    return with_carry(op, carry_in=True)


def product_high(a: Array, b: Array) -> Array:
    """The upper half of a product, of 16, 32 or 64 bits."""
    bits = a.dtype.itemsize * 8
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return np.right_shift(a.astype(wide) * b.astype(wide), wide(bits))
    high = a.astype(object) * b.astype(object)
    return np.array([int(v) >> 64 for v in high], a.dtype)


def product_wide(a: Array, b: Array, dtype: Any) -> Array:
    """The whole product in twice the bits."""
    return np.multiply(a, b, dtype=dtype)


@instruction("mul24", "mad24")
def mul24(op: Decoder) -> Run:
    """Products of 24 bits: the low 32 bits of 48, or the high ones."""
    dtype, shift, high = DTYPES[op.kind], DTYPES[op.kind](8), op.has("hi")
    saturates = op.has("sat")

    def of_24_bits(a: Array, b: Array, *c: Array) -> Array:
        whole = ((a << shift) >> shift).astype(np.int64) * ((b << shift) >> shift).astype(np.int64)
        found = (whole >> 16 if high else whole).astype(dtype)
        if saturates:
            return saturated(found, c[0])
        return np.asarray(found + c[0] if c else found)

    return computed(op, of_24_bits, *[op.kind] * (len(op.operands) - 1))


def saturated(a: Array, b: Array) -> Array:
    """A sum clamped to the 32 bits of s32."""
    return np.clip(a.astype(np.int64) + b.astype(np.int64), -(2**31), 2**31 - 1).astype(np.int32)


def multiply(op: Decoder) -> Run:
    """mul.lo, .hi and .wide of integers."""
    if op.has("wide"):
        wide = op.kind_of(WIDER[op.type])
        dtype = DTYPES[wide]
        return computed(op, lambda a, b: product_wide(a, b, dtype), op.kind, op.kind, result=wide)
    if op.has("hi"):
        return computed(op, product_high, op.kind, op.kind)
    return binary(op, np.multiply)


def multiply_add(op: Decoder) -> Run:
    """mad.lo, .hi and .wide of integers."""
    if op.has("cc"):
        return with_carry(op, carry_in=False)
    if op.has("wide"):
        wide = op.kind_of(WIDER[op.type])
        dtype = DTYPES[wide]
        return computed(
            op,
            lambda a, b, c: product_wide(a, b, dtype) + c,
            op.kind,
            op.kind,
            wide,
            result=wide,
        )
    if op.has("sat"):
        return computed(op, lambda a, b, c: saturated(product_high(a, b), c), *[op.kind] * 3)
    if op.has("hi"):
        return computed(op, lambda a, b, c: product_high(a, b).astype(c.dtype) + c, *[op.kind] * 3)
    return computed(op, lambda a, b, c: a * b + c, *[op.kind] * 3)


def divide(a: Array, b: Array) -> Array:
    """Quotient towards zero; by zero all bits are one, as the hardware gives."""
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    if a.dtype.kind == "u":
        found = a // safe
    else:
        found = a // safe
        found = found + ((a % safe != 0) & ((a < 0) != (safe < 0)))
    return np.where(b == 0, np.array(-1).astype(a.dtype), found)


def remainder(a: Array, b: Array) -> Array:
    """What division towards zero leaves; by zero the dividend."""
    safe = np.where(b == 0, 1, b).astype(a.dtype)
    return np.where(b == 0, a, np.fmod(a, safe))


@instruction("rem")
def rem(op: Decoder) -> Run:
    """Remainder."""
    return computed(op, remainder, op.kind, op.kind)


@instruction("sad")
def sad(op: Decoder) -> Run:
    """|a - b| + c."""
    return computed(
        op, lambda a, b, c: np.where(a > b, a - b, b - a) + c, op.kind, op.kind, op.kind
    )


@instruction("dp4a", "dp2a")
def dot(op: Decoder) -> Run:
    """Dot product of bytes (dp4a), or of 16-bit by bytes (dp2a), plus c."""
    first, second = op.modifiers[-2], op.modifiers[-1]
    is_dp4a = op.op.node.opcode.root == "dp4a"
    width_a = {"u32": np.uint8, "s32": np.int8} if is_dp4a else {"u32": np.uint16, "s32": np.int16}
    a_type, b_type = width_a[first], {"u32": np.uint8, "s32": np.int8}[second]
    high = op.has("hi")

    def multiply_all(a: Array, b: Array, c: Array) -> Array:
        x = np.ascontiguousarray(a).view(a_type).reshape(32, -1).astype(np.int64)
        y = np.ascontiguousarray(b).view(b_type).reshape(32, 4).astype(np.int64)
        if not is_dp4a:
            y = y[:, 2:] if high else y[:, :2]
        return np.asarray((x * y).sum(1) + c.astype(np.int64), np.uint64).astype(np.uint32)

    return computed(op, multiply_all, U32, U32, U32, result=U32)

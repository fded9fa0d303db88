"""Logic, shifts and bit fields: PTX ISA, 9.7.1 and 9.7.8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.integer import binary, computed, unary
from tilewright.emulate.registers import DTYPES, S32, U32, UNSIGNED, WIDTHS

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.registers import Array, Where
    from tilewright.emulate.warp import Warp


_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
_OF_PREDICATES = {"and": np.logical_and, "or": np.logical_or, "xor": np.logical_xor}


@instruction("and", "or", "xor")
def logic(op: Decoder) -> Run:
    """Bits, or predicates."""
    root = op.op.node.opcode.root
    return binary(op, _OF_PREDICATES[root] if op.type == "pred" else _LOGIC[root])


@instruction("not")
def invert(op: Decoder) -> Run:
    """Bits, or a predicate."""
    return unary(op, np.logical_not if op.type == "pred" else np.invert)


@instruction("cnot")
def cnot(op: Decoder) -> Run:
    """1 where zero, else 0."""
    return computed(op, lambda a: a == 0, op.kind)


def _shifted(op: Decoder, shift: Any) -> Run:
    """A shift by 32 unsigned bits, clamped to the width."""
    k, bits = op.kind, WIDTHS[op.kind]
    d = op.destination(op.operands[0], k)
    a, b = op.source(op.operands[1], k), op.source(op.operands[2], U32)
    dtype = DTYPES[k]
    signed = np.dtype(dtype).kind == "i"

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[k]
        by = warp.rows[U32][b]
        found = shift(rows[a], np.minimum(by, bits - 1).astype(dtype))
        if not signed:
            found = np.where(by >= bits, dtype(0), found)
        np.copyto(rows[d], found, where=where)

    return run


@instruction("shl")
def shl(op: Decoder) -> Run:
    """Left."""
    return _shifted(op, np.left_shift)


@instruction("shr")
def shr(op: Decoder) -> Run:
    """Right; signed types keep their sign."""
    return _shifted(op, np.right_shift)


@instruction("shf")
def shf(op: Decoder) -> Run:
    """Funnel shift of {hi, lo}."""
    wraps, left = op.has("wrap"), op.has("l")

    def funnel(low: Array, high: Array, by: Array) -> Array:
        amount = (by & 31 if wraps else np.minimum(by, 32)).astype(np.uint64)
        both = high.astype(np.uint64) << np.uint64(32) | low.astype(np.uint64)
        return (both << amount) >> np.uint64(32) if left else both >> amount

    return computed(op, lambda *a: funnel(*a).astype(np.uint32), U32, U32, U32)


@instruction("bfe")
def bfe(op: Decoder) -> Run:
    """Bit field extract; a signed field keeps the sign of its highest bit."""
    bits, signed, dtype = WIDTHS[op.kind], op.type.startswith("s"), DTYPES[op.kind]

    def extract(a: Array, start: Array, length: Array) -> Array:
        pos, count = (start & 255).astype(np.int64), (length & 255).astype(np.int64)
        found = []
        for value, p, n in zip(a.tolist(), pos.tolist(), count.tolist(), strict=True):
            whole = value & ((1 << bits) - 1)
            field = (whole >> p) & ((1 << n) - 1) if n and p < bits else 0
            if signed and n:
                sign = whole >> min(p + n - 1, bits - 1) & 1
                width = max(0, min(n, bits - p))
                if sign:
                    field |= -1 << width
            found.append(field & ((1 << bits) - 1))
        return np.array(found, DTYPES[UNSIGNED[bits]]).view(dtype)

    return computed(op, extract, op.kind, U32, U32)


@instruction("bfi")
def bfi(op: Decoder) -> Run:
    """Bit field insert: a into b."""
    bits = WIDTHS[op.kind]

    def insert(a: Array, b: Array, start: Array, length: Array) -> Array:
        found = []
        rows = zip(a.tolist(), b.tolist(), start.tolist(), length.tolist(), strict=True)
        for value, into, at, size in rows:
            p, n = at & 255, size & 255
            mask = (((1 << n) - 1) << p) & ((1 << bits) - 1) if p < bits else 0
            found.append(into & ~mask | (value << p) & mask)
        return np.array(found, DTYPES[op.kind])

    return computed(op, insert, op.kind, op.kind, U32, U32)


@instruction("prmt")
def prmt(op: Decoder) -> Run:
    """Byte permute."""
    modes = ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
    mode = op.one_of(*modes)

    def permute(a: Array, b: Array, control: Array) -> Array:
        source = np.ascontiguousarray(a).view(np.uint8).reshape(-1, 4)
        both = np.concatenate([source, np.ascontiguousarray(b).view(np.uint8).reshape(-1, 4)], 1)
        steps = np.arange(4)
        if mode:
            low = (control & 3).astype(np.int64)[:, None]
            chosen = {
                "f4e": low + steps,
                "b4e": (low - steps) % 8,
                "rc8": low + 0 * steps,
                "ecl": np.maximum(low, steps),
                "ecr": np.minimum(low, steps),
                "rc16": (low & 1) * 2 + steps % 2,
            }[mode]
            found = np.take_along_axis(both, chosen, 1)
        else:
            nibbles = (control[:, None] >> (4 * steps).astype(np.uint32)) & np.uint32(15)
            found = np.take_along_axis(both, (nibbles & 7).astype(np.int64), 1)
            signs = np.where(found & 0x80, 0xFF, 0).astype(np.uint8)
            found = np.where(nibbles & 8, signs, found)
        return np.ascontiguousarray(found).view(np.uint32).reshape(-1)

    return computed(op, permute, U32, U32, U32, result=U32)


@instruction("lop3")
def lop3(op: Decoder) -> Run:
    """Any function of three bits, by its truth table."""
    if op.has("BoolOp") or len(op.operands) != 5:
        raise op.unknown()
    table = op.immediate(op.operands[4])
    d = op.destination(op.operands[0], U32)
    sources = [op.source(o, U32) for o in op.operands[1:4]]

    def run(warp: Warp, where: Where) -> None:
        rows = warp.rows[U32]
        a, b, c = (rows[s] for s in sources)
        found = np.zeros(32, np.uint32)
        for term in range(8):
            if table >> term & 1:
                found |= (a if term & 4 else ~a) & (b if term & 2 else ~b) & (c if term & 1 else ~c)
        np.copyto(rows[d], found, where=where)

    return run


@instruction("popc")
def popc(op: Decoder) -> Run:
    """Bits that are one."""
    return computed(op, np.bitwise_count, op.kind, result=U32)


def _bit_length(a: Array) -> Array:
    return np.array([int(v).bit_length() for v in a.tolist()])


@instruction("clz")
def clz(op: Decoder) -> Run:
    """Leading zeros."""
    bits = WIDTHS[op.kind]
    return computed(op, lambda a: bits - _bit_length(a), op.kind, result=U32)


@instruction("bfind")
def bfind(op: Decoder) -> Run:
    """The highest bit that differs from the sign; -1 where there is none."""
    bits, as_shift = WIDTHS[op.kind], op.has("shiftamt")

    def find(a: Array) -> Array:
        place = _bit_length(np.where(a < 0, ~a, a)) - 1
        found = np.where(place < 0, -1, bits - 1 - place) if as_shift else place
        return found.astype(np.int64).astype(np.uint32)

    return computed(op, find, op.kind, result=U32)


@instruction("brev")
def brev(op: Decoder) -> Run:
    """Bits in reverse."""
    bits = WIDTHS[op.kind]

    def reverse(a: Array) -> Array:
        return np.array([int(f"{v:0{bits}b}"[::-1], 2) for v in a.tolist()], DTYPES[op.kind])

    return computed(op, reverse, op.kind)


@instruction("bmsk")
def bmsk(op: Decoder) -> Run:
    """A mask of b ones from bit a on."""
    wraps = op.has("wrap")

    def mask(a: Array, b: Array) -> Array:
        start = (a & 31 if wraps else a).astype(np.uint64)
        count = (b & 31 if wraps else np.minimum(b, 32)).astype(np.uint64)
        ones = (np.uint64(1) << count) - np.uint64(1)
        return np.where(start < 32, ones << np.minimum(start, 32), 0).astype(np.uint32)

    return computed(op, mask, U32, U32)


@instruction("szext")
def szext(op: Decoder) -> Run:
    """The low b bits of a, extended by zeros or by their sign."""
    clamps, signed = op.has("clamp"), op.kind == S32

    def extend(a: Array, b: Array) -> Array:
        found = []
        for value, given in zip(a.tolist(), b.tolist(), strict=True):
            count = given & 31
            if clamps and given >= 32:
                found.append(value)
                continue
            low = value & (1 << count) - 1
            negative = signed and count and low >> count - 1
            found.append(low | 0xFFFFFFFF << count & 0xFFFFFFFF if negative else low)
        return np.array(found, np.uint32)

    return computed(op, extend, U32, U32, result=U32)


@instruction("fns")
def fns(op: Decoder) -> Run:
    """The n-th set bit from a base."""

    def find(mask: Array, base: Array, offset: Array) -> Array:
        found = []
        for bits, start, n in zip(mask.tolist(), base.tolist(), offset.tolist(), strict=True):
            if n == 0:
                found.append(start if bits >> start & 1 else 0xFFFFFFFF)
                continue
            step = 1 if n > 0 else -1
            places = [i for i in range(start, 32 if step > 0 else -1, step) if bits >> i & 1]
            found.append(places[abs(n) - 1] if len(places) >= abs(n) else 0xFFFFFFFF)
        return np.array(found, np.uint32)

    return computed(op, find, U32, U32, S32, result=U32)

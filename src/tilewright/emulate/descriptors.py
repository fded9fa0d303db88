"""Descriptors of matrix instructions: where the elements of an operand lie in shared memory, and what is multiplied.

Operands are made of 16-byte pieces: in a K-major one a piece holds neighbouring k of one row, in an MN-major one
neighbouring rows of one k. `element_addresses` is the canonical layout of the PTX ISA written as arithmetic; the
swizzle is applied to the address that results, as the hardware does.

Left out: leading dimensions given as an absolute address (sm_103a), sparse operands, block-scaled kinds.

Source: PTX ISA, "Matrix Descriptor Format" and "Strides" of wgmma, "Shared memory descriptor", "Canonical Layouts"
and "Instruction descriptor" of tcgen05.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tilewright.emulate.faults import Fault, NotEmulated
from tilewright.emulate.swizzle import B32, B64, B128, B128_ATOM_32B, NONE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.emulate.swizzle import Swizzle

_WGMMA_SWIZZLES = {0: NONE, 1: B128, 2: B64, 3: B32}
_TCGEN05_SWIZZLES = {0: NONE, 1: B128_ATOM_32B, 2: B128, 4: B64, 6: B32}


@dataclass(frozen=True, slots=True)
class MatrixDescriptor:
    """A shared-memory operand.

    Attributes:
        start: shared address of the first element, within the CTA's window; the low 18 bits.
        leading_bytes: offset between neighbouring pieces, or groups of them, along the contiguous axis;
            unused by swizzled K-major operands.
        stride_bytes: offset between groups of 8 rows (K-major) or of 8 k (MN-major, swizzled).
        base_offset: lines of 128 bytes by which the swizzle's pattern starts off its alignment.
    """

    start: int
    leading_bytes: int
    stride_bytes: int
    base_offset: int
    swizzle: Swizzle

    def element_addresses(
        self, rows: int, k: int, element_bytes: int, *, k_major: bool = True
    ) -> NDArray[np.int64]:
        """Shared address of each element, within the CTA's window; (rows, k).

        Args:
            rows: of A, or columns of B; a multiple of 8.
        """
        offsets = _canonical(
            self.leading_bytes,
            self.stride_bytes,
            self.swizzle,
            rows,
            k,
            element_bytes,
            k_major=k_major,
        )
        return self.swizzle.apply(offsets + self.start, self.base_offset)


@lru_cache(maxsize=256)
def _canonical(
    leading: int,
    stride: int,
    swizzle: Swizzle,
    rows: int,
    k: int,
    element_bytes: int,
    *,
    k_major: bool,
) -> NDArray[np.int64]:
    """Offsets from the start before swizzling. `stride` of an interleaved MN-major operand lies between pieces."""
    row = np.arange(rows, dtype=np.int64)[:, None]
    column = np.arange(k, dtype=np.int64)[None, :]
    span = swizzle.span_bytes
    if k_major:
        k_bytes = column * element_bytes
        within = k_bytes if swizzle.bits else k_bytes // 16 * leading + k_bytes % 16
        return row % 8 * span + row // 8 * stride + within
    piece, within = row * element_bytes // 16, row * element_bytes % 16
    if not swizzle.bits:
        return within + piece * stride + column % 8 * 16 + column // 8 * leading
    pieces = span // 16
    group = 4 if swizzle is B128_ATOM_32B else 8  # k that share one pattern
    return (
        within
        + piece % pieces * 16
        + piece // pieces * leading
        + column % group * span
        + column // group * stride
    )


def decode_wgmma_matrix(bits: int) -> MatrixDescriptor:
    """The 64-bit descriptor of wgmma (sm_90a)."""
    return MatrixDescriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        bits >> 49 & 7,
        _WGMMA_SWIZZLES[bits >> 62 & 3],
    )


def decode_tcgen05_matrix(bits: int) -> MatrixDescriptor:
    """The 64-bit descriptor of tcgen05 (sm_100a).

    Raises:
        Fault: a fixed field has another value, or the swizzle is none.
        NotEmulated: the leading dimension is an absolute address.
    """
    if bits >> 46 & 7 != 1:
        _undefined("TC-20", "matrix", bits, 64, "bits 46 to 48", bits >> 46 & 7, "0b001")
    if bits >> 53 & 0xFF:
        _undefined("TC-20", "matrix", bits, 64, "bits 53 to 60", bits >> 53 & 0xFF, "0")
    mode = bits >> 61 & 7
    if mode not in _TCGEN05_SWIZZLES:
        _undefined("TC-20", "matrix", bits, 64, "swizzle (bits 61 to 63)", mode, "0, 1, 2, 4 or 6")
    if bits >> 52 & 1:
        raise NotEmulated("a leading dimension as an absolute address (sm_103a)")
    return MatrixDescriptor(
        (bits & 0x3FFF) << 4,
        (bits >> 16 & 0x3FFF) << 4,
        (bits >> 32 & 0x3FFF) << 4,
        bits >> 49 & 7,
        _TCGEN05_SWIZZLES[mode],
    )


@dataclass(frozen=True, slots=True)
class InstructionDescriptor:
    """What one tcgen05.mma multiplies.

    Attributes:
        kind: "f16", "tf32", "f8f6f4" or "i8".
        m, n, k: of the whole instruction: with a pair of CTAs m spans both.
        a, b, d: element types.
        saturate: of kind i8: sums are clamped instead of wrapped.
    """

    kind: str
    m: int
    n: int
    k: int
    a: str
    b: str
    d: str
    negate_a: bool
    negate_b: bool
    a_mn_major: bool
    b_mn_major: bool
    saturate: bool


_F8F6F4 = {0: "e4m3", 1: "e5m2", 3: "e2m3", 4: "e3m2", 5: "e2m1"}
_INPUTS = {
    "f16": {0: "f16", 1: "bf16"},
    "tf32": {2: "tf32"},
    "f8f6f4": _F8F6F4,
    "i8": {0: "u8", 1: "s8"},
}
_OUTPUTS = {
    "f16": {0: "f16", 1: "f32"},
    "tf32": {1: "f32"},
    "f8f6f4": {0: "f16", 1: "f32"},
    "i8": {2: "s32"},
}
K_OF_KIND = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
"""Dense k of an instruction. Source: PTX ISA, "Various combinations of .kind and shapes"."""


def decode_instruction(bits: int, kind: str, cta_group: int) -> InstructionDescriptor:
    """The 32-bit instruction descriptor of tcgen05.mma without .ws.

    Raises:
        Fault: a reserved or unknown value, or a shape that the kind and the group do not have.
        NotEmulated: a block-scaled kind, or sparsity.
    """
    if kind not in K_OF_KIND:
        raise NotEmulated(f"tcgen05.mma.kind::{kind}")
    if bits >> 2 & 1:
        raise NotEmulated("sparse tcgen05.mma")
    _check_reserved(bits, kind)
    d = _field(bits, 4, 2, _OUTPUTS[kind], "type of D")
    a = _field(bits, 7, 3, _INPUTS[kind], "type of A")
    b = _field(bits, 10, 3, _INPUTS[kind], "type of B")
    found = InstructionDescriptor(
        kind,
        m=(bits >> 24 & 0x1F) << 4,
        n=(bits >> 17 & 0x3F) << 3,
        k=K_OF_KIND[kind],
        a=a,
        b=b,
        d=d,
        negate_a=bool(bits >> 13 & 1),
        negate_b=bool(bits >> 14 & 1),
        a_mn_major=bool(bits >> 15 & 1),
        b_mn_major=bool(bits >> 16 & 1),
        saturate=bool(bits >> 3 & 1),
    )
    _check_shape(found, cta_group, bits)
    return found


def _check_reserved(bits: int, kind: str) -> None:
    for name, first, width in (("6", 6, 1), ("23", 23, 1), ("29", 29, 1), ("30 to 31", 30, 2)):
        value = bits >> first & (1 << width) - 1
        if value:
            what = "shift of .ws (bits 30 to 31)" if first == 30 else f"bit {name}"
            _undefined("TC-16", "instruction", bits, 32, what, value, "0")
    if bits & 3:
        _undefined("TC-16", "instruction", bits, 32, "sparsity selector", bits & 3, "0 where dense")
    if kind != "i8" and bits >> 3 & 1:
        _undefined("TC-16", "instruction", bits, 32, "saturation (bit 3)", 1, f"0 for kind::{kind}")
    if kind == "i8" and bits >> 13 & 3:
        _undefined(
            "TC-16",
            "instruction",
            bits,
            32,
            "negation (bits 13 to 14)",
            bits >> 13 & 3,
            "0 for kind::i8",
        )


def _field(bits: int, first: int, width: int, names: dict[int, str], what: str) -> str:
    value = bits >> first & (1 << width) - 1
    if value not in names:
        allowed = ", ".join(f"{number} ({name})" for number, name in names.items())
        where = f"{what} (bits {first} to {first + width - 1})"
        _undefined("TC-16", "instruction", bits, 32, where, value, allowed)
    return names[value]


def _check_shape(found: InstructionDescriptor, cta_group: int, bits: int) -> None:
    """Shapes of the dense kinds. Source: PTX ISA, tables 39 and 50."""
    where = f"kind::{found.kind} with cta_group::{cta_group}"
    rows = {1: (64, 128), 2: (128, 256)}[cta_group]
    if found.m not in rows:
        _undefined(
            "TC-16", "instruction", bits, 32, "M", found.m, f"{rows[0]} or {rows[1]} for {where}"
        )
    step = 8 * cta_group
    columns = list(range(step, 257, step))
    if found.kind == "i8":
        columns = [8, 16, 24, *range(32, 257, 16)] if cta_group == 1 else list(range(32, 257, 32))
    elif found.kind == "f8f6f4" and found.b_mn_major:
        step *= 2
        columns = list(range(step, 257, step))
    if found.n not in columns:
        steps = f"{columns[0]} to 256 in steps of {step}"
        if found.kind == "i8":
            steps = (
                "8, 16, 24, 32 to 256 in steps of 16"
                if cta_group == 1
                else "32 to 256 in steps of 32"
            )
        _undefined("TC-16", "instruction", bits, 32, "N", found.n, f"{steps} for {where}")


def _undefined(
    rule: str, which: str, bits: int, width: int, what: str, value: int, allowed: str
) -> NoReturn:
    raise Fault(
        rule,
        f"{which} descriptor {bits:#0{width // 4 + 2}x}: {what} = {value}; allowed: {allowed}",
        given=value,
        allowed=allowed,
    )

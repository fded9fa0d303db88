"""mma.sync of one warp, and the instructions that move 8x8 matrices between registers and shared memory.

Here: m16n8 shapes with f16, bf16, tf32, e4m3, e5m2, s8 and u8 operands; ldmatrix, stmatrix and movmatrix of 8x8
matrices of 16 bits, and the m16n16 and m16n8 forms of 8 bits. Left out: m8n8k4 (Volta), f64, s4, b1, sparse and
block-scaled products, and loads that decompress 4 and 6 bits.

Source: PTX ISA, "mma", "ldmatrix", "stmatrix", "movmatrix"; layouts of the 8-bit forms: CUTLASS, copy_traits_sm100.hpp
(SM100_U8x8_LDSM_T, SM100_U8x4_STSM_T), for the manual has figures only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.fragments import (
    INTEGERS,
    a_matrix,
    accumulators,
    b_matrix,
    element_bits,
    from_accumulators,
    packed,
    product,
    unpacked,
    values,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SHAPE = re.compile(r"m(\d+)n(\d+)k(\d+)$")
_FLOAT_SHAPES = {
    "f16": (8, 16),
    "bf16": (8, 16),
    "tf32": (4, 8),
    "e4m3": (16, 32),
    "e5m2": (16, 32),
}
_INTEGER_SHAPES = (16, 32)


@dataclass(frozen=True, slots=True)
class Mma:
    """One form of mma.sync: D[16, 8] = A[16, k] B[8, k]^T + C[16, 8].

    Attributes:
        a, b, c, d: element types.
        saturate: integer sums are clamped instead of wrapped.
    """

    k: int
    a: str
    b: str
    c: str
    d: str
    saturate: bool

    def multiply(
        self, a: NDArray[np.uint32], b: NDArray[np.uint32], c: NDArray[np.uint32]
    ) -> NDArray[np.uint32]:
        """D's registers from A's, B's and C's; (registers, 32) each."""
        left = values(a_matrix(a, element_bits(self.a)), self.a)
        right = values(b_matrix(b, element_bits(self.b)), self.b)
        sums = product(left, right) + accumulators(c, 8, self.c)
        return from_accumulators(sums, self.d, 32, saturate=self.saturate)


def mma_form(modifiers: tuple[str, ...]) -> Mma:
    """What `mma` with these modifiers multiplies.

    Args:
        modifiers: of the opcode, without dots: ("sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", ...).
    Raises:
        NotEmulated
    """
    whole = ".".join(("mma", *modifiers))
    shape = next((found for found in map(_SHAPE.match, modifiers) if found), None)
    types = [name for name in modifiers if re.fullmatch(r"(f|bf|tf|s|u|b)\d+|e\dm\d", name)]
    strange = {"block_scale", "sp", "sp::ordered_metadata", "xor", "and"} & set(modifiers)
    if shape is None or len(types) != 4 or strange or "col" not in modifiers:
        raise NotEmulated(whole)
    m, n, k = map(int, shape.groups())
    d, a, b, c = types
    known = _INTEGER_SHAPES if {a, b} <= set(INTEGERS) else _FLOAT_SHAPES.get(a, ())
    if (m, n) != (16, 8) or k not in known or element_bits(a) != element_bits(b):
        raise NotEmulated(whole)
    return Mma(k, a, b, c, d, "satfinite" in modifiers)


def load_rows(rows: NDArray[np.uint8], *, transposed: bool = False) -> NDArray[np.uint32]:
    """What ldmatrix of 8x8 matrices of 16 bits puts into registers.

    Args:
        rows: 16 bytes for each address, 8 addresses a matrix; (8 matrices, 16).
    Returns:
        (matrices, 32).
    """
    matrices = np.ascontiguousarray(rows).view(np.uint16).reshape(-1, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    return np.ascontiguousarray(matrices).view(np.uint32).reshape(-1, 32)


def store_rows(registers: NDArray[np.uint32], *, transposed: bool = False) -> NDArray[np.uint8]:
    """The bytes that stmatrix of 8x8 matrices of 16 bits writes at each address; (8 matrices, 16)."""
    matrices = np.ascontiguousarray(registers).view(np.uint16).reshape(-1, 8, 8)
    if transposed:
        matrices = matrices.swapaxes(1, 2)
    return np.ascontiguousarray(matrices).view(np.uint8).reshape(-1, 16)


def transpose_matrix(registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """movmatrix: an 8x8 matrix of 16 bits in one register of a warp, transposed; (32,)."""
    turned: NDArray[np.uint32] = load_rows(store_rows(registers[None, :]), transposed=True)[0]
    return turned


def load_bytes_transposed(rows: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """What ldmatrix.m16n16.trans.b8 puts into registers, two a matrix; an address names a column.

    Lane l has columns 4 (l % 4) to 4 (l % 4) + 3 of rows l / 4 and l / 4 + 8; its first register the first two
    columns, of the first row and then of the second.

    Args:
        rows: 16 bytes for each of 16 addresses a matrix; (16 matrices, 16).
    Returns:
        (2 matrices, 32).
    """
    matrices = rows.reshape(-1, 16, 16)
    register, lane, byte = np.ogrid[:2, :32, :4]
    columns = 4 * (lane % 4) + 2 * register + byte % 2
    return packed(matrices[:, columns, lane // 4 + 8 * (byte // 2)], 8).reshape(-1, 32)


def store_bytes_transposed(registers: NDArray[np.uint32]) -> NDArray[np.uint8]:
    """The bytes that stmatrix.m16n8.trans.b8 writes at each address, which names a column of 16 rows.

    Lane l has columns 2 (l % 4) and the next of row l / 4 in its low half, of row l / 4 + 8 in its high one.

    Returns:
        (8 matrices, 16).
    """
    lane, byte = np.ogrid[:32, :4]
    stored = np.zeros((len(registers), 8, 16), np.uint8)
    stored[:, 2 * (lane % 4) + byte % 2, lane // 4 + 8 * (byte // 2)] = unpacked(registers, 8)
    return stored.reshape(-1, 16)

"""tcgen05.mma: which CTA's shared memory holds which part of A and B, where D lies, and the product.

With a pair of CTAs the even one holds the upper half of A's rows and of B's columns, the odd one the lower half; the
two descriptors are applied in both. D, in cells of the two tensor memories:

    cta_group::1, M = 128    lane = row                                          layout D
    cta_group::1, M = 64     lane = row % 16 + 32 (row / 16)                     layout F
    cta_group::2, M = 256    CTA = row / 128, lane = row % 128                   layout A
    cta_group::2, M = 128    CTA = row / 64, lane = row % 64 + 64 (column / (N / 2)),
                             column % (N / 2)                                    layout B

Elements of 4 and 6 bits lie in shared memory 16 to a piece of 16 bytes, packed at its start (PTX ISA, `.b4x16_p64` and
`.b6x16_p32`): where a piece lies is what it is for bytes.

Left out: `.ws`, sparse and block-scaled products, `.ashift`, elements below a byte in tensor memory, A of a pair with
M = 128 there. The collector's hints change nothing.

Never compared with a B200. Source: PTX ISA, "Data Path Layout Organization" (figures) and CUTLASS,
mma_traits_sm100_frag.hpp, whose layouts are the arithmetic above; sums as in fragments.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.fragments import (
    accumulator_bits,
    accumulator_values,
    element_bits,
    product,
    unpacked,
    values,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.emulate.descriptors import InstructionDescriptor, MatrixDescriptor


class Accumulator(NamedTuple):
    """Where D lies, relative to its address; all broadcast to (m, n).

    Attributes:
        ctas: 0 for the CTA of even rank, or the only one; 1 for the odd one.
    """

    ctas: NDArray[np.int64]
    lanes: NDArray[np.int64]
    columns: NDArray[np.int64]


def accumulator(m: int, n: int, cta_group: int) -> Accumulator:
    """The cells of D."""
    row, column = np.ogrid[:m, :n]
    if cta_group == 1:
        lanes = row if m == 128 else row % 16 + 32 * (row // 16)
        return Accumulator(np.zeros((1, 1), np.int64), lanes, column)
    if m == 256:
        return Accumulator(row // 128, row % 128, column)
    half = n // 2
    return Accumulator(row // 64, row % 64 + 64 * (column // half), column % half)


def accumulator_columns(m: int, n: int, cta_group: int) -> int:
    """Columns of each tensor memory that D spans."""
    return n // 2 if cta_group == 2 and m == 128 else n


PACKED_BITS = {"e2m1": 4, "e2m3": 6, "e3m2": 6}
"""Of element types below a byte."""
_PIECE = 16


def shared_bytes(name: str) -> int:
    """Bytes of shared memory that an element stands for."""
    return 1 if name in PACKED_BITS else element_bits(name) // 8


def shared_elements(data: NDArray[Any], name: str, *, mn_major: bool) -> NDArray[np.uint32]:
    """Elements' bits from what lies at `a_addresses` or `b_addresses`; (rows, k) both."""
    if name not in PACKED_BITS:
        return np.asarray(data, np.uint32)
    bits = PACKED_BITS[name]
    lines = data.T if mn_major else data
    pieces = lines.astype(np.uint8).reshape(len(lines), -1, _PIECE)
    ones = np.unpackbits(pieces[..., : _PIECE * bits // 8], axis=-1, bitorder="little")
    found = ones.reshape(len(lines), -1, bits) @ (1 << np.arange(bits, dtype=np.uint32))
    return np.asarray(found.T if mn_major else found, np.uint32)


def a_addresses(
    instruction: InstructionDescriptor, at: MatrixDescriptor, cta_group: int
) -> NDArray[np.int64]:
    """Shared addresses of one CTA's rows of A; (m of the CTA, k)."""
    return at.element_addresses(
        instruction.m // cta_group,
        instruction.k,
        shared_bytes(instruction.a),
        k_major=not instruction.a_mn_major,
    )


def b_addresses(
    instruction: InstructionDescriptor, at: MatrixDescriptor, cta_group: int
) -> NDArray[np.int64]:
    """Shared addresses of one CTA's columns of B; (n of the CTA, k)."""
    return at.element_addresses(
        instruction.n // cta_group,
        instruction.k,
        shared_bytes(instruction.b),
        k_major=not instruction.b_mn_major,
    )


def a_in_tensor_memory(
    instruction: InstructionDescriptor, cta_group: int
) -> tuple[NDArray[np.int64], int]:
    """Lanes of one CTA's rows of A, relative to its address, and how many columns they span.

    Elements are packed, the first in the low bits.

    Raises:
        NotEmulated
    """
    if cta_group == 2 and instruction.m == 128:
        raise NotEmulated("tcgen05.mma.cta_group::2 of M = 128 with A in tensor memory")
    rows = np.arange(instruction.m // cta_group)
    lanes = rows if instruction.m >= 128 else rows % 16 + 32 * (rows // 16)
    return lanes, instruction.k * element_bits(instruction.a) // 32


def a_from_cells(
    instruction: InstructionDescriptor, cells: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """A's elements from the cells that hold them; (rows, columns) -> (rows, k)."""
    return unpacked(cells, element_bits(instruction.a)).reshape(len(cells), -1)


def multiply(
    instruction: InstructionDescriptor,
    a: NDArray[np.uint32],
    b: NDArray[np.uint32],
    d: NDArray[np.uint32] | None,
    *,
    scale_d: int = 0,
) -> NDArray[np.uint32]:
    """D's cells after the product; (m, n).

    Args:
        a, b: elements' bits; (m, k) and (n, k), of both CTAs.
        d: D's cells before, None where `enable-input-d` is false.
        scale_d: D counts 2^-scale_d times.
    """
    sums = product(values(a, instruction.a), values(b, instruction.b))
    if instruction.negate_a != instruction.negate_b:
        sums = -sums
    if d is not None:
        sums = sums + np.ldexp(accumulator_values(d, instruction.d), -scale_d)
    return accumulator_bits(sums, instruction.d, saturate=instruction.saturate)

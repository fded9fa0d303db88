"""wgmma.mma_async of one warpgroup: its forms, and the product from operands that lie in shared memory or registers.

Here: f16, bf16, tf32, e4m3, e5m2, s8 and u8. Left out: b1, sparse products.

The result is that of float64 sums rounded once (fragments.py). On an H200 GEMMs of the emitted kernels agree with
float64 within the bound of tests/data/h200/gemm_checks.json.

Source: PTX ISA, "wgmma.mma_async" and "Register Fragments and Shared Memory Matrix Layouts".
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tilewright.emulate.descriptors import decode_wgmma_matrix
from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.fragments import (
    a_matrix,
    accumulators,
    element_bits,
    from_accumulators,
    product,
    values,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tilewright.emulate.descriptors import MatrixDescriptor

ROWS = 64
"""Of A, in every form."""

_SHAPE = re.compile(r"m64n(\d+)k(\d+)$")
_K_BYTES = 32


@dataclass(frozen=True, slots=True)
class Wgmma:
    """One form: D[64, n] = A[64, k] B[n, k]^T + D.

    Attributes:
        a, b, d: element types.
        saturate: integer sums are clamped instead of wrapped.
    """

    n: int
    k: int
    a: str
    b: str
    d: str
    saturate: bool = False

    @property
    def element_bytes(self) -> int:
        """Bytes of an element of A and of B."""
        return element_bits(self.a) // 8

    def a_addresses(self, descriptor: int, *, transposed: bool = False) -> NDArray[np.int64]:
        """Where A's elements lie in the CTA's window of shared memory; (64, k)."""
        return self._addresses(decode_wgmma_matrix(descriptor), ROWS, transposed=transposed)

    def b_addresses(self, descriptor: int, *, transposed: bool = False) -> NDArray[np.int64]:
        """Where B's elements lie, by column; (n, k)."""
        return self._addresses(decode_wgmma_matrix(descriptor), self.n, transposed=transposed)

    def _addresses(self, at: MatrixDescriptor, rows: int, *, transposed: bool) -> NDArray[np.int64]:
        return at.element_addresses(rows, self.k, self.element_bytes, k_major=not transposed)

    def a_from_registers(self, registers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """A's elements from four registers of each thread; (4, 128) -> (64, k)."""
        return a_matrix(registers, element_bits(self.a))

    def multiply(
        self,
        a: NDArray[np.uint32],
        b: NDArray[np.uint32],
        d: NDArray[np.uint32] | None,
        *,
        negate_a: bool = False,
        negate_b: bool = False,
    ) -> NDArray[np.uint32]:
        """D's registers after the product.

        Args:
            a, b: elements' bits; (64, k), or the 16 rows of one warp, and (n, k).
            d: D's registers before, None where `scale-d` is false; (registers, 128 or 32).
            negate_a, negate_b: `imm-scale-a`, `imm-scale-b` is -1.
        """
        sums = product(values(a, self.a), values(b, self.b))
        if negate_a != negate_b:
            sums = -sums
        if d is not None:
            sums = sums + accumulators(d, self.n, self.d)
        return from_accumulators(sums, self.d, 2 * len(a), saturate=self.saturate)


def wgmma_form(modifiers: tuple[str, ...]) -> Wgmma:
    """What `wgmma.mma_async` with these modifiers multiplies.

    Args:
        modifiers: ("mma_async", "sync", "aligned", "m64n128k16", "f32", "bf16", "bf16").
    Raises:
        NotEmulated
    """
    whole = ".".join(("wgmma", *modifiers))
    shape = next((found for found in map(_SHAPE.match, modifiers) if found), None)
    types = [name for name in modifiers if re.fullmatch(r"(f|bf|tf|s|u|b)\d+|e\dm\d", name)]
    if shape is None or len(types) != 3 or "sp" in modifiers:
        raise NotEmulated(whole)
    d, a, b = types
    n, k = map(int, shape.groups())
    bits = element_bits(a)
    if k * bits != 8 * _K_BYTES or element_bits(b) != bits:
        raise NotEmulated(whole)
    return Wgmma(n, k, a, b, d, "satfinite" in modifiers)

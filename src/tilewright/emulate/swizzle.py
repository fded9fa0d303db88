"""Swizzles of shared memory: bits of an address that are XORed with bits above them.

A swizzle is a function of the address itself, not of where a tile begins: that is why tiles are aligned to
`Swizzle.repeat_bytes`. TMA, wgmma and tcgen05 use the same ones.

Left out: 128 bytes in units of 32 with neighbouring 8 bytes flipped, and 96 bytes (sm_103a).

Source: PTX ISA, "Swizzling Modes" (tables of the patterns) and "Canonical Layouts" (Swizzle<bits, base, shift>).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from numpy.typing import NDArray

Addresses = TypeVar("Addresses", int, "NDArray[Any]")


@dataclass(frozen=True, slots=True)
class Swizzle:
    """Bits [base, base + bits) of an address are XORed with bits [base + shift, base + shift + bits).

    Attributes:
        span_bytes: within which bytes move; one line of the pattern. 16 where nothing moves.
    """

    name: str
    bits: int
    base: int
    shift: int
    span_bytes: int

    @property
    def repeat_bytes(self) -> int:
        """After how many bytes the pattern repeats; tiles begin at multiples of it."""
        return 1 << self.base + self.shift + self.bits if self.bits else 16

    def apply(self, addresses: Addresses, base_offset: int = 0) -> Addresses:
        """Where the bytes at `addresses` lie.

        Args:
            base_offset: lines of 128 bytes between a multiple of `repeat_bytes` and the start of the pattern.
        """
        mask = ((1 << self.bits) - 1) << self.base
        moved: Addresses = addresses ^ (addresses - (base_offset << 7) >> self.shift & mask)
        return moved


NONE = Swizzle("none", 0, 4, 3, 16)
B32 = Swizzle("32B", 1, 4, 3, 32)
B64 = Swizzle("64B", 2, 4, 3, 64)
B128 = Swizzle("128B", 3, 4, 3, 128)
B128_ATOM_32B = Swizzle("128B_atom_32B", 2, 5, 2, 128)
B128_ATOM_64B = Swizzle("128B_atom_64B", 1, 6, 1, 128)

SWIZZLES = {mode.name: mode for mode in (NONE, B32, B64, B128, B128_ATOM_32B, B128_ATOM_64B)}

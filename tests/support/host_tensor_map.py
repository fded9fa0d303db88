"""Tensor maps as the host code of CuTe DSL packs them: read into the emulator's own.

NVIDIA publishes no layout of the 128 bytes of a CUtensorMap. What is read here is what the compiled host code of
nvidia-cutlass-dsl 4.8 writes for maps that are known: addresses, strides, extents and boxes in plain view, the rank,
element type and swizzle as `tensormap.replace` numbers them. A map read wrongly gives a wrong product or a hang.
"""

from __future__ import annotations

import struct

from tilewright.emulate.tensor_map import TensorMap

ELEMENT_TYPES = {10: "bf16"}
SWIZZLES = ("none", "32B", "64B", "128B")


def read_host_map(encoded: bytes, address: int) -> TensorMap:
    """The map that 128 bytes of the host say, of a tensor at `address` instead of the host's own."""
    (facts,) = struct.unpack_from("<I", encoded, 8)
    rank = (facts >> 4 & 7) + 1
    return TensorMap(
        ELEMENT_TYPES[facts >> 7 & 15],
        address,
        tuple(extent + 1 for extent in struct.unpack_from(f"<{rank}I", encoded, 32)),
        tuple(16 * units for units in struct.unpack_from(f"<{rank - 1}I", encoded, 12)),
        tuple(size + 1 for size in struct.unpack_from(f"<{rank}B", encoded, 55)),
        swizzle=SWIZZLES[facts >> 13 & 3],
    ).check()


def address_in(encoded: bytes) -> int:
    """The address that the host packed."""
    return int.from_bytes(encoded[:8], "little")

"""`tensormap.replace`: a tensor map made or changed field by field, in the encoding of `tensor_map`.

Source: PTX ISA, "tensormap.replace".
"""

from __future__ import annotations

import struct

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.tensor_map import MAGIC, NAMES

_REPLACED_TYPES = (
    "u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f32_ftz", "f64", "bf16", "tf32", "tf32_ftz",
)  # fmt: skip
"""Element types as `tensormap.replace` numbers them, which is not as the driver does."""

# Where a field lies in the 128 bytes, and its format; of each dimension for the last four.
_FIELDS = {
    "rank": (8, "<B"),
    "elemtype": (9, "<B"),
    "swizzle": (10, "<B"),
    "fill_mode": (11, "<B"),
    "interleave_layout": (12, "<B"),
    "global_address": (16, "<Q"),
    "global_dim": (24, "<I"),
    "global_stride": (44, "<Q"),
    "box_dim": (76, "<H"),
    "element_stride": (86, "<B"),
}


def replace_field(encoded: bytes, field: str, value: int, ordinal: int = 0) -> bytes:
    """128 bytes after `tensormap.replace`; zeros become a map field by field.

    Args:
        field: the instruction's word: "global_address", "rank", "box_dim", …
        value: as the instruction gives it: the rank less one, numbers of PTX for the enumerations.
        ordinal: the dimension.
    Raises:
        NotEmulated: a field or value that is not known here.
    """
    changed = bytearray(encoded)
    changed[: len(MAGIC)] = MAGIC
    if field == "rank":
        value += 1
    elif field == "global_dim":
        value -= 1
    elif field == "elemtype" and value < len(_REPLACED_TYPES):
        value = NAMES.index(_REPLACED_TYPES[value])
    elif field in {"swizzle_mode", "swizzle_atomicity"}:
        value = _replaced_swizzle(changed[_FIELDS["swizzle"][0]], field, value)
        field = "swizzle"
    if field not in _FIELDS:
        raise NotEmulated(f"tensormap.replace of {field}")
    offset, form = _FIELDS[field]
    size = struct.calcsize(form)
    struct.pack_into(form, changed, offset + ordinal * size, value & (1 << 8 * size) - 1)
    return bytes(changed)


def _replaced_swizzle(before: int, field: str, value: int) -> int:
    """The swizzle's number after one of its two fields is replaced; only 128 bytes have other units than 16."""
    if field == "swizzle_mode":
        if value == 4:
            raise NotEmulated("a swizzle of 96 bytes")
        return before if value == 3 and before > 3 else value
    if value == 2:
        raise NotEmulated("a swizzle of 32-byte units with 8 bytes flipped")
    return {0: min(before, 3), 1: 4, 3: 5}.get(value, value)

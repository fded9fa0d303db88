"""Register kinds: how a PTX type is held in numpy, 32 lanes wide.

Every register of a width lies in one array of rows (a bank), and each row is seen through the types of that
width, so that `.b32`, `.s32` and `.f32` are one memory. `.b8` lies in 16 bits, `.b128` in two of 64, a
predicate in a bool. `.bf16`, `.f16x2` and other packed types are bits: the instruction converts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LANES = 32
Array: TypeAlias = "NDArray[Any]"
Where: TypeAlias = "bool | NDArray[np.bool_]"
"""The lanes that an instruction acts on, as numpy's `where=` takes them: True is all 32."""

PRED, U16, S16, F16, U32, S32, F32, U64, S64, F64, B128 = range(11)

DTYPES: tuple[Any, ...] = (
    np.bool_,
    np.uint16,
    np.int16,
    np.float16,
    np.uint32,
    np.int32,
    np.float32,
    np.uint64,
    np.int64,
    np.float64,
    np.uint64,
)
WIDTHS = (1, 16, 16, 16, 32, 32, 32, 64, 64, 64, 128)
"""Bits of a register, by kind."""

UNSIGNED = {1: PRED, 16: U16, 32: U32, 64: U64, 128: B128}
"""The kind that is plain bits, by width."""

KIND_OF_TYPE = {
    "pred": PRED,
    "b8": U16,
    "u8": U16,
    "s8": S16,
    "b16": U16,
    "u16": U16,
    "s16": S16,
    "f16": F16,
    "bf16": U16,
    "e4m3x2": U16,
    "e5m2x2": U16,
    "b32": U32,
    "u32": U32,
    "s32": S32,
    "f32": F32,
    "tf32": F32,
    "f16x2": U32,
    "bf16x2": U32,
    "u16x2": U32,
    "s16x2": U32,
    "b64": U64,
    "u64": U64,
    "s64": S64,
    "f64": F64,
    "f32x2": U64,
    "b128": B128,
}
BYTES_OF_TYPE = {
    name: 1 if name in {"b8", "u8", "s8"} else WIDTHS[kind] // 8
    for name, kind in KIND_OF_TYPE.items()
    if kind != PRED
}

_VIEWS = {1: (PRED,), 16: (U16, S16, F16), 32: (U32, S32, F32), 64: (U64, S64, F64), 128: (B128,)}


def new_bank(width: int, rows: int) -> Array:
    """Zeroed registers of one width."""
    shape = (rows, LANES, 2) if width == 128 else (rows, LANES)
    return np.zeros(shape, DTYPES[UNSIGNED[width]])


def rows_by_kind(banks: dict[int, Array]) -> list[list[Array]]:
    """For each kind the rows of its bank as that type."""
    found: list[list[Array]] = [[] for _ in DTYPES]
    for width, bank in banks.items():
        for kind in _VIEWS[width]:
            found[kind] = list(bank.view(DTYPES[kind]))
    return found

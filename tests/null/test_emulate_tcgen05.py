"""tcgen05.mma as the Blackwell kernel issues it, on operands that TMA has laid out, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.emulate.descriptors import decode_instruction, decode_tcgen05_matrix
from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.numbers import decode, encode
from tilewright.emulate.tcgen05 import (
    a_addresses,
    a_from_cells,
    a_in_tensor_memory,
    accumulator,
    accumulator_columns,
    b_addresses,
    multiply,
    shared_elements,
)
from tilewright.emulate.tensor_map import TensorMap
from tilewright.emulate.tmem import load, new_cells

CODES = {"f16": 0, "bf16": 1, "tf32": 2, "e4m3": 0, "e5m2": 1}
KINDS = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4"}


def kernel_descriptor(address: int) -> int:
    """tcgen05.cuh, tcgen05_descriptor; CUTLASS makes the same word (tests/toolkit/test_gemm_sm100.py)."""
    return (address & 0x3FFFF) >> 4 | 1 << 16 | (1024 >> 4) << 32 | 1 << 46 | 2 << 61


def kernel_instruction(name: str, m: int, n: int) -> int:
    """tcgen05.cuh, tcgen05_instruction."""
    return 1 << 4 | CODES[name] << 7 | CODES[name] << 10 | n // 8 << 17 | m // 16 << 24


def brought_by_tma(matrix: Any, at: int) -> Any:
    names = {1: "u8", 2: "bf16", 4: "f32"}
    shared = np.zeros((1 << 17) // matrix.itemsize, matrix.dtype)
    tensor_map = TensorMap.of(matrix, 0, matrix.shape, dtype=names[matrix.itemsize], swizzle="128B")
    moved = tensor_map.transfer([0, 0], at)
    shared[moved.in_shared // matrix.itemsize] = tensor_map.load(matrix.ravel(), moved)
    return shared


def small(rng: np.random.Generator, shape: tuple[int, int], name: str) -> Any:
    return encode(rng.integers(-6, 7, shape).astype(np.float32) / 4, name)


@pytest.mark.parametrize(
    ("name", "m", "n", "group"),
    [
        ("bf16", 128, 128, 1),
        ("f16", 64, 48, 1),
        ("e4m3", 128, 256, 1),
        ("tf32", 128, 16, 1),
        ("bf16", 256, 256, 2),
        ("e5m2", 256, 64, 2),
        ("bf16", 128, 64, 2),
    ],
)
def test_a_stage_of_the_kernel(name: str, m: int, n: int, group: int) -> None:
    rng = np.random.default_rng(12)
    form = decode_instruction(kernel_instruction(name, m, n), KINDS[name], group)
    a, b = small(rng, (m, 4 * form.k), name), small(rng, (n, 4 * form.k), name)
    # gemm_sm100.cu: each CTA loads its rows of A and its half of B's to the same offsets.
    tiles = [
        (brought_by_tma(rows, 0x1000), brought_by_tma(columns, 0x9000))
        for rows, columns in zip(np.split(a, group), np.split(b, group), strict=True)
    ]
    cells = np.stack([new_cells() for _ in range(group)])
    at = accumulator(m, n, group)
    d_column = 32
    place = (at.ctas, at.lanes, at.columns + d_column)
    for part in range(4):
        a_at = decode_tcgen05_matrix(kernel_descriptor(0x1000) + 2 * part)
        b_at = decode_tcgen05_matrix(kernel_descriptor(0x9000) + 2 * part)
        wheres = a_addresses(form, a_at, group), b_addresses(form, b_at, group)
        left = np.concatenate([tile[0][wheres[0] // a.itemsize] for tile in tiles])
        right = np.concatenate([tile[1][wheres[1] // a.itemsize] for tile in tiles])
        before = cells[place] if part else None
        cells[place] = multiply(form, left, right, before)
    expected = decode(a, name) @ decode(b, name).T
    np.testing.assert_array_equal(epilogue(cells, m, n, group, d_column), expected)
    used = accumulator_columns(m, n, group)
    assert (cells[:, :, :d_column] == new_cells()[0, 0]).all()
    assert (cells[:, :, d_column + used :] == new_cells()[0, 0]).all()


@pytest.mark.parametrize("mn_major", [False, True])
@pytest.mark.parametrize(("name", "bits"), [("e2m1", 4), ("e2m3", 6), ("e3m2", 6)])
def test_elements_below_a_byte(name: str, bits: int, *, mn_major: bool) -> None:
    """16 elements at the start of 16 bytes (PTX ISA, "Sub-byte types": .b4x16_p64 and .b6x16_p32), then 128-byte rows."""
    rng = np.random.default_rng(4)
    codes = {"e2m3": 3, "e3m2": 4, "e2m1": 5}
    word = kernel_instruction("e4m3", 128, 128) | codes[name] << 7 | codes[name] << 10
    form = decode_instruction(word | mn_major << 15, "f8f6f4", 1)
    a = rng.integers(0, 1 << bits, (128, form.k))
    along = a.T if mn_major else a
    shared = np.full(1 << 16, 0xFF, np.uint8)
    for line, values in enumerate(along):
        for piece, first in enumerate(range(0, along.shape[1], 16)):
            number = sum(
                int(value) << bits * i for i, value in enumerate(values[first : first + 16])
            )
            at = 128 * line + 16 * (piece ^ line % 8)  # the 128-byte swizzle
            shared[at : at + 2 * bits] = np.frombuffer(
                number.to_bytes(2 * bits, "little"), np.uint8
            )
    where = a_addresses(form, decode_tcgen05_matrix(kernel_descriptor(0)), 1)
    found = shared_elements(shared[where], name, mn_major=mn_major)
    np.testing.assert_array_equal(found, a)


def epilogue(cells: Any, m: int, n: int, group: int, column: int) -> Any:
    """D as the warps of the epilogue read it: a lane's row by tcgen05.ld.32x32b (gemm_sm100.cu, drain)."""
    found = np.zeros((m, n), np.float32)
    rows = m // group
    wide = accumulator_columns(m, n, group)
    for cta in range(group):
        for warp in range(4):
            lanes = load(cells[cta], 32 * warp << 16 | column, "32x32b", wide).view(np.float32)
            if m == 64:  # each warp has 16 rows, in the lower half of its lanes
                found[16 * warp : 16 * warp + 16] = lanes[:, :16].T
            elif rows == 64:  # layout B: the upper two warps hold the right half of D
                top = 64 * cta + 32 * (warp % 2)
                left = n // 2 * (warp // 2)
                found[top : top + 32, left : left + n // 2] = lanes.T
            else:
                top = 128 * cta + 32 * warp
                found[top : top + 32] = lanes.T
    return found


def test_operands_are_negated_and_d_is_scaled() -> None:
    rng = np.random.default_rng(13)
    a, b = small(rng, (64, 16), "f16"), small(rng, (8, 16), "f16")
    word = kernel_instruction("f16", 64, 8)
    d = np.full((64, 8), 8.0, np.float32).view(np.uint32)
    product = decode(a, "f16") @ decode(b, "f16").T
    for bits, sign in ((0, 1), (1 << 13, -1), (1 << 14, -1), (3 << 13, 1)):
        form = decode_instruction(word | bits, "f16", 1)
        found = multiply(form, a, b, d, scale_d=2).view(np.float32)
        np.testing.assert_array_equal(found, sign * product + 2)


def test_f16_results_lie_in_the_low_half() -> None:
    # PTX ISA, "Packing format for matrix D": one element a cell, in its lower 16 bits.
    rng = np.random.default_rng(14)
    a, b = small(rng, (128, 16), "f16"), small(rng, (16, 16), "f16")
    form = decode_instruction(kernel_instruction("f16", 128, 16) & ~(1 << 4), "f16", 1)
    cells = multiply(form, a, b, None)
    assert (cells >> 16 == 0).all()
    found = cells.astype(np.uint16).view(np.float16)
    np.testing.assert_array_equal(found, decode(a, "f16") @ decode(b, "f16").T)


def test_integers_saturate_where_asked() -> None:
    word = 2 << 4 | 1 << 7 | 1 << 10 | 1 << 17 | 4 << 24
    a, b = np.full((64, 32), 127, np.uint32), np.full((8, 32), 127, np.uint32)
    d = np.full((64, 8), 2**31 - 1, np.int32).view(np.uint32)
    wrapped = multiply(decode_instruction(word, "i8", 1), a, b, d).view(np.int32)
    clamped = multiply(decode_instruction(word | 8, "i8", 1), a, b, d).view(np.int32)
    assert set(wrapped.ravel().tolist()) == {2**31 - 1 + 32 * 127**2 - 2**32}
    assert set(clamped.ravel().tolist()) == {2**31 - 1}


def test_a_from_tensor_memory() -> None:
    rng = np.random.default_rng(15)
    a = small(rng, (128, 16), "bf16")
    form = decode_instruction(kernel_instruction("bf16", 128, 16), "f16", 1)
    lanes, columns = a_in_tensor_memory(form, 1)
    assert (len(lanes), columns) == (128, 8)  # two elements a cell
    packed = a[:, 0::2].astype(np.uint32) | a[:, 1::2].astype(np.uint32) << 16
    np.testing.assert_array_equal(a_from_cells(form, packed), a)
    small_m = decode_instruction(kernel_instruction("bf16", 64, 16), "f16", 1)
    assert a_in_tensor_memory(small_m, 1)[0].tolist()[:17] == [*range(16), 32]


def test_what_is_left_out_is_named() -> None:
    pair = decode_instruction(kernel_instruction("bf16", 128, 32), "f16", 2)
    with pytest.raises(NotEmulated, match="M = 128"):
        a_in_tensor_memory(pair, 2)
    e2m1 = decode_instruction(1 << 4 | 5 << 7 | 1 << 17 | 4 << 24, "f8f6f4", 1)
    with pytest.raises(NotEmulated, match="e2m1"):
        a_in_tensor_memory(e2m1, 1)

"""mma.sync against numpy, its fragments by the manual's formulas; matrices moved as the portable kernel moves them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.mma_sync import (
    load_bytes_transposed,
    load_rows,
    mma_form,
    store_bytes_transposed,
    store_rows,
    transpose_matrix,
)
from tilewright.emulate.numbers import decode, encode


def registers_of(matrix: Any, bits: int, count: int, place: Any) -> Any:
    """Registers of a warp, element by element: `place(group, part, i)` is (row, column) of a_i of a lane."""
    per = 32 // bits
    registers = np.zeros((count, 32), np.uint32)
    for lane in range(32):
        for i in range(count * per):
            row, column = place(lane >> 2, lane % 4, i)
            registers[i // per, lane] |= np.uint32(int(matrix[row, column]) << bits * (i % per))
    return registers


# "Matrix Fragments for mma.m16n8k…": row and column of ai, and of bi as (column, row), as the manual writes them.
def a_16bit(g: int, t: int, i: int) -> tuple[int, int]:
    row = g if 0 <= i < 2 or 4 <= i < 6 else g + 8
    return row, t * 2 + (i & 1) + (8 if i >= 4 else 0)


def b_16bit(g: int, t: int, i: int) -> tuple[int, int]:
    return g, t * 2 + (i & 1) + (8 if i >= 2 else 0)


def a_tf32(g: int, t: int, i: int) -> tuple[int, int]:
    return g if i in {0, 2} else g + 8, t if i in {0, 1} else t + 4


def b_tf32(g: int, t: int, i: int) -> tuple[int, int]:
    return g, t if i == 0 else t + 4


def a_8bit(g: int, t: int, i: int) -> tuple[int, int]:
    row = g if 0 <= i < 4 or 8 <= i < 12 else g + 8
    return row, t * 4 + (i & 3) + (16 if i >= 8 else 0)


def b_8bit(g: int, t: int, i: int) -> tuple[int, int]:
    return g, t * 4 + (i & 3) + (16 if i >= 4 else 0)


PLACES = {8: (a_8bit, b_8bit), 16: (a_16bit, b_16bit), 32: (a_tf32, b_tf32)}


def accumulator_of(registers: Any) -> Any:
    """D as floats by the manual: c0, c1 in row g, c2, c3 in row g + 8, columns 2 t and the next."""
    matrix = np.zeros((16, 8), registers.dtype)
    for lane in range(32):
        for i in range(4):
            row = (lane >> 2) + (8 if i >= 2 else 0)
            matrix[row, lane % 4 * 2 + (i & 1)] = registers[i, lane]
    return matrix


def numbers(rng: np.random.Generator, shape: tuple[int, int], name: str) -> Any:
    """Bits of small multiples of a quarter, which every format holds and whose sums are exact."""
    return encode(rng.integers(-6, 7, shape).astype(np.float32) / 4, name)


@pytest.mark.parametrize(
    ("shape", "name", "bits", "k"),
    [
        ("m16n8k16", "bf16", 16, 16),
        ("m16n8k16", "f16", 16, 16),
        ("m16n8k8", "f16", 16, 8),
        ("m16n8k8", "bf16", 16, 8),
        ("m16n8k8", "tf32", 32, 8),
        ("m16n8k4", "tf32", 32, 4),
        ("m16n8k32", "e4m3", 8, 32),
        ("m16n8k32", "e5m2", 8, 32),
        ("m16n8k16", "e4m3", 8, 16),
    ],
)
def test_products_are_numpys(shape: str, name: str, bits: int, k: int) -> None:
    rng = np.random.default_rng(3)
    a, b = numbers(rng, (16, k), name), numbers(rng, (8, k), name)
    a_place, b_place = PLACES[bits]
    a_registers = registers_of(a, bits, 16 * k * bits // 1024, a_place)
    b_registers = registers_of(b, bits, 8 * k * bits // 1024, b_place)
    c = rng.integers(-99, 99, (4, 32)).astype(np.float32)
    form = mma_form(("sync", "aligned", shape, "row", "col", "f32", name, name, "f32"))
    d = form.multiply(a_registers, b_registers, c.view(np.uint32))
    expected = decode(a, name) @ decode(b, name).T + accumulator_of(c)
    np.testing.assert_array_equal(accumulator_of(d.view(np.float32)), expected)


def test_accumulators_of_f16() -> None:
    rng = np.random.default_rng(4)
    a, b = numbers(rng, (16, 16), "f16"), numbers(rng, (8, 16), "f16")
    c = rng.integers(-50, 50, (16, 8)).astype(np.float16)
    # "c0, c1 in one .f16x2 register, c2, c3 in the next".
    c_registers = registers_of(
        c.view(np.uint16), 16, 2, lambda g, t, i: (g + 8 * (i >= 2), 2 * t + (i & 1))
    )
    form = mma_form(("sync", "aligned", "m16n8k16", "row", "col", "f16", "f16", "f16", "f16"))
    d = form.multiply(registers_of(a, 16, 4, a_16bit), registers_of(b, 16, 2, b_16bit), c_registers)
    halves = np.stack([d[0] & 0xFFFF, d[0] >> 16, d[1] & 0xFFFF, d[1] >> 16])
    found = accumulator_of(halves.astype(np.uint16)).view(np.float16)
    expected = decode(a, "f16") @ decode(b, "f16").T + c.astype(np.float32)
    np.testing.assert_array_equal(found, expected.astype(np.float16))


@pytest.mark.parametrize(
    ("types", "low"), [(("s8", "s8"), -128), (("u8", "u8"), 0), (("s8", "u8"), -128)]
)
def test_integers_wrap_and_saturate(types: tuple[str, str], low: int) -> None:
    rng = np.random.default_rng(5)
    a = rng.integers(low, low + 256, (16, 32))
    b = rng.integers(0 if types[1] == "u8" else -128, 256 if types[1] == "u8" else 128, (8, 32))
    c = np.full((4, 32), 2**31 - 10, np.int32)
    registers = (
        registers_of(a & 0xFF, 8, 4, a_8bit),
        registers_of(b & 0xFF, 8, 2, b_8bit),
        c.view(np.uint32),
    )
    sums = a @ b.T + 2**31 - 10
    plain = mma_form(("sync", "aligned", "m16n8k32", "row", "col", "s32", *types, "s32"))
    wrapped = (sums + 2**31) % 2**32 - 2**31
    found = accumulator_of(plain.multiply(*registers).view(np.int32))
    np.testing.assert_array_equal(found, wrapped)
    clamped = mma_form(
        ("sync", "aligned", "m16n8k32", "row", "col", "satfinite", "s32", *types, "s32")
    )
    found = accumulator_of(clamped.multiply(*registers).view(np.int32))
    np.testing.assert_array_equal(found, np.clip(sums, -(2**31), 2**31 - 1))


def test_infinities_pass_through() -> None:
    form = mma_form(("sync", "aligned", "m16n8k16", "row", "col", "f32", "bf16", "bf16", "f32"))
    a, b = np.zeros((16, 16), np.uint16), np.zeros((8, 16), np.uint16)
    a[0, 0], b[:, 0] = 0x7F80, 0x3F80
    zeros = np.zeros((4, 32), np.uint32)
    d = form.multiply(registers_of(a, 16, 4, a_16bit), registers_of(b, 16, 2, b_16bit), zeros)
    found = accumulator_of(d.view(np.float32))
    assert np.isposinf(found[0]).all()
    assert not found[1:].any()


@pytest.mark.parametrize(
    "opcode",
    [
        "sync.aligned.m8n8k4.row.col.f32.f16.f16.f32",
        "sync.aligned.m16n8k8.row.col.f64.f64.f64.f64",
        "sync.aligned.m16n8k64.row.col.s32.s4.s4.s32",
        "sync.aligned.m16n8k32.row.col.kind::f8f6f4.f32.e2m1.e4m3.f32",
        "sync.aligned.m16n8k64.row.col.kind::mxf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0",
        "sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
    ],
)
def test_what_is_left_out_is_named(opcode: str) -> None:
    with pytest.raises(NotEmulated):
        mma_form(tuple(opcode.split(".")))


def test_matrices_loaded() -> None:
    # mma_sync.cuh, load_matrices: lane l gets elements 2 (l % 4) and the next of row l / 4 of each matrix.
    matrices = np.arange(4 * 64, dtype=np.uint16).reshape(4, 8, 8)
    registers = load_rows(matrices.view(np.uint8).reshape(32, 16))
    turned = load_rows(matrices.view(np.uint8).reshape(32, 16), transposed=True)
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        for matrix in range(4):
            low, high = matrices[matrix, row, column : column + 2].tolist()
            assert registers[matrix, lane] == low | high << 16
            low, high = matrices[matrix, column : column + 2, row].tolist()
            assert turned[matrix, lane] == low | high << 16


def test_matrices_stored_are_those_loaded() -> None:
    registers = np.random.default_rng(6).integers(0, 2**32, (2, 32), dtype=np.uint32)
    for transposed in (False, True):
        rows = store_rows(registers, transposed=transposed)
        np.testing.assert_array_equal(load_rows(rows, transposed=transposed), registers)
    matrix = load_rows(np.arange(64, dtype=np.uint16).view(np.uint8).reshape(8, 16))[0]
    turned = np.arange(64, dtype=np.uint16).reshape(8, 8).T.copy()
    expected = load_rows(turned.view(np.uint8).reshape(8, 16))[0]
    np.testing.assert_array_equal(transpose_matrix(matrix), expected)


def cute_map(shape: list[int], stride: list[int], index: int) -> int:
    """Where a CuTe layout puts an index; leftmost mode fastest."""
    place = 0
    for extent, step in zip(shape, stride, strict=True):
        place += index % extent * step
        index //= extent
    return place


def test_bytes_loaded_transposed_as_cutlass_maps_them() -> None:
    # CUTLASS, Copy_Traits<SM100_U8x8_LDSM_T>: source and destination as (thread, value) -> bit.
    rows = np.arange(256, dtype=np.uint8).reshape(16, 16)
    memory = np.zeros(256, np.uint8)
    for thread in range(16):
        bit = cute_map([2, 2, 4, 2], [128, 1024, 256, 0], thread)
        memory[bit // 8 : bit // 8 + 16] = rows[thread]
    found = load_bytes_transposed(rows)
    for lane in range(32):
        for byte in range(8):
            bit = cute_map([4, 8], [256, 8], lane) + cute_map([2, 2, 2], [128, 64, 1024], byte)
            assert found[byte // 4, lane] >> 8 * (byte % 4) & 0xFF == memory[bit // 8]


def test_bytes_stored_transposed_as_cutlass_maps_them() -> None:
    # CUTLASS, Copy_Traits<SM100_U8x4_STSM_T>; the destination's threads are rows of 128 bits in order.
    registers = np.random.default_rng(7).integers(0, 2**32, (2, 32), dtype=np.uint32)
    found = store_bytes_transposed(registers)
    for matrix in range(2):
        memory = found[8 * matrix : 8 * matrix + 8].ravel()
        for lane in range(32):
            for byte in range(4):
                bit = cute_map([4, 8], [256, 8], lane) + cute_map([2, 2], [128, 64], byte)
                expected = registers[matrix, lane] >> np.uint32(8 * byte) & np.uint32(0xFF)
                assert memory[bit // 8] == expected

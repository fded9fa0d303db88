"""Descriptors: the PTX manual's example layouts, the words of kernels that ran, TMA and numpy at the other end."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from tilewright.emulate.descriptors import (
    MatrixDescriptor,
    decode_instruction,
    decode_tcgen05_matrix,
    decode_wgmma_matrix,
)
from tilewright.emulate.faults import Fault, NotEmulated
from tilewright.emulate.swizzle import B32, B64, B128, NONE, SWIZZLES
from tilewright.emulate.tensor_map import TensorMap


def cute(shape: tuple[int, ...], stride: tuple[int, ...]) -> list[int]:
    """Offsets of a flat CuTe layout, leftmost mode fastest."""
    places = product(*(range(extent) for extent in reversed(shape)))
    return [sum(p * s for p, s in zip(place, reversed(stride), strict=True)) for place in places]


# PTX ISA, "Canonical Layouts": the rows named "Exact layout", in elements, ((rows), (k)) flattened.
@pytest.mark.parametrize(
    ("at", "bits", "k_major", "rows", "columns"),
    [
        # K-major, no swizzling, tf32: ((8,2),(4,4)):((4,32),(1,64))
        (
            MatrixDescriptor(0, 64 * 4, 32 * 4, 0, NONE),
            32,
            True,
            ((8, 2), (4, 32)),
            ((4, 4), (1, 64)),
        ),
        # K-major, 32B swizzling, tf32: ((8,2),(4,4)):((8,64),(1,4))
        (MatrixDescriptor(0, 16, 64 * 4, 0, B32), 32, True, ((8, 2), (8, 64)), ((4, 2), (1, 4))),
        # MN-major, no swizzling, bf16: ((8,1,2),(8,2)):((1,8,64),(8,128))
        (
            MatrixDescriptor(0, 128 * 2, 64 * 2, 0, NONE),
            16,
            False,
            ((8, 1, 2), (1, 8, 64)),
            ((8, 2), (8, 128)),
        ),
        # MN-major, 32B swizzling, bf16: ((8,2,2),(8,2)):((1,8,128),(16,256))
        (
            MatrixDescriptor(0, 128 * 2, 256 * 2, 0, B32),
            16,
            False,
            ((8, 2, 2), (1, 8, 128)),
            ((8, 2), (16, 256)),
        ),
        # MN-major, 64B swizzling, bf16: ((8,4,2),(8,2)):((1,8,256),(32,512))
        (
            MatrixDescriptor(0, 256 * 2, 512 * 2, 0, B64),
            16,
            False,
            ((8, 4, 2), (1, 8, 256)),
            ((8, 2), (32, 512)),
        ),
    ],
)
def test_layouts_of_the_manual(
    at: MatrixDescriptor,
    bits: int,
    k_major: bool,
    rows: tuple[tuple[int, ...], tuple[int, ...]],
    columns: tuple[tuple[int, ...], tuple[int, ...]],
) -> None:
    down, across = np.array(cute(*rows)), np.array(cute(*columns))
    expected = at.swizzle.apply((down[:, None] + across[None, :]) * bits // 8)
    found = at.element_addresses(len(down), len(across), bits // 8, k_major=k_major)
    np.testing.assert_array_equal(found, expected)


def laid_out(
    matrix: np.ndarray[tuple[int, int], np.dtype[np.uint16]], swizzle: str, at: int
) -> np.ndarray[tuple[int], np.dtype[np.uint16]]:
    """Shared memory after TMA has brought `matrix`, whole, in boxes as wide as the swizzle."""
    shared = np.zeros(1 << 15, np.uint16)
    width = SWIZZLES[swizzle].span_bytes // matrix.itemsize
    tensor_map = TensorMap.of(matrix, 0, (len(matrix), width), dtype="bf16", swizzle=swizzle)
    for column in range(0, matrix.shape[1], width):
        moved = tensor_map.transfer([column, 0], at)
        shared[moved.in_shared // 2] = tensor_map.load(matrix.ravel(), moved)
        at += moved.size_bytes
    return shared


@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B"])
def test_k_major_operands_as_tma_brings_them(swizzle: str) -> None:
    span = SWIZZLES[swizzle].span_bytes
    matrix = np.arange(64 * span // 2, dtype=np.uint16).reshape(64, span // 2)
    shared = laid_out(matrix, swizzle, 0x2000)
    for part in range(span // 32):  # one instruction's k has 32 bytes, the next lies 32 bytes on
        at = MatrixDescriptor(0x2000 + 32 * part, 16, 8 * span, 0, SWIZZLES[swizzle])
        found = shared[at.element_addresses(64, 16, 2) // 2]
        np.testing.assert_array_equal(found, matrix[:, 16 * part : 16 * part + 16])


@pytest.mark.parametrize("swizzle", ["32B", "64B", "128B"])
def test_mn_major_operands_as_tma_brings_them(swizzle: str) -> None:
    # Memory holds k rows of 128 elements along MN; boxes as wide as the swizzle lie one after the other.
    matrix = np.arange(32 * 128, dtype=np.uint16).reshape(32, 128)
    shared = laid_out(matrix, swizzle, 0x2000)
    span = SWIZZLES[swizzle].span_bytes
    for part in range(2):
        start = 0x2000 + 16 * part * span
        at = MatrixDescriptor(start, 32 * span, 8 * span, 0, SWIZZLES[swizzle])
        found = shared[at.element_addresses(128, 16, 2, k_major=False) // 2]
        np.testing.assert_array_equal(found.T, matrix[16 * part : 16 * part + 16])


def test_the_words_of_the_wgmma_kernel() -> None:
    # wgmma.cuh, whose GEMMs gave right results on an H200 (tests/data/h200/gemm_checks.json).
    address = 0x03000C00
    word = (address & 0x3FFFF) >> 4 | 1 << 16 | (1024 >> 4) << 32 | 1 << 62
    assert decode_wgmma_matrix(word) == MatrixDescriptor(0xC00, 16, 1024, 0, B128)
    assert decode_wgmma_matrix(2 << 62).swizzle is B64
    assert decode_wgmma_matrix(3 << 62).swizzle is B32
    assert decode_wgmma_matrix(5 << 49).base_offset == 5


def test_words_that_cutlass_made() -> None:
    # CUTLASS's descriptors of a 256x128 bf16 pair MMA on K-major 128B-swizzled operands.
    found = decode_instruction(0x10200490, "f16", 2)
    assert (found.m, found.n, found.k) == (256, 128, 16)
    assert (found.a, found.b, found.d) == ("bf16", "bf16", "f32")
    flags = (found.a_mn_major, found.b_mn_major, found.negate_a, found.negate_b)
    assert flags == (False,) * 4
    at = decode_tcgen05_matrix(0x4000404000010000)
    assert at == MatrixDescriptor(0, 16, 1024, 0, B128)


GOOD = 1 << 4 | 1 << 7 | 1 << 10 | (128 // 8) << 17 | (128 // 16) << 24


# PTX ISA, tables of the instruction descriptor and of the shapes: what they do not list.
@pytest.mark.parametrize(
    ("bits", "kind", "group", "says"),
    [
        (GOOD | 1 << 6, "f16", 1, "bit 6"),
        (GOOD | 1 << 23, "f16", 1, "bit 23"),
        (GOOD | 1 << 29, "f16", 1, "bit 29"),
        (GOOD | 1 << 30, "f16", 1, r"shift of \.ws"),
        (GOOD | 1, "f16", 1, "sparsity selector"),
        (GOOD | 1 << 3, "f16", 1, "saturation"),
        (
            GOOD ^ 3 << 4,
            "f16",
            1,
            r"type of D \(bits 4 to 5\) = 2; allowed: 0 \(f16\), 1 \(f32\)",
        ),
        (GOOD | 2 << 7, "f16", 1, "type of A"),
        (GOOD | 4 << 10, "f16", 1, "type of B"),
        (GOOD, "tf32", 1, "type of A"),
        (
            GOOD ^ (8 ^ 4) << 24,
            "f16",
            2,
            r"M = 64; allowed: 128 or 256 for kind::f16 with cta_group::2",
        ),
        (GOOD ^ (8 ^ 16) << 24, "f16", 1, "M = 256; allowed: 64 or 128"),
        (GOOD ^ (16 ^ 15) << 17, "f16", 2, "N = 120; allowed: 16 to 256 in steps of 16"),
        (GOOD & ~(63 << 17), "f16", 1, "N = 0;"),
        (GOOD | 33 << 17, "f16", 1, "N = 392;"),
        ((2 << 4) | 5 << 17 | 8 << 24, "i8", 1, "N = 40;"),
        ((2 << 4) | 6 << 17 | 8 << 24, "i8", 2, "N = 48;"),
        ((2 << 4) | 1 << 13 | 8 << 17 | 8 << 24, "i8", 1, "negation"),
        ((1 << 4) | 1 << 16 | 3 << 17 | 8 << 24, "f8f6f4", 1, "N = 24;"),
    ],
)
def test_instructions_that_are_undefined(bits: int, kind: str, group: int, says: str) -> None:
    with pytest.raises(Fault, match=says) as found:
        decode_instruction(bits, kind, group)
    assert found.value.rule == "TC-16"


def test_types_of_every_kind() -> None:
    for code, name in ((0, "e4m3"), (1, "e5m2"), (3, "e2m3"), (4, "e3m2"), (5, "e2m1")):
        found = decode_instruction(1 << 4 | code << 7 | 8 << 17 | 8 << 24, "f8f6f4", 1)
        assert (found.a, found.b, found.k) == (name, "e4m3", 32)
    mixed = decode_instruction(2 << 4 | 1 << 7 | 3 << 17 | 4 << 24, "i8", 1)
    assert (mixed.a, mixed.b, mixed.d, mixed.n) == ("s8", "u8", "s32", 24)
    tf32 = decode_instruction(1 << 4 | 2 << 7 | 2 << 10 | 1 << 15 | 8 << 17 | 4 << 24, "tf32", 1)
    assert (tf32.m, tf32.n, tf32.k, tf32.a_mn_major) == (64, 64, 8, True)


def test_what_is_left_out_is_named() -> None:
    with pytest.raises(NotEmulated, match="mxf8f6f4"):
        decode_instruction(GOOD, "mxf8f6f4", 1)
    with pytest.raises(NotEmulated, match="sparse"):
        decode_instruction(GOOD | 4, "f16", 1)
    with pytest.raises(NotEmulated, match="absolute address"):
        decode_tcgen05_matrix(1 << 46 | 1 << 52)


@pytest.mark.parametrize(
    ("word", "says"),
    [
        (0, "bits 46 to 48"),
        (3 << 46, "bits 46 to 48"),
        (1 << 46 | 1 << 55, "bits 53 to 60"),
        (1 << 46 | 3 << 61, "swizzle"),
    ],
)
def test_matrices_that_are_undefined(word: int, says: str) -> None:
    with pytest.raises(Fault, match=says) as found:
        decode_tcgen05_matrix(word)
    assert found.value.rule == "TC-20"

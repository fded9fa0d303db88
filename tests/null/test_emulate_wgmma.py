"""wgmma on operands that TMA has laid out, by the descriptors of the Hopper kernel, against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.numbers import decode, encode
from tilewright.emulate.tensor_map import TensorMap
from tilewright.emulate.wgmma import wgmma_form


def kernel_descriptor(address: int) -> int:
    """wgmma.cuh, wgmma_descriptor: its GEMMs gave right results on an H200."""
    return (address & 0x3FFFF) >> 4 | 1 << 16 | (1024 >> 4) << 32 | 1 << 62


def brought_by_tma(shared: Any, matrix: Any, at: int) -> None:
    """A K-major tile in rows of 128 bytes, 128-byte swizzle, as the kernel's maps say (abi.py, operand_maps)."""
    names = {1: "u8", 2: "bf16", 4: "f32"}
    tensor_map = TensorMap.of(matrix, 0, matrix.shape, dtype=names[matrix.itemsize], swizzle="128B")
    moved = tensor_map.transfer([0, 0], at)
    elements = shared.view(matrix.dtype)
    elements[moved.in_shared // matrix.itemsize] = tensor_map.load(matrix.ravel(), moved)


def elements(shared: Any, addresses: Any, itemsize: int) -> Any:
    return shared.view(f"u{itemsize}")[addresses // itemsize]


def matrix_of(registers: Any, n: int) -> Any:
    """wgmma.cuh: d[4 j + i] is row 16 warp + lane / 4 + 8 (i / 2), column 8 j + 2 (lane % 4) + i % 2."""
    found = np.zeros((64, n), registers.dtype)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for index in range(n // 2):
            j, i = divmod(index, 4)
            row = 16 * warp + lane // 4 + 8 * (i // 2)
            found[row, 8 * j + 2 * (lane % 4) + i % 2] = registers[index, thread]
    return found


def small(rng: np.random.Generator, shape: tuple[int, int], name: str) -> Any:
    return encode(rng.integers(-6, 7, shape).astype(np.float32) / 4, name)


@pytest.mark.parametrize(
    ("name", "n", "k"),
    [("bf16", 128, 16), ("f16", 48, 16), ("e4m3", 256, 32), ("e5m2", 16, 32), ("tf32", 64, 8)],
)
def test_a_stage_of_the_kernel(name: str, n: int, k: int) -> None:
    rng = np.random.default_rng(8)
    per_row = 4 * k  # 128 bytes
    a, b = small(rng, (64, per_row), name), small(rng, (n, per_row), name)
    shared = np.zeros(1 << 17, np.uint8)
    a_at, b_at = 0x400 + 0xC00, 0x8000
    brought_by_tma(shared, a, a_at)
    brought_by_tma(shared, b, b_at)
    form = wgmma_form(("mma_async", "sync", "aligned", f"m64n{n}k{k}", "f32", name, name))
    d = None
    for part in range(4):  # the kernel adds 2 to the descriptor for the next 32 bytes
        a_bits = elements(shared, form.a_addresses(kernel_descriptor(a_at) + 2 * part), a.itemsize)
        b_bits = elements(shared, form.b_addresses(kernel_descriptor(b_at) + 2 * part), b.itemsize)
        d = form.multiply(a_bits, b_bits, d)
    assert d is not None
    found = matrix_of(d.view(np.float32), n)
    np.testing.assert_array_equal(found, decode(a, name) @ decode(b, name).T)


def test_the_second_64_rows_lie_8192_bytes_on() -> None:
    # gemm_sm90.cu: block i of a consumer's rows is at a + i * (64 * 128 >> 4).
    a = np.arange(128 * 64, dtype=np.uint16).reshape(128, 64)
    shared = np.zeros(1 << 16, np.uint8)
    brought_by_tma(shared, a, 0x1000)
    form = wgmma_form(("mma_async", "sync", "aligned", "m64n64k16", "f32", "bf16", "bf16"))
    word = kernel_descriptor(0x1000) + (64 * 128 >> 4)
    np.testing.assert_array_equal(elements(shared, form.a_addresses(word), 2), a[64:, :16])


def test_a_in_registers_is_a_in_memory() -> None:
    # The accumulator's layout is that of A for two-byte elements: what was D feeds the next product.
    rng = np.random.default_rng(9)
    form = wgmma_form(("mma_async", "sync", "aligned", "m64n16k16", "f32", "f16", "f16"))
    a, b = small(rng, (64, 16), "f16"), small(rng, (16, 16), "f16")
    registers = np.zeros((4, 128), np.uint32)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        for register in range(4):
            row = 16 * warp + lane // 4 + 8 * (register % 2)
            column = 2 * (lane % 4) + 8 * (register // 2)
            registers[register, thread] = int(a[row, column]) | int(a[row, column + 1]) << 16
    np.testing.assert_array_equal(form.a_from_registers(registers), a)
    d = form.multiply(form.a_from_registers(registers), b, None, negate_a=True)
    expected = -(decode(a, "f16") @ decode(b, "f16").T)
    np.testing.assert_array_equal(matrix_of(d.view(np.float32), 16), expected)


def test_mn_major_operands() -> None:
    rng = np.random.default_rng(10)
    b = small(rng, (16, 64), "bf16")  # k rows of 64 columns
    shared = np.zeros(1 << 16, np.uint8)
    brought_by_tma(shared, b, 0x1000)
    form = wgmma_form(("mma_async", "sync", "aligned", "m64n64k16", "f32", "bf16", "bf16"))
    bits = elements(shared, form.b_addresses(kernel_descriptor(0x1000), transposed=True), 2)
    np.testing.assert_array_equal(bits, b.T)


def test_f16_accumulators_and_integers() -> None:
    rng = np.random.default_rng(11)
    a, b = small(rng, (64, 16), "f16"), small(rng, (8, 16), "f16")
    form = wgmma_form(("mma_async", "sync", "aligned", "m64n8k16", "f16", "f16", "f16"))
    once = form.multiply(a, b, None)
    assert once.shape == (2, 128)  # N / 4 registers of two
    twice = form.multiply(a, b, once)
    halves = np.stack([twice[0] & 0xFFFF, twice[0] >> 16, twice[1] & 0xFFFF, twice[1] >> 16])
    found = matrix_of(halves.astype(np.uint16), 8).view(np.float16)
    np.testing.assert_array_equal(found, 2 * (decode(a, "f16") @ decode(b, "f16").T))

    integers = wgmma_form(("mma_async", "sync", "aligned", "m64n8k32", "s32", "s8", "u8"))
    left, right = rng.integers(-128, 128, (64, 32)), rng.integers(0, 256, (8, 32))
    d = integers.multiply(left.astype(np.int8).view(np.uint8), right.astype(np.uint8), None)
    np.testing.assert_array_equal(matrix_of(d.view(np.int32), 8), left @ right.T)


@pytest.mark.parametrize(
    "opcode",
    [
        "mma_async.sync.aligned.m64n8k256.s32.b1.b1.and.popc",
        "mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16",
        "mma_async.sync.aligned.m64n8k16.f32.e4m3.e4m3",
    ],
)
def test_what_is_left_out_is_named(opcode: str) -> None:
    with pytest.raises(NotEmulated):
        wgmma_form(tuple(opcode.split(".")))

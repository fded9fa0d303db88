"""How the registers of a warp hold the matrices of mma.sync, wgmma and ldmatrix, and what a product of them is.

One rule covers every shape whose A has 16 rows a warp and whose elements have 8, 16 or 32 bits: a 32-bit register
holds the elements of neighbouring k; lane l has row l / 4 and, in a row, the (l % 4)-th register; A's registers
alternate between rows 0-7 and 8-15, then go on 16 bytes further along k. A warpgroup is four warps, 16 rows each.

Registers travel as uint32 arrays of (registers, threads), threads being 32 or 128.

Products are exact and summed with the accumulator in float64, rounded once to nearest. Tensor cores align the addends
of one instruction and truncate what falls off; how many bits they keep is not documented ("accumulation order,
rounding and handling of subnormal inputs are unspecified"), so a result may differ in its last bits. Sums of integers
that fit 24 bits agree exactly.

Source: PTX ISA, "Matrix Fragments for mma.m16n8k4" to "mma.m16n8k32", "Register Fragments" of wgmma.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.emulate.faults import NotEmulated
from tilewright.emulate.numbers import FORMATS, decode, encode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_ONE_THREAD = 1 << 18
"""Multiplications that OpenBLAS gives to one thread (interface/gemm.c: SMP_THRESHOLD_MIN * GEMM_MULTITHREAD_THRESHOLD)."""

INTEGERS = {"s8": np.int8, "u8": np.uint8}


def element_bits(name: str) -> int:
    """Bits of an operand's element in a register or in shared memory.

    Raises:
        NotEmulated: the type has a container of its own (sub-byte types), or is none that is multiplied here.
    """
    if name in INTEGERS:
        return 8
    if name in {"f16", "bf16", "tf32", "e4m3", "e5m2"}:
        return FORMATS[name].storage_bits
    raise NotEmulated(f"a matrix product of type {name}")


def values(bits: NDArray[Any], name: str) -> NDArray[np.float64]:
    """What an operand's elements mean; integers too are exact in float64."""
    if name in INTEGERS:
        return bits.astype(np.uint8).view(INTEGERS[name]).astype(np.float64)
    return decode(bits, name).astype(np.float64)


def unpacked(registers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """The elements of each register, lowest first; (registers, threads, elements)."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return np.asarray(registers[..., None] >> shifts & np.uint32((1 << bits) - 1), np.uint32)


def packed(elements: NDArray[Any], bits: int) -> NDArray[np.uint32]:
    """Elements back into registers; the last axis goes."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    return np.asarray(np.bitwise_or.reduce(elements.astype(np.uint32) << shifts, axis=-1))


def a_matrix(registers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """A's elements from its registers; (16 rows a warp, k)."""
    count, threads = registers.shape
    per = 32 // bits
    register, thread, element = np.ogrid[:count, :threads, :per]
    rows = 16 * (thread // 32) + thread // 4 % 8 + 8 * (register % 2)
    columns = per * (thread % 4 + 4 * (register // 2)) + element
    matrix = np.zeros((threads // 2, 4 * per * (count // 2)), np.uint32)
    matrix[rows, columns] = unpacked(registers, bits)
    return matrix


def b_matrix(registers: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    """B's elements from its registers, by column; (8 columns, k)."""
    count, threads = registers.shape
    per = 32 // bits
    register, thread, element = np.ogrid[:count, :threads, :per]
    columns = per * (thread % 4 + 4 * register) + element
    matrix = np.zeros((8, 4 * per * count), np.uint32)
    matrix[thread // 4, columns] = unpacked(registers, bits)
    return matrix


def accumulator_places(n: int, threads: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and column of each accumulator of each thread; (n / 2, threads) both."""
    index, thread = np.ogrid[: n // 2, :threads]
    rows = 16 * (thread // 32) + thread // 4 % 8 + 8 * (index // 2 % 2)
    columns = 8 * (index // 4) + 2 * (thread % 4) + index % 2
    return rows, columns


def accumulators(registers: NDArray[np.uint32], n: int, name: str) -> NDArray[np.float64]:
    """C from its registers; (16 rows a warp, n). Two f16 share a register."""
    elements = registers
    if name == "f16":
        elements = unpacked(registers, 16).swapaxes(1, 2).reshape(-1, registers.shape[1])
    rows, columns = accumulator_places(n, registers.shape[1])
    matrix = np.zeros((registers.shape[1] // 2, n))
    matrix[rows, columns] = accumulator_values(elements, name)
    return matrix


def from_accumulators(
    matrix: NDArray[np.float64], name: str, threads: int, *, saturate: bool = False
) -> NDArray[np.uint32]:
    """D into its registers: rounded to nearest, or wrapped or clamped to s32."""
    n = matrix.shape[1]
    elements = accumulator_bits(matrix[accumulator_places(n, threads)], name, saturate=saturate)
    if name == "f16":
        return packed(elements.reshape(n // 4, 2, threads).swapaxes(1, 2), 16)
    return elements


def accumulator_values(bits: NDArray[np.uint32], name: str) -> NDArray[np.float64]:
    """What 32-bit cells with an accumulator each mean; f16 lies in the low half."""
    if name == "s32":
        return bits.view(np.int32).astype(np.float64)
    return decode(bits, name).astype(np.float64)


def accumulator_bits(
    sums: NDArray[np.float64], name: str, *, saturate: bool = False
) -> NDArray[np.uint32]:
    """Sums as 32-bit cells with an accumulator each."""
    if name == "s32":
        if saturate:
            sums = np.clip(sums, -(2.0**31), 2.0**31 - 1)
        return sums.astype(np.int64).astype(np.uint32)
    if name == "f32":
        with np.errstate(over="ignore"):
            return sums.astype(np.float32).view(np.uint32)
    return encode(sums, name).astype(np.uint32)


def product(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """A[m, k] B[n, k]^T without a numpy warning about infinities, which are the kernel's own affair."""
    rows, k = a.shape
    found = np.empty((rows, len(b)))
    # In blocks that OpenBLAS multiplies in the calling thread: waking others costs more than the product.
    block = max(1, _ONE_THREAD // (len(b) * k))
    with np.errstate(invalid="ignore", over="ignore"):
        for first in range(0, rows, block):
            np.matmul(a[first : first + block], b.T, out=found[first : first + block])
    return found

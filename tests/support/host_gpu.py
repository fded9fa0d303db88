"""A conftest.py for an emitted folder: a "GPU" in host memory that does by numpy what the kernel should do.

So the emitted tests, launchers and packing run where no GPU is; kernel.cu itself does not.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

import paths
from arrays import STORAGE, decode, encode

CAPABILITY = tuple(map(int, os.environ["CAPABILITY"].split(".")))
RESIDENT = 5


class HostGpu:
    """What driver.Cuda is to a launcher, with addresses of the host."""

    name, device_id, capability = "the host", 0, CAPABILITY

    def __init__(self, device_id: int = 0) -> None:
        assert device_id == 0
        self.numbers: dict[str, Any] = {}
        self._memory: dict[int, Any] = {}

    def attribute(self, name: str) -> int:
        return {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448, "CLUSTER_LAUNCH": 1}[name]

    def set_attribute(self, *_: Any) -> None: ...

    def resident_clusters(self, *_: Any) -> int:
        return RESIDENT

    def compile(self, _source: str, _arch: str) -> tuple[bytes, str]:
        return b"", "nothing"

    def load(self, *_: Any) -> None: ...

    def allocate(self, size: int) -> int:
        room = ctypes.create_string_buffer(size + 64)
        pointer = -(-ctypes.addressof(room) // 64) * 64
        self._memory[pointer] = room
        return pointer

    def free(self, pointer: int) -> None:
        del self._memory[pointer]

    def zero(self, pointer: int, size: int, _stream: int) -> None:
        ctypes.memset(pointer, 0, size)

    def write(self, to: int, host: int, size: int) -> None:
        ctypes.memmove(to, host, size)

    def read(self, host: int, at: int, size: int) -> None:
        ctypes.memmove(host, at, size)

    def encode(self, **_: Any) -> bytes:
        return bytes(128)

    def launch(
        self,
        _function: Any,
        ctas: int,
        _threads: int,
        _smem: int,
        clusters: tuple[int, int],
        at: int,
        _: int,
    ) -> None:
        assert ctas % clusters[0] == 0
        if "tiles" in paths.read_constants()["entry"]:
            run_tiles(at, clusters[0])
        else:
            run_gemm(at, self.numbers)


def memory(pointer: int, count: int, dtype: Any) -> np.ndarray[Any, Any]:
    size = count * np.dtype(dtype).itemsize
    return np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(pointer)).view(dtype)


def run_tiles(at: int, size: int) -> None:
    """Count every tile and rank, and give it a time."""
    arguments, _, timeline, count = struct.unpack("<3Qi4x", ctypes.string_at(at, 32))
    memory(arguments, count * size, np.int32)[:] += 1
    if timeline:
        kind = np.dtype([("start_ns", "<u8"), ("end_ns", "<u8"), ("sm", "<u4"), ("cta", "<u4")])
        rows = memory(timeline, count * size, kind)
        rows["start_ns"], rows["end_ns"] = 1000, 3500


def run_gemm(at: int, numbers: dict[str, Any]) -> None:
    """Every group's product, from the kernel's own argument."""
    constants = paths.read_constants()
    given, out = constants["problem"]["dtype"], constants["problem"]["out_dtype"]
    fields = struct.unpack_from(
        "<5Q2q4i2f2Q4q", ctypes.string_at(at, constants["argument_bytes"]), 384
    )
    d, c, bias, counts, _, row_stride, group_stride, m, n, k, groups, alpha, beta = fields[:13]
    a, b, a_stride, b_stride, a_group, b_group = fields[13:]
    extents = memory(counts, groups, np.int32) if counts else np.zeros(groups, np.int32)
    starts = np.cumsum([0, *extents])

    def row(pointer: int, index: int, columns: int, dtype: str) -> np.ndarray[Any, Any]:
        size = np.dtype(STORAGE[dtype]).itemsize
        return decode(memory(pointer + index * size, columns, STORAGE[dtype]), dtype)

    for group in range(groups):
        rows, columns, depth = m, n, k
        at_m, at_n, at_k = (int(starts[group]) * (numbers["ragged"] == axis) for axis in "mnk")
        extent = int(extents[group])
        rows, columns, depth = (
            extent if numbers["ragged"] == axis else full
            for axis, full in zip("mnk", (rows, columns, depth), strict=True)
        )
        left, right = np.zeros((rows, depth)), np.zeros((columns, depth))
        for i in range(rows * (depth > 0)):
            left[i] = row(a, group * a_group + (at_m + i) * a_stride + at_k, depth, given)
        for i in range(columns * (depth > 0)):
            right[i] = row(b, group * b_group + (at_n + i) * b_stride + at_k, depth, given)
        product = alpha * (left @ right.T)
        if numbers["swap_ab"]:
            product, at_m = product.T, at_n
        for i, values in enumerate(product):
            index = group * group_stride + (at_m + i) * row_stride
            if c:
                values = values + beta * row(c, index, len(values), out)  # noqa: PLW2901
            if bias:
                values = values + memory(bias, len(values), np.float32)  # noqa: PLW2901
            kind = STORAGE[out]
            where = d + index * np.dtype(kind).itemsize
            memory(where, len(values), kind)[:] = encode(values.astype(np.float32), out)


def launch(self: Any, stream: int = 0) -> Any:
    self._kernel.cuda.numbers = self._kernel.numbers
    return _launch(self, stream)


_launch = paths.Launch.__call__
paths.Launch.__call__ = launch  # type: ignore[method-assign]
paths.Cuda = HostGpu  # type: ignore[attr-defined,assignment]

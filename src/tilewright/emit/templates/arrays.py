"""Arrays on the GPU: whose they are does not matter. And the element types that numpy lacks.

`view` reads torch tensors, `__cuda_array_interface__` (CuPy, Numba) and DLPack (JAX, …). `DeviceArray` is
memory of our own, so that nothing but numpy is needed. bf16 and fp8 are arrays of bits in numpy: uint16
and uint8.
"""

from __future__ import annotations

import math
import sys
from typing import Any, NamedTuple

import numpy as np

ALIGNMENT = 16  # bytes: TMA and 16-byte copies


class LaunchError(RuntimeError):
    """What is wrong with the machine, the arrays or the launch; says what would work."""


class View(NamedTuple):
    """An array by its address; strides in elements, None when contiguous; device None when unknown."""

    pointer: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: str
    device: int | None


STORAGE: dict[str, Any] = {
    "bf16": np.uint16,
    "fp16": np.float16,
    "fp32": np.float32,
    "fp8_e4m3": np.uint8,
    "fp8_e5m2": np.uint8,
    "int32": np.int32,
    "int64": np.int64,
    "bytes": np.uint8,
}
"""How numpy holds each type."""

ACCEPTED: dict[str, tuple[str, ...]] = {
    "bf16": ("bfloat16", "uint16"),
    "fp16": ("float16",),
    "fp32": ("float32",),
    "fp8_e4m3": ("float8_e4m3fn", "uint8"),
    "fp8_e5m2": ("float8_e5m2", "uint8"),
    "int32": ("int32",),
    "int64": ("int64",),
    "bytes": ("uint8",),
}
"""What other libraries call each type; unsigned integers are raw bits."""

_TYPE_STRINGS = {"<f2": "float16", "<f4": "float32", "<u2": "uint16", "|u1": "uint8"}
_TYPE_STRINGS |= {"<i4": "int32", "<V2": "bfloat16", "|V2": "bfloat16"}


class DeviceArray:
    """Device memory with a shape and a type, freed with the object."""

    def __init__(self, cuda: Any, shape: tuple[int, ...], dtype: str) -> None:
        self._cuda, self.shape, self.dtype = cuda, tuple(shape), dtype
        self.nbytes = math.prod(shape) * np.dtype(STORAGE[dtype]).itemsize
        self.pointer: int = cuda.allocate(max(self.nbytes, 16))

    def __del__(self) -> None:
        if hasattr(self, "pointer"):
            self._cuda.free(self.pointer)

    @classmethod
    def of(cls, cuda: Any, values: np.ndarray[Any, Any], dtype: str) -> DeviceArray:
        """A copy of a numpy array that holds `dtype` as `STORAGE` says."""
        made = cls(cuda, values.shape, dtype)
        made.fill_from(values)
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        kind = np.dtype(STORAGE[self.dtype]).str
        return {"shape": self.shape, "typestr": kind, "data": (self.pointer, False), "version": 3}

    def fill_from(self, values: np.ndarray[Any, Any]) -> None:
        """Copy a numpy array here."""
        contiguous = np.ascontiguousarray(values, STORAGE[self.dtype])
        if contiguous.nbytes:
            self._cuda.write(self.pointer, contiguous.ctypes.data, contiguous.nbytes)

    def fill_bytes(self, value: int) -> None:
        """One value in every byte."""
        values = np.full(self.nbytes, value, np.uint8)
        if self.nbytes:
            self._cuda.write(self.pointer, values.ctypes.data, self.nbytes)

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host, when all launches before have ended."""
        values = np.empty(self.shape, STORAGE[self.dtype])
        if values.nbytes:
            self._cuda.read(values.ctypes.data, self.pointer, values.nbytes)
        return values


def view(what: str, array: Any) -> View:
    """Address, shape, strides and type of an array on the GPU.

    Raises:
        LaunchError: it lies in host memory, or is no array.
    """
    if isinstance(array, DeviceArray):
        return View(array.pointer, array.shape, None, ACCEPTED[array.dtype][0], None)
    if hasattr(array, "data_ptr"):  # torch: its DLPack refuses gradients and some types
        if not array.is_cuda:
            raise _on_host(what, "call .cuda()")
        kind = str(array.dtype).removeprefix("torch.")
        shape = tuple(array.shape)
        return View(array.data_ptr(), shape, tuple(array.stride()), kind, array.device.index)
    if isinstance(array, np.ndarray):
        raise _on_host(what, "cupy.asarray, torch.from_numpy(…).cuda() or DeviceArray.of copies it")
    interface = getattr(array, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(array, interface)
    if hasattr(array, "__dlpack__"):
        return _from_dlpack(what, array)
    raise LaunchError(
        f"{what} is a {type(array).__name__}: pass a torch or CuPy array, or anything with DLPack"
    )


def _on_host(what: str, remedy: str) -> LaunchError:
    return LaunchError(f"{what} lies in host memory; the kernel reads the GPU's: {remedy}")


def _from_interface(array: Any, interface: dict[str, Any]) -> View:
    kind = interface["typestr"]
    size = int(kind[2:])
    strides = interface.get("strides")
    return View(
        interface["data"][0],
        tuple(interface["shape"]),
        None if strides is None else tuple(stride // size for stride in strides),
        str(getattr(array, "dtype", "")) or _TYPE_STRINGS.get(kind, kind),
        getattr(getattr(array, "device", None), "id", None),
    )


def _from_dlpack(what: str, array: Any) -> View:
    try:  # needed for DLPack alone
        from cuda.core.utils import StridedMemoryView  # noqa: PLC0415
    except ImportError:  # before 1.0
        from cuda.core.experimental.utils import StridedMemoryView  # noqa: PLC0415

    seen = StridedMemoryView(array, -1)
    if not seen.is_device_accessible:
        raise _on_host(what, "copy it to the GPU")
    strides = None if seen.strides is None else tuple(seen.strides)
    return View(int(seen.ptr), tuple(seen.shape), strides, str(seen.dtype), int(seen.device_id))


def empty_like(cuda: Any, array: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A new array of the same library where it has the type, else a `DeviceArray`."""
    library = sys.modules.get(type(array).__module__.split(".")[0])
    for name in ACCEPTED[dtype]:
        kind = getattr(library, name, None)
        if kind is not None and hasattr(array, "data_ptr"):
            return library.empty(shape, dtype=kind, device=array.device)  # type: ignore[union-attr]
        if kind is not None and getattr(library, "__name__", "") == "cupy":
            return library.empty(shape, kind)  # type: ignore[union-attr]
    return DeviceArray(cuda, shape, dtype)


def size_of(dtype: str) -> int:
    """Bytes an element."""
    return int(np.dtype(STORAGE[dtype]).itemsize)


def strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides in elements of a contiguous array."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_contiguous(seen: View) -> bool:
    """Row after row without gaps; strides of axes with one element do not count."""
    if seen.strides is None or 0 in seen.shape:
        return True
    pairs = zip(seen.shape, seen.strides, strides_of(seen.shape), strict=True)
    return all(extent == 1 or stride == packed for extent, stride, packed in pairs)


def check_array(what: str, seen: View, shape: tuple[int, ...], dtype: str, device: int) -> int:
    """The array's address.

    Raises:
        LaunchError: type, shape, strides, alignment or device are not what the kernel reads.
    """
    if seen.dtype not in ACCEPTED[dtype]:
        raise LaunchError(
            f"{what} is {seen.dtype}; this kernel takes {' or '.join(ACCEPTED[dtype])}"
        )
    if seen.shape != shape:
        raise LaunchError(f"{what} has shape {seen.shape}; {shape} is needed")
    if not is_contiguous(seen):
        raise LaunchError(
            f"{what} is strided: {seen.strides} elements for shape {shape}. It must be contiguous, last axis "
            "fastest: call .contiguous() or ascontiguousarray"
        )
    if seen.pointer % ALIGNMENT:
        raise LaunchError(
            f"{what} starts at {seen.pointer:#x}, which is no multiple of {ALIGNMENT} bytes"
        )
    if seen.device not in {None, device}:
        raise LaunchError(
            f"{what} lies on GPU {seen.device}; this kernel is loaded on GPU {device}"
        )
    return seen.pointer


def fp8_values(dtype: str) -> np.ndarray[Any, Any]:
    """What each of the 256 bytes means. Source: arXiv 2209.05433, table 1."""
    exponent_bits, mantissa_bits, bias = (4, 3, 7) if dtype == "fp8_e4m3" else (5, 2, 15)
    bits = np.arange(256)
    exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
    mantissa = (bits & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    size = np.where(
        exponent == 0, mantissa * 2.0 ** (1 - bias), (1 + mantissa) * 2.0 ** (exponent - bias)
    )
    values = np.where(bits & 0x80, -size, size)
    if dtype == "fp8_e4m3":
        return np.where((bits & 0x7F) == 0x7F, np.nan, values)
    infinite = np.where(mantissa == 0, np.copysign(np.inf, values), np.nan)
    return np.where(exponent == 31, infinite, values)


def encode(values: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Round to nearest, into the storage of a type."""
    if dtype == "bf16":
        bits = np.asarray(values, np.float32).view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)
    if dtype.startswith("fp8"):
        table = fp8_values(dtype)
        finite = np.flatnonzero(np.isfinite(table) & ~((table == 0) & (np.arange(256) > 0)))
        order = finite[np.argsort(table[finite])]
        middles = (table[order][1:] + table[order][:-1]) / 2
        return order[np.searchsorted(middles, values)].astype(np.uint8)
    return np.asarray(values, STORAGE[dtype])


def decode(bits: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """What stored values mean, as float64."""
    if dtype == "bf16":
        return (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype.startswith("fp8"):
        return np.asarray(fp8_values(dtype)[bits])
    return np.asarray(bits, np.float64)

"""A micro-kernel in the emulator, or on a GPU behind the same interface."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from micro.case import MAP_BYTES
from tilewright.emulate.tensor_map import TensorMap
from tilewright.run.bindings import call
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gpu import Gpu

if TYPE_CHECKING:
    from micro.case import Array, Case, TensorBox
    from tilewright.run.unit import Unit


def run_case(device: Unit, case: Case, seed: int = 0) -> Array:
    """One launch; the output.

    Raises:
        CudaFailed: the driver refused the PTX or the launch, or the kernel failed.
        CheckFailed: the emulator found something.
    """
    kernel = device.load(case.ptx.encode() + b"\0" * isinstance(device, Gpu))("micro")
    device.allow(kernel, smem_bytes=case.smem_bytes)
    shape, dtype = case.output
    pointers = [device.upload(array) for array in (np.zeros(shape, dtype), *case.arrays(seed))]
    maps = [encode_map(device, box, pointers[box.tensor + 1]) for box in case.maps]
    argument = b"".join(maps) + np.array(pointers, np.uint64).tobytes()
    device.launch_packed(
        kernel, case.ctas, case.threads, argument, cluster=case.cluster, smem_bytes=case.smem_bytes
    )
    found = device.download(pointers[0], shape, dtype)
    for pointer in pointers:
        device.free(pointer)
    return found


def emulated(case: Case, seed: int = 0, schedule: int = 0, *, races: bool = True) -> Array:
    """The output of one schedule."""
    clusters = case.ctas // max(case.cluster, 1)
    with EmulatedGpu("sm_90a", resident=clusters, seed=schedule, races=races) as device:
        return run_case(device, case, seed)


def encode_map(device: Unit, box: TensorBox, address: int) -> bytes:
    """128 bytes of a tensor map: the driver's on a GPU, else the emulator's."""
    steps = box.steps or (1,) * len(box.dims)
    if not isinstance(device, Gpu):
        return TensorMap(
            _EMULATED[box.dtype],
            address,
            box.dims,
            box.strides_bytes,
            box.box,
            steps,
            swizzle=box.swizzle,
            nan_fill=box.nan_fill,
        ).encode()
    driver = device.driver
    words, sizes = driver.cuuint32_t, driver.cuuint64_t
    fills = driver.CUtensorMapFloatOOBfill
    fill = "NAN_REQUEST_ZERO_FMA" if box.nan_fill else "NONE"
    encoded = call(
        driver.cuTensorMapEncodeTiled,
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{box.dtype.upper()}"),
        len(box.dims),
        address,
        [sizes(extent) for extent in box.dims],
        [sizes(stride) for stride in box.strides_bytes or (16,)],  # of a vector none is read
        [words(extent) for extent in box.box],
        [words(step) for step in steps],
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{box.swizzle.upper()}"),
        driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_NONE,
        getattr(fills, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
    )
    return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)


_EMULATED = {
    "uint8": "u8",
    "uint16": "u16",
    "uint32": "u32",
    "int32": "s32",
    "uint64": "u64",
    "int64": "s64",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "bfloat16": "bf16",
    "tfloat32": "tf32",
}

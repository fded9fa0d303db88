"""One GPU through the driver: memory, kernels with clusters, events, occupancy. No stream but the default."""

from __future__ import annotations

import contextlib
import ctypes
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.kernels.abi import TENSOR_MAP_BYTES
from tilewright.run.bindings import CudaFailed, call, import_driver, import_nvrtc

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from numpy.typing import NDArray

    from tilewright.kernels.abi import TensorMapSpec
    from tilewright.run.compiler import Compiled
    from tilewright.timeline import Source

UNREADABLE = (
    "CUDA_ERROR_INVALID_IMAGE",
    "CUDA_ERROR_NO_BINARY_FOR_GPU",
    "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
)
"""What cuModuleLoadData says of a cubin from a newer toolkit, or for another architecture."""

_TMA_TYPES = {
    "bf16": "BFLOAT16",
    "fp16": "FLOAT16",
    "fp32": "FLOAT32",
    "fp8_e4m3": "UINT8",
    "fp8_e5m2": "UINT8",
}

WARM_UPS = 2
SAMPLES = 9


class Gpu:
    """A context manager that holds the primary context and frees what was allocated in it.

    Raises:
        MissingCuda: no extra, driver or GPU.
        BadInput: fewer GPUs than `ordinal` names.
    """

    source: Source = "measured"

    def __init__(self, ordinal: int = 0) -> None:
        self._driver = import_driver()
        count = call(self._driver.cuDeviceGetCount)
        if not 0 <= ordinal < count:
            raise BadInput(
                f"GPU {ordinal} is not there: this process sees {count}",
                given=ordinal,
                allowed=f"0 to {count - 1}",
            )
        self._device = call(self._driver.cuDeviceGet, ordinal)
        self._allocated: list[int] = []
        self._modules: list[Any] = []

    def __enter__(self) -> Self:
        context = call(self._driver.cuDevicePrimaryCtxRetain, self._device)
        call(self._driver.cuCtxSetCurrent, context)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # after a failed launch these fail as well, and the first error is the one to show
        for pointer in self._allocated:
            self._driver.cuMemFree(pointer)
        for module in self._modules:
            self._driver.cuModuleUnload(module)
        self._driver.cuDevicePrimaryCtxRelease(self._device)

    @property
    def name(self) -> str:
        """The product's name, as the driver gives it."""
        text: bytes = call(self._driver.cuDeviceGetName, 128, self._device)
        return text.split(b"\0")[0].decode().strip()

    @property
    def memory_bytes(self) -> int:
        """Device memory, all of it."""
        return int(call(self._driver.cuDeviceTotalMem, self._device))

    @property
    def free_bytes(self) -> int:
        """Device memory that is free now."""
        free, _total = call(self._driver.cuMemGetInfo)
        return int(free)

    @property
    def driver_version(self) -> str:
        """The kernel driver's version where Linux shows it, and the CUDA version that it speaks."""
        number = int(call(self._driver.cuDriverGetVersion))
        speaks = f"CUDA {number // 1000}.{number % 1000 // 10}"
        with contextlib.suppress(OSError):
            text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
            if match := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", text):
                return f"{match[1]} ({speaks})"
        return speaks

    @property
    def toolkit(self) -> str:
        """NVRTC's version."""
        return "{}.{}".format(*call(import_nvrtc().nvrtcVersion))

    def attribute(self, name: str) -> int:
        """A device attribute: "multiprocessor_count" is CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT."""
        which = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name.upper()}")
        return int(call(self._driver.cuDeviceGetAttribute, which, self._device))

    def load(self, cubin: bytes) -> Callable[[str], Any]:
        """Load a cubin; the answer finds kernels in it by name.

        Raises:
            Unsupported: the driver cannot read what this toolkit wrote.
        """
        try:
            module = call(self._driver.cuModuleLoadData, cubin)
        except CudaFailed as error:
            if error.given not in UNREADABLE:
                raise
            raise Unsupported(
                f"driver {self.driver_version} cannot load a cubin of NVRTC {self.toolkit} ({error.given}); "
                "install a driver of that CUDA version, or an NVRTC of the driver's: "
                "pip install 'nvidia-cuda-nvrtc<=DRIVER'",
                given=self.toolkit,
                nearest=self.driver_version,
            ) from None
        self._modules.append(module)
        return lambda name: call(self._driver.cuModuleGetFunction, module, name.encode())

    def code_of(self, compiled: Compiled) -> bytes:
        """What `load` takes of a compiled source."""
        return compiled.cubin

    def encode_map(self, spec: TensorMapSpec, address: int, what: str) -> bytes:
        """The tensor map of a tensor at a device address.

        Args:
            what: name of the operand, for messages.
        Raises:
            BadInput: what TMA does not take.
        """
        spec.check(what)
        driver = self._driver
        words, sizes = driver.cuuint32_t, driver.cuuint64_t
        encoded = call(
            driver.cuTensorMapEncodeTiled,
            getattr(
                driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TMA_TYPES[spec.dtype]}"
            ),
            3,
            address,
            [sizes(extent) for extent in spec.dims],
            [sizes(stride) for stride in spec.strides_bytes],
            [words(extent) for extent in spec.box],
            [words(1)] * 3,
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{spec.swizzle_bytes}B"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return ctypes.string_at(int(encoded.getPtr()), TENSOR_MAP_BYTES)

    def allow(self, kernel: Any, *, smem_bytes: int = 0, nonportable: bool = False) -> None:
        """Set the attributes that large dynamic shared memory and clusters over 8 CTAs need."""
        names = self._driver.CUfunction_attribute
        settings = {
            names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: smem_bytes,
            names.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: int(nonportable),
        }
        for which, value in settings.items():
            if value:
                call(self._driver.cuFuncSetAttribute, kernel, which, value)

    def allocate(self, size_bytes: int) -> int:
        """Device memory, freed with the context.

        Raises:
            NoFit: there is not so much.
        """
        try:
            pointer = int(call(self._driver.cuMemAlloc, size_bytes))
        except CudaFailed as error:
            if error.given != "CUDA_ERROR_OUT_OF_MEMORY":
                raise
            raise NoFit(
                f"{size_bytes} bytes of device memory are needed; {self.free_bytes} of {self.memory_bytes} "
                f"on {self.name} are free",
                given=size_bytes,
                allowed=str(self.free_bytes),
            ) from None
        self._allocated.append(pointer)
        return pointer

    def fill(self, pointer: int, size_bytes: int, value: int) -> None:
        """Write one 32-bit value everywhere."""
        call(self._driver.cuMemsetD32, pointer, value, size_bytes // 4)

    def fill_later(self, pointer: int, size_bytes: int, value: int) -> None:
        """Queue the same on the default stream."""
        call(self._driver.cuMemsetD32Async, pointer, value, size_bytes // 4, 0)

    def write(self, pointer: int, values: NDArray[Any]) -> None:
        """Copy a contiguous array to the device."""
        call(self._driver.cuMemcpyHtoD, pointer, values.ctypes.data, values.nbytes)

    def upload(self, values: NDArray[Any]) -> int:
        """A copy of an array on the device; at least one byte."""
        contiguous = np.ascontiguousarray(values)
        pointer = self.allocate(max(contiguous.nbytes, 1))
        if contiguous.nbytes:
            self.write(pointer, contiguous)
        return pointer

    def download(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array from the device, when all launches before have ended."""
        values = np.empty(shape, dtype)
        if values.nbytes:
            call(self._driver.cuMemcpyDtoH, values.ctypes.data, pointer, values.nbytes)
        return values

    def free(self, pointer: int) -> None:
        """Give back what `allocate` or `upload` gave."""
        self._allocated.remove(pointer)
        call(self._driver.cuMemFree, pointer)

    def read(self, pointer: int, count: int) -> list[int]:
        """`count` 64-bit integers from the device, when all launches before have ended."""
        values = np.zeros(count, dtype=np.int64)
        call(self._driver.cuMemcpyDtoH, values.ctypes.data, pointer, values.nbytes)
        return [int(value) for value in values]

    @property
    def sm_count(self) -> int:
        """Of the chip."""
        return self.attribute("multiprocessor_count")

    @property
    def architecture(self) -> str:
        """What to compile for: "sm_90a" where the chip has features of its own, else "sm_80"."""
        major = self.attribute("compute_capability_major")
        minor = self.attribute("compute_capability_minor")
        return f"sm_{major}{minor}{'a' * (major >= 9)}"

    @property
    def driver(self) -> Any:
        """The driver's bindings."""
        return self._driver

    def launch_packed(
        self,
        kernel: Any,
        ctas: int,
        threads: int,
        argument: bytes,
        *,
        cluster: int,
        smem_bytes: int,
    ) -> None:
        """Launch in x with one argument, a struct of 64-byte alignment at most."""
        room = ctypes.create_string_buffer(len(argument) + 64)
        start = -(-ctypes.addressof(room) // 64) * 64
        ctypes.memmove(start, argument, len(argument))
        pointer = ctypes.c_void_p(start)
        config = self._config(ctas, threads, cluster, smem_bytes)
        call(self._driver.cuLaunchKernelEx, config, kernel, ctypes.addressof(pointer), 0)

    def launch(self, kernel: Any, ctas: int, threads: int, *args: int, cluster: int = 0) -> None:
        """Launch in x only; each argument is 64 bits wide, as the sources of this package want.

        Args:
            cluster: CTAs a cluster in x; 0 for a launch without the attribute.
        """
        values = (ctypes.c_uint64 * len(args))(*args)
        step = ctypes.sizeof(ctypes.c_uint64)
        addresses = [ctypes.addressof(values) + step * i for i in range(len(args))]
        pointers = (ctypes.c_void_p * len(args))(*addresses)
        config = self._config(ctas, threads, cluster, 0)
        call(self._driver.cuLaunchKernelEx, config, kernel, ctypes.addressof(pointers), 0)

    def time_ms(self, run: Callable[[], None]) -> list[float]:
        """Milliseconds of each of nine runs between two events, after two that do not count."""
        begin = call(self._driver.cuEventCreate, 0)
        end = call(self._driver.cuEventCreate, 0)
        times: list[float] = []
        for _ in range(WARM_UPS + SAMPLES):
            call(self._driver.cuEventRecord, begin, 0)
            run()
            call(self._driver.cuEventRecord, end, 0)
            call(self._driver.cuEventSynchronize, end)
            times.append(float(call(self._driver.cuEventElapsedTime, begin, end)))
        call(self._driver.cuEventDestroy, begin)
        call(self._driver.cuEventDestroy, end)
        return times[WARM_UPS:]

    def resident_ctas(self, kernel: Any, threads: int, smem_bytes: int) -> int:
        """CTAs an SM of a launch without clusters (cuOccupancyMaxActiveBlocksPerMultiprocessor)."""
        ask = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
        return int(call(ask, kernel, threads, smem_bytes))

    def resident(self, kernel: Any, cluster: int, threads: int, smem_bytes: int) -> int:
        """Clusters on the chip at once; of a launch without the attribute (size 1 or 0) its CTAs."""
        if cluster > 1:
            return self.resident_clusters(kernel, cluster, threads, smem_bytes) or 0
        sms = self.sm_count
        return sms * self.resident_ctas(kernel, threads, smem_bytes)

    def resident_clusters(
        self, kernel: Any, cluster: int, threads: int, smem_bytes: int
    ) -> int | None:
        """Clusters on the chip (cuOccupancyMaxActiveClusters); None where the driver refuses the size."""
        config = self._config(cluster, threads, cluster, smem_bytes)
        try:
            return int(call(self._driver.cuOccupancyMaxActiveClusters, kernel, config))
        except CudaFailed:
            return None

    def largest_cluster(self, kernel: Any, threads: int) -> int:
        """The largest cluster size (cuOccupancyMaxPotentialClusterSize)."""
        config = self._config(1, threads, 0, 0)
        return int(call(self._driver.cuOccupancyMaxPotentialClusterSize, kernel, config))

    def _config(self, ctas: int, threads: int, cluster: int, smem_bytes: int) -> Any:
        config = self._driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = smem_bytes
        if cluster:
            shape = self._driver.CUlaunchAttribute()
            shape.id = self._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape.value.clusterDim.x = cluster
            shape.value.clusterDim.y = shape.value.clusterDim.z = 1
            config.attrs = [shape]
            config.numAttrs = 1
        return config

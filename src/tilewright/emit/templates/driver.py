"""One GPU through cuda.core and the driver's bindings: compile, load, ask, launch. What fails says why."""

from __future__ import annotations

import ctypes
from typing import Any

from arrays import LaunchError

INSTALL = "pip install 'cuda-core[cu13]' nvidia-cuda-nvrtc numpy"
TENSOR_MAP_BYTES = 128
_TMA_TYPES = {"bf16": "BFLOAT16", "fp16": "FLOAT16", "fp32": "FLOAT32"}  # fp8 as bytes
_PREFIXES = {"attribute": "CU_DEVICE_ATTRIBUTE_", "function": "CU_FUNC_ATTRIBUTE_"}


def import_cuda() -> tuple[Any, Any]:
    """The modules cuda.core and cuda.bindings.driver.

    Raises:
        LaunchError: names what to install.
    """
    try:
        from cuda.bindings import driver  # noqa: PLC0415  (may be missing)

        try:
            from cuda import core  # noqa: PLC0415

            _ = core.Device
        except (ImportError, AttributeError):  # before 1.0
            from cuda.core import experimental as core  # noqa: PLC0415
    except ImportError as error:
        raise LaunchError(f"{error}: {INSTALL}") from None
    return core, driver


class Cuda:
    """The GPU `device_id` and its primary context, which torch and CuPy share.

    Raises:
        LaunchError: no driver, no such GPU.
    """

    def __init__(self, device_id: int = 0) -> None:
        self._core, self._driver = import_cuda()
        try:
            (status,) = self._driver.cuInit(0)
        except (RuntimeError, OSError):
            raise LaunchError("no NVIDIA driver on this machine: libcuda was not found") from None
        if status == self._driver.CUresult.CUDA_ERROR_NO_DEVICE:
            raise LaunchError("an NVIDIA driver, but no GPU that this process may use")
        if int(status):
            raise LaunchError(f"the NVIDIA driver does not start: {status.name}")
        count = self._call("cuDeviceGetCount")
        if not 0 <= device_id < count:
            raise LaunchError(f"GPU {device_id} is not there: this process sees {count}")
        self.device_id = device_id
        device = self._core.Device(device_id)
        device.set_current()
        self.name = str(device.name)
        major, minor = device.compute_capability
        self.capability = int(major), int(minor)
        self._device = self._call("cuDeviceGet", device_id)

    def _call(self, name: str, *args: Any) -> Any:
        """A driver call: its value, or an error that names the call."""
        status, *values = getattr(self._driver, name)(*args)
        if int(status):
            raise LaunchError(f"{name} failed: {status.name}")
        return values[0] if len(values) == 1 else tuple(values)

    def attribute(self, name: str) -> int:
        """A device attribute by the end of its name."""
        which = getattr(self._driver.CUdevice_attribute, _PREFIXES["attribute"] + name)
        return int(self._call("cuDeviceGetAttribute", which, self._device))

    @property
    def driver_version(self) -> str:
        """The newest CUDA that the driver speaks."""
        number = int(self._call("cuDriverGetVersion"))
        return f"{number // 1000}.{number % 1000 // 10}"

    def compile(self, source: str, arch: str) -> tuple[bytes, str]:
        """A cubin and the compiler's name. A cubin, not PTX: an older driver refuses newer PTX.

        Raises:
            LaunchError: no NVRTC, or what it said.
        """
        try:
            from cuda.bindings import nvrtc  # noqa: PLC0415  (needed without a cubin alone)

            _, *version = nvrtc.nvrtcVersion()
        except (ImportError, RuntimeError, OSError):
            raise LaunchError(
                f"no NVRTC here and no kernel.{arch}.cubin beside the launcher: {INSTALL}, or compile it elsewhere "
                f"(see README.md)"
            ) from None
        built = "NVRTC {}.{}".format(*version)
        if int(version[0]) > int(self.driver_version.split(".")[0]):
            raise LaunchError(self._too_old(built))
        options = self._core.ProgramOptions(arch=arch, std="c++17")
        try:
            code = self._core.Program(source, "c++", options).compile("cubin").code
        except Exception as error:  # noqa: BLE001  (cuda.core's own classes moved between versions)
            raise LaunchError(
                f"kernel.cu does not compile for {arch} with {built}:\n{error}"
            ) from None
        return bytes(code), built

    def _too_old(self, built: str) -> str:
        return (
            f"the driver speaks CUDA {self.driver_version}, older than {built}: update the driver, or install an "
            f"NVRTC of that version (pip install 'nvidia-cuda-nvrtc<={self.driver_version}.99')"
        )

    def load(self, cubin: bytes, entry: str, built: str) -> Any:
        """The kernel in a cubin."""
        status, module = self._driver.cuModuleLoadData(cubin)
        if status.name in {
            "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
            "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC",
        }:
            raise LaunchError(self._too_old(built))
        if int(status):
            raise LaunchError(
                f"{self.name} (driver of CUDA {self.driver_version}) does not take {built}: {status.name}. "
                "Compile again for this GPU"
            )
        return self._call("cuModuleGetFunction", module, entry.encode())

    def set_attribute(self, function: Any, name: str, value: int) -> None:
        """A function attribute by the end of its name."""
        which = getattr(self._driver.CUfunction_attribute, _PREFIXES["function"] + name)
        self._call("cuFuncSetAttribute", function, which, value)

    def resident_clusters(self, function: Any, size: int, threads: int, smem_bytes: int) -> int:
        """Clusters on the chip at once; CTAs where the size is 1."""
        if size == 1:
            ask = "cuOccupancyMaxActiveBlocksPerMultiprocessor"
            each = int(self._call(ask, function, threads, smem_bytes))
            return each * self.attribute("MULTIPROCESSOR_COUNT")
        config = self._config(size, threads, smem_bytes, (size, 0), 0)
        return int(self._call("cuOccupancyMaxActiveClusters", function, config))

    def launch(
        self, function: Any, ctas: int, threads: int, smem_bytes: int, clusters: tuple[int, int],
        argument: int, stream: int,
    ) -> None:  # fmt: skip
        """Launch along x with one argument at a host address; `clusters`: CTAs of the kernel's, the preferred."""
        config = self._config(ctas, threads, smem_bytes, clusters, stream)
        pointer = ctypes.c_void_p(argument)
        self._call("cuLaunchKernelEx", config, function, ctypes.addressof(pointer), 0)

    def _config(
        self, ctas: int, threads: int, smem_bytes: int, clusters: tuple[int, int], stream: int
    ) -> Any:
        driver = self._driver
        config = driver.CUlaunchConfig()
        config.gridDimX, config.gridDimY, config.gridDimZ = ctas, 1, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes, config.hStream = smem_bytes, driver.CUstream(stream)
        names = driver.CUlaunchAttributeID
        size, preferred = clusters
        attributes = []
        if size > 1 or preferred:
            shape = driver.CUlaunchAttribute()
            shape.id = names.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
            shape.value.clusterDim.x = size
            shape.value.clusterDim.y = shape.value.clusterDim.z = 1
            attributes.append(shape)
        if preferred:
            wish = driver.CUlaunchAttribute()
            wish.id = names.CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION
            wish.value.preferredClusterDim.x = preferred
            wish.value.preferredClusterDim.y = wish.value.preferredClusterDim.z = 1
            attributes.append(wish)
        if attributes:
            config.attrs, config.numAttrs = attributes, len(attributes)
        return config

    def encode(
        self,
        dtype: str,
        pointer: int,
        dims: list[int],
        strides: list[int],
        box: list[int],
        swizzle_bytes: int,
    ) -> bytes:
        """A tensor map: extents innermost first, strides in bytes from the second axis on."""
        driver = self._driver
        words, sizes = driver.cuuint32_t, driver.cuuint64_t
        kind = _TMA_TYPES.get(dtype, "UINT8")
        encoded = self._call(
            "cuTensorMapEncodeTiled",
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{kind}"),
            len(dims),
            pointer,
            [sizes(extent) for extent in dims],
            [sizes(stride) for stride in strides],
            [words(extent) for extent in box],
            [words(1)] * len(dims),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{swizzle_bytes}B"),
            driver.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        return ctypes.string_at(int(encoded.getPtr()), TENSOR_MAP_BYTES)

    def allocate(self, size_bytes: int) -> int:
        """Device memory."""
        status, pointer = self._driver.cuMemAlloc(size_bytes)
        if status == self._driver.CUresult.CUDA_ERROR_OUT_OF_MEMORY:
            free, total = self._call("cuMemGetInfo")
            raise LaunchError(
                f"out of memory on {self.name}: {size_bytes} bytes asked for, {free} of {total} are free"
            )
        if int(status):
            raise LaunchError(f"cuMemAlloc failed: {status.name}")
        return int(pointer)

    def free(self, pointer: int) -> None:
        """Give back; at the end of the process the driver may be gone already."""
        self._driver.cuMemFree(pointer)

    def zero(self, pointer: int, size_bytes: int, stream: int) -> None:
        """Zeros, in the stream's order."""
        self._call("cuMemsetD8Async", pointer, 0, size_bytes, stream)

    def write(self, to: int, host: int, size_bytes: int) -> None:
        """Copy from a host address."""
        self._call("cuMemcpyHtoD", to, host, size_bytes)

    def read(self, host: int, at: int, size_bytes: int) -> None:
        """Copy to a host address, when all launches before have ended."""
        self._call("cuCtxSynchronize")
        self._call("cuMemcpyDtoH", host, at, size_bytes)

    def synchronize(self) -> None:
        """Wait; a kernel that failed says so here."""
        self._call("cuCtxSynchronize")

    def time_us(self, launch: Any, times: int = 20, samples: int = 9) -> float:
        """Median microseconds of a launch, many in a CUDA graph so that the host does not count."""
        driver = self._driver
        stream = self._call("cuStreamCreate", int(driver.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.synchronize()  # what was prepared on other streams is there
        launch(int(stream))
        self.synchronize()
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        self._call("cuStreamBeginCapture", stream, mode)
        for _ in range(times):
            launch(int(stream))
        graph = self._call("cuGraphInstantiate", self._call("cuStreamEndCapture", stream), 0)
        begin, end = self._call("cuEventCreate", 0), self._call("cuEventCreate", 0)
        found = []
        for _ in range(samples + 2):
            self._call("cuEventRecord", begin, stream)
            self._call("cuGraphLaunch", graph, stream)
            self._call("cuEventRecord", end, stream)
            self._call("cuEventSynchronize", end)
            found.append(1e3 * float(self._call("cuEventElapsedTime", begin, end)) / times)
        return sorted(found[2:])[samples // 2]

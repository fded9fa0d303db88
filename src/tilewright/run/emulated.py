"""A "GPU" in this process: the emulator behind the interface of `Gpu`, so that the same cases and bounds check both.

    with EmulatedGpu("sm_100a", resident=2, seed=7) as gpu:
        print(GemmRun(gpu, GemmKernel(gpu, config), case).check())

Each launch runs one schedule and raises `CheckFailed` if anything was found.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tilewright.emulate import Buffers, CheckFailed, Options, Report, prepare
from tilewright.emulate.tensor_map import TensorMap
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from tilewright.emulate import Launch
    from tilewright.emulate.report import Outcome
    from tilewright.kernels.abi import TensorMapSpec
    from tilewright.run.compiler import Compiled
    from tilewright.timeline import Source

TYPES = {"bf16": "bf16", "fp16": "f16", "fp32": "f32", "fp8_e4m3": "u8", "fp8_e5m2": "u8"}
"""Element types of tensor maps: TMA knows fp8 as bytes."""


class EmulatedGpu:
    """Memory in numpy arrays, kernels as PTX.

    Attributes:
        architecture: what to compile for.
        seed: of the next launch's schedule.
        options: of the next launch.
        outcomes: what each launch came to.
    """

    name = "the emulator"
    source: Source = "emulated"
    sm_count = None

    def __init__(
        self,
        architecture: str,
        *,
        resident: int = 2,
        seed: int = 0,
        decline_at: Iterable[int] = (),
        races: bool = True,
    ) -> None:
        """Nothing is held that must be given back.

        Args:
            resident: clusters that run at once.
            decline_at: requests that cluster launch control declines early, counted from 0 in each launch.
            races: hold accesses against one another.
        """
        self.architecture = architecture
        self.seed = seed
        self.outcomes: list[Outcome] = []
        self.options = Options(resident=resident, decline_at=frozenset(decline_at), races=races)
        self._resident = resident
        self._buffers = Buffers()
        self._arrays: dict[int, NDArray[np.uint8]] = {}
        self._prepared: dict[tuple[bytes, str], Launch] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._arrays.clear()

    # --- kernels ------------------------------------------------------------------------------------------------------

    def code_of(self, compiled: Compiled) -> bytes:
        """What `load` takes of a compiled source."""
        return compiled.ptx.encode()

    def load(self, code: bytes) -> Callable[[str], tuple[bytes, str]]:
        """PTX; the answer finds kernels in it by name."""
        return lambda name: (code, name)

    def allow(self, kernel: Any, *, smem_bytes: int = 0, nonportable: bool = False) -> None:
        """Everything is allowed."""

    def resident(self, _kernel: Any, _cluster: int, _threads: int, _smem_bytes: int) -> int:
        """Clusters at once."""
        return self._resident

    def launch_packed(
        self,
        kernel: tuple[bytes, str],
        ctas: int,
        threads: int,
        argument: bytes,
        *,
        cluster: int,
        smem_bytes: int,
    ) -> None:
        """Launch in x with one argument, and wait.

        Raises:
            CheckFailed: something was found.
            NotModelled: an instruction that the emulator does not have.
        """
        ready = self._prepared.get(kernel)
        if ready is None:
            text, entry = kernel
            ready = self._prepared[kernel] = prepare(
                text.decode(),
                kernel=entry,
                grid=ctas,
                block=threads,
                cluster=cluster or 1,
                args=[argument],
                smem_bytes=smem_bytes,
                buffers=self._buffers,
            )
        ready = replace(ready, grid=(ctas, 1, 1), arguments=argument)
        outcome = ready.run(ready.strategy(self.seed), self.options)
        self.outcomes.append(outcome)
        report = Report(ready.program.name, [outcome])
        if report.verdict == "fail":
            raise CheckFailed(report)

    # --- memory -------------------------------------------------------------------------------------------------------

    def allocate(self, size_bytes: int) -> int:
        """Zeroed memory of exactly this size: an access beyond it is found."""
        return self._keep(np.zeros(max(size_bytes, 1), np.uint8))

    def upload(self, values: NDArray[Any]) -> int:
        """A copy of an array; at least one byte."""
        flat = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        return self._keep(flat.copy() if flat.size else np.zeros(1, np.uint8))

    def _keep(self, data: NDArray[np.uint8]) -> int:
        address = self._buffers.address_of(data)
        self._arrays[address] = data
        return address

    def free(self, pointer: int) -> None:
        """Forget what `allocate` or `upload` gave."""
        del self._arrays[pointer]

    def fill(self, pointer: int, size_bytes: int, value: int) -> None:
        """Write one 32-bit value everywhere."""
        self._arrays[pointer][: size_bytes // 4 * 4].view(np.uint32)[:] = value

    def download(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array from memory."""
        size_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found: NDArray[Any] = self._arrays[pointer][:size_bytes].copy().view(dtype)
        return found.reshape(shape)

    def encode_map(self, spec: TensorMapSpec, address: int, what: str) -> bytes:
        """The emulator's tensor map of a tensor.

        Raises:
            BadInput: what TMA does not take.
        """
        spec.check(what)
        if spec.dtype not in TYPES:
            raise BadInput(
                f"{what} of type {spec.dtype}", given=spec.dtype, allowed=", ".join(TYPES)
            )
        return TensorMap(
            TYPES[spec.dtype],
            address,
            spec.dims,
            spec.strides_bytes,
            spec.box,
            swizzle=f"{spec.swizzle_bytes}B",
        ).encode()

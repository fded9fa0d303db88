"""What a kernel needs of the machine that it runs on: a GPU (`gpu.Gpu`), or the emulator (`emulated.EmulatedGpu`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tilewright.kernels.abi import TensorMapSpec
    from tilewright.run.compiler import Compiled
    from tilewright.timeline import Source


class Unit(Protocol):
    """Memory, kernels and launches."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def source(self) -> Source:
        """What its times are."""

    @property
    def sm_count(self) -> int | None:
        """None where there is no chip."""

    @property
    def architecture(self) -> str:
        """What to compile for."""

    def code_of(self, compiled: Compiled) -> bytes:
        """What `load` takes of a compiled source."""

    def load(self, code: bytes, /) -> Callable[[str], Any]:
        """The answer finds kernels by name."""

    def allow(self, kernel: Any, *, smem_bytes: int = 0, nonportable: bool = False) -> None:
        """Let a kernel have much shared memory, or a large cluster."""

    def resident(self, kernel: Any, cluster: int, threads: int, smem_bytes: int, /) -> int:
        """Clusters at once."""

    def allocate(self, size_bytes: int) -> int:
        """The address of fresh memory."""

    def upload(self, values: NDArray[Any]) -> int:
        """The address of a copy of an array."""

    def free(self, pointer: int) -> None:
        """Give back what `allocate` or `upload` gave."""

    def fill(self, pointer: int, size_bytes: int, value: int) -> None:
        """Write one 32-bit value everywhere."""

    def download(self, pointer: int, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """An array from memory."""

    def encode_map(self, spec: TensorMapSpec, address: int, what: str) -> bytes:
        """A tensor map."""

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
        """Launch with one argument."""

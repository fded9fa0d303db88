"""Launch the harness on the GPU at hand: any tile function under any scheduler, with when each tile ran."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import NoFit
from tilewright.kernels.harness import (
    COUNTER_BYTES,
    ENTRY,
    TIMELINE,
    HarnessConfig,
    assemble,
    pack_arguments,
)
from tilewright.run.compiler import compile_source

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from tilewright.run.gpu import Gpu


class TileKernel:
    """A tile function in one scheduler's loop, loaded on one GPU.

    Attributes:
        resident_clusters: clusters that the driver places on the chip at once.
    Raises:
        CompileFailed, CudaFailed
        NoFit: the GPU places no cluster of this kernel.
    """

    def __init__(self, gpu: Gpu, config: HarnessConfig, tile_source: str | None = None) -> None:
        self._gpu, self.config = gpu, config
        compiled = compile_source(assemble(config, tile_source), "harness.cu", gpu.architecture)
        self._function = gpu.load(compiled.cubin)(ENTRY)
        size, smem = config.cluster_size, config.launch_smem_bytes
        gpu.allow(self._function, smem_bytes=smem, nonportable=size > 8)
        found = gpu.resident(
            self._function, size if config.uses_clusters else 0, config.threads, smem
        )
        if not found:
            raise NoFit(
                f"{gpu.name} places no cluster of {size} CTAs with {config.threads} threads and {smem} bytes of "
                "shared memory each",
                given=size,
            )
        self.resident_clusters = found
        self._counter = gpu.allocate(COUNTER_BYTES)
        gpu.fill(self._counter, COUNTER_BYTES, 0)

    def launch(self, num_tiles: int, arguments: int = 0, timeline: int = 0) -> int:
        """Queue one launch; the number of its clusters. Without tiles nothing is launched.

        Args:
            arguments: what the tile function is handed, a device address.
            timeline: address of zeroed `TIMELINE` entries, one a tile and rank.
        """
        size = self.config.cluster_size
        ctas = self.config.grid_ctas(num_tiles, self.resident_clusters * size)
        if ctas:
            self._gpu.launch_packed(
                self._function,
                ctas,
                self.config.threads,
                pack_arguments(
                    num_tiles, arguments=arguments, work_counter=self._counter, timeline=timeline
                ),
                cluster=size if self.config.uses_clusters else 0,
                smem_bytes=self.config.launch_smem_bytes,
            )
        return ctas // size

    def timeline(self, num_tiles: int, arguments: int = 0) -> NDArray[np.void]:
        """Launch once and read when and where each tile ran: `TIMELINE` entries, (tiles, cluster size)."""
        shape = (num_tiles, self.config.cluster_size)
        entries = num_tiles * self.config.cluster_size
        times = self._gpu.allocate(max(1, entries) * TIMELINE.itemsize)
        self._gpu.fill(times, entries * TIMELINE.itemsize, 0)
        self.launch(num_tiles, arguments, times)
        found: Any = self._gpu.download(times, shape, TIMELINE)
        self._gpu.free(times)
        return found  # type: ignore[no-any-return]

"""Compile and launch one GEMM kernel on the GPU at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput, NoFit
from tilewright.kernels.abi import (
    ALIGNMENT,
    TENSOR_MAP_BYTES,
    GemmShape,
    operand_maps,
    output_map,
    pack_arguments,
)
from tilewright.kernels.config import ENTRY, GemmConfig
from tilewright.kernels.source import assemble
from tilewright.run.compiler import compile_source

if TYPE_CHECKING:
    from tilewright.run.unit import Unit


class GemmKernel:
    """One kernel loaded on one GPU.

    Attributes:
        config: what it was compiled for.
        resident_clusters: clusters that the driver places on the chip at once.
    Raises:
        CompileFailed, CudaFailed
        NoFit: the GPU places no cluster of this kernel.
    """

    def __init__(
        self, gpu: Unit, config: GemmConfig, cubin: bytes | None = None, *, use_cache: bool = True
    ) -> None:
        """Compile, unless `cubin` is at hand, and load."""
        self._gpu = gpu
        self.config = config
        if cubin is None:
            source = assemble(config.kernel, config.render())
            compiled = compile_source(source, config.kernel, gpu.architecture, use_cache=use_cache)
            cubin = gpu.code_of(compiled)
        self._function = gpu.load(cubin)(ENTRY)
        size, smem = config.cluster_size, config.smem_bytes
        gpu.allow(self._function, smem_bytes=smem, nonportable=size > 8)
        self.resident_clusters = gpu.resident(self._function, size, config.tiling.threads, smem)
        if not self.resident_clusters:
            raise NoFit(
                f"{gpu.name} places no cluster of {size} CTAs with {config.tiling.threads} threads and "
                f"{config.smem_bytes} bytes of shared memory each",
                given=size,
            )
        self._counter = gpu.allocate(4)
        gpu.fill(self._counter, 4, 0)

    def bind(
        self,
        shape: GemmShape,
        num_tiles: int,
        *,
        a: int,
        b: int,
        output: int,
        c: int = 0,
        bias: int = 0,
        counts: int = 0,
        times: tuple[int, int] = (0, 0),
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> Bound:
        """Arguments for one problem, ready to launch again and again.

        Args:
            num_tiles: cluster tiles, or the most there may be when counts are known on the device only;
                with none nothing is encoded and nothing launched.
            a, b, output, c, bias, counts: device addresses.
            times: device addresses of zeroed `TIMELINE` and `REQUESTS` entries, for a kernel that keeps them.
        Raises:
            BadInput: addresses or extents that TMA cannot take.
        """
        config = self.config
        if not num_tiles:
            return Bound(self._gpu, self._function, b"", 0, config)
        for what, address in (("A", a), ("B", b), ("D", output)):
            if address % ALIGNMENT:
                raise BadInput(
                    f"{what} starts at {address:#x}; TMA needs a multiple of {ALIGNMENT} bytes",
                    given=hex(address),
                    allowed=f"a multiple of {ALIGNMENT}",
                )
        of_a, of_b = (b, a) if config.swap_ab else (a, b)
        none = bytes(TENSOR_MAP_BYTES)
        maps = (none, none, none)
        if config.uses_tma:
            a_map, b_map = operand_maps(config, shape)
            stored = config.store_by_tma
            maps = (
                self._gpu.encode_map(a_map, of_a, "a"),
                self._gpu.encode_map(b_map, of_b, "b"),
                self._gpu.encode_map(output_map(config, shape), output, "D") if stored else none,
            )
        argument = pack_arguments(
            config,
            shape,
            maps,
            a_data=of_a,
            b_data=of_b,
            output=output,
            c=c,
            bias=bias,
            counts=counts,
            work_counter=self._counter,
            times=times,
            alpha=alpha,
            beta=beta,
        )
        clusters = min(num_tiles, self.resident_clusters) if config.is_persistent else num_tiles
        return Bound(self._gpu, self._function, argument, clusters, config)


class Bound:
    """A kernel with its arguments; nothing is launched when there is no tile.

    Attributes:
        grid_clusters: clusters of the launch.
    """

    def __init__(
        self, gpu: Unit, function: Any, argument: bytes, grid_clusters: int, config: GemmConfig
    ) -> None:
        self._gpu, self._function, self._argument = gpu, function, argument
        self._config = config
        self.grid_clusters = grid_clusters

    def launch(self) -> None:
        """Launch on the default stream."""
        if self.grid_clusters:
            size = self._config.cluster_size
            self._gpu.launch_packed(
                self._function,
                self.grid_clusters * size,
                self._config.tiling.threads,
                self._argument,
                cluster=size if size > 1 else 0,
                smem_bytes=self._config.smem_bytes,
            )

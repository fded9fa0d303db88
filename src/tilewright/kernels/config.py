"""What a GEMM kernel is compiled for: the plan's choices as constants.

`GemmConfig` checks what the kernels' static_asserts would refuse, with clearer words, and writes
`config.cuh`. Sizes of the problem are arguments of the launch, not part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from tilewright.errors import NoFit, Unsupported

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.tile_map import Raster
    from tilewright.tiling import Tiling

Ragged = Literal["none", "m", "n", "k"]
KERNELS: dict[str, str] = {
    "tcgen05": "gemm_sm100.cu",
    "wgmma": "gemm_sm90.cu",
    "mma.sync": "gemm_portable.cu",
}
ENTRY = "tilewright_gemm"
"""Name of every GEMM kernel's entry point."""

PORTABLE_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
"""CTA tiles of gemm_portable.cu: warps of 32x32, 64x32 or 64x64 cover them."""

IN_DTYPES = ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2")
OUT_DTYPES = ("bf16", "fp16", "fp32")
SCHEDULERS = {
    "single_tile": "single_tile",
    "static": "static_stride",
    "static_blocked": "static_blocked",
    "dynamic_atomic": "dynamic_atomic",
    "clc": "clc",
}
"""Names of the plan, and those of types.cuh."""

ANSWER_STRIDE = 32
"""Bytes from one scheduler answer to the next in shared memory, as in schedule.cuh."""


@dataclass(frozen=True)
class GemmConfig:
    """One compiled GEMM kernel.

    Attributes:
        tiling: instruction, CTA tile, cluster, stages.
        raster: order of tiles.
        scheduler: how clusters come by their tiles.
        out_dtype: of D and C.
        schedule_depth: answers that a dynamic scheduler may have unread.
        ragged: axis along which groups differ, in the kernel's frame.
        max_groups: groups that there is room for; 1 unless ragged.
        swap_ab: the kernel computes the transposed product and stores it transposed.
        has_c, has_bias: the epilogue adds beta * C, a bias a column.
        store_by_tma: rows of D are 16-byte aligned, so that TMA can store it.
        timeline: keep when and where each tile ran (timeline.cuh); costs nothing when off.
    Raises:
        Unsupported, NoFit: when it is made.
    """

    tiling: Tiling
    raster: Raster
    scheduler: str
    out_dtype: str = "bf16"
    schedule_depth: int = 1
    ragged: Ragged = "none"
    max_groups: int = 1
    swap_ab: bool = False
    has_c: bool = False
    has_bias: bool = False
    store_by_tma: bool = True
    timeline: bool = False

    def __post_init__(self) -> None:
        for what, given, known in (
            ("input", self.tiling.mma.dtype, IN_DTYPES),
            ("output", self.out_dtype, OUT_DTYPES),
            ("scheduler", self.scheduler, tuple(SCHEDULERS)),
        ):
            if given not in known:
                raise Unsupported(
                    f"no GEMM kernel has {what} {given}; there are {', '.join(known)}",
                    given=given,
                    allowed=", ".join(known),
                )
        if self.scheduler == "clc" and self.tiling.mma.family != "tcgen05":
            raise Unsupported(
                f"a {self.tiling.mma.family} kernel has no cluster launch control",
                given="clc",
                allowed="single_tile, static, static_blocked, dynamic_atomic",
                nearest="dynamic_atomic",
            )
        if self.ragged == ("m" if self.swap_ab else "n"):
            raise Unsupported(
                f"groups that differ along {self.ragged} cannot lie one after the other in D's columns: "
                f"the kernel needs swap_ab {str(not self.swap_ab).lower()}",
                given=self.ragged,
                allowed="n, k, none" if self.swap_ab else "m, k, none",
            )
        if self.tiling.mma.family == "mma.sync":
            self._check_portable()
        else:
            self._check_shares()

    def _check_shares(self) -> None:
        tiling = self.tiling
        tile, (x, y, _), group = tiling.cta_tile, tiling.cluster_shape, tiling.cta_group
        if group == 2 and tile.m != 128:
            raise Unsupported(
                f"a pair's kernel multiplies 128 rows a CTA, not {tile.m}",
                given=tile.m,
                allowed="128",
                nearest="128",
            )
        for operand, rows, ctas in (("A", tile.m, y), ("B", tile.n // group, x // group)):
            if rows % (8 * ctas):
                raise Unsupported(
                    f"{ctas} CTAs of cluster {tiling.cluster_shape} cannot share the {rows} rows of {operand} "
                    "that each of them needs: a share is a multiple of 8 rows, the swizzle's group",
                    given=tiling.cluster_shape,
                    nearest=str((group, 1, 1)),
                )

    def _check_portable(self) -> None:
        tiling = self.tiling
        tile = (tiling.cta_tile.m, tiling.cta_tile.n)
        if self.scheduler not in {"single_tile", "static"}:
            raise Unsupported(
                f"the portable kernel is scheduled by single_tile or static, not {self.scheduler}",
                given=self.scheduler,
                allowed="single_tile, static",
                nearest="static",
            )
        if tile not in PORTABLE_TILES:
            known = ", ".join(f"{m}x{n}" for m, n in PORTABLE_TILES)
            m, n = min(PORTABLE_TILES, key=lambda it: abs(it[0] - tile[0]) + abs(it[1] - tile[1]))
            raise Unsupported(
                f"the portable kernel has no {tile[0]}x{tile[1]} tile; it has {known}",
                given=f"{tile[0]}x{tile[1]}",
                allowed=known,
                nearest=f"{m}x{n}",
            )
        if tiling.num_stages < 2 or tiling.cluster_size > 1:
            raise Unsupported(
                f"the portable kernel runs one CTA alone with 2 stages or more, not {tiling.describe()}",
                given=tiling.describe(),
                allowed="cluster (1, 1, 1), 2 stages or more",
                nearest=f"cluster (1, 1, 1), {max(2, tiling.num_stages)} stages",
            )

    @property
    def kernel(self) -> str:
        """The source file."""
        return KERNELS[self.tiling.mma.family]

    @property
    def cluster_size(self) -> int:
        """CTAs a cluster. Launched along x: rank = x + cluster_m * y."""
        return self.tiling.cluster_size

    @property
    def uses_tma(self) -> bool:
        """Operands come by tensor maps; the portable kernel reads pointers."""
        return self.tiling.mma.family != "mma.sync"

    @property
    def is_dynamic(self) -> bool:
        """Tiles are asked for while the kernel runs."""
        return self.scheduler in {"dynamic_atomic", "clc"}

    @property
    def is_persistent(self) -> bool:
        """The grid is the resident clusters, not the tiles."""
        return self.scheduler in {"static", "static_blocked", "dynamic_atomic"}

    @property
    def group_sum_bytes(self) -> int:
        """Shared memory of the prefix sums of a ragged problem."""
        return 0 if self.ragged == "none" else 8 * (self.max_groups + 1)

    @property
    def small_bytes(self) -> int:
        """Shared memory beside the operand ring and the staging: answers, barriers, TMEM address, sums.

        An upper bound of what the kernels' layouts take; they assert that it holds.
        """
        tiling = self.tiling
        answers = (ANSWER_STRIDE + 16) * self.schedule_depth
        barriers = 16 * (tiling.num_stages + tiling.accumulator_stages) + 8
        return answers + barriers + 16 + self.group_sum_bytes

    @property
    def smem_bytes(self) -> int:
        """Dynamic shared memory of the launch: the plan's, and what the prefix sums take beyond its reserve."""
        smem = self.tiling.smem
        if self.tiling.mma.family == "mma.sync":
            return self.tiling.smem_bytes + self.group_sum_bytes
        beyond = max(0, self.small_bytes - smem.barrier_bytes)
        return self.tiling.smem_bytes + -(-beyond // 128) * 128

    def check_fit(self, device: Device) -> None:
        """Refuse what does not fit the device's shared memory.

        Raises:
            NoFit: with the stages that do fit.
        """
        most = device.smem_per_cta_max_bytes
        if self.smem_bytes > most:
            spare = most - (self.smem_bytes - self.tiling.num_stages * self.tiling.smem.stage_bytes)
            stages = max(0, spare // self.tiling.smem.stage_bytes)
            raise NoFit(
                f"{self.tiling.describe()} with prefix sums of {self.max_groups} groups needs "
                f"{self.smem_bytes} bytes of shared memory a CTA; {device.name} allows {most}. "
                f"{stages} stages fit",
                given=self.smem_bytes,
                allowed=str(most),
                nearest=f"{stages} stages",
            )

    def render(self) -> str:
        """The text of config.cuh."""
        tile, (cluster_m, cluster_n, _) = self.tiling.cta_tile, self.tiling.cluster_shape
        values = {
            "int tile_m": tile.m,
            "int tile_n": tile.n,
            "int tile_k": tile.k,
            "int cluster_m": cluster_m,
            "int cluster_n": cluster_n,
            "int cta_group": self.tiling.cta_group,
            "int num_stages": self.tiling.num_stages,
            "int accumulator_stages": self.tiling.accumulator_stages,
            "int smem_bytes": self.smem_bytes,
            "Scheduler scheduler": f"Scheduler::{SCHEDULERS[self.scheduler]}",
            "int schedule_depth": self.schedule_depth,
            "bool raster_along_m": self.raster.along == "m",
            "int raster_swizzle": self.raster.swizzle,
            "Type input": f"Type::{self.tiling.mma.dtype}",
            "Type output": f"Type::{self.out_dtype}",
            "Ragged ragged": f"Ragged::{self.ragged}",
            "int max_groups": self.max_groups,
            "bool swap_ab": self.swap_ab,
            "bool has_c": self.has_c,
            "bool has_bias": self.has_bias,
            "bool store_by_tma": self.store_by_tma,
            "bool timeline": self.timeline,
        }
        lines = [
            f"constexpr {name} = {str(value).lower() if isinstance(value, bool) else value};"
            for name, value in values.items()
        ]
        return "\n".join(
            [
                '#pragma once\n#include "types.cuh"\n\nnamespace config {',
                *lines,
                "}  // namespace config\n",
            ]
        )

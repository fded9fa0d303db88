"""Cases of the GEMM kernels on a GPU: many shapes, each through one of many compiled variants.

A case names a variant and a problem. `around` sets M so that there are as many cluster tiles as clusters
are resident on the GPU at hand, plus `around`.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tilewright.device import load
from tilewright.kernels.config import GemmConfig
from tilewright.problem import DTYPES, OUT_BYTES
from tilewright.run.check import GemmCase
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.kernels.config import Ragged
    from tilewright.tile_map import Along


@dataclass(frozen=True)
class Variant:
    """What a kernel is compiled for, short of what follows from the problem."""

    device: str
    tile: tuple[int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    dtype: str = "bf16"
    out: str = "bf16"
    scheduler: str = "static"
    raster: tuple[Along, int] = ("m", 8)
    swap_ab: bool = False
    has_c: bool = False
    has_bias: bool = False
    depth: int = 1
    stages: int | None = None

    def config(self, case: GemmCase, axis: str | None) -> GemmConfig:
        """The kernel for one problem."""
        tiling = make_tiling(
            self.dtype,
            OUT_BYTES[self.out],
            load(self.device),
            cta_tile=self.tile,
            cluster_shape=self.cluster,
            num_stages=self.stages,
        )
        ragged: Ragged = "none"
        if axis is not None:
            ragged = "k" if axis == "k" else "n" if self.swap_ab else "m"
        return GemmConfig(
            tiling,
            Raster(*self.raster),
            self.scheduler,
            self.out,
            schedule_depth=self.depth,
            ragged=ragged,
            max_groups=round_up(len(case.counts or (0,)), 64),
            swap_ab=self.swap_ab,
            has_c=self.has_c,
            has_bias=self.has_bias,
            store_by_tma=case.n * OUT_BYTES[self.out] % 16 == 0,
        )


@dataclass(frozen=True)
class Case:
    """A problem for a variant.

    Attributes:
        axis: along which `problem.counts` differ.
        around: cluster tiles more than are resident; M is set from it.
    """

    name: str
    variant: Variant
    problem: GemmCase
    axis: str | None = None
    around: int | None = None

    def config(self) -> GemmConfig:
        """The kernel's configuration."""
        return self.variant.config(self.problem, self.axis)

    def resolve(self, resident_clusters: int) -> GemmCase:
        """The problem on this GPU."""
        if self.around is None:
            return self.problem
        config = self.config()
        tile = config.tiling.cluster_tile
        tiles = resident_clusters + self.around
        if config.swap_ab:
            return replace(self.problem, m=tile.n, n=tile.m * tiles)
        return replace(self.problem, m=tile.m * tiles, n=tile.n)


def round_up(value: int, step: int) -> int:
    return -(-value // step) * step


WGMMA = [
    Variant("h200", (128, 256), (2, 1, 1)),
    Variant("h200", (128, 256), (1, 2, 1), scheduler="dynamic_atomic"),
    Variant("h200", (128, 256), scheduler="static_blocked", raster=("n", 1)),
    Variant("h200", (128, 256), (2, 2, 1), scheduler="dynamic_atomic", depth=2),
    Variant("h200", (128, 256), (4, 1, 1), scheduler="single_tile"),
    Variant("h200", (128, 144), (2, 1, 1), swap_ab=True),
    Variant("h200", (128, 160), (1, 1, 1), out="fp32", swap_ab=True, scheduler="dynamic_atomic"),
    Variant("h200", (64, 160), (4, 1, 1), scheduler="dynamic_atomic", depth=3),
    Variant("h200", (64, 144), (2, 2, 1), out="fp16", dtype="fp16"),
    Variant("h200", (256, 128), (1, 2, 1), scheduler="dynamic_atomic"),
    Variant("h200", (256, 96), (2, 1, 1), swap_ab=True, has_c=True, has_bias=True),
    Variant("h200", (128, 192), (1, 4, 1), out="fp32", has_c=True, has_bias=True),
    Variant("h200", (128, 128), (2, 1, 1), dtype="fp8_e4m3", scheduler="dynamic_atomic"),
    Variant("h200", (128, 256), (1, 1, 1), dtype="fp8_e5m2", out="fp32"),
    Variant("h200", (64, 16), (1, 1, 1), out="fp32", stages=2),
    Variant("h200", (128, 48), (1, 2, 1), dtype="fp16", has_bias=True, scheduler="single_tile"),
]
PORTABLE = [
    Variant("a100", (128, 128)),
    Variant("a100", (128, 256), scheduler="single_tile"),
    Variant("a100", (256, 128), raster=("n", 2), has_c=True, has_bias=True),
    Variant("a100", (64, 64), out="fp32"),
    Variant("a100", (64, 128), dtype="fp16", out="fp16", swap_ab=True),
    Variant("a100", (128, 64), dtype="fp16", out="fp32", swap_ab=True, has_bias=True),
]
M = (1, 63, 64, 65, 128, 129, 300, 777)
N = (1, 8, 72, 128, 257, 1000)
K = (8, 64, 72, 200, 520, 1040)
COUNTS = (
    (100, 0, 300, 1, 0, 129, 64),
    (0, 128, 0),
    (0, 0, 5),
    (1,) * 40,
    (128, 256, 384, 128),
    (513, 3, 2, 1, 0, 0, 700, 33, 64),
    (64,) * 70,
    (2000, 17),
)
K_COUNTS = ((0, 64), (128, 0, 48, 256), (16, 64, 80), (0, 0, 144), (576,), (0, 0))


def dense(variants: list[Variant]) -> Iterator[Case]:
    """Every (m, n) through variants in turn, then tiles around the resident clusters for each variant."""
    turn = itertools.cycle(variants)
    for index, (m, n) in enumerate(itertools.product(M, N)):
        variant = next(turn)
        step = 16 * 8 // DTYPES[variant.dtype].bits  # 16 bytes along K
        k = round_up(K[index % len(K)], step)
        batch = 3 if index % 7 == 3 else 1
        alpha, beta = (0.5, 2.0) if variant.has_c else (1.0, 0.0)
        problem = GemmCase(m, n, k, batch, alpha=alpha, beta=beta)
        yield Case(f"{m}x{n}x{k}x{batch} by {label(variant)}", variant, problem)
    for variant, around in itertools.product(variants, (-1, 0, 1)):
        problem = GemmCase(1, 8, 128, alpha=0.5, beta=2.0)
        yield Case(f"R{around:+} by {label(variant)}", variant, problem, around=around)


def grouped(variants: list[Variant]) -> Iterator[Case]:
    """Groups along M through variants in turn; along K in steps of one instruction, 32 bytes."""
    turn = itertools.cycle(variants)
    for counts, n in itertools.product(COUNTS, (8, 257, 300, 512, 1000, 1024, 2048)):
        variant = next(turn)
        problem = GemmCase(0, n, 256, counts=counts)
        yield Case(f"m {counts[:4]}x{n} by {label(variant)}", variant, problem, "m")
    for counts, variant in itertools.product(K_COUNTS, variants):
        step = 32 * 8 // DTYPES[variant.dtype].bits
        whole = tuple(round_up(count, step) for count in counts)
        problem = GemmCase(200, 264, 0, counts=whole)
        yield Case(f"k {whole} by {label(variant)}", variant, problem, "k")


def label(variant: Variant) -> str:
    """The variant in a few words."""
    default = Variant(variant.device, variant.tile)
    changed: list[Any] = [
        f"{name} {value}"
        for name, value in vars(variant).items()
        if name not in {"device", "tile"} and value != getattr(default, name)
    ]
    return f"{variant.tile[0]}x{variant.tile[1]} {', '.join(changed)}".strip()


SUITES: dict[str, list[Case]] = {
    "wgmma": list(dense(WGMMA)),
    "wgmma grouped": list(grouped([v for v in WGMMA if not v.has_c])),
    "portable": list(dense(PORTABLE)),
    "portable grouped": list(grouped([v for v in PORTABLE if not v.has_c])),
}

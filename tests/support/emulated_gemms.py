"""Every kind of emitted GEMM with problems that put it to the test, for as many schedules as are asked for.

Sizes put as many cluster tiles as are resident, one fewer, one more, and twice as many and one more, with edges that
no tile divides; groups some of which are empty; and requests that are declined early.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tilewright.device import load
from tilewright.emulate import CheckFailed
from tilewright.emulate.explore import vary
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.source import assemble
from tilewright.problem import OUT_BYTES
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.compiler import compile_source
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gemm import GemmKernel
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

RESIDENT = 2


def config(
    device: str,
    tile: tuple[int, int],
    cluster: tuple[int, int],
    scheduler: str,
    *,
    group: int = 1,
    dtype: str = "bf16",
    out: str = "bf16",
    **more: Any,
) -> GemmConfig:
    """A kernel with a ring of two stages."""
    pair: dict[str, Any] = {"cta_group": group} if device == "b200" else {}
    tiling = make_tiling(
        dtype,
        OUT_BYTES[out],
        load(device),
        cta_tile=tile,
        cluster_shape=(*cluster, 1),
        num_stages=2,
        **pair,
    )
    return GemmConfig(tiling, Raster("m", 8), scheduler, out_dtype=out, **more)


def blackwell(scheduler: str, cluster: tuple[int, int], group: int, **more: Any) -> GemmConfig:
    """sm_100a, 128 x 64 a CTA."""
    return config("b200", (128, 64), cluster, scheduler, group=group, **more)


def hopper(scheduler: str, cluster: tuple[int, int], **more: Any) -> GemmConfig:
    """sm_90a, 128 x 64 a CTA."""
    return config("h200", (128, 64), cluster, scheduler, **more)


CONFIGS = {
    "portable": config("a100", (64, 64), (1, 1), "static"),
    "hopper single_tile": hopper("single_tile", (1, 1)),
    "hopper static 2x1": hopper("static", (2, 1)),
    "hopper static_blocked 1x2": hopper("static_blocked", (1, 2)),
    "hopper dynamic_atomic 2x2": hopper("dynamic_atomic", (2, 2), schedule_depth=2),
    "hopper fp8 2x1": hopper("static", (2, 1), dtype="fp8_e4m3"),
    "hopper 256 rows, addends": config(
        "h200", (256, 64), (1, 1), "static", has_c=True, has_bias=True
    ),
    "hopper swapped, fp32": hopper("static", (1, 1), out="fp32", swap_ab=True),
    "alone single_tile": blackwell("single_tile", (1, 1), 1),
    "alone static": blackwell("static", (1, 1), 1),
    "alone clc 1": blackwell("clc", (1, 1), 1),
    "alone clc 3": blackwell("clc", (1, 1), 1, schedule_depth=3),
    "alone fp8 clc 2": blackwell("clc", (1, 1), 1, dtype="fp8_e4m3", schedule_depth=2),
    "alone 64 rows": config("b200", (64, 64), (1, 2), "static"),
    "two ctas static": blackwell("static", (2, 1), 1),
    "two ctas clc 2": blackwell("clc", (2, 1), 1, schedule_depth=2),
    "four ctas static": blackwell("static", (2, 2), 1),
    "pair single_tile": blackwell("single_tile", (2, 1), 2),
    "pair static": blackwell("static", (2, 1), 2),
    "pair clc 1": blackwell("clc", (2, 1), 2),
    "pair clc 2": blackwell("clc", (2, 1), 2, schedule_depth=2),
    "pair clc 3": blackwell("clc", (2, 1), 2, schedule_depth=3),
    "pair dynamic_atomic": blackwell("dynamic_atomic", (2, 1), 2),
    "pair fp8 clc": blackwell("clc", (2, 1), 2, dtype="fp8_e4m3"),
    "pair swapped": blackwell("static", (2, 1), 2, swap_ab=True),
    "two pairs single_tile": blackwell("single_tile", (4, 1), 2),
    "two pairs clc": blackwell("clc", (4, 1), 2, schedule_depth=2),
    "two pairs 2x2 static": blackwell("static", (2, 2), 2),
}

ONE_CLUSTER = ("hopper static 2x1", "alone static", "pair static", "pair clc 2")
"""Of these one cluster does five tiles as well: every ring goes round twice."""

GROUPED = (
    *("hopper static 2x1", "hopper dynamic_atomic 2x2", "alone static", "alone clc 1", "pair static"),
    *("pair clc 1", "pair clc 2", "pair clc 3", "two pairs clc", "two pairs 2x2 static"),
)  # fmt: skip
"""Of these groups along M and along K as well, some of them empty."""

DECLINED = ("alone clc 1", "pair clc 1", "pair clc 3", "two pairs clc")
"""Of these requests that are declined early, whatever the seed."""

COUNTS = (100, 0, 300, 1, 0, 129)
K_COUNTS = (0, 64, 16, 0, 80)


@dataclass(frozen=True)
class Problem:
    """What one kernel is run on.

    Attributes:
        resident: clusters at once; with cluster launch control the seed varies it unless `fixed`.
        decline_at: requests that are declined early; None leaves it to the seed.
    """

    what: str
    config: GemmConfig
    case: GemmCase
    resident: int = RESIDENT
    fixed: bool = False
    decline_at: frozenset[int] | None = None


def architecture(made: GemmConfig) -> str:
    """What a kernel is compiled for."""
    return {"mma.sync": "sm_80", "wgmma": "sm_90a", "tcgen05": "sm_100a"}[made.tiling.mma.family]


def sized(made: GemmConfig, tiles: int) -> GemmCase:
    """So many cluster tiles along M, rows and columns short of whole tiles."""
    m, n = made.tiling.cluster_tile.m * tiles - 24, made.tiling.cluster_tile.n - 8
    if made.swap_ab:
        m, n = n, m
    k = 200 * 2 // (1 if made.tiling.mma.dtype.startswith("fp8") else 2)
    alpha, beta = (0.5, 2.0) if made.has_c else (1.0, 0.0)
    return GemmCase(m, n, k // 16 * 16 + 16, alpha=alpha, beta=beta)


def problems(name: str) -> list[Problem]:
    """All of one configuration."""
    made = CONFIGS[name]
    found = [
        Problem(f"R{around:+}".replace("+0", ""), made, sized(made, RESIDENT + around))
        for around in (-1, 0, 1)
    ]
    found.append(Problem("2R+1", made, sized(made, 2 * RESIDENT + 1)))
    if name in ONE_CLUSTER:
        found.append(Problem("one cluster", made, sized(made, 5), resident=1, fixed=True))
    if name in GROUPED:
        rows = replace(made, ragged="m", max_groups=64)
        depth = replace(made, ragged="k", max_groups=64)
        found.append(Problem("groups along M", rows, GemmCase(0, 72, 136, counts=COUNTS)))
        found.append(Problem("groups along K", depth, GemmCase(130, 72, 0, counts=K_COUNTS)))
    if name in DECLINED:
        found += [
            Problem(f"declined {declined}", made, sized(made, 7), decline_at=frozenset(declined))
            for declined in ((0,), (1,), (0, 1, 2, 3), (2, 5))
        ]
    return found


@cache
def kernel_text(made: GemmConfig) -> bytes:
    """The PTX of a configuration, compiled once a process."""
    source = assemble(made.kernel, made.render())
    return compile_source(source, made.kernel, architecture(made)).ptx.encode()


class Schedules:
    """One problem, ready for any number of seeds."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.gpu = EmulatedGpu(architecture(problem.config), resident=problem.resident)
        kernel = GemmKernel(self.gpu, problem.config, kernel_text(problem.config))
        self.run = GemmRun(self.gpu, kernel, problem.case)
        self.plain = self.gpu.options

    def failure(self, seed: int) -> str:
        """What is wrong in the schedule of a seed, or nothing."""
        made, problem = self.problem.config, self.problem
        self.gpu.seed = seed
        if made.scheduler == "clc":
            resident, declines = vary(
                seed, 5, problem.resident if problem.fixed else None, problem.decline_at
            )
            self.gpu.options = replace(
                self.plain, resident=resident or problem.resident, decline_at=declines
            )
        try:
            checked = self.run.check()
        except CheckFailed as failed:
            return str(failed)
        warned = [finding.message for finding in self.gpu.outcomes[-1].findings]
        return "; ".join(warned) if checked.passed else f"{checked}"

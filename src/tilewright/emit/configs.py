"""From a plan to what its kernels are compiled for: the plan's own path and its fallbacks.

    blackwell   tcgen05    the device has tensor memory
    hopper      wgmma      compute capability 9.0
    portable    mma.sync   compute capability 8.0 or later

A plan says a tile, a cluster and a scheduler in words; `make_config` finds the tiling behind them, checks
it as the enumerated ones were, and says what of the plan no kernel has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from tilewright.device import load
from tilewright.errors import NoFit, TilewrightError, Unsupported
from tilewright.kernels.config import IN_DTYPES, OUT_DTYPES, GemmConfig
from tilewright.kernels.source import assemble
from tilewright.mma import family, mma_k
from tilewright.plan import make_plan
from tilewright.problem import Attention, Gemm, GroupedGemm, TileList
from tilewright.tile_map import Raster
from tilewright.tiling import Tiling, make_tiling

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.kernels.config import Ragged
    from tilewright.plan_model import Plan
    from tilewright.problem import Matmul, Workload

STORE_BYTES = 16
"""Rows of D that are a multiple of this can be stored by TMA. Source: CUDA driver API,
cuTensorMapEncodeTiled: globalStrides."""

_SCHEDULERS = {
    "tcgen05": ("single_tile", "static", "static_blocked", "dynamic_atomic", "clc"),
    "wgmma": ("single_tile", "static", "static_blocked", "dynamic_atomic"),
    "mma.sync": ("single_tile", "static"),
}
"""What the kernel of each family has, as `GemmConfig` accepts it."""

_RASTER = re.compile(r"along ([mn]), strips of (\d+)")


class PathKind(NamedTuple):
    """Where a path runs and how its section of kernel.cu is told apart.

    Attributes:
        fallback: the device that it is planned for when the plan is for another.
        capabilities: compute capabilities that it runs on, later ones too if `or_later`.
        arch_suffix: of the architecture that it is compiled for.
        guard: of its section; empty where nothing else is left.
    """

    name: str
    instruction: str
    fallback: str
    capabilities: tuple[tuple[int, int], ...]
    or_later: bool
    arch_suffix: str
    guard: str


_FAMILY = "__CUDA_ARCH_FAMILY_SPECIFIC__"
KINDS: dict[str, PathKind] = {
    "tcgen05": PathKind(
        "blackwell",
        "tcgen05",
        "b200",
        ((10, 0), (10, 3)),
        or_later=False,
        arch_suffix="a",
        guard="defined(__CUDA_ARCH_FEAT_SM100_ALL) || defined(__CUDA_ARCH_FEAT_SM103_ALL) || "
        f"(defined({_FAMILY}) && {_FAMILY} >= 1000 && {_FAMILY} < 1200)",
    ),
    "wgmma": PathKind(
        "hopper",
        "wgmma",
        "h200",
        ((9, 0),),
        or_later=False,
        arch_suffix="a",
        guard="defined(__CUDA_ARCH_FEAT_SM90_ALL)",
    ),
    "mma.sync": PathKind(
        "portable", "mma.sync", "a100", ((8, 0),), or_later=True, arch_suffix="", guard=""
    ),
}
"""By family, the most capable first. The macros are those of NVRTC and nvcc for sm_100a, sm_103a, sm_90a."""

FP8_CAPABILITY = (8, 9)
"""The first with fp8 in mma.sync. Source: PTX ISA, mma."""


@dataclass(frozen=True, kw_only=True)
class AnyPath:
    """One path of an emitted folder, whatever it computes.

    Attributes:
        device: that it was planned for.
        predicted_us: None where nothing was predicted.
        notes: where the kernel does otherwise than the plan says, and why.
        kernel: the source file; what: the kernel in a few words.
    """

    kind: PathKind
    device: Device
    predicted_us: float | None
    notes: tuple[str, ...]
    kernel: str
    what: str

    def source(self) -> str:
        """The section of kernel.cu."""
        raise NotImplementedError

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities that it runs on."""
        own = self.device.compute_capability
        known = self.kind.or_later or own in self.kind.capabilities
        return self.kind.capabilities if known else (own,)


@dataclass(frozen=True, kw_only=True)
class KernelPath(AnyPath):
    """One path of a GEMM: what its kernel is compiled for, and the plan behind it."""

    config: GemmConfig
    plan: Plan

    def source(self) -> str:
        """The kernel with its includes inlined and its configuration written in."""
        return assemble(self.config.kernel, self.config.render())

    @property
    def capabilities(self) -> tuple[tuple[int, int], ...]:
        """Compute capabilities that it runs on."""
        if self.kind.or_later and self.config.tiling.mma.dtype.startswith("fp8"):
            return (FP8_CAPABILITY,)
        return super().capabilities


class AbsentPath(NamedTuple):
    """A path that the folder does not have, and why."""

    name: str
    why: str


@dataclass(frozen=True)
class Extras:
    """What the epilogue adds: beta * C, a bias a column."""

    has_c: bool = False
    has_bias: bool = False


def find_paths(
    problem: Matmul, plan: Plan, device: Device, extras: Extras
) -> tuple[list[KernelPath], list[AbsentPath]]:
    """The plan's own path and every simpler one, the most capable first.

    Raises:
        Unsupported, NoFit: the plan's own path has no kernel.
    """
    own = family(device)
    paths = [make_path(problem, plan, device, extras)]
    absent: list[AbsentPath] = []
    simpler = list(KINDS)[list(KINDS).index(own) + 1 :]
    for kind in (KINDS[name] for name in simpler):
        other = load(kind.fallback)
        try:
            paths.append(make_path(problem, make_plan(problem, other), other, extras))
        except TilewrightError as error:
            absent.append(AbsentPath(kind.name, str(error)))
    return paths, absent


def make_path(problem: Matmul, plan: Plan, device: Device, extras: Extras) -> KernelPath:
    """The path of one plan.

    Raises:
        Unsupported, NoFit: no kernel does this plan.
    """
    check_problem(problem)
    config, notes = make_config(problem, plan, device, extras)
    chosen = plan.conclusion
    predicted = chosen.predicted_us
    if (config.scheduler, "given") != (chosen.scheduler, chosen.tile_order):
        predicted = plan.schedule.schedulers[config.scheduler]["kernel_us"]
    kind = KINDS[config.tiling.mma.family]
    return KernelPath(
        kind=kind,
        device=device,
        predicted_us=predicted,
        notes=tuple(notes),
        kernel=config.kernel,
        what=f"{config.tiling.describe()}, {config.scheduler}",
        config=config,
        plan=plan,
    )


def make_config(
    problem: Matmul, plan: Plan, device: Device, extras: Extras
) -> tuple[GemmConfig, list[str]]:
    """What the plan's kernel is compiled for, and where it differs from the plan.

    Raises:
        Unsupported, NoFit
    """
    chosen = plan.conclusion
    if chosen.tile is None or chosen.raster is None:
        raise Unsupported("the plan is not one of a matrix product: it names no tile")
    notes = []
    scheduler = choose_scheduler(plan, family(device))
    if scheduler != chosen.scheduler:
        notes.append(
            f"planned {chosen.scheduler}; no {family(device)} kernel has it, {scheduler} is the fastest that is there"
        )
    if chosen.tile_order != "given":
        notes.append(
            f"planned {chosen.tile_order}; the kernel takes tiles in the order of its tile map"
        )
    tiling = make_tiling(
        problem.dtype,
        problem.out_bytes,
        device,
        cta_tile=(chosen.tile.m, chosen.tile.n),
        cluster_shape=chosen.cluster_shape,
        cta_group=chosen.cta_group,
        num_stages=chosen.num_stages,
    )
    clc = plan.contract.clc
    config = GemmConfig(
        tiling,
        parse_raster(chosen.raster),
        scheduler,
        problem.out_dtype,
        schedule_depth=int(clc["depth"]) if clc and scheduler == "clc" else 1,
        ragged=_ragged(problem, swap_ab=chosen.swap_ab),
        max_groups=len(problem.counts) if isinstance(problem, GroupedGemm) else 1,
        swap_ab=chosen.swap_ab,
        has_c=extras.has_c,
        has_bias=extras.has_bias,
        store_by_tma=problem.n * problem.out_bytes % STORE_BYTES == 0,
    )
    _check_ragged_k(problem, tiling)
    fitted = fit_stages(config, device)
    if fitted is not config:
        notes.append(
            f"planned {tiling.num_stages} stages; prefix sums of {config.max_groups} groups leave room for "
            f"{fitted.tiling.num_stages}"
        )
    return fitted, notes


def check_problem(problem: Workload) -> None:
    """Refuse a problem that no kernel computes.

    Raises:
        Unsupported: with the nearest thing that works.
    """
    if isinstance(problem, Attention):
        raise Unsupported(
            "no attention kernel is emitted; there are gemm and grouped-gemm. "
            "tilewright plan attention gives the contract of one",
            given="attention",
            allowed="gemm, grouped-gemm",
            nearest="tilewright plan attention",
        )
    if isinstance(problem, TileList):
        raise Unsupported(
            "a list of tile costs is emitted by emit_tiles, around a tile function of your own",
            given="tiles",
            allowed="gemm, grouped-gemm",
        )
    for what, given, known in (
        ("inputs", problem.dtype, IN_DTYPES),
        ("outputs", problem.out_dtype, OUT_DTYPES),
    ):
        if given not in known:
            raise Unsupported(
                f"no GEMM kernel has {given} {what}; there are {', '.join(known)}",
                given=given,
                allowed=", ".join(known),
                nearest="fp8_e4m3" if given == "mxfp8" else "bf16",
            )
    for name, layout in (("A", problem.layout_a), ("B", problem.layout_b)):
        if layout != "k":
            raise Unsupported(
                f"{name} is contiguous along {layout}; the kernels read A and B contiguous along k. Hand over the "
                f"transposed copy and leave --layout-{name.lower()} at k",
                given=layout,
                allowed="k",
                nearest="k",
            )


def choose_scheduler(plan: Plan, instruction: str) -> str:
    """The plan's scheduler, or the fastest that a kernel of this family has."""
    known = _SCHEDULERS[instruction]
    if plan.conclusion.scheduler in known:
        return plan.conclusion.scheduler
    times = {
        name: row["kernel_us"] for name, row in plan.schedule.schedulers.items() if name in known
    }
    return min(times, key=lambda name: (round(times[name], 3), known.index(name)))


def parse_raster(text: str) -> Raster:
    """The raster that the plan prints."""
    match = _RASTER.fullmatch(text)
    if match is None:
        raise Unsupported(f'no kernel has the tile order "{text}"', given=text)
    return Raster("m" if match[1] == "m" else "n", int(match[2]))


def fit_stages(config: GemmConfig, device: Device) -> GemmConfig:
    """The configuration with as many of its stages as fit beside the prefix sums.

    Raises:
        NoFit: not even two.
    """
    tiling = config.tiling
    while config.smem_bytes > device.smem_per_cta_max_bytes and tiling.num_stages > 2:
        tiling = replace(tiling, num_stages=tiling.num_stages - 1)
        config = replace(config, tiling=tiling)
    config.check_fit(device)
    return config


def _ragged(problem: Matmul, *, swap_ab: bool) -> Ragged:
    """The ragged axis in the kernel's frame."""
    if isinstance(problem, Gemm):
        return "none"
    if problem.grouped == "k":
        return "k"
    return "n" if swap_ab else "m"


def _check_ragged_k(problem: Matmul, tiling: Tiling) -> None:
    """An instruction that crosses into the next group would add its products."""
    if not isinstance(problem, GroupedGemm) or problem.grouped != "k":
        return
    step = mma_k(problem.dtype)
    for group, count in enumerate(problem.counts):
        if count % step:
            nearest = -(-count // step) * step
            raise NoFit(
                f"counts[{group}] = {count} along k; one {tiling.mma.family} instruction takes {step}, and the last "
                f"would reach into the next group. Pad to {nearest}",
                given=count,
                allowed=f"a multiple of {step}",
                nearest=str(nearest),
            )

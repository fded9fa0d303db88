"""Emit a tile function of the user's in the loop of a plan's scheduler.

    blackwell   the plan's scheduler, cluster launch control too      compute capability 10.x
    hopper      clusters; an atomic counter in place of clc           9.0 or later
    portable    one CTA a tile, by arithmetic                         8.0 or later

The plan's costs go along: they are what the example tile takes, and what the benchmark compares with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.device import load
from tilewright.draft import Options
from tilewright.emit.configs import AbsentPath, AnyPath, PathKind
from tilewright.emit.constants import header_start, render_json
from tilewright.emit.folder import Emitted, check_place, read_template, write_folder
from tilewright.emit.readme import bullets, compile_commands, path_rows
from tilewright.emit.sections import architectures, render_kernel
from tilewright.errors import BadInput, TilewrightError
from tilewright.kernels.config import SCHEDULERS
from tilewright.kernels.harness import ENTRY, SIGNATURE, HarnessConfig, assemble, pack_arguments
from tilewright.kernels.source import read_source
from tilewright.plan import make_plan

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.kernels.harness import Meeting
    from tilewright.plan_model import Plan
    from tilewright.problem import TileList

COPIED = (
    "tiles.py",
    "paths.py",
    "driver.py",
    "arrays.py",
    "tile_arguments.py",
    "tiles.cpp",
    "driver.h",
    "test_tiles.py",
    "bench_tiles.py",
)
KERNEL = "harness.cu"
BY_ARITHMETIC = ("single_tile", "static", "static_blocked")
BLACKWELL = PathKind(
    "blackwell",
    "clusters, launch control",
    "b200",
    ((10, 0), (10, 3)),
    or_later=False,
    arch_suffix="a",
    guard="__CUDA_ARCH__ >= 1000",
)
HOPPER = PathKind(
    "hopper",
    "clusters",
    "h200",
    ((9, 0),),
    or_later=True,
    arch_suffix="a",
    guard="__CUDA_ARCH__ >= 900",
)
PORTABLE = PathKind(
    "portable", "one CTA a tile", "a100", ((8, 0),), or_later=True, arch_suffix="", guard=""
)
KINDS = (BLACKWELL, HOPPER, PORTABLE)


@dataclass(frozen=True, kw_only=True)
class TilePath(AnyPath):
    """One path of a tile function: the loop that it is compiled into."""

    config: HarnessConfig
    tile: str

    def source(self) -> str:
        """The loop with its includes inlined, its configuration and the tile function written in."""
        return assemble(self.config, self.tile)


def _make_path(
    kind: PathKind,
    config: HarnessConfig,
    device: Device,
    tile: str,
    predicted_us: float | None = None,
    notes: tuple[str, ...] = (),
) -> TilePath:
    size = config.cluster_size
    return TilePath(
        kind=kind,
        device=device,
        predicted_us=predicted_us,
        notes=notes,
        kernel=KERNEL,
        what=f"tiles of {size} CTA{'s' * (size > 1)}, {config.scheduler}",
        config=config,
        tile=tile,
    )


@dataclass(frozen=True)
class Around:
    """What the loop around the tile function does beside taking tiles.

    Attributes:
        barrier: who meets between two tiles.
        larger_clusters: the launch may prefer clusters of a multiple of the tile's.
    """

    barrier: Meeting = "cta"
    larger_clusters: bool = False


def emit_tiles(
    problem: TileList,
    device: Device,
    out: Path | str,
    *,
    options: Options | None = None,
    tile: Path | str | None = None,
    around: Around | None = None,
    force: bool = False,
) -> Emitted:
    """Write a folder with a tile function under the planned scheduler.

    Args:
        tile: a file that defines the function of `kernels.harness.SIGNATURE`; None takes an example that
            spends the cycles of the plan's costs.
    Raises:
        BadInput, Unsupported, NoFit
    """
    folder = Path(out)
    check_place(folder, force=force)
    source = _tile_source(tile)
    options = options or Options()
    plan = make_plan(problem, device, options)
    paths, absent = find_tile_paths(
        problem, plan, device, options.clc_depth, around or Around(), source
    )
    constants = _constants(plan, paths, absent, example=tile is None)
    title = f"{constants['problem']['num_tiles']} tiles, {'example' if tile is None else tile}"
    files = {
        "kernel.cu": render_kernel(title, paths, absent),
        "launch.json": render_json(constants),
        "launch.h": _header(constants),
        "costs.csv": "\n".join(["cost_cycles", *map(str, problem.costs(device.sm_clock_mhz))])
        + "\n",
        "plan.json": plan.model_dump_json(indent=2) + "\n",
        "README.md": Template(read_template("README_tiles.md")).substitute(
            _readme(title, plan, paths, absent)
        ),
        **{name: read_template(name) for name in COPIED},
    }
    write_folder(folder, files)
    return Emitted(folder, tuple(sorted(files)), tuple(paths), tuple(absent), plan)


def _tile_source(tile: Path | str | None) -> str:
    """The tile function between two lines, by which the emitted test finds it."""
    if tile is None:
        text = read_source("example_tile.cuh")
    else:
        try:
            text = Path(tile).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--tile {tile} cannot be read: {error}", given=tile) from None
    return f"// >>> tile function\n{text}\n// <<< tile function\n"


def find_tile_paths(
    problem: TileList, plan: Plan, device: Device, depth: int, around: Around, tile: str
) -> tuple[list[TilePath], list[AbsentPath]]:
    """The plan's own path and every simpler one.

    Raises:
        BadInput, Unsupported, NoFit: the plan's own path has no kernel.
    """
    own = _own_kind(device)
    scheduler, notes = _scheduler(plan, own)
    config = HarnessConfig(
        math.prod(plan.conclusion.cluster_shape),
        scheduler,
        depth,
        problem.threads,
        problem.smem_bytes,
        around.barrier,
        larger_clusters=around.larger_clusters,
    )
    config.check_fit(device)
    assemble(config, tile)  # refuses a file without the function
    predicted = plan.schedule.schedulers[scheduler]["kernel_us"]
    paths = [_make_path(own, config, device, tile, predicted, notes)]
    absent = []
    for kind in KINDS[KINDS.index(own) + 1 :]:
        other = load(kind.fallback)
        try:
            simpler, said = _simpler(config, kind)
            simpler.check_fit(other)
            paths.append(_make_path(kind, simpler, other, tile, notes=said))
        except TilewrightError as error:
            absent.append(AbsentPath(kind.name, str(error)))
    return paths, absent


def _own_kind(device: Device) -> PathKind:
    if not device.clusters:
        return PORTABLE
    return BLACKWELL if device.compute_capability >= (10, 0) else HOPPER


def _scheduler(plan: Plan, kind: PathKind) -> tuple[str, tuple[str, ...]]:
    """The plan's scheduler where the harness has it, and what is different."""
    chosen, notes = plan.conclusion, []
    known = BY_ARITHMETIC if kind is PORTABLE else tuple(SCHEDULERS)
    scheduler = chosen.scheduler
    if scheduler not in known:
        times = {
            name: row["kernel_us"]
            for name, row in plan.schedule.schedulers.items()
            if name in known
        }
        scheduler = min(times, key=lambda name: (round(times[name], 3), known.index(name)))
        notes.append(f"planned {chosen.scheduler}, which this path lacks; {scheduler} instead")
    if chosen.tile_order != "given":
        notes.append(
            f"planned {chosen.tile_order}: give the tiles in that order, the kernel does not sort"
        )
    return scheduler, tuple(notes)


def _simpler(config: HarnessConfig, kind: PathKind) -> tuple[HarnessConfig, tuple[str, ...]]:
    """The configuration for a GPU that has less."""
    scheduler = config.scheduler
    if kind is HOPPER and scheduler == "clc":
        scheduler = "dynamic_atomic"
    if kind is PORTABLE and scheduler not in BY_ARITHMETIC:
        scheduler = "static"
    if kind is PORTABLE and config.cluster_size > 1:
        raise BadInput(
            f"tiles of {config.cluster_size} CTAs need clusters: compute capability 9.0 or later",
            given=config.cluster_size,
            nearest="1",
        )
    simpler = replace(
        config,
        scheduler=scheduler,
        larger_clusters=config.larger_clusters and kind is not PORTABLE,
        barrier="cta" if kind is PORTABLE and config.barrier == "cluster" else config.barrier,
    )
    same = scheduler == config.scheduler
    return simpler, () if same else (f"{scheduler} in place of {config.scheduler}",)


def _constants(
    plan: Plan, paths: list[TilePath], absent: list[AbsentPath], *, example: bool
) -> dict[str, Any]:
    first = paths[0]
    return {
        "tilewright": __version__,
        "entry": ENTRY,
        "argument_bytes": len(pack_arguments(0)),
        "planned_for": first.device.product,
        "problem": {"num_tiles": plan.schedule.tiles},
        "example_tile": example,
        "paths": [_path(path) for path in paths],
        "absent": [entry._asdict() for entry in absent],
        "candidates": _candidates(plan, first),
    }


def _path(path: TilePath) -> dict[str, Any]:
    config = path.config
    return {
        "name": path.kind.name,
        "instruction": path.kind.instruction,
        "capabilities": [list(pair) for pair in path.capabilities],
        "or_later": path.kind.or_later,
        "arch_suffix": path.kind.arch_suffix,
        "planned_for": path.device.product,
        "predicted_us": None if path.predicted_us is None else round(path.predicted_us, 3),
        "notes": list(path.notes),
        "kernel": path.kernel,
        "cluster_size": config.cluster_size,
        "threads": config.threads,
        "smem_bytes": config.launch_smem_bytes,
        "scheduler": config.scheduler,
        "schedule_depth": config.depth,
        "persistent": config.is_persistent,
        "larger_clusters": config.larger_clusters,
    }


def _candidates(plan: Plan, path: TilePath) -> list[dict[str, Any]]:
    """The other schedulers that the plan simulated, for the benchmark."""
    found = []
    for scheduler, row in plan.schedule.schedulers.items():
        if scheduler not in SCHEDULERS or scheduler == path.config.scheduler:
            continue
        try:
            config = replace(path.config, scheduler=scheduler)
            config.check_fit(path.device)
        except TilewrightError:
            continue
        other = replace(path, config=config, predicted_us=row["kernel_us"], notes=())
        lines = [line for line in config.render().splitlines() if line.startswith("constexpr")]
        found.append(
            {**_path(other), "name": scheduler, "section": path.kind.name, "config": lines}
        )
    return found


def _header(constants: dict[str, Any]) -> str:
    lines = [
        *header_start(constants),
        "",
        f"constexpr int num_tiles = {constants['problem']['num_tiles']};",
        f"constexpr bool example_tile = {str(constants['example_tile']).lower()};",
        f"constexpr bool larger_clusters = {str(constants['paths'][0]['larger_clusters']).lower()};",
    ]
    return "\n".join(lines) + "\n"


def _readme(
    title: str, plan: Plan, paths: list[TilePath], absent: list[AbsentPath]
) -> dict[str, str]:
    all_paths: list[AnyPath] = list(paths)
    return {
        "title": title,
        "version": __version__,
        "product": str(plan.device["product"]),
        "summary": plan.conclusion.summary,
        "signature": SIGNATURE,
        "paths": path_rows(all_paths, absent),
        "notes": bullets(f"{path.kind.name}: {note}" for path in paths for note in path.notes)
        or "- none",
        "compile": compile_commands(all_paths),
        "nvcc": architectures(paths[0])[0].split()[0],
        "barrier": paths[0].config.barrier,
        "experiment": "\n".join(check.command for check in plan.validation.experiment),
        "fallbacks": bullets(
            f"{risk.risk}. {risk.fallback[:1].upper()}{risk.fallback[1:]}" for risk in plan.risks
        )
        or "- none",
    }

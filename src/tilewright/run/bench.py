"""Measure a plan's own candidates side by side, and a library, against what the model predicted.

Every option that the plan costed is compiled, checked and timed: all of them once a round, with L2
flushed before each launch. Predicted times have the device's launch latency added, because the events
around a launch see it.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tilewright.emit.candidates import configs_of_options
from tilewright.emit.configs import Extras, make_config, make_path
from tilewright.errors import Unsupported
from tilewright.mma import family
from tilewright.plan import DEFAULT, make_plan
from tilewright.problem import Attention, GroupedGemm, TileList
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.device_file import find_base
from tilewright.run.gemm import GemmKernel
from tilewright.run.library import NoLibrary, library_launch
from tilewright.run.measure import load_source, measure_clock
from tilewright.run.timing import ROUNDS, Timing, time_side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.device import Device
    from tilewright.draft import Options
    from tilewright.kernels.config import GemmConfig
    from tilewright.problem import Matmul, Workload
    from tilewright.run.check import Checked
    from tilewright.run.gpu import Gpu

CANDIDATES = 6
"""Options measured unless the caller wants more: the chosen one and the next best."""

LIBRARY = "library"
BENCH_MADS = 2**31
"""Of the float64 reference of a candidate: a sample of rows, since `run` checks them all."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One option, predicted and measured.

    Attributes:
        option: class of the tiling: single, cluster or pair.
        kernel: tile, cluster, stages, order of tiles in words.
        predicted_us: kernel time by the model, and launch latency.
        measured_us, spread: median over the rounds; half the interquartile range over it.
        worst: largest error over its bound; above 1 the result is wrong.
    """

    option: str
    kernel: str
    scheduler: str
    predicted_us: float
    measured_us: float = math.nan
    spread: float = math.nan
    worst: float = math.nan


@dataclass(frozen=True, slots=True)
class BenchRecord:
    """One problem on one GPU at one time.

    Attributes:
        planned_for: device of the model.
        clock_mhz: SM clock just after the measurement.
        launch_us: latency that every predicted time includes.
        library, library_us, library_spread: the peer in the same rounds; empty without.
    """

    problem: dict[str, Any]
    planned_for: str
    gpu: str
    driver: str
    date: str
    clock_mhz: float
    launch_us: float
    rounds: int
    rows: tuple[BenchRow, ...]
    library: str = ""
    library_us: float | None = None
    library_spread: float | None = None
    note: str = ""

    def to_json(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self), indent=2)


def case_of(problem: Matmul) -> GemmCase:
    """The problem as `check` takes it."""
    if isinstance(problem, GroupedGemm):
        return GemmCase(problem.m or 0, problem.n, problem.k or 0, counts=problem.counts)
    return GemmCase(problem.m, problem.n, problem.k, problem.batch)


def check_problem_on(
    gpu: Gpu, problem: Workload, device: Device, options: Options
) -> tuple[str, Checked]:
    """The plan's own kernel on this GPU: what it is, and its output against the reference.

    Raises:
        Unsupported: the plan is for another architecture, or no kernel computes the problem.
        TilewrightError
    """
    matmul = check_kernel(gpu, problem, device)
    config, _ = make_config(matmul, make_plan(matmul, device, options), device, Extras())
    run = GemmRun(gpu, GemmKernel(gpu, config), case_of(matmul))
    try:
        return f"{describe(config)}, {config.scheduler}", run.check()
    finally:
        run.close()


def bench_problem(
    gpu: Gpu,
    problem: Workload,
    device: Device,
    options: Options = DEFAULT,
    *,
    candidates: int = CANDIDATES,
    rounds: int = ROUNDS,
) -> BenchRecord:
    """Plan, compile, check and time the plan's options, the chosen one first.

    Args:
        device: what the model plans for; its kernels must be this GPU's.
    Raises:
        Unsupported: the plan is for another architecture, or no kernel computes the problem.
        TilewrightError: the plan fails, or none of its options has a kernel.
    """
    matmul = check_kernel(gpu, problem, device)
    plan = make_plan(matmul, device, options)
    launch_us = float(device.launch_us or 0.0)
    runs: dict[str, GemmRun] = {}
    rows: dict[str, BenchRow] = {}
    path = make_path(matmul, plan, device, Extras())
    for option, config in itertools.islice(configs_of_options(matmul, path), candidates):
        row = BenchRow(
            option.option, describe(config), config.scheduler, option.predicted_us + launch_us
        )
        name = f"{row.option} {row.scheduler}"
        first = next(iter(runs.values()), None)
        runs[name] = run = GemmRun(gpu, GemmKernel(gpu, config), case_of(matmul), like=first)
        checked = run.check(BENCH_MADS)
        rows[name] = replace(row, worst=math.inf if checked.unwritten else checked.worst)
    if not runs:
        raise Unsupported("none of the plan's options has a kernel")
    launches: dict[str, Callable[[], Any]] = {n: run.bound.launch for n, run in runs.items()}
    library, note = "", ""
    try:
        library, launches[LIBRARY] = library_launch(next(iter(runs.values())))
    except NoLibrary as error:
        note = str(error)
    times = time_side_by_side(gpu, launches, rounds)
    clock = measure_clock(gpu, load_source(gpu, "memory.cu")("spin")).value
    for run in runs.values():
        run.close()
    peer = times.get(LIBRARY)
    return BenchRecord(
        problem=problem.model_dump(),
        planned_for=device.name,
        gpu=gpu.name,
        driver=gpu.driver_version,
        date=datetime.now(UTC).date().isoformat(),
        clock_mhz=clock,
        launch_us=launch_us,
        rounds=rounds,
        rows=tuple(_timed(row, times[name]) for name, row in rows.items()),
        library=library,
        library_us=round(peer.us, 2) if peer else None,
        library_spread=round(peer.spread, 4) if peer else None,
        note=note,
    )


def check_kernel(gpu: Gpu, problem: Workload, device: Device) -> Matmul:
    """Refuse a plan whose kernels this GPU does not run, and a problem without one.

    Raises:
        Unsupported
    """
    if isinstance(problem, Attention | TileList):
        raise Unsupported(
            f"no kernel of {problem.kind} is launched here; there are gemm and grouped-gemm",
            given=problem.kind,
            allowed="gemm, grouped-gemm",
        )
    own = gpu.attribute("compute_capability_major"), gpu.attribute("compute_capability_minor")
    if family(device) == "mma.sync" and own >= (8, 0):
        return problem
    if own != device.compute_capability:
        same = find_base(gpu.name, own).name
        raise Unsupported(
            f"{gpu.name} has compute capability {own[0]}.{own[1]}; the plan is for {device.name} "
            f"({device.arch}). Plan for this GPU with --device {same}",
            given=device.name,
            allowed=same,
            nearest=same,
        )
    return problem


def _timed(row: BenchRow, timing: Timing) -> BenchRow:
    return replace(row, measured_us=round(timing.us, 2), spread=round(timing.spread, 4))


def describe(config: GemmConfig) -> str:
    """The kernel in one line."""
    swapped = ", transposed product" if config.swap_ab else ""
    return f"{config.tiling.describe()}, {config.raster}{swapped}"

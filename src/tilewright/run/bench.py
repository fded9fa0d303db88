"""Measure a plan's own candidates side by side, and a library, against what the model predicted.

Every option that the plan costed is compiled, checked and timed: all of them once a round, with L2
flushed before each launch. Predicted times have the device's launch latency added, because the events
around a launch see it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tilewright.draft import Options
from tilewright.emit.configs import Extras, make_config
from tilewright.errors import TilewrightError
from tilewright.plan import make_plan
from tilewright.problem import GroupedGemm
from tilewright.run.bindings import CudaFailed
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.gemm import GemmKernel
from tilewright.run.library import NoLibrary, library_launch
from tilewright.run.measure import load_source, measure_clock
from tilewright.run.timing import ROUNDS, Timing, time_side_by_side

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.device import Device
    from tilewright.kernels.config import GemmConfig
    from tilewright.plan_model import OptionRow, Plan
    from tilewright.problem import Matmul
    from tilewright.run.gpu import Gpu

CANDIDATES = 6
"""Options measured unless the caller wants more: the chosen one and the next best."""


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One option, predicted and measured.

    Attributes:
        option: class of the tiling: single, cluster or pair.
        kernel: tile, cluster, stages, order of tiles in words.
        predicted_us: kernel time by the model, and launch latency.
        measured_us, spread: median over the rounds; half the interquartile range over it.
        worst: largest error over its bound; above 1 the result is wrong.
        note: why there is no measurement.
    """

    option: str
    kernel: str
    scheduler: str
    predicted_us: float
    measured_us: float | None = None
    spread: float | None = None
    worst: float | None = None
    note: str = ""


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


def plan_of_option(problem: Matmul, device: Device, row: OptionRow) -> Plan:
    """The plan that has exactly this option."""
    m, n = (int(extent) for extent in row.tile.split(",")[0].split("x")[:2])
    fixed = Options(
        cluster_shape=row.cluster_shape,
        cta_group=row.cta_group,
        tile=(m, n),
        scheduler=row.scheduler,  # type: ignore[arg-type]
    )
    return make_plan(problem, device, fixed)


def bench_problem(
    gpu: Gpu,
    problem: Matmul,
    device: Device,
    *,
    candidates: int = CANDIDATES,
    rounds: int = ROUNDS,
) -> BenchRecord:
    """Plan, compile, check and time.

    Args:
        device: what the model plans for; it must have the kernels of this GPU.
    Raises:
        TilewrightError: the plan fails, or none of its options has a kernel.
    """
    launch_us = float(device.launch_us or 0.0)
    options = make_plan(problem, device).schedule.options
    runs: dict[str, GemmRun] = {}
    rows: dict[str, BenchRow] = {}
    for option in options:
        if len(rows) == candidates:
            break
        plan = plan_of_option(problem, device, option)
        name = f"{option.option} {option.scheduler}"
        row = BenchRow(option.option, "", option.scheduler, option.predicted_us + launch_us)
        try:
            config, _ = make_config(problem, plan, device, Extras())
            if config.scheduler != option.scheduler:
                continue  # a scheduler that no kernel has
            row = replace(row, kernel=describe(config))
            runs[name] = GemmRun(gpu, GemmKernel(gpu, config), case_of(problem))
            checked = runs[name].check()
        except CudaFailed:
            raise  # after a failed launch nothing else works
        except TilewrightError as error:
            rows[name] = replace(row, note=str(error))
            continue
        worst = float("inf") if checked.unwritten else checked.worst
        rows[name] = replace(row, worst=worst)
    launches: dict[str, Callable[[], Any]] = {n: run.bound.launch for n, run in runs.items()}
    library, note = "", ""
    try:
        library, launches["library"] = library_launch(next(iter(runs.values())))
    except NoLibrary as error:
        note = str(error)
    except StopIteration:
        raise TilewrightError("none of the plan's options has a kernel") from None
    times = time_side_by_side(gpu, launches, rounds)
    clock = measure_clock(gpu, load_source(gpu, "memory.cu")("spin")).value
    for run in runs.values():
        run.close()
    peer = times.get("library")
    return BenchRecord(
        problem=problem.model_dump(),
        planned_for=device.name,
        gpu=gpu.name,
        driver=gpu.driver_version,
        date=datetime.now(UTC).date().isoformat(),
        clock_mhz=clock,
        launch_us=launch_us,
        rounds=rounds,
        rows=tuple(_timed(row, times.get(name)) for name, row in rows.items()),
        library=library,
        library_us=peer.us if peer else None,
        library_spread=peer.spread if peer else None,
        note=note,
    )


def _timed(row: BenchRow, timing: Timing | None) -> BenchRow:
    if timing is None:
        return row
    return replace(row, measured_us=round(timing.us, 2), spread=round(timing.spread, 4))


def describe(config: GemmConfig) -> str:
    """The kernel in one line."""
    swapped = ", transposed product" if config.swap_ab else ""
    return f"{config.tiling.describe()}, {config.raster}{swapped}"

"""A plan's own kernel on the emulator: small problems around the resident clusters, against a float64 reference."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.emit.configs import Extras, make_path
from tilewright.emit.folder import problem_of
from tilewright.emulate import CheckFailed, Options
from tilewright.emulate.explore import vary
from tilewright.emulate.report import Outcome, Report
from tilewright.ptx.finding import Finding
from tilewright.ptx.source import Source
from tilewright.run.check import GemmCase, GemmRun, ragged_axis
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.emulated_check import Checked, Replay
from tilewright.run.gemm import GemmKernel
from tilewright.run.traced import trace_kernel

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.device import Device
    from tilewright.kernels.config import GemmConfig
    from tilewright.plan_model import Plan
    from tilewright.run.emulated_check import Schedules
    from tilewright.timeline import Timeline

RESIDENT = 2
"""Clusters at once, where the schedule's seed does not say otherwise."""

TILES = (RESIDENT - 1, RESIDENT, RESIDENT + 1, 2 * RESIDENT + 1)


def check_plan(
    plan: Plan,
    device: Device,
    schedules: Schedules,
    *,
    trace: bool = False,
    use_cache: bool = True,
    progress: Callable[[int], None] | None = None,
) -> Checked:
    """Run the plan's kernel under schedules that are spread over small problems: the seed says which.

    Args:
        device: that the plan names.
        schedules: how many from which seed on, with or without races; the rest is the seed's.
        trace: where nothing fails, run the largest of the problems once more with the tiles' times kept.
        use_cache: compiled kernels may be kept in a folder of the user's.
    Raises:
        Unsupported, NoFit: no kernel does this plan.
        MissingCuda: no compiler.
    """
    path = make_path(problem_of(plan), plan, device, Extras())
    major, minor = path.capabilities[0]
    architecture = f"sm_{major}{minor}{path.kind.arch_suffix}"
    config, races = path.config, schedules.races
    report = Report("tilewright_gemm")
    worst = 0.0
    cases = list(small_cases(config))
    with EmulatedGpu(architecture, resident=RESIDENT, races=races) as gpu:
        kernel = GemmKernel(gpu, config, use_cache=use_cache)
        runs = [GemmRun(gpu, kernel, case) for case in cases]
        for seed in range(schedules.first_seed, schedules.first_seed + schedules.count):
            run = runs[seed % len(runs)]
            gpu.seed, gpu.options = seed, _options(config, run, seed, races=races)
            outcome, error = _one(gpu, run)
            worst = max(worst, error)
            report.outcomes.append(outcome)
            if progress is not None:
                progress(len(report.outcomes))
            if outcome.verdict == "fail":
                break
        timed = None
        if trace and report.failing is None:
            try:
                timed = _timed(gpu, plan, runs[-1], schedules.first_seed, use_cache=use_cache)
            except CheckFailed as failed:
                # the kernel that keeps times is one of the plan's as well
                report.outcomes += failed.report.outcomes
    failing = report.failing
    notes = [
        f"problems: {', '.join(map(describe, cases))}",
        f"largest error: {worst:.3g} of its bound",
    ]
    if timed is not None:
        notes.append(f"trace: {describe(cases[-1])}, seed {schedules.first_seed}")
    replay = None if failing is None else Replay(failing.seed)
    return Checked(report, failing, replay, None, tuple(notes), timed)


def _timed(gpu: EmulatedGpu, plan: Plan, run: GemmRun, seed: int, *, use_cache: bool) -> Timeline:
    """A problem again, by the kernel that keeps its tiles' times."""
    config = run.config
    gpu.seed, gpu.options = seed, _options(config, run, seed, races=gpu.options.races)
    planned = _sms_planned(plan)
    return trace_kernel(gpu, config, run.case, planned=planned, use_cache=use_cache)


def _sms_planned(plan: Plan) -> int | None:
    """SMs that a cluster of the plan has to itself; None where CTAs share SMs."""
    size = math.prod(plan.conclusion.cluster_shape)
    row = next((r for r in plan.contract.residency if r.cluster_size == size), None)
    return size if row is not None and row.ctas_per_sm == 1 else None


def _options(config: GemmConfig, run: GemmRun, seed: int, *, races: bool) -> Options:
    """How a seed's schedule is run."""
    resident, declines = RESIDENT, frozenset[int]()
    if config.scheduler == "clc":
        found, declines = vary(seed, run.bound.grid_clusters, None, None)
        resident = found or RESIDENT
    return Options(resident=resident, decline_at=declines, races=races)


def _one(gpu: EmulatedGpu, run: GemmRun) -> tuple[Outcome, float]:
    try:
        checked = run.check()
    except CheckFailed as failed:
        return failed.report.outcomes[0], 0.0
    outcome = gpu.outcomes[-1]
    if not checked.passed:
        text = (
            f"{describe(run.case)}: the worst element is {checked.worst:.3g} times its bound off, "
            f"{checked.unwritten} were not written"
        )
        span = Source("kernel.cu", " ").span(0, 1)
        wrong = Finding("RESULT", "error", text, span, "tilewright_gemm")
        outcome = replace(outcome, findings=(*outcome.findings, wrong))
    return outcome, checked.worst


def small_cases(config: GemmConfig) -> list[GemmCase]:
    """Problems of as many tiles as R - 1, R, R + 1 and 2 R + 1, with odd edges; groups, some empty, if ragged."""
    tile = config.tiling.cluster_tile
    rows, columns = (tile.n, tile.m) if config.swap_ab else (tile.m, tile.n)
    step = config.tiling.cta_tile.k
    axis, most = ragged_axis(config), config.max_groups
    if axis == "k":
        steps = ((1, 0), (1, 2), (0, 1, 1), (2, 0, 1, 1, 1))
        counts = [tuple(step * i for i in given[:most]) for given in steps]
        return [GemmCase(rows - 3, columns, 0, counts=given) for given in counts]
    if axis == "m":
        extents = ((rows, 0), (1, 0, rows), (rows + 1, 5, 0), (2 * rows, 0, 3, 0, rows + 1))
        return [GemmCase(0, columns, step, counts=given[:most]) for given in extents]
    return [
        GemmCase(rows * tiles - (3 if tiles > 1 else 0), columns, step * (1 + tiles % 2))
        for tiles in TILES
    ]


def describe(case: GemmCase) -> str:
    """A problem in a few words."""
    counts = f" by groups of {', '.join(map(str, case.counts))}" if case.counts else ""
    return f"{case.m} x {case.n} x {case.k}{counts}"

"""When and where each tile of a plan's kernel ran, on a GPU or on the emulator, beside the plan's own simulation."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tilewright.emit.configs import Extras, make_config
from tilewright.plan import draft_of, plan_of
from tilewright.run.bench import case_of, check_kernel
from tilewright.run.check import GemmRun
from tilewright.run.gemm import GemmKernel
from tilewright.timeline import of_times

if TYPE_CHECKING:
    from tilewright.device import Device
    from tilewright.draft import Options
    from tilewright.kernels.config import GemmConfig
    from tilewright.problem import Matmul, Workload
    from tilewright.run.check import GemmCase
    from tilewright.run.gpu import Gpu
    from tilewright.run.unit import Unit
    from tilewright.timeline import Timeline

WARM_UPS = 2
"""Launches of a GPU before the one that counts."""


def trace_problem_on(
    gpu: Gpu, problem: Workload, device: Device, options: Options
) -> tuple[Timeline, Timeline]:
    """The plan's kernel measured tile by tile on this GPU, and simulated.

    Raises:
        Unsupported: as `check_problem_on`.
        TilewrightError
    """
    return trace_problem(gpu, check_kernel(gpu, problem, device), device, options)


def trace_problem(
    unit: Unit, problem: Matmul, device: Device, options: Options
) -> tuple[Timeline, Timeline]:
    """The plan's kernel timed tile by tile where it runs, and simulated.

    Args:
        unit: with as many clusters resident as the plan counts on, both have the same slots.
    """
    draft = draft_of(problem, device, options)
    config, _ = make_config(problem, plan_of(draft, problem, device), device, Extras())
    [simulated] = draft.timelines((), device)
    timed = trace_kernel(unit, config, case_of(problem), planned=simulated.sms_per_slot)
    return timed, simulated


def trace_kernel(
    unit: Unit,
    config: GemmConfig,
    case: GemmCase,
    *,
    planned: int | None = None,
    use_cache: bool = True,
) -> Timeline:
    """One launch of a kernel that keeps its tiles' times.

    It is compiled once more with `GemmConfig.timeline`; %globaltimer is read twice a tile and CTA, and around each
    request for work.

    Args:
        planned: SMs that a cluster has to itself, where there is no chip that could tell.
    """
    timed = replace(config, timeline=True)
    kernel = GemmKernel(unit, timed, use_cache=use_cache)
    run = GemmRun(unit, kernel, case)
    try:
        times, requests = run.times(WARM_UPS if unit.source == "measured" else 0)
    finally:
        run.close()
    alone, sms, size = planned, unit.sm_count, config.cluster_size
    if sms is not None:
        alone = size if kernel.resident_clusters * size <= sms else None  # at most a CTA an SM
    return of_times(times, config.scheduler, requests, source=unit.source, sms_per_slot=alone)

"""When and where each tile of a plan's kernel ran on the GPU at hand, beside the plan's own simulation."""

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
    from tilewright.problem import Workload
    from tilewright.run.gpu import Gpu
    from tilewright.timeline import Timeline


def trace_problem_on(
    gpu: Gpu, problem: Workload, device: Device, options: Options
) -> tuple[Timeline, Timeline]:
    """The plan's kernel measured tile by tile, and simulated.

    The kernel is compiled once more with `GemmConfig.timeline`; %globaltimer is read twice a tile and CTA, and
    around each request for work.

    Raises:
        Unsupported: as `check_problem_on`.
        TilewrightError
    """
    matmul = check_kernel(gpu, problem, device)
    draft = draft_of(matmul, device, options)
    config, _ = make_config(matmul, plan_of(draft, matmul, device), device, Extras())
    config = replace(config, timeline=True)
    kernel = GemmKernel(gpu, config)
    run = GemmRun(gpu, kernel, case_of(matmul))
    try:
        times, requests = run.times()
    finally:
        run.close()
    sms = gpu.attribute("multiprocessor_count")
    alone = kernel.resident_clusters * config.cluster_size <= sms  # at most a CTA an SM
    measured = of_times(
        times, config.scheduler, requests, sms_per_slot=config.cluster_size if alone else None
    )
    [simulated] = draft.timelines((), device)
    return measured, simulated

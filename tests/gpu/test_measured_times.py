"""Times that kernels keep, on the GPU at hand: every tile once, no two at once, as long as the kernel took.

And beside the emulation and the simulation of the same plan: the same tracks in one file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tilewright.draft import Options
from tilewright.problem import Gemm, GroupedGemm, Workload
from tilewright.report.trace import problems, render_trace
from tilewright.run.device_file import find_base
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gpu import Gpu
from tilewright.run.traced import trace_problem, trace_problem_on
from trace_events import check_alike
from traced_plans import PROBLEM, SCHEDULERS, TILES, options

if TYPE_CHECKING:
    from tilewright.sim import Scheduler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(
    ("problem", "scheduler"),
    [
        (Gemm(m=4096, n=4096, k=4096), "static"),
        (Gemm(m=4096, n=4096, k=4096), "single_tile"),
        (Gemm(m=4096, n=4096, k=4096), "dynamic_atomic"),
        (GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096), "static"),
    ],
)
def test_every_tile_once(problem: Workload, scheduler: str) -> None:
    with Gpu() as gpu:
        own = gpu.attribute("compute_capability_major"), gpu.attribute("compute_capability_minor")
        device = find_base(gpu.name, own)
        chosen = Options(scheduler=scheduler)  # type: ignore[arg-type]
        measured, simulated = trace_problem_on(gpu, problem, device, chosen)
    per_rank = {
        rank: sorted(s.tile for s in measured.spans if s.rank == rank)
        for rank in range(measured.ctas_per_slot)
    }
    tiles = sorted({s.tile for s in simulated.spans})
    assert all(found == tiles for found in per_rank.values())
    assert all(s.end_ns > s.start_ns for s in measured.spans)
    assert not list(problems(json.loads(render_trace([measured, simulated]))))
    took = measured.end_ns - measured.start_ns
    expected = simulated.end_ns - simulated.start_ns
    assert took == pytest.approx(expected, rel=0.25)  # the model's worst error is 14 %
    if scheduler == "dynamic_atomic":
        first_wave = {s.worker for s in measured.spans}
        assert len(measured.requests) == len(tiles) - len(first_wave)
        assert all(0 < r.answer_ns - r.ask_ns < 100_000 for r in measured.requests)
    if scheduler == "static":
        assert measured.slots == simulated.slots


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_three_views_of_a_plan_lie_in_one_file(scheduler: Scheduler) -> None:
    with Gpu() as gpu:
        own = gpu.attribute("compute_capability_major"), gpu.attribute("compute_capability_minor")
        device, arch = find_base(gpu.name, own), gpu.architecture
        measured, simulated = trace_problem_on(gpu, PROBLEM, device, options(scheduler))
    with EmulatedGpu(arch, resident=simulated.slots, races=False) as emulator:
        emulated, _ = trace_problem(emulator, PROBLEM, device, options(scheduler))
    named = {
        f"simulated {scheduler}": simulated,
        f"emulated {scheduler} (1 ns: 1 warp instruction)": emulated,
        f"measured {scheduler}": measured,
    }
    found = check_alike(named, TILES)
    assert len({len(each.arrows) for each in found.values()}) == 1

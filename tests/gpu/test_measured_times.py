"""Times that kernels keep, on the GPU at hand: every tile once, no two at once, as long as the kernel took."""

from __future__ import annotations

import json

import pytest

from tilewright.draft import Options
from tilewright.problem import Gemm, GroupedGemm, Workload
from tilewright.report.trace import problems, render_trace
from tilewright.run.device_file import find_base
from tilewright.run.gpu import Gpu
from tilewright.run.traced import trace_problem_on

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
        options = Options(scheduler=scheduler)  # type: ignore[arg-type]
        measured, simulated = trace_problem_on(gpu, problem, device, options)
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

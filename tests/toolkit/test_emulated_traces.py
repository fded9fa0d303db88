"""Timelines of emulated kernels: what a plan's kernel keeps of itself, beside its simulation and its measurement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from console import run
from tilewright.candidates import Busy
from tilewright.device import load
from tilewright.draft import Options
from tilewright.emulate import Buffers, prepare
from tilewright.emulate.machine import Options as Run
from tilewright.kernels.harness import TIMELINE, HarnessConfig, assemble, pack_arguments
from tilewright.problem import Gemm
from tilewright.report.trace import problems
from tilewright.run.compiler import compile_source
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.traced import trace_problem
from tilewright.timeline import DECLINED, of_history, of_times
from trace_events import check_alike, check_format, shown
from traced_plans import PROBLEM, SCHEDULERS, SLOTS, TILES, options, recorded

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.emulate.report import Outcome
    from tilewright.sim import Scheduler
    from tilewright.timeline import Timeline

pytestmark = pytest.mark.toolkit

RECORD = Path(__file__).parents[1] / "data" / "h200" / "times.json"
EMULATED = "emulated {} (1 ns: 1 warp instruction)"


def both(
    problem: Gemm, device: str, chosen: Options, arch: str, resident: int
) -> tuple[Timeline, Timeline]:
    with EmulatedGpu(arch, resident=resident, races=False) as gpu:
        return trace_problem(gpu, problem, load(device), chosen)


@pytest.fixture(scope="module")
def timelines() -> dict[Scheduler, tuple[Timeline, Timeline]]:
    """Of each plan: emulated, simulated."""
    return {name: both(PROBLEM, "h200", options(name), "sm_90a", SLOTS) for name in SCHEDULERS}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_simulated_and_emulated_runs_of_a_plan_are_alike(
    timelines: dict[Scheduler, tuple[Timeline, Timeline]], scheduler: Scheduler
) -> None:
    emulated, simulated = timelines[scheduler]
    named = {f"simulated {scheduler}": simulated, EMULATED.format(scheduler): emulated}
    found = check_alike(named, TILES)
    assert found[f"simulated {scheduler}"].workers == {f"worker {slot}" for slot in range(SLOTS)}
    drawn = TILES - SLOTS if scheduler == "dynamic_atomic" else 0
    assert {len(each.arrows) for each in found.values()} == {drawn}
    assert {s.sm for s in emulated.spans} == set(range(2 * SLOTS))
    for rank in range(2):
        assert sorted(s.tile for s in emulated.spans if s.rank == rank) == list(range(TILES))


@pytest.mark.parametrize("record", [RECORD] if RECORD.exists() else [], ids=str)
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_a_measured_run_lies_beside_them(
    timelines: dict[Scheduler, tuple[Timeline, Timeline]], scheduler: Scheduler, record: Path
) -> None:
    """Three processes in one file."""
    emulated, simulated = timelines[scheduler]
    measured = recorded(record, scheduler)
    named = {
        f"simulated {scheduler}": simulated,
        EMULATED.format(scheduler): emulated,
        f"measured {scheduler}": measured,
    }
    found = check_alike(named, TILES)
    assert len({len(each.arrows) for each in found.values()}) == 1
    assert {s.sm for s in measured.spans} == set(range(2 * SLOTS))


@pytest.mark.parametrize("scheduler", ["clc", "single_tile", "static"])
def test_a_plan_for_a_gpu_that_is_not_there(scheduler: Scheduler) -> None:
    """B200, four SMs: 12 tiles on four clusters of one CTA. Where tiles go is the schedule's to say, not that they do."""
    chosen = Options(cluster_shape=(1, 1, 1), tile=(128, 64), scheduler=scheduler, busy=Busy(0, 4))
    emulated, simulated = both(Gemm(m=6 * 128, n=128, k=64), "b200", chosen, "sm_100a", 4)
    named = {f"simulated {scheduler}": simulated, EMULATED.format(scheduler): emulated}
    found = check_alike(named, 12)
    assert found[f"simulated {scheduler}"].workers == {f"worker {slot}" for slot in range(4)}
    granted = {f"tile {tile}" for tile in range(4, 12)} if scheduler == "clc" else set()
    assert {to for _, to in found[EMULATED.format(scheduler)].arrows} == granted
    assert {to for _, to in found[f"simulated {scheduler}"].arrows} == granted


def kept(
    scheduler: str, size: int, tiles: int, resident: int, seed: int
) -> tuple[Outcome, NDArray[np.void]]:
    """A run of the tile harness: what the emulator saw, and what the kernel kept of its own tiles."""
    config = HarnessConfig(size, scheduler, threads=64, timeline=True)
    tile = "__device__ void tilewright_tile(const Tile&, void*, unsigned char*) {}"
    text = compile_source(assemble(config, tile), "harness.cu", "sm_100a").ptx
    times = np.zeros((tiles, size), TIMELINE)
    raw, buffers = times.view(np.uint8), Buffers()
    counter = np.zeros(2, np.uint32)
    argument = pack_arguments(
        tiles, work_counter=buffers.address_of(counter), timeline=buffers.address_of(raw)
    )
    ready = prepare(
        text,
        grid=config.grid_ctas(tiles, resident * size),
        block=config.threads,
        cluster=size,
        args=[argument],
        smem_bytes=config.launch_smem_bytes,
        buffers=buffers,
    )
    outcome = ready.run(
        ready.strategy(seed),
        Run(resident=resident, decline_at=frozenset({3})),
    )
    assert outcome.verdict == "pass", outcome.findings
    return outcome, times


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("scheduler", ["clc", "single_tile"])
def test_the_emulator_and_the_kernel_tell_the_same_of_a_run(
    scheduler: str, size: int, seed: int
) -> None:
    """Who did which tile in which slot, by the kernel's own %ctaid, %smid and %globaltimer."""
    outcome, times = kept(scheduler, size, tiles=11, resident=3, seed=seed)
    by_emulator = of_history(outcome.history)
    by_kernel = of_times(times, scheduler, source="emulated")
    seen = {s.tile: s for s in by_emulator.spans}
    assert sorted(s.tile for s in by_emulator.spans) == list(range(11))
    for span in by_kernel.spans:
        other = seen[span.tile]
        assert (span.worker, span.sm) == (other.worker, other.slot * size + span.rank)
    for slot in range(3):
        mine = [
            s.tile for s in sorted(by_emulator.spans, key=lambda s: s.start_ns) if s.slot == slot
        ]
        theirs = [s for s in by_kernel.spans if seen[s.tile].slot == slot and not s.rank]
        assert [s.tile for s in sorted(theirs, key=lambda s: s.start_ns)] == mine
    for span in (
        by_emulator.spans
    ):  # the same clock: the last warp of all CTAs ends a tile within its slice
        assert span.start_ns < times["end_ns"][span.tile].max() <= span.end_ns
    if scheduler == "clc":
        workers = {s.worker for s in by_emulator.spans}
        granted = {r.tile for r in by_emulator.requests} - {DECLINED}
        assert granted == set(range(11)) - workers


def test_the_command_writes_a_plan_s_trace(tmp_path: Path) -> None:
    """Of its largest problem, five tiles on two clusters."""
    tiles = "--cluster 2,1,1 --tile 128,64 --scheduler clc"
    line = f"tilewright plan gemm --m 2048 --n 2048 --k 512 --device b200 {tiles} --json"
    (tmp_path / "plan.json").write_text(run(line, tmp_path).out)
    done = run("tilewright check --plan plan.json --schedules 2 --trace t.json", tmp_path)
    assert done.code == 0, done.err
    assert "Written: t.json" in done.out
    assert "trace: 1277 x 64 x 128, seed 0" in done.out
    trace = json.loads((tmp_path / "t.json").read_text())
    check_format(trace)
    assert not list(problems(trace))
    found = shown(trace, 1)
    assert found.name == EMULATED.format("clc")
    assert dict(found.tiles) == {f"tile {tile}": 1 for tile in range(5)}
    assert {to for _, to in found.arrows} == {"tile 2", "tile 3", "tile 4"}
    assert found.counters == {"tiles waiting": (5, 0), "SMs busy": (4, 0)}

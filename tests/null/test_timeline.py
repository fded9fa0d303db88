"""The record behind pages and traces: a simulated run in nanoseconds, and measured times as slots and workers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tilewright.device import load
from tilewright.draft import Options
from tilewright.kernels.abi import REQUESTS
from tilewright.kernels.harness import TIMELINE
from tilewright.plan import draft_of
from tilewright.problem import TileList
from tilewright.report.trace import problems, render_trace
from tilewright.schedule import schedulers_for
from tilewright.sim import Busy, Disturbance, Overheads, Run, Scheduler, simulate
from tilewright.timeline import DECLINED, of_run, of_times
from traced_plans import as_rows, recorded

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

SIZE = 2
OVERHEADS = Overheads(prologue_cycles=40, turnover_cycles=900, tile_overhead_cycles=10)
BEGAN_NS = 1_700_000_000_000_000_000
"""What %globaltimer says is nanoseconds since 1970."""


def kept_by_a_kernel(run: Run) -> NDArray[np.void]:
    """What a kernel of clusters of two would have kept of a run at 1 GHz: slot s on SMs 2 s and 2 s + 1."""
    times = np.zeros((len(run.costs_cycles), SIZE), TIMELINE)
    for row in range(len(run.tile)):
        for rank in range(SIZE):
            entry = times[run.tile[row], rank]
            entry["start_ns"] = BEGAN_NS + run.start_cycles[row] + rank
            entry["end_ns"] = BEGAN_NS + run.end_cycles[row]
            entry["sm"] = SIZE * run.slot[row] + rank
            entry["cta"] = SIZE * run.worker[row] + rank
    return times


@pytest.mark.parametrize("scheduler", ["static", "single_tile", "clc"])
def test_measured_times_are_the_simulation_s_slots_and_workers(scheduler: Scheduler) -> None:
    costs = np.random.default_rng(3).integers(2_000, 30_000, 200)
    run = simulate(scheduler, costs, 12, overheads=OVERHEADS, record=True)
    simulated, measured = of_run(run, 1000.0), of_times(kept_by_a_kernel(run), scheduler, sms_per_slot=2)  # fmt: skip
    assert measured.slots == simulated.slots
    first = run.first_start_cycles
    theirs = {
        (s.tile, s.worker, s.slot, s.start_ns - first, s.end_ns - first) for s in simulated.spans
    }
    assert {s[:5] for s in measured.spans if s.rank == 0} == theirs
    assert {(s.rank, s.sm) for s in measured.spans} == {(sm % 2, sm) for sm in range(24)}
    trace: dict[str, Any] = json.loads(render_trace([measured, simulated]))
    assert not list(problems(trace))
    names = [
        {
            e["args"]["name"]
            for e in trace["traceEvents"]
            if e["name"] == "thread_name" and e["pid"] == pid
        }
        for pid in (1, 2)
    ]
    assert {n for n in names[1] if "requests" not in n} == {f"worker {s}" for s in range(12)}
    assert names[0] == {f"worker {s}{who}" for s in range(12) for who in ("", ", CTA 1")}
    busy = [e["args"]["SMs busy"] for e in trace["traceEvents"] if e["name"] == "SMs busy"]
    assert max(busy) == 24


def test_requests_that_a_kernel_kept_are_the_simulation_s() -> None:
    costs = np.random.default_rng(3).integers(20_000, 30_000, 200)
    run = simulate("clc", costs, 12, overheads=OVERHEADS, record=True)
    kept = np.zeros(len(costs), REQUESTS)
    for request in run.requests:
        if request.item >= 0:
            begun = BEGAN_NS + request.time_cycles
            kept[request.item] = (begun, begun + 700)
    measured = of_times(kept_by_a_kernel(run), "clc", kept)
    simulated = of_run(run, 1000.0, response_cycles=700)
    shift = run.first_start_cycles
    granted = {
        (r.worker, r.slot, r.ask_ns - shift, r.answer_ns - shift, r.tile)
        for r in simulated.requests
        if r.tile != DECLINED
    }
    assert len(granted) == 200 - 12
    assert set(measured.requests) == granted
    trace = json.loads(render_trace([measured]))
    assert not list(problems(trace))
    assert sum(e["ph"] == "f" for e in trace["traceEvents"]) == len(granted)


def test_a_record_gives_the_run_that_was_kept(tmp_path: Path) -> None:
    """What tests/gpu/record_times.py writes, and what the tests read of it."""
    costs = np.random.default_rng(3).integers(20_000, 30_000, 200)
    run = simulate("dynamic_atomic", costs, 12, overheads=OVERHEADS, record=True)
    times, requests = kept_by_a_kernel(run), np.zeros(len(costs), REQUESTS)
    for draw in run.requests:
        requests[draw.item] = (BEGAN_NS + draw.time_cycles, BEGAN_NS + draw.time_cycles + 7)
    file = tmp_path / "times.json"
    file.write_text(json.dumps({"runs": {"dynamic_atomic": as_rows(times, requests)}}))
    kept = of_times(times, "dynamic_atomic", requests, sms_per_slot=2)
    assert len(kept.requests) == 200 - 12
    assert recorded(file, "dynamic_atomic") == kept


def test_workers_of_one_sm_at_once_are_slots_of_their_own() -> None:
    """Two CTAs an SM: workers 0 and 1 overlap on SM 5, worker 2 comes when 0 has left."""
    times = np.zeros((3, 1), TIMELINE)
    for tile, (start, end) in enumerate(((100, 200), (150, 400), (250, 300))):
        times[tile, 0] = (start, end, 5, tile)
    found = of_times(times, "single_tile")
    assert [(s.tile, s.slot, s.start_ns, s.end_ns) for s in found.spans] == [
        (0, 0, 0, 100), (1, 1, 50, 300), (2, 0, 150, 200),
    ]  # fmt: skip
    assert found.slots == 2


def test_tiles_that_nobody_did_are_left_out() -> None:
    """A launch for the most tiles that a ragged problem may have ends with tiles that do not exist."""
    times = np.zeros((4, 2), TIMELINE)
    times[1] = [(10, 20, 0, 0), (11, 21, 1, 1)]
    assert {s.tile for s in of_times(times, "static").spans} == {1}
    nothing = of_times(np.zeros((3, 2), TIMELINE), "static")
    assert (nothing.slots, nothing.spans, nothing.end_ns) == (0, (), 0)


def test_rounding_to_nanoseconds_leaves_no_overlap() -> None:
    run = simulate("static", [3.0] * 4000, 2, record=True)
    timeline = of_run(run, 1856.0)
    ends: dict[int, int] = {}
    for span in timeline.spans:
        assert span.start_ns >= ends.get(span.slot, 0)
        ends[span.slot] = span.end_ns
    assert timeline.busy_ns == pytest.approx(4000 * 3 * 1000 / 1856, abs=4000)


def test_of_a_long_list_the_last_tiles_keep_their_numbers() -> None:
    chip = load("h200")
    costs = TileList.of({"costs_cycles": [1000.0] * 210_000})
    draft = draft_of(costs, chip, Options())
    [timeline] = draft.timelines(schedulers_for(chip), chip)
    numbers = sorted(span.tile for span in timeline.spans)
    assert numbers == list(range(210_000 - len(numbers), 210_000))
    assert 200_000 <= len(numbers) < 200_000 + draft.work.slots


def test_slots_in_foreign_hands() -> None:
    busy = Disturbance(busy=(Busy(slots=1, end_cycles=500), Busy(slots=1)))
    found = of_run(simulate("static", [100.0] * 8, 4, disturbance=busy, record=True), 1000.0)
    assert sorted((h.slot, h.start_ns, h.end_ns or 0) for h in found.holds) == [
        (2, 0, 0),
        (3, 0, 500),
    ]

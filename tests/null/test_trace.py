"""Traces: the format's own rules, and the run that they show."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tilewright.report.trace import problems
from tilewright.sim import (
    SCHEDULERS,
    Busy,
    Clc,
    Disturbance,
    Overheads,
    Priority,
    Run,
    Scheduler,
    simulate,
)
from tilewright.timeline import TileSpan, Timeline, of_run
from trace_events import check_format, slices, traced

if TYPE_CHECKING:
    from pathlib import Path

CLOCK = 1856.0
OVERHEADS = Overheads(
    prologue_cycles=700, tile_overhead_cycles=90, fetch_cycles=75, turnover_cycles=1299, clc_latency_cycles=1856,
    launch_stagger_cycles=3, fixup_cycles=50,
)  # fmt: skip


def recorded(scheduler: Scheduler, tiles: int = 300, slots: int = 24, **more: Any) -> Run:
    costs = np.random.default_rng(5).integers(5_000, 60_000, tiles)
    return simulate(scheduler, costs, slots, overheads=OVERHEADS, record=True, **more)


DISTURBED = Disturbance(
    busy=(Busy(slots=5, start_cycles=0, end_cycles=200_000),),
    priority=(Priority(slots=2, at_cycles=150_000, duration_cycles=40_000),),
    decline_probability=0.05,
)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("disturbance", [Disturbance(), DISTURBED])
def test_a_trace_is_its_run(scheduler: Scheduler, disturbance: Disturbance) -> None:
    run = recorded(scheduler, disturbance=disturbance)
    trace = traced(of_run(run, CLOCK, response_cycles=1856, ctas_per_slot=2, sms_per_slot=2))
    assert not list(problems(trace))
    tiles = slices(trace, "tile ")
    if scheduler != "stream_k":
        assert Counter(e["args"]["tile"] for e in tiles) == Counter(range(300))
    busy_us = float(np.sum(run.end_cycles - run.start_cycles)) / CLOCK
    assert sum(e["dur"] for e in tiles) == pytest.approx(busy_us, abs=len(tiles) * 1e-3)
    assert max(e["ts"] + e["dur"] for e in tiles) == pytest.approx(run.last_end_cycles / CLOCK, abs=1e-3)  # fmt: skip
    held = slices(trace, "foreign")
    assert len(held) == len(run.holds)


def test_the_pure_model_s_times_are_exact() -> None:
    run = recorded("static")
    tiles = slices(traced(of_run(run, 1000.0)), "tile ")
    assert round(sum(e["dur"] for e in tiles) * 1000) == int(np.sum(run.end_cycles - run.start_cycles))  # fmt: skip


def test_counters_run_from_all_to_nothing() -> None:
    trace = traced(of_run(recorded("static"), CLOCK, ctas_per_slot=2, sms_per_slot=2))
    series: dict[str, list[float]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            series[event["name"]].append(event["args"][event["name"]])
    assert series.keys() == {"tiles waiting", "SMs busy"}
    waiting, busy = series["tiles waiting"], series["SMs busy"]
    assert (waiting[0], waiting[-1]) == (300, 0)
    assert waiting == sorted(waiting, reverse=True)
    assert (max(busy), busy[-1]) == (48, 0)  # 24 clusters of two


@pytest.mark.parametrize("depth", [1, 3])
def test_each_granted_request_points_at_its_tile(depth: int) -> None:
    run = recorded("clc", clc=Clc(depth=depth))
    trace = traced(of_run(run, CLOCK, response_cycles=1856))
    assert not list(problems(trace))  # several requests at once lie side by side
    asks = slices(trace, "try_cancel")
    assert len(asks) == len(run.requests)
    granted = sum(request.item >= 0 for request in run.requests)
    assert granted == 300 - 24  # all but the first wave
    begins = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in trace["traceEvents"] if e["ph"] == "f"}
    assert len(begins) == granted
    tile_at = {(e["tid"], e["ts"]): e["args"]["tile"] for e in slices(trace, "tile ")}
    asked = {(e["tid"], e["ts"], e["name"]) for e in asks}
    for id_, begin in begins.items():
        tile = tile_at[ends[id_]["tid"], ends[id_]["ts"]]
        assert (begin["tid"], begin["ts"], f"try_cancel: tile {tile}") in asked
        assert ends[id_]["bp"] == "e"


def test_tiles_that_overlap_lie_side_by_side() -> None:
    """Warps of a measured kernel may end a tile after others of their CTA began the next."""
    spans = (
        TileSpan(0, 0, 0, 0, 100, 0, 7),
        TileSpan(1, 0, 0, 90, 200, 0, 7),
        TileSpan(2, 0, 0, 200, 300, 0, 7),
        TileSpan(0, 0, 0, 5, 110, 1, 8),
    )
    trace = traced(Timeline("measured", "static", 1, spans, ctas_per_slot=2))
    assert not list(problems(trace))
    names = {
        e["tid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "thread_name"
    }
    where = {(names[e["tid"]], e["args"]["tile"], e["args"]["sm"]) for e in slices(trace, "tile ")}
    assert where == {
        ("worker 0", 0, 7),
        ("worker 0, beside 1", 1, 7),
        ("worker 0", 2, 7),
        ("worker 0, CTA 1", 0, 8),
    }


def test_runs_are_processes_of_their_own() -> None:
    trace = traced(*(of_run(recorded(name), CLOCK) for name in ("static", "clc")))
    named = {
        e["pid"]: e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"
    }
    assert named == {1: "simulated static", 2: "simulated clc"}
    assert not list(problems(trace))


def test_a_broken_trace_is_said_to_be() -> None:
    trace = traced(of_run(recorded("clc"), CLOCK))
    first = slices(trace, "tile ")[0]
    first["dur"] += 1e6
    [arrow] = [e for e in trace["traceEvents"] if e["ph"] == "f"][:1]
    trace["traceEvents"].remove(arrow)
    said = list(problems(trace))
    assert any("before tile" in line for line in said)
    assert any(line == f"flow {arrow['id']} has s" for line in said)


def test_no_tiles_no_trouble() -> None:
    assert not slices(traced(of_run(simulate("clc", [], 4, record=True), CLOCK)), "")


@pytest.mark.parametrize(
    "command",
    ["plan gemm --m 1024 --n 1024 --k 512 --device b200", "simulate 100x20000 --workers 8"],
)
def test_the_command_line_writes_it(command: str, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    words = [sys.executable, "-m", "tilewright", *command.split(), "--trace", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert f"Written: {out}" in done.stdout
    trace = json.loads(out.read_text(encoding="utf-8"))
    check_format(trace)
    assert not list(problems(trace))

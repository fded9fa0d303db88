"""Timelines of emulated kernels of any kind: every tile once, in the slots that there were, whatever the schedule."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

import numpy as np
import pytest

from audit_pairs import text_of
from console import run as run_command
from ptx_lines import kernel, run
from tilewright.emulate import launch
from tilewright.report.trace import problems
from tilewright.timeline import DECLINED, UNANSWERED, Timeline, of_history
from trace_events import check_format, shown, slices, traced

if TYPE_CHECKING:
    from pathlib import Path

NAMED = "emulated clc (1 ns: 1 warp instruction)"


def clc_run(name: str, seed: int, *, resident: int | None = 3, check: bool = True) -> Timeline:
    """A work-stealing kernel of the catalogue on 16 CTAs, in clusters of two; its counts say that each tile was done once."""
    counts = np.zeros(16, np.uint32)
    declines = (4, 9) if seed % 2 else ()
    report = launch(
        text_of(name), grid=16, args=[counts], resident=resident, seed=seed, decline_at=declines, check=check
    )  # fmt: skip
    if check:
        assert counts.tolist() == [1] * 16
    return of_history(report.outcomes[0].history)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("name", ["CLC-03_ok", "CLC-04_ok", "CLC-12_ok"])
def test_every_tile_once_and_every_grant_leads_to_its_tile(name: str, seed: int) -> None:
    found = clc_run(name, seed)
    tiles = 8
    assert (found.source, found.scheduler, found.unit) == ("emulated", "clc", "warp instruction")
    assert found.slots == 3
    assert Counter(s.tile for s in found.spans) == Counter(range(tiles))
    workers = {stay.worker for stay in found.residences}
    granted = {r.tile: r for r in found.requests if r.tile >= 0}
    assert granted.keys() == set(range(tiles)) - workers
    for span in found.spans:
        if span.tile in granted:
            ask = granted[span.tile]
            assert (ask.worker, ask.slot) == (span.worker, span.slot)
            assert ask.ask_ns <= ask.answer_ns <= span.start_ns
        else:
            assert span.worker == span.tile  # launched with it
    ends: dict[int, int] = defaultdict(int)
    for stay in sorted(found.residences, key=lambda s: s.start_ns):
        assert ends[stay.slot] <= stay.start_ns < stay.end_ns
        ends[stay.slot] = stay.end_ns
    trace = traced(found)
    assert not list(problems(trace))
    seen = shown(trace, 1)
    assert seen.name == NAMED
    assert dict(seen.tiles) == {f"tile {tile}": 1 for tile in range(tiles)}
    assert {to for _, to in seen.arrows} == {f"tile {tile}" for tile in granted}
    assert seen.counters == {"tiles waiting": (tiles, 0), "CTAs busy": (6, 0)}
    assert len(slices(trace, "try_cancel: declined")) == sum(
        r.tile == DECLINED for r in found.requests
    )


def test_with_room_for_all_nothing_is_granted() -> None:
    found = clc_run("CLC-03_ok", 0, resident=None)
    assert {r.tile for r in found.requests} == {DECLINED}
    assert [(s.tile, s.worker, s.slot) for s in found.spans] == [(i, i, i) for i in range(8)]


WHERE = """
mov.u32 %r0, %smid; mov.u32 %r1, %nsmid; mov.u32 %r2, %ctaid.x; mul.wide.u32 %d2, %r2, 8;
add.u64 %d0, %d0, %d2; st.global.v2.u32 [%d0], {%r0, %r1};
"""


@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_kernel_that_asks_for_nothing_has_a_slice_a_cluster(seed: int, size: int) -> None:
    """%smid is the place of the CTA in its slot: two clusters at once, one after another in each."""
    out = np.zeros((12, 2), np.uint32)
    report = run(kernel(WHERE, cluster=size), out, grid=12, resident=2, seed=seed)
    found = of_history(report.outcomes[0].history)
    assert (found.scheduler, found.slots, found.requests) == ("hardware dispatch", 2, ())
    assert sorted(s.tile for s in found.spans) == list(range(12 // size))
    assert all(s.tile == s.worker for s in found.spans)
    for span in found.spans:
        for rank in range(size):
            assert out[span.tile * size + rank].tolist() == [span.slot * size + rank, 2 * size]
    ends: dict[int, int] = {}
    for span in sorted(found.spans, key=lambda s: s.start_ns):
        assert span.start_ns >= ends.get(span.slot, 0)
        ends[span.slot] = span.end_ns
    assert len(ends) == 2
    assert not list(problems(traced(found)))


def test_a_deadlock_lasts_to_the_end_and_lost_grants_have_no_arrow() -> None:
    found = clc_run("CLC-04_bad", 5, resident=1, check=False)
    lost = {r.tile for r in found.requests if r.tile >= 0} - {s.tile for s in found.spans}
    assert lost
    trace = traced(found)
    assert not list(problems(trace))
    assert not {to for _, to in shown(trace, 1).arrows} & {f"tile {tile}" for tile in lost}
    last = max(stay.end_ns for stay in found.residences)
    assert [s.end_ns for s in found.spans if s.worker == found.residences[-1].worker][-1] == last


def test_a_request_that_nobody_answered_says_so() -> None:
    """The run is stopped at the first broken rule, with requests on their way."""
    found = clc_run("CLC-11_bad", 2, resident=None, check=False)
    open_ = [r for r in found.requests if r.tile == UNANSWERED]
    assert open_
    assert all(r.answer_ns == max(s.end_ns for s in found.residences) for r in open_)
    trace = traced(found)
    assert len(slices(trace, "try_cancel: no answer")) == len(open_)
    assert not list(problems(trace))


LAUNCH = 'grid = 16\nargs = ["counts"]\n[arrays.counts]\nshape = [16]\nexpect = 1\n'


def test_the_command_writes_the_first_failure_or_the_first_schedule(tmp_path: Path) -> None:
    (tmp_path / "launch.toml").write_text(LAUNCH)
    for name, code in (("CLC-03_ok", 0), ("CLC-12_bad", 1)):
        (tmp_path / f"{name}.ptx").write_text(text_of(name))
        line = f"tilewright check {name}.ptx --args launch.toml --schedules 4 --trace {name}.json"
        done = run_command(line, tmp_path)
        assert done.code == code
        assert f"Written: {name}.json" in done.out
        trace = json.loads((tmp_path / f"{name}.json").read_text())
        check_format(trace)
        assert not list(problems(trace))
        assert shown(trace, 1).name == NAMED
        # seed 0 has room for all; the first failure, of seed 1, had room for one cluster
        tracks = {f"worker {slot}" for slot in range(8 if code == 0 else 1)}
        assert shown(trace, 1).workers == tracks
    line = "tilewright check CLC-03_ok.ptx --args launch.toml --trace none/t.json"
    done = run_command(line, tmp_path)
    assert (done.code, "cannot be written" in done.err) == (2, True)

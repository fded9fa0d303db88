"""The simulator against hand reasoning, closed formulas and the issue's cases."""

import math
from itertools import pairwise

import numpy as np
import pytest

from tilewright.errors import BadInput, UnknownName
from tilewright.sim import (
    SCHEDULERS,
    Busy,
    Clc,
    Disturbance,
    Order,
    Overheads,
    Priority,
    Run,
    Scheduler,
    WorkerClass,
    metrics,
    simulate,
)

PERSISTENT: tuple[Scheduler, ...] = ("static", "static_blocked", "dynamic_atomic")
WHOLE_TILES: tuple[Scheduler, ...] = (*PERSISTENT, "single_tile", "clc")


def starts(run: Run) -> dict[int, int]:
    """Start of each tile."""
    return dict(zip(run.tile.tolist(), run.start_cycles.tolist(), strict=True))


def slots(run: Run) -> dict[int, int]:
    """Slot of each tile."""
    return dict(zip(run.tile.tolist(), run.slot.tolist(), strict=True))


# --- who runs what ------------------------------------------------------------------------------


def test_static_strides_and_static_blocked_chunks() -> None:
    strided = slots(simulate("static", [1] * 7, 3))
    assert strided == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2, 6: 0}
    blocked = slots(simulate("static_blocked", [1] * 7, 3))
    assert blocked == {0: 0, 1: 0, 2: 0, 3: 1, 4: 1, 5: 1, 6: 2}


def test_dynamic_gives_the_next_tile_to_whoever_is_free() -> None:
    run = simulate("dynamic_atomic", [9, 2, 3, 1, 1], 2)
    assert starts(run) == {0: 0, 1: 0, 2: 2, 3: 5, 4: 6}
    assert run.makespan_cycles == 9


def test_ties_go_to_the_lower_slot() -> None:
    assert slots(simulate("dynamic_atomic", [4, 4, 4, 1, 1, 1], 3)) == {
        0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2,
    }  # fmt: skip


def test_clc_holds_a_claim_behind_a_long_tile() -> None:
    """Worker 0 claims tile 2 as its long tile starts, and it waits there; the others go on."""
    costs = [10, 1, 1, 1, 1]
    run = simulate("clc", costs, 2)
    assert slots(run) == {0: 0, 1: 1, 2: 0, 3: 1, 4: 1}
    assert starts(run)[2] == 10
    assert run.makespan_cycles == 11
    assert simulate("clc", costs, 2, clc=Clc(issue="end")).makespan_cycles == 10


def test_clc_depth_holds_more_claims() -> None:
    run = simulate("clc", [10, 1, 1, 1, 1, 1], 2, clc=Clc(depth=2))
    assert [tile for tile, slot in slots(run).items() if slot == 0] == [0, 2, 3]


def test_clc_asking_at_the_end_with_depth_two_is_asking_at_the_start_with_one() -> None:
    costs = [7, 3, 9, 2, 2, 8, 1, 5, 5, 4, 3]
    late = simulate("clc", costs, 3, clc=Clc(depth=2, issue="end"))
    early = simulate("clc", costs, 3, clc=Clc(depth=1, issue="start"))
    assert starts(late) == starts(early)


def test_clc_latency_is_hidden_behind_a_longer_tile_and_paid_otherwise() -> None:
    overheads = Overheads(clc_latency_cycles=30)
    assert simulate("clc", [100] * 5, 1, overheads=overheads).makespan_cycles == 500
    assert simulate("clc", [10] * 5, 1, overheads=overheads).makespan_cycles == 4 * 30 + 10
    late = simulate("clc", [100] * 5, 1, overheads=overheads, clc=Clc(issue="end"))
    assert late.makespan_cycles == 500 + 4 * 30


def test_longest_first_orders_every_scheduler() -> None:
    costs = [1, 9, 5, 9, 3]
    for scheduler in WHOLE_TILES:
        run = simulate(scheduler, costs, 1, order="longest-first")
        assert run.tile[np.argsort(run.start_cycles)].tolist() == [1, 3, 2, 4, 0]


# --- stream-k -------------------------------------------------------------------------------------


def test_stream_k_splits_evenly_and_cuts_tiles() -> None:
    """Nine tiles of 4 on 4 workers: 9 cycles each, so cuts in tiles 2, 4 and 6."""
    run = simulate("stream_k", [4] * 9, 4)
    assert run.makespan_cycles == 9
    pieces = np.bincount(run.tile)
    assert pieces.tolist() == [1, 1, 2, 1, 2, 1, 2, 1, 1]


def test_stream_k_fixup_is_paid_once_a_cut() -> None:
    base = simulate("stream_k", [4] * 9, 4)
    fixed = simulate("stream_k", [4] * 9, 4, overheads=Overheads(fixup_cycles=100))
    spent = (fixed.end_cycles - fixed.start_cycles).sum() - (
        base.end_cycles - base.start_cycles
    ).sum()
    assert spent == 3 * 100
    assert fixed.makespan_cycles == 109


def test_stream_k_cuts_one_tile_many_times() -> None:
    run = simulate("stream_k", [12], 4)
    assert (run.end_cycles - run.start_cycles).tolist() == [3, 3, 3, 3]
    assert run.tile.tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("costs", [[0, 0, 0], [0, 5, 0], [0, 0, 8, 0, 8, 0], [1], [2, 0, 1]])
def test_stream_k_keeps_tiles_that_cost_nothing(costs: list[int]) -> None:
    run = simulate("stream_k", costs, 4)
    total = np.bincount(run.tile, weights=run.end_cycles - run.start_cycles, minlength=len(costs))
    assert total.tolist() == costs
    assert set(run.tile.tolist()) == set(range(len(costs)))


# --- overheads, by closed formula -----------------------------------------------------------------


def test_prologue_is_paid_once_a_cluster() -> None:
    overheads = Overheads(prologue_cycles=50)
    for scheduler in (*PERSISTENT, "clc"):
        run = simulate(scheduler, [10] * 6, 2, overheads=overheads)
        assert (run.first_start_cycles, run.makespan_cycles) == (50, 30), scheduler
    assert simulate("single_tile", [10] * 6, 2, overheads=overheads).makespan_cycles == 130


def test_tile_overhead_fetch_turnover_and_stagger() -> None:
    tile = Overheads(tile_overhead_cycles=3)
    for scheduler in WHOLE_TILES:
        assert simulate(scheduler, [10] * 4, 2, overheads=tile).makespan_cycles == 26
    fetch = Overheads(fetch_cycles=7)
    assert simulate("dynamic_atomic", [10] * 4, 2, overheads=fetch).makespan_cycles == 27
    turnover = Overheads(turnover_cycles=5)
    assert simulate("single_tile", [10] * 6, 2, overheads=turnover).makespan_cycles == 40
    stagger = Overheads(launch_stagger_cycles=2)
    assert simulate("static", [10] * 4, 4, overheads=stagger).makespan_cycles == 16


# --- the issue's cases ----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 4, 7])
def test_c2_sixteen_static_workers_on_fifteen_slots(k: int) -> None:
    """Static takes the time of 2k tiles; dynamic ceil(16 k / 15) rounds."""
    costs = [100] * (16 * k)
    assert simulate("static", costs, 15, workers=16).makespan_cycles == 2 * k * 100
    rounds = math.ceil(16 * k / 15)
    assert simulate("dynamic_atomic", costs, 15, workers=16).makespan_cycles == rounds * 100


def test_c21_eight_of_148_sms_are_busy() -> None:
    held = Disturbance(busy=(Busy(slots=8),))
    costs = [1000] * (148 * 100)
    idle = simulate("static", costs, 148).makespan_cycles
    assert idle == 100 * 1000
    assert simulate("static", costs, 148, disturbance=held).makespan_cycles == 2 * idle
    found = simulate("clc", costs, 148, disturbance=held)
    assert found.makespan_cycles == math.ceil(148 * 100 / 140) * 1000
    assert metrics(found, 1.0).workers == 140


def test_an_sm_budget_leaves_slots_alone() -> None:
    run = simulate("clc", [10] * 28, 148, disturbance=Disturbance(carve_out_slots=134))
    assert run.slots == 14
    assert run.makespan_cycles == 20
    run = simulate("static", [10] * 28, 148, disturbance=Disturbance(carve_out_slots=134))
    assert run.makespan_cycles == 20


PRIORITY = Disturbance(priority=(Priority(slots=20, at_cycles=5, duration_cycles=30),))


def test_c23_static_workers_block_a_priority_kernel() -> None:
    run = simulate("static", [10] * 1480, 148, disturbance=PRIORITY)
    assert run.priority_start_cycles == [100] * 20
    assert run.makespan_cycles == 100


def test_c23_single_tile_gives_slots_as_tiles_end() -> None:
    run = simulate("single_tile", [10] * 1480, 148, disturbance=PRIORITY)
    assert run.priority_start_cycles == [10] * 20
    # 148 tiles by t = 10, then 128 slots, and 20 more from t = 40: 128 a round, from 40 on 148
    assert run.makespan_cycles == 40 + 10 * math.ceil((1480 - 148 - 3 * 128) / 148)


def test_c23_clc_workers_are_declined_and_pending_clusters_launch_later() -> None:
    """All run their tile and the one they hold, and exit at 20; 20 slots go to the other kernel."""
    run = simulate("clc", [10] * 1480, 148, disturbance=PRIORITY, record=True)
    assert run.priority_start_cycles == [20] * 20
    assert sorted(run.tile.tolist()) == list(range(1480))
    declined = [r for r in run.requests if r.item < 0 and r.time_cycles == 10]
    assert {r.worker for r in declined} == set(range(148))
    launched = [launch.time_cycles for launch in run.launches[148:]]
    assert launched == [20] * 128 + [50] * 20
    # 296 tiles by t = 20, 128 a round from 20, 20 a round more from 50: 148 t >= 15400, t = 110
    assert run.makespan_cycles == 110


def test_c24_a_declined_request_loses_no_tile_and_carries_no_coordinates() -> None:
    early = Disturbance(declined=frozenset({(0, 0), (1, 1)}))
    run = simulate("clc", [10] * 12, 2, disturbance=early, record=True)
    assert sorted(run.tile.tolist()) == list(range(12))
    assert run.requests[0][2:] == (0, 0, -1)  # worker 0's first, while ten clusters were pending
    assert {e.tile for e in run.events() if e.kind == "declined"} == {-1}
    assert run.exits[0][:2] == (10, 0)
    # worker 0 exits at 10, and what was pending launches in its slot; worker 1 at 20
    assert [(launch.time_cycles, launch.slot) for launch in run.launches] == [
        (0, 0), (0, 1), (10, 0), (20, 1),
    ]  # fmt: skip
    assert run.makespan_cycles == 60


def test_requests_in_a_declining_window_end_each_worker_once() -> None:
    window = Disturbance(decline_windows=((0, 35),))
    run = simulate("clc", [10] * 8, 1, disturbance=window, record=True)
    # four clusters of one tile each (asked at 0, 10, 20, 30), then one that runs the rest
    assert len(run.launches) == 5
    assert run.makespan_cycles == 80


# --- other kernels and other speeds ---------------------------------------------------------------


def test_a_busy_slot_returns_when_the_other_kernel_ends() -> None:
    held = Disturbance(busy=(Busy(slots=1, end_cycles=25),))
    run = simulate("clc", [10] * 9, 2, disturbance=held)
    # slot 0 alone until 25, with tile 3 claimed at 20; slot 1 then takes tiles from 25 on
    assert slots(run)[4] == 1
    assert starts(run)[4] == 25
    assert run.makespan_cycles == 60


def test_a_busy_kernel_that_comes_later_waits_for_a_slot() -> None:
    held = Disturbance(busy=(Busy(slots=1, start_cycles=3, end_cycles=100),))
    run = simulate("single_tile", [10] * 6, 2, disturbance=held)
    assert [(h.slot, h.start_cycles, h.end_cycles) for h in run.holds] == [(0, 10, 100)]
    assert run.makespan_cycles == 50


def test_worker_classes_run_at_their_own_speed() -> None:
    classes = [WorkerClass(count=1, time_percent=50)]
    run = simulate("static", [10, 10, 10, 10], 2, classes=classes)
    took = run.end_cycles - run.start_cycles
    assert took[run.slot == 0].tolist() == [5, 5]
    assert took[run.slot == 1].tolist() == [10, 10]


# --- metrics --------------------------------------------------------------------------------------


def test_metrics_by_hand() -> None:
    """Two workers at 2 MHz: 6 + 2 and 4 cycles, so one is idle for good from 4 to 8."""
    found = metrics(simulate("static", [6, 4, 2], 2), 2.0)
    assert found.makespan_us == 4.0
    assert found.efficiency == 12 / 16
    assert (found.tail_us, found.tail_fraction, found.drift_us) == (2.0, 0.5, 2.0)
    assert found.fairness == pytest.approx(12**2 / (2 * (8**2 + 4**2)))
    assert (found.tiles_max, found.tiles_min, found.workers) == (2, 1, 2)
    assert (found.bound_work_us, found.bound_tile_us) == (3.0, 3.0)


def test_a_slot_with_no_tile_is_idle_from_the_start() -> None:
    found = metrics(simulate("static", [10, 10], 3), 1.0)
    assert (found.tail_fraction, found.tiles_min, found.drift_us) == (1.0, 0, 0.0)
    assert found.fairness == pytest.approx(2 / 3)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_no_tiles_take_no_time(scheduler: Scheduler) -> None:
    run = simulate(scheduler, [], 4, record=True)
    found = metrics(run, 1000.0)
    assert (found.makespan_us, found.efficiency, found.fairness) == (0.0, 1.0, 1.0)
    assert (found.tiles_max, found.tiles_min, found.tail_us) == (0, 0, 0.0)
    assert all(e.kind in {"launch", "exit"} for e in run.events())


# --- events ---------------------------------------------------------------------------------------


def test_events_tell_the_run_in_order() -> None:
    run = simulate("clc", [3, 2, 2], 2, record=True)
    told = [(e.time_cycles, e.kind, e.slot, e.worker, e.tile) for e in run.events()]
    assert told == [
        (0, "launch", 0, 0, -1),
        (0, "launch", 1, 1, -1),
        (0, "tile_start", 0, 0, 0),
        (0, "tile_start", 1, 1, 1),
        (0, "granted", 0, 0, 2),
        (0, "declined", 1, 1, -1),
        (2, "tile_end", 1, 1, 1),
        (2, "exit", 1, 1, -1),
        (3, "tile_end", 0, 0, 0),
        (3, "tile_start", 0, 0, 2),
        (3, "declined", 0, 0, -1),
        (5, "tile_end", 0, 0, 2),
        (5, "exit", 0, 0, -1),
    ]


def test_single_tile_launches_a_worker_a_tile() -> None:
    overheads = Overheads(prologue_cycles=4, turnover_cycles=1)
    run = simulate("single_tile", [10, 10, 10], 2, overheads=overheads, record=True)
    assert [tuple(launch) for launch in run.launches] == [(0, 0, 0), (0, 1, 1), (15, 0, 2)]
    assert run.worker.tolist() == [0, 1, 2]


def test_events_show_the_foreign_kernel() -> None:
    run = simulate(
        "static", [10] * 4, 2, disturbance=Disturbance(busy=(Busy(slots=1, end_cycles=7),))
    )
    assert [(e.time_cycles, e.kind, e.slot) for e in run.events() if "foreign" in e.kind] == [
        (0, "foreign_start", 1),
        (7, "foreign_end", 1),
    ]


def test_times_are_integers_and_nothing_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run = simulate("clc", [3.4, 2.6], 1, record=True)
    assert all(type(e.time_cycles) is int for e in run.events())
    assert run.makespan_cycles == 3 + 3
    assert capsys.readouterr() == ("", "")


def test_worker_column_follows_launches_in_a_slot() -> None:
    run = simulate("static", [10] * 6, 2, workers=3)
    by_tile = dict(zip(run.tile.tolist(), run.worker.tolist(), strict=True))
    assert by_tile == {0: 0, 1: 1, 2: 2, 3: 0, 4: 1, 5: 2}


# --- bad input ------------------------------------------------------------------------------------


def test_misspelt_names_suggest_the_right_one() -> None:
    with pytest.raises(UnknownName, match='Did you mean "static_blocked"'):
        simulate("static_block", [1], 1)  # type: ignore[arg-type]
    order: Order = "longest"  # type: ignore[assignment]
    with pytest.raises(UnknownName, match="longest-first"):
        simulate("static", [1], 1, order=order)


@pytest.mark.parametrize("bad", [[1, -1], [1, math.nan], [math.inf, 1], [[1, 2]]])
def test_costs_must_be_finite_and_flat(bad: list[float]) -> None:
    with pytest.raises(BadInput, match="tile"):
        simulate("static", bad, 1)


def test_slots_workers_and_counts_are_checked() -> None:
    for slot_count, workers in ((0, None), (1, 0)):
        with pytest.raises(BadInput, match="at least 1"):
            simulate("static", [1], slot_count, workers=workers)
    with pytest.raises(BadInput, match="prologue_cycles"):
        Overheads(prologue_cycles=-1)
    with pytest.raises(BadInput, match="depth"):
        Clc(depth=0)
    with pytest.raises(BadInput, match="fill 3 slots; there are 2"):
        simulate("static", [1], 2, classes=[WorkerClass(count=3)])


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_work_that_can_never_run_is_an_error_not_a_short_run(scheduler: Scheduler) -> None:
    with pytest.raises(BadInput, match="2 of 2 slots are held"):
        simulate(scheduler, [1, 1], 2, disturbance=Disturbance(busy=(Busy(slots=2),)))


def test_dynamic_rounds_grow_with_the_tiles() -> None:
    spans = [simulate("dynamic_atomic", [5] * n, 4).makespan_cycles for n in range(1, 13)]
    assert spans == [5 * math.ceil(n / 4) for n in range(1, 13)]
    assert all(a <= b for a, b in pairwise(spans))


@pytest.mark.parametrize("fetch_cycles", [0, 75])
def test_a_draw_is_made_as_the_tile_before_ends(fetch_cycles: int) -> None:
    costs = np.random.default_rng(2).integers(1000, 9000, 60)
    overheads = Overheads(fetch_cycles=fetch_cycles, turnover_cycles=500)
    run = simulate("dynamic_atomic", costs, 7, overheads=overheads, record=True)
    ends = set(zip(run.worker.tolist(), run.end_cycles.tolist(), strict=True))
    begins = dict(zip(run.tile.tolist(), run.start_cycles.tolist(), strict=True))
    assert len(run.requests) == 60 - 7
    for draw in run.requests:
        assert (draw.worker, draw.time_cycles) in ends
        assert draw.time_cycles + overheads.response_cycles("dynamic_atomic") == begins[draw.item]

"""Laws that hold for any tile list, scheduler and disturbance."""

from collections import defaultdict
from itertools import pairwise

import numpy as np
from hypothesis import given, settings, strategies as st

from tilewright.sim import (
    SCHEDULERS,
    Busy,
    Clc,
    Disturbance,
    Overheads,
    Priority,
    Run,
    Scheduler,
    WorkerClass,
    metrics,
    simulate,
)

cycles = st.integers(0, 40)
costs = st.lists(st.integers(0, 60), max_size=60)
slot_counts = st.integers(1, 7)
schedulers = st.sampled_from(SCHEDULERS)
settings_of_clc = st.builds(Clc, depth=st.integers(1, 4), issue=st.sampled_from(["start", "end"]))
overheads = st.builds(
    Overheads,
    prologue_cycles=cycles,
    tile_overhead_cycles=cycles,
    fetch_cycles=cycles,
    turnover_cycles=cycles,
    clc_latency_cycles=cycles,
    launch_stagger_cycles=cycles,
)


@st.composite
def busy_kernels(draw: st.DrawFn) -> Busy:
    start = draw(st.integers(0, 200))
    return Busy(slots=draw(st.integers(0, 8)), start_cycles=start, end_cycles=start + draw(cycles))


disturbances = st.builds(
    Disturbance,
    busy=st.lists(busy_kernels(), max_size=3).map(tuple),
    priority=st.lists(
        st.builds(
            Priority,
            slots=st.integers(0, 8),
            at_cycles=st.integers(0, 200),
            duration_cycles=st.integers(0, 90),
        ),
        max_size=2,
    ).map(tuple),
    declined=st.frozensets(st.tuples(st.integers(0, 9), st.integers(0, 5)), max_size=8),
    decline_probability=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    seed=st.integers(0, 3),
    decline_windows=st.lists(st.tuples(cycles, cycles), max_size=2).map(tuple),
)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Run, Overheads]:
    spent = draw(overheads)
    run = simulate(
        draw(schedulers),
        draw(costs),
        draw(slot_counts),
        workers=draw(st.none() | st.integers(1, 12)),
        overheads=spent,
        order=draw(st.sampled_from(["given", "longest-first"])),
        clc=draw(settings_of_clc),
        disturbance=draw(disturbances),
        record=True,
    )
    return run, spent


@given(runs())
def test_each_tile_runs_exactly_once(case: tuple[Run, Overheads]) -> None:
    run, spent = case
    took = run.end_cycles - run.start_cycles - spent.tile_overhead_cycles
    done = np.bincount(run.tile, weights=took, minlength=len(run.costs_cycles))
    assert done.tolist() == run.costs_cycles.tolist()
    if run.scheduler != "stream_k":
        assert sorted(run.tile.tolist()) == list(range(len(run.costs_cycles)))


@given(runs())
def test_nothing_overlaps_in_a_slot(case: tuple[Run, Overheads]) -> None:
    """Tiles, and the times in which other kernels hold the slot, come one after another."""
    run, _ = case
    taken = defaultdict(list)
    for slot, start, end in zip(run.slot, run.start_cycles, run.end_cycles, strict=True):
        taken[int(slot)].append((int(start), int(end)))
    for hold in run.holds:
        assert hold.end_cycles is not None
        taken[hold.slot].append((hold.start_cycles, hold.end_cycles))
    for spans in taken.values():
        spans.sort()
        assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert set(taken) <= set(range(run.slots))


@given(runs())
def test_no_schedule_beats_the_lower_bounds(case: tuple[Run, Overheads]) -> None:
    run, _ = case
    found = metrics(run, 1.0)
    work = int(run.costs_cycles.sum())
    assert found.makespan_us * found.workers >= work
    if run.scheduler != "stream_k":
        assert found.makespan_us >= run.costs_cycles.max(initial=0)
    assert 0 <= found.efficiency <= 1
    assert 0 <= found.tail_fraction <= 1
    assert found.drift_us <= found.tail_us
    assert 0 < found.fairness <= 1 + 1e-12


@given(runs())
def test_events_are_in_order_and_workers_begin_and_end(case: tuple[Run, Overheads]) -> None:
    run, _ = case
    events = list(run.events())
    assert [e.time_cycles for e in events] == sorted(e.time_cycles for e in events)
    by_kind = defaultdict(list)
    for event in events:
        by_kind[event.kind].append(event)
    launched = {e.worker: (e.time_cycles, e.slot) for e in by_kind["launch"]}
    left = {e.worker: (e.time_cycles, e.slot) for e in by_kind["exit"]}
    assert set(launched) == set(left)
    assert len(launched) == len(by_kind["launch"])
    for event in by_kind["tile_start"] + by_kind["tile_end"]:
        begin, slot = launched[event.worker]
        end, _ = left[event.worker]
        assert event.slot == slot
        assert begin <= event.time_cycles <= end


@given(runs())
def test_clc_grants_are_in_launch_order_and_a_decline_ends_the_asking(
    case: tuple[Run, Overheads],
) -> None:
    run, _ = case
    asked = defaultdict(list)
    for request in run.requests:
        asked[request.worker].append(request)
    for requests in asked.values():
        assert [r.number for r in requests] == list(range(len(requests)))
        assert all(r.item >= 0 for r in requests[:-1])
    position = {tile: n for n, tile in enumerate(run.tile.tolist())}
    own = len(run.tile) - sum(r.item >= 0 for r in run.requests)
    if run.scheduler == "dynamic_atomic":
        assert own == len(set(run.worker.tolist()))  # a first tile needs no draw
    if run.scheduler == "clc":
        assert own == len(run.launches)  # whoever was not claimed was launched
        assert all(r.item in position for r in run.requests if r.item >= 0)


@given(
    scheduler=schedulers,
    tiles=costs,
    count=slot_counts,
    spent=overheads,
    disturbance=disturbances,
)
def test_the_same_seed_gives_the_same_events(
    scheduler: Scheduler,
    tiles: list[int],
    count: int,
    spent: Overheads,
    disturbance: Disturbance,
) -> None:
    first, second = (
        simulate(scheduler, tiles, count, overheads=spent, disturbance=disturbance, record=True)
        for _ in range(2)
    )
    assert list(first.events()) == list(second.events())


@given(tiles=costs, count=slot_counts, spent=overheads)
def test_the_quick_clc_path_runs_the_same_tiles_at_the_same_times(
    tiles: list[int], count: int, spent: Overheads
) -> None:
    held = Disturbance(busy=(Busy(slots=1, start_cycles=20, end_cycles=90),))
    for disturbance in (Disturbance(), held):
        quick, full = (
            simulate("clc", tiles, count, overheads=spent, disturbance=disturbance, record=record)
            for record in (False, True)
        )
        for column in ("tile", "slot", "start_cycles", "end_cycles"):
            assert getattr(quick, column).tolist() == getattr(full, column).tolist()
        assert quick.launches == full.launches
        assert quick.exits == full.exits


@settings(max_examples=30)
@given(tiles=st.lists(st.integers(1, 50), min_size=1, max_size=60), count=slot_counts)
def test_greedy_schedulers_keep_grahams_bound(tiles: list[int], count: int) -> None:
    """List scheduling ends by (sum + (W - 1) longest) / W; longest-first keeps it too."""
    greedy = simulate("dynamic_atomic", tiles, count).makespan_cycles
    assert greedy * count <= sum(tiles) + (count - 1) * max(tiles)
    assert simulate("single_tile", tiles, count).makespan_cycles == greedy
    falling = sorted(tiles, reverse=True)
    shortest = max(falling[0], -(-sum(tiles) // count))
    longest_first = simulate("dynamic_atomic", tiles, count, order="longest-first").makespan_cycles
    assert longest_first >= shortest
    assert longest_first * count <= sum(tiles) + (count - 1) * falling[0]
    if len(tiles) <= count:
        assert longest_first == falling[0]


@given(
    tiles=costs,
    count=st.integers(2, 6),
    percent=st.integers(1, 300),
    scheduler=schedulers,
)
def test_worker_classes_scale_each_tile(
    tiles: list[int], count: int, percent: int, scheduler: Scheduler
) -> None:
    run = simulate(scheduler, tiles, count, classes=[WorkerClass(count=1, time_percent=percent)])
    if scheduler == "stream_k":
        return
    took = run.end_cycles - run.start_cycles
    for tile, slot, cycles_spent in zip(run.tile, run.slot, took, strict=True):
        cost = tiles[tile]
        assert cycles_spent == (-(-cost * percent // 100) if slot == 0 else cost)

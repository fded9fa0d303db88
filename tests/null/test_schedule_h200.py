"""The schedule model against recorded launches on an H200, and against published orders.

tests/data/h200/README.md says how schedule.csv was made. Nothing here needs a GPU.
"""

import csv
import itertools
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tilewright.device import load
from tilewright.errors import BadInput
from tilewright.launch import Launch, simulate_launch
from tilewright.schedule import (
    boundary_counts,
    overheads_for,
    schedulers_for,
    unknown_overheads,
)
from tilewright.sim import Busy, Disturbance, Overheads, Scheduler, simulate
from tilewright.topology import busy_bounds

DATA = Path(__file__).parent.parent / "data" / "h200"
H200 = load("h200")


class Measured(NamedTuple):
    """One measured launch, and what the simulator says of it."""

    costs: str
    cluster: int
    busy_sms: int
    scheduler: str
    measured_us: float
    predicted_us: float

    @property
    def error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted_us / self.measured_us - 1


def read_costs() -> dict[str, list[int]]:
    """Tile costs by file name; `NxC` stands for N tiles of C cycles, `_desc` lists are sorted ones."""
    costs: dict[str, list[int]] = {}
    with (DATA / "schedule_costs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            tiles: list[int] = []
            for word in row["cost_cycles"].split():
                count, _, cost = word.rpartition("x")
                tiles += [int(cost)] * int(count or 1)
            costs[row["costs"]] = tiles
            costs[row["costs"].replace("_given", "_desc")] = sorted(tiles, reverse=True)
    return costs


COSTS = read_costs()


def replayed(row: dict[str, str]) -> Measured:
    cluster, busy = int(row["cluster"]), int(row["busy_sms"])
    scheduler: Scheduler = row["scheduler"]  # type: ignore[assignment]
    run = simulate(
        scheduler,
        COSTS[row["costs"]],
        int(row["resident_clusters"]),
        overheads=overheads_for(H200, cluster, int(row["prologue_cycles"])),
        disturbance=Disturbance(busy=(Busy(slots=busy),)),
    )
    predicted = H200.cycles_to_us(run.makespan_cycles)
    return Measured(row["costs"], cluster, busy, scheduler, float(row["makespan_us"]), predicted)


@pytest.fixture(scope="module")
def launches() -> list[Measured]:
    with (DATA / "schedule.csv").open(encoding="utf-8", newline="") as file:
        return [replayed(row) for row in csv.DictReader(file)]


# --- recorded launches ----------------------------------------------------------------------------


def test_undisturbed_launches_are_reproduced(launches: list[Measured]) -> None:
    errors = [abs(m.error) for m in launches if not m.busy_sms]
    assert len(errors) == 232
    assert np.mean(errors) <= 0.004
    assert max(errors) <= 0.02


def test_launches_beside_33_busy_sms_are_reproduced_though_not_fitted(
    launches: list[Measured],
) -> None:
    errors = [abs(m.error) for m in launches if m.busy_sms]
    assert len(errors) == 24
    assert np.mean(errors) <= 0.005
    assert max(errors) <= 0.015


def test_the_order_of_any_two_schedulers_is_right(launches: list[Measured]) -> None:
    """Pairs on the same costs, cluster and busy SMs whose makespans differ by more than 3 %."""
    right = []
    key = lambda m: (m.costs, m.cluster, m.busy_sms)  # noqa: E731 (used twice, read once)
    for _, group in itertools.groupby(sorted(launches, key=key), key):
        for a, b in itertools.combinations(group, 2):
            if abs(a.measured_us - b.measured_us) > 0.03 * min(a.measured_us, b.measured_us):
                a_wins = a.measured_us < b.measured_us
                right.append((a.predicted_us < b.predicted_us) == a_wins)
    assert len(right) > 200
    assert np.mean(right) >= 0.98


def test_overheads_are_the_devices_own() -> None:
    one, four = overheads_for(H200, 1, 2000), overheads_for(H200, 4, 2000)
    assert one.prologue_cycles == 2000
    assert four.tile_overhead_cycles - one.tile_overhead_cycles == H200.cluster_tile_cycles
    assert four.launch_stagger_cycles == round(4 * 3.8)  # 1.91 ns an empty CTA at 1980 MHz
    assert one.clc_latency_cycles == 0
    assert unknown_overheads(H200) == ()


def test_what_a_device_does_not_know_is_named() -> None:
    b200 = load("b200")
    assert "queue_fetch_cycles" in unknown_overheads(b200)
    assert overheads_for(b200, 2).clc_latency_cycles == b200.clc_latency_cycles
    assert "clc" in schedulers_for(b200)
    assert "clc" not in schedulers_for(H200)


# --- C17: causal attention on an H200 --------------------------------------------------------------

L2_BYTES = 50 * 2**20


def attention_tiles(seqlen: int, order: str) -> list[int]:
    """Causal forward tiles of 128 queries: 32k tokens, 16 heads of 128, 128 keys a step.

    A step costs 3130 cycles: 4 · 128³ FLOP at the 695 TFLOP/s that the case reports at 16k, over 132
    SMs at 1980 MHz. "lpt" is FlashAttention-4's order: sections of heads whose K and V fit L2, longest
    tile first in each; "plain" runs through the queries of one head after another.
    """
    steps = np.arange(1, seqlen // 128 + 1)
    heads = 16 * (32768 // seqlen)
    if order == "plain":
        blocks = np.tile(steps, heads)
    else:
        section = 1 << int(np.log2(L2_BYTES // (seqlen * 2 * 128 * 2)))
        blocks = np.tile(np.repeat(steps[::-1], section), -(-heads // section))
    return [int(b) for b in blocks * 3130 + 1500]


@pytest.mark.parametrize("prologue_cycles", [1000, 2000, 3000])
def test_c17_orders_that_tail_and_overheads_explain(prologue_cycles: int) -> None:
    """Dynamic first and static plain last everywhere; longest-first beats one tile a CTA only at 1k.

    The dynamic scheduler there fetches ahead, so its fetch costs nothing. Not reproduced: that one tile
    a CTA wins at 4k as well (3 %), and how large its lead at 16k is (8 %).
    """
    own = overheads_for(H200, 1, prologue_cycles)
    ahead = Overheads(
        prologue_cycles=own.prologue_cycles, tile_overhead_cycles=own.tile_overhead_cycles
    )
    for seqlen in (1024, 4096, 16384):
        lpt, plain = attention_tiles(seqlen, "lpt"), attention_tiles(seqlen, "plain")
        dynamic = simulate("dynamic_atomic", lpt, 132, overheads=ahead).last_end_cycles
        single = simulate("single_tile", lpt, 132, overheads=own).last_end_cycles
        longest = simulate("static", lpt, 132, overheads=own).last_end_cycles
        static = simulate("static", plain, 132, overheads=own).last_end_cycles
        assert dynamic < min(single, longest)
        assert static > max(single, longest)
        if seqlen == 1024:
            assert longest < single
            assert longest / single == pytest.approx(414 / 480, abs=0.08)
            assert longest / static == pytest.approx(374 / 480, abs=0.03)
        if seqlen == 16384:
            assert single < longest


PUBLISHED_TFLOPS = {  # Dao-AILab/flash-attention#2754: dynamic, one tile a CTA, longest first, plain
    1024: (511, 414, 480, 374),
    4096: (690, 610, 590, 560),
    16384: (695, 623, 575, 520),
}


def spread_costs(seqlen: int, order: str, spread: float, seed: int) -> list[float]:
    """Tiles whose times vary at run time by a relative standard deviation, lognormal, mean 1."""
    sigma = np.sqrt(np.log1p(spread**2))
    tiles = np.array(attention_tiles(seqlen, order), float)
    factors = np.random.default_rng(seed).lognormal(-0.5 * sigma**2, sigma, len(tiles))
    return [float(cost) for cost in tiles * factors]


@pytest.mark.parametrize("seqlen", PUBLISHED_TFLOPS)
def test_case_c17_needs_tiles_that_vary_at_run_time(seqlen: int) -> None:
    """All four schedulers in the published order at every length once tile times vary by 15 %.

    Order and ratios of C17 that fixed tile costs cannot give (above): a longest-first order that is right
    on paper meets tiles that are not. 15 % lies inside the range that a plan calls plausible.
    """
    own = overheads_for(H200, 1, 2000)
    ahead = Overheads(prologue_cycles=2000, tile_overhead_cycles=own.tile_overhead_cycles)
    kernels: tuple[tuple[Scheduler, str, Overheads], ...] = (
        ("dynamic_atomic", "lpt", ahead),
        ("single_tile", "lpt", own),
        ("static", "lpt", own),
        ("static", "plain", own),
    )
    mean = [
        np.mean(
            [
                simulate(
                    name, spread_costs(seqlen, order, 0.15, seed), 132, overheads=costs
                ).last_end_cycles
                for seed in range(5)
            ]
        )
        for name, order, costs in kernels
    ]
    published = PUBLISHED_TFLOPS[seqlen]
    assert np.argsort(mean).tolist() == np.argsort([-rate for rate in published]).tolist()


# --- boundaries -----------------------------------------------------------------------------------


def test_boundary_counts() -> None:
    """R = 5: one wave up to 5 tiles, two up to 10, three for 11; the real count comes last."""
    assert boundary_counts(23, 5) == [4, 5, 6, 10, 11, 23]
    assert boundary_counts(5, 5) == [4, 6, 10, 11, 5]
    assert boundary_counts(7, 1) == [1, 2, 3, 7]
    spans = [simulate("clc", [10] * n, 5).makespan_cycles for n in boundary_counts(23, 5)]
    assert spans == [10, 10, 20, 20, 30, 50]


def test_a_worker_that_asks_ahead_holds_a_tile() -> None:
    """At 0 both ask, slot 0 first: it holds the tile of 10 behind its tile of 30."""
    assert simulate("clc", [10, 20, 30], 2, order="longest-first").makespan_cycles == 40


# --- busy SMs and clusters ------------------------------------------------------------------------


def brute_force(
    gpc_sms: tuple[int, ...], size: int, busy: int, *, in_pairs: bool
) -> tuple[int, int]:
    """(most, fewest) clusters at one CTA an SM over every set of busy SMs."""
    sms = [(gpc, n) for gpc, count in enumerate(gpc_sms) for n in range(count)]
    counts = []
    for held in itertools.combinations(sms, busy):
        left = [(g, n) for g, n in sms if (g, n) not in held]
        if in_pairs:  # a cluster uses an SM only if its neighbour is free too
            left = [(g, n) for g, n in left if (g, n ^ 1) not in held]
        counts.append(sum(sum(g == gpc for g, _ in left) // size for gpc in range(len(gpc_sms))))
    return max(counts), min(counts)


@pytest.mark.parametrize("gpc_sms", [(4, 2), (6, 4), (8, 2, 2)])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("busy", [0, 1, 2, 3])
def test_busy_bounds_against_every_placement(
    gpc_sms: tuple[int, ...], size: int, busy: int
) -> None:
    kindest = brute_force(gpc_sms, size, busy, in_pairs=False)[0]
    worst = brute_force(gpc_sms, size, busy, in_pairs=size > 1)[1]
    assert busy_bounds(gpc_sms, 1, size, busy) == (worst, kindest)


def test_an_interval_of_makespans() -> None:
    """66 static workers of one tile each: two rounds with 33 to 49 slots left; 132 tiles dynamically: 3 or 4."""
    cluster = Launch(cluster_shape=(2, 1, 1), threads=128, smem_bytes=204_800, busy_sms=33)
    tile = 1_000_000  # overheads are under a thousandth of it
    one = simulate_launch({"costs_cycles": [tile] * 66}, H200, cluster)
    for found in (one.metrics, one.worst):
        assert found["static"].makespan_us == pytest.approx(2 * tile / 1980, rel=0.01)
    two = simulate_launch({"costs_cycles": [tile] * 132}, H200, cluster)
    assert two.metrics["dynamic_atomic"].makespan_us == pytest.approx(3 * tile / 1980, rel=0.01)
    assert two.worst["dynamic_atomic"].makespan_us == pytest.approx(4 * tile / 1980, rel=0.01)
    assert two.as_dict()["static"]["makespan_us_worst"] == two.worst["static"].makespan_us


def test_nothing_left_beside_the_other_kernel() -> None:
    every = Launch(cluster_shape=(2, 1, 1), threads=128, smem_bytes=204_800, busy_sms=132)
    with pytest.raises(BadInput, match="no slot is left"):
        simulate_launch({"costs_cycles": [10.0] * 4}, H200, every)


# --- simulate_launch ------------------------------------------------------------------------------

SPIN = Launch(threads=128, smem_bytes=204_800, prologue_cycles=2000)


def test_simulate_launch_reproduces_a_measured_launch() -> None:
    """594 tiles of 20000 cycles: 51.94 us measured for static, 54.66 for the queue, 59.07 for one each."""
    found = simulate_launch({"costs_cycles": [20000] * 594}, H200, SPIN).metrics
    assert found["static"].makespan_us == pytest.approx(51.94, rel=0.01)
    assert found["dynamic_atomic"].makespan_us == pytest.approx(54.66, rel=0.01)
    assert found["single_tile"].makespan_us == pytest.approx(59.07, rel=0.01)
    assert "clc" not in found


def test_simulate_launch_beside_a_busy_kernel() -> None:
    """33 SMs held for 3 ms: 84.86 us measured for static, 66.53 for the queue."""
    launch = Launch(
        threads=128, smem_bytes=204_800, prologue_cycles=2000, busy_sms=33, busy_us=3000
    )
    answer = simulate_launch({"costs_cycles": [20000] * 594}, H200, launch)
    assert answer.metrics["static"].makespan_us == pytest.approx(84.86, rel=0.02)
    assert answer.metrics["dynamic_atomic"].makespan_us == pytest.approx(66.53, rel=0.02)
    assert not answer.worst

"""Decisions and the work they compare, on cases whose answer is arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from tilewright import work as work_module
from tilewright.decide import Option, choose, find_flips, jitter_that_flips
from tilewright.sim import Overheads
from tilewright.work import Work

if TYPE_CHECKING:
    from tilewright.sim import Scheduler


def make_work(costs: list[float], slots: int = 4, **overheads: int) -> Work:
    return Work(
        alone_cycles=np.array(costs, float),
        persistent_cycles=np.array(costs, float),
        slots=slots,
        start_cycles=0.0,
        drain_cycles=0.0,
        overheads=Overheads(**overheads),
        clock_mhz=1.0,
    )


def option(name: str, size: int, rank: int, work: Work, scheduler: Scheduler = "static") -> Option:
    return Option(name, size, rank, work.run(scheduler))


def test_equal_tiles_that_fill_the_slots_are_left_alone() -> None:
    work = make_work([100.0] * 4, turnover_cycles=50)
    decision = choose([option("single", 1, 0, work, s) for s in ("single_tile", "static", "clc")])
    assert decision.chosen.scheduler == "single_tile"
    assert decision.answers == ("leave-it-alone",)
    assert not decision.steps


def test_turnover_makes_a_loop_worth_it() -> None:
    """Eight tiles of 100 on 4 slots: 200 in a loop, 250 with 50 between launches: a fourth gained."""
    work = make_work([100.0] * 8, turnover_cycles=50)
    decision = choose([option("single", 1, 0, work, s) for s in ("single_tile", "static", "clc")])
    assert decision.chosen.scheduler == "static"
    assert decision.answers == ("persistent-static",)
    [step] = decision.steps
    assert step.gain == pytest.approx(0.25)
    assert not step.inside_error


@pytest.mark.parametrize(("faster", "chosen"), [(0.985, "single"), (0.97, "cluster")])
def test_a_cluster_must_gain_two_per_cent(faster: float, chosen: str) -> None:
    plain = make_work([1000.0] * 4)
    shared = make_work([1000.0 * faster] * 4)
    decision = choose([option("single", 1, 0, plain), option("cluster", 2, 1, shared)])
    assert decision.chosen.name == chosen


def test_a_gain_inside_the_error_is_to_be_measured() -> None:
    plain, shared = make_work([1000.0] * 4), make_work([970.0] * 4)
    decision = choose([option("single", 1, 0, plain), option("cluster", 2, 1, shared)])
    [step] = decision.to_measure
    assert step.what == "tiling"
    assert step.gain == pytest.approx(1000 / 970 - 1)


def test_at_equal_size_and_time_a_pair_is_taken_before_a_cluster() -> None:
    plain, shared = make_work([1000.0] * 4), make_work([900.0] * 4)
    decision = choose(
        [
            option("single", 1, 0, plain),
            option("cluster", 2, 1, shared),
            option("pair", 2, 2, shared),
        ]
    )
    assert decision.chosen.name == "pair"
    assert decision.answers[0] == "pair-mma"


def test_asking_is_simpler_than_sorting() -> None:
    """One tile of 300 behind eight of 100 on 4 slots: asking ends at 500, sorted static at 300."""
    work = make_work([100.0] * 8 + [300.0])
    names = [(o.outcome.scheduler, o.order) for o in compare(work)]
    assert ("static", "longest-first") in names
    assert work.run("static").kernel_us == 500
    assert work.run("dynamic_atomic", order="longest-first").kernel_us == 300
    assert choose(compare(work)).chosen.order == "longest-first"


def compare(work: Work) -> list[Option]:
    return [Option("single", 1, 0, outcome) for outcome in work.compare("dynamic_atomic")]


def test_a_value_that_takes_the_gain_away_is_named() -> None:
    work = make_work([100.0] * 8, turnover_cycles=50)
    [step] = choose([option("single", 1, 0, work, s) for s in ("single_tile", "static")]).steps

    def gain_at(name: str, value: float) -> float:
        assert name == "cta_turnover_cycles"
        other = replace(work, overheads=Overheads(turnover_cycles=round(value)))
        return other.run("single_tile").kernel_us / other.run("static").kernel_us - 1

    ranges: dict[str, tuple[str, float, float]] = {"cta_turnover_cycles": ("assumed", 1.0, 90.0)}
    [flip] = find_flips(step, ranges, gain_at, lambda _: "spin tiles")
    assert (flip.at, flip.to) == (1.0, "single, single_tile")
    ranges = {"cta_turnover_cycles": ("assumed", 30.0, 90.0)}
    assert not find_flips(step, ranges, gain_at, lambda _: "spin tiles")


def test_the_spread_at_which_static_loses_grows_with_fewer_tiles() -> None:
    """One tile a worker cannot be balanced by anybody; many can."""
    one = make_work([1000.0] * 4)
    assert jitter_that_flips(one, option("single", 1, 0, one), "dynamic_atomic") is None
    many = make_work([1000.0] * 400)
    spread = jitter_that_flips(many, option("single", 1, 0, many), "dynamic_atomic")
    assert spread is not None
    assert jitter_that_flips(many, option("s", 1, 0, many, "clc"), "clc") is None


@given(st.integers(30, 200), st.sampled_from(["single_tile", "static", "dynamic_atomic", "clc"]))
def test_long_lists_of_equal_tiles_lose_nothing(count: int, scheduler: Any) -> None:
    """Whole waves of equal tiles taken off the front are added back exactly."""
    work = make_work([100.0] * count, turnover_cycles=7)
    whole = work.run(scheduler)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work_module, "SIMULATED_TILES", 20)
        short = work.run(scheduler)
    assert len(short.run.costs_cycles) < count
    assert short.kernel_us == pytest.approx(whole.kernel_us, rel=1e-9)
    assert short.metrics.tiles_max == whole.metrics.tiles_max
    assert short.metrics.efficiency == pytest.approx(whole.metrics.efficiency)


@pytest.mark.parametrize("scheduler", ["single_tile", "static", "dynamic_atomic", "clc"])
def test_long_lists_of_unequal_tiles_lose_little(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    work = make_work([float(c) for c in rng.integers(500, 1500, 20_000)], slots=16)
    whole = work.run(scheduler)
    monkeypatch.setattr(work_module, "SIMULATED_TILES", 4_000)
    assert work.run(scheduler).kernel_us == pytest.approx(whole.kernel_us, rel=0.02)

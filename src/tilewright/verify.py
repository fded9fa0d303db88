"""Verification of a draft without hardware: its tile map, its schedule under disturbances, its bounds.

Each check is independent of how the plan was made: it counts tiles, compares with lower bounds, replays
the scheduler with declines, busy slots and a priority kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.problem import GroupedGemm
from tilewright.sim import Busy, Disturbance, Priority

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.draft import Draft
    from tilewright.problem import Workload
    from tilewright.tile_map import TileMap
    from tilewright.work import Outcome

SEEDS = 8
COVERED_TILES = 1_000_000
SAMPLE = 2_000


@dataclass(frozen=True, slots=True)
class Result:
    """One check and what it saw."""

    check: str
    passed: bool
    seen: str


def verify(draft: Draft, problem: Workload) -> list[Result]:
    """Every check that applies to the draft."""
    results = []
    if draft.tiles is not None:
        results.append(_coverage(draft.tiles, problem))
    results += _disturbed(draft)
    results += _bounds(draft)
    return results


def _coverage(tiles: TileMap, problem: Workload) -> Result:
    """Every output tile of every group exactly once, counted from the problem's extents.

    Very large maps are checked at `SAMPLE` places instead.
    """
    if tiles.num_tiles > COVERED_TILES:
        return _sampled(tiles)
    seen = tiles.coordinates()
    distinct = len(np.unique(seen, axis=0))
    tile_m = tiles.cta_tile.m * tiles.cluster_shape[0]
    tile_n = tiles.cta_tile.n * tiles.cluster_shape[1]
    expected = sum(
        -(-int(m) // tile_m) * -(-int(n) // tile_n)
        for m, n in zip(tiles.groups.m, tiles.groups.n, strict=True)
    )
    expected *= tiles.groups.repeat
    groups = len(problem.counts) if isinstance(problem, GroupedGemm) else tiles.groups.repeat
    return Result(
        "tile map",
        len(seen) == distinct == expected,
        f"{len(seen)} cluster tiles, {distinct} distinct, {expected} expected in {groups} groups",
    )


def _sampled(tiles: TileMap) -> Result:
    """At evenly spaced ids and their neighbours: inside their group, and no two the same."""
    ids = np.unique(np.linspace(0, tiles.num_tiles - 2, SAMPLE).astype(np.int64))
    seen = [tiles.locate(int(i)) for first in ids for i in (first, first + 1)]
    distinct = {(first, tile) for first, tile in zip(np.repeat(ids, 2), seen, strict=True)}
    inside = all(
        tile.m < tiles.m_tiles[tile.group % len(tiles.m_tiles)]
        and tile.n < tiles.n_tiles[tile.group % len(tiles.n_tiles)]
        for tile in seen
    )
    return Result(
        "tile map",
        inside and len(distinct) == len(seen),
        f"{len(seen)} of {tiles.num_tiles} cluster tiles looked at, each inside its group, neighbours differ",
    )


def _disturbances(slots: int, mean_cycles: int) -> Iterator[tuple[str, Disturbance]]:
    yield "undisturbed", Disturbance()
    for seed in range(SEEDS):
        yield "declines", Disturbance(decline_probability=0.25, seed=seed)
    if slots > 1:
        yield "busy slots", Disturbance(busy=(Busy(slots=slots // 2),))
        yield (
            "priority kernel",
            Disturbance(
                priority=(
                    Priority(
                        slots=slots // 2,
                        at_cycles=mean_cycles // 2,
                        duration_cycles=3 * mean_cycles,
                    ),
                )
            ),
        )


def _disturbed(draft: Draft) -> Iterator[Result]:
    work = draft.work
    mean = int(work.persistent_cycles.mean()) if work.num_tiles else 0
    failed: dict[str, str] = {}
    counts: dict[str, int] = {}
    simulated = 0
    for name, disturbance in _disturbances(work.slots, mean):
        chosen = draft.decision.chosen
        outcome = work.run(chosen.scheduler, order=chosen.order, disturbance=disturbance)
        counts[name] = counts.get(name, 0) + 1
        simulated = len(outcome.run.costs_cycles)
        missing = _not_once(outcome, simulated)
        if missing:
            failed[name] = f"{missing} tiles not done exactly once"
    for name, count in counts.items():
        yield Result(
            f"{draft.decision.chosen.scheduler}, {name}",
            name not in failed,
            failed.get(name, f"each of {simulated} tiles once, {count} run{'s' * (count > 1)}"),
        )


def _not_once(outcome: Outcome, num_tiles: int) -> int:
    done = np.bincount(outcome.run.tile, minlength=num_tiles)
    return int((done != 1).sum())


def _bounds(draft: Draft) -> Iterator[Result]:
    m = draft.decision.chosen.outcome.metrics
    lower = max(m.bound_work_us, m.bound_tile_us)
    yield Result(
        "makespan above both lower bounds",
        m.makespan_us >= lower * (1 - 1e-9),
        f"{m.makespan_us:.2f} us against {lower:.2f} us",
    )
    if draft.roofline is not None:
        floor = draft.roofline.floor_us
        yield Result(
            "prediction above the roofline floor",
            draft.decision.chosen.us >= floor * (1 - 1e-9),
            f"{draft.decision.chosen.us:.2f} us against {floor:.2f} us",
        )
    if "hbm_read_bytes" in draft.traffic:
        moved = draft.traffic["hbm_read_bytes"] + draft.traffic["hbm_write_bytes"]
        least = draft.traffic["compulsory_bytes"]
        yield Result(
            "HBM traffic above the compulsory bytes",
            moved >= least * (1 - 1e-9),
            f"{moved:.0f} against {least:.0f} bytes",
        )

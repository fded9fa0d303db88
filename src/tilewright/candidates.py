"""Candidates: tilings of a matrix product with what each would take, the best of each class first.

Three classes, from simple to involved: `single` (one CTA, no cluster), `cluster` (several CTAs share
operands by multicast), `pair` (two CTAs issue one MMA; perhaps more share beyond the pair). A class is
searched in order of a lower bound, the tensor cores alone, and the search ends when the bound passes
the best time found: most tilings are never costed.

With `swap_ab` the kernel computes the transposed product, so that a short M lies along the instruction's
finer N. Everything about a swapped candidate is in the kernel's frame: its M is the problem's N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from tilewright.cost import TileCost, least_cycles_a_stage, tile_cost
from tilewright.problem import GroupedGemm, Groups
from tilewright.residency import (
    CtaResources,
    Limit,
    Residency,
    cluster_slots,
    residency_of_slots,
)
from tilewright.tile_map import Raster, TileMap
from tilewright.tiling import Tiling, fitting_tilings
from tilewright.traffic import (
    OperandReads,
    Traffic,
    UniqueGroups,
    best_raster,
    find_traffic,
    hbm_weights,
    unique_groups,
)
from tilewright.work import UNEQUAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Matmul

Class = Literal["single", "cluster", "pair"]
CLASSES: tuple[Class, ...] = ("single", "cluster", "pair")

WORTH = 0.02
"""Gain under which added machinery, a larger cluster say, is not worth having. Kind: assumed."""

SWAP_GAIN = 0.05
"""A transposed product needs a transposing epilogue; it must gain this much. Kind: assumed."""


class Busy(NamedTuple):
    """SMs that the kernel cannot have: held by foreign kernels, or outside its budget."""

    busy_sms: int = 0
    sm_budget: int | None = None


NOT_BUSY = Busy()


@dataclass(frozen=True)
class Candidate:
    """A tiling and what it would take on a device.

    Attributes:
        groups: the GEMMs in the kernel's frame (swapped if `swap_ab`).
        active_sms: SMs that hold a CTA while the machine is full.
        unique: the distinct ones of `groups`.
        hbm_weights: of each of those, HBM bytes of a stage over the mean stage's.
        single_tile_cycles, persistent_cycles: estimated time of the launch, without launch latency.
    """

    problem: Matmul
    tiling: Tiling
    swap_ab: bool
    groups: Groups
    raster: Raster
    residency: Residency
    traffic: Traffic
    cost: TileCost
    active_sms: int
    unique: UniqueGroups
    hbm_weights: NDArray[np.float64]
    single_tile_cycles: float
    persistent_cycles: float

    @property
    def cycles(self) -> float:
        """The better of the two."""
        return min(self.single_tile_cycles, self.persistent_cycles)

    @property
    def tile_map(self) -> TileMap:
        """Which cluster does which tile."""
        return TileMap(self.groups, self.tiling.cta_tile, self.tiling.cluster_shape, self.raster)

    @property
    def operand_bytes(self) -> tuple[float, float]:
        """A and B of the kernel's frame, each counted once."""
        unique = self.unique
        bytes_of = self.problem.element.bytes_of
        return (
            bytes_of(float((unique.m * unique.k * unique.times).sum())),
            bytes_of(float((unique.n * unique.k * unique.times).sum())),
        )

    def tile_cycles(self, *, persistent: bool) -> NDArray[np.float64]:
        """Cycles of every cluster tile in launch order."""
        tiles = self.tile_map
        each = self.cost.persistent if persistent else self.cost.alone
        _, steps = _cluster_tiles(self.unique, self.tiling)
        a_group = self.unique.spread(each(steps, self.hbm_weights))
        return np.tile(np.repeat(a_group, tiles.m_tiles * tiles.n_tiles), self.groups.repeat)

    @property
    def main_cycles(self) -> float:
        """Main loops of all cluster tiles together."""
        clusters, steps = _cluster_tiles(self.unique, self.tiling)
        return float((clusters * steps * self.cost.stage.weighted(self.hbm_weights)).sum())


class Candidates:
    """All candidates of a problem on a device; costed when asked for."""

    def __init__(
        self,
        problem: Matmul,
        device: Device,
        *,
        busy: Busy = NOT_BUSY,
        allow: Callable[[Tiling], bool] = lambda _: True,
        allow_swap: bool = True,
    ) -> None:
        self.problem = problem
        self.device = device
        self._busy = busy
        self._tilings = [
            t for t in fitting_tilings(problem.dtype, problem.out_bytes, device) if allow(t)
        ]
        self._frames = [(False, problem.groups())]
        ragged_k = isinstance(problem, GroupedGemm) and problem.grouped == "k"
        if allow_swap and not ragged_k:
            self._frames.append((True, _swapped(problem.groups())))
        self._uniques = {swap: unique_groups(groups) for swap, groups in self._frames}
        self._slots: dict[CtaResources, Limit] = {}
        self._residencies: dict[tuple[Limit, int], Residency] = {}

    def best(self, kind: Class) -> Candidate | None:
        """The fastest of a class; None when the device or the problem admits none.

        The swapped frame must beat the plain one by `SWAP_GAIN`.
        """
        found = [self._best_in_frame(kind, swap=swap) for swap, _ in self._frames]
        plain = found[0]
        swapped = found[1] if len(found) > 1 else None
        if plain is None or swapped is None:
            return plain or swapped
        return swapped if swapped.cycles * (1 + SWAP_GAIN) < plain.cycles else plain

    def _best_in_frame(self, kind: Class, *, swap: bool) -> Candidate | None:
        """The smallest cluster within `WORTH` of the fastest, and the best tile with it."""
        by_size: dict[int, Candidate] = {}
        fastest = math.inf
        for bound, tiling, residency in self._bounds(kind, swap=swap):
            if bound >= fastest * (1 + WORTH):
                break
            candidate = self.evaluate(tiling, swap_ab=swap, residency=residency)
            size = tiling.cluster_size
            if size not in by_size or _better(candidate, by_size[size]):
                by_size[size] = candidate
            fastest = min(fastest, candidate.cycles)
        close = [size for size, c in by_size.items() if c.cycles <= fastest * (1 + WORTH)]
        return by_size[min(close)] if close else None

    def _bounds(self, kind: Class, *, swap: bool) -> list[tuple[float, Tiling, Residency]]:
        """Each tiling of the class with cycles that it cannot be under, the least first."""
        unique = self._uniques[swap]
        entries = [(t, self._residency(t)) for t in self._tilings if class_of(t) == kind]
        entries = [(t, r) for t, r in entries if r.resident_clusters]
        if not entries or not len(unique.m):
            return [(0.0, t, r) for t, r in entries]
        columns = [
            (t.cluster_tile.m, t.cluster_tile.n, t.cta_tile.k, r.resident_clusters, self._least(t))
            for t, r in entries
        ]
        tile_m, tile_n, tile_k, resident, stage = np.array(columns, float).T[:, :, np.newaxis]
        clusters = np.ceil(unique.m / tile_m) * np.ceil(unique.n / tile_n) * unique.times
        steps = np.ceil(unique.k / tile_k)
        count = clusters.sum(axis=1, keepdims=True)
        rounds = np.maximum(
            (clusters * steps).sum(axis=1, keepdims=True) / resident,
            np.ceil(count / resident) * steps.min(axis=1, keepdims=True),
        )
        bounds = (np.maximum(rounds, steps.max(axis=1, keepdims=True)) * stage)[:, 0]
        order = np.argsort(bounds, kind="stable")
        return [(float(bounds[i]), *entries[i]) for i in order]

    def _least(self, tiling: Tiling) -> float:
        """Least cycles a stage; a tiling's own, whatever the problem."""
        return least_cycles_a_stage(tiling, self.device)

    def _residency(self, tiling: Tiling) -> Residency:
        resources = tiling.resources
        if resources not in self._slots:
            self._slots[resources] = cluster_slots(resources, self.device)
        key = self._slots[resources], tiling.cluster_size
        if key not in self._residencies:
            self._residencies[key] = residency_of_slots(
                *key,
                self.device,
                busy_sms=self._busy.busy_sms,
                sm_budget=self._busy.sm_budget,
            )
        return self._residencies[key]

    def evaluate(
        self,
        tiling: Tiling,
        *,
        swap_ab: bool = False,
        residency: Residency | None = None,
        device: Device | None = None,
    ) -> Candidate:
        """Cost one tiling, perhaps on a variation of the device."""
        device = device or self.device
        unique = self._uniques[swap_ab]
        residency = residency or self._residency(tiling)
        resident = max(residency.resident_clusters, 1)
        raster, reads = best_raster(self.problem, tiling, resident, device, unique)
        return self._cost(tiling, residency, raster, reads, device, swap_ab=swap_ab)

    def _cost(
        self,
        tiling: Tiling,
        residency: Residency,
        raster: Raster,
        reads: OperandReads,
        device: Device,
        *,
        swap_ab: bool,
    ) -> Candidate:
        unique = self._uniques[swap_ab]
        resident = max(residency.resident_clusters, 1)
        traffic = find_traffic(self.problem, tiling, resident, reads, unique)
        clusters, steps = _cluster_tiles(unique, tiling)
        count = float(clusters.sum())
        in_flight_ctas = min(count, resident) * tiling.cluster_size
        active = int(min(residency.sms_used, max(in_flight_ctas, 1)))
        cost = tile_cost(
            self.problem,
            tiling,
            traffic,
            active_sms=active,
            ctas_per_sm=max(1, math.ceil(in_flight_ctas / max(residency.sms_used, 1))),
            device=device,
            busy=busy_fraction(count, resident, residency.sms_used / device.sm_count),
        )
        weights = hbm_weights(self.problem, tiling, resident, device, raster, unique)
        turnover = device.cta_turnover_cycles or 0.0
        alone = _rounds(clusters, cost.alone(steps, weights) + turnover, resident)
        busy = _rounds(clusters, cost.persistent(steps, weights), resident)
        groups = dict(self._frames)[swap_ab]
        return Candidate(
            self.problem, tiling, swap_ab, groups, raster, residency, traffic, cost, active,
            unique, weights,
            single_tile_cycles=max(alone - turnover, 0.0),
            persistent_cycles=busy + cost.fill_cycles + cost.epilogue_cycles if count else 0.0,
        )  # fmt: skip


def busy_fraction(tiles: float, slots: int, sms_used: float) -> float:
    """SM time that has a tile: whole rounds of `slots` tiles, on a fraction `sms_used` of the SMs."""
    if not tiles:
        return 1.0
    return tiles / (math.ceil(tiles / slots) * slots) * sms_used


def class_of(tiling: Tiling) -> Class:
    """Which of the three classes a tiling belongs to."""
    if tiling.cta_group == 2:
        return "pair"
    return "cluster" if tiling.cluster_size > 1 else "single"


def _better(a: Candidate, b: Candidate) -> bool:
    """Faster by half a per cent, or as fast with the larger tile."""
    if abs(a.cycles - b.cycles) > 0.005 * b.cycles:
        return a.cycles < b.cycles
    tile_a, tile_b = (c.tiling.cta_tile.m * c.tiling.cta_tile.n for c in (a, b))
    return (-tile_a, a.cycles) < (-tile_b, b.cycles)


def _swapped(groups: Groups) -> Groups:
    return Groups(groups.n, groups.m, groups.k, groups.repeat)


def _cluster_tiles(
    unique: UniqueGroups, tiling: Tiling
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cluster tiles and stages of each distinct group."""
    tile_m, tile_n, tile_k = tiling.cluster_tile
    clusters = np.ceil(unique.m / tile_m) * np.ceil(unique.n / tile_n) * unique.times
    return clusters, np.ceil(unique.k / tile_k)


def _rounds(clusters: NDArray[np.float64], costs: NDArray[np.float64], resident: int) -> float:
    """Cycles to do all tiles on `resident` slots: whole rounds where tiles are about equal.

    Unequal tiles take their mean load and half of the longest; the simulator replaces this estimate for the
    candidate that is chosen.

    Args:
        clusters: cluster tiles of each group.
        costs: cycles of one of its tiles.
    """
    count, work = float(clusters.sum()), float((clusters * costs).sum())
    if not count:
        return 0.0
    mean, longest = work / count, float(costs.max())
    if float(np.sqrt((clusters * (costs - mean) ** 2).sum() / count)) <= UNEQUAL * mean:
        return math.ceil(count / resident) * mean
    return max(longest, work / resident + 0.5 * longest)

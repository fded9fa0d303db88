"""What is handed out: tiles in their order, or pieces of tiles, and who is promised which.

`stream_k` splits the total cost evenly over the workers, contiguously in tile order, and cuts tiles at
the borders. Each cut costs `fixup_cycles`, charged to the piece after it; that a piece may have to wait
for the sums of an earlier one is not modelled.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tilewright.sim.model import Order, Scheduler

    Cycles = NDArray[np.int64]


class Items(NamedTuple):
    """The units of work of a run.

    Attributes:
        tile: the tile of each item, as an index into the costs as given.
        cost_cycles: of each item, without overheads other than fix-ups.
        shares: the items of each worker, where they are fixed at launch; empty otherwise.
    """

    tile: Cycles
    cost_cycles: Cycles
    shares: tuple[range, ...] = ()


def items_for(
    scheduler: Scheduler, costs: Cycles, order: Order, workers: int, fixup_cycles: int
) -> Items:
    """The items of a scheduler over `workers` persistent workers."""
    tile = _in_order(costs, order)
    cost = costs[tile]
    count = len(tile)
    if scheduler == "static":
        return Items(tile, cost, tuple(range(w, count, workers) for w in range(workers)))
    if scheduler == "static_blocked":
        chunk = -(-count // workers)
        firsts = [min(w * chunk, count) for w in range(workers + 1)]
        return Items(tile, cost, _between(firsts))
    if scheduler == "stream_k":
        return _pieces(tile, cost, workers, fixup_cycles)
    return Items(tile, cost)


def _in_order(costs: Cycles, order: Order) -> Cycles:
    if order == "longest-first":
        return np.argsort(-costs, kind="stable")
    return np.arange(len(costs), dtype=np.int64)


def _between(firsts: list[int]) -> tuple[range, ...]:
    return tuple(range(first, after) for first, after in pairwise(firsts))


def _pieces(tile: Cycles, cost: Cycles, workers: int, fixup_cycles: int) -> Items:
    """Cut the tiles, laid end to end, at the workers' borders."""
    ends = np.cumsum(cost)
    total = int(ends[-1]) if len(ends) else 0
    borders = np.array([w * total // workers for w in range(1, workers)], dtype=np.int64)
    cuts = np.unique(borders[borders > 0])
    cuts = cuts[ends[np.searchsorted(ends, cuts)] != cuts]  # those that fall inside a tile
    within = np.searchsorted(ends, cuts)
    piece_ends = np.insert(ends, within, cuts)
    pieces = np.diff(piece_ends, prepend=0)
    after_cut = within + np.arange(1, len(cuts) + 1)
    pieces[after_cut] += fixup_cycles
    firsts = np.where(borders == 0, 0, np.searchsorted(piece_ends, borders) + 1)
    shares = _between([0, *firsts.tolist(), len(pieces)])
    return Items(np.insert(tile, within, tile[within]), pieces, shares)

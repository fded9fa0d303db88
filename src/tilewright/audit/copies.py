"""Bulk copies as rules see them: where each lands, whose barrier it signals, and what is certain of that.

Sizes of tensor copies stand in the tensor map, which PTX does not show. What the text does bound is the room: a
copy that is larger than the distance to the next tile of its ring overruns that tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.trace import sources

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

LOADS = ("cp.async.bulk.tensor", "cp.async.bulk")
WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
ARRIVALS = ("mbarrier.arrive", "mbarrier.arrive_drop", "tcgen05.commit", "cp.async.mbarrier.arrive")
RANKS_DIFFER = frozenset({"%ctaid", "%cluster_ctarank", "%cluster_ctaid", "%smid"})
MASK_BITS = 16


@dataclass(frozen=True, eq=False)
class Copy:
    """One copy into shared memory that signals a barrier.

    Attributes:
        pair: the .cta_group::2 form, which may signal the peer of the destination.
        masks: CTAs that it lands in, a bit each, by the rank that issues it; None where that is not known.
    """

    op: Op
    dst: Value
    mbar: Value
    pair: bool
    masks: tuple[int | None, ...]

    def beyond(self, rank: int) -> int | None:
        """CTAs other than the issuing one that it lands in."""
        mask = self.masks[rank]
        return None if mask is None else mask & ~(1 << rank)


def loads(kernel: Kernel) -> list[Copy]:
    """Every bulk copy into shared memory from global memory."""
    found = []
    for op in kernel.ops(*LOADS):
        if op.is_a(
            "cp.async.bulk.prefetch",
            "cp.async.bulk.commit_group",
            "cp.async.bulk.wait_group",
        ) or op.has("bulk_group"):
            continue
        if not op.has("global"):
            continue
        dst, mbar = kernel.value(op, "dst"), kernel.value(op, "mbar")
        if dst is not None and mbar is not None:
            masks = tuple(_mask(kernel, op, dst, rank) for rank in range(kernel.shape.ranks))
            found.append(Copy(op, dst, mbar, op.has("cta_group::2"), masks))
    return found


def _mask(kernel: Kernel, op: Op, dst: Value, rank: int) -> int | None:
    """CTAs that one rank's copy lands in: the same for all of its threads, or None."""
    mine = kernel.threads(op)[0][rank]
    if not mine.any():
        return 0
    if op.has("multicast::cluster"):
        mask = kernel.value(op, "mask")
        if mask is None or not mask.known:
            return None
        return _one(kernel, mask.constant, rank, mine, MASK_BITS)
    owner = home(kernel, dst, rank, mine)
    return None if owner is None else 1 << owner


def _one(
    kernel: Kernel, values: np.ndarray, rank: int, mine: np.ndarray, bits: int = 32
) -> int | None:
    full = np.broadcast_to(values, (kernel.shape.ranks, mine.size))[rank][mine]
    return int(full[0]) & ((1 << bits) - 1) if np.all(full == full[0]) else None


def home(kernel: Kernel, address: Value, rank: int, mine: np.ndarray | None = None) -> int | None:
    """The CTA that an address is in, as threads `mine` of a rank use it; None where that is not known."""
    if address.cta is None:
        return rank
    if address.cta.base == "leader":
        return rank & ~1
    if not address.cta.known:
        return None
    everyone = np.ones(max(kernel.shape.threads, 1), dtype=bool)
    return _one(kernel, address.cta.constant, rank, everyone if mine is None else mine)


# --- what is certain ------------------------------------------------------------------------------


def depends_on_rank(kernel: Kernel, op: Op) -> bool:
    """Whether something unknown that tells CTAs apart decides who executes an instruction."""
    return any(
        sources(kernel, condition.register) & RANKS_DIFFER
        for condition in kernel.reach.open_conditions(op)
    )


def certain(kernel: Kernel, op: Op, broken: np.ndarray) -> bool | None:
    """Whether a break in these (ranks, threads) is one in threads that do execute the instruction.

    None: only in threads of which it is not known.
    """
    mask, exact = kernel.threads(op)
    hit = np.broadcast_to(broken, mask.shape) & mask
    if not hit.any():
        return False
    if exact or bool(np.all(hit == mask)):
        return True
    whole_ranks = any(
        hit[rank].any() and np.all(hit[rank] == mask[rank]) for rank in range(len(mask))
    )
    return True if whole_ranks and not depends_on_rank(kernel, op) else None


def first_rank(kernel: Kernel, op: Op, broken: np.ndarray) -> int:
    """The lowest rank with a thread in which it is broken."""
    mask = kernel.threads(op)[0]
    return int(np.flatnonzero((np.broadcast_to(broken, mask.shape) & mask).any(axis=1))[0])


# --- places ---------------------------------------------------------------------------------------


def same_address(a: Value, b: Value) -> bool:
    """The same place in all threads, slot included."""
    return bool(a.base) and a.same_place(b) and a.unknown == b.unknown


def none_between(kernel: Kernel, start: Op, goal: Op, through: Iterable[Op]) -> bool:
    """Whether control can pass from one to the other, and on no such way passes any of these."""
    if not kernel.flow.path((start.index,), (goal.index,)):
        return False
    inside = kernel.reach.between(start, goal)
    return not any(op.index in inside for op in through)


def opposed(kernel: Kernel, a: Op, b: Op) -> bool:
    """Whether one unknown predicate, still the same, must hold for one and not for the other."""
    first = {
        (c.register, kernel.values.reaching(c.register, c.at)): c.holds
        for c in kernel.flow.conditions(a)
    }
    return any(
        first.get((c.register, kernel.values.reaching(c.register, c.at)), c.holds) != c.holds
        for c in kernel.flow.conditions(b)
    )

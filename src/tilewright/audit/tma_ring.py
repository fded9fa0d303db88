"""Rules of copies and the barriers that go with them: bytes expected, CTAs that expect, slots that are released.

A ring of slots is filled by copies that signal its full barriers, and released on its empty barriers. With a
multicast the slot is in several CTAs, and the issuer must hear from all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit import signals
from tilewright.audit.copies import (
    ARRIVALS,
    RANKS_DIFFER,
    WAITS,
    certain,
    home,
    loads,
    none_between,
    opposed,
    same_address,
)
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.slot_uses import early_uses, released_by_one
from tilewright.audit.trace import LANES_DIFFER, WARPS_DIFFER, sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.copies import Copy
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op

WARP = 32
CLUSTER_WAIT = "barrier.cluster.wait"
CTA_SYNC = ("bar", "barrier.sync", "barrier.red", "barrier.cta")


# --- who releases ---------------------------------------------------------------------------------


def _arrivals(kernel: Kernel, ring: Ring) -> list[Op]:
    """Arrivals on a ring that are not the expectation of bytes."""
    return [op for op in kernel.of_ring(ring, *ARRIVALS) if not op.has("expect_tx")]


def _from_outside(kernel: Kernel, ring: Ring) -> bool:
    """Whether another CTA arrives on a ring, or might."""
    if any(kernel.ring(op) is None for op in kernel.ops(*ARRIVALS)):
        return True
    return any(
        signals.where(kernel, op, "mbar") != "own" or signals.multicasts(kernel, op) != "own"
        for op in kernel.of_ring(ring, *ARRIVALS)
    )


def _releases(kernel: Kernel) -> list[tuple[Op, bool]]:
    """Waits that may say that a slot is free, and whether other CTAs have a say in it.

    A wait on a barrier that is not understood may say anything.
    """
    full = {id(kernel.ring(copy.op)) for copy in loads(kernel)}
    says: dict[int, bool | None] = {}
    found = []
    for op in kernel.ops(*WAITS):
        ring = kernel.ring(op)
        if ring is None:
            found.append((op, True))
            continue
        if id(ring) not in says:
            says[id(ring)] = _from_outside(kernel, ring) if _arrivals(kernel, ring) else None
        outside = says[id(ring)]
        if id(ring) not in full and outside is not None:
            found.append((op, outside))
    return found


def _reaches_out(copy: Copy) -> bool:
    """Whether it lands in another CTA than the issuer's, as far as masks are known."""
    return any(copy.beyond(rank) for rank in range(len(copy.masks)))


def _same_tile(a: Copy, b: Copy) -> bool:
    """The same tile, or the same ring of tiles."""
    return a.dst.base == b.dst.base and bool(a.dst.base) and a.dst.same_place(b.dst)


@rule(
    "TMA-07", "error", section="9.7.9.27.1.2",
    help="wait for the slot's empty barrier, on which every receiving CTA arrives, before the refill",
)  # fmt: skip
def refill_after_release(kernel: Kernel) -> Iterator[Outcome]:
    """A slot is refilled only after its consumers in every receiving CTA have released it."""
    copies = loads(kernel)
    releases = [op for op, _ in _releases(kernel)]
    if any(op.node.opcode.root == "call" for op in kernel.flow.ops):
        return
    yield from early_uses(kernel)
    yield from released_by_one(kernel)
    waits = [*kernel.ops(CLUSTER_WAIT), *releases]
    for copy in copies:
        free = waits if _reaches_out(copy) else [*waits, *kernel.ops(*CTA_SYNC)]
        near = kernel.flow.reaching(copy.op.index, kernel.indices(free))
        for before in copies:
            if before.op.index not in near or not same_address(before.dst, copy.dst):
                continue
            if copy.dst.unknown and not signals.in_one_go(kernel, before.op, copy.op):
                continue
            if not kernel.together(before.op, copy.op) or opposed(kernel, before.op, copy.op):
                continue
            if none_between(kernel, before.op, copy.op, free):
                yield kernel.finding(
                    "TMA-07",
                    "slot refilled with no wait for its consumers: the copy overwrites a tile that may"
                    " still be read",
                    copy.op, before.op, "filled here before",
                )  # fmt: skip
                break


def unheard_receivers(kernel: Kernel, rule_id: str) -> Iterator[Outcome]:
    """Multicasts whose refill waits only for consumers of the issuer's own CTA."""
    told: set[str] = set()
    copies = loads(kernel)
    releases = _releases(kernel)
    outside = kernel.indices([*kernel.ops(CLUSTER_WAIT), *(op for op, far in releases if far)])
    local = [op for op, far in releases if not far]
    for copy in copies if local else ():
        if None in copy.masks:
            yield kernel.undecided(rule_id, "the multicast mask is not known", copy.op)
            continue
        beyond = np.array([bool(copy.beyond(r)) for r in range(len(copy.masks))])[:, None]
        if not certain(kernel, copy.op, beyond):
            continue
        for before in copies:
            if not _same_tile(before, copy):
                continue
            inside = kernel.reach.between(before.op, copy.op)
            if inside & outside:
                continue
            wait = next(
                (op for op in local if op.index in inside and kernel.together(op, copy.op)), None
            )
            ring = kernel.ring(wait) if wait is not None else None
            if wait is None or ring is None or ring.name in told:
                continue
            told.add(ring.name)
            yield _unheard(kernel, rule_id, copy, ring, wait)


def _unheard(kernel: Kernel, rule_id: str, copy: Copy, ring: Ring, wait: Op) -> Outcome:
    rank = next(r for r in range(len(copy.masks)) if copy.beyond(r))
    beyond = copy.beyond(rank) or 0
    return kernel.finding(
        rule_id,
        f"CTA {rank} multicasts into CTA {beyond.bit_length() - 1} too, but only its own consumers arrive"
        f" on {ring.name}: a consumer there may still read the slot when it is refilled",
        _arrivals(kernel, ring)[0], wait, "the wait before the refill",
    )  # fmt: skip


def uses_wgmma(kernel: Kernel) -> bool:
    """Whether consumers are warpgroups: then some rules have an id of their own."""
    return bool(kernel.ops("wgmma.mma_async"))


@rule(
    "TMA-08", "error", section="9.7.9.27.1.2",
    help="arrive on the empty barrier of every CTA that multicasts into this one (mapa)",
)  # fmt: skip
def release_every_writer(kernel: Kernel) -> Iterator[Outcome]:
    """Consumers release a slot to every CTA that writes into it, not to their own only."""
    if not uses_wgmma(kernel):
        yield from unheard_receivers(kernel, "TMA-08")


# --- life of the peer -----------------------------------------------------------------------------


@rule(
    "TMA-09", "error", section="9.7.9.27.1.2",
    help="pass barrier.cluster between the initialisation of the barriers and the first multicast",
)  # fmt: skip
def peer_ready(kernel: Kernel) -> Iterator[Outcome]:
    """A cluster barrier lies between the initialisation of barriers and the first copy that signals a peer's."""
    waits = kernel.ops(CLUSTER_WAIT)
    for copy in loads(kernel):
        ring = kernel.ring(copy.op)
        mbar = [home(kernel, copy.mbar, rank) for rank in range(len(copy.masks))]
        away = [b not in {None, rank} for rank, b in enumerate(mbar)]
        out = [bool(copy.beyond(r)) or away[r] for r in range(len(copy.masks))]
        if ring is None or not certain(kernel, copy.op, np.array(out)[:, None]):
            continue
        init = ring.inits[0]
        through = [
            op
            for op in waits
            if kernel.flow.path((init.index,), (op.index,))
            and kernel.flow.path((op.index,), (copy.op.index,))
        ]
        if not through:
            yield kernel.finding(
                "TMA-09",
                f"copy reaches another CTA, and no barrier.cluster.wait lies between it and the"
                f" initialisation of {ring.name}: the peer may not have started, or its barrier be invalid",
                copy.op, init, "initialised here",
            )  # fmt: skip
            return
        if kernel.reach.threads_to((-1,), copy.op, kernel.indices(waits)):
            yield kernel.undecided("TMA-09", "a way to the copy passes no cluster barrier", copy.op)
            return


def gone_before_arrival(kernel: Kernel, rule_id: str) -> Iterator[Outcome]:
    """Arrivals on a peer's barrier that the peer may not live to see."""
    if not kernel.shape.cluster_known or kernel.shape.ranks == 1:
        return
    arrivals = [op for op in kernel.ops(*ARRIVALS) if not op.has("expect_tx")]
    waits = kernel.ops(CLUSTER_WAIT)
    if any(kernel.ring(op) is None for op in [*arrivals, *kernel.ops(*WAITS)]):
        return
    far = [op for op in arrivals if _far(kernel, op)]
    if not loads(kernel) or not far or _has_tail(kernel):
        return
    last = next(
        (
            op
            for op in reversed(far)
            if not kernel.flow.path((op.index,), kernel.indices(waits)) and not _skipped(kernel, op)
        ),
        None,
    )
    if last is None:
        return
    yield kernel.finding(
        rule_id,
        "arrival on a barrier of another CTA with nothing after it that keeps that CTA alive: it may have"
        " exited, and its shared memory be gone",
        last,
    )


def _far(kernel: Kernel, op: Op) -> bool:
    """Whether, in some CTA, it arrives on another's barrier whenever a warp, or all of that CTA, executes it."""
    if signals.multicasts(kernel, op) == "other":
        return True
    value, mask = kernel.value(op, "mbar"), kernel.threads(op)[0]
    if value is None or value.cta is None or not value.cta.known or mask.shape[1] % WARP:
        return False
    given = kernel.flow.conditions(op)
    differ = {
        source
        for condition in kernel.reach.open_conditions(op)
        for source in sources(kernel, condition.register, condition.at, given)
    }
    if differ & LANES_DIFFER:
        return False
    unit = WARP if differ & WARPS_DIFFER else mask.shape[1]
    far = (value.cta.constant != np.arange(kernel.shape.ranks)[:, None]) & mask
    units = (mask.shape[0], -1, unit)
    there = mask.reshape(units).sum(axis=2) > 0
    missed = there & ~(far.reshape(units).sum(axis=2) > 0)
    issuing = there.sum(axis=1) > 0
    whole = issuing & (missed.sum(axis=1) == 0)
    return bool(whole.any()) and (not differ & RANKS_DIFFER or bool(np.all(whole == issuing)))


def _has_tail(kernel: Kernel) -> bool:
    """Whether some wait for other CTAs leads to the end with no copy after it: the tail of a producer."""
    copies = {copy.op.index for copy in loads(kernel)}
    ends = kernel.indices(kernel.flow.exits)
    for op in kernel.ops(*WAITS):
        ring = kernel.ring(op)
        if ring is not None and _from_outside(kernel, ring):
            ways = copies | {op.index} | kernel.elsewhere(op)
            if kernel.flow.path((op.index,), ends, ways) and _by_copiers(kernel, op, copies, ends):
                return True
    return False


def _by_copiers(kernel: Kernel, wait: Op, copies: set[int], ends: set[int]) -> bool:
    """Whether a thread that waits before it copies may come to the end so, where some thread does both."""
    masks = [kernel.threads(kernel.flow.ops[index])[0] for index in copies]
    both = [c for c in kernel.paths.crowds_of(wait) if any(c.may(mask) for mask in masks)]
    avoid = copies | {wait.index}
    return not both or any(
        kernel.paths.find(crowd, (wait.index,), ends, avoid=avoid) for crowd in both
    )


def _skipped(kernel: Kernel, op: Op) -> bool:
    """Whether an arrival hangs on more than the wait before it does: the last ones may be left out."""
    around = [
        wait
        for wait in kernel.ops(*WAITS)
        if kernel.together(wait, op) and kernel.flow.dominates(wait.index, op.index)
    ]
    known = {c for wait in around for c in kernel.reach.open_conditions(wait)}
    return any(c not in known for c in kernel.reach.open_conditions(op))


@rule(
    "TMA-10", "error", section="2.2.2",
    help="end with barrier.cluster, or let the producer wait until every slot is released",
)  # fmt: skip
def alive_to_the_end(kernel: Kernel) -> Iterator[Outcome]:
    """No CTA exits while a peer may still arrive on its barriers."""
    if not uses_wgmma(kernel):
        yield from gone_before_arrival(kernel, "TMA-10")

"""Rules of tcgen05.commit: what its arrival releases, which CTAs it reaches, and who waits for the last one.

A commit arrives once on the mbarrier when the MMAs that its thread issued before are complete. Until then
they read shared memory and write tensor memory, whatever else their thread does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.phases import slot_of
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.tcgen05 import cta_group, of_pair

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op

WAITS = ("mbarrier.try_wait", "mbarrier.test_wait")
COPIES = ("cp.async.bulk",)
ARRIVALS = (
    "mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.complete_tx", "cp.async.mbarrier.arrive",
    "cp.async.bulk", "cp.reduce.async.bulk", "st.async", "red.async",
    "clusterlaunchcontrol.try_cancel", "tcgen05.commit",
)  # fmt: skip
BLOCK_BARRIERS = (
    "bar.sync", "bar.cta.sync", "bar.red", "barrier.sync", "barrier.cta.sync", "barrier.red",
    "barrier.cluster.wait",
)  # fmt: skip

CROWDS_MAX = 4
"""Kinds of thread that are asked whether a way holds; they mostly do the same."""


def thread_arrives(kernel: Kernel) -> list[Op]:
    """Arrivals by which a thread says that it is done; those that announce bytes say that it begins."""
    return [
        op
        for op in kernel.ops("mbarrier.arrive", "mbarrier.arrive_drop")
        if not op.has("expect_tx")
    ]


def waits_of(kernel: Kernel, ring: Ring) -> list[Op]:
    """Waits on one barrier object."""
    return kernel.of_ring(ring, *WAITS)


def copies_in(kernel: Kernel) -> list[Op]:
    """Bulk copies into shared memory that complete on an mbarrier."""
    return [op for op in kernel.ops(*COPIES) if op.role("mbar") is not None]


def on_its_way(kernel: Kernel, start: Op, goals: Iterable[Op], avoid: Iterable[Op] = ()) -> bool:
    """Whether a thread of `start` may pass from it to one of `goals` and none of `avoid`."""
    ends = [op for op in goals if kernel.together(start, op)]
    return bool(ends) and kernel.flow.path(
        (start.index,), kernel.indices(ends), kernel.indices(avoid) | kernel.elsewhere(start)
    )


def way_holds(kernel: Kernel, start: Op, goal: Op, avoid: Iterable[Op] = ()) -> bool:
    """The same once more, with predicates kept along the way: for what is about to be reported."""
    stops = kernel.indices(avoid)
    return any(
        kernel.paths.find(crowd, (start.index,), (goal.index,), avoid=stops)
        for crowd in kernel.paths.crowds_of(start, goal)[:CROWDS_MAX]
    )


def _in_one_loop(kernel: Kernel, inside: Op, other: Op) -> bool:
    """Whether the innermost loop around `inside` holds `other` as well."""
    loops = kernel.flow.loops(inside.index)
    return bool(loops) and other.index in loops[0][1]


def refill_rings(kernel: Kernel) -> dict[Ring, list[Op]]:
    """Barrier objects that a thread waits for in a loop before it refills shared memory; with the copies."""
    found: dict[Ring, list[Op]] = {}
    copies = copies_in(kernel)
    for wait in kernel.ops(*WAITS):
        ring = kernel.ring(wait)
        if ring is None:
            continue
        guarded = [
            copy
            for copy in copies
            if kernel.ring(copy) is not ring
            and _in_one_loop(kernel, copy, wait)
            and on_its_way(kernel, wait, [copy])
        ]
        if guarded:
            found.setdefault(ring, []).extend(guarded)
    return found


# --- what a commit releases -----------------------------------------------------------------------


@rule(
    "TC-10", "error", section="9.7.16.12.1",
    help="release the slot with tcgen05.commit on its barrier, which arrives when the MMAs are complete",
)  # fmt: skip
def slots_are_released_by_commit(kernel: Kernel) -> Iterator[Outcome]:
    """Shared memory that an MMA reads is released by tcgen05.commit, not by an arrive of the issuing thread."""
    mmas = kernel.ops("tcgen05.mma")
    if not mmas:
        return
    committed = [kernel.ring(op) for op in kernel.ops("tcgen05.commit")]
    completion = [op for op in kernel.ops(*WAITS) if kernel.ring(op) in committed]
    refilled = refill_rings(kernel)
    told: set[Ring] = set()
    for arrive in thread_arrives(kernel):
        ring = kernel.ring(arrive)
        if ring is None or ring not in refilled or ring in told:
            continue
        fulls = {kernel.ring(copy) for copy in refilled[ring]}
        before = [
            mma
            for mma in mmas
            if on_its_way(kernel, mma, [arrive], completion) and _reads(kernel, mma, fulls)
        ]
        if before and way_holds(kernel, before[-1], arrive, completion):
            told.add(ring)
            yield kernel.finding(
                "TC-10",
                f"barrier {ring.name}: the thread that issues the MMA releases the shared memory it"
                " reads by an arrive, which does not wait for the MMA: the producer overwrites it"
                " while it is read",
                arrive, before[-1], "may still be reading the slot",
            )  # fmt: skip
    yield from _accumulator_handed_over(kernel, mmas, completion)


def _accumulator_handed_over(
    kernel: Kernel, mmas: list[Op], completion: list[Op]
) -> Iterator[Outcome]:
    """An accumulator that others read behind a barrier on which the MMA's thread arrives by itself."""
    for arrive in thread_arrives(kernel):
        ring = kernel.ring(arrive)
        if ring is None or kernel.of_ring(ring, "tcgen05.commit"):
            continue
        before = [mma for mma in mmas if on_its_way(kernel, mma, [arrive], completion)]
        if not before or not way_holds(kernel, before[-1], arrive, completion):
            continue
        for wait in waits_of(kernel, ring):
            loads = [
                op
                for op in kernel.ops("tcgen05.ld")
                if on_its_way(kernel, wait, [op]) and not kernel.together(op, before[-1])
            ]
            told = [op for op in completion if any(kernel.together(op, load) for load in loads)]
            if loads and not told:
                yield kernel.finding(
                    "TC-10",
                    f"barrier {ring.name}: the thread that issues the MMA hands the accumulator over by an arrive,"
                    " which does not wait for the MMA: it is read while it is written",
                    arrive, loads[0], "reads the accumulator",
                )  # fmt: skip
                return


def _reads(kernel: Kernel, mma: Op, fulls: set[Ring | None]) -> bool:
    """Whether the MMA's thread waited for one of the barriers that the copies complete on."""
    return any(
        kernel.ring(wait) in fulls and on_its_way(kernel, wait, [mma])
        for wait in kernel.ops(*WAITS)
        if kernel.ring(wait) is not None
    )


# --- whom it reaches ------------------------------------------------------------------------------


@rule(
    "TC-11", "error", section="9.7.16.12.1",
    help="multicast to the CTAs that wait, for pairs 0x3 << (rank & ~1), and commit with the MMA's .cta_group",
)  # fmt: skip
def commit_reaches_who_waits(kernel: Kernel) -> Iterator[Outcome]:
    """A commit has the .cta_group of its MMAs and arrives in every CTA that waits for it."""
    commits = kernel.ops("tcgen05.commit")
    mmas = kernel.ops("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")
    groups = {cta_group(op) for op in mmas}
    told = False
    for commit in commits:
        if groups and cta_group(commit) not in groups and not told:
            told = True
            yield kernel.finding(
                "TC-11",
                f"tcgen05.commit with .cta_group::{cta_group(commit)} tracks no MMA: they are"
                f" issued with .cta_group::{' and '.join(map(str, sorted(filter(None, groups))))},"
                " so its arrival says nothing of them",
                commit, mmas[0], "an MMA of the other group",
            )  # fmt: skip
    if mmas:
        yield from _never_refilled(kernel, mmas[-1])
    if not kernel.shape.cluster_known:
        if of_pair(kernel, "tcgen05.commit"):
            yield kernel.undecided("TC-11", "the cluster is not known", commits[0])
        return
    yield from _masks_fit(kernel, commits)
    for ring in kernel.rings:
        mine = [op for op in commits if kernel.ring(op) is ring]
        if mine:
            yield from _starved(kernel, ring, mine)


def _never_refilled(kernel: Kernel, mma: Op) -> Iterator[Outcome]:
    """Barriers that a producer waits for before it refills a slot and that nothing arrives on."""
    arrivals = {kernel.ring(op) for op in kernel.ops(*ARRIVALS) if "mbar" in op.roles}
    if None in arrivals:
        return
    for ring in refill_rings(kernel):
        if ring not in arrivals:
            yield kernel.finding(
                "TC-11",
                f"barrier {ring.name}: the producer waits for it before it refills a slot, and no commit"
                " or arrive ever comes: it waits for ever once the ring comes round",
                waits_of(kernel, ring)[0], mma, "reads the slots and releases none",
            )  # fmt: skip


def _masks_fit(kernel: Kernel, commits: list[Op]) -> Iterator[Outcome]:
    for commit in commits:
        reached = targets(kernel, commit)
        if reached is None:
            yield kernel.undecided("TC-11", "the CTA mask of a commit is not known", commit)
            continue
        outside = sorted({t for each in reached.values() for t in each if t >= kernel.shape.ranks})
        if outside:
            yield kernel.finding(
                "TC-11",
                f"the CTA mask names rank {outside[0]}; the cluster has {kernel.shape.ranks}"
                f" {'CTA' if kernel.shape.ranks == 1 else 'CTAs'}",
                commit,
            )


def targets(kernel: Kernel, commit: Op) -> dict[int, set[int]] | None:
    """Ranks that a commit arrives in, by the rank that issues it; None when that is not known."""
    mask = kernel.value(commit, "mask")
    issuers = kernel.threads(commit)[0]
    found: dict[int, set[int]] = {}
    if mask is not None:
        if not mask.known:
            return None
        words = np.broadcast_to(mask.constant, issuers.shape)
        for rank in kernel.ranks(commit):
            for word in {int(w) for w in words[rank][issuers[rank]]}:
                bits = {bit for bit in range(16) if word >> bit & 1}
                found.setdefault(rank, set()).update(bits)
        return found
    where = kernel.value(commit, "mbar")
    if where is None:
        return None
    for rank in kernel.ranks(commit):
        if where.cta is None:
            found[rank] = {rank}
        elif where.cta.base == "leader":
            found[rank] = {rank & ~1}
        elif where.cta.known:
            to = np.broadcast_to(where.cta.constant, issuers.shape)
            found[rank] = {int(t) for t in to[rank][issuers[rank]]}
        else:
            return None
    return found


def _starved(kernel: Kernel, ring: Ring, commits: list[Op]) -> Iterator[Outcome]:
    """CTAs that wait on the barrier and get no arrival: of one that only commits arrive on."""
    arrivals = [op for op in kernel.ops(*ARRIVALS) if "mbar" in op.roles and op not in commits]
    if any(kernel.ring(op) in {ring, None} for op in arrivals):
        return
    reached: dict[int, list[int]] = {}
    for commit in commits:
        known = targets(kernel, commit)
        if known is None:
            return
        for issuer, ranks in known.items():
            for rank in ranks:
                reached.setdefault(rank, []).append(issuer)
    for wait in waits_of(kernel, ring):
        starved = [rank for rank in kernel.ranks(wait) if rank not in reached]
        if starved:
            to = ", ".join(map(str, sorted(reached)))
            yield kernel.finding(
                "TC-11",
                f"barrier {ring.name}: ranks {', '.join(map(str, starved))} wait on it and no commit"
                f" arrives there, only in {to or 'none'}: they wait for ever",
                commits[0], wait, "waits in every CTA that executes it",
            )  # fmt: skip
            return


# --- the accumulator ------------------------------------------------------------------------------


@rule(
    "TC-17", "error", section="9.7.16.6.4",
    help="let the epilogue arrive on a barrier after its last tcgen05.ld, and the MMA's thread wait for it",
)  # fmt: skip
def accumulator_is_free(kernel: Kernel) -> Iterator[Outcome]:
    """The MMA of the next tile waits until the readers of the last one have released the accumulator."""
    loads = kernel.ops("tcgen05.ld")
    for mma in kernel.ops("tcgen05.mma"):
        loop = _tile_loop(kernel, mma, loads)
        if loop is None:
            continue
        readers = [op for op in loads if not kernel.together(op, mma)]
        waits = [op for op in kernel.ops(*WAITS) if op.index in loop and kernel.together(op, mma)]
        if any(op.index in loop and kernel.together(op, mma) for op in kernel.ops(*BLOCK_BARRIERS)):
            return
        freeing = [
            op
            for op in thread_arrives(kernel)
            if any(on_its_way(kernel, load, [op]) for load in readers)
        ]
        rings = {kernel.ring(op) for op in waits}
        if None in rings or any(kernel.ring(op) is None for op in freeing):
            yield kernel.undecided("TC-17", "a barrier's address is not understood", mma)
        elif not rings & {kernel.ring(op) for op in freeing}:
            yield from _never_released(kernel, mma, waits, readers)
        return


def _never_released(
    kernel: Kernel, mma: Op, waits: list[Op], readers: list[Op]
) -> Iterator[Outcome]:
    arrivals = {kernel.ring(op) for op in kernel.ops(*ARRIVALS) if "mbar" in op.roles}
    for wait in waits:
        ring = kernel.ring(wait)
        if ring is not None and ring not in arrivals and None not in arrivals:
            yield kernel.finding(
                "TC-17",
                f"barrier {ring.name}: the MMA's thread waits for the accumulator and nothing arrives"
                " on it: it waits for ever",
                wait, readers[-1], "reads the accumulator and signals nobody",
            )  # fmt: skip
            return
    yield kernel.finding(
        "TC-17",
        "the MMA of the next tile waits for no barrier that the accumulator's readers arrive on: it"
        " overwrites what they still read",
        mma, readers[-1], "reads the accumulator",
    )  # fmt: skip


def _tile_loop(kernel: Kernel, mma: Op, loads: list[Op]) -> frozenset[int] | None:
    """The loop in which the MMA's thread commits tile after tile to other threads that loop as well."""
    for commit in kernel.ops("tcgen05.commit"):
        ring = kernel.ring(commit)
        loops = kernel.flow.loops(commit.index)
        if ring is None or not loops or not kernel.together(commit, mma):
            continue
        if mma.index not in loops[-1][1]:
            continue
        for wait in waits_of(kernel, ring):
            if kernel.together(wait, mma) or not kernel.flow.loops(wait.index):
                continue
            around = kernel.flow.loops(wait.index)[-1][1]
            if any(load.index in around and on_its_way(kernel, wait, [load]) for load in loads):
                return loops[-1][1]
    return None


# --- the end --------------------------------------------------------------------------------------


@rule(
    "TC-18", "error", section="9.7.16.12.1",
    help="wait once for every stage of the barrier after the last tile, then exit",
)  # fmt: skip
def last_commits_are_received(kernel: Kernel) -> Iterator[Outcome]:
    """A CTA receives every commit that another CTA aims at it before it exits."""
    refilled = refill_rings(kernel)
    for ring, copies in refilled.items():
        commits = kernel.of_ring(ring, "tcgen05.commit")
        leaving = [op for op in commits if _leaves(kernel, op)]
        if not commits:
            continue
        filling = [op for op in kernel.ops(*WAITS) if any(kernel.together(op, c) for c in copies)]
        if any(kernel.ring(op) is None for op in filling):
            yield kernel.undecided("TC-18", "a barrier's address is not understood", commits[0])
            continue
        draining = [wait for wait in waits_of(kernel, ring) if not on_its_way(kernel, wait, copies)]
        few = _fewer_than_slots(kernel, ring, draining)
        if few and leaving:
            yield kernel.finding(
                "TC-18",
                f"barrier {ring.name}: {few} of {ring.slots} slots are waited for behind the loop; the commits of the rest,"
                " which other CTAs aim at it, may arrive in a CTA that has exited",
                draining[0], leaving[-1], "arrives in every CTA of its mask",
            )  # fmt: skip
        elif few or not (leaving or draining):
            yield kernel.undecided(
                "TC-18",
                f"barrier {ring.name}: whether this CTA's own last commits arrive before it exits",
                commits[0],
            )
        elif leaving and not any(on_its_way(kernel, copy, draining) for copy in copies):
            waits = [w for w in waits_of(kernel, ring) if on_its_way(kernel, w, copies)]
            yield kernel.finding(
                "TC-18",
                f"barrier {ring.name}: no wait for the last commits that other CTAs aim at it; they"
                " may arrive in a CTA that has exited",
                waits[-1], commits[-1], "arrives in every CTA of its mask",
            )  # fmt: skip


def _fewer_than_slots(kernel: Kernel, ring: Ring, draining: list[Op]) -> int:
    """How many slots are waited for behind the loop, each by a wait of its own, if it is some and not all."""
    slots = [slot_of(kernel, wait) for wait in draining]
    looped = any(len(kernel.flow.loops(wait.index)) > 1 for wait in draining)
    if ring.slots is None or looped or not slots or any(slot is None for slot in slots):
        return 0
    ahead = {len(slot.wraps) for slot in slots if slot is not None}
    return len(ahead) if len(ahead) < ring.slots else 0


def _leaves(kernel: Kernel, commit: Op) -> bool:
    """Whether a commit arrives in another CTA than its own."""
    reached = targets(kernel, commit)
    if reached is None or not kernel.shape.cluster_known:
        return commit.has("multicast::cluster")
    return any(ranks - {issuer} for issuer, ranks in reached.items())

"""Arrivals a round of two barriers that hold each other back: a full one and an empty one, a work item and its release.

Whoever arrives on the one waits for the other in every round, and the other way about. A thread then arrives at most
once a phase at each place (`counts_of_rounds`); where nothing lets it skip the place, just once (`too_many_a_round`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import depends_on_rank
from tilewright.audit.first import blocking_waits, spins
from tilewright.audit.mbarrier_rings import walks
from tilewright.audit.signals import SIGNALS, WAITS, count_of, in_one_go, signalled_by
from tilewright.ptx.nodes import Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.paths import Crowd, Edge
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Condition, Op

OTHER_BY_LANE = ("%tid", "%laneid", "%warpid", "%lanemask", "%clock", "%globaltimer", "%smid")
OTHER_BY_OP = frozenset({"elect", "shfl", "atom", "vote", "match", "activemask", "redux", "call"})
COUNTED = ("mbarrier.arrive", "tcgen05.commit")


@dataclass(frozen=True, eq=False)
class Pair:
    """A barrier object and the one that holds its arrivals back.

    Attributes:
        sites: instructions that arrive on `ring`.
        waits: on `other`, of which each site's every round passes one.
    """

    ring: Ring
    other: Ring
    sites: list[Op]
    waits: set[int]


def pairs(kernel: Kernel) -> list[Pair]:
    """Barrier objects of as many slots that hold each other back, every signal understood."""
    if not _signals_understood(kernel):
        return []
    sites = {ring: _sites(kernel, ring) for ring in kernel.rings}
    waits = {
        ring: {op.index for op in kernel.of_ring(ring, *WAITS) if spins(kernel, op)}
        for ring in kernel.rings
    }
    own = {ring: blocking_waits(kernel, ring) for ring in kernel.rings}
    found = []
    for ring in kernel.rings:
        fitting = [
            other
            for other in kernel.rings
            if other is not ring and other.slots == ring.slots and ring.slots is not None
            if sites[ring] and sites[other] and waits[ring] and waits[other]
        ]
        # by the other barrier alone; else some of them wait for the phase that they have arrived on
        for mine, its in (({}, {}), (own, own)):
            other = next(
                (
                    each
                    for each in fitting
                    if _held(kernel, sites[ring], waits[each] | mine.get(ring, set()))
                    and _held(kernel, sites[each], waits[ring] | its.get(each, set()))
                ),
                None,
            )
            if other is not None:
                found.append(Pair(ring, other, sites[ring], waits[other]))
                break
    return found


def _signals_understood(kernel: Kernel) -> bool:
    return not any(
        op.node.opcode.root == "call"
        or (
            "mbar" in op.roles
            and not op.is_a("mbarrier.init", *WAITS)
            and kernel.ring(op) is None
        )
        for op in kernel.flow.ops
    )  # fmt: skip


def _sites(kernel: Kernel, ring: Ring) -> list[Op]:
    """Arrivals on a barrier object; none where some are of a kind that is not counted here."""
    ops = [op for op in signalled_by(kernel, ring) if op.is_a(*SIGNALS)]
    if kernel.of_ring(ring, "mbarrier.inval") or any(not op.is_a(*COUNTED) for op in ops):
        return []
    return ops


def _held(kernel: Kernel, sites: list[Op], waits: set[int]) -> bool:
    """Whether each place is in a loop every round of which passes one of the waits."""
    return all(
        kernel.flow.path((op.index,), (op.index,))
        and (
            not kernel.flow.path((op.index,), (op.index,), waits)
            or not any(
                kernel.paths.find(crowd, (op.index,), (op.index,), avoid=waits)
                for crowd in kernel.paths.crowds_of(op)
            )
        )
        for op in sites
    )


# --- at most --------------------------------------------------------------------------------------


def counts_of_rounds(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-03: a count above what all places give a phase, each of them once a round."""
    walked = {walk.op for walk in kernel.view(walks)}
    for pair in kernel.view(pairs):
        ring = pair.ring
        each = [_arrivals(kernel, op) for op in pair.sites]
        every_slot = ring.slots == 1 or all(op in walked for op in pair.sites)
        if ring.count is None or not every_slot or any(some is None for some in each):
            continue
        by_rank = np.sum([some for some in each if some is not None], axis=0)
        surely = [op for op in kernel.of_ring(ring, *WAITS) if not depends_on_rank(kernel, op)]
        waiting = {rank for op in surely for rank in kernel.ranks(op)}
        most = min((int(by_rank[rank]) for rank in waiting), default=int(np.max(by_rank)))
        if most < ring.count:
            yield kernel.finding(
                "MBAR-03",
                f"{ring.name} expects {ring.count} arrivals a phase and gets at most {most}: who arrives waits for {pair.other.name} in every round, and who signals that waits for this barrier: its phases end rounds late or never (deadlock)",
                ring.inits[0], pair.sites[0], "arrives once a round",
            )  # fmt: skip


def _arrivals(kernel: Kernel, op: Op) -> np.ndarray | None:
    """Arrivals that each CTA's barrier may get of one round of a place; None where that is not known."""
    ranks = kernel.shape.ranks
    count, threads = count_of(kernel, op), kernel.threads(op)[0]
    value = kernel.value(op, "mbar")
    if count is None or value is None or not kernel.block_bounded:
        return None
    own = np.broadcast_to(np.arange(ranks)[:, None], threads.shape)
    if op.has("multicast::cluster::all"):
        return None
    if op.has("multicast::cluster"):
        return _by_mask(kernel, op, threads)
    if value.cta is None:
        target = own
    elif value.cta.known:
        target = np.broadcast_to(value.cta.constant, threads.shape)
    else:
        return None
    if not kernel.shape.cluster_known and value.cta is not None:
        return None
    inside = threads & (target >= 0) & (target < ranks)
    found: np.ndarray = np.bincount(target[inside], minlength=ranks)[:ranks] * count
    return found


def _by_mask(kernel: Kernel, op: Op, threads: np.ndarray) -> np.ndarray | None:
    """Of a multicast commit: one arrival in each CTA of its mask."""
    mask = kernel.value(op, "mask")
    if mask is None or not mask.known or not kernel.shape.cluster_known:
        return None
    masks = np.broadcast_to(mask.constant, threads.shape)[threads]
    return np.array([int(np.sum(masks >> rank & 1)) for rank in range(kernel.shape.ranks)])


# --- just so many ---------------------------------------------------------------------------------


def too_many_a_round(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-05: threads of one CTA that each arrive in every round are more than the count."""
    walked = {walk.op for walk in kernel.view(walks)}
    for pair in kernel.view(pairs):
        ring = pair.ring
        every_slot = [op for op in pair.sites if ring.slots == 1 or op in walked]
        alone = {op: _targets(kernel, op, _surely(kernel, pair, op)) for op in every_slot}
        sure = [
            (op, sum((alone[b] for b in every_slot if in_one_go(kernel, b, op)), alone[op]))
            for op in every_slot
        ]
        if ring.count is None or not sure:
            continue
        # a thread counts once, at the place where it arrives most: copies of a loop's body share the slots
        each = np.max([targets for _, targets in sure], axis=0)
        total = int(each.sum(axis=1).max())
        if total > ring.count:
            op, most = max(sure, key=lambda place: int(place[1].sum(axis=1).max()))
            number = int(most.sum(axis=1).max())
            at = f"{number} of them here, " if number < total else ""
            yield kernel.finding(
                "MBAR-05",
                f"{ring.name} expects {ring.count} arrivals a phase and gets {total}, {at}one of each thread in every round: the phase completes early, and the next has arrivals too many",
                op, ring.inits[0], "count given here",
            )  # fmt: skip


def _targets(kernel: Kernel, op: Op, threads: np.ndarray) -> np.ndarray:
    """Arrivals of a place, (ranks, threads), that go to the barrier of one CTA from one CTA; zeros where not known."""
    value, count = kernel.value(op, "mbar"), count_of(kernel, op)
    none = np.zeros(threads.shape, np.int64)
    if value is None or count is None or op.has("multicast::cluster"):
        return none
    if value.cta is None:
        return threads * count
    if not value.cta.known or not kernel.shape.cluster_known:
        return none
    target = np.broadcast_to(value.cta.constant, threads.shape)
    one = np.all((target == target[:, :1]) | ~threads, axis=1)
    found: np.ndarray = np.where(one[:, None], threads * count, none)
    return found


def _surely(kernel: Kernel, pair: Pair, op: Op) -> np.ndarray:
    """Threads that arrive at a place in every round that they wait for."""
    threads = np.broadcast_to(kernel.threads(op)[0], _full(kernel)).copy()
    before = [w for w in pair.waits if kernel.flow.dominates(w, op.index)]
    wait = kernel.flow.ops[max(before)] if before else None
    if wait is None or not _alike(kernel, op, wait):
        return np.zeros_like(threads)
    for crowd in kernel.paths.crowds_of(op, wait):
        if _skips(kernel, crowd, wait, op):
            threads &= ~crowd.members
    found: np.ndarray = threads & np.broadcast_to(kernel.threads(wait)[0], threads.shape)
    return found


def _full(kernel: Kernel) -> tuple[int, int]:
    return kernel.shape.ranks, max(kernel.shape.threads, 1)


def _skips(kernel: Kernel, crowd: Crowd, wait: Op, op: Op) -> bool:
    """Whether these threads may come round to the wait again without arriving."""
    again = _asks_again(kernel, wait)
    inside = kernel.reach.between(wait, op)
    inner = [(c, (c.at, not c.holds)) for c in kernel.reach.open_conditions(op) if c.at in inside]
    goals, avoid = (wait.index,), (op.index,)
    turns = {edge for _, edge in inner}
    if kernel.paths.find(crowd, goals, goals, avoid=avoid, closed=again | turns):
        return True
    return any(
        kernel.paths.find(
            crowd, (edge,), goals, avoid=avoid, closed=again | set(_contrary(kernel, condition))
        )
        for condition, edge in inner
    )


def _asks_again(kernel: Kernel, wait: Op) -> set[Edge]:
    """Edges on which a wait is tried once more."""
    _, members = kernel.flow.loops(wait.index)[0]
    found: set[Edge] = set()
    for op in (kernel.flow.ops[i] for i in members):
        if op.guard and op.node.opcode.root == "bra":
            yes, no = kernel.flow.sides(op)
            if (yes in members) != (no in members):
                found.add((op.index, yes in members))
    return found


def _contrary(kernel: Kernel, condition: Condition) -> list[tuple[int, bool]]:
    """Edges that cannot be taken once the condition has failed: the same comparison, asked the other way."""
    asked = _comparison(kernel, condition.register, condition.at)
    if asked is None:
        return []
    found = []
    for op in kernel.flow.ops:
        if op.guard and op.node.opcode.root == "bra" and op.index != condition.at:
            other = _comparison(kernel, op.guard, op.index)
            if other is None or other[1:] != asked[1:]:
                continue
            if other[0] == asked[0]:
                found.append((op.index, condition.holds))
            elif OPPOSITE.get(other[0]) == asked[0]:
                found.append((op.index, not condition.holds))
    return found


OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}


def _comparison(kernel: Kernel, register: str, at: int) -> tuple[str, object, object] | None:
    """The comparison that a predicate is, with what it compares by definition."""
    defs = kernel.values.reaching(register, at)
    op = kernel.flow.ops[defs[0]] if len(defs) == 1 else None
    if op is None or op.node.opcode.root != "setp" or op.guard or len(op.operands) != 3:
        return None
    how = next((m for m in op.node.opcode.modifiers if m in OPPOSITE), None)
    sides = []
    for operand in op.operands[1:3]:
        if isinstance(operand, Name):
            sides.append((operand.name, kernel.values.reaching(operand.name, op.index)))
        else:
            number = kernel.values.of(operand, op).number()
            sides.append((str(number), ()))
    return None if how is None else (how, sides[0], sides[1])


def _alike(kernel: Kernel, op: Op, wait: Op) -> bool:
    """Whether what decides before the round that the place is reached is the same in all threads of a CTA."""
    inside = kernel.reach.between(wait, op)
    for condition in kernel.reach.open_conditions(op):
        if condition.at in inside:
            continue
        for index in kernel.paths.logic.slice(condition.register, condition.at):
            made = kernel.flow.ops[index]
            names = [each.name for each in made.operands[1:] if isinstance(each, Name)]
            if made.node.opcode.root in OTHER_BY_OP or any(
                name.startswith(OTHER_BY_LANE) for name in names
            ):
                return False
            if made.node.opcode.root == "ld" and not made.has("param"):
                return False
    return True


# --- shown to be right ----------------------------------------------------------------------------


def count_unproven(kernel: Kernel, ring: Ring) -> tuple[Op, str] | None:
    """The first place of which it is not shown that each phase gets its arrivals and no more, and why."""
    pair = next((each for each in kernel.view(pairs) if each.ring is ring), None)
    sites = [op for op in signalled_by(kernel, ring) if op.is_a(*SIGNALS)]
    if not sites:
        return ring.inits[0], "nothing arrives on it by the text"
    if pair is None:
        return sites[0], _not_held(kernel, ring, sites)
    walked = {walk.op for walk in kernel.view(walks)}
    for op in sites:
        why = _unsure(kernel, pair, op, walked)
        if why:
            return op, why
    each = [arrivals for op in sites if (arrivals := _arrivals(kernel, op)) is not None]
    most = np.sum(each, axis=0)
    waiting = {rank for op in kernel.of_ring(ring, *WAITS) for rank in kernel.ranks(op)}
    wrong = next((rank for rank in sorted(waiting) if int(most[rank]) != ring.count), None)
    if wrong is not None:
        return sites[0], f"{int(most[wrong])} arrivals a round in CTA {wrong} by the text"
    return None


def _unsure(kernel: Kernel, pair: Pair, op: Op, walked: set[Op]) -> str:
    """What is not known of a place; empty where each of its threads arrives once a round, in a known CTA."""
    if pair.ring.slots != 1 and op not in walked:
        return "the slot is not a counted index"
    if _arrivals(kernel, op) is None:
        return "who arrives, or in which CTA, is not known"
    threads = np.broadcast_to(kernel.threads(op)[0], _full(kernel))
    if not np.array_equal(_surely(kernel, pair, op), threads):
        return "something unknown decides whether a thread arrives in a round"
    return ""


def _not_held(kernel: Kernel, ring: Ring, sites: list[Op]) -> str:
    again = [op for op in sites if kernel.flow.path((op.index,), (op.index,))]
    line = (again or sites)[0].span.line
    if not kernel.of_ring(ring, *WAITS):
        return "nothing waits for it"
    return (
        f"no barrier is shown to hold back the next arrival of line {line} until this phase is over"
    )

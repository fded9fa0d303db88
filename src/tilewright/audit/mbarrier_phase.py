"""Rules of the mbarrier family: what happens in the phases of a barrier.

How often a loop runs is not known here, so arrivals are counted only where no wait can come between them,
and a phase is followed only until it first completes. The rest needs execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.first import blocking_waits, first_parity
from tilewright.audit.mbarrier_counts import counts_of_rounds, too_many_a_round
from tilewright.audit.mbarrier_rings import constant_in_loop, one_depth, slots_alike
from tilewright.audit.mbarrier_rounds import unheld_rounds
from tilewright.audit.mbarrier_start import starts_behind
from tilewright.audit.phases import waits_agree
from tilewright.audit.proofs import arrivals_shown, parity_shown
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import (
    ARRIVES,
    SIGNALS,
    WAITS,
    all_understood,
    count_of,
    in_one_go,
    multicasts,
    same_slot,
    signalled_by,
    where,
)
from tilewright.audit.trace import LANES_DIFFER, WARPS_DIFFER, may_split, sources
from tilewright.ptx.nodes import Memory, Name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op

WARP = 32


def _reused(kernel: Kernel, ring: Ring) -> bool:
    """Whether the bytes become another barrier later: then counts and phases are not one object's."""
    ends = kernel.indices(kernel.of_ring(ring, "mbarrier.inval"))
    return kernel.flow.path(ends, kernel.indices(ring.inits))


# --- counts ---------------------------------------------------------------------------------------


@rule(
    "MBAR-03", "error", section="9.7.13.15.4",
    help="initialise the barrier with the number of arrivals that one phase gets",
)  # fmt: skip
def arrivals_reach_the_count(kernel: Kernel) -> Iterator[Outcome]:
    """A phase completes only with as many arrivals as the barrier was initialised with."""
    yield from slots_alike(kernel)
    yield from counts_of_rounds(kernel)
    yield from arrivals_shown(kernel)
    understood = all_understood(kernel)
    for ring in kernel.rings:
        waits = blocking_waits(kernel, ring)
        if ring.count is None or not waits or not kernel.block_bounded or _reused(kernel, ring):
            continue
        most = _most_arrivals(kernel, ring, waits)
        if most is None or most[0] >= ring.count:
            continue
        if not understood or most[1]:
            why = most[1] or "some instruction names a barrier that is not understood"
            yield kernel.undecided(
                "MBAR-03", f"{ring.name} expects {ring.count} arrivals, the text has {most[0]} a turn: {why}",
                ring.inits[0],
            )  # fmt: skip
            continue
        wait = kernel.flow.ops[min(waits)]
        yield kernel.finding(
            "MBAR-03",
            f"{ring.name} expects {ring.count} arrivals a phase and gets at most {most[0]}: its first phase never completes",
            ring.inits[0], wait, "deadlock: waits here for the first phase",
        )  # fmt: skip


def _most_arrivals(kernel: Kernel, ring: Ring, waits: set[int]) -> tuple[int, str] | None:
    """Arrivals that a slot can get in any one CTA before its first phase is complete, and what makes that unsure.

    None where no bound is known. Nobody passes the waits for that phase, so what lies behind them does not count.
    """
    total, unsure = 0, ""
    free = kernel.reach.threads_from((-1,), waits)
    for op in signalled_by(kernel, ring):
        if not op.is_a(*SIGNALS):
            continue
        threads = free.get(op.index, 0) & kernel.reach.mask(op)
        count = count_of(kernel, op)
        if count is None:
            return None
        if not threads:
            continue
        if kernel.flow.path((op.index,), (op.index,), waits):
            unsure = "an arrival in a loop may be made more than once a phase"
        spread = where(kernel, op, "mbar") != "own" or multicasts(kernel, op) != "own"
        if spread and not kernel.shape.cluster_known:
            return None
        total += count * _threads_at_most(kernel, threads, spread=spread)
    return total, unsure


def _threads_at_most(kernel: Kernel, threads: int, *, spread: bool) -> int:
    """Threads of one CTA, or of all where they may arrive in the same one."""
    if spread:
        return threads.bit_count()
    count = max(kernel.shape.threads, 1)
    row = (1 << count) - 1
    return max((threads >> rank * count & row).bit_count() for rank in range(kernel.shape.ranks))


@rule(
    "MBAR-05", "error", section="9.7.13.15.2",
    help="arrive once a phase for each arrival that the barrier was initialised with",
)  # fmt: skip
def arrivals_within_the_count(kernel: Kernel) -> Iterator[Outcome]:
    """No more arrivals in a phase than remain in it."""
    yield from too_many_a_round(kernel)
    for ring in kernel.rings:
        sites = [op for op in signalled_by(kernel, ring) if op.is_a(*ARRIVES)]
        for op in sites if ring.count is not None and not _reused(kernel, ring) else ():
            found = _too_many_in_one_go(kernel, ring, op, sites) or _too_many_threads(
                kernel, ring, op
            )
            if found is not None:
                yield found
                break


def _too_many_in_one_go(kernel: Kernel, ring: Ring, op: Op, sites: list[Op]) -> Outcome | None:
    before = [each for each in sites if in_one_go(kernel, each, op)]
    counts = [count_of(kernel, each) for each in [*before, op]]
    total = sum(each or 0 for each in counts)
    if not before or ring.count is None or total <= ring.count:
        return None
    return kernel.finding(
        "MBAR-05",
        f"{ring.name} expects {ring.count} arrivals a phase; the same thread makes {total} with no wait between",
        op, before[-1], "arrives here already",
    )  # fmt: skip


def _too_many_threads(kernel: Kernel, ring: Ring, op: Op) -> Outcome | None:
    """Lanes of one warp that arrive together on one slot, more than a phase takes."""
    count, each, value = ring.count, count_of(kernel, op), kernel.value(op, "mbar")
    if count is None or each is None or value is None or value.single is None:
        return None
    if not kernel.block_bounded or op.has("multicast::cluster") or _lanes_part(kernel, op):
        return None
    threads = _lanes_at_most(kernel, op)
    if threads * each <= count:
        return None
    return kernel.finding(
        "MBAR-05",
        f"{ring.name} expects {count} arrivals a phase; one warp makes {threads * each} here with no wait between",
        op, ring.inits[0], "count given here",
    )  # fmt: skip


def _lanes_part(kernel: Kernel, op: Op) -> bool:
    """Whether lanes of a warp may not all arrive, or arrive in different slots or CTAs."""
    value = kernel.value(op, "mbar")
    rank = None if value is None else value.cta
    if value is None or (rank is not None and (rank.unknown or rank.single is None)):
        return True
    address = op.role("mbar")
    names = address.parts[0] if isinstance(address, Memory) else address
    lanes = (
        sources(kernel, names.name, op.index) if value.unknown and isinstance(names, Name) else ()
    )
    return bool(LANES_DIFFER & set(lanes)) or may_split(kernel, op, WARPS_DIFFER)


def _lanes_at_most(kernel: Kernel, op: Op) -> int:
    """The most lanes of one warp that execute an instruction."""
    rows = kernel.threads(op)[0]
    return max(
        int(row[start : start + WARP].sum()) for row in rows for start in range(0, row.size, WARP)
    )


@rule(
    "MBAR-06", "error", section="9.7.13.15.13",
    help="mbarrier.arrive.expect_tx, or expect_tx before the last arrival of the phase",
)  # fmt: skip
def expectation_before_completion(kernel: Kernel) -> Iterator[Outcome]:
    """The expected bytes must be in the barrier before its last arrival."""
    for expect in kernel.ops("mbarrier.expect_tx"):
        ring = kernel.ring(expect)
        if ring is None:
            continue
        sites = kernel.of_ring(ring, *ARRIVES)
        before = [
            op for op in sites if in_one_go(kernel, op, expect) and "tx_bytes" not in op.roles
        ]
        earlier = [
            op
            for op in kernel.of_ring(ring, "mbarrier.expect_tx", *ARRIVES)
            if "tx_bytes" in op.roles and in_one_go(kernel, op, expect)
        ]
        if not before or earlier:
            continue
        total = sum(count_of(kernel, op) or 0 for op in before)
        if ring.count is not None and total >= ring.count:
            yield kernel.finding(
                "MBAR-06",
                f"expect_tx after the last arrival of the phase: {ring.name} expects {ring.count}; the phase is over before its bytes are expected",
                expect, before[-1], "completes the phase",
            )  # fmt: skip
        else:
            yield kernel.undecided(
                "MBAR-06",
                f"whether another arrival of the phase of {ring.name} follows this expect_tx",
                expect,
            )


# --- parity ---------------------------------------------------------------------------------------


@rule(
    "MBAR-07", "error", section="9.7.13.15.16",
    help="wait for parity 0 first on a fresh barrier, 1 where the slot starts free, and flip it once a phase",
)  # fmt: skip
def parity_follows_the_phase(kernel: Kernel) -> Iterator[Outcome]:
    """The parity waited for is the phase's number modulo 2; a fresh barrier is in phase 0, and a waiter lags one at most."""
    for ring in kernel.rings:
        found = [*_constant_parity(kernel, ring)] or [*constant_in_loop(kernel, ring)]
        yield from found or starts_behind(kernel, ring)
        yield from waits_agree(kernel, ring)
        yield from _first_wait_passes(kernel, ring)
    yield from one_depth(kernel)
    yield from _nobody_first(kernel)
    yield from _outrun(kernel)
    yield from parity_shown(kernel)


def _constant_parity(kernel: Kernel, ring: Ring) -> Iterator[Outcome]:
    waits = kernel.of_ring(ring, *WAITS)
    parities = {value.number() if (value := kernel.value(op, "parity")) else None for op in waits}
    if len(parities) != 1 or None in parities or not all_understood(kernel):
        return
    if _reused(kernel, ring):
        return
    arrivals = [op for op in signalled_by(kernel, ring) if op.is_a(*SIGNALS)]
    for wait in waits:
        value = kernel.value(wait, "mbar")
        for _, members in kernel.flow.loops(wait.index):
            again = [
                op
                for op in arrivals
                if op.index in members
                and same_slot(kernel.value(op, "mbar"), value)
                and not any(each.at in members for each in kernel.reach.open_conditions(op))
            ]
            alone = all(op.index in members for op in arrivals)
            moves = value is None or value.unknown
            if again and alone and not moves and not any(i.index in members for i in ring.inits):
                parity = parities.pop()
                yield kernel.finding(
                    "MBAR-07",
                    f"{ring.name} is waited for with parity {parity} in every round of a loop that completes a phase a round: every other wait passes before its phase is over",
                    wait, again[0], "arrives in the same loop",
                )  # fmt: skip
                return


def _carries_data(kernel: Kernel, ring: Ring) -> bool:
    return any("tx_bytes" in op.roles for op in signalled_by(kernel, ring))


def _first_wait_passes(kernel: Kernel, ring: Ring) -> Iterator[Outcome]:
    """A thread that has announced the bytes of phase 0 waits for parity 1, which a fresh barrier passes at once."""
    if not _carries_data(kernel, ring) or _reused(kernel, ring):
        return
    waits = kernel.of_ring(ring, *WAITS)
    places = kernel.indices(waits)
    arrivals = [op for op in kernel.of_ring(ring, *ARRIVES) if "tx_bytes" in op.roles]
    for wait in waits:
        if first_parity(kernel, wait) != 1:
            continue
        armed = [
            op for op in arrivals if same_slot(kernel.value(op, "mbar"), kernel.value(wait, "mbar"))
        ]
        first = kernel.reach.threads_to((-1,), wait, places - {wait.index})
        unarmed = kernel.reach.threads_to(
            (-1,), wait, kernel.indices(armed) | (places - {wait.index})
        )
        mine = [each for each in waits if kernel.together(each, wait)]
        if armed and first & ~unarmed and not _first_with(kernel, mine, 0):
            yield kernel.finding(
                "MBAR-07",
                f"first wait on {ring.name} is for parity 1, which a fresh barrier passes at once: the bytes of its first phase are not waited for",
                wait, armed[0], "announced here",
            )  # fmt: skip
            return


def _first_with(kernel: Kernel, waits: list[Op], parity: int) -> bool:
    """Whether some wait may begin with this parity."""
    return any(first_parity(kernel, op) in {parity, None} for op in waits)


def _nobody_first(kernel: Kernel) -> Iterator[Outcome]:
    """Barriers whose first arrivals wait for each other's first phase."""
    if not all_understood(kernel):
        return
    needs: dict[Ring, set[Ring]] = {}
    blocking = {
        ring: blocking_waits(kernel, ring) for ring in kernel.rings if not _reused(kernel, ring)
    }
    for ring, own in blocking.items():
        arrivals = [op for op in signalled_by(kernel, ring) if op.is_a(*SIGNALS)]
        if not arrivals or not own or not kernel.block_bounded:
            continue
        needs[ring] = {
            other
            for other, waits in blocking.items()
            if waits and _falls_short(kernel, ring, own | waits)
        }
    circular = [ring for ring in needs if ring in _closure(needs, ring)]
    for ring in circular[:1]:
        wait = kernel.flow.ops[min(blocking[ring])]
        others = sorted(other.name for other in _closure(needs, ring) if other is not ring)
        through = (
            f" needs that of {', '.join(others)}, and that needs it" if others else " needs itself"
        )
        yield kernel.finding(
            "MBAR-07",
            f"deadlock: the first phase of {ring.name}{through}: no arrival that completes it comes before a wait for it",
            wait, ring.inits[0], "fresh barrier: parity 0 blocks, parity 1 passes",
        )  # fmt: skip


def _falls_short(kernel: Kernel, ring: Ring, waits: set[int]) -> bool:
    """Whether the first phase surely lacks arrivals as long as nobody passes these waits."""
    most = _most_arrivals(kernel, ring, waits)
    return most is not None and not most[1] and most[0] < (ring.count or 1)


def _closure(needs: dict[Ring, set[Ring]], start: Ring) -> set[Ring]:
    found: set[Ring] = set()
    stack = list(needs.get(start, ()))
    while stack:
        here = stack.pop()
        if here not in found:
            found.add(here)
            stack.extend(needs.get(here, ()))
    return found


# --- one barrier for several stages ---------------------------------------------------------------


def _outrun(kernel: Kernel) -> Iterator[Outcome]:
    """A CTA that may run ahead by more stages than a rendezvous barrier of one slot can tell apart."""
    if not all_understood(kernel) or not kernel.shape.cluster_known:
        return
    for ring in kernel.rings:
        if (
            ring.slots != 1
            or ring.count is None
            or ring.count < 2
            or not blocking_waits(kernel, ring)
        ):
            continue
        for op in kernel.of_ring(ring, *ARRIVES):
            ahead = _rounds_ahead(kernel, ring, op)
            if ahead is not None and ahead > ring.count:
                yield kernel.finding(
                    "MBAR-07",
                    f"{ring.name} expects {ring.count} arrivals a phase; this CTA may arrive {ahead} times, one for each free stage, before another does: the waiter then lags two phases and its parity aliases (deadlock)",
                    op, kernel.flow.ops[min(blocking_waits(kernel, ring))], "waits for each phase here",
                )  # fmt: skip
                return


def _one_object(kernel: Kernel, ring: Ring) -> bool:
    """Whether no instruction names a later slot by itself: that may be a neighbour that is initialised alike."""
    named = [
        kernel.value(op, "mbar")
        for op in kernel.flow.ops
        if "mbar" in op.roles and not op.is_a("mbarrier.init", "mbarrier.inval")
        if kernel.ring(op) is ring
    ]
    return all(each is not None and (each.unknown or each.single == ring.start) for each in named)


def _rounds_ahead(kernel: Kernel, ring: Ring, op: Op) -> int | None:
    """Rounds of its loop in which a remote arrival needs nothing from another CTA; None where that is not known."""
    if where(kernel, op, "mbar") != "other" or not kernel.flow.path((op.index,), (op.index,)):
        return None
    if max(kernel.per_cta(op)) != 1 or count_of(kernel, op) != 1:
        return None
    mine = {rank for rank, threads in enumerate(kernel.per_cta(op)) if threads}
    free: int | None = None
    for other in kernel.rings:
        signals = [each for each in signalled_by(kernel, other) if each.is_a(*SIGNALS)]
        local = all(
            where(kernel, s, "mbar") == "own" and multicasts(kernel, s) == "own" for s in signals
        )
        waits = [w for w in kernel.of_ring(other, *WAITS) if mine & set(kernel.ranks(w))]
        if local or not waits or other is ring:
            continue
        walks = all((value := kernel.value(w, "mbar")) is not None and value.unknown for w in waits)
        if (
            not walks
            or not _one_object(kernel, other)
            or other.slots is None
            or any(first_parity(kernel, w) != 1 for w in waits)
        ):
            return None
        free = other.slots if free is None else min(free, other.slots)
    loops = kernel.flow.loops(op.index)
    held = any(
        kernel.flow.ops[i].is_a("barrier.cluster.wait") for _, members in loops[:1] for i in members
    )
    return None if held else free


@rule(
    "MBAR-12", "warning", section="9.7.13.15.4",
    help="wait for each phase before arriving on the next",
)  # fmt: skip
def every_phase_is_observed(kernel: Kernel) -> Iterator[Outcome]:
    """Some wait must see a phase complete before an arrival on the next."""
    if not all_understood(kernel):
        return
    yield from unheld_rounds(kernel)
    for ring in kernel.rings:
        if kernel.of_ring(ring, *WAITS) or ring.count != 1:
            continue
        for op in signalled_by(kernel, ring):
            value = kernel.value(op, "mbar")
            again = kernel.flow.path((op.index,), (op.index,))
            if op.is_a(*SIGNALS) and again and value is not None and not value.unknown:
                yield kernel.finding(
                    "MBAR-12", f"{ring.name} completes a phase in every round of a loop and nothing waits for any",
                    op, ring.inits[0], "count given here", "warning",
                )  # fmt: skip
                break

"""Mutants of who: leaders, ranks, masks, which barrier is signalled, who leaves when."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from mutants import Break, Subject, operator

from tilewright.audit.kernel import MBARRIER_BYTES
from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Guard, Integer, Memory

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.flow import Op

ONCE = (
    "mbarrier.init", "mbarrier.arrive", "mbarrier.expect_tx", "st.async", "tcgen05.mma", "tcgen05.commit",
    "tcgen05.alloc", "tcgen05.dealloc", "clusterlaunchcontrol.try_cancel", "cp.async.bulk.tensor",
)  # fmt: skip
"""What one thread more or less does to a barrier, a queue or TMEM cannot go unnoticed.

A store of a tile is none of it: stored twice, the tile is the same.
"""


def _once(op: Op) -> bool:
    return op.is_a(*ONCE) and (not op.is_a("cp.async.bulk.tensor") or "mbar" in op.roles)


def _leaders(subject: Subject) -> Iterator[tuple[Op, list[Op], str]]:
    """Branches around the work of one thread, one warp or one CTA: the branch, the work, who does it.

    Roles of whole warps are left out, unless all that they do is to allocate or free TMEM.
    """
    work: dict[int, list[Op]] = {}
    for op in subject.flow.ops:
        for condition in subject.flow.conditions(op):
            if condition.at != op.index:
                branch = subject.flow.ops[condition.at]
                if condition.holds != branch.guard_holds:  # the way that falls through
                    work.setdefault(condition.at, []).append(op)
    for at, inside in work.items():
        branch = subject.flow.ops[at]
        value = subject.values.register(branch.guard, at)
        if not value.known:
            continue
        shape = (subject.cluster, subject.kernel.shape.threads)
        reach: np.ndarray = np.broadcast_to(subject.values.executes(branch)[0], shape)
        jumps = np.equal(np.broadcast_to(value.constant, shape) != 0, branch.guard_holds)
        stays = reach & ~jumps
        if not stays.any() or not (reach & jumps).any():
            continue
        who = _who(reach, stays, inside)
        if who:
            yield branch, inside, who


def _who(reach: np.ndarray, stays: np.ndarray, inside: list[Op]) -> str:
    per_warp = stays.reshape(stays.shape[0], -1, 32).sum(axis=2)
    whole = bool(np.isin(per_warp, (0, 32)).all())
    ranks: np.ndarray = np.any(stays, axis=1)
    by_rank = bool(np.any(ranks != np.any(reach, axis=1)))
    if by_rank and np.array_equal(stays, reach & ranks[:, None]):
        return "one CTA"
    if not whole:
        return "one thread"
    return "one warp" if len(inside) < 12 else ""


@operator(
    "CLC-11", "MBAR-05", "MBAR-09", "TC-09", "TC-01", "TC-05", "TC-08", "CLC-03", "MBAR-03", "TC-02", "TMA-03", "CLU-06",
    breaks="arrivals, bytes, requests or products come from each of many threads instead of one",
)  # fmt: skip
def drop_leader(subject: Subject) -> Iterator[Break]:
    """What a leader did is done by everybody."""
    for branch, inside, who in _leaders(subject):
        waits = who == "one CTA" and any(op.is_a("mbarrier.try_wait") for op in inside)
        if waits or any(_once(op) for op in inside):
            yield Break(f"not only {who}: {_first(inside)}", branch, subject.drop(branch), inside)


@operator(
    "CLC-11", "MBAR-05", "MBAR-09", "TC-09", "TC-01", "TC-06", "CLC-03", "MBAR-03", "TMA-03", "TMA-15", "TC-02",
    breaks="all but the leader do the leader's work, and the leader does not",
)  # fmt: skip
def invert_leader(subject: Subject) -> Iterator[Break]:
    """A leader predicate turned round."""
    for branch, inside, who in _leaders(subject):
        guard = branch.node.guard
        waits = any(
            op.is_a("mbarrier.try_wait")
            or (op.is_a("cp.async.bulk.wait_group") and not idle_wait(subject, op))
            for op in inside
        )
        stores = any(op.is_a("cp.async.bulk.tensor") for op in inside)
        if guard is not None and (waits or stores or any(_once(op) for op in inside)):
            turned = replace(branch.node, guard=Guard(guard.predicate, not guard.negated))
            yield Break(
                f"all but {who}: {_first(inside)}",
                branch,
                subject.put(branch, print_statement(turned)),
                inside,
            )


def idle_wait(subject: Subject, op: Op) -> bool:
    """Whether a bulk wait_group never finds more groups in flight than it leaves: it waits for nothing."""
    commits = subject.kernel.ops("cp.async.bulk.commit_group")
    before = [c for c in commits if subject.flow.path((c.index,), (op.index,))]
    endless = any(subject.flow.path((c.index,), (c.index,)) for c in before)
    left = constant(op.node.operands[0])
    return left is not None and not endless and len(before) <= left


def _first(inside: list[Op]) -> str:
    op = next(
        (o for o in inside if o.is_a(*ONCE, "mbarrier.try_wait", "cp.async.bulk.wait_group")),
        inside[0],
    )
    return f"{op.entry} of line {op.span.line}"


# --- ranks ------------------------------------------------------------------------------------------------------------


def _signal_maps(subject: Subject) -> list[Op]:
    return subject.kernel.ops("mapa")


@operator(
    "MBAR-03", "MBAR-05", "TMA-08", "WG-04", "CLC-14", "CLU-06", "CLU-08",
    breaks="deadlock: the arrival goes to another CTA than the one that waits for it",
)  # fmt: skip
def wrong_rank(subject: Subject) -> Iterator[Break]:
    """Mapa to another CTA: the neighbour of a known one, or always the same one of many."""
    for op in _signal_maps(subject):
        value = subject.kernel.value(op, "cta")
        if value is not None and value.number() is not None:
            text = subject.changed(op, "cta", "b32", "xor", 1)
            yield Break("the neighbour's barrier", op, subject.put(op, text), _through(subject, op))
        else:
            rank = 0 if subject.cluster > 1 else 1
            yield Break(
                f"always CTA {rank}'s barrier",
                op,
                subject.put(op, subject.set_to(op, "cta", "b32", rank)),
                _through(subject, op),
            )


def _through(subject: Subject, op: Op) -> list[Op]:
    """Instructions on a barrier by the address that mapa gives."""
    to = op.operands[0]
    return [
        other
        for other in subject.flow.ops
        if "mbar" in other.roles and isinstance(address := other.role("mbar"), Memory) and to in address.parts
    ]  # fmt: skip


@operator(
    "CLU-07", "TMA-08", "WG-04", "MBAR-03", "CLC-14",
    breaks="deadlock: the arrival stays in the own CTA",
)  # fmt: skip
def drop_mapa(subject: Subject) -> Iterator[Break]:
    """The own CTA's address where another's belongs."""
    for op in _signal_maps(subject) if subject.cluster > 1 else ():
        if not _names_own(subject, op):
            to, address = (print_operand(operand) for operand in op.node.operands[:2])
            yield Break("not mapped to the peer", op, subject.put(op, f"mov.b32 {to}, {address};"))


def _names_own(subject: Subject, op: Op) -> bool:
    """Whether mapa names every CTA's own rank."""
    value = subject.kernel.value(op, "cta")
    if value is None or not value.known:
        return False
    mask, _ = subject.kernel.threads(op)
    own = np.broadcast_to(np.arange(subject.cluster)[:, None], mask.shape)
    return np.array_equal(np.broadcast_to(value.constant, mask.shape)[mask], own[mask])


@operator("CLU-06", breaks="undefined: no CTA of the cluster has this rank")
def rank_outside(subject: Subject) -> Iterator[Break]:
    """Mapa to a rank past the cluster's last."""
    for op in _signal_maps(subject):
        text = subject.changed(op, "cta", "b32", "add", subject.cluster)
        yield Break(f"the rank is {subject.cluster} too high", op, subject.put(op, text))


# --- masks ------------------------------------------------------------------------------------------------------------


@operator(
    "TMA-04", "TMA-05", "TC-11", "CLU-16", "TMA-03", "MBAR-03", "TMA-08", "TC-18",
    breaks="deadlock or underflow: one CTA gets what it does not expect, or not what it expects",
)  # fmt: skip
def wrong_mask(subject: Subject) -> Iterator[Break]:
    """A multicast mask with its first or last CTA in or out, a CTA past the cluster, or none."""
    for op in subject.kernel.flow.ops:
        if "mask" not in op.roles:
            continue
        last = subject.cluster - 1
        flips = {"CTA 0": 1, f"CTA {last}": 1 << last}
        for which, bit in flips.items():
            text = subject.changed(op, "mask", "b16", "xor", bit)
            yield Break(
                f"{which} the other way round in the mask of {op.entry}", op, subject.put(op, text)
            )
        if subject.cluster < 16:
            text = subject.changed(op, "mask", "b16", "or", 1 << subject.cluster)
            yield Break(
                f"CTA {subject.cluster} in the mask of {op.entry}", op, subject.put(op, text)
            )
        yield Break(
            f"nobody in the mask of {op.entry}",
            op,
            subject.put(op, subject.set_to(op, "mask", "b16", 0)),
        )


@operator(
    "TMA-04", "TC-11", "CLC-05", "MBAR-03", "TMA-03",
    breaks="deadlock: the other CTAs wait for bytes or arrivals that come to one alone",
)  # fmt: skip
def drop_multicast(subject: Subject) -> Iterator[Break]:
    """A multicast made a copy, commit or request for one CTA."""
    for op in subject.flow.ops:
        if op.has("multicast::cluster") and "mask" in op.roles:
            place = list(op.roles).index("mask")
            operands = [o for i, o in enumerate(op.node.operands) if i != place]
            opcode = ".".join(
                w for w in str(op.node.opcode).split(".") if w != "multicast::cluster"
            )
            text = f"{opcode} {', '.join(map(print_operand, operands))};"
            yield Break(f"no multicast of {op.entry}", op, subject.put(op, text))
        elif op.has("multicast::cluster::all"):
            text = subject.without(op, "multicast::cluster::all")
            yield Break(f"no multicast of {op.entry}", op, subject.put(op, text))


@operator(
    "TMA-12", "TMA-06", "TC-04", "TC-11",
    breaks="undefined: only the pair's form may signal the leader's barrier from the other CTA",
)  # fmt: skip
def drop_pair_form(subject: Subject) -> Iterator[Break]:
    """A load without .cta_group::2."""
    for op in subject.loads():
        if op.has("cta_group::2"):
            yield Break(
                "a load for a pair without cta_group::2",
                op,
                subject.put(op, subject.without(op, "cta_group::2")),
            )


@operator(
    "TMA-12", "TMA-13", "TMA-06", "MBAR-03", "TMA-03",
    breaks="deadlock: the odd CTA's bytes complete on its own barrier, the leader waits for them",
)  # fmt: skip
def own_for_leader(subject: Subject) -> Iterator[Break]:
    """The mask that names the leader's barrier keeps the own CTA's rank."""
    for op in subject.kernel.flow.ops:
        bits = constant(op.operands[-1]) if op.operands else None
        if op.node.opcode.root == "and" and bits is not None and (bits & 0xFFFFFFFF) >> 24 == 0xFE:
            keep = Integer(-8, "-8")
            words = ".".join(op.node.opcode.modifiers)
            operands = (*op.node.operands[:2], keep)
            text = f"and.{words} {', '.join(map(print_operand, operands))};"
            edits = subject.put(op, text)
            yield Break("the own barrier for the leader's", op, edits, subject.loads())


# --- copies -----------------------------------------------------------------------------------------------------------


@operator(
    "MBAR-03", "CLC-18", "TMA-03", "CLU-08", "TC-11", "TC-17",
    breaks="deadlock: another barrier is signalled than the one that is waited for",
)  # fmt: skip
def signal_elsewhere(subject: Subject) -> Iterator[Break]:
    """An arrival, a copy, a commit or a request with another barrier object."""
    for op in subject.signals():
        ring = subject.kernel.ring(op)
        offset = subject.neighbour(ring) if ring is not None else None
        if offset is not None:
            yield Break(
                f"{op.entry} for {ring.name if ring else ''} signals {offset:+} bytes away", op,
                subject.put(op, subject.shifted(op, "mbar", offset)),
            )  # fmt: skip


@operator(
    "MBAR-03", "CLC-18", "TMA-03", "CLC-15", "TC-11",
    breaks="deadlock or race: the slot that is waited for is not the one that is signalled",
)  # fmt: skip
def signal_next_slot(subject: Subject) -> Iterator[Break]:
    """An arrival, a copy, a commit or a request with the next slot of the same ring."""
    for op in subject.signals():
        ring = subject.kernel.ring(op)
        if ring is not None and ring.slots is not None and ring.slots > 1:
            yield Break(
                f"{op.entry} for {ring.name} signals one slot on", op,
                subject.put(op, subject.shifted(op, "mbar", MBARRIER_BYTES)),
            )  # fmt: skip


@operator(
    "TMA-03",
    "CLC-04",
    "MBAR-03",
    "CLU-08",
    breaks="deadlock: bytes are expected that nobody brings",
)
def drop_copy(subject: Subject) -> Iterator[Break]:
    """A load, a remote store or a request dropped."""
    for op in [*subject.loads(), *subject.kernel.ops("clusterlaunchcontrol.try_cancel")]:
        yield Break(f"no {op.entry}{subject.on(op)}", op, subject.drop(op))


@operator(
    "TMA-03", "CLC-04", "CLC-11",
    breaks="underflow: twice the expected bytes complete on the barrier",
)  # fmt: skip
def double_copy(subject: Subject) -> Iterator[Break]:
    """A load, a remote store or a request issued twice."""
    for op in [*subject.loads(), *subject.kernel.ops("clusterlaunchcontrol.try_cancel")]:
        yield Break(
            f"{op.entry}{subject.on(op)} twice", op, subject.behind(op, print_statement(op.node))
        )


@operator(
    "TMA-01",
    "TMA-02",
    "CLC-01",
    breaks="undefined: the address is not aligned as the copy needs it",
)
def misaligned_copy(subject: Subject) -> Iterator[Break]:
    """A tensor copy's shared address 64 bytes on, an answer's 8."""
    for op in subject.kernel.ops("cp.async.bulk.tensor"):
        role = "dst" if "dst" in op.roles else "src"
        if isinstance(subject.raw(op, role), Memory):
            yield Break(
                f"{op.entry} 64 bytes on", op, subject.put(op, subject.shifted(op, role, 64))
            )
    for op in subject.kernel.ops("clusterlaunchcontrol.try_cancel"):
        yield Break(
            "the answer 8 bytes on", op, subject.put(op, subject.shifted(op, "response", 8))
        )


# --- exits ------------------------------------------------------------------------------------------------------------


def spare_meeting(subject: Subject, wait: Op, *, met: bool = False) -> bool:
    """Whether the kernel would be right without its last cluster barrier, or, `met`, with one of its CTA instead.

    Nothing but the end comes behind it, no pair shares tensor memory, and what a peer may still signal here was
    waited for before: producers wait until every slot is released, the last item of work is released by nobody.
    """
    kernel = subject.kernel
    pair = any(op.has("cta_group::2") for op in kernel.ops("tcgen05"))
    behind = map(subject.flow.ops.__getitem__, subject.flow.reachable((wait.index,)))
    work = [op for op in behind if op.is_a(*ONCE, "mbarrier", "ld", "st", "bar")]
    ends = all(met and op.is_a("tcgen05.dealloc") for op in work)
    tail = any(
        not subject.reaches_work(op) and kernel.together(op, wait)
        for op in kernel.ops("mbarrier.try_wait")
    )
    return ends and tail and not pair


def _others_leave() -> str:
    return (
        "{ .reg .b32 mutant; .reg .pred other; mov.u32 mutant, %cluster_ctarank; "
        "setp.ne.u32 other, mutant, 0; @other ret; }"
    )


@operator(
    "CLU-02", "TMA-10", "WG-05", "CLC-13", "TC-06", "TC-05", "TC-18",
    breaks="undefined: CTAs leave while peers may still signal them or copy into them",
)  # fmt: skip
def leave_early(subject: Subject) -> Iterator[Break]:
    """All CTAs but the first return before the last meeting, or right behind the first one."""
    arrives = subject.kernel.ops("barrier.cluster.arrive")
    waits = subject.kernel.ops("barrier.cluster.wait")
    if subject.cluster < 2 or len(waits) < 2:
        return
    if not spare_meeting(subject, waits[-1]):
        yield Break(
            "peers return before the last meeting",
            arrives[-1],
            subject.before(arrives[-1], _others_leave()),
        )
    first = waits[-2]
    yield Break(
        "peers return behind the first meeting", first, subject.behind_scope(first, _others_leave())
    )


def _touch(subject: Subject) -> str:
    ring = subject.kernel.rings[0]
    symbol = ring.base.partition(":")[2]
    return (
        f"{{ .reg .b32 mutant, there; mov.b32 mutant, {symbol}; mapa.shared::cluster.u32 there, mutant, 1; "
        "ld.shared::cluster.u32 mutant, [there]; st.shared::cluster.u32 [there+4], mutant; }"
    )


@operator("CLU-02", breaks="undefined: the peer may have left when its memory is touched")
def touch_after_exit(subject: Subject) -> Iterator[Break]:
    """A peer's shared memory touched behind the last cluster barrier."""
    waits = subject.kernel.ops("barrier.cluster.wait")
    if subject.cluster > 1 and waits and subject.kernel.rings:
        yield Break(
            "a peer touched behind the last meeting",
            waits[-1],
            subject.behind(waits[-1], _touch(subject)),
        )


@operator("CLU-01", breaks="undefined: the peer may not have started when its memory is touched")
def touch_before_start(subject: Subject) -> Iterator[Break]:
    """A peer's shared memory touched before the first cluster barrier."""
    arrives = subject.kernel.ops("barrier.cluster.arrive")
    if subject.cluster > 1 and arrives and subject.kernel.rings:
        yield Break(
            "a peer touched before the first meeting",
            arrives[0],
            subject.before(arrives[0], _touch(subject)),
        )

"""Mutants of order: fences, meetings, bulk groups, wgmma groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mutants import Break, Edit, Subject, operator
from mutants_who import idle_wait, spare_meeting

from tilewright.audit.contract import WAITS
from tilewright.ptx import print_operand, print_statement
from tilewright.ptx.flow import constant
from tilewright.ptx.nodes import Integer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.ptx.flow import Op

TMEM_WORK = ("tcgen05.ld", "tcgen05.st", "tcgen05.mma", "tcgen05.cp", "tcgen05.shift")
MEETINGS = ("barrier.cluster.arrive", "barrier.cluster.wait", "bar.sync", "barrier.sync")
STORES = ("st", "stmatrix")


def _reads_async(subject: Subject) -> list[int]:
    """Copies out of shared memory, and products that read it."""
    entries = ("cp.async.bulk", "cp.reduce.async.bulk", "wgmma.mma_async", "tcgen05.mma")
    return [
        op.index
        for op in subject.kernel.ops(*entries)
        if "mbar" not in op.roles
        and op.entry.rpartition(".")[2] not in {"commit_group", "wait_group"}
    ]


def needed_fences(subject: Subject) -> Iterator[tuple[Op, str, str]]:
    """Fences that no other one covers, whether they stand before a signal or after a wait, and what is lost.

    Left out: a tcgen05 fence that another one follows before any work (after) or that only the last meeting
    lies behind (before); one behind a wait for copies alone, whose bytes the barrier itself makes visible; a proxy fence with no copy behind it; fence.mbarrier_init in front of a meeting
    that releases.
    """
    flow, kernel = subject.flow, subject.kernel
    work = kernel.indices(kernel.ops(*TMEM_WORK))
    afters = kernel.indices(kernel.ops("tcgen05.fence::after_thread_sync"))
    befores = kernel.indices(kernel.ops("tcgen05.fence::before_thread_sync"))
    arrivals = kernel.indices(kernel.ops("mbarrier.arrive"))
    for op in flow.ops:
        at = (op.index,)
        if op.is_a("tcgen05.fence::after_thread_sync"):
            if flow.path(at, work, afters) and not _behind_copies(subject, op):
                yield op, "after", "TMEM work is not ordered behind the wait"
        elif op.is_a("tcgen05.fence::before_thread_sync"):
            from_load = flow.path(kernel.indices(kernel.ops("tcgen05.ld")), at)
            if from_load and flow.path(at, arrivals, befores):
                yield op, "before", "TMEM loads are not ordered before the release"
        elif op.is_a("fence.proxy.async::generic"):
            side = "before" if op.has("release") else "after"
            yield (
                op,
                side,
                "generic reads of the answer and the next answer's write are not ordered",
            )
        elif op.is_a("fence.proxy.async"):
            if flow.path(at, _reads_async(subject)) and _stores_before(subject, op):
                yield op, "before", "generic stores are not visible to the copy that reads them"
        elif op.is_a("wgmma.fence"):
            yield op, "after", "registers are not ordered before wgmma writes them"


def _behind_copies(subject: Subject, op: Op) -> bool:
    """Whether a fence's last wait is for bytes that copies bring, with no access of other threads to order."""
    wait = _last_wait(subject, op)
    ring = subject.kernel.ring(wait) if wait is not None and "mbar" in wait.roles else None
    return ring is not None and bool(subject.kernel.of_ring(ring, "cp.async.bulk"))


def _stores_before(subject: Subject, op: Op) -> bool:
    stores = [o.index for o in subject.kernel.ops(*STORES) if "shared" in o.name]
    return subject.flow.path(stores, (op.index,))


@operator(
    "CLC-09", "CLU-11", "TMA-15", "TC-12", "TC-13", "WG-01",
    breaks="race: what the fence orders is no longer ordered",
)  # fmt: skip
def drop_fence(subject: Subject) -> Iterator[Break]:
    """A fence that nothing else covers dropped."""
    for op, _, lost in needed_fences(subject):
        yield Break(f"no {op.name}: {lost}", op, subject.drop(op))


@operator(
    "CLC-09", "CLU-11", "TMA-15", "TC-12", "TC-13",
    breaks="race: a fence on the wrong side of the signal, the wait or the stores orders nothing",
)  # fmt: skip
def move_fence(subject: Subject) -> Iterator[Break]:
    """A fence behind the signal that it should precede, or before the wait or the stores that it should follow."""
    for op, side, _ in needed_fences(subject):
        if op.is_a("fence.proxy.async"):
            # Not behind the meeting: the thread that issues the copy would execute it there, and a fence anywhere on
            # the way from the stores to the copy will do (PTX ISA, proxy-preserved base causality order).
            store = _first_store(subject, op)
            if store is not None:
                edits = subject.drop(op) + subject.before(store, print_statement(op.node))
                yield Break(f"{op.name} before the stores from line {store.span.line}", op, edits)
        elif side == "before":
            signal = _first_signal(subject, op)
            after = subject.next_op(signal) if signal is not None else None
            if after is not None and signal is not None:
                edits = subject.drop(op) + subject.before(after, print_statement(op.node))
                yield Break(
                    f"{op.name} behind {signal.entry} of line {signal.span.line}", op, edits
                )
        else:
            wait = _last_wait(subject, op)
            if wait is not None:
                edits = subject.drop(op) + subject.before(wait, print_statement(op.node))
                yield Break(f"{op.name} before the wait of line {wait.span.line}", op, edits)


def _first_store(subject: Subject, op: Op) -> Op | None:
    """The first store since the last meeting that a proxy fence covers; None where a loop comes back to it."""
    meetings = {o.index for o in subject.kernel.ops(*MEETINGS)}
    begin = max((index for index in meetings if index < op.index), default=-1)
    stores = [
        o for o in subject.kernel.ops(*STORES) if "shared" in o.name and begin < o.index < op.index
    ]
    again = stores and subject.flow.path((stores[-1].index,), (stores[0].index,), meetings)
    return stores[0] if stores and not again else None


def _first_signal(subject: Subject, op: Op) -> Op | None:
    """What hands over behind a fence: an arrival, or a meeting of threads."""
    behind = subject.flow.ops[op.index + 1 : op.index + 24]
    return next((o for o in behind if o.is_a("mbarrier.arrive", "bar.sync", "barrier.sync")), None)


def _last_wait(subject: Subject, op: Op) -> Op | None:
    before = subject.flow.ops[max(0, op.index - 24) : op.index]
    waits = [o for o in before if o.is_a(*WAITS) and subject.flow.dominates(o.index, op.index)]
    return waits[-1] if waits and op.is_a("tcgen05") else None


# --- initialisation and meetings --------------------------------------------------------------------------------------


@operator(
    "MBAR-04", "CLU-03", "CLC-10", "TMA-09",
    breaks="race: neither the fence nor the meeting publishes the initialised barriers to the cluster",
)  # fmt: skip
def unpublished_init(subject: Subject) -> Iterator[Break]:
    """No fence.mbarrier_init, and the first meeting's arrival relaxed: each alone would still do."""
    for fence in subject.kernel.ops("fence.mbarrier_init"):
        meeting = next((o for o in _arrives(subject) if o.index > fence.index), None)
        if meeting is not None and meeting.has("release"):
            relaxed = subject.put(meeting, subject.swapped(meeting, "release", "relaxed"))
            yield Break(
                "barriers initialised but not published", fence, subject.drop(fence) + relaxed
            )


def _arrives(subject: Subject) -> list[Op]:
    return subject.kernel.ops("barrier.cluster.arrive")


def _pairs(subject: Subject) -> Iterator[tuple[Op, Op]]:
    """Each cluster barrier's arrival and the wait that follows it."""
    waits = subject.kernel.ops("barrier.cluster.wait")
    for arrive in _arrives(subject):
        wait = next((o for o in waits if o.index > arrive.index), None)
        if wait is not None:
            yield arrive, wait


@operator(
    "CLC-10", "TMA-09", "TMA-10", "CLU-01", "CLU-02", "WG-05", "TC-19", "TC-07", "MBAR-04", "TC-02",
    breaks="undefined: a peer is touched before it is known to run or its barriers to be initialised, or after it has left",
)  # fmt: skip
def drop_cluster_barrier(subject: Subject) -> Iterator[Break]:
    """A cluster barrier dropped, both halves."""
    for arrive, wait in _pairs(subject):
        if not spare_meeting(subject, wait):
            yield Break("no cluster barrier", arrive, subject.drop(arrive, wait))


@operator(
    "CLU-05",
    breaks="undefined: a wait without an arrival, or an arrival before the last one was waited for",
)
def half_cluster_barrier(subject: Subject) -> Iterator[Break]:
    """One half of a cluster barrier dropped."""
    for arrive, wait in _pairs(subject):
        yield Break("no arrival at the cluster barrier", arrive, subject.drop(arrive))
        if not spare_meeting(subject, wait):
            yield Break("no wait at the cluster barrier", wait, subject.drop(wait))


@operator("CLU-05", breaks="undefined: a thread arrives twice in one phase of the cluster barrier")
def double_cluster_arrive(subject: Subject) -> Iterator[Break]:
    """A cluster barrier's arrival repeated."""
    for arrive in _arrives(subject):
        yield Break(
            "two arrivals at the cluster barrier", arrive,
            subject.behind(arrive, print_statement(arrive.node)),
        )  # fmt: skip


@operator(
    "CLC-10", "TMA-09", "TMA-10", "CLU-01", "CLU-02", "WG-05", "MBAR-04", "TC-19", "TC-07", "TC-02",
    breaks="undefined: a CTA's own barrier says nothing of the peers that are touched before or behind it",
)  # fmt: skip
def cta_for_cluster_barrier(subject: Subject) -> Iterator[Break]:
    """bar.sync for a cluster barrier."""
    for arrive, wait in _pairs(subject):
        if spare_meeting(subject, wait, met=True):
            continue
        edits = subject.put(arrive, "bar.sync 0;") + subject.drop(wait)
        yield Break("the CTA meets, not the cluster", arrive, edits)


@operator(
    "CLU-04",
    breaks="deadlock: only some threads arrive, and the .aligned form wants the whole warp",
)
def divergent_cluster_barrier(subject: Subject) -> Iterator[Break]:
    """A cluster barrier's arrival by every other thread."""
    for arrive in _arrives(subject):
        text = (
            "{ .reg .b32 mutant; .reg .pred some; mov.u32 mutant, %tid.x; and.b32 mutant, mutant, 1; "
            f"setp.eq.u32 some, mutant, 0; @some {print_statement(arrive.node)} }}"
        )
        yield Break(
            "half of each warp arrives at the cluster barrier", arrive, subject.put(arrive, text)
        )


def _syncs(subject: Subject) -> list[Op]:
    """Meetings of threads of a CTA, as far as something races without them."""
    return [op for op in subject.kernel.ops("bar.sync", "barrier.sync") if _guards(subject, op)]


def _guards(subject: Subject, op: Op) -> bool:
    before = subject.flow.ops[max(0, op.index - 12) : op.index]
    if any(o.is_a("cp.async.bulk.wait_group") and idle_wait(subject, o) for o in before):
        return False  # it passes on that nothing is in flight
    frees = subject.kernel.indices(subject.kernel.ops("tcgen05.dealloc"))
    return subject.reaches_work(op) or subject.flow.path((op.index,), frees)


@operator(
    "MBAR-04", "CLU-11", "TMA-15", "TC-07",
    breaks="race: writers and readers of shared memory, or users and the freeing of TMEM, no longer meet",
)  # fmt: skip
def drop_cta_barrier(subject: Subject) -> Iterator[Break]:
    """A meeting of a CTA's threads dropped."""
    for op in _syncs(subject):
        stores = subject.kernel.ops("cp.async.bulk.wait_group")
        what = f"no {op.name} at barrier {_barrier(op, subject)}"
        yield Break(what, op, subject.drop(op), stores)


def _barrier(op: Op, subject: Subject) -> str:
    value = subject.kernel.value(op, "barrier")
    number = value.number() if value is not None else None
    return print_operand(subject.raw(op, "barrier")) if number is None else str(number)


@operator(breaks="deadlock when too many are awaited, race when too few")
def wrong_threads(subject: Subject) -> Iterator[Break]:
    """A named barrier for a warp more or less."""
    for op in _syncs(subject):
        value = subject.kernel.value(op, "threads")
        number = value.number() if value is not None else None
        for wrong in (number + 32, number - 32) if number is not None else ():
            text = print_statement(subject.with_operand(op, "threads", Integer(wrong, str(wrong))))
            yield Break(
                f"{wrong} threads for {number} at barrier {_barrier(op, subject)}",
                op,
                subject.put(op, text),
            )


@operator(
    "CLC-15",
    "TMA-07",
    breaks="race: the elected lane releases the answer before the other lanes have read it",
)
def drop_warp_sync(subject: Subject) -> Iterator[Break]:
    """bar.warp.sync between the lanes' generic reads of an answer and the release by one of them."""
    flow, kernel = subject.flow, subject.kernel
    syncs = kernel.ops("bar.warp.sync")
    others = kernel.indices(syncs)
    reads = [op for op in kernel.ops("ld") if "shared" in op.name]
    arrivals = kernel.ops("mbarrier.arrive")
    for op in syncs:
        before = any(
            flow.path((read.index,), (op.index,), others)
            for read in reads
            if 0 < op.index - read.index < 40
        )
        behind = any(
            flow.path((op.index,), (arrive.index,), others)
            for arrive in arrivals
            if 0 < arrive.index - op.index < 16
        )
        if before and behind:
            yield Break("no bar.warp.sync between reads and release", op, subject.drop(op), reads)


# --- groups -----------------------------------------------------------------------------------------------------------


def _fewer(subject: Subject, op: Op) -> Iterator[tuple[int, list[Edit]]]:
    groups = constant(op.node.operands[0])
    if groups is not None:
        yield (
            groups + 1,
            subject.put(
                op,
                print_statement(
                    subject.with_operand(op, "groups", Integer(groups + 1, str(groups + 1)))
                ),
            ),
        )


@operator(
    "TMA-15",
    breaks="race: the store still reads shared memory that is written again, or given up at the exit",
)
def drop_bulk_wait(subject: Subject) -> Iterator[Break]:
    """cp.async.bulk.wait_group dropped, or left one more group in flight."""
    for op in subject.kernel.ops("cp.async.bulk.wait_group"):
        if idle_wait(subject, op):
            continue
        others = subject.kernel.ops("cp.async.bulk.wait_group")
        yield Break("no wait for the stores' reads", op, subject.drop(op), others)
        for groups, edits in _fewer(subject, op):
            yield Break(f"{groups} groups left in flight", op, edits, others)


@operator("TMA-15", breaks="race: a store that no group holds is never waited for")
def drop_bulk_commit(subject: Subject) -> Iterator[Break]:
    """cp.async.bulk.commit_group dropped."""
    for op in subject.kernel.ops("cp.async.bulk.commit_group"):
        yield Break("the stores are committed to no group", op, subject.drop(op))


@operator("WG-02", breaks="race: products that no group holds are never waited for")
def drop_wgmma_commit(subject: Subject) -> Iterator[Break]:
    """wgmma.commit_group dropped."""
    for op in subject.kernel.ops("wgmma.commit_group"):
        yield Break("the products are committed to no group", op, subject.drop(op))


@operator(
    "WG-03",
    breaks="race: the slot is released, or the accumulators are read, while products are in flight",
)
def drop_wgmma_wait(subject: Subject) -> Iterator[Break]:
    """wgmma.wait_group dropped, or left one more group in flight."""
    for op in subject.kernel.ops("wgmma.wait_group"):
        yield Break("no wait for the products", op, subject.drop(op))
        for groups, edits in _fewer(subject, op):
            yield Break(f"{groups} groups of products left in flight", op, edits)
        behind = subject.flow.ops[op.index + 1 : op.index + 12]
        release = next((o for o in behind if o.is_a("mbarrier.arrive")), None)
        after = subject.next_op(release) if release is not None else None
        if after is not None:
            edits = subject.drop(op) + subject.before(after, print_statement(op.node))
            yield Break("the products are waited for behind the release", op, edits)

"""Rules of cluster launch control: every CTA of the cluster is there from the first request to the last answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.responses import Request, Responses, responses
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import ARRIVES, WAITS, where
from tilewright.ptx.flow import ENDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.paths import Crowd, Edge
    from tilewright.ptx.flow import Op

TRY_CANCEL = "9.7.13.17"


# --- the beginning --------------------------------------------------------------------------------


@rule(
    "CLC-10", "error", section=TRY_CANCEL,
    help="after mbarrier.init: fence.mbarrier_init.release.cluster, then barrier.cluster.arrive and wait",
)  # fmt: skip
def the_cluster_runs(kernel: Kernel) -> Iterator[Outcome]:
    """Every CTA of the cluster runs, its barrier initialised, before the first multicast request."""
    view, paths = responses(kernel), kernel.paths
    for request in view.requests:
        if not request.multicast or (kernel.shape.cluster_known and kernel.shape.ranks == 1):
            continue
        synced = view.cluster_waits | view.calls
        must = paths.must(request.op, synced)
        for crowd in paths.crowds_of(request.op):
            goal = (request.op.index,)
            if not paths.find(crowd, (-1,), goal, avoid=synced):
                continue
            sure = kernel.shape.cluster_known and paths.find(
                crowd, (-1,), goal, avoid=synced, certain=True, open_=must
            )
            if sure or (kernel.shape.cluster_known and not synced):
                yield kernel.finding(
                    "CLC-10",
                    "the multicast request can be issued before any barrier.cluster.wait: another"
                    " CTA may not run yet, or its barrier not be initialised",
                    request.op, request.ring.inits[0] if request.ring else None, "initialised here",
                )  # fmt: skip
            else:
                yield kernel.undecided(
                    "CLC-10", "a way without a cluster barrier turns on data", request.op
                )
            break
        else:
            yield from _initialised_too_late(kernel, view, request)


def _initialised_too_late(kernel: Kernel, view: Responses, request: Request) -> Iterator[Outcome]:
    if request.ring is None or view.calls or not kernel.shape.cluster_known:
        return
    arrives = kernel.indices(kernel.ops("barrier.cluster.arrive"))
    if any(kernel.flow.path((init.index,), arrives) for init in request.ring.inits):
        return
    yield kernel.finding(
        "CLC-10",
        "the barrier of a multicast request is initialised after the last cluster barrier: an answer"
        " may reach another CTA before its barrier is valid",
        request.ring.inits[0], request.op, "the request",
    )  # fmt: skip


@rule(
    "CLC-13", "error", section=TRY_CANCEL,
    help="keep every CTA in the loop until the response that all of them see declined",
)  # fmt: skip
def nobody_has_left(kernel: Kernel) -> Iterator[Outcome]:
    """No CTA of the cluster has exited while a multicast request may be issued."""
    view, paths = responses(kernel), kernel.paths
    if kernel.shape.ranks == 1 or view.calls:
        return
    for request in view.requests:
        if not request.multicast:
            continue
        there = set(kernel.ranks(request.op))
        if request.ring is not None:
            there |= {rank for op in view.waits(request.ring) for rank in kernel.ranks(op)}
        for rank in range(kernel.shape.ranks):
            crowds = [crowd for crowd in paths.crowds if crowd.rank == rank]
            if rank in there or not crowds:
                continue
            last = [_last_stop(kernel, request, crowd) for crowd in crowds]
            if all(stop is not None for stop in last):
                at = next(op for op in last if op is not None)
                yield kernel.finding(
                    "CLC-13",
                    f"the CTA of rank {rank} can exit before this multicast request is issued, and"
                    " waits for none of its answers: a request to a CTA that has left is undefined",
                    request.op, at, f"rank {rank} leaves",
                )  # fmt: skip
                break


def _last_stop(kernel: Kernel, request: Request, crowd: Crowd) -> Op | None:
    """Where these threads leave without meeting the issuer after its first request; None if they may stay."""
    view, paths = responses(kernel), kernel.paths
    holds = view.cluster_waits | kernel.indices(kernel.ops(*WAITS))
    before = {
        index for index in view.cluster_waits
        if kernel.flow.dominates(index, request.op.index) and not kernel.flow.loops(index)
    }  # fmt: skip
    later = holds - before
    for op in kernel.flow.exits:
        ends = paths.find(crowd, (-1,), (op.index,))
        if ends and any(paths.find(crowd, (-1,), (index,)) for index in later):
            return None
        if ends and paths.find(crowd, (-1,), (op.index,), certain=True):
            return op
    return None


# --- the end --------------------------------------------------------------------------------------


@rule(
    "CLC-16", "error", section=TRY_CANCEL,
    help="wait for the answer of every request that was issued, then for the cluster, and exit",
)  # fmt: skip
def drained_before_exit(kernel: Kernel) -> Iterator[Outcome]:
    """No CTA exits with a request in flight, or while an arrival of another CTA is on its way to it."""
    view = responses(kernel)
    if not view.requests or view.calls or view.unknown_barriers:
        return
    yield from _in_flight(kernel, view)
    yield from _arrives_late(kernel, view)


def _in_flight(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    """Two requests before the first answer is read, and an exit after one declined answer."""
    paths = kernel.paths
    for first in view.requests:
        if first.ring is None:
            continue
        waits = kernel.indices(view.waits(first.ring))
        for second in view.requests:
            pair = second is not first and second.ring is first.ring
            crowds = paths.crowds_of(first.op, second.op) if pair else []
            if not any(
                paths.find(crowd, (first.op.index,), (second.op.index,), avoid=waits, certain=True)
                for crowd in crowds
            ):
                continue
            leaving = _leave_when_declined(kernel, view, waits)
            if leaving is not None:
                yield kernel.finding(
                    "CLC-16",
                    "a second request is issued before the first is answered, and every thread leaves"
                    " at the first declined answer: the other answer may be written to a CTA that has"
                    " exited",
                    second.op, leaving, "leaves here when the response is declined",
                )  # fmt: skip
            return


def _leave_when_declined(kernel: Kernel, view: Responses, waits: set[int]) -> Op | None:
    """Where everyone that reads a response leaves at a declined one without waiting again; None if not all do."""
    paths = kernel.paths
    found: Op | None = None
    for crowd in paths.crowds:
        mine = [op for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
        if not mine and any(crowd.may(kernel.threads(kernel.flow.ops[i])[0]) for i in waits):
            return None
        for query in mine:
            edges = _declined_behind(kernel, view, crowd, query)
            ends = kernel.indices(kernel.flow.exits)
            stays = not edges or any(
                not paths.find(crowd, (edge,), ends, avoid=waits, certain=True, open_=view.declined)
                for edge in edges
            )
            if stays:
                return None
            found = kernel.flow.ops[edges[0][0]]
    return found


def _declined_behind(kernel: Kernel, view: Responses, crowd: Crowd, query: Op) -> list[Edge]:
    """The branches at which a declined answer of this query shows first."""
    return [
        edge for edge in sorted(view.declined)
        if kernel.flow.ops[edge[0]].node.opcode.root in {"bra", *ENDS}
        and kernel.paths.find(crowd, (query.index,), (edge[0],), avoid=view.asked)
    ]  # fmt: skip


def _arrives_late(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    """An arrival in another CTA after a declined answer, with nothing that keeps that CTA there."""
    paths = kernel.paths
    if kernel.shape.ranks == 1 or not kernel.shape.cluster_known:
        return
    stops = kernel.indices(kernel.ops(*WAITS)) | view.cluster_waits
    ends = kernel.indices(kernel.flow.exits)
    for arrive in kernel.ops(*ARRIVES):
        if where(kernel, arrive, "mbar") == "own":
            continue
        value = kernel.value(arrive, "mbar")
        target = None if value is None or value.cta is None else value.cta.number()
        if target is None:
            continue
        for crowd in paths.crowds_of(arrive):
            late = crowd.rank != target and _late(kernel, view, crowd, arrive, ends)
            if late and _gone(kernel, view, target, stops, ends):
                yield kernel.finding(
                    "CLC-16",
                    f"this arrival in the CTA of rank {target} can come after a declined response,"
                    f" when that CTA has exited: nothing keeps it until the arrival is there",
                    arrive, view.reads[0] if view.reads else None, "the declined response is read here",
                )  # fmt: skip
                return


def _late(kernel: Kernel, view: Responses, crowd: Crowd, arrive: Op, ends: set[int]) -> bool:
    """Whether a declined answer is followed by this arrival and then by the exit, no cluster barrier behind."""
    paths, goal = kernel.paths, (arrive.index,)
    queries = [op.index for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
    closed = view.granted
    if not any(
        paths.find(crowd, (query,), goal, avoid=view.cluster_waits, closed=closed)
        for query in queries
    ):
        return False
    arrives = kernel.indices(kernel.ops("barrier.cluster.arrive"))
    return not paths.find(crowd, goal, arrives) and paths.find(crowd, goal, ends)


def _gone(kernel: Kernel, view: Responses, rank: int, stops: set[int], ends: set[int]) -> bool:
    """Whether all threads of a CTA may exit after a declined answer without waiting for anything."""
    paths = kernel.paths
    crowds = [crowd for crowd in paths.crowds if crowd.rank == rank]
    for crowd in crowds:
        queries = [op for op in view.is_canceled if crowd.may(kernel.threads(op)[0])]
        starts: list[int | Edge] = [
            edge for query in queries for edge in _declined_behind(kernel, view, crowd, query)
        ]
        if not starts:
            starts = [-1, *view.cluster_waits]
        if not paths.find(crowd, starts, ends, avoid=stops, certain=True, open_=view.declined):
            return False
    return bool(crowds)

"""Rules of cluster launch control: a response is asked for again when all its readers are done with it.

One response, or a ring of stages with a response and a barrier each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.responses import Request, Responses, covers, responses, splits, warps_of
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import ARRIVES
from tilewright.audit.trace import LANES_DIFFER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.paths import Crowd
    from tilewright.ptx.flow import Op

TRY_CANCEL = "9.7.13.17"


@rule(
    "CLC-14", "error", section=TRY_CANCEL,
    help="wait, before the next request, on a barrier that the readers of all CTAs arrive at, or on the cluster's",
)  # fmt: skip
def consumed_by_the_cluster(kernel: Kernel) -> Iterator[Outcome]:
    """A request follows the previous one only after the readers of every CTA are done with its response."""
    yield from _consumed(kernel, "CLC-14", staged=False)


@rule(
    "CLC-15", "error", section=TRY_CANCEL,
    help="give each stage a response and a barrier, wait on its empty barrier, and sync the warp before its release",
)  # fmt: skip
def stages_are_reused_when_empty(kernel: Kernel) -> Iterator[Outcome]:
    """A stage is asked for again only after its readers released it, and each stage has its own response."""
    yield from _consumed(kernel, "CLC-15", staged=True)
    yield from _shared_response(kernel)
    yield from _lanes_together(kernel)


def _staged(request: Request) -> bool:
    return bool(request.mbar.unknown or request.response.unknown)


def _consumed(kernel: Kernel, rule_id: str, *, staged: bool) -> Iterator[Outcome]:
    view, paths = responses(kernel), kernel.paths
    for request in view.requests:
        goal = (request.op.index,)
        if _staged(request) != staged or not kernel.flow.path(goal, goal):
            continue
        yield from _relaxed_release(kernel, view, rule_id)
        readers = [read for read in view.reads if request in view.requests_of(read)]
        ranks = {rank for read in readers for rank in kernel.ranks(read)}
        far = ranks - set(kernel.ranks(request.op))
        if not readers or (not far and not staged):
            continue
        shared = covers(view, everywhere=bool(far))
        for crowd in paths.crowds_of(request.op):
            if not paths.find(crowd, goal, goal, avoid=shared | view.calls):
                continue
            if paths.passes(crowd, goal, goal, shared):
                yield kernel.undecided(
                    rule_id, "a way without a wait for the readers turns on data", request.op
                )
            else:
                where = f" in rank {', '.join(map(str, sorted(far)))}" if far else ""
                yield kernel.finding(
                    rule_id,
                    f"the next request waits for no reader{where}: the answer overwrites a response"
                    " that may not have been read",
                    request.op, next((r for r in readers if set(kernel.ranks(r)) & far), readers[0]),
                    "reads the response",
                )  # fmt: skip
            break


def _relaxed_release(kernel: Kernel, view: Responses, rule_id: str) -> Iterator[Outcome]:
    fences = frozenset(
        op.index for op in kernel.ops("fence") if not op.is_a("fence.mbarrier_init")
    )  # fmt: skip
    for ring in view.consumed:
        for arrive in view.arrivals(ring):
            if not arrive.has("relaxed"):
                continue
            readers = [r for r in view.last_reads if kernel.flow.path((r.index,), (arrive.index,))]
            for read in readers:
                if kernel.flow.path((read.index,), fences, (arrive.index,)) or not kernel.together(
                    read, arrive
                ):
                    continue
                yield kernel.finding(
                    rule_id,
                    f"a relaxed arrival on {ring.name} releases the response: it orders nothing, so the"
                    " read may still be pending when the next answer is written",
                    arrive, read, "the read",
                )  # fmt: skip
                break


def _shared_response(kernel: Kernel) -> Iterator[Outcome]:
    view, paths = responses(kernel), kernel.paths
    for first in view.requests:
        for second in view.requests:
            if first is second or first.ring is None or not _one_response(first, second):
                continue
            good = view.success(first.ring)
            for crowd in paths.crowds_of(first.op, second.op):
                if paths.find(
                    crowd, (first.op.index,), (second.op.index,), closed=good, avoid=view.calls,
                    certain=True,
                ):  # fmt: skip
                    yield kernel.finding(
                        "CLC-15",
                        "two requests in flight write the same response: each stage needs its own 16"
                        " bytes, or one answer is lost",
                        second.op, first.op, "is still in flight",
                    )  # fmt: skip
                    return


def _one_response(first: Request, second: Request) -> bool:
    a, b = first.response, second.response
    return (
        bool(a.base)
        and a.base == b.base
        and not a.unknown
        and not b.unknown
        and a.single is not None
        and a.single == b.single
    )


def _lanes_together(kernel: Kernel) -> Iterator[Outcome]:
    """All lanes that read a response have read it before one of them releases it."""
    view, paths = responses(kernel), kernel.paths
    synced = {op.index for op in kernel.flow.ops if op.is_a("barrier", "bar") or op.has("sync")}
    for ring in view.consumed:
        for arrive in kernel.of_ring(ring, *ARRIVES):
            if max(kernel.per_cta(arrive), default=0) == 0:
                continue
            yield from _alone(kernel, view, ring, arrive, synced, paths.crowds_of(arrive))


def _alone(
    kernel: Kernel, view: Responses, ring: Ring, arrive: Op, synced: set[int], crowds: list[Crowd]
) -> Iterator[Outcome]:
    lanes = kernel.threads(arrive)[0]
    for read in view.reads:
        mask = kernel.threads(read)[0]
        if not kernel.together(read, arrive) or splits(kernel, arrive, LANES_DIFFER):
            continue
        warps = warps_of(lanes)
        if not any(warps_of(mask).get(warp, 0) > count for warp, count in warps.items()):
            continue
        for crowd in crowds:
            way = crowd, (read.index,), (arrive.index,)
            gathered = {i for i in synced if kernel.paths.passes(*way, (i,), (read.index,))}
            if not kernel.paths.find(*way, avoid={read.index}):
                continue
            if all(kernel.flow.ops[i].is_a("elect.sync") for i in gathered) and gathered:
                yield kernel.undecided(
                    "CLC-15",
                    "elect.sync gathers the lanes, which is not said to order their reads",
                    arrive,
                )
                return
            if not gathered:
                yield kernel.finding(
                    "CLC-15",
                    f"one lane releases {ring.name} while other lanes of its warp may still read the"
                    " response: no bar.warp.sync stands between",
                    arrive, read, "all lanes read here",
                )  # fmt: skip
                return

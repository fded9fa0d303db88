"""Rules of cluster launch control, second half: reading the response, and asking again.

A response is read after its barrier's phase was seen to complete, its coordinates where it was granted; the next
request follows once every reader in the cluster is done, and none follows a declined one. clc.py holds the first
half, clc_work.py what becomes of the coordinates and who is still there at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.logic import FAILS, HOLDS, registers_read
from tilewright.audit.responses import Request, Responses, responses
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import ARRIVES, WAITS
from tilewright.audit.trace import LANES_DIFFER, may_split
from tilewright.ptx.flow import ENDS
from tilewright.ptx.nodes import Name, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.paths import Crowd, Edge
    from tilewright.ptx.flow import Op

TRY_CANCEL = "9.7.13.17"
QUERY_CANCEL = "9.7.13.18"
ONE_SIDED_UNTIL = (9, 0)
"""The example of this ISA version puts a fence on the reader's side alone."""


# --- reading --------------------------------------------------------------------------------------


@rule(
    "CLC-06", "error", section=TRY_CANCEL,
    help="loop on mbarrier.try_wait.parity.acquire.cluster of the request's barrier, then load 128 bits",
)  # fmt: skip
def read_after_the_phase(kernel: Kernel) -> Iterator[Outcome]:
    """The response is read only after an acquiring wait has seen its barrier's phase complete."""
    view = responses(kernel)
    for read in view.reads:
        requests, rings = view.requests_of(read), view.rings_of(read)
        if requests and not rings:
            yield kernel.undecided("CLC-06", "the barrier of the request is not understood", read)
        elif rings:
            yield from _waited_for(kernel, view, read, rings)
    for query in (*view.is_canceled, *view.coordinates):
        loads = view.loads_of(query)
        if not loads and view.requests:
            yield kernel.undecided("CLC-06", "where the handle was loaded is not understood", query)
        elif len(loads) > 1 and not any(op.has("b128") for op in loads) and query in view.is_canceled:
            yield kernel.finding(
                "CLC-06",
                f"the response is read by {len(loads)} loads: only one 128-bit load is sure to see one"
                " response",
                loads[0], loads[1], "reads another part", severity="warning",
            )  # fmt: skip


def _waited_for(
    kernel: Kernel, view: Responses, read: Op, rings: tuple[Ring, ...]
) -> Iterator[Outcome]:
    paths = kernel.paths
    good = frozenset().union(*(view.success(ring) for ring in rings))
    fences = _acquiring(kernel) if any(_relaxed(view, ring) for ring in rings) else frozenset()
    avoid = view.calls | fences
    loops = {edge[0] for edge in good} | avoid
    starts = [-1, *(r.op.index for r in view.requests_of(read) if _same_slot(view, r, read))]
    for crowd in paths.crowds_of(read):
        ahead = any(paths.find(crowd, (edge,), (read.index,)) for edge in good)
        for start in starts:
            if start >= 0 and not crowd.may(kernel.threads(kernel.flow.ops[start])[0]):
                continue
            goal = (read.index,)
            if not paths.find(crowd, (start,), goal, avoid=avoid, closed=good):
                continue
            must = paths.must(read, loops)
            sure = not ahead and not (fences or view.unknown_barriers)
            if sure or paths.find(
                crowd, (start,), goal, avoid=avoid, closed=good, certain=True, open_=must
            ):
                yield _unwaited(kernel, view, read, rings, start)
                return
            yield kernel.undecided("CLC-06", "a way without a wait turns on data", read)
            return


def _unwaited(
    kernel: Kernel, view: Responses, read: Op, rings: tuple[Ring, ...], start: int
) -> Outcome:
    name = rings[0].name
    waits = [op for ring in rings for op in view.waits(ring) if kernel.together(op, read)]
    before = [op for op in waits if kernel.flow.path((op.index,), (read.index,))]
    if not before:
        said = f"and no wait on {name} comes before it"
    elif all(op.has("relaxed") for op in before):
        said = f"after a relaxed wait on {name}, which makes nothing visible"
    elif start >= 0:
        said = f"after the next request, without a wait on {name} between"
    else:
        said = f"on a way where no wait on {name} is known to have succeeded: try_wait may return false"
    other = before[0] if before else view.requests_of(read)[0].op
    return kernel.finding(
        "CLC-06",
        f"the response is read {said}: it races with the answer that is being written",
        read, other, "the wait" if before else "the request",
    )  # fmt: skip


def _relaxed(view: Responses, ring: Ring) -> bool:
    return any(op.has("relaxed") for op in view.waits(ring))


def _acquiring(kernel: Kernel) -> frozenset[int]:
    """Fences that make a relaxed wait an acquiring one."""
    return frozenset(
        op.index
        for op in kernel.ops("fence", "membar")
        if op.has("acq_rel") or op.has("sc") or op.has("acquire") or op.node.opcode.root == "membar"
    )


def _same_slot(view: Responses, request: Request, read: Op) -> bool:
    where = view.address(read)
    return (
        where is not None
        and not where.unknown
        and not request.response.unknown
        and where.single is not None
        and where.single == request.response.single
    )


@rule(
    "CLC-07", "error", section=QUERY_CANCEL,
    help="put get_first_ctaid under the predicate that is_canceled gave for the same handle",
)  # fmt: skip
def coordinates_when_granted(kernel: Kernel) -> Iterator[Outcome]:
    """Coordinates are read only where is_canceled held for the same handle."""
    view = responses(kernel)
    for query in view.coordinates:
        asked = frozenset(op.index for op in view.is_canceled if _same_handle(kernel, view, op, query))
        conditions = kernel.flow.conditions(query)
        logic = kernel.paths.logic
        if asked and any(
            logic.answers(c.register, c.at, HOLDS if c.holds else FAILS, asked) == {True}
            for c in conditions
        ):
            pass
        elif any(_from_memory(kernel, c.register, c.at, asked) for c in conditions):
            yield kernel.undecided("CLC-07", "it depends on data whether the response was granted", query)
        else:
            why = "is_canceled does not decide whether it is reached" if asked else "is_canceled is never asked"
            first = min(asked, default=None)
            yield kernel.finding(
                "CLC-07",
                f"coordinates are read from a response that may be declined ({why}): they are undefined"
                " then",
                query, None if first is None else kernel.flow.ops[first], "asks for the same handle",
            )  # fmt: skip
        yield from _fourth(kernel, query)


def _same_handle(kernel: Kernel, view: Responses, a: Op, b: Op) -> bool:
    first, second = kernel.value(a, "response"), kernel.value(b, "response")
    if first is not None and second is not None and first.unknown == second.unknown:
        return True
    loads = view.loads_of(a), view.loads_of(b)
    if not loads[0] or not loads[1]:
        return False
    where = [view.address(each[0]) for each in loads]
    return where[0] is not None and where[1] is not None and (
        where[0].same_place(where[1]) and where[0].unknown == where[1].unknown
    )  # fmt: skip


def _from_memory(kernel: Kernel, register: str, at: int, asked: frozenset[int]) -> bool:
    """Whether a predicate comes from the query in a way not understood, or from what others may have stored."""
    made = kernel.paths.logic.slice(register, at)
    if made & asked:
        return True
    if asked:
        return False
    ops = [kernel.flow.ops[i] for i in made]
    return any(
        op.node.opcode.root in {"ld", "atom", "shfl", "call", "vote"} and "param" not in op.name
        for op in ops
    )


def _fourth(kernel: Kernel, query: Op) -> Iterator[Outcome]:
    result = query.role("result")
    if not isinstance(result, Vector) or len(result.elements) < 4:
        return
    last = result.elements[3]
    if not isinstance(last, Name):
        return
    for op in kernel.flow.ops:
        reads = last.name in set(registers_read(op))
        if reads and query.index in kernel.values.reaching(last.name, op.index):
            yield kernel.finding(
                "CLC-07",
                "the fourth element of get_first_ctaid is unspecified, and it is used",
                op, query, "leaves it unspecified",
            )  # fmt: skip
            return


# --- asking again ---------------------------------------------------------------------------------


@rule(
    "CLC-08", "error", section=TRY_CANCEL,
    help="branch on is_canceled before every further request, and leave the loop when it is false",
)  # fmt: skip
def none_after_a_declined(kernel: Kernel) -> Iterator[Outcome]:
    """No request follows a response that was seen to be declined."""
    view, paths = responses(kernel), kernel.paths
    if not view.asked:
        return
    for request in view.requests:
        goal = (request.op.index,)
        for query in view.is_canceled:
            outcome = None
            for crowd in paths.crowds_of(query, request.op):
                if not paths.find(crowd, (query.index,), goal, avoid=view.calls, closed=view.granted):
                    continue
                outcome = _asked_again(kernel, view, request, query, crowd)
                break
            if outcome is not None:
                yield outcome
                break


def _asked_again(
    kernel: Kernel, view: Responses, request: Request, query: Op, crowd: Crowd
) -> Outcome | None:
    paths, goal = kernel.paths, (request.op.index,)
    closed, avoid = view.granted, view.calls

    def turns(edge: Edge) -> bool:
        op = kernel.flow.ops[edge[0]]
        return op is request.op or op.node.opcode.root in {"bra", *ENDS}

    failed = [
        edge for edge in sorted(view.declined)
        if turns(edge)
        and paths.find(crowd, (query.index,), (edge[0],))
        and paths.find(crowd, (edge,), goal, avoid=avoid | view.asked, closed=closed)
    ]  # fmt: skip
    gated = any(
        turns(edge)
        and paths.find(crowd, (query.index,), (edge[0],))
        and (edge[0] == request.op.index or paths.find(crowd, (edge,), goal))
        for edge in view.granted | view.unclear
    )
    if failed:
        return kernel.finding(
            "CLC-08",
            "this request can follow a declined response: once a CTA has seen one, asking again is"
            " undefined",
            request.op, kernel.flow.ops[failed[0][0]], "goes on where the response was declined",
        )  # fmt: skip
    if not gated:
        return kernel.finding(
            "CLC-08",
            "this request follows whatever the response was: after a declined one asking again is"
            " undefined",
            request.op, query, "its answer decides nothing on the way",
        )  # fmt: skip
    return kernel.undecided(
        "CLC-08", "whether it follows a declined response turns on data", request.op
    )


@rule(
    "CLC-09", "error", section=TRY_CANCEL,
    help="fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster after the read, .acquire before the request",
)  # fmt: skip
def read_before_the_next_write(kernel: Kernel) -> Iterator[Outcome]:
    """A proxy fence orders the read of a response before the next request that writes the same buffer."""
    view = responses(kernel)
    again = [r for r in view.requests if kernel.flow.path((r.op.index,), (r.op.index,))]
    if not again:
        return
    both = _fences(kernel, "")
    release = both | _fences(kernel, "release")
    missing = False
    for read in view.reads:
        if not view.requests_of(read) or not kernel.flow.loops(read.index):
            continue
        outcome = _fenced(kernel, view, read, release)
        if outcome is not None:
            missing = True
            yield outcome
    if missing:
        return
    yield from _issuer_fenced(kernel, view, again, both, one_sided=not _fences(kernel, "release"))


def _fences(kernel: Kernel, side: str) -> frozenset[int]:
    if side:
        ops = [op for op in kernel.ops("fence.proxy.async::generic") if op.has(side)]
    else:
        ops = [op for op in kernel.ops("fence.proxy.async") if not op.has("global")]
    return frozenset(op.index for op in ops)


def _releases(kernel: Kernel, view: Responses) -> frozenset[int]:
    """Arrivals by which a reader says that it is done."""
    return frozenset(op.index for ring in view.consumed for op in view.arrivals(ring))


def _fenced(
    kernel: Kernel, view: Responses, read: Op, fences: frozenset[int]
) -> Outcome | None:
    paths = kernel.paths
    goals = {read.index, *(r.op.index for r in view.requests), *_releases(kernel, view)}
    lacking: list[tuple[Crowd, bool]] = []
    crowds = paths.crowds_of(read)
    for crowd in crowds:
        if not paths.find(crowd, (read.index,), goals, avoid=fences | view.calls):
            continue
        never = not paths.passes(crowd, (read.index,), goals, fences)
        lacking.append((crowd, never))
    if not lacking:
        return None
    sure = [
        crowd for crowd, never in lacking
        if never or paths.find(crowd, (read.index,), goals, avoid=fences | view.calls, certain=True)
    ]  # fmt: skip
    if len(sure) == len(crowds):
        return kernel.finding(
            "CLC-09",
            "no proxy fence stands between this read and the release of the response: the next answer"
            " is written in the async proxy and may overtake the read",
            read, view.requests_of(read)[-1].op, "writes the same buffer",
        )  # fmt: skip
    return kernel.undecided("CLC-09", "a way without a proxy fence turns on data", read)


def _issuer_fenced(
    kernel: Kernel, view: Responses, again: list[Request], both: frozenset[int], *, one_sided: bool
) -> Iterator[Outcome]:
    if one_sided and kernel.options.ptx_isa <= ONE_SIDED_UNTIL:
        return
    acquire = both | _fences(kernel, "acquire")
    if not any(view.requests_of(read) for read in view.reads):
        return
    for request in again:
        goal = (request.op.index,)
        for crowd in kernel.paths.crowds_of(request.op):
            if not kernel.paths.find(crowd, goal, goal, avoid=acquire | view.calls):
                continue
            if kernel.paths.passes(crowd, goal, goal, acquire):
                yield kernel.undecided("CLC-09", "a way without the acquiring fence turns on data", request.op)
            else:
                yield kernel.finding(
                    "CLC-09",
                    "no fence.proxy.async::generic.acquire stands between the readers' signal and this"
                    " request: the read is released to the async proxy and not acquired by it",
                    request.op, view.reads[0], "reads the response that this overwrites",
                    severity="error" if kernel.options.strict else "warning",
                )  # fmt: skip
            break


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
        covers = _covers(kernel, view, request, everywhere=bool(far))
        for crowd in paths.crowds_of(request.op):
            if not paths.find(crowd, goal, goal, avoid=covers | view.calls):
                continue
            if paths.passes(crowd, goal, goal, covers):
                yield kernel.undecided(rule_id, "a way without a wait for the readers turns on data", request.op)
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


def _covers(
    kernel: Kernel, view: Responses, request: Request, *, everywhere: bool
) -> frozenset[int]:
    """Waits that readers in all CTAs take part in."""
    own = {id(r.ring) for r in view.requests}
    found = set(view.cluster_waits)
    for op in kernel.ops(*WAITS):
        ring = kernel.ring(op)
        if ring is None or (
            id(ring) not in own and (not everywhere or view.released_by_others(ring))
        ):
            found.add(op.index)
    if not everywhere:
        found |= view.cta_barriers
    return frozenset(found)


def _relaxed_release(kernel: Kernel, view: Responses, rule_id: str) -> Iterator[Outcome]:
    fences = frozenset(
        op.index for op in kernel.ops("fence") if not op.is_a("fence.mbarrier_init")
    )  # fmt: skip
    for ring in view.consumed:
        for arrive in view.arrivals(ring):
            if not arrive.has("relaxed"):
                continue
            readers = [r for r in view.reads if kernel.flow.path((r.index,), (arrive.index,))]
            for read in readers:
                if kernel.flow.path((read.index,), fences, (arrive.index,)) or not kernel.together(read, arrive):
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
    synced = {
        op.index for op in kernel.flow.ops
        if op.has("sync") and op.node.opcode.root not in {"elect"}
        or op.is_a("barrier.cluster", "barrier", "bar")
    }  # fmt: skip
    for ring in view.consumed:
        for arrive in kernel.of_ring(ring, *ARRIVES):
            if max(kernel.per_cta(arrive), default=0) == 0:
                continue
            yield from _alone(kernel, view, ring, arrive, synced, paths.crowds_of(arrive))


def _alone(  # noqa: PLR0913, PLR0917  (one release, seen from its readers)
    kernel: Kernel, view: Responses, ring: Ring, arrive: Op, synced: set[int], crowds: list[Crowd]
) -> Iterator[Outcome]:
    lanes = kernel.threads(arrive)[0]
    for read in view.reads:
        mask = kernel.threads(read)[0]
        if not kernel.together(read, arrive) or may_split(kernel, arrive, LANES_DIFFER):
            continue
        warps = _warps(lanes)
        if not any(_warps(mask).get(warp, 0) > count for warp, count in warps.items()):
            continue
        for crowd in crowds:
            reach = kernel.paths.find(crowd, (read.index,), (arrive.index,), avoid={read.index})
            if reach and not kernel.paths.find(
                crowd, (read.index,), synced, avoid={arrive.index, read.index}
            ):
                yield kernel.finding(
                    "CLC-15",
                    f"one lane releases {ring.name} while other lanes of its warp may still read the"
                    " response: no bar.warp.sync stands between",
                    arrive, read, "all lanes read here",
                )  # fmt: skip
                return


def _warps(mask: np.ndarray) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for rank, thread in np.argwhere(mask):
        key = int(rank), int(thread) // 32
        found[key] = found.get(key, 0) + 1
    return found

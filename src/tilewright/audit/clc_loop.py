"""Rules of cluster launch control: reading the response, and asking again.

A response is read after its barrier's phase was seen to complete, its coordinates where it was granted; a proxy
fence orders the read before the next request, and none follows a declined one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.flowing import flowing, in_address, touches_memory
from tilewright.audit.logic import FAILS, HOLDS, registers_read
from tilewright.audit.responses import Request, Responses, covers, responses, within
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import WAITS
from tilewright.ptx.flow import ENDS
from tilewright.ptx.nodes import Name, Vector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.paths import Crowd, Edge
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

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
        if _of_no_request(kernel, view, read):
            yield kernel.finding(
                "CLC-06",
                "the response is read where no request writes one: what is there was never an answer",
                read, view.requests[0].op, "writes its response elsewhere",
            )  # fmt: skip
        elif requests and not rings:
            yield kernel.undecided("CLC-06", "the barrier of the request is not understood", read)
        elif rings:
            yield from _waited_for(kernel, view, read, rings)
    for query in (*view.is_canceled, *view.coordinates):
        loads = view.loads_of(query)
        if not loads and view.requests:
            yield kernel.undecided("CLC-06", "where the handle was loaded is not understood", query)
            continue
        torn = view.torn(query) if query in view.is_canceled else None
        if torn is not None:
            yield kernel.finding(
                "CLC-06",
                "the response is read by two loads: only one 128-bit load is sure to see one response",
                torn[0], torn[1], "reads another part", severity="warning",
            )  # fmt: skip


def _of_no_request(kernel: Kernel, view: Responses, read: Op) -> bool:
    """Whether a load reads beside every response, and none is passed on in shared memory."""
    where, own = view.address(read), read.index
    written = [r.response for r in view.requests]
    places = [where, *written]
    if where is None or where.cta is not None or view.calls or not written:
        return False
    if any(each is None or each.single is None for each in places):
        return False
    if any(each.base == where.base and within(each, where) for each in written):
        return False
    right = [
        each for each in view.reads
        if each.index != own and (at := view.address(each)) is not None
        and any(at.base == r.base and within(r, at) for r in written)
    ]  # fmt: skip
    flow = flowing(kernel)
    passed_on = set(flow.from_results(right)) - set(
        flow.from_results((*view.is_canceled, *view.coordinates))
    )
    return not any(
        kernel.flow.ops[index].node.opcode.root in {"st", "atom", "red"} for index in passed_on
    ) and not any(
        value is not None and any(_may_read(each, value) for each in view.requests)
        for op in kernel.ops("cp.async.bulk", "ld")
        if op.index != own and op not in view.reads
        if op.node.opcode.root == "ld" or op.has("shared::cluster", "shared::cta")
        for value in [kernel.value(op, "src")]
    )


def _may_read(request: Request, value: Value) -> bool:
    """Whether an address may be in a response: of stages in one of as many as its barriers."""
    response, slots = request.response, request.ring.slots if request.ring is not None else None
    if value.base != response.base or not within(response, value):
        return False
    if value.unknown or slots is None or value.single is None or response.single is None:
        return True
    step = max((abs(coefficient) for _, coefficient in response.unknown), default=16)
    return 0 <= value.single - response.single < slots * step


def _waited_for(
    kernel: Kernel, view: Responses, read: Op, rings: tuple[Ring, ...]
) -> Iterator[Outcome]:
    paths = kernel.paths
    if not any(view.waits(ring) for ring in rings) and kernel.ops(*WAITS):
        return  # they are on another barrier: CLC-18
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
    unused: list[Op] = []
    for query in view.coordinates:
        yield from _fourth(kernel, query)
        asked = frozenset(
            op.index for op in view.is_canceled if _same_handle(kernel, view, op, query)
        )
        conditions = kernel.flow.conditions(query)
        logic = kernel.paths.logic
        answers = [
            logic.answers(c.register, c.at, HOLDS if c.holds else FAILS, asked) for c in conditions
        ]
        if asked and {True} in answers:
            continue
        if {False} not in answers and any(
            _from_memory(kernel, c.register, c.at, asked) for c in conditions
        ):
            yield kernel.undecided(
                "CLC-07", "it depends on data whether the response was granted", query
            )
            continue
        use = _used_when_declined(kernel, view, query)
        if use is None:
            unused.append(query)
        else:
            yield kernel.finding(
                "CLC-07",
                "the coordinates of a declined response are used: they are undefined, and declined does"
                " not mean that nothing is left",
                query, use, "uses them where the response was not granted",
            )  # fmt: skip
    if unused:
        more = f" ({len(unused)} such queries)" if len(unused) > 1 else ""
        yield kernel.finding(
            "CLC-07",
            f"coordinates are read before it is known that the response was granted{more}: of a declined"
            " one that is undefined, even if the result is not used",
            unused[0], view.is_canceled[0] if view.is_canceled else None, "asks whether it was",
            severity="error" if kernel.options.strict else "warning",
        )  # fmt: skip


def _used_when_declined(kernel: Kernel, view: Responses, query: Op) -> Op | None:
    """Where memory is touched with coordinates on a way that no success leads to."""
    paths = kernel.paths
    for index, brought in flowing(kernel).from_results((query,), only=True).items():
        op = kernel.flow.ops[index]
        if not touches_memory(op) or not brought & in_address(op):
            continue
        for crowd in paths.crowds_of(query, op):
            if paths.find(
                crowd, (query.index,), (index,), avoid=(query.index,), closed=view.granted,
                certain=True, open_=view.declined,
            ):  # fmt: skip
                return op
    return None


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
    if any(index in made and kernel.flow.dominates(index, at) for index in asked):
        return True  # of this round; an answer of the round before says nothing
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
    view = responses(kernel)
    if not view.asked:
        return
    found = list(_requests_after_a_declined(kernel, view))
    yield from found or _waits_after_a_declined(kernel, view)


def _requests_after_a_declined(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    paths = kernel.paths
    for request in view.requests:
        goal = (request.op.index,)
        for query in view.is_canceled:
            outcome = None
            for crowd in paths.crowds_of(query, request.op):
                if not paths.find(
                    crowd, (query.index,), goal, avoid=view.calls, closed=view.granted
                ):
                    continue
                outcome = _asked_again(kernel, view, request, query, crowd)
                break
            if outcome is not None:
                yield outcome
                break


def _waits_after_a_declined(kernel: Kernel, view: Responses) -> Iterator[Outcome]:
    """Readers that go round to the next answer where this one was declined: none is asked for any more."""
    paths = kernel.paths
    rings = {request.ring for request in view.requests}
    if view.unknown_barriers or None in rings:
        return
    several = any(ring is not None and ring.slots != 1 for ring in rings)
    waits = {op.index: op for r in view.requests if r.ring is not None for op in view.waits(r.ring)}
    ends = kernel.indices(kernel.flow.exits) | view.calls
    for query in view.is_canceled:
        for edge in sorted(view.declined):
            branch = kernel.flow.ops[edge[0]]
            if branch.node.opcode.root != "bra" or not kernel.flow.path((query.index,), edge[:1]):
                continue
            for crowd in paths.crowds_of(query, branch):
                if paths.find(crowd, (edge,), ends, avoid={*waits, *view.calls, *_requests(view)}):
                    continue
                again = next((waits[i] for i in waits if paths.find(crowd, (edge,), (i,))), None)
                if again is not None and several:
                    yield kernel.undecided(
                        "CLC-08",
                        "whether the answer waited for after a decline was asked for before",
                        again,
                    )
                    return
                if again is not None:
                    yield kernel.finding(
                        "CLC-08",
                        "after a declined response this thread waits for one more: whoever asks stops at a decline,"
                        " and it waits for ever",
                        again, branch, "goes on where the response was declined",
                    )  # fmt: skip
                    return


def _requests(view: Responses) -> frozenset[int]:
    return frozenset(request.op.index for request in view.requests)


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
    for read in view.last_reads:
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


def _releases(view: Responses) -> frozenset[int]:
    """Arrivals by which a reader says that it is done."""
    return frozenset(op.index for ring in view.consumed for op in view.arrivals(ring))


def _fenced(kernel: Kernel, view: Responses, read: Op, fences: frozenset[int]) -> Outcome | None:
    paths = kernel.paths
    goals = {read.index, *(r.op.index for r in view.requests), *_releases(view)}
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
    signals = goals - {read.index}
    own = any(
        paths.find(crowd, (read.index,), signals, avoid={*fences, *view.calls, read.index})
        for crowd in sure
    )  # a thread that signals itself; others may be fenced by the one that signals for them
    if own or len(sure) == len(crowds):
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
    paths, acquire = kernel.paths, both | _fences(kernel, "acquire")
    if not any(view.requests_of(read) for read in view.reads):
        return
    for request in again:
        goal = (request.op.index,)
        signals = covers(view, everywhere=False)
        for crowd in paths.crowds_of(request.op):
            heard = [each for each in signals if paths.passes(crowd, goal, goal, (each,))]
            starts = heard or list(goal)
            avoid = acquire | view.calls
            if not all(paths.find(crowd, (each,), goal, avoid=avoid) for each in starts):
                continue
            if any(paths.passes(crowd, (each,), goal, acquire) for each in starts):
                yield kernel.undecided(
                    "CLC-09", "a way without the acquiring fence turns on data", request.op
                )
            else:
                yield kernel.finding(
                    "CLC-09",
                    "no fence.proxy.async::generic.acquire stands between the readers' signal and this"
                    " request: the read is released to the async proxy and not acquired by it",
                    request.op, view.reads[0], "reads the response that this overwrites",
                    severity="error" if kernel.options.strict else "warning",
                )  # fmt: skip
            break

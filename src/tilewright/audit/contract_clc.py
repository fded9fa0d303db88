"""The CLC loop as a kernel's contract says it: who asks, how far ahead, what holds it back, who reads, where it ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.responses import responses
from tilewright.audit.signals import WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.responses import Request
    from tilewright.ptx.flow import Op


def request_loop(kernel: Kernel) -> Iterator[str]:
    """The loop, a line a fact; nothing for kernels that ask for no work."""
    view = responses(kernel)
    for request in view.requests:
        yield _asks(kernel, request)
        yield from _holds_back(kernel, request)
    queries = [*view.is_canceled, *view.coordinates]
    for read in view.reads:
        words = dict.fromkeys(
            next(m for m in query.node.opcode.modifiers if m.startswith(("is_", "get_")))
            for query in queries
            if read in view.loads_of(query)
        )
        yield f"reads: {_threads(kernel, read)}: {', '.join(words)} (line {read.span.line})"
    for branch, holds in sorted(view.declined):
        yield from _leaves(kernel, branch, holds)


def _leaves(kernel: Kernel, branch: int, holds: bool) -> Iterator[str]:  # noqa: FBT001  (an edge)
    """Where a declined response takes threads out of a loop."""
    op = kernel.flow.ops[branch]
    if op.node.opcode.root != "bra" or not kernel.flow.loops(branch):
        return
    goal = kernel.flow.sides(op)[0 if holds else 1]
    if goal is None or goal not in kernel.flow.loops(branch)[0][1]:
        where = "the end" if goal is None else f"line {kernel.flow.ops[goal].span.line}"
        yield f"declined: {_threads(kernel, op)} leave the loop in line {op.span.line} for {where}"


def _asks(kernel: Kernel, request: Request) -> str:
    ring = request.ring
    to = "to every CTA of the cluster" if request.multicast else "to its own CTA"
    if ring is None:
        on = "on a barrier that is not understood"
    else:
        depth = f"{ring.slots} responses in turn" if ring.slots != 1 else "one response"
        on = f"on {ring.name}, {depth if ring.slots is not None else 'depth unknown'}"
    return f"asks: {_threads(kernel, request.op)}, {to}, {on} (line {request.op.span.line})"


def _holds_back(kernel: Kernel, request: Request) -> Iterator[str]:
    """The waits that every round of the asking threads passes."""
    at = request.op.index
    around = kernel.flow.loops(at)
    if not around:
        return
    members = around[0][1]
    found = False
    for meet in kernel.ops("bar.sync", "barrier.sync", "barrier.cluster.wait"):
        if meet.index in members and kernel.flow.always_between(at, at, (meet.index,)):
            found = True
            yield f"throttle: meets others at {_barrier(kernel, meet)} (line {meet.span.line})"
    for wait in kernel.ops(*WAITS):
        ring = kernel.ring(wait)
        if wait.index not in members or not kernel.together(wait, request.op) or ring is None:
            continue
        if not kernel.flow.always_between(at, at, (wait.index,)):
            continue
        found = True
        if ring is request.ring:
            yield f"in flight: one request; its answer is waited for before the next (line {wait.span.line})"
        else:
            count = "" if ring.count is None else f", {ring.count} arrivals"
            yield f"throttle: waits for {ring.name}{count} (line {wait.span.line})"
    if not found:
        yield "throttle: none that every round passes"


def _barrier(kernel: Kernel, op: Op) -> str:
    if op.has("cluster"):
        return "the barrier of the cluster"
    name = kernel.values.of(op.operands[0], op).number() if op.operands else None
    return "a barrier of the CTA" if name is None else f"barrier {name} of the CTA"


def _threads(kernel: Kernel, op: Op) -> str:
    counts = kernel.per_cta(op)
    exact = "" if kernel.threads(op)[1] else "at most "
    if len(set(counts)) == 1:
        return f"{exact}{counts[0]} thread{'s' * (counts[0] != 1)} of each CTA"
    some = [f"{count} of CTA {rank}" for rank, count in enumerate(counts) if count]
    return f"{exact}{', '.join(some) or 'no thread'}"

"""bar, barrier, barrier.cta and barrier.cluster: PTX ISA, 9.7.13.1 and 9.7.13.3."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.instructions import instruction
from tilewright.emulate.instructions.lanes import active
from tilewright.emulate.registers import PRED, U32
from tilewright.emulate.warp import Wait

if TYPE_CHECKING:
    from tilewright.emulate.decoder import Decoder
    from tilewright.emulate.instructions import Run
    from tilewright.emulate.named_barrier import NamedBarrier
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp


def _named(op: Decoder, *, syncs: bool, reduces: bool = False) -> Run:
    operands = list(op.operands)
    result = operands.pop(0) if reduces else None
    predicate, negated = None, False
    if reduces:
        predicate, negated = op.predicate(operands.pop())
    index = op.source(operands[0], U32)
    threads = op.source(operands[1], U32) if len(operands) > 1 else None
    mode = op.one_of("popc", "and", "or") if reduces else ""
    d_kind = U32 if mode == "popc" else PRED
    d = op.destination(result, d_kind) if result is not None else 0
    place = op.op

    def run(warp: Warp, where: Where) -> Wait | None:
        number = warp.first(index, U32, where)
        if number > 15:
            warp.machine.stop("BAR-01", f"{warp.who}: barrier {number} is beyond 15", place)
        barrier = warp.cta.named[number]
        lanes = active(where)
        count = warp.first(threads, U32, where) if threads is not None else None
        holding = 0
        if predicate is not None:
            held = warp.rows[PRED][predicate] ^ negated
            holding = int(np.count_nonzero(held & lanes))
        generation = barrier.arrive(warp, lanes, count, place, holding)
        if not syncs:
            return None

        def resume() -> None:
            warp.clocks.acquire(where, barrier.opened_at(generation))
            if reduces:
                holding, total = barrier.results_at(generation)
                found = {"popc": holding, "and": holding == total, "or": holding > 0}[mode]
                np.copyto(warp.rows[d_kind][d], found, where=where)

        return Wait(
            barrier,
            lambda: barrier.generation > generation,
            lambda: _story(barrier),
            resume,
        )

    return run


def _story(barrier: NamedBarrier) -> str:
    expected = barrier.expected or barrier.cta.machine.threads
    return f"barrier {barrier.index} of {barrier.cta.who}, {barrier.count} of {expected} threads"


@instruction("bar.sync", "bar.cta.sync", "barrier.sync", "barrier.cta.sync", visible=True)
def bar_sync(op: Decoder) -> Run:
    """Arrive and wait."""
    return _named(op, syncs=True)


@instruction("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive", visible=True)
def bar_arrive(op: Decoder) -> Run:
    """Arrive and go on."""
    return _named(op, syncs=False)


@instruction("bar.red", "bar.cta.red", "barrier.red", "barrier.cta.red", visible=True)
def bar_red(op: Decoder) -> Run:
    """Arrive, wait, and reduce a predicate over all threads."""
    return _named(op, syncs=True, reduces=True)


@instruction("barrier.cluster.arrive", visible=True)
def cluster_arrive(op: Decoder) -> Run:
    """Arrive at the cluster's barrier; .release unless .relaxed."""
    relaxed = op.has("relaxed")
    place = op.op

    def run(warp: Warp, where: Where) -> None:
        warp.cta.cluster.barrier.arrive(warp, active(where).copy(), place, relaxed=relaxed)

    return run


@instruction("barrier.cluster.wait", visible=True)
def cluster_wait(op: Decoder) -> Run:
    """Wait for the generation that this thread arrived in; always acquires."""
    place = op.op

    def run(warp: Warp, where: Where) -> Wait:
        barrier = warp.cta.cluster.barrier
        lanes = active(where).copy()
        own = barrier.own.get(warp)
        if own is None or (own[lanes] < 0).any():
            warp.machine.stop("CLU-05", f"{warp.group.who} waits without having arrived", place)

        def story() -> str:
            missing = barrier.missing()
            shown = ", ".join(missing[:6]) + (" …" if len(missing) > 6 else "")
            return f"barrier.cluster of cluster {barrier.cluster.index}; not there: {shown}"

        return Wait(
            barrier,
            lambda: barrier.is_open(warp, lanes),
            story,
            lambda: barrier.waited(warp, lanes),
        )

    return run

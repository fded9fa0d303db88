"""Rounds of a ring that nothing holds back: the index comes round to a slot again, and no phase was seen to end since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.mbarrier_rings import walks
from tilewright.audit.signals import SIGNALS, WAITS, blocks

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.mbarrier_rings import Walk
    from tilewright.audit.paths import Edge
    from tilewright.audit.rules import Outcome

COPIES = ("cp.async.bulk",)


def unheld_rounds(kernel: Kernel) -> Iterator[Outcome]:
    """MBAR-12: arrivals or copies on slot after slot of a ring that wraps, with no wait that succeeds between."""
    held = {
        op.index
        for op in kernel.flow.ops
        if (blocks(op) and not op.is_a(*WAITS)) or op.has("volatile")
        or op.is_a("barrier.cluster.wait", "cp.async.wait_group", "cp.async.wait_all")
    }  # fmt: skip
    said = set()
    for walk in kernel.view(walks):
        ring = kernel.ring(walk.op)
        if ring is None or ring in said or not walk.op.is_a(*SIGNALS, *COPIES):
            continue
        if _comes_round(kernel, walk, held):
            said.add(ring)
            yield kernel.finding(
                "MBAR-12",
                f"{walk.op.entry} on slot after slot of {ring.name} in a loop that goes back to slot 0, and no wait between: the slot's last phase may not be over, its data not yet read",
                walk.op, walk.wrap, "the index goes back to 0 here", "error",
            )  # fmt: skip


def _comes_round(kernel: Kernel, walk: Walk, held: set[int]) -> bool:
    """Whether a thread surely comes from the place to itself, the wrap passed, with no wait that has succeeded."""
    op, flow = walk.op, kernel.flow
    loop = next(
        ((head, inside) for head, inside in flow.loops(op.index) if walk.wrap.index in inside), None
    )
    if loop is None:
        return False
    head, inside = loop
    back: set[Edge] = {
        (i, held_so)
        for i in inside
        if flow.ops[i].guard and flow.ops[i].node.opcode.root == "bra"
        for held_so, side in zip((True, False), flow.sides(flow.ops[i]), strict=True)
        if side == head
    }
    turns = back | set(kernel.paths.must(op, ()))
    outside = {i for i in range(len(flow.ops)) if i not in inside}
    return any(
        kernel.paths.find(
            crowd, (op.index,), (op.index,), avoid=held | outside, closed=kernel.paths.done,
            certain=True, open_=turns,
        )
        for crowd in kernel.paths.crowds_of(op)
    )  # fmt: skip

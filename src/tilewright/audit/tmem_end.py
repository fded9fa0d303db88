"""The end of tensor memory: whoever frees it has met all who used it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.signals import CTA_BARRIERS, WAITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op

ACROSS = ("barrier.cluster.wait", *WAITS)
"""What may tell of another CTA."""


def _shared_atomic(op: Op) -> bool:
    return op.node.opcode.root == "atom" and not op.has("global")


def freed_unmet(kernel: Kernel) -> Iterator[Outcome]:
    """Warps that read or write tensor memory, and another that frees it with no meeting after their access."""
    flow = kernel.flow
    if any(op.node.opcode.root == "call" or _shared_atomic(op) for op in flow.ops):
        return
    for dealloc in kernel.ops("tcgen05.dealloc"):
        mine = kernel.threads(dealloc)[0]
        pair = dealloc.has("cta_group::2") and kernel.shape.ranks > 1
        meetings = kernel.ops(*(ACROSS if pair else (*ACROSS, *CTA_BARRIERS)))
        for access in kernel.ops("tcgen05.ld", "tcgen05.st"):
            others = kernel.threads(access)[0] & ~mine
            if not others.any() or not kernel.threads(dealloc)[1]:
                continue
            behind = flow.reachable((access.index,), kernel.elsewhere(access))
            signals = {
                kernel.ring(op) for op in kernel.ops("mbarrier.arrive") if op.index in behind
            }
            met = any(
                flow.path((op.index,), (dealloc.index,), kernel.elsewhere(dealloc))
                and kernel.together(op, dealloc)
                and (
                    kernel.ring(op) in signals if op.is_a("mbarrier") else op.index in behind
                )
                for op in meetings
            )  # fmt: skip
            if not met:
                yield kernel.finding(
                    "TC-07",
                    "tensor memory is freed, and the warp that frees it comes to no barrier after the accesses of other"
                    " warps: they may still use it",
                    dealloc, access, "accessed here by other warps",
                )  # fmt: skip
                return

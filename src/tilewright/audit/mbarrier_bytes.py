"""Bytes on a barrier as far as instructions alone tell: nobody expects what comes, nothing brings what is expected.

What a tensor copy brings stands in its tensor map (`tma_bytes.py`); what st.async and red.async bring stands in their
type, so that the same thread's expectation can be held against it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.signals import (
    ARRIVES,
    WAITS,
    access_bytes,
    all_understood,
    in_one_go,
    signalled_by,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op

STORES = ("st.async", "red.async")
BRINGS = ("cp.async.bulk", "cp.reduce.async.bulk", *STORES, "clusterlaunchcontrol.try_cancel")
EXPECTS = (*ARRIVES, "mbarrier.expect_tx")


def one_sided(kernel: Kernel) -> Iterator[Outcome]:
    """TMA-03: a barrier that bytes come to and nobody expects any on, or the other way round."""
    if not all_understood(kernel):
        return
    for ring in kernel.rings:
        signals = signalled_by(kernel, ring)
        brings = [op for op in signals if op.is_a(*BRINGS)]
        expects = [op for op in signals if "tx_bytes" in op.roles and op.is_a(*EXPECTS)]
        others = [op for op in signals if op.is_a("mbarrier.complete_tx")]
        amounts = [_number(kernel, op, "tx_bytes") for op in expects]
        if not expects and any(op.is_a("clusterlaunchcontrol") for op in brings):
            continue  # CLC-04's
        if brings and all(amount == 0 for amount in amounts):
            at = (expects or [op for op in signals if op.is_a(*ARRIVES)] or brings)[0]
            yield kernel.finding(
                "TMA-03",
                f"{brings[0].entry} brings bytes to {ring.name}, and nothing expects any on it: the phase completes"
                " before they are there",
                at, brings[0], "brings them",
            )  # fmt: skip
        elif (
            not brings and not others and amounts and all(amounts) and kernel.of_ring(ring, *WAITS)
        ):
            yield kernel.finding(
                "TMA-03",
                f"{amounts[0]} bytes are expected on {ring.name}, and no instruction brings any to it: the phase never"
                " completes",
                expects[0],
            )  # fmt: skip


def _number(kernel: Kernel, op: Op, role: str) -> int | None:
    value = kernel.value(op, role)
    return None if value is None else value.number()


def stored(kernel: Kernel, ring: Ring) -> bool:
    """Whether nothing but st.async and red.async brings a barrier its bytes, and each is announced by its own thread.

    Then `stores_add_up` decides.
    """
    signals = signalled_by(kernel, ring)
    brings = [op for op in signals if op.is_a(*BRINGS, "mbarrier.complete_tx")]
    expects = [op for op in signals if "tx_bytes" in op.roles and not op.is_a(*BRINGS)]
    return bool(brings) and all(
        op.is_a(*STORES) and any(in_one_go(kernel, expect, op) for expect in expects)
        for op in brings
    )


def stores_add_up(kernel: Kernel) -> Iterator[Outcome]:
    """TMA-03: a thread announces other bytes than its st.async bring to the same barrier before it waits again."""
    for ring in kernel.rings:
        if not stored(kernel, ring):
            continue
        signals = signalled_by(kernel, ring)
        for expect in (op for op in signals if "tx_bytes" in op.roles and not op.is_a(*STORES)):
            stores = [op for op in signals if op.is_a(*STORES) and in_one_go(kernel, expect, op)]
            expected = _number(kernel, expect, "tx_bytes")
            brought = sum(map(access_bytes, stores))
            if not stores or expected in {None, brought} or _optional(kernel, expect, stores):
                continue
            then = (
                "the phase never completes" if (expected or 0) > brought else "the rest underflows"
            )
            yield kernel.finding(
                "TMA-03",
                f"{expected} bytes are announced on {ring.name}, and the stores behind bring {brought}: {then}",
                expect, stores[-1], "brings them",
            )  # fmt: skip


def _optional(kernel: Kernel, expect: Op, stores: list[Op]) -> bool:
    """Whether a thread that announces may leave out a store."""
    ends = {op.index for op in kernel.ops(*WAITS)} | {op.index for op in kernel.flow.exits}
    return any(kernel.flow.path((expect.index,), ends, {op.index}) for op in stores)

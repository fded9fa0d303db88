"""The first wait of whoever takes what others put in: parity 1 passes a fresh barrier, and nothing is there yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.first import first_parity
from tilewright.audit.signals import SIGNALS, WAITS, signalled_by

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.audit.rules import Outcome
    from tilewright.ptx.flow import Op

FILLS = ("cp.async.bulk", "st.async", "red.async", "clusterlaunchcontrol.try_cancel")
READS = ("wgmma.mma_async", "tcgen05.mma", "tcgen05.ld", "ld", "ldmatrix")
PUTS = ("tcgen05.st", "tcgen05.mma", "tcgen05.cp", "wgmma.mma_async", "st", "stmatrix")


def starts_behind(kernel: Kernel, ring: Ring) -> Iterator[Outcome]:
    """MBAR-07: the readers of a ring that others fill start with the parity that a fresh barrier passes."""
    signals = signalled_by(kernel, ring)
    if not signals or kernel.of_ring(ring, "mbarrier.inval"):
        return
    filled = [op for op in signals if op.is_a(*FILLS)]
    commits = [op for op in signals if op.is_a("tcgen05.commit")]
    if not filled and len(commits) != len(signals):
        return
    waits = kernel.of_ring(ring, *WAITS)
    for wait in waits:
        if first_parity(kernel, wait) != 1 or _signals_too(kernel, wait, signals):
            continue
        if any(first_parity(kernel, each) != 1 for each in waits if kernel.together(each, wait)):
            continue
        reader = _reads_there(kernel, wait, filled) or _reader(kernel, wait, committed=not filled)
        if reader is None:
            continue
        yield kernel.finding(
            "MBAR-07",
            f"first wait on {ring.name} is for parity 1, which a fresh barrier passes at once: what others put there in its first phase is not waited for",
            wait, reader, "takes it here",
        )  # fmt: skip
        return


def _signals_too(kernel: Kernel, wait: Op, signals: list[Op]) -> bool:
    """Whether threads that wait also fill or arrive."""
    return any(kernel.together(op, wait) for op in signals if op.is_a(*SIGNALS, *FILLS))


def _reads_there(kernel: Kernel, wait: Op, filled: list[Op]) -> Op | None:
    """A load behind the wait, of the very place that is filled."""
    written = [
        kernel.value(op, role) for op in filled for role in ("dst", "response") if role in op.roles
    ]
    places = [value for value in written if value is not None and value.base]
    behind = kernel.flow.reachable((wait.index,), kernel.elsewhere(wait))
    for op in kernel.ops("ld"):
        value = (
            kernel.value(op, "src") if op.index in behind and kernel.together(op, wait) else None
        )
        if value is not None and any(value.same_place(place) for place in places):
            return op
    return None


def _reader(kernel: Kernel, wait: Op, *, committed: bool) -> Op | None:
    """What the waiting threads read behind the wait, if they only read."""
    mine = [op for op in kernel.flow.ops if op.is_a(*FILLS, *READS, *PUTS)]
    mine = [op for op in mine if not op.has("param") and kernel.together(op, wait)]
    wanted = ("tcgen05.ld",) if committed else READS
    if any(op.is_a(*FILLS) and "mbar" in op.roles for op in mine):
        return None
    if committed and any(op.is_a("tcgen05.st", "tcgen05.mma", "tcgen05.cp") for op in mine):
        return None
    behind = kernel.flow.reachable((wait.index,))
    return next(
        (
            op
            for op in mine
            if op.index in behind
            and op.is_a(*wanted)
            and (op.entry != "ld" or any("shared" in word for word in op.node.opcode.modifiers))
        ),
        None,
    )

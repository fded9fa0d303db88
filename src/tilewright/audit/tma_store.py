"""Rules of bulk copies out of shared memory: the fence of the writers, the barrier, the group, the reuse.

Writes and copies are matched by address: only where a thread writes the very first bytes that a copy reads, or its
bytes are read from there again, is anything said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import WAITS, opposed
from tilewright.audit.flowing import names_in
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.tma_groups import COMMIT, WAIT, Place, Walk
from tilewright.audit.trace import LANES_DIFFER, WARPS_DIFFER, may_split, sources
from tilewright.ptx.flow import constant

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.nodes import Operand
    from tilewright.ptx.values import Value

COPIES = ("cp.async.bulk", "cp.reduce.async.bulk")
SYNCS = ("bar", "barrier")
READ_BYTES = 16
"""The least that a bulk copy reads."""
GROUPS_MAX = 8
"""Threads of a CTA that copy tiles of their own, one for each group of warps."""
WARP = 32
CROWDS_MAX = 6


def _stores(kernel: Kernel) -> list[Op]:
    return [op for op in kernel.ops(*COPIES) if op.has("bulk_group") and op.has("shared::cta")]


def _writers(kernel: Kernel, copy: Op) -> list[Op]:
    """Stores to the first bytes that a copy reads."""
    value = kernel.value(copy, "src")
    if value is None or not value.base.startswith("shared:") or value.cta is not None:
        return []
    return [
        op
        for op in kernel.ops("st", "stmatrix")
        if op.has("shared") or op.has("shared::cta")
        if _hits(kernel, op, _written(kernel, op), copy, value)
    ]


def _written(kernel: Kernel, write: Op) -> Value | None:
    if write.node.opcode.root == "stmatrix":
        return kernel.values.of(write.operands[0], write)
    return kernel.value(write, "dst")


def _rows(write: Op, threads: np.ndarray) -> np.ndarray:
    """Threads whose address an instruction uses: of stmatrix the first 8 lanes for each matrix."""
    if write.node.opcode.root != "stmatrix":
        return threads
    matrices = next((n for n in (1, 2, 4) if write.has(f"x{n}")), 1)
    lanes = np.broadcast_to(np.arange(threads.shape[1]) % WARP, threads.shape)
    rows: np.ndarray = np.logical_and(threads, lanes < 8 * matrices)
    return rows


def _hits(kernel: Kernel, write: Op, to: Value | None, copy: Op, source: Value) -> bool:
    if to is None or to.base != source.base or to.unknown != source.unknown or to.cta is not None:
        return False
    threads, reads = _rows(write, kernel.threads(write)[0]), kernel.threads(copy)[0]
    to_full = np.broadcast_to(to.constant, threads.shape)
    from_full = np.broadcast_to(source.constant, reads.shape)
    for rank in range(len(threads)):
        starts = np.unique(from_full[rank][reads[rank]])
        if starts.size <= GROUPS_MAX:
            off = to_full[rank][threads[rank]][:, None] - starts[None, :]
            if np.any((off >= 0) & (off < READ_BYTES)):
                return True
    return False


def _calls(kernel: Kernel) -> bool:
    return any(op.node.opcode.root == "call" for op in kernel.flow.ops)


@rule(
    "TMA-15", "error", section="9.7.9.27.1.2",
    help="write, fence.proxy.async, bar.sync, copy, commit_group, and wait_group.read before the reuse",
)  # fmt: skip
def store_protocol(kernel: Kernel) -> Iterator[Outcome]:
    """A tile is fenced and synchronised before a bulk store reads it, and its group waited for before the reuse."""
    copies = _stores(kernel)
    if not copies or _calls(kernel):
        return
    for copy in copies:
        yield from _group(kernel, copy)
        yield from _repeated(kernel, copy)
        writers = [write for write in _writers(kernel, copy) if not opposed(kernel, write, copy)]
        for write in writers:
            broken = list(_handed_over(kernel, write, copy))
            if broken:
                yield from broken
                break
        yield from _reused(kernel, writers, copy)
    yield from _left_open(kernel)


def _left_open(kernel: Kernel) -> Iterator[Outcome]:
    """A wait in a loop that leaves groups of stores in flight: whether another buffer is written next."""
    commits = kernel.indices(kernel.ops("cp.async.bulk.commit_group"))
    for wait in kernel.ops("cp.async.bulk.wait_group"):
        left = constant(wait.operands[0]) if wait.operands else 0
        again = any(kernel.flow.path((i,), (i,)) for i in commits)
        if left and again and kernel.flow.path(commits, (wait.index,)):
            yield kernel.undecided(
                "TMA-15",
                f"{left} groups of stores are in flight behind this wait: whether none of them reads what is written"
                " next",
                wait,
            )
            return


def _handed_over(kernel: Kernel, write: Op, copy: Op) -> Iterator[Outcome]:
    fences = kernel.ops("fence.proxy.async", "fence.proxy.async::generic")
    if not kernel.flow.path((write.index,), (copy.index,)):
        return
    inside = kernel.reach.between(write, copy)
    unfenced = not inside & kernel.indices(fences)
    if unfenced:
        yield kernel.finding(
            "TMA-15",
            "bulk store of bytes that were written with no fence.proxy.async between: the async proxy may"
            " read what was there before",
            copy, write, "written here",
        )  # fmt: skip
    if int(kernel.threads(write)[0].sum(axis=1).max(initial=0)) < 2:
        return  # the thread that copies alone writes
    syncs = [*kernel.ops(*SYNCS), *kernel.ops(*WAITS)]
    if not inside & kernel.indices(syncs):
        yield kernel.finding(
            "TMA-15",
            "bulk store of bytes that other threads write, with no barrier between: it may read before"
            " they are written",
            copy, write, "written here",
        )  # fmt: skip
    elif not unfenced and _fenced_late(kernel, write, copy, inside, fences, syncs):
        yield kernel.finding(
            "TMA-15",
            "fence.proxy.async stands behind the barrier that hands the tile over: the writers' bytes are"
            " handed over before they are ordered for the async proxy",
            copy, write, "written here", severity="warning",
        )  # fmt: skip


def _fenced_late(
    kernel: Kernel, write: Op, copy: Op, inside: set[int], fences: list[Op], syncs: list[Op]
) -> bool:
    """Whether no fence between the two comes before a barrier between them."""
    ends = {write.index, copy.index}
    goals = kernel.indices(syncs) & inside
    starts = kernel.indices(fences) & inside
    return not any(kernel.flow.path((start,), goals, ends) for start in starts)


def _repeated(kernel: Kernel, copy: Op) -> Iterator[Outcome]:
    """Threads of a CTA that all store the same tile: by several warps, or a reduction by several lanes."""
    value, tensor = kernel.value(copy, "src"), copy.role("tensor")
    if value is None or not value.base or may_split(kernel, copy, LANES_DIFFER):
        return
    if not kernel.shape.block_known and kernel.directive(".maxntid") is None:
        return
    adds = copy.is_a("cp.reduce.async.bulk")
    mask = kernel.threads(copy)[0]
    places = np.broadcast_to(value.constant, mask.shape)
    for rank in range(len(mask)):
        starts, times = np.unique(places[rank][mask[rank]], return_counts=True)
        most = int(times.max(initial=0))
        if most <= (1 if adds else WARP) or starts.size > GROUPS_MAX:
            continue
        lanes = max(int(mask[rank][i : i + WARP].sum()) for i in range(0, mask.shape[1], WARP))
        if _same(kernel, tensor, copy, LANES_DIFFER if adds and lanes > 1 else WARPS_DIFFER):
            yield kernel.finding(
                "TMA-15",
                f"{most} threads of a CTA issue this bulk store of one tile: "
                + ("it is added as often" if adds else "each writes it again; one thread should"),
                copy, severity="error" if adds else "warning",
            )  # fmt: skip
            return


def _same(kernel: Kernel, operand: Operand | None, op: Op, differ: frozenset[str]) -> bool:
    """Whether nothing in the coordinates tells threads apart: neither what differs between them nor what they load."""
    return operand is not None and not any(
        sources(kernel, name, op.index) & differ for name in names_in(operand)
    )


def _reused(kernel: Kernel, writers: list[Op], copy: Op) -> Iterator[Outcome]:
    """The reads are done, and all threads know, where the tile is written again or the CTA ends."""
    source, value = copy.role("src"), kernel.value(copy, "src")
    if source is None or value is None or not kernel.ops(WAIT):
        return
    for crowd in kernel.paths.crowds_of(copy)[:CROWDS_MAX]:
        mine = [
            Place(write, write.operands[0], to)
            for write in writers
            if crowd.may(kernel.threads(write)[0]) and (to := _written(kernel, write)) is not None
        ]
        walk = Walk(kernel, crowd, Place(copy, source, value), mine)
        goal = walk.never_done()
        if goal is not None and goal >= 0:
            yield kernel.finding(
                "TMA-15",
                "tile written again with no cp.async.bulk.wait_group after the bulk store that is sure to wait for it:"
                " the store may read the new bytes",
                kernel.flow.ops[goal], copy, "read from here on",
            )  # fmt: skip
            return
        late = walk.never_synced()
        if (
            late is not None
            and int(kernel.threads(kernel.flow.ops[late])[0].sum(axis=1).max()) > WARP
        ):
            yield kernel.finding(
                "TMA-15",
                "tile written again with no barrier behind the wait of the thread that copied it: the other"
                " threads may write while the store still reads",
                kernel.flow.ops[late], copy, "read from here on",
            )  # fmt: skip
            return
        if goal is not None:
            yield kernel.finding(
                "TMA-15",
                "the last bulk store is waited for on no way to the exit: shared memory may go before it"
                " was read",
                copy, severity="warning",
            )  # fmt: skip
            return


def _group(kernel: Kernel, copy: Op) -> Iterator[Outcome]:
    """The copy is committed to a group, and some wait for groups follows."""
    for entry, what in ((COMMIT, "committed to a group"), (WAIT, "waited for")):
        after = [op.index for op in kernel.ops(entry) if kernel.together(op, copy)]
        if not kernel.flow.path((copy.index,), after):
            yield kernel.finding(
                "TMA-15",
                f"bulk store that is never {what}: shared memory may go before it was read",
                copy,
            )
            return

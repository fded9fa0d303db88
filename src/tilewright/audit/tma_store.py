"""Rules of bulk copies out of shared memory: the fence of the writers, the barrier, the group, the reuse.

Writes and copies are matched by address: only where a thread writes the very first bytes that a copy reads, or its
bytes are read from there again, is anything said.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import WAITS, none_between, opposed
from tilewright.audit.rules import Outcome, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

COPIES = ("cp.async.bulk", "cp.reduce.async.bulk")
COMMIT, WAIT = "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"
SYNCS = ("bar", "barrier")
READ_BYTES = 16
"""The least that a bulk copy reads."""
GROUPS_MAX = 8
"""Threads of a CTA that copy tiles of their own, one for each group of warps."""
WARP = 32


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
    return np.logical_and(threads, lanes < 8 * matrices)


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
        for write in _writers(kernel, copy):
            if opposed(kernel, write, copy):
                continue
            broken = [*_handed_over(kernel, write, copy), *_reused(kernel, write, copy)]
            if broken:
                yield from broken
                break


def _handed_over(kernel: Kernel, write: Op, copy: Op) -> Iterator[Outcome]:
    if none_between(
        kernel, write, copy, kernel.ops("fence.proxy.async", "fence.proxy.async::generic")
    ):
        yield kernel.finding(
            "TMA-15",
            "bulk store of bytes that were written with no fence.proxy.async between: the async proxy may"
            " read what was there before",
            copy, write, "written here",
        )  # fmt: skip
    others = kernel.threads(write)[0] & ~kernel.threads(copy)[0]
    syncs = [*kernel.ops(*SYNCS), *kernel.ops(*WAITS)]
    if np.any(others) and none_between(kernel, write, copy, syncs):
        yield kernel.finding(
            "TMA-15",
            "bulk store of bytes that other threads write, with no barrier between: it may read before"
            " they are written",
            copy, write, "written here",
        )  # fmt: skip


def _reused(kernel: Kernel, write: Op, copy: Op) -> Iterator[Outcome]:
    if none_between(kernel, copy, write, kernel.ops(WAIT)):
        yield kernel.finding(
            "TMA-15",
            "tile written again with no cp.async.bulk.wait_group after the bulk store that reads it: the"
            " store may read the new bytes",
            write, copy, "read from here on",
        )  # fmt: skip


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

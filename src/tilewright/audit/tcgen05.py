"""Rules of tcgen05 as a whole: one CTA group, one issuing thread, an even cluster, a target that has it.

tmem.py holds allocation and access, mma.py descriptors, commit.py what completion releases, tensor_order.py
the fences and waits between tensor memory accesses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.trace import CTAS_DIFFER, LANES_DIFFER, WARPS_DIFFER, may_split
from tilewright.ptx.nodes import Vector
from tilewright.ptx.opcodes import unsupported_because

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.finding import Finding
    from tilewright.ptx.flow import Op

ISSUED = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift", "tcgen05.commit")
"""What one thread issues."""

WARP = 32


def cta_group(op: Op) -> int | None:
    """1 or 2, as written; None on instructions without it."""
    return next((n for n in (1, 2) if op.has(f"cta_group::{n}")), None)


def of_pair(kernel: Kernel, *entries: str) -> list[Op]:
    """Instructions of these entries that concern a CTA pair."""
    return [op for op in kernel.ops(*entries) if cta_group(op) == 2]


@rule(
    "TC-04", "error", section="9.7.16.7.1",
    help="write one .cta_group value on every tcgen05 instruction of the kernel",
)  # fmt: skip
def one_cta_group(kernel: Kernel) -> Iterator[Outcome]:
    """All tcgen05 instructions of a kernel name the same .cta_group."""
    grouped = [op for op in kernel.ops("tcgen05") if cta_group(op) is not None]
    if not grouped:
        return
    first = grouped[0]
    other = [op for op in grouped if cta_group(op) != cta_group(first)]
    if other:
        yield kernel.finding(
            "TC-04",
            f"{other[0].entry} with .cta_group::{cta_group(other[0])} in a kernel that uses"
            f" .cta_group::{cta_group(first)} ({len(other)} of {len(grouped)} instructions differ):"
            " one value must hold for all of them",
            other[0], first, f"uses .cta_group::{cta_group(first)}",
        )  # fmt: skip


# --- who issues -----------------------------------------------------------------------------------


@rule(
    "TC-09", "error", section="9.7.16.5",
    help="issue from one elected thread, and with .cta_group::2 of the even CTA of the pair",
)  # fmt: skip
def one_thread_issues(kernel: Kernel) -> Iterator[Outcome]:
    """One thread issues mma, cp, shift and commit; with .cta_group::2 one thread of the CTA pair."""
    groups: dict[tuple[str, bytes], list[Op]] = {}
    for op in kernel.ops(*ISSUED):
        kind = ".".join(op.entry.split(".")[:2])
        groups.setdefault((kind, kernel.threads(op)[0].tobytes()), []).append(op)
    for (kind, _), ops in groups.items():
        yield from _issuers(kernel, kind, ops)


def _issuers(kernel: Kernel, kind: str, ops: list[Op]) -> Iterator[Outcome]:
    op = ops[0]
    mask = kernel.threads(op)[0]
    also = f" (and {len(ops) - 1} more like it)" if len(ops) > 1 else ""
    lanes = _most_lanes(mask)
    if lanes > 1:
        if not _block_said(kernel):
            yield kernel.undecided("TC-09", "the block is not known: it may be one thread", op)
        elif may_split(kernel, op, LANES_DIFFER):
            yield kernel.undecided("TC-09", "which lanes reach it depends on data", op)
        else:
            yield kernel.finding(
                "TC-09",
                f"{kind} is issued by {lanes} lanes of a warp{also}: each of them starts the"
                " operation again; one thread must issue it",
                op,
            )
        return
    warps = max(kernel.per_cta(op), default=0)
    if warps > 1 and kernel.shape.block_known:
        if may_split(kernel, op, WARPS_DIFFER):
            yield kernel.undecided("TC-09", "which warps reach it depends on data", op)
        else:
            yield kernel.finding(
                "TC-09",
                f"{kind} is issued by one lane of each of {warps} warps{also}: each of them"
                " starts the operation again; one thread must issue it",
                op,
            )
    if cta_group(op) == 2 and kernel.shape.cluster_known:
        yield from _issuing_ctas(kernel, kind, op, also)


def _block_said(kernel: Kernel) -> bool:
    """Whether the kernel or the caller says anything of the block; a larger one is launched then."""
    return kernel.shape.block_known or kernel.directive(".maxntid") is not None


def _most_lanes(mask: np.ndarray) -> int:
    ranks, threads = mask.shape
    if threads % WARP:
        mask = np.pad(mask, ((0, 0), (0, WARP - threads % WARP)))
    return int(mask.reshape(ranks, -1, WARP).sum(axis=2).max(initial=0))


def _issuing_ctas(kernel: Kernel, kind: str, op: Op, also: str) -> Iterator[Outcome]:
    ranks = set(kernel.ranks(op))
    both = sorted(rank for rank in ranks if rank ^ 1 in ranks)
    if both and may_split(kernel, op, CTAS_DIFFER):
        yield kernel.undecided("TC-09", "which CTA of the pair reaches it depends on data", op)
    elif both:
        yield kernel.finding(
            "TC-09",
            f"{kind} with .cta_group::2 is issued by both CTAs of a pair, ranks {both[0]} and"
            f" {both[0] ^ 1}{also}: the pair's operation starts twice; one thread of the pair must"
            " issue it",
            op,
        )
    elif ranks and all(rank % 2 for rank in ranks):
        yield kernel.finding(
            "TC-09",
            f"{kind} with .cta_group::2 is issued by the odd CTA of the pair (ranks"
            f" {sorted(ranks)}){also}: allowed, but barriers and addresses are by convention the"
            " even CTA's",
            op, severity="warning",
        )  # fmt: skip


# --- cluster and target ---------------------------------------------------------------------------


@rule(
    "TC-19", "error", section="9.7.16.5",
    help="declare .reqnctapercluster with an even number of CTAs, or say which cluster is launched",
)  # fmt: skip
def pairs_in_the_cluster(kernel: Kernel) -> Iterator[Outcome]:
    """.cta_group::2 needs a cluster of an even number of CTAs: a pair is two ranks that differ in bit 0."""
    paired = of_pair(kernel, "tcgen05")
    if not paired:
        return
    shape = kernel.shape
    if not shape.cluster_known:
        yield kernel.finding(
            "TC-19",
            f"{paired[0].entry} with .cta_group::2 in a kernel that declares no cluster: without a"
            " launch attribute the cluster is one CTA and its peer does not exist",
            paired[0], severity="warning",
        )  # fmt: skip
    elif shape.ranks % 2:
        yield kernel.finding(
            "TC-19",
            f"{paired[0].entry} with .cta_group::2 in a cluster of {shape.ranks}"
            f" {'CTA' if shape.ranks == 1 else 'CTAs'}: the peer of rank {shape.ranks - 1} does not"
            " exist; the number must be even",
            paired[0],
        )


@rule(
    "TC-21", "error", section="9.7.16.2.1",
    help="compile for sm_100a, sm_103a or sm_110a, or their f targets where the instruction is in them",
)  # fmt: skip
def target_has_it(kernel: Kernel) -> Iterator[Outcome]:
    """The module's target and PTX version have the instruction, and its lane mask has 4 or 8 words."""
    seen: set[str] = set()
    for op in kernel.ops("tcgen05"):
        if op.facts is None:
            continue
        why = unsupported_because(op.facts, kernel.module.version, _architecture(kernel))
        if why is not None and why not in seen:
            seen.add(why)
            yield kernel.finding("TC-21", why, op)
        yield from _lane_mask(kernel, op)


def _architecture(kernel: Kernel) -> str:
    return next(iter(kernel.module.target), "")


def _lane_mask(kernel: Kernel, op: Op) -> Iterator[Finding]:
    mask = op.role("disable_lane")
    group = cta_group(op)
    if not isinstance(mask, Vector) or group is None:
        return
    words = len(mask.elements)
    if words != 4 * group:
        yield kernel.finding(
            "TC-21",
            f"the disable-output-lane vector has {words} words; .cta_group::{group} takes"
            f" {4 * group}, one bit for each lane",
            op,
        )

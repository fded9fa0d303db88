"""Rules of the cluster family: peers that run and stay, the cluster's barrier, whose memory an address names.

Copies between CTAs are in `cluster_copy.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import certain
from tilewright.audit.first import first_parity
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import (
    ARRIVES,
    WAITS,
    access_bytes,
    cluster_fences,
    leaves,
    multicasts,
    remote_ops,
    signalled_by,
    where,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op

ARRIVE, WAIT = "barrier.cluster.arrive", "barrier.cluster.wait"
SEGMENT_BYTES = 32


def _alone(kernel: Kernel) -> bool:
    return kernel.shape.cluster_known and kernel.shape.ranks == 1


# --- peers run, peers stay ------------------------------------------------------------------------


@rule(
    "CLU-01", "error", section="2.2.2",
    help="barrier.cluster.arrive and .wait in every CTA before the first access to a peer",
)  # fmt: skip
def peer_is_running(kernel: Kernel) -> Iterator[Outcome]:
    """Another CTA's shared memory may be touched only once that CTA is known to run."""
    if _alone(kernel):
        return
    remote = [op for op in remote_ops(kernel) if _surely_out(kernel, op)]
    told = kernel.indices(kernel.ops(WAIT)) | _told_by_a_peer(kernel)
    for op in remote:
        early = kernel.reach.threads_to((-1,), op, told)
        if not early:
            continue
        perhaps = told | _perhaps_told(kernel)
        if not kernel.reach.threads_to((-1,), op, perhaps):
            yield kernel.undecided(
                "CLU-01", "whether what comes before tells that the peer runs", op
            )
            return
        yield kernel.finding(
            "CLU-01",
            f"{op.node.opcode.root} touches another CTA before any barrier.cluster.wait: that CTA may not have started",
            op,
        )
        return


def _surely_out(kernel: Kernel, op: Op) -> bool:
    if multicasts(kernel, op) == "other":
        return True
    return any(
        bool(certain(kernel, op, away))
        for role in ("dst", "src", "mbar")
        if (away := leaves(kernel, op, role)) is not None
    )


def _told_by_a_peer(kernel: Kernel) -> set[int]:
    """Waits for a barrier that other CTAs signal, unless a fresh barrier passes them at once."""
    found: set[int] = set()
    for ring in kernel.rings:
        signals = signalled_by(kernel, ring)
        if any(
            where(kernel, op, "mbar") != "own" or multicasts(kernel, op) != "own" for op in signals
        ):
            found |= {
                op.index for op in kernel.of_ring(ring, *WAITS) if first_parity(kernel, op) != 1
            }
    return found


def _perhaps_told(kernel: Kernel) -> set[int]:
    return {
        op.index
        for op in kernel.flow.ops
        if op.node.opcode.root in {"atom", "call"}
        or (op.node.opcode.root == "ld" and (op.has("acquire") or op.has("volatile")))
        or (op.node.opcode.root == "mbarrier" and op.is_a(*WAITS) and kernel.ring(op) is None)
    }


@rule(
    "CLU-02", "error", section="2.2.2",
    help="barrier.cluster.arrive and .wait after the last remote access, before any CTA exits",
)  # fmt: skip
def peer_stays_alive(kernel: Kernel) -> Iterator[Outcome]:
    """A CTA stays until all accesses of others to its shared memory are complete."""
    if _alone(kernel):
        return
    waits = kernel.indices(kernel.ops(WAIT))
    handshakes = [
        op
        for op in kernel.ops(*ARRIVES)
        if where(kernel, op, "mbar") != "own" and not op.has("relaxed")
    ]
    for op in reversed(kernel.ops("st", "ld", "red", "atom")):
        role = "src" if op.node.opcode.root == "ld" else "dst"
        if (
            role not in op.roles
            or op.is_a("st.async", "red.async")
            or not _some_out(kernel, op, role)
        ):
            continue
        if kernel.flow.path((op.index,), waits):
            continue
        after = [each for each in handshakes if kernel.flow.path((op.index,), (each.index,))]
        if after:
            yield kernel.undecided(
                "CLU-02", "whether the owner waits for the arrive that follows before it exits", op
            )
        else:
            yield kernel.finding(
                "CLU-02",
                f"{op.node.opcode.root} touches another CTA and no barrier.cluster.wait follows: that CTA may have exited",
                op, kernel.flow.exits[-1], "may exit here meanwhile",
            )  # fmt: skip
        return


def _some_out(kernel: Kernel, op: Op, role: str) -> bool:
    """Whether some thread that executes an instruction surely touches another CTA by it."""
    value, side = kernel.value(op, role), where(kernel, op, role)
    if side != "maybe" or value is None or value.cta is None or not value.cta.known:
        return side == "other"
    if kernel.reach.open_conditions(op) or not kernel.shape.cluster_known:
        return False
    threads = kernel.threads(op)[0]
    own = np.arange(kernel.shape.ranks)[:, None]
    return bool(np.any(np.broadcast_to(value.cta.constant != own, threads.shape) & threads))


# --- the cluster's barrier ------------------------------------------------------------------------


@rule(
    "CLU-03", "error", section="9.7.13.3",
    help="barrier.cluster.arrive.release, or fence.acq_rel.cluster before the relaxed arrive",
)  # fmt: skip
def relaxed_publishes_nothing(kernel: Kernel) -> Iterator[Outcome]:
    """barrier.cluster.arrive.relaxed orders no earlier write before the peers' later reads."""
    relaxed = [op for op in kernel.ops(ARRIVE) if op.has("relaxed")]
    released = kernel.indices(op for op in kernel.ops(ARRIVE) if not op.has("relaxed"))
    for arrive in relaxed:
        stores = [
            op
            for op in kernel.ops("st", "red", "atom")
            if "dst" in op.roles
            and not op.is_a("st.async", "red.async")
            and kernel.flow.path((op.index,), (arrive.index,), cluster_fences(kernel) | released)
        ]
        for store in stores:
            load = _read_by_a_peer(kernel, store, arrive, released)
            if load is not None:
                yield kernel.finding(
                    "CLU-03",
                    "barrier.cluster.arrive.relaxed publishes nothing: the peer's read after the barrier races with the store before it",
                    arrive, load, "read here by another CTA than the one that stored",
                )  # fmt: skip
                break


def _read_by_a_peer(kernel: Kernel, store: Op, arrive: Op, released: set[int]) -> Op | None:
    """A load behind the barrier of what another CTA stored before it."""
    put, side = kernel.value(store, "dst"), where(kernel, store, "dst")
    if put is None or not put.base.startswith("shared") or side == "maybe":
        return None
    for load in kernel.ops("ld"):
        got = kernel.value(load, "src") if "src" in load.roles else None
        if got is None or got.base != put.base or put.unknown or got.unknown:
            continue
        if {side, where(kernel, load, "src")} != {"own", "other"} or not _overlap(
            kernel, store, load
        ):
            continue
        if kernel.flow.path((arrive.index,), (load.index,), released):
            return load
    return None


def _overlap(kernel: Kernel, store: Op, load: Op) -> bool:
    put, got = kernel.value(store, "dst"), kernel.value(load, "src")
    if put is None or got is None:
        return False
    a = np.unique(
        np.broadcast_to(put.constant, kernel.threads(store)[0].shape)[kernel.threads(store)[0]]
    )
    b = np.unique(
        np.broadcast_to(got.constant, kernel.threads(load)[0].shape)[kernel.threads(load)[0]]
    )
    wide, narrow = access_bytes(store), access_bytes(load)
    return bool(np.any((a[:, None] < b[None, :] + narrow) & (b[None, :] < a[:, None] + wide)))


@rule(
    "CLU-04", "error", section="9.7.13.3",
    help="let the whole warp execute it, or write it without .aligned",
)  # fmt: skip
def aligned_needs_the_warp(kernel: Kernel) -> Iterator[Outcome]:
    """.aligned forms of the cluster's barrier need every thread of the warp."""
    for op in kernel.ops(ARRIVE, WAIT):
        if not op.has("aligned"):
            continue
        lanes = part_of_a_warp(kernel, op)
        if lanes is not None:
            yield kernel.finding(
                "CLU-04",
                f"{op.entry}.aligned in divergent code: {lanes[0]} of the {lanes[1]} lanes of warp {lanes[2]} come here",
                op,
            )


def part_of_a_warp(kernel: Kernel, op: Op, size: int = 32) -> tuple[int, int, int] | None:
    """Of some warp that only in part may execute an instruction: lanes that may, lanes that there are, which warp.

    What is not known is taken to let everybody through, so that a part is surely a part.
    """
    bounded = kernel.shape.block_known or kernel.directive(".maxntid") is not None
    for row in kernel.threads(op)[0]:
        if not bounded and not np.any(row[1:] > row[:-1]):
            continue  # the first threads only: the block may end there
        for start in range(0, row.size, size):
            lanes = row[start : start + size]
            if lanes.any() and not lanes.all():
                return int(lanes.sum()), int(lanes.size), start // size
    return None


@rule(
    "CLU-05", "error", section="9.7.13.3",
    help="one barrier.cluster.arrive and then one barrier.cluster.wait a phase, in every thread",
)  # fmt: skip
def arrive_then_wait(kernel: Kernel) -> Iterator[Outcome]:
    """Each thread arrives once a phase of the cluster's barrier and waits only after its arrive."""
    arrives, waits = kernel.ops(ARRIVE), kernel.ops(WAIT)
    yield from _twice(
        kernel,
        arrives,
        waits,
        "arrives again without a barrier.cluster.wait between: one arrive a thread a phase",
    )
    yield from _twice(
        kernel,
        waits,
        arrives,
        "waits again without a barrier.cluster.arrive between: deadlock, or a phase of nobody",
    )
    for wait in waits:
        unarrived = kernel.reach.threads_to((-1,), wait, kernel.indices(arrives))
        if not unarrived:
            continue
        if any(
            kernel.flow.path((each.index,), (wait.index,)) and kernel.together(each, wait)
            for each in arrives
        ):
            if kernel.reach.open_conditions(wait):
                yield kernel.undecided(
                    "CLU-05", "whether an arrive comes before this wait on every way", wait
                )
                continue
            never = unarrived & ~_union(kernel, arrives)
            if not never:
                yield kernel.undecided(
                    "CLU-05", "whether an arrive comes before this wait on every way", wait
                )
                continue
            unarrived = never
        yield kernel.finding(
            "CLU-05",
            f"barrier.cluster.wait before any barrier.cluster.arrive in {kernel.reach.thread_names(unarrived)}",
            wait,
        )


def _union(kernel: Kernel, ops: list[Op]) -> int:
    found = 0
    for op in ops:
        found |= kernel.reach.mask(op)
    return found


def _twice(kernel: Kernel, ops: list[Op], resets: list[Op], message: str) -> Iterator[Outcome]:
    places = kernel.indices(resets)
    for first in ops:
        for second in ops:
            if not kernel.reach.threads_to((first.index,), second, places):
                continue
            if places & kernel.reach.between(first, second):
                yield kernel.undecided(
                    "CLU-05",
                    "whether the other half of the barrier comes between on every way",
                    second,
                )
                continue
            yield kernel.finding(
                "CLU-05", f"{second.entry}: {message}", second, first, "the one before"
            )


# --- addresses ------------------------------------------------------------------------------------


@rule(
    "CLU-06", "error", section="9.7.9.23",
    help="take the rank modulo %cluster_nctarank",
)  # fmt: skip
def rank_in_the_cluster(kernel: Kernel) -> Iterator[Outcome]:
    """A rank given to mapa is one of the cluster: below %cluster_nctarank."""
    if not kernel.shape.cluster_known:
        return
    for op in kernel.ops("mapa"):
        rank = kernel.value(op, "cta")
        threads = kernel.threads(op)[0]
        if rank is None or not threads.any():
            continue
        if not rank.known:
            yield kernel.undecided("CLU-06", "the rank given to mapa is not known", op)
            continue
        ranks = np.broadcast_to(rank.constant, threads.shape)
        outside = (ranks < 0) | (ranks >= kernel.shape.ranks)
        verdict = certain(kernel, op, outside)
        if verdict is None:
            yield kernel.undecided(
                "CLU-06", "whether a thread whose rank is outside executes it", op
            )
        elif verdict:
            yield kernel.finding(
                "CLU-06",
                f"mapa to rank {int(ranks[outside & threads][0])} of a cluster of {kernel.shape.ranks} CTAs",
                op,
            )
            return


@rule(
    "CLU-07", "warning", section="9.7.9.23",
    help="mapa the address to the CTA that is meant, or write .shared::cta",
)  # fmt: skip
def cluster_address_is_mapped(kernel: Kernel) -> Iterator[Outcome]:
    """A shared address that no mapa moved names the own CTA, whatever the state space says."""
    if _alone(kernel):
        return
    for op in kernel.ops("ld", "st", "atom", "red", "st.async", "red.async", *ARRIVES):
        if not op.has("shared::cluster"):
            continue
        for role in ("dst", "src", "mbar"):
            value = kernel.value(op, role)
            if role == "mbar" and "dst" in op.roles:
                continue  # CLU-08 tells of the barrier of st.async
            if value is not None and value.base.startswith("shared") and value.cta is None:
                yield kernel.finding(
                    "CLU-07",
                    f"{op.node.opcode.root}.shared::cluster on an address of the own CTA: no mapa moved it to another",
                    op,
                    severity="warning",
                )
                break


@rule(
    "CLU-12", "error", section="9.7.13.15.8",
    help="wait for a barrier in the own CTA and let the peer arrive on it",
)  # fmt: skip
def waits_are_local(kernel: Kernel) -> Iterator[Outcome]:
    """Waiting for a barrier of another CTA is undefined."""
    for op in kernel.ops(*WAITS):
        side = where(kernel, op, "mbar")
        if side == "other":
            yield kernel.finding(
                "CLU-12", f"{op.entry} on a barrier of another CTA: mapa moved its address", op
            )
        elif side == "maybe":
            yield kernel.undecided(
                "CLU-12", "whether this address, moved by mapa, is the own CTA's", op
            )


@rule(
    "CLU-15", "note", section="9.7.9.23",
    help="let neighbouring lanes touch neighbouring words of the peer",
)  # fmt: skip
def remote_accesses_coalesce(kernel: Kernel) -> Iterator[Outcome]:
    """Accesses to another CTA are fast where a warp's lanes fill 32-byte segments."""
    for op in kernel.ops("ld", "st"):
        role = "src" if op.node.opcode.root == "ld" else "dst"
        value = kernel.value(op, role) if role in op.roles and not op.is_a("st.async") else None
        if value is None or value.cta is None or where(kernel, op, role) == "own":
            continue
        mask = kernel.threads(op)[0]
        row = next((i for i, each in enumerate(mask) if each[:32].any()), None)
        if row is None:
            continue
        offsets = np.broadcast_to(value.constant, mask.shape)[row, :32][mask[row, :32]]
        touched = len(np.unique(offsets // SEGMENT_BYTES))
        needed = -(-len(np.unique(offsets)) * access_bytes(op) // SEGMENT_BYTES)
        if touched > 2 * needed:
            yield kernel.finding(
                "CLU-15", f"a warp's {len(offsets)} lanes touch {touched} segments of {SEGMENT_BYTES} B of a peer; {needed} would do",
                op, severity="note",
            )  # fmt: skip

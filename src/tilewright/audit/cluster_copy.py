"""Rules of the cluster family: copies between CTAs, and the proxy that they work in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import access_bytes, align_of, bytes_of, declared, where

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

GRAIN_BYTES = 16


def _rank(kernel: Kernel, value: Value | None, op: Op) -> np.ndarray | None:
    """The CTA that an address is in, for every thread that executes `op`; None where it is not known."""
    if value is None:
        return None
    threads = kernel.threads(op)[0]
    own = np.broadcast_to(np.arange(kernel.shape.ranks)[:, None], threads.shape)
    if value.cta is None:
        return own[threads] if value.base.startswith("shared") else None
    if not value.cta.known:
        return None
    ranks: np.ndarray = np.broadcast_to(value.cta.constant, threads.shape)[threads]
    return ranks


def _apart(kernel: Kernel, a: Value | None, b: Value | None, op: Op) -> bool | None:
    """Whether two addresses are in different CTAs; None where that is not known."""
    ranks = _rank(kernel, a, op), _rank(kernel, b, op)
    if ranks[0] is None or ranks[1] is None:
        same = a is not None and b is not None and a.cta is not None and b.cta is not None
        if same and a is not None and b is not None and a.cta is not None and b.cta is not None:
            alike = a.cta.unknown == b.cta.unknown and a.cta.same_place(b.cta)
            return False if alike else None
        return None
    return bool(np.any(ranks[0] != ranks[1]))


@rule(
    "CLU-08", "error", section="9.7.9.12",
    help="mapa the destination and the barrier to the same peer",
)  # fmt: skip
def async_store_and_its_barrier(kernel: Kernel) -> Iterator[Outcome]:
    """st.async and red.async write to a CTA of the cluster and signal a barrier in that same CTA."""
    for op in kernel.ops("st.async", "red.async"):
        name = op.node.opcode.root + ".async"
        if kernel.shape.cluster_known and kernel.shape.ranks == 1:
            yield kernel.finding("CLU-08", f"{name} in a cluster of 1 CTA", op)
            continue
        target, barrier = kernel.value(op, "dst"), kernel.value(op, "mbar")
        if barrier is not None and _apart(kernel, target, barrier, op):
            yield kernel.finding(
                "CLU-08",
                f"{name} writes to one CTA and signals a barrier in another: its completion is never seen there",
                op,
            )
        elif (
            op.is_a("red.async")
            and where(kernel, op, "dst") == "own"
            and kernel.shape.cluster_known
        ):
            yield kernel.finding(
                "CLU-08",
                f"{name} on the own CTA; its destination is another CTA of the cluster",
                op,
            )


@rule(
    "CLU-09", "error", section="9.7.9.25.4.1",
    help="copy multiples of 16 bytes between addresses aligned to 16 bytes",
)  # fmt: skip
def bulk_copy_grain(kernel: Kernel) -> Iterator[Outcome]:
    """cp.async.bulk copies a multiple of 16 bytes between 16-byte aligned addresses, inside what is declared."""
    for op in kernel.flow.ops:
        if op.entry not in {"cp.async.bulk", "cp.reduce.async.bulk"}:
            continue
        value = kernel.value(op, "size")
        size = None if value is None else value.number()
        if size is not None and size % GRAIN_BYTES:
            yield kernel.finding(
                "CLU-09", f"{op.entry} of {size} bytes; sizes are multiples of {GRAIN_BYTES}", op
            )
        for role in ("dst", "src"):
            why = _misplaced(kernel, op, role, size)
            if why:
                yield kernel.finding("CLU-09", why, op)


def _misplaced(kernel: Kernel, op: Op, role: str, size: int | None) -> str | None:
    value = kernel.value(op, role)
    variable = declared(kernel, value.base) if value is not None else None
    if (
        value is None
        or variable is None
        or value.base.partition(":")[0] not in {"shared", "global"}
    ):
        return None
    threads = kernel.threads(op)[0]
    offsets = np.broadcast_to(value.constant, threads.shape)[threads]
    name = value.base.partition(":")[2].partition("@")[0]
    says = "destination" if role == "dst" else "source"
    if not offsets.size or any(each % GRAIN_BYTES for _, each in value.unknown):
        return None
    odd = offsets[offsets % GRAIN_BYTES != 0]
    if odd.size and odd.size == offsets.size and align_of(variable) % GRAIN_BYTES == 0:
        return f"{op.entry}: {says} {name}+{odd[0]} is not aligned to {GRAIN_BYTES} bytes"
    whole = bytes_of(variable, value.base.partition(":")[2])
    if whole is None or size is None or value.unknown or size > (1 << 32):
        return None
    if int(offsets.min()) + size > whole:
        return f"{op.entry} of {size} bytes at {name}+{offsets.min()} passes the end of its {says}: {whole} bytes"
    return None


@rule(
    "CLU-10", "error", section="9.7.9.25.4.1",
    help="mapa destination and barrier to the CTA that receives",
)  # fmt: skip
def bulk_copy_to_a_peer(kernel: Kernel) -> Iterator[Outcome]:
    """cp.async.bulk from shared::cta to shared::cluster goes to another CTA and signals a barrier there."""
    for op in kernel.flow.ops:
        if op.entry != "cp.async.bulk" or not op.has("shared::cluster", "shared::cta"):
            continue
        target, barrier = kernel.value(op, "dst"), kernel.value(op, "mbar")
        if target is None or not kernel.shape.cluster_known:
            continue
        own = where(kernel, op, "dst") == "own" and target.base.startswith("shared")
        if own:
            yield kernel.finding(
                "CLU-10", "cp.async.bulk to .shared::cluster names its own CTA as destination", op
            )
        elif _apart(kernel, target, barrier, op):
            yield kernel.finding(
                "CLU-10", "cp.async.bulk writes to one CTA and signals a barrier in another", op
            )


# --- the async proxy ------------------------------------------------------------------------------


@rule(
    "CLU-11", "error", section="9.7.13.4",
    help="fence.proxy.async.shared::cta by the thread that wrote, before the barrier that hands over",
)  # fmt: skip
def proxy_fence_after_writes(kernel: Kernel) -> Iterator[Outcome]:
    """What ordinary stores wrote needs fence.proxy.async before the async proxy reads or overwrites it."""
    fences = kernel.indices(
        op
        for op in kernel.ops("fence.proxy")
        if op.has("async")
        or op.has("async::generic")
        or not op.is_a("fence.proxy.tensormap", "fence.proxy.async")
    )
    stores = [
        op
        for op in kernel.ops("st", "atom", "red")
        if not op.is_a("st.async", "red.async", "st.bulk")
        and _shared(kernel.value(op, "dst"))
        and where(kernel, op, "dst") == "own"
    ]
    for copy in kernel.ops("cp.async.bulk", "cp.reduce.async.bulk"):
        for role in ("src", "dst"):
            if (
                role not in copy.roles
                or where(kernel, copy, role) != "own"
                or not _shared(kernel.value(copy, role))
            ):
                continue
            for store in stores:
                found = _unfenced(kernel, store, copy, role, fences)
                if found is not None:
                    yield found
                    break


def _shared(value: Value | None) -> bool:
    return value is not None and value.base.startswith("shared")


def _unfenced(kernel: Kernel, store: Op, copy: Op, role: str, fences: set[int]) -> Outcome | None:
    put, got = kernel.value(store, "dst"), kernel.value(copy, role)
    if put is None or got is None or put.base != got.base:
        return None
    if not kernel.flow.path((store.index,), (copy.index,), fences):
        return None
    if put.unknown and not kernel.flow.dominates(store.index, copy.index):
        return None
    if put.unknown != got.unknown or not _meets(kernel, store, copy, put, got):
        return None
    if fences & kernel.reach.between(store, copy):
        return kernel.undecided(
            "CLU-11", "whether the proxy fence between store and copy is passed on every way", copy
        )
    does = "reads" if role == "src" else "overwrites"
    return kernel.finding(
        "CLU-11",
        f"{copy.entry} {does} what an ordinary store wrote, with no fence.proxy.async between: the async proxy may not see it",
        copy, store, "written here in the generic proxy",
    )  # fmt: skip


def _meets(kernel: Kernel, store: Op, copy: Op, put: Value, got: Value) -> bool:
    """Whether some byte that is stored is surely copied."""
    threads, movers = kernel.threads(store)[0], kernel.threads(copy)[0]
    a = np.unique(np.broadcast_to(put.constant, threads.shape)[threads])
    b = np.unique(np.broadcast_to(got.constant, movers.shape)[movers])
    size_of = kernel.value(copy, "size")
    size = (size_of.number() if size_of is not None else None) or GRAIN_BYTES
    width = access_bytes(store)
    return bool(np.any((a[:, None] < b[None, :] + size) & (b[None, :] < a[:, None] + width)))

"""Rules of the mbarrier family: the scope at which a barrier publishes what was written before it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import (
    ARRIVES,
    WAITS,
    cluster_fences,
    multicasts,
    signalled_by,
    where,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.finding import Severity
    from tilewright.ptx.flow import Op


@rule(
    "MBAR-08", "warning", section="9.7.13.15.16",
    help="mbarrier.try_wait.acquire.cluster and mbarrier.arrive.release.cluster where CTAs or the async proxy publish",
)  # fmt: skip
def scope_of_the_publisher(kernel: Kernel) -> Iterator[Outcome]:
    """A wait acquires at the scope of what it waits for: .cluster for other CTAs, TMA and try_cancel."""
    severity: Severity = "error" if kernel.options.strict else "warning"
    for ring in kernel.rings:
        signals = signalled_by(kernel, ring)
        publisher = next((op for op in signals if _publishes_to_cluster(kernel, op)), None)
        wait = next((op for op in kernel.of_ring(ring, *WAITS) if not op.has("cluster")), None)
        if publisher is not None and wait is not None:
            yield kernel.finding(
                "MBAR-08",
                f"wait on {ring.name} acquires at .cta scope, by default or as written; what it waits for is released at .cluster scope",
                wait, publisher, "released to the cluster here", severity,
            )  # fmt: skip
        remote = next(
            (
                op
                for op in signals
                if op.is_a(*ARRIVES)
                and not op.has("cluster")
                and where(kernel, op, "mbar") != "own"
            ),
            None,
        )
        if remote is not None:
            yield kernel.finding(
                "MBAR-08", f"arrive on {ring.name} of another CTA releases at .cta scope, by default or as written",
                remote, wait, "waited for here", severity,
            )  # fmt: skip
        yield from _relaxed_after_store(kernel, ring, signals, severity)
        yield from _read_behind_relaxed(kernel, ring, signals, severity)


def _publishes_to_cluster(kernel: Kernel, op: Op) -> bool:
    if op.is_a(
        "cp.async.bulk",
        "cp.reduce.async.bulk",
        "clusterlaunchcontrol.try_cancel",
        "st.async",
        "red.async",
    ):
        return True
    if multicasts(kernel, op) != "own":
        return True
    return op.is_a(*ARRIVES) and where(kernel, op, "mbar") != "own" and not op.has("relaxed")


def _relaxed_after_store(
    kernel: Kernel, ring: Ring, signals: Iterable[Op], severity: Severity
) -> Iterator[Outcome]:
    """A relaxed remote arrival hands over what a store put into the same CTA."""
    stores = [
        op
        for op in kernel.ops("st", "red", "atom")
        if where(kernel, op, "dst") != "own" and not op.is_a("st.async", "red.async")
    ]
    for op in signals:
        if not op.is_a(*ARRIVES) or not op.has("relaxed") or where(kernel, op, "mbar") == "own":
            continue
        for store in stores:
            if kernel.together(store, op) and kernel.flow.path(
                (store.index,), (op.index,), cluster_fences(kernel)
            ):
                yield kernel.finding(
                    "MBAR-08", f"relaxed arrive on {ring.name} of another CTA publishes nothing, and a store to that CTA comes before it",
                    op, store, "stored here", severity,
                )  # fmt: skip
                return


def _read_behind_relaxed(
    kernel: Kernel, ring: Ring, signals: Iterable[Op], severity: Severity
) -> Iterator[Outcome]:
    """Generic reads, behind a relaxed wait, of what st.async wrote."""
    fills = [kernel.value(op, "dst") for op in signals if op.is_a("st.async", "red.async")]
    fences = kernel.indices(
        op for op in kernel.ops("fence") if not op.is_a("fence.proxy", "fence.mbarrier_init")
    )
    waits = kernel.of_ring(ring, *WAITS)
    for wait in (op for op in waits if op.has("relaxed") and fills):
        avoid = fences | {op.index for op in waits} | kernel.elsewhere(wait)
        for read in kernel.ops("ld"):
            value = kernel.value(read, "src")
            same = value is not None and any(f is not None and f.same_place(value) for f in fills)
            if same and kernel.together(read, wait) and kernel.flow.path(
                (wait.index,), (read.index,), avoid
            ):  # fmt: skip
                yield kernel.finding(
                    "MBAR-08", f"relaxed wait on {ring.name} makes nothing visible, and what st.async wrote is read behind it",
                    wait, read, "read here", severity,
                )  # fmt: skip
                return

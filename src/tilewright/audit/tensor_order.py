"""Rules of order between tensor memory accesses: the tcgen05 fences around a signal, and the waits before it.

tcgen05 accesses are asynchronous, also to the thread that issued them. Before a signal to another thread:
tcgen05.wait::ld or ::st, then fence::before_thread_sync; after waiting for it: fence::after_thread_sync.
Only signals over an mbarrier are followed. Shipping compilers leave the fences out altogether, and some the
waits: a kernel that has none at all gets one warning, which is an error with `strict`; in a kernel that has
them a missing one is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.audit.commit import WAITS, on_its_way, thread_arrives, waits_of, way_holds
from tilewright.audit.mma import shape_of
from tilewright.audit.rules import Outcome, rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.finding import Finding, Severity
    from tilewright.ptx.flow import Op
    from tilewright.ptx.values import Value

FENCES = ("tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync")
COMPLETIONS = ("tcgen05.wait::ld", "tcgen05.wait::st")
PIPELINED = ("tcgen05.mma", "tcgen05.cp", "tcgen05.shift")
ACCESSES = (*PIPELINED, "tcgen05.ld", "tcgen05.st")


def _severity(kernel: Kernel, *entries: str) -> Severity:
    """An error in a kernel that has such instructions; a warning in one that goes without."""
    return "error" if kernel.options.strict or kernel.ops(*entries) else "warning"


def _once(found: Iterator[Finding]) -> Iterator[Finding]:
    """All errors; of warnings the first."""
    for finding in found:
        yield finding
        if finding.severity == "warning":
            return


def _released(kernel: Kernel, ring: Ring) -> list[tuple[Op, Op]]:
    """Arrives on a barrier object that come after a tcgen05.ld or st of their thread, with the last of these."""
    accesses = kernel.ops("tcgen05.ld", "tcgen05.st")
    found = []
    for arrive in thread_arrives(kernel):
        if kernel.ring(arrive) is ring:
            before = [op for op in accesses if on_its_way(kernel, op, [arrive])]
            if before:
                found.append((arrive, before[-1]))
    return found


def _dependent(kernel: Kernel, ring: Ring) -> list[tuple[Op, Op]]:
    """Waits on a barrier object and a tensor memory access that follows in their thread."""
    found = []
    for wait in waits_of(kernel, ring):
        after = [op for op in kernel.ops(*ACCESSES) if on_its_way(kernel, wait, [op])]
        if after:
            found.append((wait, after[0]))
    return found


@rule(
    "TC-12", "error", section="9.7.16.11.1",
    help="put tcgen05.fence::after_thread_sync between the wait and the first tcgen05 access",
)  # fmt: skip
def fence_after_wait(kernel: Kernel) -> Iterator[Outcome]:
    """tcgen05.fence::after_thread_sync comes between a wait for tensor memory and the access that needs it."""
    yield from _once(_unfenced_waits(kernel, _severity(kernel, *FENCES)))


def _unfenced_waits(kernel: Kernel, severity: Severity) -> Iterator[Finding]:
    fences = kernel.ops("tcgen05.fence::after_thread_sync")
    accesses = kernel.ops(*ACCESSES)
    for ring in kernel.rings if accesses else ():
        commits = kernel.of_ring(ring, "tcgen05.commit")
        released = _released(kernel, ring)
        if not commits and not released:
            continue
        for wait in waits_of(kernel, ring):
            bare = [
                op
                for op in accesses
                if on_its_way(kernel, wait, [op], fences)
                and (released or not _in_the_pipe(kernel, op, commits))
            ]
            if bare and way_holds(kernel, wait, bare[0], fences):
                says = "waits for tensor memory to be free" if released else "waits for the MMAs"
                yield kernel.finding(
                    "TC-12",
                    f"{bare[0].entry} after a wait on barrier {ring.name} with no"
                    " tcgen05.fence::after_thread_sync between: it may run before what the barrier"
                    " stands for",
                    bare[0], wait, says, severity,
                )  # fmt: skip


def _in_the_pipe(kernel: Kernel, op: Op, commits: list[Op]) -> bool:
    """Whether the hardware keeps the order: an MMA after MMAs that its own thread committed."""
    return op.is_a(*PIPELINED) and all(kernel.together(op, commit) for commit in commits)


@rule(
    "TC-13", "error", section="9.7.16.11.1",
    help="put tcgen05.fence::before_thread_sync between the last tcgen05 access and the arrive",
)  # fmt: skip
def fence_before_signal(kernel: Kernel) -> Iterator[Outcome]:
    """tcgen05.fence::before_thread_sync comes between a tensor memory access and the arrive that signals it."""
    fences = kernel.ops("tcgen05.fence::before_thread_sync")
    severity = _severity(kernel, *FENCES)
    yield from _once(
        _signalled_early(kernel, "TC-13", fences, ("tcgen05.ld", "tcgen05.st"), severity)
    )


@rule(
    "TC-14", "error", section="9.7.16.6.4",
    help="put tcgen05.wait::ld (after st: ::st) between the access and the arrive that frees or hands it on",
)  # fmt: skip
def complete_before_signal(kernel: Kernel) -> Iterator[Outcome]:
    """tcgen05.wait::ld or ::st comes between an access and the arrive that signals it, or its deallocation."""
    severity = _severity(kernel, *FENCES, *COMPLETIONS)
    for kind in ("ld", "st"):
        completed = kernel.ops(f"tcgen05.wait::{kind}")
        yield from _once(
            _signalled_early(kernel, "TC-14", completed, (f"tcgen05.{kind}",), severity)
        )


def _signalled_early(
    kernel: Kernel, rule_id: str, needed: list[Op], entries: tuple[str, ...], severity: Severity
) -> Iterator[Finding]:
    accesses = kernel.ops(*entries)
    if not accesses:
        return
    dependent: dict[Ring, list[tuple[Op, Op]]] = {}
    for arrive in thread_arrives(kernel):
        ring = kernel.ring(arrive)
        if ring is None:
            continue
        early = [op for op in accesses if on_its_way(kernel, op, [arrive], needed)]
        if not early:
            continue
        if ring not in dependent:
            dependent[ring] = _dependent(kernel, ring)
        if dependent[ring] and way_holds(kernel, early[-1], arrive, needed):
            yield kernel.finding(
                rule_id, _early(rule_id, ring, early[-1], dependent[ring][0][1]),
                arrive, early[-1], "the access that it signals", severity,
            )  # fmt: skip
    if rule_id == "TC-14":
        for free in kernel.ops("tcgen05.dealloc"):
            early = [op for op in accesses if on_its_way(kernel, op, [free], needed)]
            if early and way_holds(kernel, early[-1], free, needed):
                yield kernel.finding(
                    rule_id,
                    f"tensor memory is deallocated while {early[-1].entry} may still be running:"
                    f" no {_completion(early[-1])} between",
                    free, early[-1], "the access", severity,
                )  # fmt: skip


def _completion(op: Op) -> str:
    return "tcgen05.wait::st" if op.is_a("tcgen05.st") else "tcgen05.wait::ld"


def _early(rule_id: str, ring: Ring, access: Op, after: Op) -> str:
    missing = "tcgen05.fence::before_thread_sync" if rule_id == "TC-13" else _completion(access)
    race = "may be ordered after the signal" if rule_id == "TC-13" else "may still be running"
    return (
        f"barrier {ring.name}: arrive with no {missing} after {access.entry}, which {race} when"
        f" the waiting thread goes on to {after.entry}"
    )


# --- one thread -----------------------------------------------------------------------------------


@rule(
    "TC-22", "error", section="9.7.16.6.2",
    help="complete the first access before the second: wait::st, wait::ld, or a commit and its wait",
)  # fmt: skip
def order_of_one_thread(kernel: Kernel) -> Iterator[Outcome]:
    """Two accesses of one thread to the same tensor memory are ordered, by a pipeline or by completion."""
    severity = _severity(kernel, *FENCES, *COMPLETIONS)
    barriers = kernel.ops(*WAITS)
    pairs = (
        ("tcgen05.st", ("tcgen05.ld", *PIPELINED), kernel.ops("tcgen05.wait::st"), "tcgen05.wait::st"),
        ("tcgen05.ld", ("tcgen05.st", *PIPELINED), kernel.ops("tcgen05.wait::ld"), "tcgen05.wait::ld"),
        ("tcgen05.mma", ("tcgen05.ld", "tcgen05.st"), barriers, "wait for a commit"),
    )  # fmt: skip
    for first, seconds, needed, name in pairs:
        found = _unordered(kernel, first, seconds, needed, name, severity)
        yield from _once(found)


def _unordered(
    kernel: Kernel,
    first: str,
    seconds: tuple[str, ...],
    needed: list[Op],
    name: str,
    severity: Severity,
) -> Iterator[Finding]:
    for one in kernel.ops(first):
        for two in kernel.ops(*seconds):
            if not _overlap(kernel, one, two) or not on_its_way(kernel, one, [two], needed):
                continue
            if first == "tcgen05.mma" and _may_be_awaited(kernel, one, two, needed):
                continue
            if way_holds(kernel, one, two, needed):
                yield kernel.finding(
                    "TC-22",
                    f"{two.entry} of tensor memory that {one.entry} of the same thread accesses, with"
                    f" no {name} between: the two are not ordered",
                    two, one, "the access before", severity,
                )  # fmt: skip
                break


def _may_be_awaited(kernel: Kernel, one: Op, two: Op, waits: list[Op]) -> bool:
    """Whether some wait may come between: one that is passed by only where no MMA was issued before it."""
    return any(
        on_its_way(kernel, one, [wait]) and on_its_way(kernel, wait, [two]) for wait in waits
    )


def _overlap(kernel: Kernel, one: Op, two: Op) -> bool:
    """Whether two accesses are proved to share a column of one allocation."""
    for a, a_columns in _regions(kernel, one):
        for b, b_columns in _regions(kernel, two):
            if not a.unknown or a.unknown != b.unknown or a.base or b.base:
                continue
            begins, other = int(a.constant.flat[0]) & 0xFFFF, int(b.constant.flat[0]) & 0xFFFF
            if begins < other + b_columns and other < begins + a_columns:
                return True
    return False


def _regions(kernel: Kernel, op: Op) -> Iterator[tuple[Value, int]]:
    """Addresses that an access names, each with the columns from there that it surely touches."""
    taddr = kernel.value(op, "taddr")
    if taddr is not None:
        shape = next(
            (w for w in op.node.opcode.modifiers if w[:1] == "x" and w[1:].isdigit()), "x1"
        )
        yield taddr, int(shape[1:]) if op.has("32x32b") else 1
    d = kernel.value(op, "d")
    if d is not None:
        idesc = kernel.value(op, "idesc")
        number = None if idesc is None else idesc.number()
        n = 1 if number is None else shape_of(number)[1]
        yield d, max(1, n // 2)

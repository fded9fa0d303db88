"""Rules of the CTA's named barriers: bar.sync, bar.red, bar.arrive with a number and a count of threads.

Where a number is not the same in all threads (one barrier for each group of warps) it is taken thread by thread. A
site that is not known to be executed may be executed: nothing is said of a barrier that such threads may fill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import CTA_BARRIERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.kernel import Kernel
    from tilewright.ptx.finding import Finding
    from tilewright.ptx.flow import Op

ARRIVES = ("bar.arrive", "bar.cta.arrive", "barrier.arrive", "barrier.cta.arrive")
WARP = 32


@dataclass(frozen=True, eq=False)
class Site:
    """One instruction at one named barrier of one CTA.

    Attributes:
        number: of the barrier.
        count: threads that it names; None without the operand, which means all of the CTA.
        threads: of the CTA that may execute it there.
    """

    op: Op
    number: int
    count: int | None
    threads: np.ndarray


@rule(
    "BAR-01", "error", section="9.7.13.1",
    help="name as many threads as come: the warps of the barrier times 32, the same at every site",
)  # fmt: skip
def as_many_as_come(kernel: Kernel) -> Iterator[Outcome]:
    """A named barrier names as many threads as come to it, a multiple of the warp size."""
    ops = kernel.ops(*CTA_BARRIERS, *ARRIVES)
    if not any("threads" in op.roles for op in ops):
        return
    said: set[int] = set()
    for op in ops:
        odd = _odd_count(kernel, op)
        if odd is not None:
            said.add(op.span.offset)
            yield odd
    if any(op.node.opcode.root == "call" for op in kernel.flow.ops):
        yield kernel.undecided("BAR-01", "a function that is called may come to a barrier", ops[0])
        return
    for rank in range(kernel.shape.ranks):
        for found in _of_cta(kernel, ops, rank):
            at = found.span.offset
            if at not in said:
                said.add(at)
                yield found


def _odd_count(kernel: Kernel, op: Op) -> Finding | None:
    value = kernel.value(op, "threads")
    number = None if value is None else value.number()
    if number is None or number % WARP == 0:
        return None
    return kernel.finding(
        "BAR-01", f"{op.entry} names {number} threads: the number must be a multiple of {WARP}", op
    )


def _of_cta(kernel: Kernel, ops: list[Op], rank: int) -> Iterator[Finding]:
    sites, wild = _sites(kernel, ops, rank)
    for number in sorted({site.number for site in sites}):
        here = [site for site in sites if site.number == number]
        everyone = wild.copy()
        for site in here:
            everyone |= site.threads
        for site in here:
            found = _too_many(kernel, site, here, everyone) or _too_few(
                kernel, site, here, everyone
            )
            if found is not None:
                yield found


def _sites(kernel: Kernel, ops: list[Op], rank: int) -> tuple[list[Site], np.ndarray]:
    """The sites of one CTA by barrier, and threads that come to one that is not known."""
    shape = kernel.shape.ranks, max(kernel.shape.threads, 1)
    wild = np.zeros(shape[1], dtype=bool)
    found = []
    for op in ops:
        mine = kernel.threads(op)[0][rank]
        value = kernel.value(op, "barrier")
        if value is None or not value.known:
            wild |= mine
            continue
        numbers = np.broadcast_to(value.constant, shape)[rank]
        for number in np.unique(numbers[mine]):
            threads = mine & (numbers == number)
            found += [
                Site(op, int(number), count, some)
                for count, some in _counts(op, kernel, rank, threads)
            ]
    return found, wild


def _counts(
    op: Op, kernel: Kernel, rank: int, threads: np.ndarray
) -> Iterator[tuple[int | None, np.ndarray]]:
    """The counts that some threads name; none where that is not known."""
    value = kernel.value(op, "threads")
    if value is None:
        yield None, threads
    elif not value.known:
        yield -1, threads
    else:
        shape = kernel.shape.ranks, threads.size
        counts = np.broadcast_to(value.constant, shape)[rank]
        for count in np.unique(counts[threads]):
            yield int(count), threads & (counts == count)


def _whole_warps(threads: np.ndarray) -> int:
    """Threads of the warps of which some may come: one that comes counts for its warp."""
    padded = np.pad(threads, (0, -threads.size % WARP))
    return int(padded.reshape(-1, WARP).any(axis=1).sum()) * WARP


def _bounded(kernel: Kernel) -> bool:
    return kernel.shape.block_known or kernel.directive(".maxntid") is not None


def _too_many(kernel: Kernel, site: Site, here: list[Site], everyone: np.ndarray) -> Finding | None:
    """More threads are named than can ever come before a thread comes again."""
    most = _whole_warps(everyone)
    if site.count is None or site.count <= most or not _bounded(kernel) or _again(kernel, here):
        return None
    return kernel.finding(
        "BAR-01",
        f"deadlock: barrier {site.number} waits for {site.count} threads, and {most} threads of the CTA"
        " may come to it",
        site.op,
    )


def _again(kernel: Kernel, here: list[Site]) -> bool:
    """Whether a thread may arrive again before it has waited: by two arrivals that do not block."""
    arrives = [site.op for site in here if site.op.is_a(*ARRIVES)]
    syncs = {site.op.index for site in here if not site.op.is_a(*ARRIVES)}
    return any(
        kernel.flow.path((a.index,), (b.index,), syncs) and kernel.together(a, b)
        for a in arrives for b in arrives
    )  # fmt: skip


def _too_few(kernel: Kernel, site: Site, here: list[Site], everyone: np.ndarray) -> Finding | None:
    """Fewer are named than surely come, so that the rest counts for the next time.

    That all of them come is known where another site that the same threads pass just as often needs them all, or
    where nothing that tells the threads apart decides.
    """
    come = int(site.threads.sum())
    if site.count is None or site.count <= 0 or site.count >= come or come % site.count == 0:
        return None
    if not np.array_equal(site.threads, everyone) or _whole_warps(everyone) != come:
        return None
    if any(each.op.is_a(*ARRIVES) for each in here):
        return None
    twin = next((each for each in here if each.count == come and _alike(kernel, site, each)), None)
    if twin is None and not (
        kernel.shape.block_known and not kernel.reach.open_conditions(site.op)
        and all(np.array_equal(each.threads, everyone) for each in here)
    ):  # fmt: skip
        return None
    return kernel.finding(
        "BAR-01",
        f"barrier {site.number} names {site.count} threads, and {come} come to it each time: it opens before"
        f" all are there, and the other {come % site.count} count for the next time",
        site.op, None if twin is None else twin.op, f"the same threads meet here, and {come} are named",
    )  # fmt: skip


def _alike(kernel: Kernel, site: Site, other: Site) -> bool:
    """Whether the same threads pass both, as often."""
    flow = kernel.flow
    if other.op is site.op or not np.array_equal(site.threads, other.threads):
        return False
    loops = [{header for header, _ in flow.loops(each.op.index)} for each in (site, other)]
    return loops[0] == loops[1] and _conditions(kernel, site.op) == _conditions(kernel, other.op)


def _conditions(kernel: Kernel, op: Op) -> set[tuple[str, int, bool]]:
    """What must have held for it, waiting loops and known predicates aside."""
    return {
        (condition.register, condition.at, condition.holds)
        for condition in kernel.flow.conditions(op)
        if not kernel.values.register(condition.register, condition.at).known
        and (condition.at, condition.holds) not in kernel.paths.done
    }

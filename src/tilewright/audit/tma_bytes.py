"""Rules of bytes: what a barrier expects in a phase against what copies bring to it.

The box of a tensor copy is in the tensor map, so its bytes are bounded by the room up to the next tile: whoever expects
more than that waits for ever, or has a box that overruns the next tile. Expecting too little is beyond this.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tilewright.audit.copies import certain, home, loads
from tilewright.audit.mbarrier_bytes import one_sided, stores_add_up
from tilewright.audit.rules import Outcome, rule
from tilewright.audit.signals import bytes_of, declared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.audit.copies import Copy
    from tilewright.audit.kernel import Kernel, Ring
    from tilewright.ptx.flow import Op

SMEM_BYTES_MAX = 232_448
"""Shared memory of a CTA on sm_90 and sm_100: no copy is larger."""

EXPECTS = ("mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.expect_tx")
NEUTRAL = (
    *("mbarrier.init", "mbarrier.inval", "mbarrier.try_wait", "mbarrier.test_wait"),
    *(*EXPECTS, "tcgen05.commit", "cp.async.mbarrier.arrive"),
)
"""What names a barrier and brings it no bytes."""


@dataclass(frozen=True, eq=False)
class _Phase:
    """One expectation and the copies that answer it.

    Attributes:
        expected: bytes, the same in all threads that expect.
        most, least: bytes that come to the barrier of each CTA.
    """

    ring: Ring
    expect: Op
    expected: int
    copies: tuple[Copy, ...]
    most: tuple[int, ...]
    least: tuple[int, ...]


def _expects(kernel: Kernel, ring: Ring) -> list[Op]:
    ops = kernel.of_ring(ring, *EXPECTS)
    return [op for op in ops if op.has("expect_tx") or op.is_a("mbarrier.expect_tx")]


def _only_copies(kernel: Kernel, ring: Ring) -> bool:
    """Whether nothing but bulk copies brings bytes to a ring, as far as addresses are understood."""
    known = {copy.op.index for copy in loads(kernel)}
    return not any(
        "mbar" in op.roles
        and not op.is_a(*NEUTRAL)
        and op.index not in known
        and kernel.ring(op) in {None, ring}
        for op in kernel.flow.ops
    ) and not any(kernel.ring(copy.op) is None for copy in loads(kernel))


def _phases(kernel: Kernel) -> tuple[_Phase | tuple[str, Op], ...]:
    """What each expectation gets; or why that is not known, and where."""
    return tuple(_find_phases(kernel))


def _find_phases(kernel: Kernel) -> Iterator[_Phase | tuple[str, Op]]:
    copies = loads(kernel)
    for ring in kernel.rings:
        expects = _expects(kernel, ring)
        mine = [copy for copy in copies if kernel.ring(copy.op) is ring]
        if not mine or not expects:
            continue
        if not _only_copies(kernel, ring):
            yield "other instructions may bring bytes to the barrier", expects[0]
            continue
        far = any(copy.pair or copy.op.has("multicast::cluster") for copy in mine)
        if far and not kernel.shape.cluster_known:
            yield "the size of the cluster is not known", mine[0].op
            continue
        if any(None in copy.masks for copy in mine):
            yield "a multicast mask is not known", mine[0].op
            continue
        others = kernel.indices(expects)
        behind = [kernel.reach.threads_from((op.index,), others) for op in expects]
        if any(all(copy.op.index not in seen for seen in behind) for copy in mine):
            yield "a copy comes before the expectation of its bytes", mine[0].op
            continue
        for op, seen in zip(expects, behind, strict=True):
            yield _phase(kernel, ring, op, [c for c in mine if c.op.index in seen])


def _phase(kernel: Kernel, ring: Ring, op: Op, copies: list[Copy]) -> _Phase | tuple[str, Op]:
    amount, where = kernel.value(op, "tx_bytes"), kernel.value(op, "mbar")
    expected = None if amount is None else amount.number()
    if expected is None or where is None:
        return "the bytes that are expected are not a constant", op
    if any(copy.mbar.unknown != where.unknown for copy in copies) or not copies:
        return "which slot a copy fills is not known", op
    sizes = _sizes(kernel, ring, copies)
    bounds = [_brought(kernel, sizes, rank) for rank in range(kernel.shape.ranks)]
    if any(bound is None for bound in bounds):
        return "the CTA of a barrier is not known", op
    most, least = zip(*(bound for bound in bounds if bound is not None), strict=True)
    return _Phase(ring, op, expected, tuple(copies), most, least)


@dataclass(frozen=True, eq=False)
class _Size:
    """What one CTA's executions of a copy bring to each place that it lands in.

    Attributes:
        count: threads of the CTA that may execute it.
        most, least: bytes of one execution.
    """

    copy: Copy
    issuer: int
    count: int
    most: int
    least: int


def _sizes(kernel: Kernel, ring: Ring, copies: list[Copy]) -> list[_Size]:
    starts = _Starts(kernel, copies)
    found = []
    for copy in copies:
        threads, exact = kernel.threads(copy.op)
        size = kernel.value(copy.op, "size")
        number = None if size is None else size.number()
        for issuer in range(kernel.shape.ranks):
            count = int(threads[issuer].sum())
            if count and number is None:
                found.append(
                    _Size(copy, issuer, count, _room(kernel, ring, starts, copy, issuer), 0)
                )
            elif count and number is not None:
                found.append(_Size(copy, issuer, count, number, number if exact else 0))
    return found


def _brought(kernel: Kernel, sizes: list[_Size], rank: int) -> tuple[int, int] | None:
    """The most and the least bytes that come to the barrier of one CTA in a phase."""
    most = least = 0
    for size in sizes:
        parts = _parts(kernel, size.copy, size.issuer, rank)
        if parts is None:
            return None
        most += size.count * parts * size.most
        least += size.count * parts * size.least
    return most, least


def _parts(kernel: Kernel, copy: Copy, issuer: int, rank: int) -> int | None:
    """How many destinations of one CTA's copy signal the barrier of `rank`."""
    mask = copy.masks[issuer] or 0
    if not copy.pair:
        return mask >> rank & 1
    owner = home(kernel, copy.mbar, issuer)
    if owner is None:
        return None
    return sum(
        (each & ~1 | owner & 1) == rank for each in range(kernel.shape.ranks) if mask >> each & 1
    )


class _Starts:
    """Where the copies of a phase land: offsets by copy and issuing CTA, and by the CTAs that they land in."""

    def __init__(self, kernel: Kernel, copies: list[Copy]) -> None:
        self.by_copy: dict[tuple[int, int], list[int]] = {}
        landing: dict[tuple[object, int], set[int]] = {}
        for copy in copies:
            threads = kernel.threads(copy.op)[0]
            values = np.broadcast_to(copy.dst.constant, threads.shape)
            for issuer in range(kernel.shape.ranks):
                starts = np.unique(values[issuer][threads[issuer]]).tolist()
                self.by_copy[copy.op.index, issuer] = starts
                key = (copy.dst.base, copy.dst.unknown), copy.masks[issuer] or 0
                landing.setdefault(key, set()).update(starts)
        self.by_landing = {key: sorted(starts) for key, starts in landing.items()}

    def first(self, copy: Copy, issuer: int) -> int:
        """Where a CTA's copy lands first."""
        return min(self.by_copy[copy.op.index, issuer], default=0)

    def following(self, copy: Copy, issuer: int) -> Iterator[int]:
        """The next start, of each kind of copy that lands in a CTA that this one lands in."""
        own = self.first(copy, issuer)
        for (place, mask), starts in self.by_landing.items():
            if place == (copy.dst.base, copy.dst.unknown) and mask & (copy.masks[issuer] or 0):
                yield from starts[bisect_right(starts, own) :][:1]


def _room(kernel: Kernel, ring: Ring, starts: _Starts, copy: Copy, issuer: int) -> int:
    """Bytes from where a copy lands to the next tile of the phase, the next slot or the end of the symbol."""
    own = starts.first(copy, issuer)
    ends = [own + SMEM_BYTES_MAX, *starts.following(copy, issuer)]
    if len(copy.dst.unknown) == 1 and ring.slots != 1:
        (term, step), slots = copy.dst.unknown[0], copy.mbar.unknown
        if len(slots) == 1 and slots[0][0] == term and slots[0][1]:
            ends.append(own + abs(step) * 8 // abs(slots[0][1]))
    symbol = declared(kernel, copy.dst.base)
    size = bytes_of(symbol, copy.dst.base.partition(":")[2]) if symbol is not None else None
    if size is not None and not copy.dst.unknown:
        ends.append(size)
    return max(min(ends) - own, 0)


def _expecting(kernel: Kernel, phase: _Phase) -> np.ndarray:
    """The CTA whose barrier each rank's expectation is on; -1 where none or not known."""
    where = kernel.value(phase.expect, "mbar")
    found = [
        home(kernel, where, rank, row) if where is not None and row.any() else None
        for rank, row in enumerate(kernel.threads(phase.expect)[0])
    ]
    return np.array([-1 if each is None else each for each in found])


@rule(
    "TMA-03", "error", section="9.7.9.27.1.2",
    help="expect the full bytes of every box that is copied to this CTA, whoever issues it, and no more",
)  # fmt: skip
def bytes_add_up(kernel: Kernel) -> Iterator[Outcome]:
    """A barrier expects the bytes that its copies bring in a phase, summed over all issuers."""
    yield from one_sided(kernel)
    yield from stores_add_up(kernel)
    unsure: set[str] = set()
    for phase in kernel.view(_phases):
        if isinstance(phase, tuple):
            if phase[0] not in unsure:
                unsure.add(phase[0])
                yield kernel.undecided("TMA-03", phase[0], phase[1])
            continue
        homes = _expecting(kernel, phase)
        most = np.array([phase.most[q] if q >= 0 else phase.expected for q in homes])
        least = np.array([phase.least[q] if q >= 0 else 0 for q in homes])
        expected = phase.expected
        if certain(kernel, phase.expect, ((expected > most) & (most > 0))[:, None]):
            short = int(most[most < expected][0])
            known = phase.most == phase.least
            bring = f"bring {short}" if known else f"have room for {short} in the CTA"
            or_else = "" if known else ", or a box overruns the next tile"
            yield kernel.finding(
                "TMA-03",
                f"{phase.ring.name} expects {expected} bytes a phase; its copies {bring}: the phase never"
                f" completes{or_else}",
                phase.expect, phase.copies[0].op, "the first of its copies",
            )  # fmt: skip
        elif kernel.threads(phase.expect)[1] and bool(
            np.any((least > expected * _times(kernel, phase, homes)) & (homes >= 0))
        ):
            over = int(least.max())
            yield kernel.finding(
                "TMA-03",
                f"{phase.ring.name} expects {expected} bytes a phase; its copies bring {over}: the phase"
                " completes before all of them are there",
                phase.expect, phase.copies[0].op, "the first of its copies",
            )  # fmt: skip
        elif phase.most != phase.least and phase.ring.name not in unsure:
            unsure.add(phase.ring.name)
            yield kernel.undecided(
                "TMA-03",
                f"{expected} bytes are expected; the boxes of the copies stand in the tensor map",
                phase.expect,
            )


def _times(kernel: Kernel, phase: _Phase, homes: np.ndarray) -> np.ndarray:
    """How many threads of the cluster expect on the barrier that each rank expects on."""
    threads = kernel.threads(phase.expect)[0].sum(axis=1)
    return np.array(
        [sum(int(t) for t, h in zip(threads, homes, strict=True) if h == q) for q in homes]
    )


def _unsignalled(kernel: Kernel, rule_id: str, *, pair: bool) -> Iterator[Outcome]:
    """Expectations on barriers that no copy signals."""
    for phase in kernel.view(_phases):
        if isinstance(phase, tuple) or any(copy.pair for copy in phase.copies) != pair:
            continue
        homes = _expecting(kernel, phase)
        empty = np.array([q >= 0 and phase.most[q] == 0 for q in homes])
        if phase.expected and certain(kernel, phase.expect, empty[:, None]):
            rank = int(homes[empty][0])
            yield kernel.finding(
                rule_id,
                f"CTA {rank} expects {phase.expected} bytes on {phase.ring.name}, and no copy of the"
                " cluster signals its barrier: the phase never completes",
                phase.expect, phase.copies[0].op, "the first of the copies",
            )  # fmt: skip


@rule(
    "TMA-04", "error", section="9.7.9.27.1.2",
    help="let exactly the CTAs of the multicast masks expect the bytes",
)  # fmt: skip
def masked_ctas_expect(kernel: Kernel) -> Iterator[Outcome]:
    """Every CTA in a multicast mask expects its bytes, and every CTA that expects is in a mask."""
    yield from _unsignalled(kernel, "TMA-04", pair=False)
    told: set[str] = set()
    homes = kernel.view(_Homes)
    for phase in kernel.view(_phases):
        if isinstance(phase, tuple) or phase.ring.name in told:
            continue
        expects = _expects(kernel, phase.ring)
        if any(homes(op) is None for op in expects):
            continue
        expecting = {q for op in expects for q in homes(op) or ()}
        for copy in phase.copies:
            hit = _lands(kernel, copy, expecting)
            if certain(kernel, copy.op, hit[:, None]):
                told.add(phase.ring.name)
                yield kernel.finding(
                    "TMA-04",
                    f"copy signals {phase.ring.name} in a CTA that expects nothing on it: its bytes count"
                    " against no expectation",
                    copy.op, phase.expect, "expected here, in other CTAs",
                )  # fmt: skip
                break


class _Homes:
    """CTAs on whose barrier each instruction may act; None where one is not known."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._of: dict[int, set[int] | None] = {}

    def __call__(self, op: Op) -> set[int] | None:
        if op.index not in self._of:
            self._of[op.index] = _find_homes(self._kernel, op)
        return self._of[op.index]


def _find_homes(kernel: Kernel, op: Op) -> set[int] | None:
    value = kernel.value(op, "mbar")
    found: set[int] = set()
    for rank, row in enumerate(kernel.threads(op)[0]):
        for thread in np.flatnonzero(row) if value is not None else ():
            only = np.zeros(row.size, dtype=bool)
            only[thread] = True
            where = home(kernel, value, rank, only) if value is not None else None
            if where is None:
                return None
            found.add(where)
    return found


def _lands(kernel: Kernel, copy: Copy, expecting: set[int]) -> np.ndarray:
    return np.array(
        [
            any(
                q not in expecting and _parts(kernel, copy, issuer, q)
                for q in range(kernel.shape.ranks)
            )
            for issuer in range(kernel.shape.ranks)
        ]
    )


@rule(
    "TMA-13", "error", section="9.7.9.27.1.2",
    help="expect the bytes of both CTAs on the barrier of the pair's leader, and none on the other",
)  # fmt: skip
def leader_expects_for_both(kernel: Kernel) -> Iterator[Outcome]:
    """With .cta_group::2 loads the barrier that is signalled expects the bytes of both CTAs."""
    yield from _unsignalled(kernel, "TMA-13", pair=True)
    told: set[str] = set()
    for phase in kernel.view(_phases):
        if isinstance(phase, tuple) or phase.ring.name in told:
            continue
        if any(copy.pair for copy in phase.copies):
            told.add(phase.ring.name)
            yield kernel.undecided(
                "TMA-13",
                f"whether {phase.expected} bytes are those of both CTAs: the boxes stand in the tensor map",
                phase.expect,
            )

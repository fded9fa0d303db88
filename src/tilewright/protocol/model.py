"""The words of a protocol: roles and their steps, barriers and who signals them, rings of slots.

    Role     warps that run one program, in some CTAs of the cluster
    Step     one line of a program: wait, expect_tx, load, mma, commit, read, write, arrive, request
    Barrier  an mbarrier a stage; who arrives on it, what completes its bytes, whose copy it is
    Ring     slots that are filled and drained in turn; a full and an empty barrier guard them
    Sync     what is not an mbarrier: barrier.cluster, bar.sync, cp.async and bulk groups

Counts are never stored. `arrive_count` adds up the signals that reach a barrier in one phase, and
`tx_bytes` the bytes of the copies that land on it; both ask the roles and the masks.

Order is FIFO. The i-th wait of a role on a barrier means stage i % depth and parity (i // depth) & 1,
inverted for an empty barrier; the i-th arrival of a role belongs to use i. So programs carry no indices.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

from tilewright.errors import TilewrightError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

Op = Literal[
    "wait", "expect_tx", "load", "mma", "commit", "read", "write", "arrive", "request", "sync"
]
Each = Literal["thread", "warp", "warpgroup"]
Owner = Literal["own CTA", "leader of the pair", "every CTA of the mask", "rank 0 of the cluster"]

MBARRIER_BYTES = 8
"""Size and alignment of an mbarrier. Source: PTX ISA, mbarrier, size and alignment."""

COUNT_MAX = 2**20 - 1
"""Largest arrive count and tx-count of an mbarrier. Source: PTX ISA, contents of the mbarrier object."""


class ProtocolError(TilewrightError):
    """A ledger that contradicts itself; a defect of the planner, not of the input."""


class Step(NamedTuple):
    """One line of a role's program.

    Attributes:
        op: what happens.
        barrier: waited on or signalled; for load and request, the one whose bytes it completes.
        reads, writes: rings whose current slot it touches.
        ranks: CTAs in which the role does this; None for all CTAs of the role.
        once: the role's first warp alone does it.
        text: the instructions, in PTX's words.
    """

    op: Op
    barrier: str = ""
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    ranks: tuple[int, ...] | None = None
    once: bool = False
    text: str = ""


@dataclass(frozen=True, slots=True)
class Program:
    """What a role runs.

    Attributes:
        first: once a tile, before the k loop.
        body: once a k step (a stage of a GEMM, a key block of attention).
        last: once a tile, after the k loop.
        fetch: once a tile, to learn the next one; `arrive` in it is done only for a granted tile.
        drain: after the last tile; a wait there covers every stage of its ring.
        peeled: k steps that `first` has already done.
    """

    first: tuple[Step, ...] = ()
    body: tuple[Step, ...] = ()
    last: tuple[Step, ...] = ()
    fetch: tuple[Step, ...] = ()
    drain: tuple[Step, ...] = ()
    peeled: int = 0

    @property
    def steps(self) -> tuple[Step, ...]:
        """All steps in program order."""
        return self.first + self.body + self.last + self.fetch + self.drain


@dataclass(frozen=True, slots=True)
class Role:
    """Warps that run one program.

    Attributes:
        warps: warp indices in the CTA.
        ranks: %cluster_ctarank of the CTAs in which the role runs.
        does: its job in one line.
    """

    name: str
    warps: tuple[int, ...]
    ranks: tuple[int, ...]
    does: str
    program: Program = field(default_factory=Program)

    @property
    def threads(self) -> int:
        """Threads a CTA."""
        return 32 * len(self.warps)

    def arrivals(self, each: Each) -> int:
        """Arrivals of one CTA's role on one barrier: an elected thread, one lane a warp or a warpgroup."""
        return {"thread": 1, "warp": len(self.warps), "warpgroup": len(self.warps) // 4}[each]


class Signal(NamedTuple):
    """Arrivals of one role on a barrier, once a phase.

    Attributes:
        op: expect_tx, arrive or commit.
        each: who arrives: the role's elected thread, a lane of each warp, a thread of each warpgroup.
        targets: sender's rank -> mask of the CTAs whose barrier it reaches.
        order: of an arrive; None where the targets say it: release.cta when each is the sender's own CTA,
            else release.cluster, which compiles to a fence of the whole GPU. "relaxed" (relaxed.cluster) where
            the sender publishes nothing generic.
    """

    role: str
    op: Op
    each: Each
    targets: Mapping[int, int]
    order: Literal["relaxed"] | None = None

    @property
    def is_local(self) -> bool:
        """Every arrival is on a barrier of the sender's CTA."""
        return all(mask == 1 << rank for rank, mask in self.targets.items())


class Transfer(NamedTuple):
    """An asynchronous write that completes transaction bytes.

    Attributes:
        bytes: written in each CTA of the mask.
        targets: issuer's rank -> mask of the CTAs that are written.
    """

    role: str
    what: str
    bytes: int
    targets: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Barrier:
    """An mbarrier, `depth` copies of it in each CTA of `home`.

    Attributes:
        kind: waits on a full barrier start at parity 0 and block; on an empty one at 1 and pass at once.
        home: CTA -> the CTA whose copy stands for it.
        owner: the same in words.
        releases: what a completed phase permits.
        order: fences and scopes around it.
        rules: ids of the PTX contract that the row satisfies.
    """

    name: str
    depth: int
    kind: Literal["full", "empty"]
    home: Mapping[int, int]
    owner: Owner
    signals: tuple[Signal, ...]
    releases: str
    order: str
    rules: tuple[str, ...]
    transfers: tuple[Transfer, ...] = ()

    @property
    def first_parity(self) -> int:
        """Parity of the first wait."""
        return 0 if self.kind == "full" else 1

    @property
    def homes(self) -> tuple[int, ...]:
        """Ranks whose copy is used."""
        return tuple(sorted(set(self.home.values())))

    def parity(self, use: int) -> int:
        """Parity that the wait for the `use`-th use of the ring names."""
        return (use // self.depth & 1) ^ self.first_parity

    def landing(self, rank: int) -> list[int]:
        """Bytes of every copy whose completion is counted on the barrier of `rank` in one phase."""
        return [
            transfer.bytes
            for transfer in self.transfers
            for mask in transfer.targets.values()
            for cta in ranks_of(mask)
            if self.home[cta] == rank
        ]


class Ring(NamedTuple):
    """Slots that are used in turn.

    Attributes:
        space: "smem" or "tmem".
        size: bytes a slot, or TMEM columns.
        full, empty: barriers that permit reading and overwriting; empty where program order does.
        write_guard, read_guard: barrier whose waits number the writer's and the reader's uses; empty
            for program order.
        readable, overwritable: the same in words.
    """

    name: str
    depth: int
    space: Literal["smem", "tmem"]
    size: int
    full: str
    empty: str
    readable: str
    overwritable: str
    write_guard: str
    read_guard: str


class Effect(NamedTuple):
    """What a wrong number does: deadlock, race, invalid (refused at once) or slower."""

    effect: Literal["deadlock", "race", "invalid", "slower"]
    why: str


class Sync(NamedTuple):
    """A row of the ledger that is not an mbarrier."""

    name: str
    storage: str
    arrive_count: int
    who: str
    how: str
    releases: str
    too_low: Effect
    too_high: Effect
    rules: tuple[str, ...]


class Parts(NamedTuple):
    """What a kernel family contributes; a scheduler adds to it."""

    roles: tuple[Role, ...]
    barriers: tuple[Barrier, ...] = ()
    rings: tuple[Ring, ...] = ()
    syncs: tuple[Sync, ...] = ()
    notes: tuple[str, ...] = ()


def ranks_of(mask: int) -> list[int]:
    """Ranks whose bit is set, lowest first."""
    return [rank for rank in range(mask.bit_length()) if mask >> rank & 1]


def mask_of(ranks: Iterable[int]) -> int:
    """A 16-bit CTA mask: bit i is %cluster_ctarank i."""
    mask = 0
    for rank in ranks:
        mask |= 1 << rank
    return mask


def arrive_count(barrier: Barrier, roles: Sequence[Role]) -> int:
    """Arrivals that end one phase: what mbarrier.init is given.

    Raises:
        ProtocolError: the CTAs of a cluster would need different counts.
    Source: PTX ISA, mbarrier, phase completion.
    """
    by_name = {role.name: role for role in roles}
    counts = {
        rank: sum(
            by_name[signal.role].arrivals(signal.each)
            for signal in barrier.signals
            for mask in signal.targets.values()
            if mask >> rank & 1
        )
        for rank in barrier.homes
    }
    return _same(barrier.name, "arrive count", counts)


def tx_bytes(barrier: Barrier) -> int:
    """Bytes that arrive.expect_tx announces on the barrier each phase.

    Raises:
        ProtocolError: the CTAs of a cluster would need different numbers.
    """
    totals = {rank: sum(barrier.landing(rank)) for rank in barrier.homes}
    return _same(barrier.name, "tx bytes", totals)


def _same(name: str, what: str, values: Mapping[int, int]) -> int:
    if len(set(values.values())) != 1:
        raise ProtocolError(f"barrier {name}: {what} differs by CTA: {dict(values)}", given=name)
    value = next(iter(values.values()))
    if not 0 <= value <= COUNT_MAX:
        raise ProtocolError(
            f"barrier {name}: {what} {value} is outside 0 to {COUNT_MAX}",
            given=value,
            allowed=f"0 to {COUNT_MAX}",
        )
    return value


def wait(barrier: str, ranks: tuple[int, ...] | None = None, text: str = "") -> Step:
    """Wait for the current use of `barrier`."""
    return Step(
        "wait", barrier, ranks=ranks, text=text or "mbarrier.try_wait.parity.acquire.cluster"
    )


def expect_tx(barrier: str, ranks: tuple[int, ...] | None = None) -> Step:
    """Arrive once and announce the phase's bytes, in one instruction (MBAR-06)."""
    return Step("expect_tx", barrier, ranks=ranks, text="mbarrier.arrive.expect_tx")


def arrive(barrier: str, ranks: tuple[int, ...] | None = None, text: str = "") -> Step:
    """Arrive by a thread, own CTA or remote."""
    return Step("arrive", barrier, ranks=ranks, text=text or "mbarrier.arrive.release.cluster")

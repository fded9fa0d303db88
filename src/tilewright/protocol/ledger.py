"""Tables over a protocol: the barrier ledger, the phases, the slots, the traffic between CTAs.

Everything here is read off roles, barriers and rings. What a wrong count does follows from the count:
one too many never comes, so the phase never ends (deadlock); one too few ends the phase while a
participant is still at work (race). A count of one has no lower neighbour: mbarrier.init refuses zero.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tilewright.protocol.model import (
    COUNT_MAX,
    MBARRIER_BYTES,
    Barrier,
    Effect,
    Ring,
    Role,
    Signal,
    Step,
    Sync,
    arrive_count,
    ranks_of,
    tx_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

DSMEM_ALIGNMENT = 32
"""Bytes: DSMEM accesses are coalesced in segments of 32, so buffers start on one and have unit stride.
Source: CUDA Programming Guide, distributed shared memory."""


def ledger_rows(
    barriers: Sequence[Barrier], syncs: Sequence[Sync], roles: Sequence[Role], cluster_size: int
) -> list[dict[str, Any]]:
    """The barrier ledger: a row a barrier, mbarriers first."""
    rows = [_barrier_row(barrier, roles, cluster_size) for barrier in barriers]
    return rows + [_sync_row(sync) for sync in syncs]


def _barrier_row(barrier: Barrier, roles: Sequence[Role], cluster_size: int) -> dict[str, Any]:
    count, tx = arrive_count(barrier, roles), tx_bytes(barrier)
    return {
        "name": f"{barrier.name}[{barrier.depth}]",
        "barrier": barrier.name,
        "depth": barrier.depth,
        "storage": f"mbarrier, {MBARRIER_BYTES} bytes, shared::cta, {MBARRIER_BYTES}-byte aligned",
        "init": init_scope(cluster_size),
        "arrive_count": count,
        "tx_bytes": tx,
        "producer": _producers(barrier),
        "arrives_by": [_arrival(signal, roles) for signal in barrier.signals],
        "consumer": [role.name for role in roles if waits_on(role, barrier.name)],
        "wait": f"stage i % {barrier.depth}, parity (i // {barrier.depth} & 1)"
        + (" ^ 1" if barrier.first_parity else ""),
        "first_parity": barrier.first_parity,
        "releases": barrier.releases,
        "order": barrier.order,
        "whose": barrier.owner,
        "mask": {s.role: _masks(s.targets) for s in barrier.signals},
        "count_too_low": count_too_low(barrier, count)._asdict(),
        "count_too_high": count_too_high(barrier, count)._asdict(),
        "tx_too_low": _optional(tx_too_low(barrier, tx)),
        "tx_too_high": _optional(tx_too_high(tx)),
        "rules": list(barrier.rules),
    }


def _sync_row(sync: Sync) -> dict[str, Any]:
    return {
        "name": sync.name,
        "barrier": sync.name,
        "depth": 1,
        "storage": sync.storage,
        "init": "none",
        "arrive_count": sync.arrive_count,
        "tx_bytes": 0,
        "producer": [sync.who],
        "arrives_by": [sync.how],
        "consumer": [sync.who],
        "wait": "no parity: the instruction blocks",
        "first_parity": None,
        "releases": sync.releases,
        "order": sync.how,
        "whose": "own CTA" if "cluster" not in sync.name else "the cluster",
        "mask": {},
        "count_too_low": sync.too_low._asdict(),
        "count_too_high": sync.too_high._asdict(),
        "tx_too_low": None,
        "tx_too_high": None,
        "rules": list(sync.rules),
    }


def init_scope(cluster_size: int) -> str:
    """How an mbarrier's initialisation becomes visible before its first use."""
    if cluster_size == 1:
        return "one thread: mbarrier.init; fence.mbarrier_init.release.cluster; then __syncthreads"
    return (
        "one thread of each CTA: mbarrier.init; fence.mbarrier_init.release.cluster; then "
        "barrier.cluster.arrive and .wait by all threads, before any remote use"
    )


def waits_on(role: Role, barrier: str) -> bool:
    """The role waits on this barrier."""
    return any(step.op == "wait" and step.barrier == barrier for step in role.program.steps)


def _producers(barrier: Barrier) -> list[str]:
    names = [s.role for s in barrier.signals] + [t.role for t in barrier.transfers]
    return list(dict.fromkeys(names))


_HOW = {
    "expect_tx": "mbarrier.arrive.expect_tx",
    "commit": "tcgen05.commit.mbarrier::arrive::one",
}


def _how(signal: Signal) -> str:
    """The instruction of an arrival."""
    order = "release.cta" if signal.is_local else "release.cluster"
    return _HOW.get(signal.op, f"mbarrier.arrive.{'relaxed.cluster' if signal.order else order}")


_EACH = {
    "thread": "an elected thread",
    "warp": "a lane of each warp",
    "warpgroup": "a thread of each warpgroup",
}


def _arrival(signal: Signal, roles: Sequence[Role]) -> str:
    role = next(r for r in roles if r.name == signal.role)
    count = role.arrivals(signal.each)
    senders = len(signal.targets)
    where = "" if signal.is_local else " through mapa or multicast"
    return (
        f"{_how(signal)} by {role.name}: {count} a CTA ({_EACH[signal.each]}), "
        f"{senders} CTA{'s' if senders > 1 else ''}{where}"
    )


def _masks(targets: Mapping[int, int]) -> dict[str, str]:
    return {str(rank): hex(mask) for rank, mask in sorted(targets.items())}


def _optional(effect: Effect | None) -> dict[str, str] | None:
    return effect._asdict() if effect else None


def count_too_high(barrier: Barrier, count: int) -> Effect:
    """What init with `count` + 1 does."""
    first = barrier.depth if barrier.kind == "empty" else 0
    return Effect(
        "deadlock",
        f"arrival {count + 1} never comes; the wait of use {first} is the first that never ends",
    )


def count_too_low(barrier: Barrier, count: int) -> Effect:
    """What init with `count` - 1 does."""
    if count == 1:
        return Effect("invalid", f"mbarrier.init takes 1 to {COUNT_MAX} (MBAR-02)")
    return Effect(
        "race",
        f"the phase ends one arrival early and permits: {barrier.releases}, while a participant is still "
        "at it; surplus arrivals fall into the next phases, and once they make up one, waits hang too",
    )


def tx_too_low(barrier: Barrier, tx: int) -> Effect | None:
    """What expecting fewer bytes does; None where no bytes are counted."""
    if not tx:
        return None
    if len(barrier.landing(barrier.homes[0])) == 1:
        return Effect("deadlock", "one copy takes the tx-count below zero, where it stays")
    return Effect(
        "race",
        "the phase ends once the copies that landed first add up to the expectation, before the rest is "
        "there; where no subset adds up, the tx-count passes zero and the wait never ends",
    )


def tx_too_high(tx: int) -> Effect | None:
    """What expecting more bytes does; None where no bytes are counted."""
    if not tx:
        return None
    return Effect("deadlock", "the missing bytes never come; the first wait never ends")


def phase_rows(
    barriers: Sequence[Barrier], roles: Sequence[Role], uses: int | None = None
) -> list[dict[str, Any]]:
    """Parities by role and barrier: the first wait, one steady lap, and the drain.

    Args:
        uses: uses of each ring in the whole kernel; two laps where not given.
    """
    return [
        row
        for role in roles
        for barrier in barriers
        if waits_on(role, barrier.name)
        for row in _phases_of(role, barrier, 2 * barrier.depth if uses is None else uses)
    ]


def _phases_of(role: Role, barrier: Barrier, uses: int) -> Iterator[dict[str, Any]]:
    depth = barrier.depth
    drains = any(s.barrier == barrier.name and s.op == "wait" for s in role.program.drain)
    yield _phase(
        role, barrier, "prologue", 0, "passes at once" if barrier.first_parity else "blocks"
    )
    for use in range(depth, 2 * depth):
        yield _phase(role, barrier, "steady", use, f"needs phase {_needed(barrier, use)} complete")
    if not drains:
        yield _phase(
            role, barrier, "drain", max(uses - 1, 0), "the last wait; nothing is left in flight"
        )
        return
    for use in range(uses, uses + depth):
        needed = _needed(barrier, use)
        text = f"needs phase {needed} complete" if needed >= 0 else "passes at once: never used"
        yield _phase(role, barrier, "drain", use, text)


def _needed(barrier: Barrier, use: int) -> int:
    """The phase of its stage that the wait of `use` needs; negative before the first."""
    return use // barrier.depth - barrier.first_parity


def _phase(role: Role, barrier: Barrier, when: str, use: int, text: str) -> dict[str, Any]:
    return {
        "role": role.name,
        "barrier": barrier.name,
        "when": when,
        "use": use,
        "stage": use % barrier.depth,
        "parity": barrier.parity(use),
        "note": text,
    }


def slot_rows(rings: Sequence[Ring], roles: Sequence[Role]) -> list[dict[str, Any]]:
    """When each SMEM and TMEM slot may be read, and when it is overwritten."""
    return [
        {
            "slot": f"{ring.name}[{ring.depth}]",
            "space": ring.space,
            "bytes" if ring.space == "smem" else "columns": ring.size,
            "depth": ring.depth,
            "written_by": _touching(roles, ring.name, "writes"),
            "read_by": _touching(roles, ring.name, "reads"),
            "full_barrier": ring.full,
            "empty_barrier": ring.empty,
            "may_be_read": ring.readable,
            "may_be_overwritten": ring.overwritable,
        }
        for ring in rings
    ]


def _touching(roles: Sequence[Role], ring: str, how: str) -> list[str]:
    return [r.name for r in roles if any(ring in getattr(s, how) for s in r.program.steps)]


def dsmem_rows(
    barriers: Sequence[Barrier], rings: Sequence[Ring], roles: Sequence[Role]
) -> list[dict[str, Any]]:
    """Everything that crosses from one CTA's shared memory to another's; empty for one CTA."""
    rows = []
    for barrier in barriers:
        buffer = next((r.name for r in rings if barrier.name in {r.full, r.empty}), barrier.name)
        consumers = [role.name for role in roles if waits_on(role, barrier.name)]
        completes = {str(cta): home for cta, home in sorted(barrier.home.items())}
        rows += [
            _dsmem_row(buffer, t.what, t.bytes, t.role, consumers, t.targets)
            | {"completes_on_barrier_of": completes}
            for t in barrier.transfers
            if _remote(t.targets) or _foreign(barrier, t.targets)
        ]
        rows += [
            _dsmem_row(barrier.name, f"arrival ({_how(s)})", 0, s.role, consumers, s.targets)
            for s in barrier.signals
            if _remote(s.targets)
        ]
    return rows


def _remote(targets: Mapping[int, int]) -> bool:
    return any(mask & ~(1 << rank) for rank, mask in targets.items())


def _foreign(barrier: Barrier, targets: Mapping[int, int]) -> bool:
    return any(barrier.home[cta] != cta for mask in targets.values() for cta in ranks_of(mask))


def _dsmem_row(
    buffer: str,
    what: str,
    size: int,
    producer: str,
    consumers: list[str],
    targets: Mapping[int, int],
) -> dict[str, Any]:
    return {
        "what": what,
        "local_buffer": f"{buffer} of the sender",
        "remote_buffer": f"{buffer} at the same offset in each CTA of the mask",
        "bytes": size,
        "producer": producer,
        "consumers": consumers,
        "mask": _masks(targets),
        "alignment_bytes": DSMEM_ALIGNMENT if size else MBARRIER_BYTES,
        "unit_stride": True,
        "fence": "barrier.cluster after mbarrier.init; then release.cluster by the sender, "
        "acquire.cluster by the waiter",
        "alive": "from the prologue's cluster barrier to the exit cluster barrier",
        "rules": ["CLU-01", "CLU-02", "CLU-06", "MBAR-13"],
    }


def render_step(step: Step) -> str:
    """One line of a program for a reader."""
    words: list[str] = [step.op]
    words += [step.barrier] if step.barrier else []
    words += [f"reads {', '.join(step.reads)}"] if step.reads else []
    words += [f"writes {', '.join(step.writes)}"] if step.writes else []
    words += [f"[ranks {', '.join(map(str, step.ranks))}]"] if step.ranks is not None else []
    words += ["[first warp]"] if step.once else []
    return " ".join(words) + (f": {step.text}" if step.text else "")

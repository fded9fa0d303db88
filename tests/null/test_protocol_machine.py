"""Plays the roles of a protocol through its ledger, under random interleavings.

A token machine, independent of the tables in the package: it knows what an mbarrier is (PTX ISA:
arrivals, tx-count, phase, parity wait), that loads, MMAs and remote arrivals take effect later, and that
a slot may be read only when it is whole and overwritten only when every reader has let go of it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NamedTuple

import pytest
from hypothesis import given, settings, strategies as st

from tilewright.attention import AttentionTiling
from tilewright.device import load
from tilewright.protocol import (
    Protocol,
    Role,
    Signal,
    Step,
    make_attention_protocol,
    make_protocol,
    make_tiles_protocol,
    ranks_of,
)
from tilewright.tiling import make_tiling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.device import Device

B200, H200 = load("b200"), load("h200")


class Violation(Exception):
    """The machine saw something that the PTX contract forbids."""


@dataclass
class Mbarrier:
    """PTX ISA, mbarrier: a phase ends when no arrival and no byte is pending."""

    count: int
    pending: int = field(init=False)
    tx: int = 0
    phase: int = 0

    def __post_init__(self) -> None:
        self.pending = self.count

    def arrive(self) -> None:
        if not self.pending:
            raise Violation("underflow")
        self.pending -= 1
        self.check()

    def check(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.count

    def complete_tx(self, size: int) -> None:
        self.tx -= size
        self.check()

    def passes(self, parity: int) -> bool:
        return self.phase & 1 != parity


class Act(NamedTuple):
    """A step with its uses resolved: which use of the barrier, and of each ring."""

    step: Step
    use: int
    reads: tuple[tuple[str, int], ...]
    writes: tuple[tuple[str, int], ...]


@dataclass
class Actor:
    """One warp of one role in one CTA; `grouped` ones meet at wgmma."""

    role: Role
    rank: int
    unit: int
    grouped: bool
    acts: list[Act]
    reach: tuple[int, ...]
    is_async: bool
    at: int = 0
    queue: list[Act] = field(default_factory=list)


class Machine:
    """One cluster running `tiles` tiles of `k_steps` each.

    Each seed picks a straggler, who acts only when nobody else can, and a CTA to which bytes are late;
    everything else is uniform.
    """

    def __init__(
        self,
        protocol: Protocol,
        tiles: int,
        k_steps: int,
        seed: int,
        *,
        counts: dict[str, int] | None = None,
        tx: dict[str, int] | None = None,
        one_copy: tuple[str, ...] = (),
    ) -> None:
        self.p, self.rng = protocol, random.Random(seed)
        self.barriers = {b.name: b for b in protocol.barriers}
        self.rings = {r.name: r for r in protocol.rings}
        self.copies = {b.name: 1 if b.name in one_copy else b.depth for b in protocol.barriers}
        self.tx = {b.name: protocol.tx_bytes(b.name) for b in protocol.barriers} | (tx or {})
        count = {b.name: protocol.arrive_count(b.name) for b in protocol.barriers} | (counts or {})
        self.mbar = {
            (b.name, rank, stage): Mbarrier(count[b.name])
            for b in protocol.barriers
            for rank in b.homes
            for stage in range(self.copies[b.name])
        }
        self.signals = {(s.role, b.name, s.op): s for b in protocol.barriers for s in b.signals}
        self.flying: list[tuple[str, tuple[object, ...]]] = []
        self.written: Counter[tuple[str, int, int]] = Counter()
        self.expected: Counter[tuple[str, int, int]] = Counter()
        self.begun: dict[tuple[str, int, int], int] = {}
        self.n_reads: Counter[tuple[str, int, int]] = Counter()
        self.n_released: Counter[tuple[str, int, int]] = Counter()
        self.readers: dict[tuple[str, int], set[int]] = defaultdict(set)
        self.actors = [a for r in protocol.roles for a in self._actors(r, tiles, k_steps)]
        self._expect()
        self.straggler = self.rng.randrange(-1, len(self.actors))
        self.late = self.rng.randrange(-1, protocol.cluster_size)

    # -- building

    def _actors(self, role: Role, tiles: int, k_steps: int) -> list[Actor]:
        mine = [s for (name, _, _), s in self.signals.items() if name == role.name]
        grouped = any(s.each == "warpgroup" for s in mine)
        commits = any(s.op == "commit" for s in mine)
        actors = []
        for rank in role.ranks:
            reach = (rank, rank | 1) if commits and self.p.cta_group == 2 else (rank,)
            for unit in range(len(role.warps)):
                acts = self._unroll(role, rank, unit, tiles, k_steps)
                if grouped and unit % 4:  # wgmma, and the store of its rows, are the warpgroup's:
                    together = {"mma", "read"}  # its first warp stands for it
                    acts = [a._replace(reads=()) if a.step.op in together else a for a in acts]
                actors.append(Actor(role, rank, unit, grouped, acts, reach, commits))
        return actors

    def _unroll(self, role: Role, rank: int, unit: int, tiles: int, k_steps: int) -> list[Act]:
        program, steps = role.program, []
        for tile in range(tiles):
            steps += [*program.first, *program.body * (k_steps - program.peeled), *program.last]
            granted = tile + 1 < tiles
            steps += [s for s in program.fetch if granted or s.op != "arrive"]
        for s in program.drain:
            steps += [s] * self.barriers[s.barrier].depth
        waits: Counter[str] = Counter()
        signals: Counter[tuple[str, str]] = Counter()
        touched: Counter[tuple[str, str]] = Counter()
        acts = []
        for s in steps:
            if (s.ranks is not None and rank not in s.ranks) or (s.once and unit):
                continue
            if s.op == "sync":
                continue
            counter = waits if s.op == "wait" else signals
            key = s.barrier if s.op == "wait" else (s.barrier, s.op)
            use = counter[key]  # type: ignore[index]
            counter[key] += 1  # type: ignore[index]

            def uses(
                names: tuple[str, ...], how: str, waits: Counter[str] = waits
            ) -> tuple[tuple[str, int], ...]:
                out = []
                for name in names:
                    ring = self.rings[name]
                    guard = ring.read_guard if how == "r" else ring.write_guard
                    waited = guard in waits  # who never waits there keeps count by itself
                    out.append((name, waits[guard] - 1 if waited else touched[name, how]))
                    touched[name, how] += 1
                return tuple(out)

            acts.append(Act(s, use, uses(s.reads, "r"), uses(s.writes, "w")))
        return acts

    @staticmethod
    def _reach(actor: Actor, act: Act) -> tuple[int, ...]:
        return actor.reach if act.step.op == "mma" else (actor.rank,)

    def _destinations(self, actor: Actor, act: Act, ring: str) -> list[int]:
        """CTAs whose slot this write reaches, once a piece."""
        full = self.barriers[self.rings[ring].full]
        if act.step.op in {"load", "request"}:
            return [
                cta
                for t in full.transfers
                if t.role == actor.role.name and actor.rank in t.targets
                for cta in ranks_of(t.targets[actor.rank])
            ]
        if act.step.op == "mma":
            return list(actor.reach)
        signal = self.signals[actor.role.name, full.name, "arrive"]
        return ranks_of(signal.targets[actor.rank])

    def _expect(self) -> None:
        for index, actor in enumerate(self.actors):
            for act in actor.acts:
                for ring, use in act.writes:
                    for cta in self._destinations(actor, act, ring):
                        self.expected[ring, cta, use] += 1
                for ring, _ in act.reads:
                    for cta in self._reach(actor, act):
                        self.readers[ring, cta].add(index)

    # -- slots

    def _begin_write(self, ring: str, cta: int, use: int) -> None:
        depth = self.rings[ring].depth
        for reader in self.readers[ring, cta]:
            done = min(self.n_reads[ring, cta, reader], self.n_released[ring, cta, reader])
            if use >= depth and done < use - depth + 1:
                raise Violation(f"race: {ring}[{use % depth}] of CTA {cta} overwritten before read")
        self.begun[ring, cta, use % depth] = use

    def _read(self, index: int, ring: str, cta: int, use: int) -> None:
        whole = self.written[ring, cta, use] == self.expected[ring, cta, use]
        if not whole or self.begun.get((ring, cta, use % self.rings[ring].depth)) != use:
            raise Violation(f"race: {ring} use {use} of CTA {cta} read before it is whole")
        depth_key = (ring, cta, index)
        self.n_reads[depth_key] = max(self.n_reads[depth_key], use + 1)

    def _released(self, index: int, actor: Actor, barrier: str) -> None:
        for ring in self.rings.values():
            if ring.empty == barrier:
                for cta in actor.reach:
                    self.n_released[ring.name, cta, index] += 1

    # -- running

    def run(self) -> str:
        """ "ok", "deadlock", or what went wrong."""
        try:
            while (choice := self._choose()) is not None:
                kind, index = choice
                getattr(self, f"_{kind}")(index)
        except Violation as violation:
            return str(violation).split(":")[0]
        finished = all(a.at == len(a.acts) for a in self.actors)
        return "ok" if finished else "deadlock"

    def _choose(self) -> tuple[str, int] | None:
        """What happens next, by rejection; laggards only when nothing else can."""
        actors = len(self.actors)
        for _ in range(40):
            drawn = self.rng.randrange(2 * actors + len(self.flying))
            kind = ("act", "exec", "land")[min(drawn // actors, 2)]
            index = drawn - 2 * actors if kind == "land" else drawn % actors
            if self._possible(kind, index) and self._prompt(kind, index):
                return kind, index
        everything = [(kind, i) for kind in ("act", "exec") for i in range(actors)]
        everything += [("land", i) for i in range(len(self.flying))]
        choices = [c for c in everything if self._possible(*c)]
        prompt = [c for c in choices if self._prompt(*c)]
        return self.rng.choice(prompt or choices) if choices else None

    def _possible(self, kind: str, index: int) -> bool:
        if kind == "exec":
            return bool(self.actors[index].queue)
        return kind == "land" or self._ready(index)

    def _prompt(self, kind: str, index: int) -> bool:
        if kind == "land":
            return self.flying[index][0] == "arrive" or self.flying[index][1][-1] != self.late
        return index != self.straggler

    def _mbar(self, barrier: str, rank: int, use: int) -> Mbarrier:
        return self.mbar[barrier, rank, use % self.copies[barrier]]

    def _ready(self, index: int) -> bool:
        actor = self.actors[index]
        if actor.at == len(actor.acts):
            return False
        act = actor.acts[actor.at]
        if actor.grouped and act.step.op == "mma":  # .sync.aligned: the whole warpgroup has come
            start = index - actor.unit % 4
            return all(self.actors[i].at >= actor.at for i in range(start, start + 4))
        if act.step.op != "wait":
            return True
        barrier = self.barriers[act.step.barrier]
        parity = (act.use // self.copies[barrier.name] & 1) ^ barrier.first_parity
        return self._mbar(barrier.name, actor.rank, act.use).passes(parity)

    def _act(self, index: int) -> None:
        actor = self.actors[index]
        act = actor.acts[actor.at]
        actor.at += 1
        if act.step.op == "wait":
            self._check_wait(actor, act)
        elif actor.is_async and act.step.op in {"mma", "commit"}:
            actor.queue.append(act)
        elif act.step.op in {"arrive", "expect_tx"}:
            self._signal(index, act)
        elif act.step.op in {"load", "request"}:
            self._issue(actor, act)
        else:
            self._touch(index, act)
        if actor.at == len(actor.acts):
            self._check_exit(actor)

    def _check_wait(self, actor: Actor, act: Act) -> None:
        barrier = self.barriers[act.step.barrier]
        needed = act.use // self.copies[barrier.name] + 1 - barrier.first_parity
        if self._mbar(barrier.name, actor.rank, act.use).phase < needed:
            raise Violation("race: a wait passed by aliased parity")

    def _check_exit(self, actor: Actor) -> None:
        drained = {s.barrier for s in actor.role.program.drain}
        for _, what in self.flying:
            if what[0] in drained and what[1] == actor.rank:
                raise Violation("race: an arrival is still on its way to a role that left")

    def _exec(self, index: int) -> None:
        act = self.actors[index].queue.pop(0)
        if act.step.op == "commit":
            self._signal(index, act)
        else:
            self._touch(index, act)

    def _touch(self, index: int, act: Act) -> None:
        actor = self.actors[index]
        for ring, use in act.reads:
            for cta in self._reach(actor, act):
                self._read(index, ring, cta, use)
        for ring, use in act.writes:
            for cta in self._destinations(actor, act, ring):
                self._begin_write(ring, cta, use)
                self.written[ring, cta, use] += 1

    def _issue(self, actor: Actor, act: Act) -> None:
        barrier = self.barriers[act.step.barrier]
        ((ring, use),) = act.writes
        for t in barrier.transfers:
            if t.role != actor.role.name or actor.rank not in t.targets:
                continue
            for cta in ranks_of(t.targets[actor.rank]):
                self._begin_write(ring, cta, use)
                self.flying.append(
                    ("bytes", (barrier.name, barrier.home[cta], use, t.bytes, ring, cta))
                )

    def _signal(self, index: int, act: Act) -> None:
        actor, name = self.actors[index], act.step.barrier
        signal: Signal = self.signals[actor.role.name, name, act.step.op]
        self._released(index, actor, name)
        if actor.unit % {"thread": len(actor.role.warps), "warpgroup": 4, "warp": 1}[signal.each]:
            return
        for rank in ranks_of(signal.targets[actor.rank]):
            if act.step.op == "expect_tx":
                self._mbar(name, rank, act.use).tx += self.tx[name]
            if rank == actor.rank and act.step.op != "commit":
                self._mbar(name, rank, act.use).arrive()
            else:
                self.flying.append(("arrive", (name, rank, act.use)))

    def _land(self, index: int) -> None:
        self.flying[index], self.flying[-1] = self.flying[-1], self.flying[index]
        kind, what = self.flying.pop()
        if kind == "arrive":
            name, rank, use = what
            self._mbar(name, rank, use).arrive()  # type: ignore[arg-type]
            return
        name, home, use, size, ring, cta = what
        self.written[ring, cta, use] += 1  # type: ignore[index]
        self._mbar(name, home, use).complete_tx(size)  # type: ignore[arg-type]


LENGTHS = ((4, 6), (3, 1), (3, 3))
"""Tiles and k steps to try: a few surplus arrivals make up a phase, and then waits hang instead."""


def outcomes(protocol: Protocol, seeds: int = 30, **wrong: object) -> Iterator[str]:
    """How runs of different lengths and interleavings end."""
    for seed in range(seeds):
        for tiles, k in LENGTHS:
            yield Machine(protocol, tiles, k, seed, **wrong).run()  # type: ignore[arg-type]


def tcgen05(
    cluster: tuple[int, int, int] = (1, 1, 1),
    group: int = 1,
    stages: int = 3,
    scheduler: str = "clc",
    depth: int = 1,
    dtype: str = "bf16",
    accumulators: int = 2,
) -> Protocol:
    tiling = make_tiling(
        dtype,
        2,
        B200,
        cta_tile=(128, 128),
        cluster_shape=cluster,
        cta_group=group,
        num_stages=stages,
        accumulator_stages=accumulators,
    )
    return make_protocol(tiling, scheduler, B200, clc_depth=depth)


def wgmma(
    cluster: tuple[int, int, int] = (1, 1, 1),
    stages: int = 3,
    scheduler: str = "dynamic_atomic",
    depth: int = 1,
) -> Protocol:
    tiling = make_tiling(
        "bf16", 2, H200, cta_tile=(128, 128), cluster_shape=cluster, num_stages=stages
    )
    return make_protocol(tiling, scheduler, H200, clc_depth=depth)


CLUSTERS = ((1, 1, 1), (2, 1, 1), (1, 2, 1), (2, 2, 1), (4, 1, 1), (1, 4, 1))
SHAPES = [(c, g) for c in CLUSTERS for g in (1, 2) if c[0] % g == 0]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from(["static", "clc", "dynamic_atomic"]),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_tcgen05_never_hangs_nor_races(
    shape: tuple[tuple[int, int, int], int],
    stages: int,
    accumulators: int,
    scheduler: str,
    depth: int,
    k: int,
    tiles: int,
    seed: int,
) -> None:
    protocol = tcgen05(*shape, stages, scheduler, depth, accumulators=accumulators)
    assert Machine(protocol, tiles, k, seed).run() == "ok"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(CLUSTERS),
    st.integers(1, 4),
    st.sampled_from(["static", "dynamic_atomic"]),
    st.integers(1, 9),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_wgmma_never_hangs_nor_races(
    cluster: tuple[int, int, int], stages: int, scheduler: str, k: int, tiles: int, seed: int
) -> None:
    assert Machine(wgmma(cluster, stages, scheduler), tiles, k, seed).run() == "ok"


ATTENTION: dict[str, tuple[Device, AttentionTiling]] = {
    "sm_100, two query tiles": (B200, AttentionTiling("tcgen05", 128, q_tiles=2, block_kv=64)),
    "sm_100, one query tile": (B200, AttentionTiling("tcgen05", 192, block_kv=32)),
    "sm_90": (H200, AttentionTiling("wgmma", 128, block_kv=64)),
}


def attention(kernel: str, scheduler: str, depth: int = 1, **cut: object) -> Protocol:
    device, tiling = ATTENTION[kernel]
    return make_attention_protocol(replace(tiling, **cut), scheduler, device, clc_depth=depth)  # type: ignore[arg-type]


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(list(ATTENTION)),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 4),
    st.sampled_from(["static", "dynamic_atomic", "clc"]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 2**32),
)
def test_attention_never_hangs_nor_races(
    kernel: str, size: int, stages: int, scheduler: str, blocks: int, tiles: int, seed: int
) -> None:
    if scheduler == "clc" and kernel == "sm_90":
        scheduler = "dynamic_atomic"
    protocol = attention(kernel, scheduler, kv_stages=stages, cluster_shape=(size, 1, 1))
    assert Machine(protocol, tiles, blocks, seed).run() == "ok"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.sampled_from(["dynamic_atomic", "clc"]),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(0, 2**32),
)
def test_user_tiles_never_hang_nor_race(
    size: int, scheduler: str, depth: int, tiles: int, seed: int
) -> None:
    protocol = make_tiles_protocol((size, 1, 1), 128, 0, scheduler, B200, clc_depth=depth)
    assert Machine(protocol, tiles, 1, seed).run() == "ok"


KERNELS: dict[str, Callable[[int], Protocol]] = {
    "one CTA, clc": lambda depth: tcgen05(depth=depth),
    "pair, clc": lambda depth: tcgen05((2, 1, 1), 2, depth=depth),
    "two pairs, clc": lambda depth: tcgen05((4, 1, 1), 2, depth=depth),
    "pairs, both ways": lambda depth: tcgen05((2, 2, 1), 2, 3, "dynamic_atomic", depth),
    "four CTAs": lambda _: tcgen05((2, 2, 1), 1, scheduler="static"),
    "nvfp4 pair": lambda depth: tcgen05((2, 1, 1), 2, dtype="nvfp4", accumulators=1, depth=depth),
    "wgmma 2x2": lambda depth: wgmma((2, 2, 1), depth=depth),
    "wgmma": lambda depth: wgmma(depth=depth),
    "attention sm_100": lambda depth: attention(
        "sm_100, two query tiles", "clc", depth, cluster_shape=(2, 1, 1)
    ),
    "attention sm_100, one query tile": lambda depth: attention(
        "sm_100, one query tile", "clc", depth, cluster_shape=(2, 1, 1)
    ),
    "attention sm_90": lambda depth: attention(
        "sm_90", "dynamic_atomic", depth, cluster_shape=(2, 1, 1)
    ),
}
ROWS = [
    (name, row["barrier"])
    for name, make in KERNELS.items()
    for row in make(1).ledger()
    if row["first_parity"] is not None
]


def _row(protocol: Protocol, barrier: str) -> dict[str, dict[str, str]]:
    return next(row for row in protocol.ledger() if row["barrier"] == barrier)


@pytest.mark.parametrize(("name", "barrier"), ROWS)
def test_one_arrival_more_does_what_the_ledger_says(name: str, barrier: str) -> None:
    protocol = KERNELS[name](1)
    assert _row(protocol, barrier)["count_too_high"]["effect"] == "deadlock"
    wrong = {barrier: protocol.arrive_count(barrier) + 1}
    assert all(Machine(protocol, 4, 6, seed, counts=wrong).run() == "deadlock" for seed in range(8))


@pytest.mark.parametrize(("name", "barrier"), ROWS)
def test_one_arrival_fewer_does_what_the_ledger_says(name: str, barrier: str) -> None:
    """With one answer slot a slow reader also holds up everything else, with three it does not."""
    tight, loose = KERNELS[name](1), KERNELS[name](3)
    count = tight.arrive_count(barrier)
    effect = _row(tight, barrier)["count_too_low"]["effect"]
    assert effect == ("invalid" if count == 1 else "race")
    if count > 1:
        wrong = {barrier: count - 1}
        runs = zip(
            outcomes(tight, 100, counts=wrong), outcomes(loose, 100, counts=wrong), strict=True
        )
        assert any("race" in run for run in runs)


@pytest.mark.parametrize(
    ("name", "barrier"), [(n, b) for n, b in ROWS if KERNELS[n](1).tx_bytes(b)]
)
def test_wrong_bytes_do_what_the_ledger_says(name: str, barrier: str) -> None:
    protocol = KERNELS[name](1)
    row, right = _row(protocol, barrier), protocol.tx_bytes(barrier)
    assert row["tx_too_high"]["effect"] == "deadlock"
    assert set(outcomes(protocol, 4, tx={barrier: right + 16})) == {"deadlock"}
    pieces = protocol.barrier(barrier).landing(protocol.barrier(barrier).homes[0])
    if len(pieces) == 1:
        assert row["tx_too_low"]["effect"] == "deadlock"
        assert set(outcomes(protocol, 4, tx={barrier: right // 2})) == {"deadlock"}
    else:
        assert row["tx_too_low"]["effect"] == "race"
        assert "race" in outcomes(protocol, 100, tx={barrier: right - pieces[0]})
        assert "race" not in outcomes(protocol, 4, tx={barrier: right - 1})


def _with(protocol: Protocol, **parts: object) -> Protocol:
    return replace(protocol, parts=protocol.parts._replace(**parts))  # type: ignore[arg-type]


def test_case_c5_only_rank_0_arms() -> None:
    protocol = tcgen05((2, 1, 1), 1)
    roles = []
    for role in protocol.roles:
        first = tuple(
            s._replace(ranks=(0,)) if (role.name, s.op) == ("scheduler", "expect_tx") else s
            for s in role.program.first
        )
        roles.append(replace(role, program=replace(role.program, first=first)))
    assert set(outcomes(_with(protocol, roles=tuple(roles)), 4)) == {"deadlock"}
    assert set(outcomes(protocol, 4)) == {"ok"}


def test_case_c6_one_mask_for_both_pairs_hangs() -> None:
    protocol = tcgen05((4, 1, 1), 2, scheduler="static")
    for seed in range(10):
        machine = Machine(protocol, 4, 6, seed)
        commit = machine.signals["mma", "acc_full", "commit"]
        assert commit.targets == {0: 0x3, 2: 0xC}
        machine.signals["mma", "acc_full", "commit"] = commit._replace(targets={0: 0x3, 2: 0x3})
        assert machine.run() != "ok"


def test_case_c14_a_barrier_a_stage() -> None:
    """One full barrier for the whole ring of a pair: the producer laps it from two stages on."""
    for stages in (1, 3):
        protocol = tcgen05((2, 1, 1), 2, stages, "static")
        assert protocol.barrier("full").depth == stages
        ends = {Machine(protocol, 4, 6, seed, one_copy=("full",)).run() for seed in range(10)}
        assert (ends == {"ok"}) is (stages == 1)


def test_a_local_release_of_a_multicast_slot_races() -> None:
    """TMA-08: consumers must release to every CTA that writes into their slots."""
    protocol = wgmma((2, 1, 1), scheduler="static")
    seen = set()
    for seed in range(30):
        machine = Machine(protocol, 3, 6, seed, counts={"empty": 2})
        signal = machine.signals["consumer", "empty", "arrive"]
        machine.signals["consumer", "empty", "arrive"] = signal._replace(targets={0: 1, 1: 2})
        seen.add(machine.run())
    assert "race" in seen


def test_without_the_drain_arrivals_chase_a_role_that_left() -> None:
    """TC-18: the last accumulator's commit does not prove that earlier ones were delivered."""
    protocol = tcgen05((2, 1, 1), 2, scheduler="static")
    seen = set()
    for seed in range(30):
        machine = Machine(protocol, 2, 6, seed)
        for actor in machine.actors:
            if actor.role.name == "tma":
                del actor.acts[-protocol.barrier("empty").depth :]
        seen.add(machine.run())
    assert "race" in seen

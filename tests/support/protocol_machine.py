"""A token machine that plays the roles of a protocol through its ledger, under random interleavings.

Independent of the tables in the package: it knows what an mbarrier is (PTX ISA: arrivals, tx-count, phase,
parity wait), that loads, MMAs and remote arrivals take effect later, and that a slot may be read only when
it is whole and overwritten only when every reader has let go of it.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

from tilewright.protocol import Protocol, Role, Signal, Step, ranks_of


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

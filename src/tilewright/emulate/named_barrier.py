"""Barriers of a CTA (bar, barrier.cta) and of a cluster (barrier.cluster)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import NOTHING, SEEN, Published, join_levels
from tilewright.emulate.warp import Condition, lanes_text

if TYPE_CHECKING:
    from tilewright.emulate.cluster import Cluster, Cta
    from tilewright.emulate.registers import Array
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op


class NamedBarrier(Condition):
    """One of the 16 barriers of a CTA: completes when as many threads as it expects have arrived.

    Attributes:
        expected: threads of this generation, a multiple of 32; None while nobody has come.
        whole: it expects every thread of the CTA (no count was given).
        generation: how often it has completed.
        partial: of warps whose threads are not all there, the lanes that are.
    """

    __slots__ = (
        "clock",
        "count",
        "cta",
        "expected",
        "first_op",
        "generation",
        "index",
        "opened",
        "partial",
        "result",
        "whole",
    )

    def __init__(self, cta: Cta, index: int) -> None:
        super().__init__()
        self.cta = cta
        self.index = index
        self.generation = 0
        self.opened: dict[int, tuple[Published, int, int]] = {}
        self.first_op: Op | None = None
        self._begin()

    def _begin(self) -> None:
        self.expected: int | None = None
        self.whole = False
        self.count = 0
        self.partial: dict[Warp, Array] = {}
        self.clock: Published = NOTHING
        self.result: list[tuple[int, int]] = []  # threads, and those whose predicate holds

    def arrive(
        self, warp: Warp, lanes: Array, threads: int | None, op: Op, holding: int = 0
    ) -> int:
        """Lanes arrive: the generation that they are part of.

        Args:
            threads: as the instruction counts them; None for all of the CTA.
            holding: of bar.red, lanes whose predicate holds.
        """
        machine = self.cta.machine
        machine.note(("barrier", self.cta.who, self.index), writes=True)
        wanted = machine.threads if threads is None else threads
        if threads is not None and (threads % 32 or threads <= 0):
            machine.stop("BAR-01", f"{warp.who}: {threads} threads are not whole warps", op)
        if self.expected is not None and self.expected != wanted:
            machine.stop(
                "BAR-01",
                f"{warp.who} comes to barrier {self.index} of {self.cta.who} with {wanted} threads "
                f"where {self.expected} are expected",
                op,
                self.first_op,
                f"{self.expected} here",
            )
        if self.expected is None:
            self.expected, self.whole, self.first_op = wanted, threads is None, op
        count = int(np.count_nonzero(lanes))
        if self.whole:
            self.count += count
        else:
            self._count_warp(warp, lanes, op)
        where = True if lanes.all() else lanes
        self.clock = join_levels(self.clock, warp.clocks.publish(where))
        self.result.append((count, holding))
        generation = self.generation
        machine.changed()
        self._settle()
        if (
            generation == self.generation
            and self.expected is not None
            and self.count > self.expected
        ):
            machine.stop(
                "BAR-01",
                f"{self.count} threads at barrier {self.index}, {self.expected} expected",
                op,
            )
        return generation

    def _count_warp(self, warp: Warp, lanes: Array, op: Op) -> None:
        """A warp arrives, as 32 threads, once all of its threads are there that have not left: PTX ISA, bar."""
        here = self.partial.pop(warp, None)
        if here is not None:
            if (here & lanes).any():
                self.cta.machine.stop(
                    "BAR-01",
                    f"{warp.who} {lanes_text(here & lanes)}: at barrier {self.index} of {self.cta.who} again, "
                    "before the others of the warp have come",
                    op,
                )
            lanes = here | lanes
        if (lanes | ~warp.alive).all():
            self.count += len(lanes)
        else:
            self.partial[warp] = lanes.copy()

    def lanes_left(self) -> None:
        """Threads of the CTA have gone: those that are left may be all that is waited for."""
        for warp, lanes in list(self.partial.items()):
            if (lanes | ~warp.alive).all():
                del self.partial[warp]
                self.count += len(lanes)
        if self.count:
            self._settle()

    def _settle(self) -> None:
        expected = self.expected
        if expected is None:
            return
        if self.whole:
            expected = sum(int(np.count_nonzero(w.alive)) for w in self.cta.warps)
        if self.count == expected:
            threads, holding = (sum(column) for column in zip(*self.result, strict=True))
            self.opened[self.generation] = (self.clock, holding, threads)
            self.opened.pop(self.generation - 8, None)
            self.generation += 1
            self._begin()
            self.cta.machine.wake(self)

    def opened_at(self, generation: int) -> Published:
        """What the arrivals of a generation published."""
        return self.opened[generation][0] if generation in self.opened else NOTHING

    def results_at(self, generation: int) -> tuple[int, int]:
        """Of bar.red: threads whose predicate held, and all."""
        return self.opened[generation][1:]


class ClusterBarrier(Condition):
    """barrier.cluster: completes when every thread of the cluster that has not left has arrived."""

    __slots__ = ("arrived", "clock", "cluster", "generation", "opened", "own")

    def __init__(self, cluster: Cluster) -> None:
        super().__init__()
        self.cluster = cluster
        self.generation = 0
        self.arrived: dict[Warp, Array] = {}
        self.own: dict[Warp, Array] = {}  # generation that each lane arrived in, -1 before its wait
        self.clock: Published = NOTHING
        self.opened: Published = NOTHING

    def arrive(self, warp: Warp, lanes: Array, op: Op, *, relaxed: bool) -> None:
        """Lanes arrive, publishing what they know unless relaxed."""
        machine = self.cluster.machine
        machine.note(("barrier", self.cluster.index), writes=True)
        own = self.own.setdefault(warp, np.full(32, -1))
        if (own[lanes] >= 0).any():
            machine.stop(
                "CLU-05",
                f"{warp.who} {lanes_text(lanes & (own >= 0))}: a second arrive without a wait between",
                op,
            )
        own[lanes] = self.generation
        self.arrived[warp] = self.arrived.get(warp, np.zeros(32, np.bool_)) | lanes
        where = True if lanes.all() else lanes
        news = warp.clocks.publish_relaxed(where) if relaxed else warp.clocks.publish(where)
        self.clock = join_levels(self.clock, news)
        machine.changed()
        self._settle()

    def waited(self, warp: Warp, lanes: Array) -> None:
        """Lanes have come through: they know what was published, and that every CTA runs."""
        own = self.own[warp]
        own[lanes] = -1
        where = True if lanes.all() else lanes
        warp.clocks.acquire(where, self.opened)
        for cta in self.cluster.ctas:
            warp.clocks.learn(where, ("started", self.cluster.index, cta.rank), 1, (SEEN,))

    def is_open(self, warp: Warp, lanes: Array) -> bool:
        """Whether the generation that the lanes arrived in is complete."""
        own = self.own[warp]
        return bool((own[lanes] < self.generation).all())

    def lanes_left(self, warp: Warp, lanes: Array) -> None:
        """Threads that leave are no longer waited for."""
        if warp in self.arrived:
            self.arrived[warp] = self.arrived[warp] & ~lanes
        self._settle()

    def missing(self) -> list[str]:
        """Who has not arrived."""
        found = []
        for cta in self.cluster.ctas:
            if not cta.has_started:
                found.append(f"{cta.who} (not started)")
            for warp in cta.warps:
                rest = warp.alive & ~self.arrived.get(warp, np.zeros(32, np.bool_))
                if rest.any():
                    found.append(f"{warp.who} {lanes_text(rest)}")
        return found

    def _settle(self) -> None:
        ctas = self.cluster.ctas
        if not any(lanes.any() for lanes in self.arrived.values()):
            return
        for cta in ctas:
            if not cta.has_started:
                return
            for warp in cta.warps:
                arrived = self.arrived.get(warp)
                if arrived is None:
                    if warp.alive.any():
                        return
                elif (warp.alive & ~arrived).any():
                    return
        self.opened = self.clock
        self.clock = NOTHING
        self.arrived = {}
        self.generation += 1
        self.cluster.machine.wake(self)

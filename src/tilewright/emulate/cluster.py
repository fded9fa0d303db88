"""Clusters and CTAs of the grid: which are there, what they share, and what must hold when they leave."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.clocks import LOOSE, NOTHING, SEEN, join_levels, with_mark
from tilewright.emulate.layout import SHARED_START
from tilewright.emulate.memory import Segment, Spaces
from tilewright.emulate.named_barrier import ClusterBarrier, NamedBarrier
from tilewright.emulate.warp import Warp

if TYPE_CHECKING:
    from tilewright.emulate.clocks import Published
    from tilewright.emulate.events import AsyncEvent, Event
    from tilewright.emulate.history import Stay
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.operations import Operation
    from tilewright.emulate.registers import Array
    from tilewright.ptx.flow import Op

LEAVES = "it leaves here"
"""Said of the line at which the last thread of a CTA ends."""

EXIT_RULES = {
    "CLC answer": "CLC-16",
    "tcgen05.commit": "TC-18",
    "tensor copy": "TMA-10",
    "multicast tensor copy": "TMA-10",
    "bulk store": "TMA-15",
    "tensor store": "TMA-15",
}
"""The rule that a CTA breaks which leaves before such an operation of another has reached it."""


class Cta:
    """One CTA.

    Attributes:
        rank: %cluster_ctarank.
        ctaid: %ctaid, along x, y, z.
        incoming: operations that will still touch its shared memory or barriers.
        arrived: of those, what has touched it and must be known to be over when it leaves.
        left_at: where the last of its threads to leave did so.
        saw_decline: the first query that told it of a declined answer.
        extras: what instruction modules keep for a CTA (TMEM).
    """

    cluster: Cluster
    rank: int
    ctaid: tuple[int, int, int]

    def __init__(self, cluster: Cluster, rank: int, ctaid: tuple[int, int, int]) -> None:
        self.cluster = cluster
        self.machine = cluster.machine
        self.rank = rank
        self.ctaid = ctaid
        self.has_started = False
        self.has_exited = False
        self.who = f"cluster {cluster.index} CTA {rank}"
        nbytes = self.machine.shared_bytes
        self.shared = Segment(
            f"shared memory of {self.who}",
            rank << 24,
            np.zeros(nbytes, np.uint8),
            self,
            SHARED_START,
        )
        self.spaces = Spaces(self)
        self.warps: list[Warp] = []
        self.named = [NamedBarrier(self, i) for i in range(16)]
        self.incoming: set[Operation] = set()
        self.arrived: list[AsyncEvent] = []
        self.extras: dict[str, object] = {}
        self.left_at: Op | None = None
        self.saw_decline: Event | None = None
        self.exit_clock: Published = NOTHING
        self.start_clock: Published = NOTHING
        self._visits: dict[tuple[Warp, int], tuple[int, Op]] = {}

    def start(self) -> None:
        """Its warps begin."""
        self.has_started = True
        stay = self.cluster.stay
        stay.began = self.machine.executed if stay.began is None else stay.began
        self.machine.note(("life", self.who), writes=True)
        self.machine.note(("barrier", self.cluster.index), writes=True)
        key = ("started", self.cluster.index, self.rank)
        self.start_clock = with_mark(self.machine.launch_clock, key, 1, (SEEN,))
        threads = self.machine.threads
        for index in range(-(-threads // 32)):
            alive = np.arange(32) + 32 * index < threads
            warp = Warp(self, index, alive)
            self.machine.fill_rows(warp)
            self.warps.append(warp)
            self.machine.add_agent(warp.groups[0])

    def visited_by(self, warp: Warp, op: Op, lanes: Array) -> None:
        """Threads of another CTA touch this one; it may leave only after that."""
        now = warp.clocks.now
        for lane in lanes.tolist():
            self._visits[warp, lane] = (now, op)

    def lanes_left(self, warp: Warp, lanes: Array) -> None:
        """Some threads are done."""
        if self.cluster.barrier.own:  # leaving counts for those who wait there
            self.machine.note(("barrier", self.cluster.index), writes=True)
        self.exit_clock = join_levels(self.exit_clock, warp.clocks.publish(lanes))
        self.cluster.barrier.lanes_left(warp, lanes)
        for barrier in self.named:
            barrier.lanes_left()
        if not any(each.alive.any() for each in self.warps):
            self._leave()

    def _leave(self) -> None:
        self.machine.note(("life", self.who), writes=True)
        self.machine.note("clusters", writes=True)
        self._check_exit()
        self.has_exited = True
        for check in self.machine.exit_checks:
            check(self)
        self.cluster.cta_left()

    def _check_exit(self) -> None:
        machine = self.machine
        for operation in sorted(self.incoming, key=lambda each: each.number):
            event = operation.event
            machine.report(
                self.exit_rule(event),
                f"{self.who} leaves while {event.who()} has still to reach it",
                event.op,
                self.left_at,
                LEAVES,
            )
        for event in self.arrived:
            if not event.known_at(self.exit_clock, LOOSE):
                machine.report(
                    self.exit_rule(event),
                    f"{self.who} leaves without having waited for {event.who()}",
                    event.op,
                    self.left_at,
                    LEAVES,
                )
        for (warp, lane), (time, op) in self._visits.items():
            times = self.exit_clock[LOOSE].columns.get(warp.clocks.cluster)
            if times is None or times[warp.clocks.base + lane] < time:
                machine.report(
                    "CLU-02",
                    f"{self.who} may leave before {warp.thread_name(lane)} reaches into it: "
                    "nothing orders the two",
                    op,
                    self.left_at,
                    LEAVES,
                )

    def check_there(self, rule: str, what: str, op: Op) -> None:
        """It has not left.

        Args:
            what: is done with it, up to its name: "… writes".
        """
        if self.has_exited:
            self.machine.stop(rule, f"{what} {self.who}, which has left", op, self.left_at, LEAVES)

    def exit_rule(self, event: AsyncEvent) -> str:
        """The rule broken by an operation that meets a CTA which has left."""
        return EXIT_RULES.get(event.what, "CLU-02" if event.is_remote else "EXIT")


class Cluster:
    """CTAs that run together.

    Attributes:
        index: its place in the grid, x fastest.
        first_cta: %ctaid of rank 0.
        place: %clusterid.
        stay: since when and in which slot.
    """

    index: int
    stay: Stay
    ctas: list[Cta]
    place: tuple[int, int, int]

    def __init__(self, machine: Machine, stay: Stay) -> None:
        self.machine = machine
        self.stay = stay
        self.index = index = stay.cluster
        shape = machine.cluster_shape
        x, y, z = self.first_cta = machine.first_cta(index)
        self.place = (x // shape[0], y // shape[1], z // shape[2])
        self.ctas = [
            Cta(
                self,
                rank,
                (
                    x + rank % shape[0],
                    y + rank // shape[0] % shape[1],
                    z + rank // shape[0] // shape[1],
                ),
            )
            for rank in range(shape[0] * shape[1] * shape[2])
        ]
        self.barrier = ClusterBarrier(self)

    def cta_left(self) -> None:
        """One of its CTAs is done."""
        if all(cta.has_exited for cta in self.ctas):
            self.machine.cluster_left(self)

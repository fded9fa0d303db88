"""The machine of one launch: its clusters, its memory, and the loop that lets one agent act after another.

Agents are groups of lanes, operations that run by themselves, and CTAs that have yet to begin. Whatever can
act is in one list; a strategy picks from it. A group acts up to its next visible instruction. When the list is
empty, lanes parked at a branch's end are let go, then bounded waits return false, and then it is a deadlock.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

import numpy as np

from tilewright.emulate.access import Accesses
from tilewright.emulate.clocks import NOTHING
from tilewright.emulate.cluster import Cluster, Cta
from tilewright.emulate.coverage import Waits
from tilewright.emulate.errors import Violation
from tilewright.emulate.events import AsyncEvent
from tilewright.emulate.execute import let_go, run_group
from tilewright.emulate.history import History, Stay
from tilewright.emulate.layout import MODULE_BASE, RANK_SHIFT
from tilewright.emulate.memory import PREREQUISITE, Buffers, Segment
from tilewright.emulate.operations import Operation
from tilewright.emulate.special import special_values
from tilewright.emulate.stories import deadlock_story, trace_text
from tilewright.emulate.warp import Condition, Group, Wait, Warp
from tilewright.ptx.finding import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from tilewright.emulate.clocks import Published
    from tilewright.emulate.program import Program
    from tilewright.emulate.registers import Array
    from tilewright.emulate.schedule import Agent, Name, Strategy
    from tilewright.ptx.flow import Op

Triple = tuple[int, int, int]

TRACE_MAX = 24
"""Steps that are kept for the story of a failure."""


@dataclass(frozen=True)
class Options:
    """How a launch is run.

    Attributes:
        resident: clusters that may run at once; None for all.
        decline_at: requests, counted over the launch, that cluster launch control declines though clusters are
            pending.
        races: whether accesses are held against one another.
        elects_first: elect.sync chooses the first of its lanes; else the seed says which, for PTX does not.
        steps_max: picks after which a run is called endless.
        quiet_steps: picks in which nothing changes after which lanes parked at a branch's end are let go, and
            after as many again the run is called endless.
        private_steps: instructions of a group between two visible ones, likewise.
        findings_max: errors after which a run ends.
    """

    resident: int | None = None
    decline_at: frozenset[int] = frozenset()
    races: bool = True
    elects_first: bool = False
    steps_max: int = 500_000
    quiet_steps: int = 5000
    private_steps: int = 1_000_000
    findings_max: int = 20


class Start:
    """A CTA that may begin."""

    def __init__(self, cta: Cta) -> None:
        self.cta = cta

    @property
    def name(self) -> tuple[int, int, int, int]:
        """Before the CTA's warps."""
        return (self.cta.cluster.index, self.cta.rank, -1, 0)


class Machine:
    """One launch of one kernel.

    Attributes:
        grid, cluster_shape, block: CTAs, CTAs of a cluster, threads, along x, y, z.
        agents: what can act now.
        pending, running: clusters that have not begun, those that are there.
        slots: how many clusters can be there at once.
        history: who was where when, and asked for what.
        covered, waits: of each step of the program, whether it ran; of each wait for an mbarrier, who had to wait.
        trace, story: who acted last, and at which step of the program; the same as text at the first error.
        executed, steps, version: warp instructions, picks, and changes that others can tell, so far.
        extras: what instruction modules keep for a launch.
        exit_checks, end_checks: called with each CTA that leaves, and when all have.
    """

    grid: Triple
    cluster_shape: Triple
    block: Triple
    warps_per_cta: int
    clusters: int
    slots: int
    shared_bytes: int
    dynamic_shared_bytes: int

    def __init__(
        self,
        program: Program,
        grid: Triple,
        cluster: Triple,
        block: Triple,
        parameters: bytes,
        buffers: Buffers,
        dynamic_shared_bytes: int,
        strategy: Strategy,
        options: Options,
    ) -> None:
        self.program = program
        self.grid, self.cluster_shape, self.block = grid, cluster, block
        self.threads = block[0] * block[1] * block[2]
        self.warps_per_cta = -(-self.threads // 32)
        self.strategy = strategy
        self.options = options
        layout = program.layout
        self.local_bytes = -(-layout.nbytes("local") // 16) * 16
        self.dynamic_shared_bytes = dynamic_shared_bytes
        self.shared_bytes = layout.dynamic_shared_start + dynamic_shared_bytes
        self.parameters = _segment("parameters", 0, np.frombuffer(parameters, np.uint8))
        self.constants = _segment("constants", 0, layout.initial("const"))
        module_globals = Segment("module variables", MODULE_BASE, layout.initial("global"))
        self.global_segments = [module_globals, *buffers.segments]
        self.global_bases = np.array([s.base for s in self.global_segments], np.int64)
        self.launch_clock: Published = NOTHING
        self.findings: list[Finding] = []
        self._said: set[tuple[object, ...]] = set()
        self.agents: list[Agent] = []
        self.exit_checks: list[Callable[[Cta], None]] = []
        self.end_checks: list[Callable[[], None]] = []
        self._errors = self.operations_made = self.barriers_made = self.executed = self.version = (
            self.steps
        ) = 0
        self._seen_version = self._quiet_since = self._disturbed_at = -1
        self.extras: dict[str, object] = {}
        self.covered = bytearray(len(program.steps))
        self.waits = Waits()
        self.story: tuple[str, ...] = ()
        self.trace: deque[tuple[Name, int]] = deque(maxlen=TRACE_MAX)
        self.accesses = Accesses(self)
        counts = [g // c for g, c in zip(grid, cluster, strict=True)]
        self.clusters = counts[0] * counts[1] * counts[2]
        self.pending = list(range(self.clusters))
        self.running: list[Cluster] = []
        self.slots = min(self.clusters, options.resident or self.clusters)
        self._free = list(range(self.slots))  # a heap: the first free slot is taken
        self.history = History(cluster[0] * cluster[1] * cluster[2])
        self._fill()
        if options.races and any(
            step.op.node.opcode.root == "griddepcontrol" for step in program.steps
        ):
            self._written_before()

    def _written_before(self) -> None:
        """A kernel that may begin before its prerequisite has ended: every buffer may be its output."""
        warp = Warp(self.running[0].ctas[0], 0, np.zeros(32, np.bool_))
        event = AsyncEvent(self.program.steps[0].op, warp, 0, NOTHING, "grid", [(PREREQUISITE, 1)])
        event.name = "the prerequisite grid"
        for segment in self.global_segments[1:]:
            segment.shadow.async_writes(event, slice(0, segment.nbytes), lambda *_: None)

    # --- clusters ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Launch pending clusters as long as there is room."""
        while self.pending and self._free:
            stay = Stay(self.pending.pop(0), heapq.heappop(self._free), self.executed)
            self.history.stays.append(stay)
            cluster = Cluster(self, stay)
            self.running.append(cluster)
            for cta in cluster.ctas:
                self.add_agent(Start(cta))

    def cluster_left(self, cluster: Cluster) -> None:
        """A cluster is done; another may take its place."""
        self.running.remove(cluster)
        cluster.stay.left = self.executed
        heapq.heappush(self._free, cluster.stay.slot)
        self._fill()

    def elected(self, lanes: Array) -> int:
        """Which of the lanes elect.sync chooses: the first, or in seeded runs any, but always the same one."""
        seed = 0 if self.options.elects_first else self.strategy.seed
        return seed * 7 % int(np.count_nonzero(lanes))

    def first_cta(self, cluster: int) -> Triple:
        """%ctaid of a cluster's first CTA."""
        counts = [g // c for g, c in zip(self.grid, self.cluster_shape, strict=True)]
        x, y, z = self.cluster_shape
        rest = cluster // counts[0]
        return cluster % counts[0] * x, rest % counts[1] * y, rest // counts[1] * z

    def cluster_of(self, ctaid: Triple) -> int:
        """The number of the cluster that a CTA is in."""
        counts = [g // c for g, c in zip(self.grid, self.cluster_shape, strict=True)]
        x, y, z = (i // c for i, c in zip(ctaid, self.cluster_shape, strict=True))
        return x + counts[0] * (y + counts[1] * z)

    def fill_rows(self, warp: Warp) -> None:
        """Special registers and addresses of a warp that begins."""
        for (name, width), row in self.program.specials.items():
            warp.banks[width][row] = special_values(warp, name)
        for (name, offset, width), row in self.program.addresses.items():
            address = self.program.layout.address(name) + offset
            plain = name.removeprefix("generic(").removesuffix(")")
            if self.program.layout.symbols[plain].space == "shared":
                address += warp.cta.rank << RANK_SHIFT
            warp.banks[width][row] = address & ((1 << width) - 1)

    # --- agents -----------------------------------------------------------------------------------

    def add_agent(self, agent: Agent) -> None:
        """Something can act."""
        self.agents.append(agent)

    def changed(self) -> None:
        """Something happened that others can tell."""
        self.version += 1

    def note(self, key: Hashable, *, writes: bool) -> None:
        """The step that runs looks at something shared, or changes it."""
        if self.strategy.footprint is not None:
            self.strategy.footprint.add((key, writes))

    def wake(self, condition: Condition) -> None:
        """What was waited for has changed: whoever finds it to be ready can act."""
        if not condition.waiting:
            return
        waiting, condition.waiting = condition.waiting, []
        for group in waiting:
            if group.wait is None or group.wait.on is not condition:
                continue
            if group.wait.ready():
                self.add_agent(group)
            else:
                condition.waiting.append(group)

    def hold(self, group: Group, wait: Wait, step_number: int) -> bool:
        """A group waits at a step: whether it can act nevertheless."""
        group.step = step_number
        group.wait = wait
        if wait.ready():
            return True
        wait.on.waiting.append(group)
        return False

    def run(self) -> None:
        """Until every CTA has left.

        Raises:
            Violation: the contract is broken beyond repair, or nobody can act.
        """
        agents = self.agents
        while True:
            if not agents and not self._unblock():
                if self.running:
                    self.tell_story()
                    raise Violation(deadlock_story(self))
                break
            self.steps += 1
            if self.version != self._seen_version:
                if self._disturbed_at == self._seen_version:
                    self.strategy.only_look(over=True)
                self._seen_version, self._quiet_since = self.version, self.steps
            elif self.steps - self._quiet_since > self.options.quiet_steps:
                self._disturb()
            if self.steps > self.options.steps_max:
                self._endless()
            place = self.strategy.pick(agents)
            agent = agents.pop(place)
            self.trace.append((agent.name, getattr(agent, "step", -1)))
            if self._act(agent):
                agents.append(agent)
            self.strategy.end()
        for check in self.end_checks:
            check()

    def _act(self, agent: Agent) -> bool:
        """One turn of an agent: whether it can have another."""
        if isinstance(agent, Group):
            return run_group(self, agent)
        if isinstance(agent, Start):
            agent.cta.start()
            return False
        return isinstance(agent, Operation) and agent.act()

    def groups(self) -> list[Group]:
        """Every group of lanes that has not left."""
        return [
            group
            for cluster in self.running
            for cta in cluster.ctas
            for warp in cta.warps
            for group in warp.groups
        ]

    def _unblock(self) -> bool:
        """Nobody can act: let parked lanes go, then let bounded waits return false."""
        groups = self.groups()
        for group in groups:
            if group.parked is not None:
                let_go(self, group)
                return True
        for group in groups:
            wait = group.wait
            if wait is None or wait.gives_up is None or group.asked_at == self.version:
                continue
            group.asked_at = self.version
            wait.on.waiting.remove(group)
            wait.gives_up()
            group.wait = None
            group.step += 1
            self.add_agent(group)
        return bool(self.agents)

    def _disturb(self) -> None:
        """Those who act only look and change nothing: let parked lanes go, then whom the strategy leaves out."""
        self._quiet_since = self.steps
        parked = next((g for g in self.groups() if g.parked is not None), None)
        if parked is not None:
            let_go(self, parked)
        elif self._disturbed_at == self.version:
            self._endless()
        else:
            self._disturbed_at = self.version
            self.strategy.only_look()

    def _endless(self) -> None:
        group = next((g for g in self.groups() if g.wait is None), None)
        where = group if group is not None else self.groups()[0]
        self.stop(
            "HANG",
            f"no end after {self.steps} steps; {where.who} is still running",
            self.program.steps[where.step].op,
        )

    # --- findings ---------------------------------------------------------------------------------

    def finding(
        self,
        rule: str,
        message: str,
        op: Op,
        other: Op | None = None,
        other_says: str = "",
        severity: Severity = "error",
    ) -> Finding:
        """One break of a rule."""
        return Finding(
            rule,
            severity,
            message,
            op.span,
            self.program.name,
            other.span if other is not None else None,
            other_says,
        )

    def tell_story(self) -> None:
        """Keep the steps that led to the first error."""
        if not self.story:
            self.story = tuple(trace_text(self))

    def report(
        self,
        rule: str,
        message: str,
        op: Op,
        other: Op | None = None,
        other_says: str = "",
        *,
        severity: str = "error",
        merged: bool = False,
    ) -> None:
        """Keep a finding, once for a rule and a pair of lines (for the other line alone: `merged`), and go on."""
        key = (rule, -1 if merged else op.index, other.index if other is not None else -1)
        if key in self._said:
            return
        self._said.add(key)
        level: Severity = "warning" if severity == "warning" else "error"
        found = self.finding(rule, message, op, other, other_says, level)
        self.findings.append(found)
        if level == "warning":
            return
        self.tell_story()
        self._errors += 1
        if self._errors >= self.options.findings_max:
            raise Violation(found)

    def stop(
        self, rule: str, message: str, op: Op, other: Op | None = None, other_says: str = ""
    ) -> NoReturn:
        """End the schedule with a finding: the state after it means nothing.

        Raises:
            Violation: always.
        """
        self.tell_story()
        raise Violation(self.finding(rule, message, op, other, other_says))


def _segment(name: str, base: int, data: Array) -> Segment:
    return Segment(name, base, data, watched=False)

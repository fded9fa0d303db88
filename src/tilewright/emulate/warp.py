"""Warps: 32 lanes of registers, and the groups of lanes that run together.

A branch that not all lanes take splits a group in two, each with a place of its own in the program; the parts
park where the branch's sides meet (its immediate post-dominator) until the others are there. A part that never
comes (it waits for what only the parked lanes can do) does not hold them for ever: when nothing else in the
machine can move, parked lanes go on alone, as independent thread scheduling allows. Instructions for a whole
warp or a member mask gather their lanes in the same way, and these do not let go.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewright.emulate.clocks import new_clocks
from tilewright.emulate.memory import Segment
from tilewright.emulate.registers import LANES, U32, U64, Array, Where, rows_by_kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.clocks import LaneClocks
    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.copy_groups import CopyGroups
    from tilewright.emulate.decoder import Address
    from tilewright.emulate.events import Event
    from tilewright.emulate.machine import Machine

ALL = np.arange(LANES)
ALL.flags.writeable = False
NO_JOIN = -1


class Condition:
    """Something that lanes wait for: whoever changes it calls `Machine.wake`."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: list[Group] = []


class Wait(NamedTuple):
    """Why a group does not go on.

    Attributes:
        on: what is waited for.
        ready: whether it has come.
        story: who waits where and for what, for the report of a deadlock.
        resume: called once when it has come, and the instruction is over; None to execute it again.
        gives_up: called instead when nothing else can move: a bounded wait that returns false.
    """

    on: Condition
    ready: Callable[[], bool]
    story: Callable[[], str]
    resume: Callable[[], None] | None = None
    gives_up: Callable[[], None] | None = None


@dataclass(eq=False)
class Join:
    """Where the sides of a branch meet.

    Attributes:
        step: number of the step.
        lanes: those that are still to come or parked; lanes that leave are taken out.
    """

    step: int
    lanes: Array
    parked: list[Group] = field(default_factory=list)


@dataclass(eq=False, slots=True)
class Frame:
    """A call: where it returns to, and what is copied there."""

    back_to: int
    results: tuple[tuple[int, int, int], ...]  # offset in the callee, in the caller, bytes


class Group:
    """Lanes of a warp that run together.

    Attributes:
        lanes: 32 bools.
        where: the same for numpy: True if all 32.
        wait: why it does not run; None while it can.
        parked: the join at which it waits for its other half.
        meeting: lanes that it waits for at an instruction of the whole warp or a member mask.
        join_step: the step of the innermost join, looked at before every instruction.
        asked_at: `Machine.version` when a test of a barrier last told it no.
    """

    __slots__ = (
        "asked_at",
        "first_lane",
        "frames",
        "join_step",
        "joins",
        "lanes",
        "meeting",
        "parked",
        "step",
        "wait",
        "warp",
        "where",
    )

    def __init__(
        self,
        warp: Warp,
        lanes: Array,
        step: int,
        joins: tuple[Join, ...],
        frames: tuple[Frame, ...],
    ) -> None:
        self.warp = warp
        self.step = step
        self.joins = joins
        self.frames = frames
        self.wait: Wait | None = None
        self.parked: Join | None = None
        self.meeting: Array | None = None
        self.asked_at = -1
        self.set_lanes(lanes)
        self.join_step = joins[-1].step if joins else NO_JOIN

    def set_lanes(self, lanes: Array) -> None:
        """Become exactly these lanes."""
        self.lanes = lanes
        self.first_lane = int(lanes.argmax())
        self.where: Where = True if lanes.all() else lanes

    def set_joins(self, joins: tuple[Join, ...]) -> None:
        """Take up the joins that are still ahead."""
        self.joins = joins
        self.join_step = joins[-1].step if joins else NO_JOIN

    @property
    def name(self) -> tuple[int, int, int, int]:
        """(cluster, rank, warp, first lane): the same in every run of the same schedule."""
        cta = self.warp.cta
        return (cta.cluster.index, cta.rank, self.warp.index, self.first_lane)

    @property
    def who(self) -> str:
        """For messages: "cluster 0 CTA 1 warp 2 lanes 0-31"."""
        return f"{self.warp.cta.who} warp {self.warp.index} {lanes_text(self.lanes)}"


class Warp:
    """32 threads of a CTA.

    Attributes:
        rows: by kind, then by row: 32 values each.
        alive: lanes that exist and have not left.
        clocks: what each lane knows to have happened.
        group: the lanes that are running now.
    """

    cta: Cta
    index: int

    def __init__(self, cta: Cta, index: int, alive: Array) -> None:
        self.cta = cta
        self.index = index
        self.alive = alive
        self.machine: Machine = cta.machine
        self.banks = self.machine.program.new_banks()
        self.rows = rows_by_kind(self.banks)
        self.local = np.zeros((LANES, max(16, self.machine.local_bytes)), np.uint8)
        self.local_segment = Segment("local memory", 0, self.local.reshape(-1), watched=False)
        self.groups: list[Group] = [Group(self, alive.copy(), 0, (), ())]
        self.group = self.groups[0]
        self.clocks: LaneClocks = new_clocks(self, cta.start_clock)
        self.last_event: Event | None = None
        self.copy_groups: dict[tuple[str, int], CopyGroups] = {}

    @property
    def who(self) -> str:
        """For messages."""
        return f"{self.cta.who} warp {self.index}"

    def thread_name(self, lane: int) -> str:
        """For messages: "cluster 0 CTA 1 warp 2 lane 5"."""
        return f"{self.who} lane {lane}"

    def lanes(self, where: Where) -> Array:
        """Numbers of the lanes that take part."""
        return ALL if where is True else np.flatnonzero(where)

    def addresses(self, address: Address, lanes: Array) -> Array:
        """Addresses of some lanes as int64."""
        found = self.rows[U64 if address.kind == U64 else U32][address.row][lanes].astype(np.int64)
        return found + address.offset if address.offset else found

    def first(self, row: int, kind: int, where: Where) -> int:
        """An operand that is the same in all lanes, taken from the first that takes part."""
        lane = 0 if where is True else int(np.argmax(where))
        return int(self.rows[kind][row][lane])


def lanes_text(lanes: Array) -> str:
    """Lanes as short text: "lane 3", "lanes 0-31", "lanes 0,4,8"."""
    numbers = np.flatnonzero(lanes).tolist()
    if len(numbers) == 1:
        return f"lane {numbers[0]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][-1] = number
        else:
            runs.append([number, number])
    return "lanes " + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in runs)

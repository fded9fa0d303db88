"""What a simulation is told: overheads, CLC settings, disturbances and worker classes.

All times are integer SM cycles from the launch of the kernel. A *slot* is room for one resident
cluster; a *worker* is a cluster that was launched into a slot.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal, get_args

from tilewright.errors import BadInput

MOST_CYCLES = 2**44  # some two hours; a moment, with its slot, must fit 64 bits

Scheduler = Literal["single_tile", "static", "static_blocked", "dynamic_atomic", "clc", "stream_k"]
SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)

Order = Literal["given", "longest-first"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overheads:
    """Cycles that a kernel spends beside its tiles; every field is a non-negative integer.

    Attributes:
        prologue_cycles: once for each launched cluster, before its first tile.
        tile_overhead_cycles: added to each tile, inside it (the cluster barrier that ends it).
        fetch_cycles: `dynamic_atomic` only: before each tile, the queue's round trip.
        turnover_cycles: from a cluster's end until the next one launches into its slot.
        clc_latency_cycles: `clc` only: from a request to its response.
        launch_stagger_cycles: between two launches of the first wave.
        fixup_cycles: `stream_k` only: for each cut through a tile, charged to the later piece.
    """

    prologue_cycles: int = 0
    tile_overhead_cycles: int = 0
    fetch_cycles: int = 0
    turnover_cycles: int = 0
    clc_latency_cycles: int = 0
    launch_stagger_cycles: int = 0
    fixup_cycles: int = 0

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_count(item.name, getattr(self, item.name))

    def response_cycles(self, scheduler: Scheduler) -> int:
        """From a request for work to its answer; 0 where nobody asks."""
        waits = {"clc": self.clc_latency_cycles, "dynamic_atomic": self.fetch_cycles}
        return waits.get(scheduler, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clc:
    """How a worker asks for work by cluster launch control.

    Attributes:
        depth: claims that a worker tops itself up to.
        issue: where it asks. "start": as a tile starts, so that it holds up to `depth` claims behind
            the running tile. "end": as a tile ends, and the first claim is what it runs next; it
            holds `depth - 1` while a tile runs, and with depth 1 pays the latency at each tile.
    """

    depth: int = 1
    issue: Literal["start", "end"] = "start"

    def __post_init__(self) -> None:
        _check_count("clc depth", self.depth, least=1)
        if self.issue not in {"start", "end"}:
            raise BadInput(
                f'clc issue point "{self.issue}" is not known; allowed: start, end',
                given=self.issue,
                allowed="start, end",
            )

    @property
    def ahead(self) -> int:
        """Claims held while a tile runs."""
        return self.depth - (self.issue == "end")


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A foreign kernel that holds slots from `start_cycles` to `end_cycles` (None: for good).

    From its start it is first in line for slots: it takes what is free, the highest-numbered first,
    and then slots as they open. It never preempts, and CLC requests are granted meanwhile.
    """

    slots: int
    start_cycles: int = 0
    end_cycles: int | None = None

    def __post_init__(self) -> None:
        _check_count("busy slots", self.slots)
        _check_count("busy start_cycles", self.start_cycles)
        if self.end_cycles is not None:
            _check_count("busy end_cycles", self.end_cycles, least=self.start_cycles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """A higher-priority kernel that arrives and wants `slots` slots, each for `duration_cycles`.

    Each of its clusters starts as it gets a slot. It never preempts; while any of them waits, every
    CLC request is declined and no pending cluster or worker of ours launches.
    """

    slots: int
    at_cycles: int
    duration_cycles: int

    def __post_init__(self) -> None:
        _check_count("priority slots", self.slots)
        _check_count("priority at_cycles", self.at_cycles)
        _check_count("priority duration_cycles", self.duration_cycles)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """Everything that keeps a run from being the textbook's.

    Attributes:
        carve_out_slots: slots that this kernel leaves alone (an SM budget).
        declined: CLC requests declined by name: (worker, index of its request), both from 0.
        decline_probability: chance that any CLC request is declined for no reason.
        seed: of that chance. The same seed gives the same events.
        decline_windows: [from, to) in cycles in which every CLC request is declined.
    """

    busy: tuple[Busy, ...] = ()
    priority: tuple[Priority, ...] = ()
    carve_out_slots: int = 0
    declined: frozenset[tuple[int, int]] = frozenset()
    decline_probability: float = 0.0
    seed: int = 0
    decline_windows: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        _check_count("carve_out_slots", self.carve_out_slots)
        if not 0.0 <= self.decline_probability <= 1.0:
            raise BadInput(
                f"decline_probability {self.decline_probability} is not between 0 and 1",
                given=self.decline_probability,
                allowed="0 to 1",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerClass:
    """`count` slots whose clusters run a tile in cost · time_percent / 100 cycles, rounded up.

    For a preferred cluster shape with a smaller fallback: slots that hold the preferred shape are one
    class, those that hold the fallback another. A cluster gets the speed of the slot it is launched
    into. Classes fill the slots from 0; slots beyond them run at 100 percent.
    """

    count: int
    time_percent: int = 100

    def __post_init__(self) -> None:
        _check_count("worker class count", self.count)
        _check_count("worker class time_percent", self.time_percent, least=1)


def _check_count(name: str, value: object, *, least: int = 0) -> None:
    if type(value) is not int or not least <= value <= MOST_CYCLES:
        raise BadInput(
            f"{name} is {value!r}; an integer from {least} to {MOST_CYCLES} is needed",
            given=value,
            allowed=f"integers from {least} to {MOST_CYCLES}",
        )


UNDISTURBED = Disturbance()
NO_OVERHEADS = Overheads()

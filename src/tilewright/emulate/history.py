"""Which cluster was where when, what work it took, and what it asked for: the rows behind a timeline.

The clock is the emulator's own: warp instructions that all warps together have executed. It is what %clock and
%globaltimer read, and says who came before whom in this schedule, not how long anything takes.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Stay:
    """A cluster in a slot, which is room for one.

    Attributes:
        began: when the first of its CTAs did; None if none has.
        left: when the last of its CTAs did.
        turns: cancelled clusters whose coordinates its threads asked for, and when the last warp did: from then on
            nobody is at the work before it.
    """

    cluster: int
    slot: int
    placed: int
    began: int | None = None
    left: int | None = None
    turns: dict[int, int] = field(default_factory=dict)


@dataclass
class Ask:
    """A request of cluster launch control.

    Attributes:
        cluster: that asked.
        asked, answered: when it was issued, and when the answer lay in the last of its targets; None if it does not.
        granted: the cluster that it cancelled; None if there is none.
        declined: that was the answer; false while there is none.
    """

    cluster: int
    slot: int
    asked: int
    answered: int | None = None
    granted: int | None = None
    declined: bool = False


@dataclass
class History:
    """One launch under one schedule.

    Attributes:
        cluster_size: CTAs of a cluster.
        end: when the launch was over, or was stopped.
    """

    cluster_size: int
    stays: list[Stay] = field(default_factory=list)
    asks: list[Ask] = field(default_factory=list)
    end: int = 0

"""Vector clocks: what a thread, or a copy that runs by itself, knows to have happened.

A thread's time is its warp's `now`, which goes up with everything that the warp publishes; an event of lane l
at time t is known to whoever has t or more in l's column. Copies and matrix instructions have no time of their
own: they are over with a phase of a barrier, or with a group that their issuer waits for, and a *mark*, such
as ("mbarrier", where, phase), is then known.

Seven levels say how an event is known:

    SEEN            it happened before (base causality)
    HALF, ASYNC     and a proxy fence stands between: its first half only, or all of it
    BEFORE, TENSOR  and tcgen05.fence::before_thread_sync stands between, and ::after_thread_sync as well
    LOOSE           it came before, relaxed signals counted: enough for a read, which has had its value when
                    its thread signals (the model has no values out of thin air), and for the life of a CTA
    SCOPED          SEEN, and every mbarrier signal and wait on the way has a scope that takes in the other side

A fence copies what is known at a lower level into a higher one; publishing and acquiring carry all levels,
relaxed signals and waits all but SEEN and SCOPED. Scopes of fences and of flags in memory are not told apart.
A fence anywhere on the way counts, as in the PTX memory model (proxy-preserved base causality order).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilewright.emulate.registers import LANES, Array

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from tilewright.emulate.events import Event
    from tilewright.emulate.registers import Where
    from tilewright.emulate.warp import Warp

SEEN, HALF, ASYNC, BEFORE, TENSOR, LOOSE, SCOPED = range(7)
LEVELS = 7

OWN = (SEEN, LOOSE, SCOPED)
"""Levels at which a thread knows what it has done itself."""


_NUMBERS: dict[Hashable, int] = {}


def mark_number(key: Hashable) -> int:
    """A number for the name of a mark: clocks are joined all the time, and numbers are quick to look up."""
    return _NUMBERS.setdefault(key, len(_NUMBERS))


def init_mark(barrier: Hashable) -> int:
    """The number of "this mbarrier is initialised": negative, so that fence.mbarrier_init can tell them."""
    return -1 - mark_number(("init", barrier))


class Clock:
    """What is known at one level: columns of threads by cluster, and marks by `mark_number`. Never changed once made."""

    __slots__ = ("columns", "marks")

    def __init__(self, columns: dict[int, Array], marks: dict[int, int]) -> None:
        self.columns = columns
        self.marks = marks


EMPTY = Clock({}, {})
Published: TypeAlias = "tuple[Clock, ...]"
"""One clock a level."""

NOTHING: Published = (EMPTY,) * LEVELS


def join(a: Clock, b: Clock) -> Clock:
    """What either knows; `a` itself where `b` adds nothing, so that clocks stay shared."""
    if a is b or b is EMPTY:
        return a
    if a is EMPTY:
        return b
    columns = _join_columns(a.columns, b.columns)
    marks = a.marks
    if b.marks is not marks and not b.marks.items() <= marks.items():
        get = marks.get
        news = {key: time for key, time in b.marks.items() if get(key, -1) < time}
        if news:
            marks = marks | news
    if columns is a.columns and marks is a.marks:
        return a
    return Clock(columns, marks)


def _join_columns(mine: dict[int, Array], theirs: dict[int, Array]) -> dict[int, Array]:
    if mine is theirs:
        return mine
    found = mine
    for cluster, times in theirs.items():
        own = found.get(cluster)
        if own is times:
            continue
        both = times if own is None else np.maximum(own, times)
        if own is not None and np.array_equal(both, own):
            continue
        if found is mine:
            found = dict(mine)
        found[cluster] = both
    return found


def join_all(clocks: Iterable[Published]) -> Published:
    """What any of them knows."""
    found = NOTHING
    for each in clocks:
        found = join_levels(found, each)
    return found


def join_levels(a: Published, b: Published) -> Published:
    """`join` at every level; what is the same clock at two levels is joined once."""
    if a is b or b is NOTHING:
        return a
    made: dict[tuple[int, int], Clock] = {}
    levels = []
    for mine, theirs in zip(a, b, strict=True):
        key = (id(mine), id(theirs))
        if key not in made:
            made[key] = join(mine, theirs)
        levels.append(made[key])
    return tuple(levels)


def with_mark(clock: Published, key: Hashable, time: int, levels: tuple[int, ...]) -> Published:
    """The same and one mark more, at some levels, at LOOSE, and at SCOPED if SEEN; a number is a mark's own."""
    mark = Clock({}, {key if isinstance(key, int) else mark_number(key): time})
    chosen = {*levels, LOOSE, *([SCOPED] if SEEN in levels else [])}
    return tuple(
        join(known, mark) if level in chosen else known for level, known in enumerate(clock)
    )


def with_scoped(clock: Published, scoped: Clock) -> Published:
    """The same, with something else at SCOPED."""
    return (*clock[:SCOPED], scoped)


class LaneClocks:
    """What the 32 lanes of a warp know.

    Most lanes know the same, so each refers to a shared clock; what they know of one another, which differs
    from lane to lane, lies in `own[level][knower, known]`.

    Attributes:
        now: time of what the warp does next.
        base: the warp's first column in the arrays of its cluster.
    """

    def __init__(self, cluster: int, base: int, columns: int, start: Published) -> None:
        self.cluster = cluster
        self.base = base
        self.columns = columns
        self.now = 1
        self.outer: list[Published] = [start] * LANES
        self.own = np.zeros((LEVELS, LANES, LANES), np.int32)
        self.released: list[Published | None] = [
            None
        ] * LANES  # at the last fence, for relaxed signals
        self.received: list[Published | None] = [
            None
        ] * LANES  # by relaxed waits, for the next fence

    # --- publishing and acquiring -----------------------------------------------------------------

    def publish(self, where: Where) -> Published:
        """What the lanes know together, up to now; what they do next is not in it."""
        lanes = range(LANES) if where is True else np.flatnonzero(where).tolist()
        outer = join_all({id(self.outer[k]): self.outer[k] for k in lanes}.values())
        index = slice(None) if where is True else lanes
        known = self.own[:, index].max(axis=1)
        for level in OWN:
            known[level, index] = self.now
        levels = []
        used = known.any(axis=1).tolist()
        for level, clock in enumerate(outer):
            if clock is EMPTY and not used[level]:
                levels.append(EMPTY)
                continue
            if level == SCOPED and clock is outer[SEEN] and (known[level] == known[SEEN]).all():
                levels.append(levels[SEEN])
                continue
            times = clock.columns.get(self.cluster)
            times = np.zeros(self.columns, np.int32) if times is None else times.copy()
            mine = times[self.base : self.base + LANES]
            np.maximum(mine, known[level], out=mine)
            levels.append(Clock({**clock.columns, self.cluster: times}, clock.marks))
        self.now += 1
        return tuple(levels)

    def acquire(self, where: Where, news: Published) -> None:
        """The lanes come to know what was published."""
        made: dict[int, Published] = {}
        outer = self.outer
        for k in range(LANES) if where is True else np.flatnonzero(where).tolist():
            old = outer[k]
            if id(old) not in made:
                made[id(old)] = join_levels(old, news)
            outer[k] = made[id(old)]

    def learn(self, where: Where, key: Hashable, time: int, levels: tuple[int, ...]) -> None:
        """The lanes come to know one mark, at some levels and at LOOSE."""
        self.acquire(where, with_mark(NOTHING, key, time, levels))

    def meet(self, lanes: Array) -> None:
        """Lanes of the warp come to know all that any of them knows: bar.warp.sync."""
        index = np.flatnonzero(lanes)
        known = self.own[:, index].max(axis=1)
        for level in OWN:
            known[level, index] = self.now
        if len(index) == LANES:
            np.maximum(self.own, known[:, None], out=self.own)
        else:
            self.own[:, index] = np.maximum(self.own[:, index], known[:, None])
        both = join_all({id(self.outer[k]): self.outer[k] for k in index}.values())
        for lane in index:
            self.outer[lane] = both
        self.now += 1

    # --- fences -----------------------------------------------------------------------------------

    def raise_level(self, where: Where, low: int, *high: int) -> None:
        """A fence: what is known at `low` is known at `high` as well."""
        lanes = np.arange(LANES) if where is True else np.flatnonzero(where)
        made: dict[int, Published] = {}
        for lane in lanes.tolist():
            old = self.outer[lane]
            if id(old) not in made:
                levels = list(old)
                for level in high:
                    levels[level] = join(levels[level], levels[low])
                made[id(old)] = tuple(levels)
            self.outer[lane] = made[id(old)]
        for level in high:
            self.own[level, lanes] = np.maximum(self.own[level, lanes], self.own[low, lanes])
            if low == SEEN:
                self.own[level, lanes, lanes] = self.now
        self.now += 1

    def fence(self, where: Where) -> None:
        """fence.acq_rel: relaxed signals after it publish what is known here; relaxed waits before it count."""
        lanes = range(LANES) if where is True else np.flatnonzero(where).tolist()
        for lane in lanes:
            news = self.received[lane]
            if news is not None:
                self.outer[lane] = join_levels(self.outer[lane], news)
                self.received[lane] = None
        one = np.zeros(LANES, np.bool_)
        for lane in lanes:
            one[:] = False
            one[lane] = True
            self.released[lane] = self.publish(one)

    def publish_relaxed(self, where: Where) -> Published:
        """What a relaxed signal of the lanes carries: at SEEN and SCOPED, what was known at their last fence."""
        lanes = range(LANES) if where is True else np.flatnonzero(where).tolist()
        fenced = join_all(each for k in lanes if (each := self.released[k]) is not None)
        return (fenced[SEEN], *self.publish(where)[1:SCOPED], fenced[SCOPED])

    def acquire_relaxed(self, where: Where, news: Published) -> None:
        """A relaxed wait: what is SEEN and SCOPED counts from the next fence on."""
        self.acquire(where, (EMPTY, *news[1:SCOPED], EMPTY))
        for lane in range(LANES) if where is True else np.flatnonzero(where).tolist():
            old = self.received[lane]
            self.received[lane] = news if old is None else join_levels(old, news)

    # --- what is known ----------------------------------------------------------------------------

    def knows_mark(self, lane: int, key: Hashable, time: int, level: int = LOOSE) -> bool:
        """Whether a lane knows a mark at this time or later."""
        number = key if isinstance(key, int) else mark_number(key)
        return self.outer[lane][level].marks.get(number, -1) >= time

    def knows_event(self, lane: int, event: Event) -> bool:
        """Whether a lane knows that an event of its own warp, or of any lane of another, happened before."""
        if event.warp.clocks is self:
            return True
        times = self.outer[lane][SEEN].columns.get(event.cluster)
        return times is not None and bool(
            (times[event.base : event.base + LANES] >= event.time).any()
        )

    def lane_clock(self, lane: int) -> Published:
        """What one lane knows, for a copy that it issues: published, so that its next acts are later."""
        one = np.zeros(LANES, np.bool_)
        one[lane] = True
        return self.publish(one)


def new_clocks(warp: Warp, start: Published) -> LaneClocks:
    """Clocks of a warp that begins."""
    cluster = warp.cta.cluster
    per_cta = LANES * warp.machine.warps_per_cta
    base = warp.cta.rank * per_cta + warp.index * LANES
    return LaneClocks(cluster.index, base, per_cta * len(cluster.ctas), start)

"""The race detector's memory: for every byte of a segment who wrote it last and who has read it since.

Two accesses race if they touch a byte, one of them writes, not both are strong, and the later one does not
know of the earlier. An access by a copy or matrix instruction must know a *generic* write through a proxy
fence (level ASYNC); that it came before (LOOSE) is enough for accesses of its own kind, and for reads that
it overwrites, except those of a CLC answer. A thread that overwrites what was read need not know more either. A thread needs no fence to see what a copy did: its completion is
enough. PTX ISA, memory consistency model, "proxy" and "async operations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from tilewright.emulate.clocks import ASYNC, HALF, LOOSE, SCOPED, SEEN, TENSOR
from tilewright.emulate.events import AsyncEvent, Event, Side

if TYPE_CHECKING:
    from collections.abc import Callable

    from tilewright.emulate.clocks import Published
    from tilewright.emulate.registers import Array
    from tilewright.emulate.warp import Warp

AnyEvent: TypeAlias = "Event | AsyncEvent"
Report: TypeAlias = "Callable[[Side, Side, int], None]"
"""The access that does not know, the one that it does not know of, and the level that is missing."""

_BITS = np.uint32(1) << np.arange(32, dtype=np.uint32)


class Shadow:
    """Who touched the bytes of one segment."""

    def __init__(self, nbytes: int) -> None:
        self.events: list[AnyEvent | None] = [None]
        self._numbers: dict[int, int] = {}
        self.writer = np.zeros(nbytes, np.int32)
        self.writer_lane = np.zeros(nbytes, np.uint8)
        self.reader = np.zeros(nbytes, np.int32)
        self.reader_lanes = np.zeros(nbytes, np.uint32)
        self._bits = np.zeros(nbytes, np.uint32)  # of the read that is being entered
        self.readers = np.zeros(nbytes, np.int32)  # further ones, a number of `_sets`
        self._sets: list[tuple[tuple[int, int], ...]] = [()]  # events and lanes
        self._set_numbers: dict[tuple[tuple[int, int], ...], int] = {(): 0}

    def _number(self, event: AnyEvent) -> int:
        number = self._numbers.get(id(event))
        if number is None:
            number = self._numbers[id(event)] = len(self.events)
            self.events.append(event)
        return number

    # --- threads ----------------------------------------------------------------------------------

    def thread_reads(self, event: Event, at: Array, lanes: Array, report: Report) -> None:
        """Lanes read bytes: `at` their offsets, `lanes` the lane of each."""
        writer = self.writer[at]
        for number in _distinct(writer):
            self._check_thread(
                event, number, writer, self.writer_lane[at], lanes, report, writes=False
            )
        number = self._number(event)
        reader = self.reader[at]
        self._bits[at] = 0
        np.bitwise_or.at(self._bits, at, _BITS[lanes])
        bits = self._bits[at]
        for old in _distinct(reader):
            if old != number:
                self._keep_reader(old, number, event, at, reader, bits)
        same = reader == number
        self.reader_lanes[at] = np.where(same, self.reader_lanes[at], 0) | bits
        self.reader[at] = number

    def thread_writes(self, event: Event, at: Array, lanes: Array, report: Report) -> None:
        """Lanes write bytes."""
        writer = self.writer[at]
        for number in _distinct(writer):
            self._check_thread(
                event, number, writer, self.writer_lane[at], lanes, report, writes=True
            )
        reader = self.reader[at]
        for number in _distinct(reader):
            self._check_readers(event, number, reader, self.reader_lanes[at], lanes, report)
        further = self.readers[at]
        for set_number in _distinct(further):
            chosen = further == set_number
            for number, mask in self._sets[set_number]:
                self._check_reader(event, number, mask, lanes[chosen], report)
        self._written(self._number(event), at, lanes)

    def _written(self, number: int, at: Array | slice, lanes: Array | int) -> None:
        self.writer[at] = number
        self.writer_lane[at] = lanes
        self.reader[at] = 0
        self.readers[at] = 0

    def _check_thread(
        self,
        event: Event,
        number: int,
        all_numbers: Array,
        all_lanes: Array,
        lanes: Array,
        report: Report,
        *,
        writes: bool,
    ) -> None:
        """An access of a thread against the writes of one event."""
        old = self.events[number]
        if old is None or (old.strong and event.strong):
            return
        levels = (SEEN,) if writes or not _crosses_ctas(old, event) else (SEEN, SCOPED)
        chosen = all_numbers == number
        acting = lanes[chosen]
        if isinstance(old, AsyncEvent):
            for level in levels:
                lane = _unaware(event.warp, acting, old, level)
                if lane is not None:
                    report(Side(event, lane, writes=writes), Side(old, 0, writes=True), level)
                    return
            return
        for level in levels:
            unknown = _unknown(event.warp, acting, old, all_lanes[chosen], level)
            if unknown is not None:
                report(
                    Side(event, unknown[0], writes=writes),
                    Side(old, unknown[1], writes=True),
                    level,
                )
                return

    def _check_readers(
        self,
        event: Event,
        number: int,
        all_numbers: Array,
        all_masks: Array,
        lanes: Array,
        report: Report,
    ) -> None:
        """A write of a thread against the last readers of the bytes."""
        chosen = all_numbers == number
        masks, acting = all_masks[chosen], lanes[chosen]
        for mask in set(masks.tolist()):
            self._check_reader(event, number, mask, acting[masks == mask], report)

    def _check_reader(
        self, event: Event, number: int, mask: int, lanes: Array, report: Report
    ) -> None:
        old = self.events[number]
        if old is None or (old.strong and event.strong):
            return
        if isinstance(old, AsyncEvent):
            lane = _unaware(event.warp, lanes, old, LOOSE)
            if lane is not None:
                report(Side(event, lane, writes=True), Side(old, 0, writes=False), LOOSE)
            return
        acting = np.unique(lanes)
        readers = np.flatnonzero(_BITS & np.uint32(mask))
        pairs_acting = np.repeat(acting, len(readers))
        unknown = _unknown(event.warp, pairs_acting, old, np.tile(readers, len(acting)), LOOSE)
        if unknown is not None:
            report(Side(event, unknown[0], writes=True), Side(old, unknown[1], writes=False), LOOSE)

    def _keep_reader(
        self, old: int, new: int, event: AnyEvent, at: Array | slice, reader: Array, bits: Array
    ) -> None:
        """An earlier reader is kept beside the new one, unless whoever knows the new one knows it."""
        chosen = reader == old
        where = np.flatnonzero(chosen)
        places = at.start + where if isinstance(at, slice) else at[where]
        masks, sets, news = self.reader_lanes[places], self.readers[places], bits[chosen]
        for mask, kept, lanes in _combinations(masks, sets, news):
            entries = tuple(
                sorted(
                    entry
                    for entry in {(old, mask), *self._sets[kept]}
                    if not self._superseded(entry, new, event, lanes)
                )
            )
            number = self._set_numbers.get(entries)
            if number is None:
                number = self._set_numbers[entries] = len(self._sets)
                self._sets.append(entries)
            self.readers[places[(masks == mask) & (sets == kept) & (news == lanes)]] = number

    def _superseded(self, entry: tuple[int, int], new: int, event: AnyEvent, lanes: int) -> bool:
        """Whether whoever knows the new read, by `lanes`, knows this one as well."""
        old = self.events[entry[0]]
        if old is None or entry[0] == new:
            return True
        if isinstance(old, AsyncEvent):
            if isinstance(event, AsyncEvent):
                return old.known_at(event.issued, LOOSE)
            knowing = np.flatnonzero(_BITS & np.uint32(lanes)).tolist()
            return all(old.known_at(event.warp.clocks.outer[lane], LOOSE) for lane in knowing)
        if event.warp is old.warp and not isinstance(event, AsyncEvent):
            return entry[1] & ~lanes == 0
        readers = np.flatnonzero(_BITS & np.uint32(entry[1]))
        if isinstance(event, AsyncEvent):
            return _unknown_to(event.issued, old, readers, LOOSE) is None
        knowers = np.flatnonzero(_BITS & np.uint32(lanes))
        pairs = np.repeat(knowers, len(readers)), np.tile(readers, len(knowers))
        return _unknown(event.warp, pairs[0], old, pairs[1], LOOSE) is None

    # --- copies and matrix instructions -----------------------------------------------------------

    def async_reads(self, event: AsyncEvent, at: Array | slice, report: Report) -> None:
        """A copy reads bytes."""
        writer = self.writer[at]
        for number in _distinct(writer):
            self._check_async(
                event, number, self.writer_lane[at][writer == number], report, writes=False
            )
        number = self._number(event)
        reader = self.reader[at]
        for old in _distinct(reader):
            if old != number:
                self._keep_reader(old, number, event, at, reader, np.ones_like(self._bits[at]))
        self.reader[at] = number
        self.reader_lanes[at] = 1

    def async_writes(self, event: AsyncEvent, at: Array | slice, report: Report) -> None:
        """A copy writes bytes."""
        writer = self.writer[at]
        for number in _distinct(writer):
            self._check_async(
                event, number, self.writer_lane[at][writer == number], report, writes=True
            )
        reader = self.reader[at]
        masks = self.reader_lanes[at]
        for number in _distinct(reader):
            for mask in set(masks[reader == number].tolist()):
                self._check_async_reader(event, number, mask, report)
        for set_number in _distinct(self.readers[at]):
            for number, mask in self._sets[set_number]:
                self._check_async_reader(event, number, mask, report)
        self._written(self._number(event), at, 0)

    def _check_async(
        self, event: AsyncEvent, number: int, lanes: Array, report: Report, *, writes: bool
    ) -> None:
        old = self.events[number]
        if old is None or (old.strong and event.strong):
            return
        if isinstance(old, AsyncEvent):
            if old is event or old in event.follows:
                return
            # What is read must have been acquired; what is overwritten only has to be over.
            low = LOOSE if writes or event.level == TENSOR else SEEN
            for level in (low, event.level if event.level == TENSOR else low):
                if not old.known_at(event.issued, level):
                    report(Side(event, event.lane, writes=writes), Side(old, 0, writes=True), level)
                    return
            return
        for level in (SEEN, HALF, ASYNC):
            unknown = _unknown_to(event.issued, old, lanes, level)
            if unknown is not None:
                report(
                    Side(event, event.lane, writes=writes), Side(old, unknown, writes=True), level
                )
                return

    def _check_async_reader(
        self, event: AsyncEvent, number: int, mask: int, report: Report
    ) -> None:
        old = self.events[number]
        if old is None or (old.strong and event.strong):
            return
        if isinstance(old, AsyncEvent):
            if (
                old is not event
                and old not in event.follows
                and not old.known_at(event.issued, LOOSE)
            ):
                report(Side(event, event.lane, writes=True), Side(old, 0, writes=False), LOOSE)
            return
        readers = np.flatnonzero(_BITS & np.uint32(mask))
        levels = (LOOSE, HALF, ASYNC) if event.what == "CLC answer" else (LOOSE,)
        for level in levels:
            unknown = _unknown_to(event.issued, old, readers, level)
            if unknown is not None:
                report(
                    Side(event, event.lane, writes=True), Side(old, unknown, writes=False), level
                )
                return


def _crosses_ctas(old: AnyEvent, event: Event) -> bool:
    """Whether what is read comes from beyond the CTA; the answer to a launch control request always does.

    What the prerequisite grid wrote does not: griddepcontrol.wait makes it visible to the whole grid.
    """
    if isinstance(old, AsyncEvent) and (old.name or old.what == "CLC answer"):
        return not old.name
    return old.warp.cta is not event.warp.cta


def _combinations(*columns: Array) -> set[tuple[int, ...]]:
    """The rows that occur in columns of one length; mostly there is one."""
    if all((column == column[0]).all() for column in columns):
        return {tuple(int(column[0]) for column in columns)}
    return set(zip(*(column.tolist() for column in columns), strict=True))


def _distinct(numbers: Array) -> list[int]:
    """The numbers that occur, without 0."""
    if not numbers.size:
        return []
    first = int(numbers[0])
    if (numbers == first).all():
        return [first] if first else []
    return [n for n in np.unique(numbers).tolist() if n]


def _unaware(warp: Warp, lanes: Array, old: AsyncEvent, level: int) -> int | None:
    """The first lane that does not know that a copy is over; lanes share what they know."""
    outer = warp.clocks.outer
    asked: set[int] = set()
    acting: set[int] = set(lanes.tolist())
    for lane in acting:
        clock = outer[lane][level]
        if id(clock) not in asked:
            asked.add(id(clock))
            if not old.known_to(clock):
                return lane
    return None


def _unknown(
    warp: Warp, acting: Array, old: Event, lanes: Array, level: int
) -> tuple[int, int] | None:
    """The first pair of an acting lane and a lane of an older event that it does not know; None if it knows all."""
    clocks = warp.clocks
    known = np.zeros(acting.shape, np.bool_)
    outer = clocks.outer
    views = {id(outer[lane]): outer[lane] for lane in set(acting.tolist())}
    view_of_lane = np.array([id(view) for view in outer]) if len(views) > 1 else None
    for key, view in views.items():
        times = view[level].columns.get(old.cluster)
        if times is None:
            continue
        found = times[old.base + lanes.astype(np.int64)] >= old.time
        if view_of_lane is not None:
            found &= view_of_lane[acting] == key
        known |= found
    if old.warp is warp:
        known |= clocks.own[level, acting, lanes] >= old.time
        if level in {SEEN, LOOSE, SCOPED}:
            known |= acting == lanes
    if known.all():
        return None
    first = int(np.argmin(known))
    return int(acting[first]), int(lanes[first])


def _unknown_to(clocks: Published, old: Event, lanes: Array, level: int) -> int | None:
    """The first lane of an older event that a published clock does not know."""
    times = clocks[level].columns.get(old.cluster)
    if times is None:
        return int(lanes[0])
    known = times[old.base + lanes.astype(np.int64)] >= old.time
    return None if known.all() else int(lanes[int(np.argmin(known))])

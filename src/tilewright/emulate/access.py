"""Reading and writing memory with every check that goes with it: bounds, life of the CTA, barriers, races."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tilewright.emulate.events import AsyncEvent, Event, same_event
from tilewright.emulate.memory import NoSuchAddress, Place, Segment
from tilewright.emulate.races import describe_race

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.emulate.cluster import Cta
    from tilewright.emulate.machine import Machine
    from tilewright.emulate.registers import Array
    from tilewright.emulate.shadow import Report
    from tilewright.emulate.warp import Warp
    from tilewright.ptx.flow import Op

_BYTES = {n: np.arange(n) for n in (1, 2, 4, 8, 16, 32, 64)}


class Accesses:
    """Memory as instructions use it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.find_races = machine.options.races

    # --- threads ----------------------------------------------------------------------------------

    def load(
        self,
        warp: Warp,
        op: Op,
        space: str,
        addresses: Array,
        shape: tuple[int, int],
        lanes: Array,
        *,
        strong: bool = False,
    ) -> Array:
        """Elements of each lane: (lanes, count) unsigned numbers.

        Args:
            shape: bytes an element (1, 2, 4 or 8), elements a lane; together they are aligned.
        """
        size, count = shape
        found = np.zeros((len(lanes), count), f"u{size}")
        for place in self.places(warp, op, space, addresses, size * count, lanes):
            at = place.offsets // size
            view = place.segment.view(size)
            values = view[at[:, None] + _BYTES[count]] if count > 1 else view[at][:, None]
            if len(place.lanes) == len(lanes):
                found = values
            else:
                found[np.isin(lanes, place.lanes)] = values
            self._note(place.segment, place.offsets, writes=False)
            if self._is_watched(place.segment):
                self._touch(place, size * count, warp, op, strong=strong, writes=False)
        return found

    def store(
        self,
        warp: Warp,
        op: Op,
        space: str,
        addresses: Array,
        values: Array,
        lanes: Array,
        *,
        strong: bool = False,
    ) -> None:
        """Write (lanes, count) unsigned numbers; of lanes that write one place the last one stays."""
        count = values.shape[1]
        size = values.dtype.itemsize
        for place in self.places(warp, op, space, addresses, size * count, lanes):
            mine = values if len(place.lanes) == len(lanes) else values[np.isin(lanes, place.lanes)]
            at = (place.offsets // size)[:, None] + _BYTES[count]
            view = place.segment.view(size)
            self._note(place.segment, place.offsets, writes=True)
            silent = np.array_equal(view[at], mine)
            if self._is_watched(place.segment):
                self._touch(
                    place, size * count, warp, op, strong=strong, writes=True, silent=silent
                )
            if not silent and place.segment.watched:
                self.machine.changed()
            view[at] = mine
            if place.segment.published and not strong:
                for offset in place.offsets.tolist():
                    place.segment.published.pop(offset, None)

    def places(
        self, warp: Warp, op: Op, space: str, addresses: Array, nbytes: int, lanes: Array
    ) -> Iterator[Place]:
        """Where bytes lie that lanes touch now, checked as by `targets`."""
        for place in self.targets(warp, op, space, addresses, nbytes, lanes):
            self.visit(warp, op, place)
            yield place

    def visit(self, warp: Warp, op: Op, place: Place) -> None:
        """Lanes touch a place now: the CTA that owns it may leave only after that."""
        owner = place.segment.cta
        if owner is not None and owner is not warp.cta:
            owner.visited_by(warp, op, place.lanes)

    def targets(
        self, warp: Warp, op: Op, space: str, addresses: Array, nbytes: int, lanes: Array
    ) -> Iterator[Place]:
        """Where bytes lie that an operation will touch, checked for bounds, alignment and the life of the CTA that owns them."""
        try:
            for place in warp.cta.spaces.places(space, addresses, nbytes, lanes, warp):
                owner = place.segment.cta
                if owner is not None and owner is not warp.cta:
                    self.check_alive(owner, warp, int(place.lanes[0]), op)
                yield place
        except NoSuchAddress as wrong:
            self.machine.stop(wrong.rule, f"{wrong} ({warp.thread_name(wrong.lane)})", op)

    def check_alive(self, owner: Cta, warp: Warp, lane: int, op: Op) -> None:
        """Another CTA's shared memory may be touched while that CTA runs, and this thread knows that it does."""
        who = warp.thread_name(lane)
        self.machine.note(("life", owner.who), writes=False)
        owner.check_there("CLU-02", f"{who} reaches into", op)
        if not warp.clocks.knows_mark(lane, ("started", owner.cluster.index, owner.rank), 1):
            state = "has not started" if not owner.has_started else "may not have started"
            self.machine.stop(
                "CLU-01",
                f"{who} reaches into {owner.who}, which {state}: no cluster barrier comes before",
                op,
                self.machine.program.steps[0].op,
                "where it starts",
            )

    def _is_watched(self, segment: Segment) -> bool:
        return segment.watched and (self.find_races or bool(segment.barriers))

    def _touch(
        self,
        place: Place,
        nbytes: int,
        warp: Warp,
        op: Op,
        *,
        strong: bool,
        writes: bool,
        silent: bool = False,
    ) -> None:
        """Enter an access of lanes, byte by byte."""
        at = (place.offsets[:, None] + _BYTES[nbytes]).reshape(-1)
        segment = place.segment
        if segment.barriers and writes:
            self.check_no_barrier(segment, at, op, warp.thread_name(int(place.lanes[0])))
        if not self.find_races:
            return
        lanes = np.repeat(place.lanes, nbytes)
        event = warp.last_event
        now = warp.clocks.now
        same = event is not None and same_event(event, warp, op, now)
        if event is None or not same or (event.strong, event.silent) != (strong, silent):
            clocks = warp.clocks
            event = Event(warp, op, now, clocks.cluster, clocks.base, strong, silent)
            warp.last_event = event
        report = self._reporter(segment)
        if writes:
            segment.shadow.thread_writes(event, at, lanes, report)
        else:
            segment.shadow.thread_reads(event, at, lanes, report)

    def _note(self, segment: Segment, at: Array | slice, *, writes: bool) -> None:
        """For exhaustive runs: the 16-byte pieces that a step touches."""
        if self.machine.strategy.footprint is None or not segment.watched:
            return
        places = np.arange(at.start, at.stop) if isinstance(at, slice) else at.reshape(-1)
        for piece in np.unique(places // 16).tolist():
            self.machine.note((segment.name, piece), writes=writes)

    def check_no_barrier(self, segment: Segment, at: Array | slice, op: Op, who: str) -> None:
        """Ordinary writes may not touch a live mbarrier object."""
        under = segment.under_barrier
        if under is None or not under[at].any():
            return
        places = np.arange(at.start, at.stop) if isinstance(at, slice) else at
        offset = int(places[np.flatnonzero(under[at])[0]]) // 8 * 8
        barrier = segment.barriers[offset]
        self.machine.stop(
            "MBAR-10",
            f"{who} writes over the live mbarrier at {segment.describe(offset)}",
            op,
            barrier.made_by,
            "initialised here",
        )

    def _reporter(self, segment: Segment) -> Report:
        return lambda new, old, level: describe_race(self.machine, segment, new, old, level)

    # --- copies -----------------------------------------------------------------------------------

    def async_read(self, event: AsyncEvent, segment: Segment, at: Array | slice) -> Array:
        """Bytes that a copy or matrix instruction reads."""
        self._note(segment, at, writes=False)
        self.note_read(event, segment, at)
        found: Array = segment.data[at]
        return found

    def async_elements(
        self, event: AsyncEvent, segment: Segment, addresses: Array, size: int
    ) -> Array:
        """Elements of `size` bytes that a matrix instruction reads at offsets of a CTA's shared memory."""
        low, high = int(addresses.min()), int(addresses.max()) + size
        if low < segment.start or high > segment.nbytes:
            self.machine.stop(
                "OOB",
                f"{event.who()} reads bytes {low:#x} to {high - 1:#x} of {segment.name}, which has "
                f"{segment.start:#x} to {segment.nbytes - 1:#x}",
                event.op,
            )
        self.note_read(event, segment, (addresses[..., None] + np.arange(size)).ravel())
        found: Array = segment.view(size)[addresses // size]
        return found

    def async_write(
        self, event: AsyncEvent, segment: Segment, at: Array | slice, data: Array
    ) -> None:
        """Bytes that a copy or matrix instruction writes."""
        self.note_write(event, segment, at, silent=np.array_equal(segment.data[at], data))
        segment.data[at] = data

    def note_read(self, event: AsyncEvent, segment: Segment, at: Array | slice) -> None:
        """Enter a read by a copy or matrix instruction."""
        if self.find_races and segment.watched:
            segment.shadow.async_reads(event, at, self._reporter(segment))

    def note_write(
        self, event: AsyncEvent, segment: Segment, at: Array | slice, *, silent: bool = False
    ) -> None:
        """Enter a write by a copy or matrix instruction; the CTA must be there, and no mbarrier in the way.

        Args:
            silent: it writes what is there already.
        """
        event.silent = silent
        self._note(segment, at, writes=True)
        owner = segment.cta
        if owner is not None:
            what = f"{event.who()} writes at {_first(at):#x} of"
            owner.check_there(owner.exit_rule(event), what, event.op)
        if segment.barriers:
            self.check_no_barrier(segment, at, event.op, event.who())
        if self.find_races and segment.watched:
            segment.shadow.async_writes(event, at, self._reporter(segment))


def _first(at: Array | slice) -> int:
    return int(at.start) if isinstance(at, slice) else int(at.reshape(-1)[0])

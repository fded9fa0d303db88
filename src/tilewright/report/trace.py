"""Timelines in the trace-event format, which Perfetto and chrome://tracing open.

A process a run, so that a simulation, an emulation and a measurement of one plan lie one above the other, all from
zero. An emulated one says what a nanosecond of it stands for. In it:

- a track a slot and rank ("worker 3", "worker 3, CTA 1"), a slice a tile. A tile that begins before the one
  ahead of it has ended (warps of a measured kernel that run apart) goes to a track of its own beside it.
- a track of requests a slot, where there are any: a slice from try_cancel to its response, and a flow arrow
  from it to the slice of the tile that was granted. A declined request has no arrow,
  nor has one without an answer or whose tile nobody began.
- a track of foreign kernels a slot that they held.
- counters: `tiles waiting` (not begun), and `SMs busy`, or `CTAs busy` where CTAs share SMs.

Source: "Trace Event Format" (Google, 2016), the JSON object form: `ts` and `dur` in microseconds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.timeline import DECLINED, UNANSWERED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.timeline import Timeline

Event = dict[str, Any]

_WITHOUT_TILE = {DECLINED: "declined", UNANSWERED: "no answer"}

LANES = 4
"""Tracks that a slot and rank may have side by side; a fifth tile at once would hide in the last."""


class _Tracks:
    """Thread ids: those of a slot lie together, its CTAs' lanes first, then its requests' and its foreign kernels'.

    Attributes:
        of_tile: where the slice of each (worker, tile) went.
    """

    def __init__(self, timeline: Timeline, pid: int) -> None:
        self.pid = pid
        self.of_tile: dict[tuple[int, int], int] = {}
        self._groups = max(timeline.ctas_per_slot, 1) + 2
        self._ends: dict[int, list[int]] = defaultdict(list)

    def tiles(self, slot: int, rank: int) -> int:
        return (slot * self._groups + rank) * LANES + 1

    def requests(self, slot: int) -> int:
        return self.tiles(slot, self._groups - 2)

    def foreign(self, slot: int) -> int:
        return self.tiles(slot, self._groups - 1)

    def lay(
        self, first: int, track: str, name: str, start_ns: int, end_ns: int, **args: object
    ) -> Iterator[Event]:
        """A slice on the first lane that is free, from thread id `first` on; a new lane is named."""
        lanes = self._ends[first]
        lane = next((i for i, end in enumerate(lanes) if end <= start_ns), len(lanes))
        lane = min(lane, LANES - 1)
        tid = first + lane
        if lane == len(lanes):
            lanes.append(0)
            beside = f", beside {lane}" if lane else ""
            yield _named("thread_name", self.pid, tid, name=f"{track}{beside}")
            yield _named("thread_sort_index", self.pid, tid, sort_index=tid)
        lanes[lane] = end_ns
        yield {
            "ph": "X",
            "name": name,
            "pid": self.pid,
            "tid": tid,
            "ts": start_ns / 1000,
            "dur": (end_ns - start_ns) / 1000,
            "args": args,
        }


def render_trace(timelines: Sequence[Timeline]) -> str:
    """JSON text, an event a line."""
    events = [
        event for pid, timeline in enumerate(timelines, 1) for event in _events(timeline, pid)
    ]
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    head = json.dumps({"tilewright": __version__})
    return f'{{"displayTimeUnit":"ns","otherData":{head},"traceEvents":[\n{lines}\n]}}\n'


def _events(timeline: Timeline, pid: int) -> Iterator[Event]:
    name = f"{timeline.source} {timeline.scheduler}"
    if timeline.unit != "ns":
        name += f" (1 ns: 1 {timeline.unit})"
    yield _named("process_name", pid, 0, name=name)
    yield _named("process_sort_index", pid, 0, sort_index=pid)
    tracks = _Tracks(timeline, pid)
    yield from _tiles(timeline, tracks)
    yield from _requests(timeline, tracks)
    yield from _foreign(timeline, tracks)
    yield from _counters(timeline, pid)


def _named(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _tiles(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    for span in sorted(timeline.spans, key=lambda s: (s.slot, s.rank, s.start_ns, s.end_ns)):
        rank = f", CTA {span.rank}" if span.rank else ""
        known = {} if span.sm is None else {"sm": span.sm}
        for event in tracks.lay(
            tracks.tiles(span.slot, span.rank),
            f"worker {span.slot}{rank}",
            f"tile {span.tile}",
            span.start_ns,
            span.end_ns,
            tile=span.tile,
            worker=span.worker,
            **known,
        ):
            if not span.rank:
                tracks.of_tile[span.worker, span.tile] = event["tid"]
            yield event


def _requests(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    begins = {(s.worker, s.tile): s.start_ns for s in timeline.spans if not s.rank}
    word = "try_cancel" if timeline.scheduler == "clc" else "draw"
    asks = sorted(timeline.requests, key=lambda r: (r.slot, r.ask_ns, r.tile))
    for number, ask in enumerate(asks):
        granted = ask.tile not in _WITHOUT_TILE
        name = f"{word}: {_WITHOUT_TILE.get(ask.tile, f'tile {ask.tile}')}"
        end = max(ask.answer_ns, ask.ask_ns + 1)  # a flow needs a slice of some length to begin in
        *named, request = tracks.lay(
            tracks.requests(ask.slot), f"worker {ask.slot}, requests", name, ask.ask_ns, end,
            worker=ask.worker, granted=granted,
        )  # fmt: skip
        yield from named
        yield request
        tile = (ask.worker, ask.tile)
        if tile in begins:
            flow = {"cat": "request", "name": "granted", "pid": tracks.pid}
            flow["id"] = tracks.pid << 32 | number
            yield {**flow, "ph": "s", "tid": request["tid"], "ts": request["ts"]}
            target = {"tid": tracks.of_tile[tile], "ts": begins[tile] / 1000}
            yield {**flow, "ph": "f", "bp": "e", **target}


def _foreign(timeline: Timeline, tracks: _Tracks) -> Iterator[Event]:
    for hold in sorted(timeline.holds, key=lambda h: (h.slot, h.start_ns)):
        end = timeline.end_ns if hold.end_ns is None else hold.end_ns
        yield from tracks.lay(
            tracks.foreign(hold.slot), f"slot {hold.slot}, foreign kernel", "foreign kernel",
            hold.start_ns, max(end, hold.start_ns),
        )  # fmt: skip


def _counters(timeline: Timeline, pid: int) -> Iterator[Event]:
    """Both counters, an event where either changes."""
    waiting = len({s.tile for s in timeline.spans})
    unit, busy_of = _busy_unit(timeline)
    changes: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    begun: set[int] = set()
    for span in sorted(timeline.spans, key=lambda s: s.start_ns):
        first = span.tile not in begun
        begun.add(span.tile)
        started, busy = changes[span.start_ns]
        changes[span.start_ns] = (started + first, busy + busy_of)
        started, busy = changes[span.end_ns]
        changes[span.end_ns] = (started, busy - busy_of)
    busy_now = 0
    if changes:
        yield _counter("tiles waiting", pid, 0, waiting)
    for at in sorted(changes):
        started, more = changes[at]
        if started:
            waiting -= started
            yield _counter("tiles waiting", pid, at, waiting)
        if more:
            busy_now += more
            yield _counter(unit, pid, at, busy_now)


def _busy_unit(timeline: Timeline) -> tuple[str, int]:
    """What is counted, and what a span counts for."""
    spans_of = 1 if any(s.rank for s in timeline.spans) else timeline.ctas_per_slot
    if timeline.sms_per_slot is not None:
        return "SMs busy", max(1, timeline.sms_per_slot * spans_of // timeline.ctas_per_slot)
    return "CTAs busy", spans_of


def _counter(name: str, pid: int, at_ns: int, value: int) -> Event:
    return {
        "ph": "C",
        "name": name,
        "pid": pid,
        "tid": 0,
        "ts": at_ns / 1000,
        "args": {name: value},
    }


def problems(trace: dict[str, Any]) -> Iterable[str]:
    """What a viewer would show wrongly: slices of a track that overlap, flows without their other end.

    Args:
        trace: a parsed trace file, of this package or another.
    """
    tracks: dict[tuple[int, int], list[tuple[float, float, str]]] = defaultdict(list)
    flows: dict[int, list[str]] = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            begin = event["ts"]
            tracks[event["pid"], event["tid"]].append((begin, begin + event["dur"], event["name"]))
        elif event["ph"] in {"s", "t", "f"}:
            flows[event["id"]].append(event["ph"])
    for key, slices in tracks.items():
        slices.sort()
        for (_, end, name), (begin, _, following) in pairwise(slices):
            if begin < end - 5e-4:
                yield f"track {key}: {following} begins {end - begin:.3f} us before {name} ends"
    for id_, ends in flows.items():
        if sorted(ends) != ["f", "s"]:
            yield f"flow {id_} has {', '.join(ends)}"

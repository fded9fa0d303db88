"""Timelines in the trace-event format, which Perfetto and chrome://tracing open.

A process a run, so that a simulation and a measurement of one plan lie one above the other, both from zero.
In it:

- a track a slot and rank ("worker 3", "worker 3, CTA 1"), a slice a tile. A tile that begins before the one
  ahead of it has ended (warps of a measured kernel that run apart) goes to a track of its own beside it.
- a track of requests a slot, where there are any: a slice from try_cancel to its response, and a flow arrow
  from it to the slice of the tile that was granted. A declined request has no arrow.
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
from tilewright.timeline import DECLINED

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.timeline import TileSpan, Timeline

Event = dict[str, Any]

LANES = 4
"""Tracks that a slot and rank may have side by side; a fifth tile at once would hide in the last."""

REQUESTS, FOREIGN = 1_000_000, 2_000_000
"""First thread ids of the tracks beside the workers'."""


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
    yield _named("process_name", pid, 0, name=name)
    yield _named("process_sort_index", pid, 0, sort_index=pid)
    yield from _tiles(timeline, pid)
    yield from _requests(timeline, pid)
    yield from _foreign(timeline, pid)
    yield from _counters(timeline, pid)


def _named(what: str, pid: int, tid: int, **args: object) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _slice(name: str, pid: int, tid: int, start_ns: int, end_ns: int, **args: object) -> Event:
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": start_ns / 1000,
        "dur": (end_ns - start_ns) / 1000,
        "args": args,
    }


def _tiles(timeline: Timeline, pid: int) -> Iterator[Event]:
    ends: dict[tuple[int, int], list[int]] = defaultdict(list)
    for span in sorted(timeline.spans, key=lambda s: (s.slot, s.rank, s.start_ns, s.end_ns)):
        lanes = ends[span.slot, span.rank]
        lane = next((i for i, end in enumerate(lanes) if end <= span.start_ns), len(lanes))
        lane = min(lane, LANES - 1)
        tid = _track(timeline, span, lane)
        if lane == len(lanes):
            lanes.append(0)
            rank = f", CTA {span.rank}" if span.rank else ""
            beside = f", beside {lane}" if lane else ""
            yield _named("thread_name", pid, tid, name=f"worker {span.slot}{rank}{beside}")
            yield _named("thread_sort_index", pid, tid, sort_index=2 * tid)
        lanes[lane] = span.end_ns
        known = {} if span.sm is None else {"sm": span.sm}
        yield _slice(
            f"tile {span.tile}", pid, tid, span.start_ns, span.end_ns, tile=span.tile, worker=span.worker, **known
        )  # fmt: skip


def _track(timeline: Timeline, span: TileSpan, lane: int = 0) -> int:
    return (span.slot * max(timeline.ctas_per_slot, 1) + span.rank) * LANES + lane + 1


def _requests(timeline: Timeline, pid: int) -> Iterator[Event]:
    started = {(s.worker, s.tile): s for s in timeline.spans if s.rank == 0}
    for slot in sorted({r.slot for r in timeline.requests}):
        tid = REQUESTS + slot
        yield _named("thread_name", pid, tid, name=f"worker {slot}, requests")
        after = 2 * (slot * max(timeline.ctas_per_slot, 1) * LANES + LANES) + 1
        yield _named("thread_sort_index", pid, tid, sort_index=after)
    for number, ask in enumerate(timeline.requests):
        tid = REQUESTS + ask.slot
        granted = ask.tile != DECLINED
        name = f"try_cancel: tile {ask.tile}" if granted else "try_cancel: declined"
        end = max(ask.answer_ns, ask.ask_ns + 1)  # a flow needs a slice of some length to begin in
        yield _slice(name, pid, tid, ask.ask_ns, end, worker=ask.worker, granted=granted)
        span = started.get((ask.worker, ask.tile)) if granted else None
        if span is not None:
            flow = {"cat": "request", "name": "granted", "pid": pid, "id": pid << 32 | number}
            yield {**flow, "ph": "s", "tid": tid, "ts": ask.ask_ns / 1000}
            yield {**flow, "ph": "f", "bp": "e", "tid": _track(timeline, span), "ts": span.start_ns / 1000}  # fmt: skip


def _foreign(timeline: Timeline, pid: int) -> Iterator[Event]:
    for slot in sorted({h.slot for h in timeline.holds}):
        yield _named("thread_name", pid, FOREIGN + slot, name=f"slot {slot}, foreign kernel")
    for hold in timeline.holds:
        end = timeline.end_ns if hold.end_ns is None else hold.end_ns
        yield _slice("foreign kernel", pid, FOREIGN + hold.slot, hold.start_ns, max(end, hold.start_ns))  # fmt: skip


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

"""Trace files as tests read them: the format's own rules, and what a viewer would show."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple

import jsonschema

from tilewright.report.trace import problems, render_trace

if TYPE_CHECKING:
    from tilewright.timeline import Timeline

NUMBER = {"type": "number"}
WHOLE = {"type": "integer", "minimum": 0}
# "Trace Event Format" (Google, 2016): complete, flow, counter and metadata events, JSON object form
FORMAT = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid", "tid"],
                "properties": {
                    "ph": {"enum": ["X", "M", "C", "s", "f"]},
                    "name": {"type": "string"},
                    "pid": WHOLE,
                    "tid": WHOLE,
                    "ts": {**NUMBER, "minimum": 0},
                    "dur": {**NUMBER, "minimum": 0},
                },
                "allOf": [
                    {"if": {"properties": {"ph": {"const": "X"}}}, "then": {"required": ["ts", "dur"]}},
                    {"if": {"properties": {"ph": {"const": "C"}}},
                     "then": {"required": ["ts", "args"], "properties": {"args": {"additionalProperties": NUMBER}}}},
                    {"if": {"properties": {"ph": {"enum": ["s", "f"]}}}, "then": {"required": ["ts", "id", "cat"]}},
                    {"if": {"properties": {"ph": {"const": "M"}}},
                     "then": {"properties": {"name": {"enum": [
                         "process_name", "thread_name", "process_sort_index", "thread_sort_index"]}}}},
                ],
            },
        },
    },
}  # fmt: skip


def check_format(trace: dict[str, Any]) -> None:
    """The format's own rules."""
    jsonschema.validate(trace, FORMAT)


def traced(*timelines: Timeline) -> dict[str, Any]:
    """The trace of runs, valid."""
    found: dict[str, Any] = json.loads(render_trace(timelines))
    check_format(found)
    return found


def slices(trace: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [e for e in trace["traceEvents"] if e["ph"] == "X" and e["name"].startswith(name)]


class Shown(NamedTuple):
    """What a viewer shows of one run.

    Attributes:
        workers: tracks of clusters as a whole, or of their first CTAs; further CTAs and tracks beside are left out.
        askers: tracks of requests.
        tiles: slices on `workers`, how often each.
        arrows: names of flows, and of the slices that they lead to.
        counters: names, with the largest and the last value.
    """

    name: str
    workers: frozenset[str]
    askers: frozenset[str]
    tiles: Counter[str]
    arrows: frozenset[tuple[str, str]]
    counters: dict[str, tuple[float, float]]


def shown(trace: dict[str, Any], pid: int) -> Shown:
    """One run of a trace; each arrow begins on a request for a tile and leads to the slice of that tile."""
    events = [event for event in trace["traceEvents"] if event["pid"] == pid]
    [name] = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    track = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    track = {tid: name.partition(", beside")[0] for tid, name in track.items()}
    boxes = [e for e in events if e["ph"] == "X"]
    at = {(e["tid"], e["ts"]): e["name"] for e in boxes}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    arrows = set()
    for begin in (e for e in events if e["ph"] == "s"):
        end = ends.pop(begin["id"])
        wanted = at[begin["tid"], begin["ts"]].partition(": ")[2]
        assert at[end["tid"], end["ts"]] == wanted
        assert track[begin["tid"]] == f"{track[end['tid']]}, requests"
        arrows.add((begin["name"], wanted))
    assert not ends
    counters: dict[str, list[float]] = {}
    for event in events:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).append(event["args"][event["name"]])
    return Shown(
        name,
        frozenset(n for n in track.values() if "," not in n),
        frozenset(n for n in track.values() if n.endswith(", requests")),
        Counter(e["name"] for e in boxes if "," not in track[e["tid"]]),
        frozenset(arrows),
        {name: (max(values), values[-1]) for name, values in counters.items()},
    )


def check_alike(timelines: dict[str, Timeline], tiles: int) -> dict[str, Shown]:
    """Runs of one plan in one file: each does every tile once, on the same tracks, with the same counters.

    Args:
        timelines: by the name that each one's process must have.
    """
    trace = traced(*timelines.values())
    assert not list(problems(trace))
    found = {}
    for pid, name in enumerate(timelines, 1):
        found[name] = each = shown(trace, pid)
        assert each.name == name
        assert each.tiles == Counter(f"tile {tile}" for tile in range(tiles))
    first = next(iter(found.values()))
    for each in found.values():
        assert each.workers == first.workers
        assert each.counters.keys() == first.counters.keys()
        assert each.counters["tiles waiting"] == (tiles, 0)
        assert all(last == 0 for _, last in each.counters.values())
        assert {name for name, _ in each.arrows} == {name for name, _ in first.arrows}
        assert each.askers <= {f"{worker}, requests" for worker in each.workers}
    return found

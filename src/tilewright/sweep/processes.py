"""Tasks on processes of this machine: an answer comes as soon as it is there, and a dead process loses none.

A process gets a few tasks at a time and answers one by one. When it dies, its unanswered tasks go to others; the one
that it was at is tried once more, alone, and after a second death its answer is that error. A task that takes too long
ends its process the same way.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.sweep.answer import Answered, answer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from multiprocessing.connection import Connection

    from tilewright.device import Device
    from tilewright.problem import Workload

CHUNK = 8
"""Tasks handed over at once: a plan takes some 50 ms, a hand-over well under one."""

START_SECONDS = 120.0
"""Most that a process may take to start; a task's time counts from there."""

TRIES = 2
"""Processes that may die at one task."""


class Task(NamedTuple):
    """A question that nobody has answered yet."""

    key: str
    problem: Workload
    device: str


@dataclass
class _Process:
    process: Any
    pipe: Connection
    tasks: deque[Task] = field(default_factory=deque)
    since: float = 0.0
    ready: bool = False
    gone: bool = False

    def is_late(self, seconds: float) -> bool:
        """Whether its task, or its start, takes too long."""
        most = seconds if self.ready else START_SECONDS
        return bool(self.tasks) and time.monotonic() - self.since > most


def run_tasks(
    tasks: Iterable[Task], devices: Mapping[str, Device], *, processes: int, seconds: float
) -> Iterator[Answered]:
    """Answer every task, in any order.

    Args:
        devices: by name.
        processes: how many.
        seconds: most that a task may take.
    """
    waiting, deaths = deque(tasks), dict[str, int]()
    context = multiprocessing.get_context("spawn")
    running: list[_Process] = []
    try:
        while waiting or any(each.tasks for each in running):
            while len(running) < min(processes, len(waiting) + len(running)):
                running.append(_start(context, devices))
            for each in running:
                if waiting and not each.tasks:
                    _hand_over(each, waiting, deaths)
            yield from _ready(running)
            for each in _dead(running, seconds):
                running.remove(each)
                yield from _buried(each, waiting, deaths, seconds)
    finally:
        for each in running:
            each.process.kill()
        for each in running:
            each.process.join()


def _start(context: Any, devices: Mapping[str, Device]) -> _Process:
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, dict(devices)), daemon=True)
    process.start()
    there.close()
    return _Process(process, here)


def _serve(pipe: Connection, devices: Mapping[str, Device]) -> None:
    """What a process does: it ends when the pipe does, and leaves an interrupt to its parent."""
    import signal  # noqa: PLC0415  (only here)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)  # ready
        while True:
            for task in pipe.recv():
                pipe.send(answer(task.key, task.problem, devices[task.device]))


def _hand_over(each: _Process, waiting: deque[Task], deaths: Mapping[str, int]) -> None:
    """A few tasks, or one alone that a process has died at."""
    chunk = [waiting.popleft()]
    while waiting and len(chunk) < CHUNK and not {chunk[0].key, waiting[0].key} & deaths.keys():
        chunk.append(waiting.popleft())
    each.tasks, each.since = deque(chunk), time.monotonic()
    with contextlib.suppress(OSError):  # it is dead: its tasks are handed on below
        each.pipe.send(chunk)


def _ready(running: list[_Process]) -> Iterator[Answered]:
    """Answers that have come; waits for one, at most a moment."""
    busy = [each for each in running if each.tasks]
    answering = wait([each.pipe for each in busy], timeout=0.5)
    for each in [each for each in busy if each.pipe in answering]:
        try:
            found = each.pipe.recv()
        except (EOFError, OSError):  # all that it answered has been read
            each.process.join()
            each.gone = True
            continue
        each.since = time.monotonic()
        if found is None:
            each.ready = True
            continue
        each.tasks.popleft()
        yield found


def _dead(running: list[_Process], seconds: float) -> list[_Process]:
    """Processes that died, and those that are killed now because a task takes too long."""
    dead = []
    for each in running:
        if each.is_late(seconds):
            each.process.kill()
            each.process.join()
            each.gone = True
        if each.gone:
            dead.append(each)
    return dead


def _buried(
    each: _Process, waiting: deque[Task], deaths: dict[str, int], seconds: float
) -> Iterator[Answered]:
    """Hand the tasks of a dead process on; the one that it was at has an error when that was the last try."""
    if not each.tasks:
        return
    at, *others = each.tasks
    late = each.ready and each.is_late(seconds)
    deaths[at.key] = deaths.get(at.key, 0) + (TRIES if late else 1)
    waiting.extendleft(reversed(others))
    if deaths[at.key] < TRIES:
        waiting.append(at)
        return
    why = (
        f"took more than {seconds:g} s"
        if late
        else f"{TRIES} processes died at it (exit code {each.process.exitcode})"
    )
    yield Answered(key=at.key, device=at.device, error=why, retry=True)

"""Tasks on a Ray cluster that is there already (extra `sweep`).

The package travels with the job, so that nodes need only its dependencies. Ray runs a chunk again when its worker or
node dies; a chunk that keeps dying is asked again row by row, and a row that keeps dying has that as its answer.
"""

from __future__ import annotations

import socket
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import BadInput
from tilewright.sweep.answer import Answered, answer
from tilewright.sweep.processes import TRIES, Task

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from tilewright.device import Device

CHUNK = 16
"""Rows a Ray task: half a second of work against some milliseconds of scheduling."""

KNOCK_SECONDS = 10.0

AHEAD = 4
"""Chunks kept in flight a CPU of the cluster."""


def run_tasks_on_ray(
    tasks: Iterable[Task], devices: Mapping[str, Device], *, address: str, seconds: float
) -> Iterator[Answered]:
    """Answer every task, in any order.

    Args:
        address: of the cluster's head, "10.0.0.1:6379", or "auto".
        seconds: most that a row may take; a chunk may take as much for each of its rows.
    Raises:
        BadInput: no ray, or no cluster there.
    """
    ray = connect(address)
    table = ray.put(dict(devices))
    remote = ray.remote(_answer_all).options(max_retries=TRIES, retry_exceptions=False)
    most = AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
    waiting = deque(_chunks(list(tasks)))
    running: dict[Any, Sequence[Task]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < most:
                chunk = waiting.popleft()
                running[remote.remote(chunk, table)] = chunk
            done, _ = ray.wait(list(running), timeout=seconds * CHUNK)
            if not done:
                for reference in running:
                    ray.cancel(reference, force=True)
            for reference in done or list(running):
                yield from _collect(ray, reference, running.pop(reference), waiting)
    finally:
        ray.shutdown()


def connect(address: str) -> Any:
    """The module `ray`, connected.

    Raises:
        BadInput: no ray, or no cluster there.
    """
    try:
        import ray  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise BadInput(
            f"--ray needs ray: pip install 'tilewright[sweep]' ({error})",
            nearest="without --ray, processes of this machine",
        ) from None
    package = str(Path(__file__).parents[1])
    try:
        _knock(address)
        ray.init(address=address, log_to_driver=False, runtime_env={"py_modules": [package]})
    except (OSError, RuntimeError, ValueError) as error:
        raise BadInput(f"--ray {address}: no Ray cluster there ({error})", given=address) from None
    return ray


def _knock(address: str) -> None:
    """See that somebody listens: Ray itself tries for ten minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=KNOCK_SECONDS).close()


def _answer_all(chunk: Sequence[Task], devices: Mapping[str, Device]) -> list[Answered]:
    return [answer(task.key, task.problem, devices[task.device]) for task in chunk]


def _chunks(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    for start in range(0, len(tasks), CHUNK):
        yield tasks[start : start + CHUNK]


def _collect(
    ray: Any, reference: Any, chunk: Sequence[Task], waiting: deque[Sequence[Task]]
) -> Iterator[Answered]:
    """The answers of a chunk; of one that failed, its rows again, each alone."""
    try:
        yield from ray.get(reference)
    except ray.exceptions.RayError as error:
        if len(chunk) > 1:
            waiting.extendleft([task] for task in reversed(chunk))
            return
        first = str(error).strip().splitlines()[0]
        [task] = chunk
        why = f"{type(error).__name__}: {first}"
        yield Answered(key=task.key, device=task.device, error=why, retry=True)

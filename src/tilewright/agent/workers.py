"""Calls run in worker processes: the event loop stays free, and a cancelled call's process is killed.

At most `count` run at once; the rest wait in turn. A worker is kept for the next call, unless its call was
cancelled, took too long, ran out of memory or met a defect.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
from anyio.streams.buffered import BufferedByteReceiveStream

from tilewright.errors import BadInput, TilewrightError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from anyio.abc import Process

    from tilewright.agent.folders import Folders

MAX_ARGUMENT_BYTES = 4 * 2**20
"""Largest arguments of a call as JSON; what the SDK takes as the body of an HTTP request."""

MAX_ANSWER_BYTES = 16 * 2**20
"""Largest answer of a call as JSON."""

START_SECONDS = 60.0
"""Most that a process may take until it is ready; half a second on an idle machine. A call's time counts from there."""

MAX_WAITING = 1000
"""Calls that may wait for a worker; more are refused at once."""


class CallFailed(TilewrightError):
    """The error of a call, as the worker's JSON has it."""

    def __init__(self, error: dict[str, str]) -> None:
        super().__init__(
            error["message"],
            given=error["given"],
            allowed=error["allowed"],
            nearest=error["nearest"],
        )
        self.kind = error["error"]

    def as_dict(self) -> dict[str, str]:
        """The error as it was raised in the worker."""
        return {**super().as_dict(), "error": self.kind}


class Workers:
    """The processes of one server.

    Attributes:
        count: most that run at once.
        seconds: most that a call may run.
    """

    def __init__(self, folders: Folders, *, count: int, seconds: float) -> None:
        self.folders = folders
        self.count = count
        self.seconds = seconds
        self._idle: list[Process] = []
        self._turns = anyio.Semaphore(count)

    async def call(
        self, tool: str, arguments: dict[str, Any], doing: Callable[[str], Awaitable[None]]
    ) -> dict[str, Any]:
        """Run one call and return its answer.

        Args:
            doing: told what the call is at, as it goes.
        Raises:
            BadInput: too large an argument or answer, too long, or too many waiting.
            CallFailed: what the tool raised.
        """
        line = json.dumps({"tool": tool, "arguments": arguments}, separators=(",", ":")).encode()
        if len(line) > MAX_ARGUMENT_BYTES:
            raise BadInput(
                f"the arguments have {len(line)} bytes; at most {MAX_ARGUMENT_BYTES} are taken. Put a long text into "
                "a file of an allowed folder",
                given=len(line),
                allowed=f"<= {MAX_ARGUMENT_BYTES} bytes",
            )
        if self._turns.statistics().tasks_waiting >= MAX_WAITING:
            raise BadInput(f"{MAX_WAITING} calls are waiting already; ask again later")
        async with self._turns, self._worker() as process:
            with anyio.move_on_after(self.seconds) as limit:
                found = await self._exchange(process, line, doing)
            if limit.cancelled_caught:
                raise BadInput(
                    f"{tool} took more than {self.seconds:g} s and was stopped",
                    allowed=f"{self.seconds:g} s",
                    nearest="a smaller problem, or --seconds",
                )
        if "answer" in found:
            answer: dict[str, Any] = found["answer"]
            return answer
        raise CallFailed(found["error"])

    async def _exchange(
        self, process: Process, line: bytes, doing: Callable[[str], Awaitable[None]]
    ) -> dict[str, Any]:
        """Send the call and read until its end; the process is kept if that end is an ordinary one."""
        assert process.stdin is not None and process.stdout is not None  # noqa: PT018, S101
        lines = BufferedByteReceiveStream(process.stdout)
        try:
            await process.stdin.send(line + b"\n")
            while True:
                message = json.loads(await lines.receive_until(b"\n", MAX_ANSWER_BYTES))
                if "doing" not in message:
                    break
                await doing(message["doing"])
        except anyio.DelimiterNotFound:
            raise BadInput(
                f"the answer has more than {MAX_ANSWER_BYTES} bytes; ask for fewer parts or files",
                allowed=f"<= {MAX_ANSWER_BYTES} bytes",
            ) from None
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError) as error:
            raise BadInput("the worker died, most likely of too little memory") from error
        if message.get("error", {}).get("error") not in {"TooLarge", "Defect"}:
            self._idle.append(process)
        found: dict[str, Any] = message
        return found

    @asynccontextmanager
    async def _worker(self) -> AsyncIterator[Process]:
        """An idle process or a new one, killed in the end unless the exchange kept it."""
        process = self._idle.pop() if self._idle else await self._start()
        try:
            yield process
        finally:
            if process not in self._idle:
                await _end(process)

    async def _start(self) -> Process:
        """A process that is ready for a call.

        Raises:
            BadInput: it does not start.
        """
        one_thread = dict.fromkeys(
            ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"
        )
        process = await anyio.open_process(
            [
                sys.executable,
                "-P",
                "-m",
                "tilewright.agent.worker",
                *map(str, self.folders.allowed),
            ],
            stderr=None,
            env={**os.environ, **one_thread},
        )
        assert process.stdout is not None  # noqa: S101
        try:
            with anyio.fail_after(START_SECONDS):
                await BufferedByteReceiveStream(process.stdout).receive_until(b"\n", 100)
        except BaseException as error:
            await _end(process)
            if isinstance(error, TimeoutError | anyio.IncompleteRead):
                raise BadInput(
                    "a worker process does not start; its error is on standard error"
                ) from None
            raise
        return process

    async def close(self) -> None:
        """End every idle process; running ones end with their calls."""
        while self._idle:
            await _end(self._idle.pop())


async def _end(process: Process) -> None:
    """Kill a process and wait for it, even where the caller was cancelled."""
    with anyio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()
        await process.aclose()

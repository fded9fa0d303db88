"""A worker process: calls come in on standard input, answers go out on standard output, a JSON line each.

    out    {"ready": true}, once
    in     {"tool": …, "arguments": {…}}
    out    {"doing": …}, any number of them, and then {"answer": {…}} or {"error": {…}}

It ends when its input does, so it never outlives the server, and it is killed when its call is cancelled. Its memory
is limited, so that one call cannot take the machine.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import IO, Any

from tilewright.agent.folders import Folders
from tilewright.agent.tool import Call
from tilewright.agent.tools import TOOLS
from tilewright.errors import TilewrightError, UnknownName

MAX_MEMORY_BYTES = 8 * 2**30
"""Address space of one worker."""


def serve(calls: IO[bytes], answers: IO[bytes], folders: Folders) -> None:
    """Answer calls until there are no more."""

    def send(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
        answers.flush()

    call = Call(folders, lambda doing: send({"doing": doing}))
    send({"ready": True})
    for line in calls:
        send(_answer(json.loads(line), call))


def _answer(asked: dict[str, Any], call: Call) -> dict[str, Any]:
    """The answer or the error of one call; what nobody expected is an error of its own kind."""
    try:
        tool = TOOLS.get(asked["tool"])
        if tool is None:
            raise UnknownName("tool", asked["tool"], TOOLS)  # noqa: TRY301  (one place makes errors)
        return {"answer": tool(asked["arguments"], call)}
    except TilewrightError as error:
        return {"error": error.as_dict()}
    except MemoryError:
        return {
            "error": _as_dict("TooLarge", f"needs more than {MAX_MEMORY_BYTES} bytes of memory")
        }
    except Exception as error:  # noqa: BLE001  (a defect must not end the worker without a word)
        return {"error": _as_dict("Defect", f"{type(error).__name__}: {error}")}


def _as_dict(kind: str, message: str) -> dict[str, str]:
    return {"error": kind, "message": message, "given": "", "allowed": "", "nearest": ""}


def _limit_memory() -> None:
    try:
        import resource  # noqa: PLC0415  (not on Windows)
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


def main() -> None:
    """Serve the folders named as arguments. Prints of libraries go to standard error, not among the answers."""
    _limit_memory()
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(sys.stdin.buffer, answers, Folders(tuple(map(Path, sys.argv[1:]))))


if __name__ == "__main__":
    main()

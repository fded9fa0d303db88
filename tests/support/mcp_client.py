"""The MCP server as a process, and the SDK's client connected to it; the fixtures are taken over by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from audit_pairs import text_of as text_of_kernel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcp_types import CallToolResult

DATA = Path(__file__).parents[1] / "data"
_SCRATCH = tempfile.TemporaryDirectory()
SCRATCH = Path(_SCRATCH.name).resolve()
"""A folder that the servers allow."""

VIOLATING = SCRATCH / "violating.ptx"
"""A kernel of the catalogue that breaks CLC-08."""

VIOLATING.write_text(text_of_kernel("CLC-08_bad"), encoding="utf-8")
GEMM = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096}
LONG = {"costs": "10000000x20000", "workers": 100}
"""Half a minute of simulation."""

SECONDS = 300.0
"""Most that a call may run on these servers; no test waits for it."""


def command(*more: str) -> list[str]:
    options = [
        "--allow",
        str(DATA),
        "--allow",
        str(SCRATCH),
        "--seconds",
        str(SECONDS),
        "--workers",
        "2",
    ]
    return [sys.executable, "-m", "tilewright", "mcp", *options, *more]


@contextmanager
def http_server(*more: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server process and its URL."""
    process = subprocess.Popen(  # noqa: S603
        [*command("--http", "--port", "0"), *more], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    try:
        yield process, process.stderr.readline().strip()
    finally:
        process.terminate()
        process.communicate(timeout=20)


def parameters(*more: str) -> StdioServerParameters:
    program, *args = command(*more)
    return StdioServerParameters(command=program, args=args, env=dict(os.environ))


@asynccontextmanager
async def stdio_client(*more: str) -> AsyncIterator[Client]:
    async with Client(parameters(*more)) as client:
        yield client


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """A call that must succeed; its structured content, which the text repeats."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, text_of(result)
    assert json.loads(text_of(result)) == result.structured_content
    answer: dict[str, Any] = result.structured_content
    return answer


async def refuse(client: Client, tool: str, **arguments: Any) -> str:
    """A call that must fail: the error's text, which its structured content repeats."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, text_of(result)
    assert text_of(result) == f"error: {result.structured_content['message']}"
    return text_of(result)


def text_of(result: CallToolResult) -> str:
    [block] = result.content
    assert block.type == "text"
    return block.text


def workers_of(server: int) -> set[int]:
    """Processes whose parent is the server."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it ended meanwhile
            continue
        if int(fields[1]) == server and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Where tests marked `anyio` run."""
    return "asyncio"


@pytest.fixture(scope="module")
def http() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An MCP server on loopback: its process and its URL."""
    with http_server() as server:
        yield server


@pytest.fixture(scope="module", params=["stdio", "http"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    """A client of an MCP server, over each transport."""
    from mcp import Client  # noqa: PLC0415

    from mcp_client import stdio_client  # noqa: PLC0415

    if request.param == "stdio":
        async with stdio_client() as connected:
            yield connected
    else:
        async with Client(request.getfixturevalue("http")[1]) as connected:
            yield connected

"""Fixtures that several modules share; what they need is imported when they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import AsyncIterator, Iterator

    from mcp import Client


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """Where tests marked `anyio` run."""
    return "asyncio"


@pytest.fixture(scope="module")
def http() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """An MCP server on loopback: its process and its URL."""
    from mcp_client import http_server  # noqa: PLC0415

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

"""What bounds the MCP server: sizes, times, cancellation, memory, other sites; on both transports."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError

import mcp_client
from mcp_client import (
    LONG,
    call,
    http_server,
    is_running,
    parameters,
    refuse,
    stdio_client,
    text_of,
    workers_of,
)
from tilewright.agent.folders import Folders
from tilewright.agent.workers import Workers
from tilewright.errors import BadInput

if TYPE_CHECKING:
    import subprocess


pytestmark = pytest.mark.anyio

anyio_backend, http, client = mcp_client.anyio_backend, mcp_client.http, mcp_client.client


async def test_ten_megabytes_of_argument(client: Client) -> None:
    """Refused, by the HTTP body's limit or by ours; the next call is answered."""
    large = "// " + "x" * 10_000_000
    if isinstance(client.server, str):
        with pytest.raises(MCPError):
            await client.call_tool("audit", {"ptx": large})
    else:
        assert "at most 4194304 are taken" in await refuse(client, "audit", ptx=large)
    await call(client, "explain", rule="CLC-07")


async def test_two_hundred_calls_at_once(client: Client) -> None:
    """All are answered, each with its own answer."""
    tiles: dict[int, int] = {}

    async def ask(n: int) -> None:
        found = await call(client, "simulate", costs=f"{n}x1000", workers=1, scheduler="static")
        tiles[n] = found["tiles"]

    async with anyio.create_task_group() as group:
        for n in range(1, 201):
            group.start_soon(ask, n)
    assert tiles == {n: n for n in range(1, 201)}


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_progress_of_long_work_and_its_limit(transport: str) -> None:
    """Progress rises, says what is being done, and the call ends at the limit with the error that says so."""
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    with http_server("--seconds", "3") as (_, url):
        async with Client(parameters("--seconds", "3") if transport == "stdio" else url) as client:
            started = time.monotonic()
            result = await client.call_tool("simulate", LONG, progress_callback=hear)
            took = time.monotonic() - started
    assert result.is_error
    assert "simulate took more than 3 s and was stopped" in text_of(result)
    assert 3 <= took < 20  # the process starts first; LONG takes longer
    moments = [progress for progress, _ in heard]
    assert len(moments) >= 2
    assert moments == sorted(set(moments))
    assert heard[-1][1] == "simulating 10000000 tiles"
    assert {message for _, message in heard} <= {
        "waiting for a worker",
        "simulating 10000000 tiles",
    }


async def test_a_running_call_does_not_block_the_others(client: Client) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "simulate", LONG)
        await anyio.sleep(0.5)
        started = time.monotonic()
        await call(client, "explain", rule="CLC-07")
        assert time.monotonic() - started < 15  # LONG takes longer
        group.cancel_scope.cancel()


async def test_a_cancelled_call_is_killed() -> None:
    """The one worker's process is gone a moment later, and the next call gets a new one."""
    with http_server("--workers", "1") as (process, url):
        async with Client(url) as client:
            await call(client, "explain", rule="CLC-07")
            [before] = workers_of(process.pid)
            with anyio.move_on_after(1):
                await client.call_tool("simulate", LONG)
            await anyio.sleep(1)
            assert before not in workers_of(process.pid)
            await call(client, "explain", rule="CLC-07")
            [after] = workers_of(process.pid)
            assert after != before
    assert not is_running(after)  # workers end with their server


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_clients_of_the_older_protocol(
    transport: str,
) -> None:
    """With the initialize handshake: tools, errors, progress and cancellation are the same."""
    heard: list[float] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        assert message
        heard.append(progress)

    with http_server() as (_, url):
        server = parameters() if transport == "stdio" else url
        async with Client(server, mode="legacy") as client:
            assert client.protocol_version < "2026"
            found = await call(client, "simulate", costs="16x1000", workers=15)
            assert found["schedulers"]["static"]["makespan_us"] == 2.0
            assert "Did you mean" in await refuse(client, "explain", rule="CLC-7")
            for _ in range(3):  # one more than there are workers
                with anyio.move_on_after(1.3):
                    await client.call_tool("simulate", LONG, progress_callback=hear)
            assert heard
            with anyio.fail_after(20):
                await call(client, "explain", rule="CLC-07")


async def test_cancelling_over_stdio_frees_the_worker() -> None:
    async with stdio_client() as client:
        for _ in range(3):  # one more than there are workers
            with anyio.move_on_after(0.7):
                await client.call_tool("simulate", LONG)
        with anyio.fail_after(20):  # LONG takes longer
            await call(client, "explain", rule="CLC-07")


async def test_a_worker_that_dies_is_an_error_of_its_call() -> None:
    """SIGKILL, as the system does when memory runs out; the server goes on."""
    with http_server("--workers", "1") as (process, url):
        async with Client(url) as client:
            await call(client, "explain", rule="CLC-07")
            [worker] = workers_of(process.pid)

            async def kill_soon() -> None:
                await anyio.sleep(1)
                os.kill(worker, signal.SIGKILL)

            async with anyio.create_task_group() as group:
                group.start_soon(kill_soon)
                assert "the worker died" in await refuse(client, "simulate", **LONG)
            await call(client, "explain", rule="CLC-07")


async def test_a_worker_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    async def say(doing: str) -> None:
        raise AssertionError(doing)

    workers = Workers(Folders(), count=1, seconds=10)
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(BadInput, match="a worker process does not start"):
        await workers.call("explain", {"rule": "CLC-07"}, say)
    monkeypatch.undo()
    assert (await workers.call("explain", {"rule": "CLC-07"}, say))["id"] == "CLC-07"
    await workers.close()


def peak_bytes(pid: int) -> int:
    [line] = [
        x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM")
    ]
    return int(line.split()[1]) * 1024


async def test_memory_is_bounded(http: tuple[subprocess.Popen[str], str]) -> None:
    """A call that needs 16 GiB is an error; the server stays small through all the calls above and these."""
    process, url = http
    async with Client(url) as client:
        huge = {
            "kind": "attention",
            "seqlens": [2**31 - 1],
            "heads": 1,
            "kv_heads": 1,
            "head_dim": 64,
        }
        told = await refuse(client, "plan", problem=huge)
        assert "of memory" in told or "at most" in told
        for _ in range(15):
            await call(
                client,
                "audit",
                ptx="// " + "x" * 2_000_000 + "\n.version 9.0\n.target sm_90a\n.address_size 64\n",
            )
    assert peak_bytes(process.pid) < 500 * 2**20
    assert all(peak_bytes(worker) < 700 * 2**20 for worker in workers_of(process.pid))


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403), ({}, 200)],
)
async def test_other_sites_are_refused(
    http: tuple[subprocess.Popen[str], str], headers: dict[str, str], status: int
) -> None:
    """DNS rebinding: a page of another site must not reach the server through the user's browser."""
    import httpx2  # noqa: PLC0415  (the SDK's HTTP client)

    asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "t", "version": "0"}}}  # fmt: skip
    accept = {"Accept": "application/json, text/event-stream"}
    async with httpx2.AsyncClient() as browser:
        answer = await browser.post(http[1], json=asked, headers={**accept, **headers})
    assert answer.status_code == status

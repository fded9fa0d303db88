"""The MCP server as clients meet it, over stdio and over streamable HTTP: every tool, every error, hostile calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import jsonschema
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.shared.exceptions import MCPError

from console import run
from tilewright.agent.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from mcp_types import CallToolResult

DATA = Path(__file__).parent.parent / "data"
GEMM = {"kind": "gemm", "m": 4096, "n": 4096, "k": 4096}
LONG = {"costs": "10000000x20000", "workers": 100}
"""Half a minute of simulation."""

SECONDS = 3.0
"""Most that a call may run on the servers of these tests."""

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


def command(*more: str) -> list[str]:
    options = ["--allow", str(DATA), "--seconds", str(SECONDS), "--workers", "2"]
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


@asynccontextmanager
async def stdio_client() -> AsyncIterator[Client]:
    program, *args = command()
    parameters = StdioServerParameters(command=program, args=args, env=dict(os.environ))
    async with Client(parameters) as client:
        yield client


@pytest.fixture(scope="module")
def http() -> Iterator[tuple[subprocess.Popen[str], str]]:
    with http_server() as server:
        yield server


@pytest.fixture(scope="module", params=["stdio", "http"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if request.param == "stdio":
        async with stdio_client() as connected:
            yield connected
    else:
        async with Client(request.getfixturevalue("http")[1]) as connected:
            yield connected


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


async def test_every_tool_is_listed_with_valid_schemas(client: Client) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == {
        "plan",
        "residency",
        "simulate",
        "audit",
        "compile",
        "explain",
        "devices",
    }
    for tool in listed.values():
        for schema in (tool.input_schema, tool.output_schema):
            assert schema is not None
            jsonschema.Draft202012Validator.check_schema(schema)
            assert schema["type"] == "object"
        assert tool.description
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (tool.name != "compile")


async def test_plan(client: Client, tmp_path: Path) -> None:
    """The parts are those that the command line prints."""
    line = "tilewright plan gemm --m 4096 --n 4096 --k 4096 --device b200 --json"
    printed = json.loads(run(line, tmp_path).out)
    parts = ["conclusion", "evidence", "contract", "schedule", "validation", "risks"]
    found = await call(client, "plan", problem=GEMM, device="b200", parts=parts)
    for name in (*parts, "problem", "device"):
        assert found[name] == printed[name], name
    short = await call(client, "plan", problem=GEMM)
    assert short["conclusion"] == printed["conclusion"]
    assert (short["contract"], short["schedule"]) == (None, None)


@pytest.mark.parametrize(
    ("problem", "tiles"),
    [
        ({"kind": "grouped-gemm", "counts": [1528, 3516, 0, 508], "n": 4096, "k": 4096}, None),
        ({"kind": "attention", "seqlens": [500, 1500], "heads": 4, "kv_heads": 2, "head_dim": 64, "causal": True}, None),
        ({"kind": "tiles", "costs": "140x52000,24x190000", "cluster_shape": [2, 1, 1]}, 164),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)  # fmt: skip
async def test_every_kind_of_problem(
    client: Client, problem: dict[str, Any], tiles: int | None
) -> None:
    found = await call(client, "plan", problem=problem, parts=["conclusion", "schedule"])
    assert found["conclusion"]["predicted_us"] > 0
    if tiles is not None:
        assert found["schedule"]["tiles"] == tiles


async def test_residency(client: Client) -> None:
    """The published row of one B200 at one CTA an SM."""
    found = await call(
        client, "residency", device="b200", smem_bytes=204800, cluster_sizes=[1, 2, 4, 8, 16]
    )
    assert [row["resident_clusters"] for row in found["rows"]] == [148, 74, 33, 15, 7]


async def test_simulate(client: Client) -> None:
    """NVIDIA/Fuser#4546: 16 equal tiles on 15 slots take two rounds however they are handed out."""
    found = await call(client, "simulate", costs="16x1000", workers=15)
    assert found["tiles"] == 16
    assert {found["schedulers"][name]["makespan_us"] for name in ("static", "dynamic_atomic")} == {
        2.0
    }


async def test_audit(client: Client) -> None:
    """A violating kernel of the catalogue and its clean twin, as files and as text."""
    bad = await call(client, "audit", files=["rules/CLC-08_bad.ptx"])
    assert [(f["id"], f["line"], f["other_line"]) for f in bad["findings"]] == [("CLC-08", 51, 61)]
    assert bad["contract"] == []
    clean = (DATA / "rules" / "CLC-08b_ok.ptx").read_text()
    good = await call(client, "audit", ptx=clean, contract=True)
    assert [f for f in good["findings"] if f["severity"] == "error"] == []
    assert good["contract"][0]["scheduler"] == "clc"
    several = await call(client, "audit", files=["rules/CLC-08_bad.ptx", "rules/CLC-08b_ok.ptx"])
    assert several["summary"].startswith("2 kernels: 1 error")


async def test_explain_and_devices(client: Client) -> None:
    rule = await call(client, "explain", rule="CLC-07")
    assert (rule["id"], rule["severity"], rule["section"]) == ("CLC-07", "error", "9.7.13.18")
    listed = await call(client, "devices")
    assert {"b200", "h200", "a100"} <= {device["name"] for device in listed["devices"]}
    b200 = await call(client, "devices", name="b200")
    assert b200["facts"]["sm_count"]["value"] == 148
    assert all(fact["source"] for fact in b200["facts"].values())


async def test_resources(client: Client) -> None:
    uris = [resource.uri for resource in (await client.list_resources()).resources]
    assert {"tilewright://devices", "tilewright://rules", "tilewright://devices/b200"} <= set(uris)
    for uri in uris:
        [content] = (await client.read_resource(uri)).contents
        assert json.loads(content.text)  # type: ignore[union-attr]
    [content] = (await client.read_resource("tilewright://rules/TC-09")).contents
    assert json.loads(content.text)["id"] == "TC-09"  # type: ignore[union-attr]
    templates = (await client.list_resource_templates()).resource_templates
    assert {t.uri_template for t in templates} == {
        "tilewright://devices/{name}",
        "tilewright://rules/{id}",
    }
    for wrong in ("tilewright://devices/b2000", "tilewright://rules/", "file:///etc/passwd"):
        with pytest.raises(MCPError, match="unknown resource"):
            await client.read_resource(wrong)


ERRORS = [
    ("plan", {"problem": {**GEMM, "m": 0}}, "m: Input should be greater than 0 (given: 0)"),
    ("plan", {"problem": {**GEMM, "k": 100}}, "Pad to 96 or 104"),
    ("plan", {"problem": {**GEMM, "dtype": "fp7"}}, 'unknown dtype "fp7"'),
    ("plan", {"problem": GEMM, "device": "b2000"}, 'Did you mean "b200"?'),
    ("plan", {"problem": GEMM, "busy_sms": 999}, "999 busy SMs"),
    ("plan", {"problem": {"kind": "gem"}}, "expected tags: 'gemm'"),
    ("plan", {"problm": GEMM}, 'unknown argument "problm"; known: '),
    ("plan", {}, "problem: Field required"),
    ("plan", {"problem": {"kind": "tiles", "costs": "1x2,3x4us"}}, "in one unit"),
    ("plan", {"problem": GEMM, "parts": ["everything"]}, "parts.0"),
    ("residency", {"device": "a100", "cluster_sizes": [2]}, "no thread block clusters"),
    ("residency", {"cluster_sizes": [16], "nonportable": False}, "NonPortable"),
    ("simulate", {"costs": "4x100"}, "workers for the pure model"),
    ("simulate", {"costs": "4x100", "workers": 2, "scheduler": "magic"}, "scheduler"),
    ("audit", {}, "give ptx or files"),
    ("audit", {"ptx": "not ptx"}, "<ptx>:1:1"),
    ("audit", {"files": ["published.toml"]}, "neither .ptx nor .cu"),
    ("explain", {"rule": "CLC-7"}, "Did you mean"),
    ("devices", {"name": "b2000"}, 'Did you mean "b200"?'),
    ("compile", {"arch": ["sm_100a"]}, "exactly one of source and file"),
    ("compile", {"source": "", "arch": ["sm_90a; rm"]}, "arch.0"),
]


@pytest.mark.parametrize(("tool", "arguments", "says"), ERRORS)
async def test_errors_are_those_of_the_command_line(
    client: Client, tool: str, arguments: dict[str, Any], says: str
) -> None:
    assert says in await refuse(client, tool, **arguments)


OUTSIDE = ["../../README.md", "/etc/passwd", str(Path(__file__)), "rules/../../null/test_mcp.py"]


@pytest.mark.parametrize("name", OUTSIDE)
async def test_no_file_outside(client: Client, name: str) -> None:
    """Each argument that can name a file. Links and swaps: test_agent_folders.py."""
    where = "outside the folders allowed"
    assert where in await refuse(client, "audit", files=[f"{name}.ptx"])
    assert where in await refuse(client, "audit", ptx="", plan=name)
    assert where in await refuse(client, "compile", file=name, arch=["sm_90a"])
    assert where in await refuse(client, "simulate", costs=name, workers=2)
    assert where in await refuse(client, "plan", problem={"kind": "tiles", "costs": name})
    for tool, more in (
        ("plan", {"problem": GEMM}),
        ("residency", {}),
        ("simulate", {"costs": "2x1"}),
    ):
        assert where in await refuse(client, tool, device=f"{name}.toml", **more)
    assert where in await refuse(client, "devices", name=f"{name}.toml")


READS = [
    '#include "/etc/passwd"',
    "#include <cuda_fp16.h>",
    '#\\\nin\\\nclude "/etc/passwd"',
    '# \\ \n include "/etc/passwd"',
    '%: include "/etc/passwd"',
    '#/* x\n */include "/etc/passwd"',
    '#define F "/etc/passwd"\n#include F',
    '#include_next "/etc/passwd"',
    '#embed "/etc/passwd"',
    '#if __has_include("/etc/passwd")\n#endif',
    '#\\u0069nclude "/etc/passwd"',
    'const char *s = "/*";\n#include "/etc/passwd"\n//*/',
]


@pytest.mark.parametrize("source", READS)
async def test_a_compiled_source_reads_no_file(client: Client, source: str) -> None:
    """NVRTC's messages would quote the file."""
    told = await refuse(
        client, "compile", source=f"{source}\n__global__ void k() {{}}", arch=["sm_90a"]
    )
    assert "includes no file" in told
    assert "root:" not in told


@pytest.mark.parametrize(
    "option",
    ["-I/etc", "--include-path=/etc", "--pre-include=/etc/passwd", "-include", "--pch-dir=/tmp", "--time=/tmp/x",
     "--fdevice-time-trace=/tmp/x", "-DX=1 -I/etc", "--maxrregcount=64\n-I/etc", "@/etc/passwd", "--optix-ir"],
)  # fmt: skip
async def test_no_option_names_a_file(client: Client, option: str) -> None:
    told = await refuse(client, "compile", source="", arch=["sm_90a"], options=[option])
    assert "not among those that an agent may give" in told


async def test_unknown_tool(client: Client) -> None:
    with pytest.raises(MCPError, match='Did you mean "plan"') as refused:
        await client.call_tool("plans", {})
    assert refused.value.code == -32602


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


async def test_progress_of_long_work_and_its_limit(client: Client) -> None:
    """Progress rises, says what is being done, and the call ends at the limit with the error that says so."""
    heard: list[tuple[float, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        assert total is None
        heard.append((progress, message))

    started = time.monotonic()
    result = await client.call_tool("simulate", LONG, progress_callback=hear)
    took = time.monotonic() - started
    assert result.is_error
    assert f"took more than {SECONDS:g} s" in text_of(result)
    assert SECONDS <= took < SECONDS + 5
    moments = [progress for progress, _ in heard]
    assert len(moments) >= SECONDS - 2
    assert moments == sorted(set(moments))
    assert {message for _, message in heard} == {"simulating 10000000 tiles"}


async def test_a_running_call_does_not_block_the_others(client: Client) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(client.call_tool, "simulate", LONG)
        await anyio.sleep(0.5)
        started = time.monotonic()
        await call(client, "explain", rule="CLC-07")
        assert time.monotonic() - started < 3
        group.cancel_scope.cancel()


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


async def test_cancelling_over_stdio_frees_the_worker() -> None:
    async with stdio_client() as client:
        for _ in range(3):  # one more than there are workers
            with anyio.move_on_after(0.7):
                await client.call_tool("simulate", LONG)
        with anyio.fail_after(4):
            await call(client, "explain", rule="CLC-07")


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


def test_start_errors(tmp_path: Path) -> None:
    done = run(f"tilewright mcp --allow {tmp_path}/none", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert "is not a folder" in done.err


def test_without_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    done = run("tilewright mcp", tmp_path)
    assert done.code == 2
    assert "pip install 'tilewright[agent]'" in done.err


def test_every_tool_has_an_error_tested() -> None:
    assert {tool for tool, *_ in ERRORS} == set(TOOLS)

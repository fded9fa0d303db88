"""The MCP server as clients meet it, over stdio and over streamable HTTP: every tool, every error, no file outside."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from mcp.shared.exceptions import MCPError

import mcp_client
from audit_pairs import text_of as text_of_kernel
from console import run
from mcp_client import (
    GEMM,
    VIOLATING,
    call,
    refuse,
)
from tilewright.agent.tools import TOOLS

if TYPE_CHECKING:
    from mcp import Client


pytestmark = pytest.mark.anyio

anyio_backend, http, client = mcp_client.anyio_backend, mcp_client.http, mcp_client.client


async def test_every_tool_is_listed_with_valid_schemas(client: Client) -> None:
    listed = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert set(listed) == {
        "plan",
        "residency",
        "simulate",
        "audit",
        "check",
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
    bad = await call(client, "audit", files=[str(VIOLATING)])
    assert [(f["id"], f["line"], f["other_line"]) for f in bad["findings"]] == [("CLC-08", 51, 61)]
    assert bad["contract"] == []
    good = await call(client, "audit", ptx=text_of_kernel("CLC-08_ok"), contract=True)
    assert [f for f in good["findings"] if f["severity"] == "error"] == []
    assert good["contract"][0]["scheduler"] == "clc"
    several = await call(client, "audit", files=[str(VIOLATING), "rules/clc_loop.ptx"])
    assert several["summary"].startswith("2 kernels: 1 error")


async def test_explain_and_devices(client: Client) -> None:
    rule = await call(client, "explain", rule="CLC-07")
    assert (rule["id"], rule["severity"]) == ("CLC-07", "error")
    assert "PTX ISA 9.7.13.18" in rule["explanation"]
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
    ("check", {"ptx": ""}, "exactly one of launch and launch_file"),
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
    ["-I/etc", "--include-path=/etc", "--pre-include=/etc/passwd", "-include", "--pch-dir=/var", "--time=/var/x",
     "--fdevice-time-trace=/var/x", "-DX=1 -I/etc", "--maxrregcount=64\n-I/etc", "@/etc/passwd", "--optix-ir"],
)  # fmt: skip
async def test_no_option_names_a_file(client: Client, option: str) -> None:
    told = await refuse(client, "compile", source="", arch=["sm_90a"], options=[option])
    assert "not among those that an agent may give" in told


async def test_unknown_tool(client: Client) -> None:
    with pytest.raises(MCPError, match='Did you mean "plan"') as refused:
        await client.call_tool("plans", {})
    assert refused.value.code == -32602


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

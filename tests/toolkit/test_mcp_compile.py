"""The MCP server's compile, audit and check of CUDA sources and plans, which need NVRTC."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

from console import run
from mcp_client import call, refuse

if TYPE_CHECKING:
    from pathlib import Path

KERNEL = """
// MBAR-09: initialised twice
extern "C" __global__ void waits(int *out) {
    __shared__ alignas(8) unsigned long long bar;
    unsigned at = (unsigned)__cvta_generic_to_shared(&bar);
    unsigned done;
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(at) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 2;" :: "r"(at) : "memory");
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(at));
    out[threadIdx.x] = done;
}
"""


def _server(allowed: Path, **env: str) -> StdioServerParameters:
    args = ["-m", "tilewright", "mcp", "--allow", str(allowed)]
    return StdioServerParameters(command=sys.executable, args=args, env={**os.environ, **env})


@pytest.mark.toolkit
def test_compile_and_audit(tmp_path: Path) -> None:
    allowed = tmp_path / "allowed"
    (allowed / "built").mkdir(parents=True)
    (allowed / "k.cu").write_text(KERNEL)
    (allowed / "door").symlink_to(tmp_path)
    anyio.run(_check, allowed)
    assert sorted(p.name for p in (allowed / "built").iterdir()) == [
        "k.sm_90a.cubin",
        "k.sm_90a.ptx",
    ]
    assert (allowed / "built" / "k.sm_90a.cubin").read_bytes()[:4] == b"\x7fELF"
    assert [p.name for p in tmp_path.iterdir()] == ["allowed"]


async def _check(allowed: Path) -> None:
    async with Client(_server(allowed)) as client:
        arguments = {"file": "k.cu", "arch": ["sm_90a"], "out": "built", "return_ptx": True}
        done = (await client.call_tool("compile", arguments)).structured_content
        [result] = done["results"]
        assert [use["name"] for use in result["functions"]] == ["waits"]
        assert ".entry waits" in result["ptx"]
        assert done["written"] == ["built/k.sm_90a.cubin", "built/k.sm_90a.ptx"]
        for out in ("door", "..", "/var"):
            refused = await client.call_tool("compile", {**arguments, "out": out})
            assert refused.is_error
        broken = await client.call_tool("compile", {"source": "int x = ;", "arch": ["sm_90a"]})
        assert broken.is_error
        assert "does not compile for sm_90a" in str(broken.content)
        audited = await client.call_tool("audit", {"files": ["k.cu"], "arch": "sm_90a"})
        findings = audited.structured_content["findings"]
        lines = KERNEL.split("\n")
        second = next(i for i, line in enumerate(lines, 1) if "], 2;" in line)
        assert ("MBAR-09", "k.cu", second) in {(f["id"], f["file"], f["line"]) for f in findings}


ADDS = """
extern "C" __global__ void adds(int *out) {
    out[threadIdx.x] += 1;
    if (threadIdx.x == 32) out[0] += 1;
}
"""


@pytest.mark.toolkit
def test_check_of_cuda_and_of_a_plan(tmp_path: Path) -> None:
    """What the command line says of the same, and nothing is kept on disk."""
    allowed, cache = tmp_path / "allowed", tmp_path / "cache"
    allowed.mkdir()
    cache.mkdir()
    (allowed / "adds.cu").write_text(ADDS)
    tiles = "--cluster 2,1,1 --tile 128,64 --scheduler static"
    line = f"tilewright plan gemm --m 512 --n 256 --k 64 --device h200 {tiles} --json"
    (allowed / "plan.json").write_text(run(line, tmp_path).out)
    anyio.run(_check_kernels, allowed, cache)
    assert list(cache.iterdir()) == []
    printed = run("tilewright check --plan plan.json --schedules 4", allowed)
    assert printed.code == 0
    assert printed.out.startswith("tilewright_gemm: pass after 4 schedules\n")
    assert "\n  problems: 256 x 64 x" in printed.out


async def _check_kernels(allowed: Path, cache: Path) -> None:
    async with Client(_server(allowed, XDG_CACHE_HOME=str(cache))) as client:
        launch = {"grid": 1, "block": 64, "args": ["out"], "arrays": {"out": {"shape": [64]}}}
        asked = {"file": "adds.cu", "arch": "sm_90a", "launch": launch, "schedules": 2}
        found = await call(client, "check", **asked)
        rows = {(f["id"], f["file"], f["line"], f["other_line"]) for f in found["findings"]}
        assert rows == {("RACE", "adds.cu", 4, 3)}
        asked["arch"] = None
        assert "name what to compile for with arch" in await refuse(client, "check", **asked)
        planned = await call(client, "check", plan="plan.json", schedules=4)
        assert (planned["verdict"], planned["schedules"]) == ("pass", 4)

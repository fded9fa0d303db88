"""The MCP server's compile and audit of CUDA sources, which need NVRTC."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import anyio
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters

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
    args = ["-m", "tilewright", "mcp", "--allow", str(allowed)]
    async with Client(StdioServerParameters(command=sys.executable, args=args)) as client:
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
        assert ("MBAR-09", "k.cu") in {(f["id"], f["file"]) for f in findings}

"""Compiling with NVRTC, which needs the `cuda` extra but no GPU and no driver.

Expected numbers are ptxas's own limits or arithmetic on the sources below, not this package's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from tilewright.cli import app
from tilewright.errors import TilewrightError, UnknownName
from tilewright.run.compiler import CompileFailed, cache_dir, compile_source
from tilewright.run.measure import read_source

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.toolkit

ARCHES = ("sm_90a", "sm_100a", "sm_103a")

REVERSE = """
extern "C" __global__ void reverse(float* p) {
    __shared__ float s[256];
    s[threadIdx.x] = p[threadIdx.x];
    __syncthreads();
    p[threadIdx.x] = s[255 - threadIdx.x];
}
"""

MANY_LIVE = """
extern "C" __global__ void many_live(float* p, int n) {
    float a[64];
#pragma unroll
    for (int i = 0; i < 64; i++) a[i] = p[i * n + threadIdx.x];
#pragma unroll
    for (int i = 0; i < 64; i++) p[i * 7 * n + threadIdx.x] = a[i] * a[63 - i] + a[i * 5 % 64];
}
"""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("arch", ARCHES)
def test_cubin_ptx_and_use(arch: str) -> None:
    found = compile_source(REVERSE, "reverse.cu", arch)
    assert found.cubin[:4] == b"\x7fELF"
    assert f".target {arch}" in found.ptx
    (use,) = found.functions
    assert (use.name, use.is_kernel, use.static_smem_bytes) == ("reverse", True, 256 * 4)
    assert 0 < use.registers <= 255
    assert use.spill_store_bytes == use.spill_load_bytes == use.stack_bytes == 0


@pytest.mark.parametrize("arch", ARCHES)
def test_spills_are_reported(arch: str) -> None:
    free = compile_source(MANY_LIVE, "many_live.cu", arch).functions[0]
    tight = compile_source(MANY_LIVE, "many_live.cu", arch, ["--maxrregcount=32"]).functions[0]
    assert free.spill_store_bytes == 0
    assert free.registers > 64, "64 floats are live at once"
    assert tight.registers <= 32
    assert tight.spill_store_bytes > 0
    assert tight.stack_bytes >= 4 * (64 - 32)


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", ["memory.cu", "cluster.cu"])
def test_the_probe_s_own_sources(name: str, arch: str) -> None:
    found = compile_source(read_source(name), name, arch)
    assert all(use.spill_store_bytes == 0 for use in found.functions)
    assert "atom.global" in found.ptx or "barrier.cluster.arrive" in found.ptx


def test_cache_depends_on_source_options_and_arch() -> None:
    first = compile_source(REVERSE, "reverse.cu", "sm_90a")
    again = compile_source(REVERSE, "reverse.cu", "sm_90a")
    assert (first.cached, again.cached) == (False, True)
    assert (again.cubin, again.ptx, again.functions) == (first.cubin, first.ptx, first.functions)
    assert not compile_source(REVERSE, "reverse.cu", "sm_100a").cached
    assert not compile_source(REVERSE, "reverse.cu", "sm_90a", ["--use_fast_math"]).cached
    assert not compile_source(REVERSE + " ", "reverse.cu", "sm_90a").cached
    assert not compile_source(REVERSE, "reverse.cu", "sm_90a", use_cache=False).cached
    assert len(list(cache_dir().iterdir())) == 4


def test_a_changed_header_is_seen(tmp_path: Path) -> None:
    header = tmp_path / "value.h"
    source = '#include "value.h"\nextern "C" __global__ void k(int* p) { *p = VALUE; }'
    texts = []
    for value in (3, 4):
        header.write_text(f"#define VALUE {value}\n")
        texts.append(compile_source(source, str(tmp_path / "k.cu"), "sm_90a").ptx)
    assert texts[0] != texts[1]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    assert compile_source(REVERSE, "reverse.cu", "sm_90a").functions


@pytest.mark.parametrize(
    ("source", "arch", "options", "says"),
    [
        ("__global__ void k() { oops; }", "sm_90a", [], 'identifier "oops" is undefined'),
        ('__global__ void k() { asm("oops.x;"); }', "sm_90a", [], "Not a name of any known"),
        (
            REVERSE,
            "sm_90q",
            [],
            r'unknown architecture "sm_90q"; known: sm_100, .*Did you mean "sm_90',
        ),
        (REVERSE, "sm_90a", ["--oops"], "unrecognized option --oops"),
        (REVERSE, "compute_90a", [], "name a real one, like sm_90a"),
    ],
)
def test_errors_are_the_compiler_s_own(
    source: str, arch: str, options: list[str], says: str
) -> None:
    with pytest.raises((CompileFailed, UnknownName), match=says):
        compile_source(source, "k.cu", arch, options)


def test_command_writes_both_forms_for_each_arch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")  # a narrow table is written as a list
    file = tmp_path / "reverse.cu"
    file.write_text(REVERSE)
    out = tmp_path / "out"
    flags = [flag for arch in ARCHES for flag in ("--arch", arch)]
    run = CliRunner().invoke(app, ["compile", str(file), *flags, "--out", str(out)])
    assert run.exit_code == 0, run.output
    assert run.output.count(" reverse ") == len(ARCHES)
    names = {path.name for path in out.iterdir()}
    assert names == {f"reverse.{arch}.{form}" for arch in ARCHES for form in ("cubin", "ptx")}
    run = CliRunner().invoke(app, ["compile", str(file), *flags, "--json"])
    rows = json.loads(run.output)["results"]
    assert [(row["arch"], row["cached"]) for row in rows] == [(arch, True) for arch in ARCHES]
    assert rows[0]["functions"][0]["static_smem_bytes"] == 1024


def test_nothing_is_written_when_one_arch_fails(tmp_path: Path) -> None:
    file = tmp_path / "reverse.cu"
    file.write_text(REVERSE)
    out = tmp_path / "out"
    args = ["compile", str(file), "--arch", "sm_90a", "--arch", "sm_1", "--out", str(out)]
    run = CliRunner().invoke(app, args)
    assert isinstance(run.exception, TilewrightError)  # main() prints it and exits with 2
    assert not out.exists()

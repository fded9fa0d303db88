"""Emitted folders compile: every section without spills, the options of the benchmark, the C++ launcher."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilewright import Gemm, GroupedGemm, Options, TileList, load
from tilewright.cli import app
from tilewright.emit import Around, emit, emit_tiles
from tilewright.run.compiler import CompileFailed, compile_source

pytestmark = pytest.mark.toolkit

TEMPLATES = Path(__file__).parents[2] / "src" / "tilewright" / "emit" / "templates"
sys.path[:0] = [str(TEMPLATES), str(Path(__file__).parent)]

import driver  # noqa: E402  (templates, imported as the emitted folder does)
import paths  # noqa: E402
import tiles  # noqa: E402
from built import opcodes  # noqa: E402

BF16, FP8 = Gemm(m=8192, n=8192, k=8192), Gemm(m=128, n=8192, k=8192, dtype="fp8")
ODD = Gemm(m=500, n=1001, k=512, batch=3, dtype="fp16", out_dtype="fp32")
MOE = GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096)
WEIGHTS = GroupedGemm(counts=(1536, 3520, 0, 512), n=4096, m=2048, grouped="k")
FEW_ROWS = GroupedGemm(counts=(8,) * 64, n=4096, k=4096)
ALL = ("sm_100a", "sm_103a", "sm_90a", "sm_80")
CUDA_H = [
    Path("/usr/local/cuda/include"),
    *sorted(Path("/usr/local").glob("cuda-*/include")),
    *(Path(entry) / "nvidia" / "cu13" / "include" for entry in sys.path),
]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("problem", "extras"),
    [
        (BF16, {}),
        (BF16, {"options": Options(scheduler="clc", clc_depth=3)}),
        (FP8, {"has_bias": True}),
        (ODD, {"has_c": True, "has_bias": True}),
        (MOE, {}),
        (WEIGHTS, {"has_c": True}),
        (FEW_ROWS, {}),
    ],
)
def test_each_section_without_spills(problem: Any, extras: dict[str, Any], tmp_path: Path) -> None:
    """And `compile DIR` takes the targets from the folder and puts cubins where the launchers look."""
    out = tmp_path / "out"
    done = emit(problem, load("b200"), out, **extras)
    run = CliRunner().invoke(app, ["compile", str(out), "--json"])
    assert run.exit_code == 0, run.output
    rows = json.loads(run.output)["results"]
    assert [row["arch"] for row in rows] == list(ALL[: 4 if len(done.paths) == 3 else 3])
    for row in rows:
        (use,) = row["functions"]
        assert use["name"] == "tilewright_gemm"
        assert use["spill_store_bytes"] == use["spill_load_bytes"] == 0
        assert (out / f"kernel.{row['arch']}.cubin").read_bytes()[:4] == b"\x7fELF"


def test_a_target_without_a_section_says_which_there_are(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit(FP8, load("h200"), out)
    run = CliRunner().invoke(app, ["compile", str(out), "--arch", "sm_80"])
    assert "compile for sm_90a" in str(run.exception)
    assert not list(out.glob("*.cubin"))


def test_the_guard_picks_the_section(tmp_path: Path) -> None:
    out = tmp_path / "out"
    emit(BF16, load("b200"), out)
    source = (out / "kernel.cu").read_text()
    for arch, has, lacks in (
        ("sm_100a", "tcgen05.mma", "wgmma.mma_async"),
        ("sm_103a", "tcgen05.mma", "wgmma.mma_async"),
        ("sm_90a", "wgmma.mma_async", "tcgen05.mma"),
        ("sm_90", "mma.sync", "wgmma.mma_async"),
        ("sm_100", "mma.sync", "tcgen05.mma"),
        ("sm_80", "mma.sync", "cp.async.bulk"),
    ):
        ptx = compile_source(source, "kernel.cu", arch).ptx
        assert has in ptx, arch
        assert lacks not in ptx, arch


def crowd(folder: Path, ctas: int) -> None:
    """Promise that many CTAs an SM in the folder's kernels: so many registers fewer."""
    kernel = folder / "kernel.cu"
    text = kernel.read_text()
    bounds = "__launch_bounds__(threads, 1)"
    assert bounds in text
    kernel.write_text(text.replace(bounds, f"__launch_bounds__(threads, {ctas})"))


@pytest.mark.parametrize(
    ("device", "arch", "ctas", "in_loop"),
    [("a100", "sm_80", 2, True), ("b200", "sm_100a", 4, False)],
)
def test_a_spill_is_an_error(
    device: str, arch: str, ctas: int, in_loop: bool, tmp_path: Path
) -> None:
    """Of accumulators in the main loop; where they are in tensor memory, of the epilogue."""
    out = tmp_path / "out"
    emit(BF16, load(device), out)
    crowd(out, ctas)
    run = CliRunner().invoke(app, ["compile", str(out), "--arch", arch])
    assert run.exit_code == 1
    assert f"spills: {arch}" in run.output
    code = opcodes(compile_source((out / "kernel.cu").read_text(), "kernel.cu", arch))
    products = [index for index, opcode in enumerate(code) if "MMA" in opcode]
    loop = code[products[0] : products[-1]]
    assert any(opcode.startswith("LDL") for opcode in code)
    assert any(opcode.startswith("LDL") for opcode in loop) == in_loop


def test_accumulators_of_wgmma_cannot_spill(tmp_path: Path) -> None:
    """ptxas refuses instead: an error, with nothing written."""
    out = tmp_path / "out"
    emit(BF16, load("h200"), out)
    crowd(out, 2)
    run = CliRunner().invoke(app, ["compile", str(out), "--arch", "sm_90a"])
    assert isinstance(run.exception, CompileFailed)  # main() prints it and exits with 2
    assert "Insufficient registers" in str(run.exception)
    assert not list(out.glob("*.cubin"))


def test_a_register_limit_yields_to_the_launch_bounds(tmp_path: Path) -> None:
    """So --option=--maxrregcount cannot make an emitted kernel spill."""
    out = tmp_path / "out"
    emit(BF16, load("a100"), out)
    run = CliRunner().invoke(app, ["compile", str(out), "--option=--maxrregcount=64", "--json"])
    assert run.exit_code == 0, run.output
    assert json.loads(run.output)["results"][0]["functions"][0]["registers"] > 64


@pytest.mark.parametrize(
    ("problem", "device", "arch"), [(BF16, "b200", "sm_100a"), (MOE, "h200", "sm_90a")]
)
def test_the_options_of_the_benchmark(problem: Any, device: str, arch: str, tmp_path: Path) -> None:
    emit(problem, load(device), tmp_path / "out")
    source = (tmp_path / "out" / "kernel.cu").read_text()
    constants = paths.read_constants(tmp_path / "out")
    assert constants["candidates"]
    for entry in constants["candidates"]:
        changed = paths.with_config(source, entry["section"], entry["config"])
        (use,) = compile_source(changed, entry["name"], arch).functions
        assert not use.spill_store_bytes, entry["name"]


def test_cuda_core_compiles_it_too(tmp_path: Path) -> None:
    """The launcher's own way to a cubin."""
    core, _ = driver.import_cuda()
    emit(BF16, load("h200"), tmp_path / "out")
    options = core.ProgramOptions(arch="sm_90a", std="c++17")
    source = (tmp_path / "out" / "kernel.cu").read_text()
    assert bytes(core.Program(source, "c++", options).compile("cubin").code)[:4] == b"\x7fELF"


@pytest.mark.parametrize(("clusters", "attributes"), [((1, 0), 0), ((16, 0), 1), ((1, 4), 2)])
def test_c15_the_launch_s_clusters_lie_along_x(clusters: tuple[int, int], attributes: int) -> None:
    """With the real bindings, which need no driver for this."""
    cuda = object.__new__(driver.Cuda)
    _, cuda._driver = driver.import_cuda()
    config = cuda._config(140_000, 384, 230_400, clusters, 0)
    assert (config.gridDimX, config.gridDimY, config.gridDimZ) == (140_000, 1, 1)
    assert (config.blockDimX, config.sharedMemBytes, config.numAttrs) == (384, 230_400, attributes)
    for attribute in config.attrs:
        shape = (
            attribute.value.preferredClusterDim
            if attribute.id
            == cuda._driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION
            else attribute.value.clusterDim
        )
        assert (shape.y, shape.z) == (1, 1)
        assert shape.x in clusters


def check_cpp(folder: Path, file: str) -> None:
    """The file compiles without a warning; linking it would need a driver."""
    compiler = shutil.which("g++")
    include = next((each for each in CUDA_H if (each / "cuda.h").exists()), None)
    if compiler is None or include is None:
        pytest.skip("no g++ or no cuda.h here")
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    done = subprocess.run(  # noqa: S603
        [compiler, *flags, "-c", file, "-o", "launcher.o"],
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("problem", "device"), [(BF16, "b200"), (FP8, "b200"), (WEIGHTS, "h200"), (ODD, "a100")]
)
def test_the_cpp_launcher_compiles(problem: Any, device: str, tmp_path: Path) -> None:
    emit(problem, load(device), tmp_path / "out")
    check_cpp(tmp_path / "out", "launcher.cpp")


PAIRS = TileList(costs_us=(20.0,) * 500, cluster_shape=(2, 1, 1), threads=128, smem_bytes=100_000)
LONE = TileList(costs_us=(20.0,) * 500)


@pytest.mark.parametrize(("problem", "device"), [(PAIRS, "b200"), (LONE, "b200"), (LONE, "a100")])
@pytest.mark.parametrize("around", [Around(), Around("cluster", larger_clusters=True)])
def test_tile_functions(problem: TileList, device: str, around: Around, tmp_path: Path) -> None:
    """Each section, each scheduler of the benchmark, with the test's own tile function and a timeline."""
    if device == "a100" and around.larger_clusters:
        pytest.skip("no clusters")
    emit_tiles(problem, load(device), tmp_path / "out", around=around)
    run = CliRunner().invoke(app, ["compile", str(tmp_path / "out")])
    assert run.exit_code == 0, run.output
    check_cpp(tmp_path / "out", "tiles.cpp")
    constants = paths.read_constants(tmp_path / "out")
    for entry in (*constants["paths"], *constants["candidates"]):
        made = object.__new__(tiles.Tiles)
        made.numbers, made._timeline, made._tile = entry, True, counting_tile()
        source = made.source_of((tmp_path / "out" / "kernel.cu").read_text())
        major, minor = entry["capabilities"][0]
        (use,) = compile_source(
            source, "k.cu", f"sm_{major}{minor}{entry['arch_suffix']}"
        ).functions
        assert not use.spill_store_bytes


def counting_tile() -> str:
    """The tile function of the emitted test."""
    return str(
        re.findall(r'COUNT = """(.*?)"""', (TEMPLATES / "test_tiles.py").read_text(), re.DOTALL)[0]
    )

"""Emitted tile functions: which loop for which GPU, the user's file in it, the launcher's argument and grid."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tilewright import Options, TileList, TilewrightError, load, make_plan
from tilewright.cli import app
from tilewright.emit import Around, emit_tiles
from tilewright.errors import BadInput
from tilewright.kernels import harness

TEMPLATES = Path(__file__).parents[2] / "src" / "tilewright" / "emit" / "templates"
sys.path.insert(0, str(TEMPLATES))

import arrays  # noqa: E402  (templates, imported as the emitted folder does)
import paths  # noqa: E402
import tiles  # noqa: E402

FILES = {
    "README.md",
    "arrays.py",
    "bench_tiles.py",
    "costs.csv",
    "driver.h",
    "driver.py",
    "kernel.cu",
    "launch.h",
    "launch.json",
    "paths.py",
    "plan.json",
    "test_tiles.py",
    "tile_arguments.py",
    "tiles.cpp",
    "tiles.py",
}
PAIRS = TileList(
    costs_cycles=(20_000.0,) * 594, cluster_shape=(2, 1, 1), threads=128, smem_bytes=100_000
)
SINGLE = TileList(costs_cycles=tuple(1000.0 * (1 + i % 7) for i in range(500)), threads=128)
OWN = """
#include "cluster.cuh"
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    if (cluster_rank() == 0) static_cast<int*>(arguments)[tile.id] = 1;
}
"""


def constants_of(folder: Path) -> Any:
    return json.loads((folder / "launch.json").read_text())


def test_the_folder_and_its_costs(tmp_path: Path) -> None:
    done = emit_tiles(SINGLE, load("h200"), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES == set(done.files)
    lines = (tmp_path / "out" / "costs.csv").read_text().splitlines()
    assert lines[0] == "cost_cycles"
    assert [int(line) for line in lines[1:]] == list(SINGLE.costs(1.0))
    assert "$" not in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(
    ("problem", "device", "scheduler", "expected"),
    [
        (PAIRS, "b200", "clc", {"blackwell": "clc", "hopper": "dynamic_atomic"}),
        (SINGLE, "b200", "clc", {"blackwell": "clc", "hopper": "dynamic_atomic", "portable": "static"}),
        (SINGLE, "h200", "static_blocked", {"hopper": "static_blocked", "portable": "static_blocked"}),
        (SINGLE, "a100", "static", {"portable": "static"}),
    ],
)  # fmt: skip
def test_paths_and_their_schedulers(
    problem: TileList, device: str, scheduler: Any, expected: dict[str, str], tmp_path: Path
) -> None:
    done = emit_tiles(problem, load(device), tmp_path / "out", options=Options(scheduler=scheduler))
    told = constants_of(tmp_path / "out")
    assert {path["name"]: path["scheduler"] for path in told["paths"]} == expected
    assert [path["name"] for path in told["paths"]] == list(expected)
    assert told["paths"][0]["predicted_us"] == round(
        done.plan.schedule.schedulers[scheduler]["kernel_us"], 3
    )
    assert all(path["predicted_us"] is None for path in told["paths"][1:]), (
        "the costs are this device's"
    )
    if "portable" not in expected and device != "a100":
        assert told["absent"][0]["why"].startswith("tiles of 2 CTAs need clusters")


def test_numbers_are_the_harness_s(tmp_path: Path) -> None:
    emit_tiles(PAIRS, load("b200"), tmp_path / "out", options=Options(scheduler="clc", clc_depth=2))
    config = harness.HarnessConfig(2, "clc", 2, 128, 100_000)
    told = constants_of(tmp_path / "out")
    assert told["argument_bytes"] == len(harness.pack_arguments(0))
    path = told["paths"][0]
    assert (path["smem_bytes"], path["threads"]) == (config.launch_smem_bytes, 128)
    assert (path["persistent"], path["cluster_size"]) == (False, 2)
    names = {entry["name"] for entry in told["candidates"]}
    assert names == {"single_tile", "static", "static_blocked", "dynamic_atomic"}
    schedule = make_plan(PAIRS, load("b200"), Options(scheduler="clc")).schedule.schedulers
    for entry in told["candidates"]:
        assert entry["predicted_us"] == round(schedule[entry["name"]]["kernel_us"], 3)


def test_the_user_s_file_is_in_every_section(tmp_path: Path) -> None:
    file = tmp_path / "own.cuh"
    file.write_text(OWN)
    emit_tiles(SINGLE, load("b200"), tmp_path / "out", tile=file)
    source = (tmp_path / "out" / "kernel.cu").read_text()
    assert source.count("static_cast<int*>(arguments)[tile.id] = 1;") == 3
    assert source.count(tiles.BEGIN) == source.count(tiles.END) == 3
    assert "#include" not in source
    assert not constants_of(tmp_path / "out")["example_tile"]


def test_files_that_are_no_tile_function(tmp_path: Path) -> None:
    file = tmp_path / "own.cuh"
    with pytest.raises(BadInput, match="cannot be read"):
        emit_tiles(SINGLE, load("h200"), tmp_path / "out", tile=file)
    file.write_text("__device__ void my_tile() {}")
    with pytest.raises(BadInput, match="defines no tilewright_tile; it has my_tile"):
        emit_tiles(SINGLE, load("h200"), tmp_path / "out", tile=file)
    assert {path.name for path in tmp_path.iterdir()} == {"own.cuh"}


class FakeCuda:
    name, device_id = "a GPU", 0

    def __init__(self, capability: tuple[int, int], resident: int) -> None:
        self.capability, self.resident = capability, resident
        self.launches: list[tuple[Any, ...]] = []
        self.sources: list[str] = []

    def attribute(self, name: str) -> int:
        return {"MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448, "CLUSTER_LAUNCH": 1}[name]

    def set_attribute(self, *_: Any) -> None: ...

    def resident_clusters(self, *_: Any) -> int:
        return self.resident

    def compile(self, source: str, _arch: str) -> tuple[bytes, str]:
        self.sources.append(source)
        return b"", "NVRTC"

    def load(self, *_: Any) -> str:
        return "function"

    def allocate(self, _size: int) -> int:
        return 4096

    def free(self, _pointer: int) -> None: ...

    def zero(self, *_: Any) -> None: ...

    def launch(self, *given: Any) -> None:
        self.launches.append(given)


def tiles_on(
    cuda: FakeCuda, folder: Path, monkeypatch: pytest.MonkeyPatch, **given: Any
) -> tiles.Tiles:
    monkeypatch.setattr(paths, "HERE", folder)
    monkeypatch.setattr(paths.read_constants, "__defaults__", (folder,))
    return tiles.Tiles(cuda=cuda, **given)


@pytest.mark.parametrize("scheduler", ["static", "dynamic_atomic", "clc", "single_tile"])
@pytest.mark.parametrize("number", [0, 65, 66, 67, 594])
def test_the_grid_is_the_harness_s(
    scheduler: Any, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit_tiles(PAIRS, load("b200"), tmp_path / "out", options=Options(scheduler=scheduler))
    cuda = FakeCuda((10, 0), resident=66)
    made = tiles_on(cuda, tmp_path / "out", monkeypatch)
    config = harness.HarnessConfig(2, scheduler, 1, 128, 100_000)
    expected = config.grid_ctas(number, 132)
    made(1 << 20, number)
    assert [launch[1] for launch in cuda.launches] == ([expected] if number else [])


def test_the_argument_is_the_harness_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ctypes  # noqa: PLC0415

    emit_tiles(PAIRS, load("h200"), tmp_path / "out", options=Options(scheduler="dynamic_atomic"))
    cuda = FakeCuda((9, 0), resident=66)
    tiles_on(cuda, tmp_path / "out", monkeypatch)(1 << 20)
    at = cuda.launches[0][5]
    assert at % 64 == 0
    expected = harness.pack_arguments(594, arguments=1 << 20, work_counter=4096)
    assert ctypes.string_at(at, len(expected)) == expected


def test_preferred_clusters_around_the_fallback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    around = Around(larger_clusters=True)
    chosen = Options(scheduler="static")
    emit_tiles(PAIRS, load("b200"), tmp_path / "out", options=chosen, around=around)
    cuda = FakeCuda((10, 0), resident=73)
    made = tiles_on(cuda, tmp_path / "out", monkeypatch, preferred_cluster=8)
    made(0, 594)
    _, ctas, _, _, clusters, _, _ = cuda.launches[0]
    assert clusters == (2, 8)
    config = harness.HarnessConfig(2, "static", 1, 128, 100_000, larger_clusters=True)
    assert ctas == config.grid_ctas(594, 146, preferred_size=8) == 144
    with pytest.raises(arrays.LaunchError, match="no multiple of the fallback, 2"):
        tiles_on(cuda, tmp_path / "out", monkeypatch, preferred_cluster=3)
    emit_tiles(PAIRS, load("b200"), tmp_path / "fixed", options=chosen)
    with pytest.raises(arrays.LaunchError, match="hold for no other size"):
        tiles_on(cuda, tmp_path / "fixed", monkeypatch, preferred_cluster=4)


def test_another_tile_or_a_timeline_compiles_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit_tiles(PAIRS, load("h200"), tmp_path / "out")
    (tmp_path / "out" / "kernel.sm_90a.cubin").write_bytes(b"ready")
    cuda = FakeCuda((9, 0), resident=66)
    assert tiles_on(cuda, tmp_path / "out", monkeypatch).built == "kernel.sm_90a.cubin"
    made = tiles_on(
        cuda, tmp_path / "out", monkeypatch, timeline=True, tile=OWN, path="single_tile"
    )
    (source,) = cuda.sources
    assert "constexpr bool timeline = true;" in source
    assert "Scheduler::single_tile;" in source
    assert source.index("#define tilewright_tile emitted_tile") < source.index(
        "#undef tilewright_tile"
    )
    with pytest.raises(arrays.LaunchError, match="timeline_array"):
        made(0, 10)


def test_the_command(tmp_path: Path) -> None:
    file = tmp_path / "own.cuh"
    file.write_text(OWN)
    words = ["emit", "tiles", "300x5000", "-d", "h200", "--cluster", "2,1,1", "--tile", str(file)]
    out = tmp_path / "out"
    done = CliRunner().invoke(
        app, [*words, "--barrier", "cluster", "--larger-clusters", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    assert "hopper: sm_90a or later; tiles of 2 CTAs" in done.output
    source = (out / "kernel.cu").read_text()
    assert "constexpr Meeting barrier = Meeting::cluster;" in source
    assert "constexpr bool larger_clusters = true;" in source
    wrong = CliRunner().invoke(app, [*words, "--barrier", "all", "--out", str(tmp_path / "other")])
    assert isinstance(wrong.exception, TilewrightError)
    assert "none" in str(wrong.exception)

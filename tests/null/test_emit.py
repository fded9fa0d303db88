"""Emitted folders: whole or absent, self-contained, with the plan's numbers and the plan's fallbacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from emit_cases import CASES, MOE, SHORT, SQUARE, WEIGHTS, paths_of
from tilewright import Gemm, GroupedGemm, Options, TileList, TilewrightError, load, make_plan
from tilewright.cli import app
from tilewright.emit import emit
from tilewright.emit.configs import Extras, make_path
from tilewright.errors import BadInput, NoFit, Unsupported
from tilewright.problem import Attention
from tilewright.tiling import make_tiling

TEMPLATES = Path(__file__).parents[2] / "src" / "tilewright" / "emit" / "templates"
sys.path.insert(0, str(TEMPLATES))

import launcher  # noqa: E402
import paths  # noqa: E402

FILES = {
    "README.md",
    "arrays.py",
    "bench.py",
    "driver.h",
    "driver.py",
    "kernel.cu",
    "launch.h",
    "launch.json",
    "launcher.cpp",
    "launcher.py",
    "paths.py",
    "plan.json",
    "test_kernel.py",
}
# ---- the folder


def test_the_folder_is_whole_and_alone(tmp_path: Path) -> None:
    done = emit(SQUARE, load("b200"), tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES == set(done.files)
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "no scratch folder stays"


def test_it_imports_nothing_of_this_package(tmp_path: Path) -> None:
    emit(SQUARE, load("b200"), tmp_path / "out")
    code = (
        "import sys; sys.modules['tilewright'] = sys.modules['cuda'] = None\n"
        "import launcher, bench\n"
        "sys.exit(launcher.main())"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code],
        cwd=tmp_path / "out",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'cuda-core[cu13]'" in done.stderr, "the missing extra is named"


def test_a_plan_gives_the_same_folder_as_its_problem(tmp_path: Path) -> None:
    chip = load("h200")
    emit(SQUARE, chip, tmp_path / "a")
    emit(make_plan(SQUARE, chip), chip, tmp_path / "b")
    for name in FILES:
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    with pytest.raises(BadInput, match="the plan is for h200"):
        emit(make_plan(SQUARE, chip), load("b200"), tmp_path / "c")


def test_the_plan_lies_beside_the_kernel(tmp_path: Path) -> None:
    emit(SQUARE, load("b200"), tmp_path / "out")
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    assert plan == json.loads(make_plan(SQUARE, load("b200")).model_dump_json())
    readme = (tmp_path / "out" / "README.md").read_text()
    assert plan["conclusion"]["summary"] in readme
    assert all(flip["value"] in readme for flip in plan["conclusion"]["would_flip"])
    assert "$" not in readme, "every field is filled in"


def test_a_section_for_each_path(tmp_path: Path) -> None:
    emit(SQUARE, load("b200"), tmp_path / "out")
    source = (tmp_path / "out" / "kernel.cu").read_text()
    assert source.count("void\n") + source.count("tilewright_gemm(") == 3
    order = [
        source.index(f": {name}\n")
        for name in ("gemm_sm100.cu", "gemm_sm90.cu", "gemm_portable.cu")
    ]
    assert order == sorted(order)
    assert "#include" not in source


# ---- whole or absent


def test_a_failed_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, seen = Path.write_text, []

    def fails_later(self: Path, text: str, **given: Any) -> int:
        seen.append(self.name)
        if len(seen) == 4:
            raise OSError(28, "No space left on device")
        return write(self, text, **given)

    monkeypatch.setattr(Path, "write_text", fails_later)
    with pytest.raises(BadInput, match="No space left on device"):
        emit(SQUARE, load("h200"), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    emit(SQUARE, load("h200"), out)
    before = {path.name: path.read_text() for path in out.iterdir()}
    rename = Path.rename

    def fails_once(self: Path, target: Path) -> Path:
        if self.name == "new":
            raise OSError(1, "Operation not permitted")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", fails_once)
    with pytest.raises(BadInput, match="Operation not permitted"):
        emit(MOE, load("h200"), out, force=True)
    assert {path.name: path.read_text() for path in out.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_lies_in_the_way(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    emit(SQUARE, load("h200"), out)  # an empty folder is fine
    with pytest.raises(BadInput, match="--force replaces it"):
        emit(MOE, load("h200"), out)
    (out / "kernel.sm_90a.cubin").write_bytes(b"old")
    emit(MOE, load("h200"), out, force=True)
    assert {path.name for path in out.iterdir()} == FILES, "a cubin of the old kernel is gone"
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    with pytest.raises(BadInput, match="were not emitted here"):
        emit(SQUARE, load("h200"), foreign, force=True)
    assert (foreign / "thesis.tex").read_text() == "x"
    with pytest.raises(BadInput, match="is a file"):
        emit(SQUARE, load("h200"), foreign / "thesis.tex", force=True)


@pytest.mark.parametrize(
    ("problem", "says"),
    [
        (Attention(seqlens=(128,), heads=8, kv_heads=8, head_dim=64), "gemm and grouped-gemm"),
        (TileList(costs_us=(1.0,)), "emit_tiles"),
        (Gemm(m=64, n=64, k=64, dtype="tf32"), "bf16, fp16, fp8_e4m3, fp8_e5m2"),
        (Gemm(m=64, n=64, k=64, dtype="int8"), "bf16, fp16"),
        (Gemm(m=64, n=64, k=64, out_dtype="fp8_e4m3"), "bf16, fp16, fp32"),
        (Gemm(m=64, n=64, k=64, layout_a="m"), "leave --layout-a at k"),
        (Gemm(m=64, n=64, k=64, layout_b="n"), "leave --layout-b at k"),
    ],
)
def test_what_no_kernel_does(problem: Any, says: str, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match=says):
        emit(problem, load("h200"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# ---- the numbers


@pytest.mark.parametrize(("problem", "device"), CASES)
def test_the_numbers_are_the_plan_s(problem: Any, device: str, tmp_path: Path) -> None:
    done: Any = emit(problem, load(device), tmp_path / "out")
    constants = json.loads((tmp_path / "out" / "launch.json").read_text())
    for path, told in zip(done.paths, constants["paths"], strict=True):
        plan = path.plan
        chosen = plan.conclusion
        assert chosen.tile is not None
        tiling = make_tiling(
            problem.dtype,
            problem.out_bytes,
            path.device,
            cta_tile=(chosen.tile.m, chosen.tile.n),
            cluster_shape=chosen.cluster_shape,
            cta_group=chosen.cta_group,
            num_stages=chosen.num_stages,
        )
        assert told["cta_tile"] == [chosen.tile.m, chosen.tile.n, chosen.tile.k]
        assert tuple(told["cluster_shape"]) == chosen.cluster_shape
        assert told["swap_ab"] == chosen.swap_ab
        assert told["threads"] == tiling.threads == plan.contract.launch["threads"]
        assert plan.contract.launch["smem_bytes"] <= told["smem_bytes"]
        assert told["smem_bytes"] <= path.device.smem_per_cta_max_bytes
        assert "along {along}, strips of {swizzle}".format(**told["raster"]) == chosen.raster
        if not told["notes"]:
            assert (told["scheduler"], told["predicted_us"]) == (
                chosen.scheduler,
                round(chosen.predicted_us, 3),
            )
        shape = launcher.Shape(*(constants["problem"][name] for name in ("m", "n", "k", "groups")))
        tiles = launcher.count_tiles(told, shape, constants["problem"]["counts"] or None)
        assert tiles == plan.schedule.tiles


def test_the_header_says_the_same(tmp_path: Path) -> None:
    emit(SHORT, load("b200"), tmp_path / "out")
    header = (tmp_path / "out" / "launch.h").read_text()
    constants = json.loads((tmp_path / "out" / "launch.json").read_text())
    for path in constants["paths"]:
        block = header[header.index(f'"{path["name"]}",  // name') :]
        for name in ("threads", "smem_bytes", "predicted_us"):
            assert f"{path[name]},  // {name}" in block
        assert f"{str(path['swap_ab']).lower()},  // swap_ab" in block
    assert f"argument_bytes = {constants['argument_bytes']}" in header
    assert '{"portable", "a100 has no known tensor rate' in header


def test_scheduler_that_a_path_lacks_is_replaced_and_said(tmp_path: Path) -> None:
    done: Any = emit(
        WEIGHTS, load("b200"), tmp_path / "out", options=Options(scheduler="clc", clc_depth=2)
    )
    by_name = {path.kind.name: path for path in done.paths}
    assert by_name["blackwell"].config.schedule_depth == 2
    assert by_name["hopper"].config.scheduler != "clc"
    plan = make_plan(SQUARE, load("a100"), Options(scheduler="dynamic_atomic"))
    path = make_path(SQUARE, plan, load("a100"), Extras())
    assert path.config.scheduler in {"single_tile", "static"}
    assert "planned dynamic_atomic" in path.notes[0]
    assert path.predicted_us == plan.schedule.schedulers[path.config.scheduler]["kernel_us"]


def test_prefix_sums_of_many_groups_take_stages() -> None:
    few, many = (
        GroupedGemm(counts=(64,) * 8, n=4096, k=4096),
        GroupedGemm(counts=(64,) * 6000, n=4096, k=4096),
    )
    assert not paths_of(few, "h200")[0].notes
    path = paths_of(many, "h200")[0]
    assert path.config.smem_bytes <= load("h200").smem_per_cta_max_bytes
    assert "leave room for" in path.notes[0]
    with pytest.raises(NoFit, match="prefix sums of 100000 groups"):
        paths_of(GroupedGemm(counts=(64,) * 100_000, n=4096, k=4096), "h200")


def test_groups_along_k_are_whole_instructions() -> None:
    with pytest.raises(NoFit, match=r"counts\[1\] = 72 .* Pad to 80"):
        paths_of(GroupedGemm(counts=(64, 72), n=128, m=128, grouped="k"), "h200")


def test_candidates_are_the_options_that_the_plan_did_not_take(tmp_path: Path) -> None:
    done = emit(SQUARE, load("b200"), tmp_path / "out")
    constants = json.loads((tmp_path / "out" / "launch.json").read_text())
    rows = {
        f"{row.option}/{row.scheduler}": row for row in done.plan.schedule.options if not row.chosen
    }
    assert {entry["name"] for entry in constants["candidates"]} == set(rows)
    source = (tmp_path / "out" / "kernel.cu").read_text()
    for entry in constants["candidates"]:
        assert entry["predicted_us"] == round(rows[entry["name"]].predicted_us, 3)
        changed = paths.with_config(source, entry["section"], entry["config"])
        assert f"constexpr int cluster_m = {entry['cluster_shape'][0]};" in entry["config"]
        assert changed.count("namespace config {") == source.count("namespace config {")
        assert entry["config"][0] in changed


# ---- the command line


def run(*words: str) -> Any:
    return CliRunner().invoke(app, ["emit", *words])


def test_the_commands_take_the_options_of_plan(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("grouped-gemm", "--counts", "100,0,28", "--n", "256", "--k", "64", "-d", "h200", "--tile", "64,64",
               "--cluster", "2,1,1", "--scheduler", "single_tile", "--c", "--bias", "--out", str(out))  # fmt: skip
    assert done.exit_code == 0, done.output
    assert "hopper: sm_90a; CTA tile 64x64x64, cluster (2, 1, 1)" in done.output
    assert f"Next: tilewright compile {out} --arch sm_90a" in done.output
    constants = json.loads((out / "launch.json").read_text())
    assert constants["has_c"]
    assert constants["has_bias"]
    assert constants["max_groups"] == 3
    assert (
        "d = gemm(a, b, counts=counts, c=c, bias=bias, beta=1.0)" in (out / "README.md").read_text()
    )


@pytest.mark.parametrize(
    "words",
    [
        ("attention", "--seqlens", "128", "--heads", "8", "--head-dim", "64"),
        ("gemm", "--m", "64", "--n", "64", "--k", "64", "--dtype", "nvfp4"),
    ],
)
def test_an_error_writes_nothing(words: tuple[str, ...], tmp_path: Path) -> None:
    done = run(*words, "-d", "b200", "--out", str(tmp_path / "out"))
    assert isinstance(done.exception, TilewrightError)  # main() prints it and exits with 2
    assert list(tmp_path.iterdir()) == []

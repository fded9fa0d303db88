"""`tilewright check` and the file that describes a launch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from typer.testing import CliRunner

from audit_pairs import text_of
from ptx_lines import kernel, run
from tilewright.audit.locate import Locator
from tilewright.cli import app
from tilewright.emulate.explore import Explorer, vary
from tilewright.emulate.spec import files_in, read_launch
from tilewright.errors import BadInput, TilewrightError, UnknownName
from tilewright.ptx import parse_ptx
from tilewright.run.emulated_check import Checked

if TYPE_CHECKING:
    from pathlib import Path

COUNTS = 'grid = 16\nargs = ["counts"]\n[arrays.counts]\ndtype = "u32"\nshape = [16]\nexpect = 1\n'


ARRAY = 'grid = 16\nargs = ["a"]\n[arrays.a]\n'


def check(*args: str, spec: str = COUNTS, folder: Path) -> tuple[int, str]:
    file = folder / "spec.toml"
    file.write_text(spec, encoding="utf-8")
    done = CliRunner().invoke(app, ["check", *args, "--args", str(file)], catch_exceptions=True)
    if isinstance(done.exception, TilewrightError):
        raise done.exception
    return done.exit_code, done.output


def pair(name: str, folder: Path) -> str:
    file = folder / f"{name}.ptx"
    file.write_text(text_of(name), encoding="utf-8")
    return str(file)


def test_a_clean_kernel_passes(tmp_path: Path) -> None:
    code, text = check(pair("CLC-03_ok", tmp_path), "--schedules", "6", folder=tmp_path)
    assert code == 0
    assert "pass after 6 schedules\n  18 of 18 blocks ran\n" in text


def test_a_failure_is_told_with_what_replays_it(tmp_path: Path) -> None:
    code, text = check(pair("CLC-06c_bad", tmp_path), "--schedules", "9", folder=tmp_path)
    assert code == 1
    assert "replay: --seed 1 --schedules 1" in text
    assert "the last steps:\n  cluster" in text
    again = text.split("replay: ")[1].split("\n", maxsplit=1)[0].split()
    code, repeated = check(pair("CLC-06c_bad", tmp_path), *again, folder=tmp_path)
    assert code == 1
    assert text.split("CLC-06c_bad.ptx:")[1:3] == repeated.split("CLC-06c_bad.ptx:")[1:3]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("k.cu", "k.cu"),
        ("/home/a/k.cu", "k.cu"),  # NVRTC puts the folder of the process before a relative name
        ("/home/a/../b/k.cu", "../b/k.cu"),
        ("/home/a/src/k.cu", "src/k.cu"),
    ],
)
def test_places_are_lines_of_the_source_that_the_kernel_came_from(path: str, name: str) -> None:
    """`.loc` names the file; its text is what the reader sees where it is at hand."""
    text = kernel("mov.u32 %r0, t;\n.loc 1 7 3\nst.global.u32 [%d0+128], %r0;")
    text += f'.file 1 "{path}"\n'
    module = parse_ptx(text)
    locator = Locator(module, {name: "\n" * 6 + "  out[32] = t;"})
    report = run(text, np.zeros(32, np.uint32), check=False)
    other = Locator(module, {f"x{name.rpartition('/')[2]}": ""})
    assert other.place(report.findings[0].span).file == report.findings[0].span.file
    found = Checked(report, None, None, locator, ()).as_dict()["findings"]
    assert [(f["id"], f["file"], f["line"]) for f in found] == [("OOB", name, 7)]


def test_json_is_as_the_design_says(tmp_path: Path) -> None:
    code, text = check(pair("CLC-12_bad", tmp_path), "--json", "--schedules", "4", folder=tmp_path)
    found = json.loads(text)
    assert code == 1
    assert set(found) == {"verdict", "schedules", "findings", "seed", "coverage"}
    assert found["verdict"] == "fail"
    assert found["findings"][0]["id"] == "RESULT"
    assert set(found["findings"][0]) == {"id", "severity", "file", "line", "message", "other_line", "other_says"}  # fmt: skip


def test_the_launch_control_can_be_told_to_decline(tmp_path: Path) -> None:
    options = ("--schedules", "1", "--resident", "1", "--decline-at", "0,1,2,3,4,5,6,7,8,9")
    code, _ = check(pair("CLC-03_ok", tmp_path), *options, folder=tmp_path)
    assert code == 0
    with pytest.raises(BadInput, match="list of numbers"):
        check(pair("CLC-03_ok", tmp_path), "--decline-at", "a", folder=tmp_path)


def test_what_is_not_emulated_exits_with_2_and_its_name(tmp_path: Path) -> None:
    file = tmp_path / "odd.ptx"
    file.write_text(
        kernel("tex.2d.v4.f32.f32 {%f0,%f1,%f2,%f3}, [t, {%f0,%f1}];"), encoding="utf-8"
    )
    spec = 'grid = 1\nargs = ["a"]\n[arrays.a]\nshape = [4]\n'
    code, text = check(str(file), "--json", spec=spec, folder=tmp_path)
    assert code == 2
    assert json.loads(text)["verdict"] == "unsupported"
    assert "odd.ptx:11:1: `tex.2d.v4.f32.f32`" in json.loads(text)["message"]


@pytest.mark.parametrize(
    ("spec", "error", "says"),
    [
        ("grid = [", BadInput, "spec.toml"),
        ("girds = 4\n", UnknownName, "Did you mean"),
        ('args = ["counts"]\n[arrays.counts]\nshape = [16]\n', BadInput, "no grid"),
        ('grid = 16\nargs = ["count"]\n[arrays.counts]\nshape = [16]\n', UnknownName, "counts"),
        (
            'grid = 16\nargs = ["counts"]\n[arrays.counts]\ndtype = "u33"\nshape = [16]\n',
            UnknownName,
            "u32",
        ),
        ('grid = 16\nargs = ["counts"]\n[arrays.counts]\ndtype = "u32"\n', BadInput, "no shape"),
        ("grid = 15\nargs = [3]\n", BadInput, "multiple"),
        (
            "grid = [4, 0]\n",
            BadInput,
            r"grid.1: Input should be greater than or equal to 1 \(given: 0\)",
        ),
        ("grid = 16\nsmem_bytes = 232449\n", BadInput, "less than or equal to 232448"),
        (ARRAY + "shap = [4]\n", UnknownName, "of arrays.a .*Did you mean"),
        (ARRAY + 'shape = [2]\nfile = "x.npy"\n', BadInput, "arrays.a: file has shape and values"),
        (
            ARRAY + 'shape = [2]\nexpect = 1\nexpect_file = "x.npy"\n',
            BadInput,
            "expect or expect_file",
        ),
        (ARRAY + 'file = "none.npy"\n', BadInput, "none.npy cannot be read: No such file"),
        (ARRAY + 'file = "spec.toml"\n', BadInput, "spec.toml is not a readable .npy file"),
        (ARRAY + 'file = "cut.npy"\n', BadInput, "cut.npy is not a readable .npy file"),
        (ARRAY + 'file = "objects.npy"\n', BadInput, "Python objects"),
        (ARRAY + 'file = "halves.npy"\n', BadInput, "halves.npy holds float16, not u32"),
        (
            ARRAY + 'shape = [4]\nexpect_file = "three.npy"\n',
            BadInput,
            r"shape \[4\], three.npy \[3\]",
        ),
        (
            ARRAY + "shape = [2]\nfill = [1, 2, 3]\n",
            BadInput,
            "array a: values do not fit u32 of shape",
        ),
        (ARRAY + "shape = [2]\nfill = [[1], [2, 3]]\n", BadInput, "array a: values do not fit"),
        (ARRAY + 'shape = [2]\nfill = "arrange"\n', BadInput, 'fill "arrange"'),
        ('grid = 16\nargs = [{ struct = ["u8:300"] }]\n', BadInput, 'member "u8:300" of a struct'),
        ('grid = 16\nargs = [{ struct = ["u8:x"] }]\n', BadInput, 'member "u8:x" of a struct'),
        ("grid = 16\nargs = []\n", BadInput, "0 arguments for 1"),
    ],
)
def test_bad_files_are_refused(
    spec: str, error: type[Exception], says: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "halves.npy", np.zeros(4, np.float16))
    np.save(tmp_path / "three.npy", np.zeros(3, np.uint32))
    np.save(tmp_path / "objects.npy", np.array([None]))
    whole = (tmp_path / "three.npy").read_bytes()
    (tmp_path / "cut.npy").write_bytes(whole[:-1])
    with pytest.raises(error, match=says):
        check(pair("CLC-03_ok", tmp_path), spec=spec, folder=tmp_path)


def test_a_file_or_a_plan_must_be_named(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="--plan"):
        check(folder=tmp_path)


def test_a_plan_says_its_launch_itself(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}", encoding="utf-8")
    with pytest.raises(BadInput, match="--args does not go with --plan"):
        check("--plan", str(tmp_path / "plan.json"), folder=tmp_path)
    done = CliRunner().invoke(app, ["check", "--plan", str(tmp_path / "plan.json")])
    assert "is not the output of tilewright plan --json" in str(done.exception)


def test_arrays_of_every_kind_and_structs(tmp_path: Path) -> None:
    np.save(tmp_path / "given.npy", np.arange(4, dtype=np.uint32) * 11)
    body = """
    ld.param.u32 %r1, [p1+8]; ld.param.u64 %d2, [p1]; mul.wide.u32 %d3, t, 4; setp.ge.u32 %p0, t, 4;
    @%p0 bra END; add.u64 %d2, %d2, %d3; ld.global.u32 %r2, [%d2]; add.u32 %r2, %r2, %r1;
    add.u64 %d0, %d0, %d3; st.global.u32 [%d0], %r2; END:"""
    text = kernel(body, 1).replace(
        "(.param .u64 p0)", "(.param .u64 p0, .param .align 8 .b8 p1[16])"
    )
    (tmp_path / "spec.toml").write_text(
        """grid = 1
        args = ["out", { struct = ["given", "u32:7"] }]
        [arrays.out]
        shape = [4]
        expect = [7, 18, 29, 40]
        [arrays.given]
        file = "given.npy"
        [arrays.half]
        dtype = "bf16"
        shape = [2, 2]
        fill = 1.5
        [arrays.random]
        dtype = "e4m3"
        shape = [8]
        fill = "random"
        """,
        encoding="utf-8",
    )
    launch, expected = read_launch(tmp_path / "spec.toml").prepare(
        parse_ptx(text), files_in(tmp_path)
    )
    assert Explorer(launch, expected=expected).explore(2).verdict == "pass"
    half = launch.buffers.arrays()[2]
    assert set(half.ravel().tolist()) == {0x3FC0}, "1.5 in bf16"


def test_what_a_replay_is_told_gives_the_same_schedule() -> None:
    """A replay names the clusters at once and the declines only where there are any."""
    for seed in range(200):
        resident, declines = vary(seed, 16, None, None)
        assert vary(seed, 16, resident, declines or None) == (resident, declines)
    assert vary(0, 16, None, None) == (None, frozenset())

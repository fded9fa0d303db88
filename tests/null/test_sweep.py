"""Sweeps: every row answered once, whatever dies or is stopped in between."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from console import run, shell_commands
from poison import Poison
from tilewright.device import load
from tilewright.errors import BadInput
from tilewright.plan import make_plan
from tilewright.problem import Attention, Gemm
from tilewright.sweep import sweep
from tilewright.sweep.answer import Answered, key_of
from tilewright.sweep.processes import Task, run_tasks
from tilewright.sweep.rows import Row
from tilewright.sweep.store import Store, line_of, read_lines
from tilewright.sweep.summary import sweep_document

B200, H200 = load("b200"), load("h200")
DEVICES = {"b200": B200, "h200": H200}
LLAMA_8B = {
    "name": "Llama-3.1-8B", "hidden": 4096, "layers": 32, "heads": 32, "kv_heads": 8, "intermediate": 14336,
    "vocab": 128256,
}  # fmt: skip


SOME = [Row(f"r{i}", "layer", f"r{i}", 1 + i, Gemm(m=128 * i, n=512, k=256)) for i in range(1, 7)]


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_answers_are_those_of_the_plan(tmp_path: Path, ending: str) -> None:
    """Every line agrees with `make_plan`, in whatever form it is written."""
    out = tmp_path / f"r.{ending}"
    done = sweep(SOME[:2], [B200, H200], out, processes=2)
    assert (done.asked, done.known, done.failed) == (4, 0, [])
    lines = read_lines(out)
    assert lines == [{**line, "repeat": int(line["repeat"])} for line in done.lines]
    assert [(line["row"], line["device"]) for line in lines] == [
        (1, "b200"), (1, "h200"), (2, "b200"), (2, "h200"),
    ]  # fmt: skip
    for line in lines:
        problem = SOME[line["row"] - 1].problem
        assert problem is not None
        plan = make_plan(problem, DEVICES[line["device"]])
        said = plan.conclusion
        assert line["answer"] == said.answer
        assert line["predicted_us"] == pytest.approx(said.predicted_us)
        assert line["cluster"] == ",".join(map(str, said.cluster_shape))
        assert (line["scheduler"], line["bound"]) == (said.scheduler, said.bound)
        assert line["tiles"] == plan.schedule.tiles
        times = {(o.option, o.scheduler): o.predicted_us for o in plan.schedule.options}
        assert line["plain_us"] == pytest.approx(times["single", "single_tile"])
    assert sorted(path.name for path in tmp_path.iterdir()) == [out.name]


def test_a_second_run_asks_nothing(tmp_path: Path) -> None:
    out = tmp_path / "r.csv"
    first = sweep(SOME[:3], [B200], out, processes=1)
    again = sweep(SOME[:3], [B200], out, processes=1)
    assert (again.asked, again.known) == (0, 3)
    assert again.lines == first.lines
    more = sweep([*SOME[:4], SOME[0]], [B200, H200], out, processes=1)
    assert (more.asked, more.known) == (
        5,
        3,
    )  # one new problem here, four there; the doubled row is one question


def test_equal_questions_are_asked_once_and_changed_ones_again() -> None:
    gemm = Gemm(m=128, n=128, k=128)
    assert key_of(gemm, B200) == key_of(Gemm(m=128, n=128, k=128, dtype="bf16"), B200)
    others = [key_of(Gemm(m=256, n=128, k=128), B200), key_of(gemm, H200)]
    assert len({key_of(gemm, B200), *others}) == 3


def test_a_changed_device_value_is_another_question(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    keys = set()
    for latency in (900, 901):
        mine.write_text(
            f'base = "b200"\nname = "mine"\n[clc_latency_cycles]\nvalue = {latency}\nunit = "cycles"\n'
            'kind = "measured"\nsource = "my bench"\n'
        )
        keys.add(key_of(Gemm(m=128, n=128, k=128), load(mine)))
    assert len(keys) == 2


def test_bad_rows_stay_and_stop_nothing(tmp_path: Path) -> None:
    """A line that cannot be meant, a problem that no plan fits, and a good one."""
    attention = Attention(seqlens=(64,), heads=1, kv_heads=1, head_dim=64, dtype="fp8_e4m3")
    rows = [Row("x:1", error="not valid JSON"), Row("x:2", problem=attention), *SOME[:1]]
    done = sweep(rows, [load("a100")], tmp_path / "r.csv", processes=1)
    assert [bool(line["error"]) for line in done.lines] == [True, True, False]
    assert done.lines[0]["error"] == "not valid JSON"
    again = sweep(rows, [load("a100")], tmp_path / "r.csv", processes=1)
    assert again.asked == 0  # the same plan would fail the same way
    assert again.lines == done.lines


def tasks_of(rows: list[Row]) -> list[Task]:
    return [Task(row.where, row.problem, "b200") for row in rows if row.problem is not None]


def poison(name: str, seconds: float = 0.0) -> Task:
    anything: Any = Poison(seconds)
    return Task(name, anything, "b200")


def test_a_row_that_kills_its_process() -> None:
    """The rows handed over with it are answered; it has an error that says so."""
    tasks = [*tasks_of(SOME[:3]), poison("bad"), *tasks_of(SOME[3:])]
    found = {each.key: each for each in run_tasks(tasks, DEVICES, processes=2, seconds=60)}
    assert set(found) == {task.key for task in tasks}
    assert [key for key, each in found.items() if each.error] == ["bad"]
    assert "2 processes died at it (exit code 9)" in found["bad"].error
    assert found["bad"].retry


def test_a_row_that_takes_too_long() -> None:
    tasks = [*tasks_of(SOME[:1]), poison("late", 60.0), *tasks_of(SOME[1:3])]
    start = time.monotonic()
    found = {each.key: each for each in run_tasks(tasks, DEVICES, processes=1, seconds=4)}
    assert time.monotonic() - start < 20
    assert [key for key, each in found.items() if each.error] == ["late"]
    assert found["late"].error == "took more than 4 s"


def children(pid: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def test_a_process_killed_from_outside_loses_nothing() -> None:
    """SIGKILL after the first answer; every row is answered, once, without an error."""
    tasks = tasks_of([Row(f"k{i}", problem=Gemm(m=64 * i, n=512, k=256)) for i in range(1, 15)])
    answers = run_tasks(tasks, DEVICES, processes=2, seconds=60)
    found = [next(answers)]
    mine = [pid for pid in children(os.getpid()) if is_python_spawn(pid)]
    assert mine
    os.kill(mine[0], signal.SIGKILL)
    found += list(answers)
    assert sorted(each.key for each in found) == sorted(task.key for task in tasks)
    assert not [each.error for each in found if each.error]


def is_python_spawn(pid: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_a_sweep_killed_in_the_middle_goes_on(tmp_path: Path) -> None:
    """SIGKILL to the whole command; the next run asks only what the journal lacks, the third nothing."""
    lines = "".join(f"{64 * i},512,256\n" for i in range(1, 21))
    (tmp_path / "p.csv").write_text("m,n,k\n" + lines)
    command = "sweep p.csv --device b200,h200 --out r.jsonl --processes 1"
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-m", "tilewright", *command.split()],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    journal = tmp_path / "r.jsonl.part"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 10:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    kept = journal.read_bytes().count(b"\n")
    assert kept < 40
    assert not (tmp_path / "r.jsonl").exists()
    done = run(f"tilewright {command}", tmp_path)
    assert done.code == 0, done.err
    assert f"({40 - kept} plans made, {kept} known before)" in done.out
    assert len({(x["row"], x["device"]) for x in read_lines(tmp_path / "r.jsonl")}) == 40
    assert "(0 plans made, 40 known before)" in run(f"tilewright {command}", tmp_path).out
    assert not journal.exists()


def test_a_torn_journal(tmp_path: Path) -> None:
    """The last line was being written when the machine went down."""
    out = tmp_path / "r.csv"
    store = Store.open(out)
    store.add(Answered(key="a", device="b200", predicted_us=1.0))
    store.add(Answered(key="b", device="b200", error="died", retry=True))
    store.close()
    with store.part.open("a") as journal:
        journal.write('{"key": "c", "devi')
    again = Store.open(out)
    again.add(Answered(key="d", device="b200"))
    again.close()
    last = Store.open(out)
    last.close()
    assert set(last.known) == {"a", "d"}
    assert last.known["a"].predicted_us == 1.0


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("r.csv", "a,b\n1,2\n", "not a results file of a sweep"),
        ("r.jsonl", "[1]\n", "not a results file of a sweep"),
        ("r.jsonl", "text", "not a results file of a sweep"),
        ("r.txt", "", "none of .csv, .jsonl, .parquet"),
        ("no/r.csv", None, "No such file"),
    ],
)
def test_what_out_must_not_be(tmp_path: Path, name: str, content: str | None, says: str) -> None:
    """A file of somebody else's is refused and left as it is."""
    out = tmp_path / name
    if content is not None:
        out.write_text(content)
    with pytest.raises(BadInput, match=says):
        sweep(SOME[:1], [B200], out, processes=1)
    assert content is None or out.read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ([name] if content is not None else [])


# --- the command and the summary ------------------------------------------------------------------


def test_the_command(tmp_path: Path) -> None:
    model = {**LLAMA_8B, "tokens": [16], "prefill": [{"seqlens": [1000, 3000]}]}
    (tmp_path / "model.json").write_text(json.dumps(model))
    done = run(
        "tilewright sweep model.json --device b200,h200 --out r.csv --summary s.md", tmp_path
    )
    assert done.code == 0, done.err
    page = (tmp_path / "s.md").read_text()
    for part in ("Total time by layer", "Where clusters pay", "Where a dynamic scheduler pays"):
        assert part in done.out
        assert f"## {part}" in page
    with (tmp_path / "r.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    total = sum(float(x["predicted_us"]) * int(x["repeat"]) for x in lines if x["device"] == "b200")
    assert f"b200: {total / 1000:.3f} ms in all" in done.out
    mlp = [x for x in lines if x["device"] == "b200" and x["layer"] == "mlp"]
    ms = sum(float(x["predicted_us"]) * int(x["repeat"]) for x in mlp) / 1000
    assert f"| mlp | {ms:.3f} | {ms * 1000 / total:.1%} |" in page
    assert "22 of 22" in done.err  # progress, where there is no terminal


def test_the_command_with_bad_rows(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("name,m,n,k\ngood,128,128,128\nodd,128,128,100\n")
    done = run("tilewright sweep p.csv --device b200 --out r.csv", tmp_path)
    assert done.code == 1
    assert "Not answered: 1" in done.out
    assert "Pad to 96 or 104" in " ".join(done.out.split())
    assert len(read_lines(tmp_path / "r.csv")) == 2


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--device b2000 --out r.csv", 'Did you mean "b200"?'),
        ("--device b200 --out r.xlsx", "none of .csv, .jsonl, .parquet"),
        ("--device b200 --out r.csv --summary s.pdf", "--summary s.pdf is none of .html, .md"),
        ("--device b200 --out r.csv --summary none/s.md", "no folder none"),
    ],
)
def test_misuse_is_exit_code_2(tmp_path: Path, options: str, says: str) -> None:
    (tmp_path / "p.csv").write_text("m,n,k\n128,128,128\n")
    done = run(f"tilewright sweep p.csv {options}", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert says in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv"]


def test_without_the_extras(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "p.csv").write_text("m,n,k\n128,128,128\n")
    for module, options in (
        ("pyarrow", "--out r.parquet"),
        ("ray", "--out r.csv --ray auto"),
    ):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, module, None)
            patch.delitem(sys.modules, "pyarrow.parquet", raising=False)
            done = run(f"tilewright sweep p.csv --device b200 {options}", tmp_path)
        assert done.code == 2
        assert "pip install 'tilewright[sweep]'" in done.err


def test_the_summary_names_where_it_pays() -> None:
    """Gains made up, so that the order and the medians are known."""

    def line(
        number: int, layer: str, us: float, cluster: float | None, dynamic: float | None
    ) -> dict[str, Any]:
        found = Answered(
            key=str(number), device="b200", predicted_us=us, plain_us=2 * us, cluster_gain=cluster, dynamic_gain=dynamic,
            cluster="2,1,1", scheduler="clc", tile_order="given",
        )  # fmt: skip
        return line_of(number, Row("w", layer, f"row {number}"), found)

    lines = [
        line(1, "mlp", 100.0, 0.10, None),
        line(2, "mlp", 1000.0, 0.05, None),
        line(3, "mlp", 10.0, 0.30, 0.5),
        line(4, "head", 10.0, None, None),
    ]
    blocks = list(sweep_document(lines))
    text = "\n".join(str(block) for block in blocks)
    assert "b200: 1.120 ms in all, 100.0% more with one CTA a tile" in text
    assert "('mlp', 'b200', '3 of 3', '+10.0%', '+30.0%')" in text
    assert "('mlp', 'b200', '1 of 3', '+50.0%', '+50.0%')" in text
    assert text.index("'row 2'") < text.index("'row 1'") < text.index("'row 3'")
    nothing = "\n".join(map(str, sweep_document(lines[3:])))
    assert nothing.count("Nowhere here.") == 2


PAGE = (Path(__file__).parents[2] / "docs" / "sweep.md").read_text(encoding="utf-8")


def test_the_examples_of_the_page(tmp_path: Path) -> None:
    """The files that docs/sweep.md shows, and its commands on them."""
    [problems] = re.findall(r"```csv\n(.*?)```", PAGE, re.DOTALL)
    [model] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "problems.csv").write_text(problems)
    (tmp_path / "model.json").write_text(model)
    commands = shell_commands(PAGE)
    assert len(commands) == 2
    for command in commands:
        done = run(command, tmp_path)
        assert done.code == 0, (command, done.out, done.err)
    for name in ("results.csv", "results.jsonl"):
        lines = read_lines(tmp_path / name)
        assert lines
        for column in lines[0].keys() - {
            "row",
            "layer",
            "name",
            "repeat",
            "problem",
            "key",
            "device",
            "retry",
        }:
            assert f"`{column}`" in PAGE
    page = (tmp_path / "summary.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert "Where clusters pay" in page
    assert re.search(r"<title>Sweep: \d+ problems on b200</title>", page)
    assert not re.findall(r'(?:src|href)="(?!#)[^"]*"', page)  # loads nothing

"""The gate: what got worse fails, what changed otherwise is a note, and the documented hooks are the real commands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from audit_pairs import text_of
from console import run, shell_commands

ROOT = Path(__file__).parents[2]
GEMM = "gemm --m 4096 --n 4096 --k 4096 --device b200"


def gate_file(folder: Path, **values: Any) -> Path:
    path = folder / "gate.json"
    path.write_text(json.dumps(values), encoding="utf-8")
    return path


def accepted(path: Path) -> dict[str, Any]:
    """The file after `--update`."""
    done = run(f"tilewright gate {path.name} --update", path.parent)
    assert done.code == 0, done.out + done.err
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def verdicts(folder: Path) -> list[tuple[str, str]]:
    """State and text of each line; the exit code agrees with them."""
    done = run("tilewright gate gate.json --json", folder)
    found = json.loads(done.out)
    states = [each["state"] for each in found["verdicts"]]
    assert found["passed"] is ("fail" not in states)
    assert done.code == int("fail" in states)
    return [(each["state"], each["text"]) for each in found["verdicts"]]


def test_a_plan_that_has_not_changed_passes(tmp_path: Path) -> None:
    """What is accepted is what `plan` says."""
    path = gate_file(tmp_path, plans=[{"plan": GEMM}])
    assert verdicts(tmp_path) == [("fail", "nothing is accepted yet; --update accepts what is")]
    [plan] = accepted(path)["plans"]
    printed = json.loads(run(f"tilewright plan {GEMM} --json", tmp_path).out)
    assert plan["expected"]["predicted_us"] == round(printed["conclusion"]["predicted_us"], 3)
    assert plan["expected"]["resident_clusters"] == printed["schedule"]["resident_clusters"]
    [(state, text)] = verdicts(tmp_path)
    assert state == "ok"
    assert "(+0.0%)" in text


@pytest.mark.parametrize(
    ("factor", "bound", "state"),
    [(1 / 1.03, 0.02, "fail"), (1 / 1.03, 0.05, "ok"), (1 / 1.01, 0.02, "ok"), (1.5, 0.0, "ok")],
)
def test_a_slowdown_over_the_bound_fails(
    tmp_path: Path, factor: float, bound: float, state: str
) -> None:
    """The accepted time is made shorter, as if today's plan had become slower by so much."""
    found = accepted(gate_file(tmp_path, max_slowdown=bound, plans=[{"plan": GEMM}]))
    found["plans"][0]["expected"]["predicted_us"] *= factor
    gate_file(tmp_path, **found)
    [(is_, text)] = verdicts(tmp_path)
    assert is_ == state
    assert f"({1 / factor - 1:+.1%})" in text
    if state == "fail":
        assert "allowed is +2.0%" in text


def test_a_plan_has_a_bound_of_its_own(tmp_path: Path) -> None:
    found = accepted(gate_file(tmp_path, plans=[{"plan": GEMM, "max_slowdown": 0.5}]))
    found["plans"][0]["expected"]["predicted_us"] /= 1.4
    gate_file(tmp_path, **found)
    assert verdicts(tmp_path)[0][0] == "ok"


def test_a_device_value_makes_it_slower(tmp_path: Path) -> None:
    """End to end: the same plan on a device whose clock became slower, and with SMs gone."""
    device = tmp_path / "mine.toml"
    text = 'base = "b200"\nname = "mine"\n[sm_clock_mhz]\nvalue = {}\nunit = "MHz"\nkind = "measured"\nsource = "me"\n'
    device.write_text(text.format(1856))
    plan = "gemm --m 4096 --n 4096 --k 4096 --device mine.toml --tile 128,256 --cluster 2"
    path = gate_file(tmp_path, plans=[{"plan": plan}])
    accepted(path)
    device.write_text(text.format(1400))
    [*_, (state, said)] = verdicts(tmp_path)
    assert state == "fail"
    assert "us predicted, it was" in said
    device.write_text(text.format(1856))
    assert verdicts(tmp_path)[0][0] == "ok"


def test_lost_residency_fails(tmp_path: Path) -> None:
    found = accepted(gate_file(tmp_path, plans=[{"plan": GEMM}]))
    found["plans"][0]["expected"]["resident_clusters"] += 1
    gate_file(tmp_path, **found)
    [(state, text)] = verdicts(tmp_path)
    assert state == "fail"
    assert re.search(r"(\d+) clusters resident, it was \d+", text)


def test_another_choice_is_a_note(tmp_path: Path) -> None:
    found = accepted(gate_file(tmp_path, plans=[{"plan": GEMM}]))
    found["plans"][0]["expected"]["choice"] = "tile 64x64x64, cluster 1x1x1, single_tile, given"
    gate_file(tmp_path, **found)
    assert [state for state, _ in verdicts(tmp_path)] == ["note", "ok"]


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A clean CLC kernel, accepted with its launch."""
    (tmp_path / "k.ptx").write_text(text_of("CLC-08b_ok"))
    launch = {"device": "b200", "threads": 64, "regs": 32, "smem_bytes": 100_000}
    path = gate_file(tmp_path, kernels=[{"file": "k.ptx", "launch": launch}])
    [entry] = accepted(path)["kernels"]
    # two CTAs an SM by shared memory: 2 x 148 CTAs in clusters of two
    assert entry["expected"]["resident_clusters"] == 148
    assert verdicts(tmp_path)[0][0] == "ok"
    return tmp_path


def test_a_new_finding_fails_and_a_gone_one_is_a_note(kernel: Path) -> None:
    """The catalogue's violating twin in place of the clean kernel, and back."""
    clean = (kernel / "k.ptx").read_text()
    (kernel / "k.ptx").write_text(text_of("CLC-08b_bad"))
    found = verdicts(kernel)
    assert [state for state, _ in found] == ["fail"] * len(found)
    assert any("new finding CLC-08 in" in text for _, text in found)
    shown = run("tilewright gate gate.json --github", kernel)
    assert "::error file=k.ptx,title=tilewright gate::k.ptx: new finding" in shown.out
    accepted(kernel / "gate.json")
    assert [state for state, _ in verdicts(kernel)] == ["ok"]
    (kernel / "k.ptx").write_text(clean)
    states = verdicts(kernel)
    assert (states[0][0], states[-1][0]) == ("note", "ok")
    assert "is gone; --update forgets it" in states[0][1]


def test_a_moved_line_is_the_same_finding(kernel: Path) -> None:
    (kernel / "k.ptx").write_text(text_of("CLC-08b_bad"))
    accepted(kernel / "gate.json")
    text = (kernel / "k.ptx").read_text()
    (kernel / "k.ptx").write_text("// moved\n" * 7 + text)
    assert [state for state, _ in verdicts(kernel)] == ["ok"]


def test_a_kernel_that_takes_more_loses_residency(kernel: Path) -> None:
    found = json.loads((kernel / "gate.json").read_text())
    found["kernels"][0]["launch"]["smem_bytes"] = 200_000  # one CTA an SM
    gate_file(kernel, **found)
    assert ("fail", "74 clusters resident, it was 148") in verdicts(kernel)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "names no plan and no kernel"),
        ({"plan": []}, "plan: Extra inputs"),
        ({"plans": [{"plan": GEMM, "max_slowdown": -1}]}, "plans.0.max_slowdown"),
        ({"kernels": [{"file": "k.ptx", "launch": {"device": "b200", "threads": 32}}]}, "say launch.regs"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_meant(tmp_path: Path, values: dict[str, Any], says: str) -> None:
    gate_file(tmp_path, **values)
    done = run("tilewright gate gate.json", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert says in done.err


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ("gemm --m 4096 --device b200", "Missing option '--n'"),
        ("gem --m 1", "No such command 'gem'"),
        ("gemm --m 8 --n 8 --k 100 --device b200", "Pad to 96 or 104"),
        ("gemm --m 8 --n 8 --k 8 --device b2000", 'Did you mean "b200"?'),
        ("gemm --m 8 --n 8 --k 8 --device b200 --json", "No such option"),
        ("gemm 'unclosed", "No closing quotation"),
        ("gemm --help", "No such option"),
    ],
)
def test_an_entry_that_cannot_be_answered_fails(tmp_path: Path, plan: str, says: str) -> None:
    """The others are judged all the same."""
    gate_file(tmp_path, plans=[{"plan": plan}, {"plan": GEMM}])
    (first, text), (second, _) = verdicts(tmp_path)
    assert (first, second) == ("fail", "fail")
    assert says in text
    done = run("tilewright gate gate.json --update", tmp_path)
    assert done.code == 1
    kept = json.loads((tmp_path / "gate.json").read_text())["plans"]
    assert "expected" not in kept[0]
    assert "expected" in kept[1]


def test_a_missing_kernel_fails(tmp_path: Path) -> None:
    gate_file(tmp_path, kernels=[{"file": "none.ptx"}])
    assert verdicts(tmp_path)[0][0] == "fail"


# --- the documented hooks -------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project as docs/ci.md has it: kernels/ and gate.json, accepted."""
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "gemm.ptx").write_text(text_of("CLC-08b_ok"))
    [example] = re.findall(r"```json\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "gate.json").write_text(example, encoding="utf-8")
    accepted(tmp_path / "gate.json")
    return tmp_path


def test_the_commands_of_the_page(project: Path) -> None:
    commands = shell_commands(PAGE)
    assert len(commands) >= 2
    for command in commands:
        done = run(command, project)
        assert done.code == 0, (command, done.err)


def test_the_commands_of_the_workflow(project: Path) -> None:
    """Each `run:` of the example workflow and of the action, less the installation."""
    action = (ROOT / "action.yml").read_text(encoding="utf-8")
    lines = re.findall(r"run: (tilewright .*)", PAGE) + re.findall(r"run: (tilewright .*)", action)
    assert len(lines) >= 3
    for line in lines:
        filled = line.replace("$KERNELS", "kernels").replace("$GATE", "gate.json")
        filled = filled.replace("$SARIF", "tilewright.sarif")
        assert "$" not in filled
        done = run(filled, project)
        assert done.code == 0, (line, done.out, done.err)
    assert json.loads((project / "tilewright.sarif").read_text())["version"] == "2.1.0"


def test_the_pre_commit_hooks(project: Path) -> None:
    """Each entry with a file that its pattern takes, as pre-commit appends it; a bad kernel stops the commit."""
    hooks = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    ids = re.findall(r"^- id: (\S+)", hooks, re.MULTILINE)
    entries = re.findall(r"^  entry: (.*)", hooks, re.MULTILINE)
    assert ids == ["tilewright-audit", "tilewright-gate"]
    for id_ in ids:
        assert f"- id: {id_}" in PAGE
    [pattern] = set(re.findall(r"^  files: (.*)", hooks, re.MULTILINE))
    assert re.search(pattern, "kernels/gemm.ptx")
    assert not re.search(pattern, "kernels/gemm.py")
    assert run(f"{entries[0]} kernels/gemm.ptx", project).code == 0
    assert run(entries[1], project).code == 0
    (project / "kernels" / "gemm.ptx").write_text(text_of("CLC-08b_bad"))
    assert run(f"{entries[0]} kernels/gemm.ptx", project).code == 1
    assert run(entries[1], project).code == 1

"""How findings reach their reader: places, text, JSON, SARIF, annotations, what silences them, exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tilewright.audit.kernel import Kernel, Options
from tilewright.audit.locate import Baseline, Locator
from tilewright.audit.outputs import as_json, as_sarif, render_github, render_text
from tilewright.audit.rules import RULES, Outcome, Rule
from tilewright.audit.run import Audited, audit_text, load_rules
from tilewright.errors import BadInput
from tilewright.ptx import parse_ptx
from tilewright.run.inputs import find_inputs

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).parent.parent / "data"
TEXT = """.version 9.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p)
.reqntid 128, 1, 1
{
\t.shared .align 8 .b8 bar[16];
\t.reg .b32 %r<3>;
\tmov.u32 %r1, bar;
\tmbarrier.init.shared::cta.b64 [%r1], 1;
\tmbarrier.init.shared::cta.b64 [%r1+8], 2;
\tret;
}
"""


def two_inits(kernel: Kernel) -> Iterator[Outcome]:
    """No kernel has two barriers."""
    inits = kernel.ops("mbarrier.init")
    for first, second in pairwise(inits):
        yield kernel.finding("T-01", "second barrier", second, first, "the first stands here")
    if not inits:
        yield kernel.undecided("T-01", "no barrier", kernel.function.span)


@pytest.fixture(autouse=True)
def _only_a_rule_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    load_rules()
    rule = Rule("T-01", "error", "9.7.13.15", "take one", "No kernel has two barriers.", two_inits)
    for known in list(RULES):
        monkeypatch.delitem(RULES, known)
    monkeypatch.setitem(RULES, "T-01", rule)


def audited(text: str = TEXT, baseline: Baseline | None = None) -> Audited:
    return audit_text(parse_ptx(text, "k.ptx"), {"k.ptx": text}, Options(), baseline)


def test_text_names_both_places_and_the_help() -> None:
    assert list(render_text([audited()])) == [
        "k.ptx:11:2: T-01 error: second barrier",
        "     11 |  mbarrier.init.shared::cta.b64 [%r1+8], 2;",
        "        |  ^",
        "  k.ptx:10:2: the first stands here",
        "     10 |  mbarrier.init.shared::cta.b64 [%r1], 1;",
        "        |  ^",
        "  help: take one (PTX ISA 9.7.13.15; kernel k)",
        "1 kernel: 1 error, 0 warnings, 0 notes, 0 not decided",
    ]


def test_json_has_the_keys_that_the_design_names() -> None:
    data = as_json([audited()])
    (finding,) = data["findings"]
    assert finding["id"] == "T-01"
    assert (finding["severity"], finding["file"], finding["line"]) == ("error", "k.ptx", 11)
    assert (finding["message"], finding["other_line"]) == ("second barrier", 10)
    assert data["not_decided"] == []
    assert [row["barrier"] for row in data["contract"][0]["barriers"]] == ["bar", "bar+8"]
    json.dumps(data)


def test_what_is_not_decided_is_said() -> None:
    text = TEXT.replace("\tmbarrier.init.shared::cta.b64 [%r1], 1;\n", "").replace(
        "\tmbarrier.init.shared::cta.b64 [%r1+8], 2;\n", ""
    )
    audit = audited(text)
    assert not audit.findings
    assert [n.why for _, n in audit.not_decided] == ["no barrier"]
    assert any("T-01 not decided: no barrier" in line for line in render_text([audit]))


def test_sarif() -> None:
    log = as_sarif([audited()])
    assert log["version"] == "2.1.0"
    (run,) = log["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["T-01"]
    (result,) = run["results"]
    assert (result["ruleId"], result["level"]) == ("T-01", "error")
    region = result["locations"][0]["physicalLocation"]
    assert region["artifactLocation"]["uri"] == "k.ptx"
    assert region["region"] == {"startLine": 11, "startColumn": 2}
    assert result["relatedLocations"][0]["message"]["text"] == "the first stands here"


def test_github_annotation() -> None:
    (line,) = render_github([audited()])
    assert line == "::error file=k.ptx,line=11,col=2,title=T-01::second barrier"


def test_github_annotation_of_a_path_that_would_end_it() -> None:
    """GitHub's workflow commands: `%25`, `%0A`, and in properties `%3A` and `%2C`."""
    file = "c:/a,50%.ptx"
    (line,) = render_github([audit_text(parse_ptx(TEXT, file), {file: TEXT}, Options())])
    assert line.startswith("::error file=c%3A/a%2C50%25.ptx,line=11,")


@pytest.mark.parametrize(
    ("after", "silenced"),
    [
        (" // tilewright: ignore[T-01] two are meant", True),
        (" // tilewright: ignore[T-02, T-01] both", True),
        (" // tilewright: ignore[T-02] another", False),
    ],
)
def test_a_comment_silences_its_rule(after: str, silenced: bool) -> None:
    on_the_line = TEXT.replace("[%r1+8], 2;", f"[%r1+8], 2;{after}")
    before = TEXT.replace(
        "\tmbarrier.init.shared::cta.b64 [%r1+8]",
        f"\t{after.strip()}\n\tmbarrier.init.shared::cta.b64 [%r1+8]",
    )
    for text in (on_the_line, before):
        assert bool(audited(text).findings) is not silenced


def test_a_baseline_is_no_news(tmp_path: Path) -> None:
    file = tmp_path / "audit.json"
    file.write_text(json.dumps(as_json([audited()])))
    assert not audited(baseline=Baseline(file)).findings
    moved = TEXT.replace("\tmov.u32", "\n\n\tmov.u32")
    assert not audited(moved, Baseline(file)).findings, "known by rule, kernel and message"
    file.write_text("{}")
    with pytest.raises(BadInput, match="not the output of tilewright audit --json"):
        Baseline(file)


def test_places_are_lines_of_the_source_where_it_is_at_hand() -> None:
    path = DATA / "ptx" / "corners_sm90_lineinfo.ptx"
    text = path.read_text()
    module = parse_ptx(text, "corners.ptx")
    name = next(
        line.split('"')[1] for line in text.splitlines() if line.lstrip().startswith(".file")
    )
    loc = next(line.split() for line in text.splitlines() if line.lstrip().startswith(".loc"))
    kernel = next(f for f in module.functions if f.body is not None and ".loc" in f.text)
    first = next(
        op
        for op in kernel.instructions()
        if op.span.offset > text.index(".loc", kernel.span.offset)
    )
    with_source = Locator(module, {name: "x\n" * 500})
    assert (with_source.place(first.span).file, loc[0]) == (name, ".loc")
    assert with_source.place(first.span).line == int(
        text[text.index(".loc", kernel.span.offset) :].split()[2]
    )
    assert Locator(module, {}).place(first.span).file == "corners.ptx"


def run(*args: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tilewright", "audit", *args]
    env = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120"}
    return subprocess.run(command, capture_output=True, text=True, input=text, env=env, check=False)  # noqa: S603


def test_the_command_reads_files_folders_and_standard_input(tmp_path: Path) -> None:
    clean = TEXT.replace("\tmbarrier.init.shared::cta.b64 [%r1+8], 2;\n", "")
    (tmp_path / "a.ptx").write_text(clean)
    (tmp_path / "b.ptx").write_text(clean)
    assert find_inputs([str(tmp_path)]) == [str(tmp_path / "a.ptx"), str(tmp_path / "b.ptx")]
    done = run(str(tmp_path), "--json")
    assert len(json.loads(done.stdout)["contract"]) == 2
    assert json.loads(run("-", "--json", text=clean).stdout)["contract"][0]["kernel"] == "k"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((), "name what to audit"),
        (("none.ptx",), "no file none.ptx"),
        (("k.txt",), "none of .ptx, .cu, .cubin, .fatbin"),
        (("k.ptx", "--ptx-isa", "8.0"), 'unknown text of the PTX ISA "8.0"'),
        (("--explain", "CLC-99"), 'unknown rule "CLC-99"'),
        (("k.ptx", "--cluster", "2,x"), "--cluster"),
    ],
)
def test_bad_input_is_one_line(args: tuple[str, ...], says: str) -> None:
    done = run(*args)
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_what_holds_no_kernel_is_bad_input(tmp_path: Path) -> None:
    """A file that says nothing must not look clean; beside a kernel it is named."""
    head = TEXT.partition(".visible")[0]
    (tmp_path / "empty.ptx").write_text(head)
    (tmp_path / "junk.ptx").write_bytes(bytes(range(256)))
    (tmp_path / "k.ptx").write_text(TEXT.replace("\tmbarrier.init", "\t//"))
    done = run(str(tmp_path / "empty.ptx"))
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing to audit" in done.stderr
    beside = run(str(tmp_path / "empty.ptx"), str(tmp_path / "k.ptx"))
    assert beside.returncode == 0
    assert "empty.ptx: no function with a body" in beside.stderr.replace("\n", "")
    junk = run(str(tmp_path / "junk.ptx"))
    assert junk.returncode == 2
    assert "is no text: byte 128 is not UTF-8" in junk.stderr


def test_a_sarif_file_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "k.ptx").write_text(TEXT)
    done = run(str(tmp_path / "k.ptx"), "--sarif", str(tmp_path / "none" / "x.sarif"))
    assert done.returncode == 2
    assert "x.sarif cannot be written" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_text_that_does_not_parse_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "k.ptx"
    file.write_text(TEXT.replace("mov.u32 %r1, bar;", "mov.u32 %r1 bar;"))
    done = run(str(file))
    assert done.returncode == 2
    assert f"{file}:9:" in done.stderr

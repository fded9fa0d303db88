"""What a notebook shows and what pandas, polars and Arrow take: the same numbers as the command line."""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from audit_pairs import text_of
from console import run
from tilewright import Gemm, load, make_plan
from tilewright.audit import audit_module
from tilewright.audit.kernel import Options
from tilewright.audit.run import audit_text
from tilewright.errors import BadInput, UnknownName
from tilewright.launch import Launch, simulate_launch
from tilewright.ptx import parse_ptx
from tilewright.records import Records
from tilewright.sweep import sweep
from tilewright.sweep.rows import Row

if TYPE_CHECKING:
    from tilewright.plan_model import Plan

VOID = {"br", "hr", "img"}


class Page(HTMLParser):
    """Checks that every element is closed in order, and gathers the text and the tables."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.attributes: set[str] = set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag != "script"
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in {"td", "th"}:
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in {"td", "th"}:
            self.tables[-1][-1][-1] += data


def page_of(shown: Any) -> Page:
    found = Page(shown._repr_html_())
    assert found.attributes <= {"class", "style", "open"}  # no id: a notebook shows it many times
    return found


@pytest.fixture(scope="module")
def plan() -> Plan:
    return make_plan(Gemm(m=4096, n=4096, k=4096), load("b200"))


def test_a_plan_is_shown(plan: Plan) -> None:
    page = page_of(plan)
    text = "".join(page.words)
    assert plan.conclusion.summary in text
    for part in ("Contract", "Barrier ledger", "Minimal validation", "Risks and fallback"):
        assert part in text
    assert plan._repr_html_().count("<details open>") == 1
    headers = [table[0] for table in page.tables]
    assert [
        "scheduler",
        "kernel us",
        "efficiency",
        "tail us",
        "tail",
        "fairness",
        "tiles min-max",
    ] in headers
    assert all(len(row) == len(table[0]) for table in page.tables for row in table)


def test_tables_of_a_plan(plan: Plan, tmp_path: Path) -> None:
    """pandas, polars and Arrow get the numbers that the command prints."""
    line = "tilewright plan gemm --m 4096 --n 4096 --k 4096 --device b200 --json"
    printed = json.loads(run(line, tmp_path).out)
    wanted = [row["resident_clusters"] for row in printed["contract"]["residency"]]
    residency = plan.table("contract.residency")
    assert list(pd.DataFrame(residency)["resident_clusters"]) == wanted
    assert pl.DataFrame(residency)["resident_clusters"].to_list() == wanted
    assert pa.table(residency)["resident_clusters"].to_pylist() == wanted
    assert pa.table(residency).schema.field("portable").type == pa.bool_()
    schedulers = pd.DataFrame(plan.table("schedule.schedulers")).set_index("name")
    for name, metrics in printed["schedule"]["schedulers"].items():
        assert schedulers.loc[name, "tail_us"] == metrics["tail_us"]


@pytest.mark.parametrize(
    "path",
    ["evidence", "risks", "contract.barriers", "contract.sharing", "contract.phases", "contract.roles", "contract.dsmem",
     "schedule.options", "schedule.bound", "schedule.boundary", "conclusion.because", "validation.correctness"],
)  # fmt: skip
def test_every_table_is_taken_by_all_three(plan: Plan, path: str) -> None:
    """Nested and mixed cells become JSON text; each column has one type."""
    table = plan.table(path)
    rows, columns = len(table), len(table.columns)
    assert rows
    assert pd.DataFrame(table).shape == (rows, columns)
    assert pl.DataFrame(table).shape == (rows, columns)
    assert pa.table(table).shape == (rows, columns)
    assert [len(row) for row in page_of(table).tables[0]] == [columns] * (rows + 1)


def test_mixed_cells_are_json() -> None:
    table = Records(
        [{"a": 1, "b": [1, 2], "c": "x", "d": None}, {"a": 2.5, "b": "n", "c": None, "e": True}]
    )
    assert table.columns == ("a", "b", "c", "d", "e")
    assert list(table) == [
        {"a": 1, "b": "[1, 2]", "c": "x", "d": None, "e": None},
        {"a": 2.5, "b": '"n"', "c": None, "d": None, "e": True},
    ]
    assert json.loads(table[0]["b"]) == [1, 2]
    assert table[0:1] == [table[0]]
    assert repr(table) == "<2 records: a, b, c, d, e>"
    assert len(Records([])) == 0


def test_cells_cannot_break_out() -> None:
    page = page_of(Records([{"<script>": '<img src=x onerror="alert(1)">'}]))
    assert page.tables == [[["<script>"], ['<img src=x onerror="alert(1)">']]]


def test_what_is_no_table(plan: Plan) -> None:
    with pytest.raises(BadInput, match="conclusion is no table"):
        plan.table("conclusion")
    with pytest.raises(BadInput, match=r"conclusion\.summary is no table"):
        plan.table("conclusion.summary")
    with pytest.raises(UnknownName, match="unknown part"):
        plan.table("conclusions")


def test_without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(BadInput, match="needs pyarrow"):
        Records([{"a": 1}]).__arrow_c_stream__()


def test_an_audit() -> None:
    """A violating kernel of the catalogue: shown with its lines, and as rows."""
    text = text_of("CLC-08_bad")
    audited = audit_text(parse_ptx(text, "k.ptx"), {"k.ptx": text}, Options())
    shown = "".join(page_of(audited).words)
    assert "k.ptx:51:2: CLC-08 error" in shown
    assert "goes on where the response was declined" in shown
    assert "Barrier ledger" in shown
    report = audit_module(parse_ptx(text, "k.ptx"))
    for table in (audited.table(), report.table()):
        frame = pd.DataFrame(table)
        assert frame[["id", "severity", "line", "other_line"]].to_numpy().tolist() == [
            ["CLC-08", "error", 51, 61]
        ]
    assert "CLC-08" in "".join(page_of(report).words)


def test_a_simulation() -> None:
    """NVIDIA/Fuser#4546: 16 equal tiles on 15 slots take two rounds."""
    found = simulate_launch({"costs_cycles": [1000.0] * 16}, None, Launch(workers=15))
    frame = pl.DataFrame(found.table())
    assert frame.filter(pl.col("scheduler") == "static")["makespan_us"].to_list() == [2.0]
    assert "16 tiles on 15 workers" in "".join(page_of(found).words)


def test_a_sweep(tmp_path: Path) -> None:
    rows = [Row("a", "mlp", "a", problem=Gemm(m=512, n=512, k=512))]
    done = sweep(rows, [load("b200")], tmp_path / "r.csv", processes=1)
    frame = pd.DataFrame(done.table())
    assert frame["predicted_us"].tolist() == [done.lines[0]["predicted_us"]]
    assert "Total time by layer" in "".join(page_of(done).words)


DOCS = Path(__file__).parents[2] / "docs"


def test_the_examples_of_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    """Every Python block of docs/notebooks.md runs; the clusters are those of the published row of one B200."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "notebooks.md").read_text(), re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "notebooks.md", "exec"), {})  # noqa: S102  (that is the test)
    shown = capsys.readouterr().out
    assert "[148, 74, 33, 15, 7]" in shown
    assert shown.count("stream_k") == 2

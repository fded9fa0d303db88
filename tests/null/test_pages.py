"""Pages as files: well-formed, self-contained, nothing lost of what they were made from, nothing run from it."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
import zlib
from collections import Counter
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from audit_pairs import pairs
from tilewright.audit.kernel import Options as AuditOptions
from tilewright.audit.run import audit_text
from tilewright.device import load
from tilewright.draft import Options
from tilewright.launch import Launch, simulate_launch
from tilewright.plan import draft_of, plan_of
from tilewright.problem import Attention, Gemm, GroupedGemm, TileList, Workload
from tilewright.ptx import parse_ptx
from tilewright.report.audit_page import render_audit_page
from tilewright.report.document import Figure, plan_document
from tilewright.report.drawn import pack_timeline
from tilewright.report.markdown import render_markdown
from tilewright.report.page import KINDS
from tilewright.report.plan_page import render_plan_page
from tilewright.report.simulation_page import render_simulation_page
from tilewright.schedule import schedulers_for

DATA = Path(__file__).parent.parent / "data"
VOID = {"area", "base", "br", "col", "hr", "img", "input", "link", "meta", "source", "wbr"}
PLANS: dict[str, tuple[Workload, str, Options]] = {
    "gemm": (Gemm(m=8192, n=8192, k=8192), "b200", Options()),
    "multicast": (
        Gemm(m=8192, n=8192, k=8192),
        "b200",
        Options(cluster_shape=(4, 2, 1), scheduler="clc"),
    ),
    "swapped": (Gemm(m=64, n=4096, k=4096), "h200", Options()),
    "grouped": (GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096), "b200", Options()),
    "attention": (
        Attention(seqlens=(1000, 3000, 16000), heads=32, kv_heads=8, head_dim=128, causal=True),
        "b200",
        Options(),
    ),
    "tiles": (
        TileList.of({"costs_cycles": [52000.0] * 264, "cluster_shape": (2, 1, 1)}),
        "h200",
        Options(),
    ),
    "no HBM figure": (Gemm(m=256, n=256, k=256), "thor", Options()),
}


class Reader(HTMLParser):
    """Elements in order, text, and every tag that was not closed in its turn."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.wrong: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.json: dict[str, str] = {}
        self._script: str | None = None
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "script" and given.get("type") == "application/json":
            self._script = given["id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.wrong.append(f"</{tag}> at {self.getpos()}")
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.json[self._script] = data
        elif not self.open or self.open[-1] not in {"script", "style"}:
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))

    def ids(self) -> Counter[str]:
        return Counter(a["id"] or "" for _, a in self.elements if "id" in a)


def plan_page(name: str) -> tuple[Reader, str]:
    problem, device, options = PLANS[name]
    chip = load(device)
    draft = draft_of(problem, chip, options)
    timelines = draft.timelines(schedulers_for(chip), chip)
    page = render_plan_page(plan_of(draft, problem, chip), timelines, draft.tiles)
    return Reader(page), page


def check_sound(reader: Reader, page: str) -> None:
    assert not reader.wrong
    assert not reader.open
    assert max(reader.ids().values()) == 1
    for tag, attributes in reader.elements:
        for name in ("src", "href", "srcset", "poster", "data", "action"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
            if name == "href" and value is not None:
                assert value[1:] in reader.ids(), value
        assert not any(name.startswith("on") for name in attributes)
    style = "".join(re.findall(r"<style>(.*?)</style>", page, flags=re.DOTALL))
    assert "@import" not in style
    assert "url(" not in style
    assert not re.search(r"\bfetch\(|XMLHttpRequest|importScripts|WebSocket|EventSource", page)
    assert "</script" not in "".join(reader.json.values())


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_s_page_is_sound_and_loses_nothing(name: str) -> None:
    reader, page = plan_page(name)
    check_sound(reader, page)
    plan = json.loads(reader.json["plan"])
    words = reader.words
    assert plan["conclusion"]["summary"] in words
    rows = re.findall(r"<tr>(.*?)</tr>", page, flags=re.DOTALL)
    for fact in plan["evidence"]:
        [row] = [
            row for row in rows if f">{fact['name']}<" in row
        ]  # one row a number, with its kind
        assert f'<span class="kind {fact["kind"]}">{fact["kind"]}</span>' in row
        assert unescape(fact["unit"]) in unescape(row)
        assert fact["source"].split(". ")[0][:60] in words.replace("  ", " ")
    for each in plan["schedule"]["schedulers"].values():
        assert f"{each['kernel_us']:.1f} us, tail {each['tail_us']:.1f} us" in words
    for row in plan["contract"]["residency"]:
        assert f"{row['sms_used']} of {plan['device']['sm_count']} SMs" in words
    for flip in plan["conclusion"]["would_flip"]:
        assert flip["experiment"] in words
    for risk in plan["risks"]:
        assert risk["fallback"] in words


def test_every_number_in_prose_says_how_it_is_known() -> None:
    """Text, Markdown and page come from one document: what it marks [kind] is a chip in the page."""
    reader, page = plan_page("gemm")
    problem, device, options = PLANS["gemm"]
    chip = load(device)
    document = render_markdown(
        plan_document(plan_of(draft_of(problem, chip, options), problem, chip))
    )
    for kind in KINDS:
        said = document.count(f"[{kind}]") + len(re.findall(rf"\| {kind} \|", document))
        assert page.count(f'<span class="kind {kind}">') >= said
    assert "[derived]" not in reader.words


@pytest.mark.parametrize("name", ["gemm", "attention", "tiles"])
def test_the_packed_runs_are_the_simulated_ones(name: str) -> None:
    """Inflate what the page carries, as the browser does, and hold it against the run."""
    problem, device, options = PLANS[name]
    chip = load(device)
    draft = draft_of(problem, chip, options)
    for timeline in draft.timelines(schedulers_for(chip), chip):
        packed = pack_timeline(timeline)
        columns = np.frombuffer(zlib.decompress(base64.b64decode(packed["columns"])), "<i4")
        slots, spans, asks = packed["slots"], packed["spans"], packed["asks"]
        assert len(columns) == 2 * (slots + 1) + 4 * spans + 3 * asks
        first, rest = columns[: slots + 1], columns[slots + 1 :]
        begin, end, tile, worker = rest[: 4 * spans].reshape(4, spans)
        slot = np.repeat(np.arange(slots), np.diff(first))
        got = sorted(zip(tile, worker, slot, begin, end, strict=True))
        assert got == sorted(span[:5] for span in timeline.spans)
        assert packed["end"] == timeline.end_ns


def test_a_run_longer_than_32_bits_of_nanoseconds_is_packed_in_coarser_ticks() -> None:
    costs = {"costs_us": [1.5e6] * 4}
    found = simulate_launch(costs, None, Launch(workers=2), scheduler="static", record=True)
    packed = pack_timeline(found.timelines[0])
    assert packed["tick_ns"] == 2
    assert packed["end"] * packed["tick_ns"] == 3_000_000_000


def test_a_simulation_s_page() -> None:
    costs = {"costs_cycles": [20000.0] * 594 + [90000.0] * 30}
    launch = Launch(threads=128, smem_bytes=204800, busy_sms=33, busy_us=300)
    found = simulate_launch(costs, load("h200"), launch, record=True)
    page = render_simulation_page(found)
    reader = Reader(page)
    check_sound(reader, page)
    assert json.loads(reader.json["simulation"]) == json.loads(json.dumps(found.as_dict()))
    for metrics in found.metrics.values():
        assert f"{metrics.makespan_us:.2f}" in reader.words
    held = json.loads(reader.json["timelines"])[0]["holds"]
    assert len(held) == 33


def test_an_audit_s_page_has_every_finding_in_its_line() -> None:
    audits = []
    for case, pair in pairs().items():
        if not case.startswith("CLC-0"):
            continue
        text, name = pair.bad, f"<b>{case}.ptx"
        audits.append(audit_text(parse_ptx(text, name), {name: text}, AuditOptions()))
    page = render_audit_page(audits)
    reader = Reader(page)
    check_sound(reader, page)
    found = [located for audit in audits for located in audit.findings]
    assert len(found) > 10
    cards = re.findall(
        r'<div class="line[^"]*" id="([^"]+)">(?:(?!<div class="line).)*?<article class="finding',
        page,
        flags=re.DOTALL,
    )
    lines = {int(id_.rpartition("-L")[2]) for id_ in cards}
    for located in found:
        assert located.place.line in lines
        assert located.finding.message in reader.words
    assert "<b>CLC-0" not in page  # names of files are text


def test_a_long_source_is_folded_around_its_findings() -> None:
    text = pairs()["CLC-04b"].bad + "// padding\n" * 5000
    audit = audit_text(parse_ptx(text, "long.ptx"), {"long.ptx": text}, AuditOptions())
    page = render_audit_page([audit])
    reader = Reader(page)
    check_sound(reader, page)
    [line] = {located.place.line for located in audit.findings}
    assert f'id="long-ptx-L{line}"' in page
    assert page.count('<div class="line') < 200
    assert re.search(r"<summary>lines \d+ to 5\d\d\d</summary>", page)


def test_figures_are_for_pages_alone() -> None:
    problem, device, options = PLANS["gemm"]
    chip = load(device)
    blocks = list(plan_document(plan_of(draft_of(problem, chip, options), problem, chip)))
    assert {block.name for block in blocks if isinstance(block, Figure)} == {
        "answer", "flips", "roofline", "schedulers", "timeline", "residency", "tile_map",
    }  # fmt: skip
    assert "Figure" not in render_markdown(blocks)


@pytest.mark.parametrize(
    "command",
    [
        "plan gemm --m 512 --n 512 --k 512 --device b200",
        "simulate 100x20000 --workers 8",
        f"audit {DATA / 'rules' / 'clc_kernel.ptx'}",
    ],
)
def test_the_command_line_writes_it(command: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    words = [sys.executable, "-m", "tilewright", *command.split(), "--html", str(out)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    check_sound(Reader(out.read_text(encoding="utf-8")), out.read_text(encoding="utf-8"))
    words[-1] = str(tmp_path / "absent" / "page.html")
    done = subprocess.run(words, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 2
    assert "cannot be written: No such file or directory" in done.stderr

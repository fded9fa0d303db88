"""Pages in headless Chromium: laid out soundly at both widths and themes, and every control does what it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from audit_pairs import text_of
from tilewright.audit.kernel import Options as AuditOptions
from tilewright.audit.run import audit_text
from tilewright.device import load
from tilewright.draft import Options
from tilewright.launch import Launch, simulate_launch
from tilewright.plan import draft_of, plan_of
from tilewright.problem import Attention, Gemm, GroupedGemm, Workload
from tilewright.ptx import parse_ptx
from tilewright.report.audit_page import render_audit_page
from tilewright.report.plan_page import render_plan_page
from tilewright.report.simulation_page import render_simulation_page
from tilewright.schedule import schedulers_for

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
DATA = Path(__file__).parent.parent / "data"
LAYOUT = (Path(__file__).parent / "layout.js").read_text(encoding="utf-8")
PLANS: dict[str, tuple[Workload, str, Options]] = {
    "gemm": (Gemm(m=8192, n=8192, k=8192), "b200", Options()),
    "multicast": (
        Gemm(m=8192, n=8192, k=8192),
        "b200",
        Options(cluster_shape=(4, 2, 1), scheduler="clc"),
    ),
    "cluster of 16": (
        Gemm(m=8192, n=8192, k=8192),
        "b200",
        Options(cluster_shape=(4, 4, 1)),
    ),
    "tiny": (Gemm(m=64, n=128, k=64), "a100", Options()),
    "grouped": (GroupedGemm(counts=(1528, 3516, 0, 508), n=4096, k=4096), "b200", Options()),
    "attention": (
        Attention(seqlens=(1000, 3000, 16000), heads=32, kv_heads=8, head_dim=128, causal=True),
        "b200",
        Options(),
    ),
}
SCREENS = [(1280, "light"), (1280, "dark"), (400, "light"), (400, "dark")]
FRAME_MS = 16.7
"""A frame at 60 Hz."""


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = next(filter(None, map(shutil.which, NAMES)), None)  # else what playwright installed
    sandbox = [] if os.geteuid() else ["--no-sandbox"]
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=path, args=sandbox)
        yield found
        found.close()


@pytest.fixture
def show(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open a page at a width, in a theme; it must ask for nothing and complain of nothing."""
    said: list[str] = []
    pages: list[Page] = []

    def opened(path: Path, width: int = 1280, theme: str = "light", *, touch: bool = False) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            has_touch=touch,
        )
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda asked: said.extend({asked.url} - {path.as_uri()}))
        page.goto(path.as_uri())
        if page.locator(".timeline").count():
            page.wait_for_selector(".timeline[data-ready]")
        pages.append(page)
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert not said


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    found = {}
    for name, (problem, device, options) in PLANS.items():
        chip = load(device)
        draft = draft_of(problem, chip, options)
        timelines = draft.timelines(schedulers_for(chip), chip)
        found[name] = render_plan_page(plan_of(draft, problem, chip), timelines, draft.tiles)
    costs = {"costs_cycles": [20000.0] * 594 + [90000.0] * 30}
    launch = Launch(threads=128, smem_bytes=204800, busy_sms=33, busy_us=300)
    found["simulation"] = render_simulation_page(
        simulate_launch(costs, load("h200"), launch, record=True)
    )
    many = {"costs_cycles": [20000.0 + 37 * (i * 7919 % 1009) for i in range(20_000)]}
    launch = Launch(threads=128, smem_bytes=204800)
    found["20,000 tiles"] = render_simulation_page(
        simulate_launch(many, load("b200"), launch, record=True)
    )
    audits = []
    for name in ("CLC-04b_bad", "gemm_clc2_full"):
        text, file = text_of(name), f"{name}.ptx"
        audits.append(audit_text(parse_ptx(text, file), {file: text}, AuditOptions()))
    found["audit"] = render_audit_page(audits)
    paths = {}
    for name, page in found.items():
        paths[name] = folder / f"{name.replace(' ', '_')}.html"
        paths[name].write_text(page, encoding="utf-8")
    return paths


@pytest.mark.parametrize(("width", "theme"), SCREENS)
@pytest.mark.parametrize("name", [*PLANS, "simulation", "audit"])
def test_nothing_overlaps_is_cut_or_faint(
    pages: dict[str, Path], show: Callable[..., Page], name: str, width: int, theme: str
) -> None:
    page = show(pages[name], width, theme)
    assert page.evaluate(LAYOUT) == []
    for canvas in page.locator("canvas").all():
        assert canvas.evaluate(
            "c => new Set(new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)).size"
        ) > 2  # fmt: skip
    if folder := os.environ.get("SCREENSHOTS"):
        page.screenshot(path=f"{folder}/{name}_{width}_{theme}.png", full_page=True)


def timeline(page: Page) -> dict[str, Any]:
    """What the timeline shows now."""
    found: dict[str, Any] = page.evaluate(
        "() => { const t = document.querySelector('.timeline').timeline, r = t.run;"
        "return { view: t.view, selected: t.selected, scheduler: r.scheduler, begin: [...r.begin], finish: [...r.finish],"
        "tile: [...r.tile], first: [...r.firstOf], end: r.end, tailFrom: r.tailFrom, asks: r.asks } }"
    )
    return found


def test_pointing_says_which_tile(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    """1024 tiles on 74 slots, static: slot s runs tiles s, s + 74, … one after the other."""
    page = show(pages["gemm"])
    canvas = page.locator(".timeline canvas")
    canvas.scroll_into_view_if_needed()
    for slot, nth in ((0, 0), (17, 3), (73, 12)):
        x, y = page.evaluate(
            "([s, k]) => { const t = document.querySelector('.timeline').timeline, i = t.run.firstOf[s] + k;"
            "return [(t.xOf(t.run.begin[i]) + t.xOf(t.run.finish[i])) / 2, t.yOf(s + 0.5)] }",
            [slot, nth],
        )
        canvas.hover(position={"x": x, "y": y})
        tip = page.locator(".timeline .tip")
        tile = slot + 74 * nth
        assert tip.inner_text().startswith(f"tile {tile}, slot {slot}, worker {slot}\n")
        # strips of 8 cluster tiles of 256 x 256 along M, 32 x 32 of them
        row, column = tile % 256 // 8, tile // 256 * 8 + tile % 8
        assert f"rows {row * 256} to {row * 256 + 256}, columns {column * 256} to {column * 256 + 256}" in tip.inner_text()  # fmt: skip
        inside = tip.bounding_box(), canvas.bounding_box()
        assert inside[0] is not None
        assert inside[1] is not None
        assert inside[0]["x"] >= inside[1]["x"]
        assert inside[0]["x"] + inside[0]["width"] <= inside[1]["x"] + inside[1]["width"]
    page.mouse.move(5, 5)
    assert page.locator(".timeline .tip").is_hidden()


def test_zoom_by_wheel_keys_and_buttons(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["gemm"])
    canvas = page.locator(".timeline canvas")
    canvas.scroll_into_view_if_needed()
    whole = timeline(page)["view"]
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -200)  # the page scrolls, the timeline stays
    assert timeline(page)["view"] == whole
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -400)
    page.keyboard.up("Control")
    page.wait_for_timeout(100)
    near = timeline(page)["view"]
    assert near["t1"] - near["t0"] < 0.5 * (whole["t1"] - whole["t0"])
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2 + 120, box["y"] + box["height"] / 2, steps=4)
    page.mouse.up()
    assert timeline(page)["view"]["t0"] < near["t0"]
    canvas.focus()
    page.keyboard.press("0")
    assert timeline(page)["view"] == whole
    page.keyboard.press("t")
    shown = timeline(page)
    assert shown["view"]["t0"] < shown["tailFrom"] < shown["end"] <= shown["view"]["t1"]
    assert shown["view"]["t1"] - shown["view"]["t0"] < 0.12 * (
        whole["t1"] - whole["t0"]
    )  # a tail of 7.1 %
    page.get_by_role("button", name="all").click()
    assert timeline(page)["view"] == whole


def test_from_tile_to_tile_by_keys(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["gemm"])
    page.locator(".timeline canvas").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    assert "Selected tile 150, slot 2" in page.locator(".picked").inner_text()  # 2 + 2 x 74
    page.keyboard.press("Enter")
    found = timeline(page)
    i = found["selected"]
    view = found["view"]
    took = found["finish"][i] - found["begin"][i]
    assert took > 0.3 * (view["t1"] - view["t0"])  # one tile fills the view
    assert view["r1"] - view["r0"] <= 8
    page.keyboard.press("Escape")
    assert timeline(page)["view"]["all"]


def test_a_double_click_shows_one_tile(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["gemm"])
    canvas = page.locator(".timeline canvas")
    canvas.scroll_into_view_if_needed()
    canvas.dblclick(position={"x": 400, "y": 200})
    found = timeline(page)
    i = found["selected"]
    assert i >= 0
    assert found["finish"][i] - found["begin"][i] > 0.3 * (
        found["view"]["t1"] - found["view"]["t0"]
    )


def test_schedulers_and_their_requests(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["gemm"])
    box = page.locator(".claims")
    assert box.is_hidden()  # static asks for nothing
    page.get_by_label("clc", exact=True).check()
    page.wait_for_function("document.querySelector('.timeline').timeline.run.scheduler === 'clc'")
    assert box.is_visible()
    assert (
        "1024 requests for work" in page.locator(".reading").inner_text()
    )  # 950 granted, 74 declined
    pixels = "c => c.toDataURL()"
    canvas = page.locator(".timeline canvas")
    page.wait_for_timeout(100)
    drawn = canvas.evaluate(pixels)
    box.locator("input").uncheck()
    page.wait_for_timeout(100)
    assert canvas.evaluate(pixels) != drawn
    canvas.focus()
    page.keyboard.press("ArrowRight")
    assert "gets tile 74" in page.locator(".picked").inner_text()


def test_tail_and_fairness_are_the_simulator_s(
    pages: dict[str, Path], show: Callable[..., Page]
) -> None:
    """The page works them out from its boxes; `sim.metrics` from the run."""
    page = show(pages["simulation"])
    metrics = json.loads(page.locator("#simulation").text_content() or "")
    for name, found in metrics.items():
        page.get_by_label(name, exact=True).check()
        page.wait_for_function(
            f"document.querySelector('.timeline').timeline.run.scheduler === '{name}'"
        )
        said = page.locator(".reading").inner_text()
        read = re.findall(r"(?:makespan|tail|fairness) ([\d.]+)", said)
        expected = [found["makespan_us"], found["tail_us"], found["fairness"]]
        assert list(map(float, read)) == pytest.approx(expected, abs=0.006)  # shown to 0.01 us


def test_twenty_thousand_tiles_stay_smooth(
    pages: dict[str, Path], show: Callable[..., Page]
) -> None:
    page = show(pages["20,000 tiles"])
    assert pages["20,000 tiles"].stat().st_size < 3_000_000
    page.locator(".timeline canvas").scroll_into_view_if_needed()
    page.get_by_label("clc", exact=True).check()
    page.wait_for_function("document.querySelector('.timeline').timeline.run.asks > 0")
    found = page.evaluate(
        """async () => {
          const t = document.querySelector('.timeline').timeline, drawn = [], frames = [];
          let last = await new Promise(requestAnimationFrame);
          for (let k = 0; k < 120; k++) {
            t.zoom(k < 60 ? 0.93 : 1 / 0.93);
            const before = performance.now();
            t.draw();
            drawn.push(performance.now() - before);
            const now = await new Promise(requestAnimationFrame);
            frames.push(now - last);
            last = now;
          }
          return { drawn, frames };
        }"""
    )
    drawn, frames = sorted(found["drawn"]), sorted(found["frames"])
    print(f"\ndraw: median {statistics.median(drawn):.1f} ms, worst {drawn[-1]:.1f} ms; "  # noqa: T201
          f"frame: median {statistics.median(frames):.1f} ms, 95th percentile {frames[113]:.1f} ms")  # fmt: skip
    assert statistics.median(drawn) < FRAME_MS / 2
    assert statistics.median(frames) < 1.5 * FRAME_MS


def test_evidence_is_filtered_by_words_and_kind(
    pages: dict[str, Path], show: Callable[..., Page]
) -> None:
    page = show(pages["gemm"])
    plan = json.loads(
        page.locator("#plan").inner_text() or page.locator("#plan").text_content() or ""
    )
    facts = plan["evidence"]
    bar = page.locator(".filter")
    rows = page.locator(".filter + .scroll tbody tr:visible")
    assert rows.count() == len(facts)
    bar.get_by_label("assumed").uncheck()
    kept = [fact for fact in facts if fact["kind"] != "assumed"]
    assert rows.count() == len(kept) < len(facts)
    bar.get_by_role("searchbox").fill("l2_")
    assert rows.count() == sum("l2_" in fact["name"] for fact in kept)
    assert bar.locator("output").inner_text() == f"{rows.count()} of {len(facts)}"


def test_a_cta_shows_what_it_uses(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    """Cluster (4, 2, 1), pairs: CTA 0 gets A from 0 and 4; its pair's B from 0 and 2, 1 and 3."""
    page = show(pages["multicast"])
    page.locator(".cta[data-cta='0']").hover()
    lit = page.locator(".operand.on title").all_text_contents()
    assert sorted(line.split("loaded by CTA ")[1].split(",")[0] for line in lit) == ["0", "0", "1", "2", "3", "4"]  # fmt: skip
    page.locator(".cta[data-cta='7']").focus()
    assert page.locator(".cta.on").get_attribute("data-cta") == "7"


def test_findings_by_keys_and_filter(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["audit"])
    page.keyboard.press("j")
    assert "CLC-04" in page.evaluate("document.activeElement.textContent")
    top = page.evaluate("document.activeElement.getBoundingClientRect().top")
    assert 0 < top < 900
    page.keyboard.press("j")
    page.keyboard.press("k")
    assert "CLC-04" in page.evaluate("document.activeElement.textContent")
    page.keyboard.press("/")
    page.keyboard.type("tensor map")
    assert page.locator(".findings li:visible").count() == 2
    assert page.locator("article.finding:visible").count() == 2
    page.locator("#severities input[value=undecided]").uncheck()
    assert page.locator(".findings li:visible").count() == 0
    page.get_by_role("link", name="836").first.click()
    assert page.url.endswith("-L836")
    assert "try_cancel" in page.locator(":target").inner_text()


def test_the_theme_button_and_print(pages: dict[str, Path], show: Callable[..., Page]) -> None:
    page = show(pages["gemm"], theme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.get_by_role("button", name="theme").click()
    assert page.evaluate(ground) != dark
    page.get_by_role("button", name="theme").click()
    assert page.evaluate(ground) == dark
    page.emulate_media(media="print")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert page.locator("nav").is_hidden()
    assert len(page.pdf()) > 50_000

"""Drawings of a plan's page that need no script: bars, roofline, ranges.

Bars and labels are HTML, lines are SVG stretched below them: text keeps its size on any screen.
"""

from __future__ import annotations

import math
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from tilewright.report.page import chip

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tilewright.plan_model import FlipValue, Plan


def figure(name: str, caption: str, body: str) -> str:
    """A drawing with its caption."""
    return f'<figure class="{name}">{body}<figcaption>{caption}</figcaption></figure>'


def answer(plan: Plan) -> str:
    """The decision's numbers, at a glance."""
    c, s = plan.conclusion, plan.schedule
    tile = c.pair_tile or c.tile
    facts = [
        ("predicted", f"{c.predicted_us:.1f} us", chip("derived")),
        ("bound", escape(c.bound), chip("derived")),
        ("cluster", "x".join(map(str, c.cluster_shape)), "CTAs"),
        ("scheduler", escape(c.scheduler), escape(c.tile_order)),
        ("resident", str(s.resident_clusters), f"clusters {chip('derived')}"),
        ("tiles", str(s.tiles), f"{s.num_waves:.2f} waves"),
    ]
    if tile:
        what = "pair tile" if c.pair_tile else "CTA tile"
        facts.insert(3, (what, f"{tile.m}x{tile.n}x{tile.k}", f"{c.num_stages} stages"))
    cells = "".join(
        f"<div><dt>{name}</dt><dd><b>{value}</b> <small>{note}</small></dd></div>"
        for name, value, note in facts
    )
    return f'<dl class="facts">{cells}</dl>'


class Bar(NamedTuple):
    """A row of a bar chart.

    Attributes:
        solid, hatched: fractions of the width, one after the other.
    """

    name: str
    solid: float
    hatched: float
    label: str
    chosen: bool = False


def bars(rows: Sequence[Bar]) -> str:
    """Horizontal bars from zero; the hatched part is what is lost."""
    lines = []
    for row in rows:
        mark = '<span class="mark" title="chosen">&#9654;<span class="sr"> chosen </span></span>'
        lines.append(
            f'<div class="bar{" chosen" if row.chosen else ""}">'
            f'<span class="name">{mark if row.chosen else ""}{escape(row.name)}</span>'
            f'<span class="track"><i style="width:{row.solid:.2%}"></i>'
            f'<i class="lost" style="width:{row.hatched:.2%}"></i></span>'
            f'<span class="label">{row.label}</span></div>'
        )
    return f'<div class="bars">{"".join(lines)}</div>'


def residency(plan: Plan) -> str:
    """SMs in use at each cluster size."""
    total = max(int(plan.device["sm_count"]), 1)
    size = math.prod(plan.conclusion.cluster_shape)
    rows = []
    for r in plan.contract.residency:
        count = str(r.resident_clusters)
        if r.resident_clusters_max != r.resident_clusters:
            count += f" to {r.resident_clusters_max}"
        used = min(r.sms_used / total, 1.0)
        rows.append(
            Bar(
                f"{r.cluster_size} CTA{'s' * (r.cluster_size > 1)}{'' if r.portable else ' *'}",
                used,
                1 - used,
                f"{count} clusters, {r.sms_used} of {total} SMs",
                r.cluster_size == size,
            )
        )
    star = "" if all(r.portable for r in plan.contract.residency) else "; * non-portable size"
    caption = f"SMs that clusters of each size can use {chip('derived')}; hatched: left empty{star}"
    return figure("residency", caption, bars(rows))


def schedulers(plan: Plan) -> str:
    """Kernel time of each scheduler, its tail hatched."""
    found = {
        name: (m["kernel_us"], m["tail_us"], m["tail_fraction"], m["fairness"])
        for name, m in plan.schedule.schedulers.items()
    }
    return scheduler_bars("Kernel time", found, plan.conclusion.scheduler)


def scheduler_bars(
    what: str, found: Mapping[str, tuple[float, float, float, float]], chosen: str = ""
) -> str:
    """A bar a scheduler.

    Args:
        found: time and tail in us, the tail's fraction, fairness.
    """
    most = max((time for time, *_ in found.values()), default=0.0) or 1.0
    rows = [
        Bar(
            name,
            max(0.0, time - tail) / most,
            min(tail, time) / most,
            f"{time:.1f} us, tail {tail:.1f} us ({fraction:.1%}), fairness {fairness:.3f}",
            name == chosen,
        )
        for name, (time, tail, fraction, fairness) in found.items()
    ]
    caption = f"{what} {chip('derived')}; hatched: the tail, from the first worker that is idle for good to the end"
    return figure("schedulers", caption, bars(rows))


def flips(values: Sequence[FlipValue], plan: Plan) -> str:
    """The plausible range of each value that can flip the answer, what is used, and where it flips."""
    if not values:
        return ""
    used = {e.name.partition(".")[2]: e.value for e in plan.evidence}
    rows = []
    for flip in values:
        low, high = min(flip.low, flip.at), max(flip.high, flip.at)
        now = used.get(flip.value, 0.0 if flip.low == 0 else None)
        marks = _mark("at", flip.at, low, high, f"flips at {flip.at:g}")
        if isinstance(now, (int, float)) and low <= now <= high:
            marks += _mark("now", now, low, high, f"used {now:g}")
        rows.append(
            f'<div class="range"><span class="name"><code>{escape(flip.value)}</code> {chip(flip.kind)}</span>'
            f'<span class="line"><b class="low">{flip.low:g}</b><span class="rule">{marks}</span>'
            f'<b class="high">{flip.high:g}</b></span>'
            f'<span class="label">to <b>{escape(flip.to)}</b></span></div>'
        )
    key = '<span class="rule key"><i class="now"></i></span> used, <span class="rule key"><i class="at"></i></span> flips'
    return figure("flips", f"Plausible ranges: {key}", "".join(rows))


def _mark(name: str, value: float, low: float, high: float, title: str) -> str:
    where = (value - low) / (high - low) if high > low else 0.5
    return f'<i class="{name}" style="left:{where:.2%}" title="{escape(title)}"></i>'


def roofline(plan: Plan) -> str:
    """Attained rate over intensity, both axes logarithmic, with the roofs of the device."""
    r, traffic = plan.schedule.roofline, plan.contract.traffic
    if not r or not r.get("memory_us") or not r.get("compute_us"):
        return ""
    flops, least = float(r["flops"]), float(r["compulsory_bytes"])
    peak, hbm = flops / r["compute_us"] / 1e6, least / r["memory_us"] / 1e6  # TFLOP/s, TB/s
    attained = flops / plan.conclusion.predicted_us / 1e6
    points = [("compulsory bytes", flops / least, attained)]
    if "hbm_read_bytes" in traffic:
        moved = float(traffic["hbm_read_bytes"] + traffic["hbm_write_bytes"])
        points.append(("predicted HBM bytes", flops / moved, attained))
    ridge = peak / hbm
    intensities = [ridge, *(p[1] for p in points)]
    x = _Log(min(intensities) / 8, max(intensities) * 4)
    y = _Log(min(attained, hbm * x.low) / 1.6, peak * 2)
    roof = " ".join(
        f"{x.at(i) * 100:.2f},{100 - y.at(rate) * 100:.2f}"
        for i, rate in ((x.low, hbm * x.low), (ridge, peak), (x.high, peak))
    )
    grid = "".join(
        f'<line x1="{x.at(v) * 100:.2f}" x2="{x.at(v) * 100:.2f}" y1="0" y2="100"/>'
        for v in x.ticks()
    ) + "".join(
        f'<line y1="{100 - y.at(v) * 100:.2f}" y2="{100 - y.at(v) * 100:.2f}" x1="0" x2="100"/>'
        for v in y.ticks()
    )
    labels = [_tick("x", x.at(v), v) for v in x.ticks()] + [
        _tick("y", y.at(v), v) for v in y.ticks()
    ]
    labels += [
        _note(1.0, y.at(peak), f"tensor peak {peak:.0f} TFLOP/s", "roof peak"),
        _note(
            x.at(math.sqrt(x.low * ridge)),
            y.at(hbm * math.sqrt(x.low * ridge)),
            f"HBM {hbm:.2f} TB/s",
            "roof hbm",
        ),
    ]
    for index, (name, intensity, rate) in enumerate(points):
        title = f"{name}: {intensity:.0f} FLOP/byte, {rate:.0f} TFLOP/s"
        labels.append(
            f'<i class="point p{index}" style="left:{x.at(intensity):.2%};bottom:{y.at(rate):.2%}" title="{title}"></i>'
        )
    legend = "; ".join(
        f'<i class="point p{index}"></i> at {name}: {intensity:.0f} FLOP/byte'
        for index, (name, intensity, _) in enumerate(points)
    )
    body = (
        '<div class="plot"><svg viewBox="0 0 100 100" preserveAspectRatio="none" aria-hidden="true">'
        f'<g class="grid">{grid}</g><polyline class="roof" points="{roof}"/></svg>{"".join(labels)}'
        '<span class="axis x">FLOP/byte of HBM</span><span class="axis y">TFLOP/s</span></div>'
    )
    caption = f"{attained:.0f} TFLOP/s {chip('derived')}, {attained / peak:.0%} of the tensor peak: {legend}"
    return figure("roofline", caption, body)


class _Log:
    """A logarithmic axis."""

    def __init__(self, low: float, high: float) -> None:
        self.low, self.high = low, high

    def at(self, value: float) -> float:
        return math.log(value / self.low) / math.log(self.high / self.low)

    def ticks(self) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        steps = (
            (1, 2, 5)
            if self.high < 100 * self.low
            else (1, 3)
            if self.high < 1e4 * self.low
            else (1,)
        )
        found = [step * 10.0**d for d in decades for step in steps]
        return [v for v in found if 0.03 < self.at(v) < 0.95]


def _tick(axis: str, where: float, value: float) -> str:
    side = "left" if axis == "x" else "bottom"
    return f'<span class="tick {axis}" style="{side}:{where:.2%}">{value:,.10g}</span>'


def _note(x: float, y: float, words: str, name: str) -> str:
    return f'<span class="note {name}" style="left:{x:.2%};bottom:{y:.2%}">{words}</span>'

"""Set published scheduling results beside the model's predictions; write the tables of docs/validation.md.

    python bench/validate_published.py            print every comparison and the score
    python bench/validate_published.py --write    write the generated parts of docs/validation.md

A comparison is the ratio of two kernels in one published table. The model's side is composed of the
package's own functions on the device's own file; a kernel differs from another only by the features that
its author states (tests/data/published.toml). No number here belongs to one row.
"""

from __future__ import annotations

import csv
import math
import re
import sys
import tomllib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from published_kernels import (
    Entry,
    attention_us,
    described_tiling,
    matmul_us,
    padded_us,
    softmax_gbps,
    traffic_of,
)

from tilewright.candidates import CLASSES, Candidates
from tilewright.device import load
from tilewright.problem import Gemm, GroupedGemm, Matmul
from tilewright.residency import find_residency
from tilewright.sim import Disturbance, metrics, simulate
from tilewright.tile_map import Raster

if TYPE_CHECKING:
    from tilewright.device import Device

ROOT = Path(__file__).parent.parent
PUBLISHED = ROOT / "tests" / "data" / "published.toml"
BASELINE = ROOT / "tests" / "data" / "h200" / "gemm_baseline.csv"
DOC = ROOT / "docs" / "validation.md"

TIE_ERROR = 0.05
"""Where the published pair is a tie, the model must not claim more than this."""

SAID = 0.002
"""A predicted ratio nearer to 1 than this says nothing about the sign."""

CLOSE = 0.10
"""A predicted ratio is close when it is within this of the published one."""


class Comparison(NamedTuple):
    """Two kernels of one table.

    Attributes:
        published, model: how many times faster the first is than the second.
        noise: published pairs nearer to 1 than this are ties.
        why: what the model misses, where it is wrong.
    """

    table: str
    scope: Literal["listed", "more"]
    what: str
    published: float
    model: float
    noise: float
    why: str

    @property
    def tie(self) -> bool:
        """The published difference is inside its own noise."""
        return abs(self.published - 1.0) < self.noise

    @property
    def sign_right(self) -> bool:
        """The model orders the pair as published; of a tie it claims at most `TIE_ERROR`."""
        if self.tie:
            return abs(self.model - 1.0) < TIE_ERROR
        says = abs(self.model - 1.0) >= SAID
        return says and (self.model > 1.0) == (self.published > 1.0)

    @property
    def off(self) -> float:
        """The model's ratio over the published one, less one."""
        return self.model / self.published - 1.0

    @property
    def close(self) -> bool:
        """Within `CLOSE`."""
        return abs(self.off) <= CLOSE


class Score(NamedTuple):
    """How many comparisons the model gets right."""

    comparisons: int
    signs: int
    close: int

    @property
    def close_fraction(self) -> float:
        """Ratios within `CLOSE`."""
        return self.close / self.comparisons


# comparisons


@cache
def published() -> tuple[Entry, ...]:
    """The published tables."""
    with PUBLISHED.open("rb") as file:
        return tuple(tomllib.load(file)["table"])


def model_speed(table: Entry, kernel: Entry, index: int) -> float:
    """What is proportional to the kernel's speed on the table's problem `index`."""
    device = load(table["device"])
    kind = table["kind"]
    if kind == "softmax":
        return softmax_gbps(kernel, table["kernels"][0], device)
    if kind == "attention":
        cases = kernel.get("seqlens", table["seqlens"][index])
        times = [attention_us(list(case), kernel, table, device) for case in cases]
        return math.exp(-float(np.mean(np.log(times))))
    m, n, k = table["extents"][index]
    if kind == "padded":
        counts = tuple(table["counts"])
        return 1.0 / padded_us(
            GroupedGemm(counts=counts, n=n, k=k, dtype=table["dtype"]), kernel, device
        )
    return 1.0 / matmul_us(Gemm(m=m, n=n, k=k, dtype=table["dtype"]), kernel, device)


def published_speed(table: Entry, kernel: Entry, index: int) -> float:
    """The same from the published number."""
    value = float(kernel["published"][index])
    return 1.0 / value if table["unit"] in {"ms", "us"} else value


def compare(table: Entry) -> list[Comparison]:
    """Every pair of a table at every extent."""
    kernels = {kernel["name"]: kernel for kernel in table["kernels"]}
    return [
        _compared(table, pair, kernels[pair["of"]], kernels[pair["over"]], index)
        for pair in table["pairs"]
        for index in range(len(table["extents"]))
    ]


def _compared(table: Entry, pair: Entry, of: Entry, over: Entry, index: int) -> Comparison:
    return Comparison(
        table=table["title"],
        scope=table["scope"],
        what=f"{of['name']} over {over['name']}{_at(table, index)}",
        published=published_speed(table, of, index) / published_speed(table, over, index),
        model=model_speed(table, of, index) / model_speed(table, over, index),
        noise=table["noise"],
        why=pair.get("why", ""),
    )


def _at(table: Entry, index: int) -> str:
    if len(table["extents"]) == 1:
        return ""
    if table["kind"] == "attention":
        return f", {table['seqlens'][index][0][0]} long"
    return f", K {table['extents'][index][2]}"


@cache
def comparisons() -> tuple[Comparison, ...]:
    """All of them, in the order of the file."""
    return tuple(row for table in published() for row in compare(table))


def score(rows: tuple[Comparison, ...] | list[Comparison]) -> Score:
    """Count what is right."""
    return Score(len(rows), sum(r.sign_right for r in rows), sum(r.close for r in rows))


# an H200's own GEMMs


class Measured(NamedTuple):
    """A measured time and the model's, launch latency included."""

    what: str
    plan: str
    measured_us: float
    model_us: float

    @property
    def off(self) -> float:
        """Predicted over measured, less one."""
        return self.model_us / self.measured_us - 1.0


@cache
def h200_rows() -> tuple[Measured, ...]:
    """The library's products on an H200 (cuBLAS, torch._grouped_mm) against the model's best plan."""
    device = load("h200")
    with BASELINE.open(encoding="utf-8", newline="") as file:
        return tuple(
            _measured(line, problem, device)
            for line in file
            if (problem := _baseline_problem(line)) is not None
        )


def _baseline_problem(line: str) -> Matmul | None:
    """The problem of one line; None where its group counts are not all recorded."""
    name, what, *_ = next(csv.reader([line]))
    if name == "cublas_bf16":
        m, n, k = (int(extent) for extent in what.split("x"))
        return Gemm(m=m, n=n, k=k, dtype="bf16")
    sizes = re.fullmatch(r"E(\d+) T(\d+) n(\d+) k(\d+) skew([\d.]+)", what)
    if name != "torch_grouped_mm_bf16" or sizes is None:
        return None
    groups, tokens, n, k = (int(size) for size in sizes.groups()[:4])
    counts = tuple(int(c) for c in re.findall(r"\d+", line.split("counts=")[1]))
    if float(sizes[5]) == 0.0:
        counts = (tokens // groups,) * groups
    if sum(counts) != tokens:
        return None
    return GroupedGemm(counts=counts, n=n, k=k, dtype="bf16")


def _measured(line: str, problem: Matmul, device: Device) -> Measured:
    name, what, us = next(csv.reader([line]))[:3]
    candidates = Candidates(problem, device)
    best = min(
        (found for kind in CLASSES if (found := candidates.best(kind))),
        key=lambda found: found.cycles,
    )
    x, y, _ = best.tiling.cluster_shape
    kernel_us = best.cycles / device.sm_clock_mhz
    return Measured(
        what=what if name == "cublas_bf16" else f"grouped {what}",
        plan=f"{best.tiling.cta_tile}, cluster {x}x{y}{', swapped' if best.swap_ab else ''}",
        measured_us=float(us.removesuffix("us")),
        model_us=kernel_us + (device.launch_us or 0.0),
    )


# facts that are no ratios


class Fact(NamedTuple):
    """A published statement and what the model has for it."""

    what: str
    published: str
    model: str


def facts() -> list[Fact]:
    """L2 hit rates, and what is known of cluster launch control."""
    return [
        *_hit_rates(),
        Fact(
            "CLC round trip, B300 (quack, a comment in its code)",
            "about 1 us",
            f"{(load('b300').clc_latency_cycles or 0) / load('b300').sm_clock_mhz:.2f} us (taken from it)",
        ),
        _padded_cluster(),
        *_clc_protocol(),
    ]


def _hit_rates() -> list[Fact]:
    """One-tile and grouped order at 8192 x 8192 x 16384, fp16, tile 128x256 (Gluon 07)."""
    problem = Gemm(m=8192, n=8192, k=16384, dtype="fp16")
    cases = (
        ("Blackwell, one tile a CTA", "gb200", 4, Raster("m", 1), "61 %"),
        ("Blackwell, persistent, groups of 8", "gb200", 4, Raster("n", 8), "about 70 %"),
        ("Hopper, one tile a CTA", "h100_sxm", 3, Raster("m", 1), "89 %"),
        ("Hopper, persistent", "h100_sxm", 3, Raster("n", 8), "86 %"),
    )
    found = []
    for what, name, stages, raster, hit in cases:
        device = load(name)
        tiling = described_tiling(problem, {"tile": (128, 256), "stages": stages}, device)
        residency = find_residency(tiling.resources, 1, device)
        traffic = traffic_of(problem, tiling, residency, raster, device)
        model = 1.0 - traffic.hbm_read_bytes / traffic.l2_bytes
        found.append(Fact(f"L2 hit rate, {what}, K 16384 (Gluon 07)", hit, f"{model:.0%}"))
    return found


def _padded_cluster() -> Fact:
    """Cost of one padded cluster, chip-wide, from the slope between 8 and 64 times."""
    table = next(t for t in published() if t["id"] == "padding-w13")
    slow, quick = (1.0 / model_speed(table, table["kernels"][i], 0) for i in (3, 0))
    extra = (64 - 8) * sum(table["counts"]) // 256 * 16
    return Fact(
        "a padded cluster under CLC, chip-wide (drisspg)",
        "22.9 to 23.1 ns in four problems",
        f"{(slow - quick) * 1e3 / extra:.1f} ns",
    )


def _clc_protocol() -> list[Fact]:
    """Grants in order, and declines that lose nothing, on 1344 clusters and 74 slots (quack, B300)."""
    tiles = np.full(1344, 10_000.0)
    quiet = simulate("clc", tiles, 74, record=True)
    granted = [r.item for r in quiet.requests if r.item >= 0]
    noisy = simulate("clc", tiles, 74, disturbance=Disturbance(decline_probability=0.025))
    ran = np.bincount(noisy.tile, minlength=len(tiles))
    lost = metrics(noisy, 1000.0).makespan_us / metrics(quiet, 1000.0).makespan_us - 1.0
    return [
        Fact(
            "CLC grants strictly increase (quack)",
            "in 576 million of 576 million",
            f"{'yes' if granted == sorted(set(granted)) else 'no'}, by construction",
        ),
        Fact(
            "requests declined with clusters pending (quack)",
            "2.5 % of launches under a co-tenant; nothing may be lost",
            f"each of {len(tiles)} tiles {'once' if set(ran.tolist()) == {1} else 'NOT once'}; "
            f"declining 2.5 % of requests costs {lost:.1%} where no cluster start is charged",
        ),
    ]


# the document


def sections() -> dict[str, str]:
    """The generated parts of the document, by the name of their markers."""
    rows = list(comparisons())
    return {
        "score": _score_table(rows),
        "listed": _tables(rows, "listed"),
        "misses": _misses(rows),
        "more": _tables(rows, "more"),
        "facts": _table(("published", "value", "model"), facts()),
        "h200": _h200_table(),
    }


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(cell) for cell in row)} |" for row in rows]
    return "\n".join(lines)


def _score_table(rows: list[Comparison]) -> str:
    groups = {
        "results that the project set out to reproduce": [r for r in rows if r.scope == "listed"],
        "further results of the same authors": [r for r in rows if r.scope == "more"],
        "all": rows,
    }
    cells = []
    for name, members in groups.items():
        found = score(members)
        share = f"{found.close} of {found.comparisons} ({found.close_fraction:.0%})"
        cells.append((name, f"{found.signs} of {found.comparisons}", share))
    return _table(("comparisons", "signs right", "ratios within 10 %"), cells)


def _tables(rows: list[Comparison], scope: str) -> str:
    parts = []
    for table in published():
        if table["scope"] != scope:
            continue
        mine = [row for row in rows if row.table == table["title"]]
        head = ("comparison", "published", "model", "off", "sign", "within 10 %")
        parts.append(
            f"### {table['title']}\n\n"
            f"Device file: `{table['device']}`. Ties under {table['noise']:.0%}: {table['noise_why']}. "
            f"Source: {table['source']}.\n\n" + _table(head, [_cells(row) for row in mine])
        )
    return "\n\n".join(parts)


def _cells(row: Comparison) -> tuple[str, ...]:
    sign = ("tie, " if row.tie else "") + ("right" if row.sign_right else "**wrong**")
    close = "yes" if row.close else "**no**"
    return row.what, f"{row.published:.3f}", f"{row.model:.3f}", f"{row.off:+.1%}", sign, close


def _misses(rows: list[Comparison]) -> str:
    """Comparisons that are wrong in sign or size, by the reason that they share."""
    reasons: dict[str, list[Comparison]] = {}
    for row in rows:
        if row.scope == "listed" and not (row.sign_right and row.close):
            reasons.setdefault(row.why, []).append(row)
    lines = []
    for why, members in reasons.items():
        names = "; ".join(
            f"{row.what} (published {row.published:.3f}, model {row.model:.3f})" for row in members
        )
        lines.append(f"- **{why[:1].upper()}{why[1:]}.** {names}.")
    return "\n".join(lines) if lines else "None."


def _h200_table() -> str:
    rows = h200_rows()
    dense = [row for row in rows if not row.what.startswith("grouped")]
    error = float(np.mean([abs(row.off) for row in dense]))
    cells = [
        (r.what, r.plan, f"{r.measured_us:.1f}", f"{r.model_us:.1f}", f"{r.off:+.1%}") for r in rows
    ]
    table = _table(("problem", "the model's plan", "measured us", "model us", "off"), cells)
    return f"{table}\n\nMean absolute error of the {len(dense)} dense products: {error:.1%}."


def render(text: str) -> str:
    """The document with its generated parts replaced.

    Raises:
        ValueError: a marker is missing.
    """
    for name, body in sections().items():
        pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end: {name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"{DOC.name} has no part between the markers of {name!r}")
        text = pattern.sub(rf"\g<1>{_escaped(body)}\n\g<2>", text)
    return text


def _escaped(body: str) -> str:
    """As the replacement of a regular expression."""
    return body.replace("\\", r"\\")


def main() -> None:
    """Print, or write the document."""
    if "--write" in sys.argv[1:]:
        DOC.write_text(render(DOC.read_text(encoding="utf-8")), encoding="utf-8")
    for name, body in sections().items():
        print(f"== {name}\n{body}\n")


if __name__ == "__main__":
    main()

"""A plan as headings, paragraphs and tables: what every written form of the report says.

`text`, `markdown` and `page` only lay this out. Each number that is not the reader's own carries its kind:
[documented], [queried], [measured], [derived] or [assumed].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tilewright.plan_model import Plan, ResidencyRow
    from tilewright.residency import Residency


@dataclass(frozen=True, slots=True)
class Heading:
    """A section's title; level 1 is one of the five parts."""

    text: str
    level: int = 1


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text; `strong` for the answer."""

    text: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Code:
    """A command."""

    text: str


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of cells; numeric columns are right-aligned."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Figure:
    """Where a page draws; `name` says what. Text has the same numbers in the tables around it."""

    name: str


Block = Heading | Paragraph | Bullets | Code | Table | Figure


def plan_document(plan: Plan) -> Iterator[Block]:
    """The whole plan, the answer first."""
    yield from _conclusion(plan)
    yield from _schedule(plan)
    yield from _contract(plan)
    yield from _validation(plan)
    yield from _risks(plan)
    yield from _evidence(plan)


def part_document(path: str, found: Any) -> Iterator[Block]:
    """One part of a plan, under its name."""
    yield Heading(path)
    yield from _any(found)


def _conclusion(plan: Plan) -> Iterator[Block]:
    c = plan.conclusion
    yield Heading(f"Conclusion: {plan_subject(plan)}")
    yield Paragraph(c.summary, strong=True)
    yield Figure("answer")
    if c.because:
        yield Table(
            ("step", "over", "predicted", "gain", "model error"),
            tuple(
                (
                    g.chosen,
                    g.over,
                    f"{g.chosen_us:.1f} us instead of {g.over_us:.1f} us [derived]",
                    f"{g.gain:+.1%}",
                    f"{g.error:.0%}" + (" (inside)" if g.inside_error else ""),
                )
                for g in c.because
            ),
            frozenset({3, 4}),
        )
    if c.measure_these_two:
        yield Paragraph("Measure these two before relying on the difference:")
        yield Bullets(c.measure_these_two)
    if c.would_flip:
        yield Paragraph("What would flip it:")
        yield Figure("flips")
        yield Bullets(
            tuple(
                f"{f.value} [{f.kind}] of {_number(f.at)} (plausible {_number(f.low)} to {_number(f.high)}) "
                f"makes it {f.to}. Settled by: {f.experiment}"
                for f in c.would_flip
            )
        )
    elif c.applies:
        yield Paragraph("No assumed value flips it inside its plausible range.")
    if c.notes:
        yield Paragraph("Worth knowing:")
        yield Bullets(c.notes)


def plan_subject(plan: Plan) -> str:
    """The problem and the device, in a line."""
    return f"{_problem(plan)} on {plan.device['product']}"


def _problem(plan: Plan) -> str:
    p = plan.problem
    kind = p["kind"]
    if kind == "gemm":
        batch = f" x {p['batch']}" if p["batch"] > 1 else ""
        return f"GEMM {p['m']}x{p['n']}x{p['k']}{batch} {p['dtype']}"
    if kind == "grouped-gemm":
        shared = f"n {p['n']}, " + (f"k {p['k']}" if p["grouped"] == "m" else f"m {p['m']}")
        return (
            f"grouped GEMM, {len(p['counts'])} groups along {p['grouped'].upper()}, {sum(p['counts'])} rows, "
            f"{shared}, {p['dtype']}"
        )
    if kind == "attention":
        mask = "causal" if p["causal"] else "dense"
        return (
            f"{mask} attention forward, {len(p['seqlens'])} sequences, {sum(p['seqlens'])} tokens, "
            f"{p['heads']} heads ({p['kv_heads']} K/V), head dim {p['head_dim']}, {p['dtype']}"
        )
    return f"{plan.schedule.tiles} tiles"


def _schedule(plan: Plan) -> Iterator[Block]:
    s = plan.schedule
    yield Heading("Evidence: what was compared")
    yield Paragraph(
        "Options, fastest of each class and scheduler; all times [derived], launch latency apart:"
    )
    yield Table(
        ("option", "tile", "cluster", "scheduler", "us", ""),
        tuple(
            (
                o.option,
                o.tile,
                _shape(o.cluster_shape),
                o.scheduler,
                f"{o.predicted_us:.1f}",
                "chosen" if o.chosen else "",
            )
            for o in s.options
        ),
        frozenset({4}),
    )
    yield from _bound(plan)
    yield Heading("Schedulers", 2)
    yield Paragraph(
        f"Simulated [derived]: {s.tiles} tiles of {s.tile_cycles['mean']:.0f} cycles (spread "
        f"{s.tile_cycles['spread']:.1%}) on {s.resident_clusters} slots, {s.num_waves:.2f} waves:"
    )
    yield Figure("schedulers")
    yield Table(
        ("scheduler", "kernel us", "efficiency", "tail us", "tail", "fairness", "tiles min-max"),
        tuple(
            (
                name,
                f"{m['kernel_us']:.1f}",
                f"{m['efficiency']:.1%}",
                f"{m['tail_us']:.2f}",
                f"{m['tail_fraction']:.1%}",
                f"{m['fairness']:.3f}",
                f"{m['tiles_min']:.0f}-{m['tiles_max']:.0f}",
            )
            for name, m in s.schedulers.items()
        ),
        frozenset({1, 2, 3, 4, 5, 6}),
    )
    yield Figure("timeline")
    yield Paragraph("Around the number of slots, kernel us [derived]:")
    names = list(s.schedulers)
    yield Table(
        ("tiles", *names),
        tuple(
            (str(b.tiles), *(f"{b.schedulers[name]['kernel_us']:.1f}" for name in names))
            for b in s.boundary
        ),
        frozenset(range(1 + len(names))),
    )


def _bound(plan: Plan) -> Iterator[Block]:
    s, traffic = plan.schedule, plan.contract.traffic
    yield Heading("What bounds it", 2)
    if s.roofline:
        yield Figure("roofline")
        memory = s.roofline["memory_us"]
        shown = "unknown" if memory is None else f"{memory:.1f} us"
        yield Paragraph(
            f"Roofline floor {s.roofline['floor_us']:.1f} us (compute {s.roofline['compute_us']:.1f} us at the tensor "
            f"peak, memory {shown} for the compulsory bytes); the prediction is at {s.roofline['of_floor']:.0%} of it."
        )
    if "hbm_read_bytes" in traffic:
        saved = 1 - traffic["l2_bytes"] / max(traffic["l2_bytes_without_sharing"], 1)
        yield Paragraph(
            f"Bytes [derived]: HBM {_bytes(traffic['hbm_read_bytes'])} read, {_bytes(traffic['hbm_write_bytes'])} written "
            f"(compulsory {_bytes(traffic['compulsory_bytes'])}; A read {traffic['hbm_reads_of_a']:.2f} times, B "
            f"{traffic['hbm_reads_of_b']:.2f}); L2 {_bytes(traffic['l2_bytes'])}"
            + (f", {saved:.0%} less than without sharing in the cluster" if saved > 0 else "")
            + f"; SMEM {_bytes(traffic['smem_write_bytes'])} in, {_bytes(traffic['smem_read_bytes'])} read."
        )
    yield Paragraph("Candidates, the largest share of the predicted time first [derived]:")
    yield Table(
        ("candidate", "share", "for", "against", "decided by"),
        tuple(
            (
                b.bound,
                "unknown" if b.share is None else f"{b.share:.0%}",
                b.evidence_for,
                b.evidence_against,
                b.decides,
            )
            for b in s.bound
        ),
        frozenset({1}),
    )


def _contract(plan: Plan) -> Iterator[Block]:
    c = plan.contract
    yield Heading("Contract")
    yield Paragraph("Launch: " + _pairs(c.launch))
    yield Heading("Residency of this kernel by cluster size", 2)
    yield Figure("residency")
    yield from residency_blocks(c.residency)
    if rasters := c.traffic.get("rasters"):
        yield Heading("Order of tiles", 2)
        yield Table(
            ("along", "strip", "A read", "B read", "HBM reads", ""),
            tuple(
                (
                    r["along"],
                    str(r["swizzle"]),
                    f"{r['reads_of_a']:.2f}",
                    f"{r['reads_of_b']:.2f}",
                    _bytes(r["hbm_read_bytes"]),
                    "chosen" if r["chosen"] else "",
                )
                for r in rasters
            ),
            frozenset({1, 2, 3, 4}),
        )
    yield Heading("Tile map", 2)
    yield Figure("tile_map")
    yield Paragraph(_pairs({k: v for k, v in c.tile_map.items() if k != "ctas"}))
    if ctas := c.tile_map.get("ctas"):
        yield Table(
            (
                "rank",
                "(x, y)",
                "rows",
                "columns",
                "K",
                "loads A rows",
                "to mask",
                "loads B columns",
                "to mask",
                "pair",
            ),
            tuple(
                (
                    str(t["rank"]),
                    f"({t['x']}, {t['y']})",
                    _range(t["rows"]),
                    _range(t["columns"]),
                    _range(t["k"]),
                    _range(t["a_rows"]),
                    t["a_mask"],
                    _range(t["b_columns"]),
                    t["b_mask"],
                    ("leader" if t["leader"] else "follower") if t["pair"] else "",
                )
                for t in ctas
            ),
            frozenset({0}),
        )
    for title, value in (
        ("Roles", c.roles),
        ("Barrier ledger", c.barriers),
        ("Phases", c.phases),
        ("Slots", c.slots),
        ("Multicast", c.multicast),
        ("DSMEM", c.dsmem),
        ("Dynamic scheduling", c.clc),
        ("MMA", c.mma),
        ("TMEM", c.tmem),
        ("SMEM", c.smem),
    ):
        if value:
            yield Heading(title, 2)
            yield from _any(value)


def _validation(plan: Plan) -> Iterator[Block]:
    yield Heading("Minimal validation")
    v = plan.validation
    for title, checks in (
        ("Correctness", v.correctness),
        ("Boundaries", v.boundary),
        ("Experiment", v.experiment),
    ):
        if checks:
            yield Paragraph(f"{title}:")
        for check in checks:
            yield Code(check.command)
            yield Paragraph(f"refuted if {check.refuted_if}")


def _risks(plan: Plan) -> Iterator[Block]:
    yield Heading("Risks and fallback")
    yield Table(
        ("risk", "when", "fallback", "planned path needs"),
        tuple((r.risk, r.when, r.fallback, r.enable_condition) for r in plan.risks),
    )


def _evidence(plan: Plan) -> Iterator[Block]:
    """Every number with its kind; sources are listed once, by number."""
    yield Heading("Numbers and where they come from")
    yield from sourced_table(
        ("name", "value", "unit", "kind", "used for"),
        [((e.name, _number(e.value), e.unit, e.kind, e.used_for), e.source) for e in plan.evidence],
    )


def residency_blocks(rows: Sequence[Residency | ResidencyRow]) -> Iterator[Block]:
    """Clusters resident by size, and what turns an interval into a number."""
    yield Table(
        ("cluster", "clusters resident", "CTAs an SM", "SMs used", "attribute", "limited by"),
        tuple(
            (
                str(r.cluster_size),
                str(r.resident_clusters)
                if r.resident_clusters == r.resident_clusters_max
                else f"{r.resident_clusters} to {r.resident_clusters_max}",
                str(r.ctas_per_sm),
                str(r.sms_used),
                "" if r.portable else "non-portable",
                r.limited_by,
            )
            for r in rows
        ),
        frozenset({0, 2, 3}),
    )
    decides = sorted({r.decides for r in rows if r.decides})
    if decides:
        yield Bullets(tuple(f"decided by {what}" for what in decides))


def sourced_table(
    columns: tuple[str, ...], rows: Sequence[tuple[tuple[str, ...], str]]
) -> Iterator[Block]:
    """Rows that end in the number of their source, and the sources, each once."""
    numbers: dict[str, int] = {}
    cells = [(*row, f"[{numbers.setdefault(source, len(numbers) + 1)}]") for row, source in rows]
    yield Table((*columns, "source"), tuple(cells), frozenset({1}))
    yield Bullets(tuple(f"[{number}] {source}" for source, number in numbers.items()))


def _any(value: Any) -> Iterable[Block]:
    """Lists of like mappings as a table, mappings as lines, nested ones below a name."""
    if isinstance(value, (list, tuple)):
        if value and all(isinstance(row, dict) for row in value):
            yield _table(value)
        elif value:
            yield Bullets(tuple(_cell(item) for item in value))
        return
    if not isinstance(value, dict):
        yield Paragraph(_cell(value))
        return
    flat = {k: v for k, v in value.items() if not _is_table(v)}
    if flat:
        yield Bullets(
            tuple(f"{_words(k)}: {_cell(v)}" for k, v in flat.items() if v not in (None, ""))
        )
    for name, rows in value.items():
        if _is_table(rows):
            yield Paragraph(f"{_words(name)}:")
            yield _table(rows)


def _is_table(value: Any) -> bool:
    return (
        isinstance(value, (list, tuple))
        and len(value) > 0
        and all(isinstance(row, dict) for row in value)
    )


def _table(rows: Sequence[dict[str, Any]]) -> Table:
    columns: dict[str, None] = {}
    for row in rows:
        for name, cell in row.items():
            if cell not in (None, "", [], {}, ()):
                columns.setdefault(name)
    return Table(
        tuple(_words(name) for name in columns),
        tuple(tuple(_cell(row.get(name, "")) for name in columns) for row in rows),
    )


def _words(name: str) -> str:
    return name.replace("_", " ")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return ", ".join(f"{_words(str(k))} {_cell(v)}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(item) for item in value)
    return _number(value)


def _pairs(values: dict[str, Any]) -> str:
    return "; ".join(
        f"{_words(k)} {_cell(v)}" for k, v in values.items() if v not in (None, "", {}, [])
    )


def _shape(shape: Sequence[int]) -> str:
    return f"({', '.join(map(str, shape))})"


def _range(pair: Sequence[int]) -> str:
    return f"[{pair[0]}, {pair[1]})"


def _bytes(count: float) -> str:
    """Decimal bytes, as bandwidths are."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.2f} {unit}"
    return f"{count:.0f} B"


def _number(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_number(v) for v in value)
    return str(value)

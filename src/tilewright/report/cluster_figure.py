"""One cluster's tile of D, drawn: who owns which part, who loads which rows of A and columns of B, for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.report.figures import figure

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.plan_model import Plan

Cta = dict[str, Any]
WIDE, LEFT, TOP = 300.0, 128.0, 78.0
"""Of D, of A's column and of B's row, in the drawing's units."""

CHARACTER, AROUND = 7.6, 6.0
"""Width of one, and the room beside a label, in the same."""


class _Rect(NamedTuple):
    x: float
    y: float
    width: float
    height: float

    def element(self) -> str:
        return (
            f'<rect x="{self.x + 1:.1f}" y="{self.y + 1:.1f}" width="{max(self.width - 2, 1):.1f}" '
            f'height="{max(self.height - 2, 1):.1f}"/>'
        )

    def label(self, words: str, below: float = 4, name: str = "") -> str:
        x, y = self.x + self.width / 2, self.y + self.height / 2 + below
        return f'<text{name and f" class={name}"} x="{x:.1f}" y="{y:.1f}">{words}</text>'


class _Piece(NamedTuple):
    """A slice of an operand: who loads it, and who has it then."""

    low: int
    high: int
    loaders: list[int]
    receivers: list[int]


def tile_map(plan: Plan) -> str:
    """The drawing; empty where the plan has no map of CTAs."""
    ctas: list[Cta] = plan.contract.tile_map.get("ctas") or []
    if not ctas:
        return ""
    rows, columns = max(t["rows"][1] for t in ctas), max(t["columns"][1] for t in ctas)
    tall = min(max(WIDE * rows / columns, 110.0), 330.0)
    down, across = tall / rows, WIDE / columns
    parts = [
        f'<text class="head" x="{LEFT / 2}" y="{TOP - 10}">A</text>',
        f'<text class="head" x="{LEFT + WIDE / 2}" y="14">B</text>',
    ]
    for piece in _pieces(ctas, "a_rows", "a_mask"):
        box = _Rect(4, TOP + down * piece.low, LEFT - 14, down * (piece.high - piece.low))
        parts.append(_operand("a", "rows", piece, box))
    for piece in _pieces(ctas, "b_columns", "b_mask"):
        box = _Rect(LEFT + across * piece.low, 22, across * (piece.high - piece.low), TOP - 32)
        parts.append(_operand("b", "columns", piece, box))
    for t in ctas:
        (x0, x1), (y0, y1) = t["columns"], t["rows"]
        box = _Rect(LEFT + across * x0, TOP + down * y0, across * (x1 - x0), down * (y1 - y0))
        parts.append(_cta(t, box))
    width, height = LEFT + WIDE + 4, TOP + tall + 4
    drawing = (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" style="max-width:{width * 1.15:.0f}px" role="group" '
        f'aria-label="One cluster tile of D, {rows} by {columns}">{"".join(parts)}</svg>'
    )
    pair = "; the MMA of a pair reads B from both of its CTAs" if ctas[0]["pair"] else ""
    caption = (
        f"One cluster's tile of D, {rows} x {columns}. Left and above: slices of A and B, with the CTA that loads each "
        f"and, after the arrow, those that receive it{pair}. Point at a CTA to see what it uses."
    )
    return figure("tile-map", caption, drawing)


def _cta(t: Cta, box: _Rect) -> str:
    rank = t["rank"]
    role = (" leader" if t["leader"] else " follower") if t["pair"] else ""
    mates = " ".join(map(str, t["pair"])) or str(rank)
    rows, columns = t["rows"], t["columns"]
    words = _fitting(box.width, f"CTA {rank}{role}", f"CTA {rank}", str(rank))
    return (
        f'<g class="cta" tabindex="0" data-cta="{rank}" data-mates="{mates}">'
        f"<title>CTA {rank}{role}: rows {rows[0]} to {rows[1]}, columns {columns[0]} to {columns[1]} of D</title>"
        f"{box.element()}{box.label(words)}</g>"
    )


def _operand(operand: str, axis: str, piece: _Piece, box: _Rect) -> str:
    by, to = (",".join(map(str, ranks)) for ranks in (piece.loaders, piece.receivers))
    alone = piece.loaders == piece.receivers
    words = f"CTA {by}" if alone else f"CTA {by} → {to}"
    short = by if alone else f"{by}→{to}"
    extent = f"{axis[:3] if axis == 'columns' else axis} {piece.low}-{piece.high}"
    second = _fitting(box.width, extent, "") if box.height > 34 else ""
    first = _fitting(box.width, words, short, by, "")
    labels = box.label(first or by, 1 if second else 4, "" if first else "small")
    if second:
        labels += box.label(second, 15, "small")
    return (
        f'<g class="operand" data-operand="{operand}" data-to="{to.replace(",", " ")}">'
        f"<title>{axis} {piece.low} to {piece.high} of {operand.upper()}: loaded by CTA {by}, received by CTA {to}"
        f"</title>{box.element()}{labels}</g>"
    )


def _pieces(ctas: Sequence[Cta], slice_: str, mask: str) -> list[_Piece]:
    found: dict[tuple[int, int], _Piece] = {}
    for t in ctas:
        low, high = t[slice_]
        before = found.get((low, high), _Piece(low, high, [], []))
        reached = [other["rank"] for other in ctas if int(t[mask], 16) >> other["rank"] & 1]
        found[low, high] = before._replace(
            loaders=[*before.loaders, t["rank"]],
            receivers=sorted({*before.receivers, *reached}),
        )
    return [piece for _, piece in sorted(found.items())]


def _fitting(width: float, *choices: str) -> str:
    """The first text that fits the width; the last one if none does."""
    return next(
        (words for words in choices if CHARACTER * len(words) + AROUND <= width), choices[-1]
    )

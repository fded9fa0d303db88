"""A plan as one page: its document, with the drawings, the runs behind it and the plan's own JSON inside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.report import figures
from tilewright.report.cluster_figure import tile_map
from tilewright.report.document import plan_document, plan_subject
from tilewright.report.drawn import pack, pack_timeline, timeline_figure
from tilewright.report.page import KINDS_LEGEND, heading, render_blocks, render_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tilewright.plan_model import Plan
    from tilewright.tile_map import TileMap
    from tilewright.timeline import Timeline


def render_plan_page(
    plan: Plan, timelines: Sequence[Timeline], tiles: TileMap | None = None
) -> str:
    """The report as HTML.

    Args:
        timelines: of the schedulers, the chosen one first; empty leaves the timeline out.
        tiles: the map, where the problem is a matrix product, so that tiles have coordinates.
    """
    drawn = {
        "answer": figures.answer(plan),
        "flips": figures.flips(plan.conclusion.would_flip, plan),
        "roofline": figures.roofline(plan),
        "schedulers": figures.schedulers(plan),
        "residency": figures.residency(plan),
        "tile_map": _beside(tile_map(plan), _raster_figure() if tiles and timelines else ""),
    }
    if timelines:
        drawn["timeline"] = heading("Timeline", 2) + timeline_figure(timelines)
    body = render_blocks(plan_document(plan), drawn, first="Conclusion")
    data: dict[str, Any] = {"plan": plan.model_dump(mode="json")}
    if timelines:
        data["timelines"] = [pack_timeline(each) for each in timelines]
    if tiles and timelines:
        data["tiles"] = _coordinates(tiles, plan.schedule.tiles - _simulated(timelines))
    return render_page(
        plan_subject(plan),
        body,
        lead=KINDS_LEGEND,
        scripts=("page.js", "timeline.js") if timelines else ("page.js",),
        data=data,
    )


def _beside(*drawings: str) -> str:
    return f'<div class="beside">{"".join(drawings)}</div>'


def _simulated(timelines: Sequence[Timeline]) -> int:
    return len({span.tile for span in timelines[0].spans})


def _coordinates(tiles: TileMap, skipped: int) -> dict[str, Any]:
    """Of each simulated tile: its rows and columns of cluster tiles, groups one below the other."""
    found = tiles.coordinates()[skipped:]
    tall = np.tile(tiles.m_tiles, tiles.groups.repeat)
    tops = np.concatenate([[0], np.cumsum(tall)])
    x, y, _ = tiles.cluster_shape
    return {
        "count": len(found),
        "rows": int(tops[-1]),
        "columns": int(tiles.n_tiles.max(initial=0)),
        "tile_m": tiles.cta_tile.m * x,
        "tile_n": tiles.cta_tile.n * y,
        "groups": len(tall),
        "packed": pack([found[:, 0], found[:, 1], found[:, 2], tops[found[:, 0]] + found[:, 1]]),
    }


def _raster_figure() -> str:
    return (
        '<figure class="raster" id="raster"><canvas role="img" aria-label="Cluster tiles of D in the order of the '
        'raster: done, in flight and waiting at one moment"></canvas><figcaption>D in cluster tiles at <output>'
        "half the run</output>: filled are done, outlined in flight, empty wait. The moment is where the pointer or the "
        "selection is in the timeline.</figcaption></figure>"
    )

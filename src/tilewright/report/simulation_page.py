"""Simulated tile costs as one page: the schedulers side by side and who did which tile when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewright.report.drawn import pack_timeline, timeline_figure
from tilewright.report.figures import scheduler_bars
from tilewright.report.page import KINDS_LEGEND, heading, render_blocks, render_page
from tilewright.report.tables import simulation_document, simulation_subject

if TYPE_CHECKING:
    from tilewright.launch import Simulation


def render_simulation_page(found: Simulation) -> str:
    """The page of a simulation that kept its timelines."""
    bars: dict[str, tuple[float, float, float, float]] = {
        name: (m.makespan_us, m.tail_us, m.tail_fraction, m.fairness)
        for name, m in found.metrics.items()
    }
    body = render_blocks(
        simulation_document(found),
        {
            "schedulers": scheduler_bars("Makespan", bars),
            "timeline": heading("Timeline", 2) + timeline_figure(found.timelines),
        },
        first="Result",
    )
    return render_page(
        simulation_subject(found),
        body,
        lead=KINDS_LEGEND,
        scripts=("page.js", "timeline.js"),
        data={
            "simulation": found.as_dict(),
            "timelines": [pack_timeline(each) for each in found.timelines],
        },
    )

"""Timelines as a page carries them: packed columns, which `timeline.js` unpacks and draws.

Columns are 32-bit integers, compressed: times in ticks of `tick_ns`, rows sorted by slot and time. The
browser inflates them itself, so 20,000 tiles are some tens of kB in the file.
"""

from __future__ import annotations

import base64
import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.report.page import chip

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tilewright.timeline import Timeline

MOST_TICKS = 2**31 - 1


def pack(columns: Sequence[NDArray[np.int64]]) -> str:
    """Columns of 32-bit integers, little-endian, one after the other, as deflated base64."""
    raw = b"".join(column.astype("<i4").tobytes() for column in columns)
    return base64.b64encode(zlib.compress(raw, 9)).decode("ascii")


def pack_timeline(timeline: Timeline) -> dict[str, Any]:
    """What `timeline.js` reads of one run."""
    spans = np.array(
        [(s.slot, s.start_ns, s.end_ns, s.tile, s.worker) for s in timeline.spans], dtype=np.int64
    ).reshape(-1, 5)
    spans = spans[np.lexsort((spans[:, 1], spans[:, 0]))]
    asks = np.array(
        [(r.slot, r.ask_ns, r.answer_ns, r.tile) for r in timeline.requests], dtype=np.int64
    ).reshape(-1, 4)
    asks = asks[np.lexsort((asks[:, 1], asks[:, 0]))]
    last = max([timeline.end_ns, *asks[:, 2].tolist()])
    tick = max(1, -(-last // MOST_TICKS))
    first_of_slot = np.searchsorted(spans[:, 0], np.arange(timeline.slots + 1))
    first_ask = np.searchsorted(asks[:, 0], np.arange(timeline.slots + 1))
    return {
        "source": timeline.source,
        "scheduler": timeline.scheduler,
        "slots": timeline.slots,
        "ctas": timeline.ctas_per_slot,
        "tick_ns": tick,
        "start": timeline.start_ns // tick,
        "end": -(-timeline.end_ns // tick),
        "spans": len(spans),
        "asks": len(asks),
        "columns": pack(
            [
                first_of_slot,
                *(spans[:, c] // (tick if c in {1, 2} else 1) for c in (1, 2, 3, 4)),
                first_ask,
                *(asks[:, c] // (tick if c in {1, 2} else 1) for c in (1, 2, 3)),
            ]
        ),
        "holds": [
            [h.slot, h.start_ns // tick, None if h.end_ns is None else h.end_ns // tick]
            for h in sorted(timeline.holds, key=lambda h: (h.start_ns, h.slot))
        ],
    }


CAPTION = (
    f"Simulated {chip('derived')}. A row a slot (room for one resident cluster), a box a tile. Hatched: the tail, where "
    "workers idle for good. At the right each slot's busy time: equal lengths are fairness 1. Drag moves, Ctrl and wheel "
    "or pinch zooms, a double click shows one tile."
)


def timeline_figure(timelines: Sequence[Timeline]) -> str:
    """The element that `timeline.js` fills; its data is the page's JSON `timelines`."""
    names = [f"{t.scheduler}" for t in timelines]
    choices = "".join(
        f'<label><input type="radio" name="run" value="{i}"{" checked" if i == 0 else ""}> {name}</label>'
        for i, name in enumerate(names)
    )
    buttons = "".join(
        f'<button type="button" data-do="{what}" title="{title} (key {key})">{name}</button>'
        for what, name, key, title in (
            ("fit", "all", "0", "The whole run"),
            ("tail", "tail", "t", "The tail"),
            ("tile", "tile", "Enter", "The selected tile"),
            ("in", "+", "+", "Zoom in"),
            ("out", "&minus;", "-", "Zoom out"),
        )
    )
    return (
        '<figure class="timeline" id="workers">'
        f'<div class="controls"><fieldset><legend>scheduler</legend>{choices}</fieldset>'
        f'<span class="buttons">{buttons}</span>'
        '<label class="claims"><input type="checkbox" data-do="claims" checked> requests for work</label></div>'
        '<p class="reading" aria-live="polite"></p>'
        '<div class="stage"><canvas tabindex="0" role="application" aria-roledescription="timeline" '
        'aria-label="Workers by time. Arrow keys go from tile to tile, plus and minus zoom, Enter shows one tile, '
        '0 shows all, t shows the tail."></canvas><div class="tip" hidden></div></div>'
        '<p class="picked" aria-live="polite">No tile selected: click one, or use the arrow keys.</p>'
        "<noscript><p>The timeline needs JavaScript; its numbers are in the table above.</p></noscript>"
        f"<figcaption>{CAPTION}</figcaption></figure>"
    )

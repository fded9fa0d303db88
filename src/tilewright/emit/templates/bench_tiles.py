"""What the plan predicted against what this GPU measures: every scheduler on the tiles of tile_arguments.py.

    python bench_tiles.py [--samples 9] [--gpu 0] [--times measured.csv]

Times are medians of launches back to back in a CUDA graph. The plan is refuted, and the exit code 1, when
another scheduler is faster by more than the model's error. --times writes what each tile took, for
`tilewright simulate measured.csv` or `tilewright plan tiles measured.csv`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from arrays import LaunchError
from driver import Cuda
from paths import read_constants
from tile_arguments import make_arguments
from tiles import Tiles, read_times

CONSTANTS = read_constants()
ERROR = 0.03
"""Of a predicted ratio between two schedulers of the same tiles: measured on an H200."""


class Row(NamedTuple):
    """A kernel's times in microseconds; None where it was not predicted, or does not run."""

    name: str
    predicted: float | None
    us: float | None
    note: str


def measure(cuda: Any, samples: int) -> list[Row]:
    """Each path and scheduler that runs here."""
    arguments, rows = make_arguments(cuda), []
    for entry in [*CONSTANTS["paths"], *CONSTANTS["candidates"]]:
        name, scheduler = str(entry["name"]), str(entry["scheduler"])
        label = name if name == scheduler else f"{name} ({scheduler})"
        try:
            launch = Tiles(path=name, cuda=cuda).bind(arguments)
            us = cuda.time_us(launch, samples=samples)
        except LaunchError as error:
            rows.append(Row(label, entry["predicted_us"], None, str(error).splitlines()[0]))
        else:
            rows.append(Row(label, entry["predicted_us"], us, ""))
    return rows


def tile_times(cuda: Any) -> np.ndarray[Any, Any]:
    """Microseconds of each tile: from the first of its CTAs that began to the last that ended."""
    tiles = Tiles(cuda=cuda, timeline=True)
    number, size = int(CONSTANTS["problem"]["num_tiles"]), tiles.numbers["cluster_size"]
    times = tiles.timeline_array(number)
    tiles.bind(make_arguments(cuda), times=times)()
    rows = read_times(times).reshape(number, size)
    return np.asarray((rows["end_ns"].max(axis=1) - rows["start_ns"].min(axis=1)) / 1e3)


def verdict(rows: list[Row]) -> tuple[str, bool]:
    """Whether the plan's scheduler is the fastest, and whether that refutes the plan."""
    chosen = rows[0]
    others = [row for row in rows[len(CONSTANTS["paths"]) :] if row.us is not None]
    if chosen.us is None or not others:
        return "no verdict: the plan's own path or its options do not run here", False
    best = min(others, key=lambda row: row.us or 0.0)
    lead = chosen.us / (best.us or chosen.us) - 1
    if lead <= ERROR:
        return (
            f"holds: {chosen.name} is the fastest, or as fast as {best.name} within {ERROR:.0%}",
            False,
        )
    return (
        f"refuted: {best.name} is faster than {chosen.name} by {lead:.1%}, over {ERROR:.0%}",
        True,
    )


def main() -> int:
    """Print the table; 1 when the plan is refuted, 2 when nothing runs here."""
    parser = argparse.ArgumentParser(description="predicted against measured")
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--times", type=Path)
    given = parser.parse_args()
    try:
        cuda = Cuda(given.gpu)
        rows = measure(cuda, given.samples)
        if given.times is not None:
            np.savetxt(given.times, tile_times(cuda), fmt="%.3f", header="cost_us", comments="")
    except LaunchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{cuda.name}, driver of CUDA {cuda.driver_version}; planned for {CONSTANTS['planned_for']}"
    )
    print(f"{'kernel':<36} {'predicted us':>12} {'measured us':>12}")
    for row in rows:
        before = "" if row.predicted is None else f"{row.predicted:.1f}"
        seen = "-" if row.us is None else f"{row.us:.1f}"
        print(f"{row.name:<36} {before:>12} {seen:>12}  {row.note}".rstrip())
    says, refuted = verdict(rows)
    print(says)
    return int(refuted)


if __name__ == "__main__":
    sys.exit(main())

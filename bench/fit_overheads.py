"""Fit the four scheduler overheads of an H200 that were not measured alone; print them and the errors.

    python bench/fit_overheads.py

Input: the 232 undisturbed launches of tests/data/h200/schedule.csv; the method is tilewright.run.fit. The
launches beside 33 busy SMs are not used: they are a check.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.device import load
from tilewright.run.fit import Launch, errors_of, fit_overheads

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = Path(__file__).parent.parent / "tests" / "data" / "h200"


def read_costs() -> dict[str, list[int]]:
    """Tile costs by file name; `NxC` stands for N tiles of C cycles, `_desc` lists are sorted ones."""
    costs: dict[str, list[int]] = {}
    with (DATA / "schedule_costs.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            tiles: list[int] = []
            for word in row["cost_cycles"].split():
                count, _, cost = word.rpartition("x")
                tiles += [int(cost)] * int(count or 1)
            costs[row["costs"]] = tiles
            costs[row["costs"].replace("_given", "_desc")] = sorted(tiles, reverse=True)
    return costs


def read_launches() -> list[Launch]:
    """The measured launches."""
    costs = read_costs()
    with (DATA / "schedule.csv").open(encoding="utf-8", newline="") as file:
        return [
            Launch(
                row["scheduler"],  # type: ignore[arg-type]
                tuple(costs[row["costs"]]),
                int(row["cluster"]),
                int(row["resident_clusters"]),
                float(row["makespan_us"]),
                int(row["prologue_cycles"]),
                int(row["busy_sms"]),
            )
            for row in csv.DictReader(file)
        ]


def describe(name: str, found: NDArray[np.float64]) -> str:
    """One line of an error table."""
    mean, worst = float(np.abs(found).mean()), float(np.abs(found).max())
    return f"{name:42}{len(found):5} rows   mean {mean:6.2%}   worst {worst:6.2%}   bias {found.mean():+.2%}"


def main() -> None:
    """Print the fit and its errors."""
    launches, device = read_launches(), load("h200")
    calm = [launch for launch in launches if not launch.busy_sms]
    fitted: dict[str, Any] = dict(fit_overheads(calm, device))
    for name, value in fitted.items():
        print(f"{name} = {value:g}   (device file: {getattr(device, name)})")
    device = replace(device, **fitted)
    for cluster in (1, 4):
        for scheduler in ("single_tile", "static", "static_blocked", "dynamic_atomic"):
            some = [c for c in calm if (c.cluster, c.scheduler) == (cluster, scheduler)]
            print(describe(f"cluster {cluster}, {scheduler}", errors_of(some, device)))
    print(describe("all undisturbed", errors_of(calm, device)))
    held = [launch for launch in launches if launch.busy_sms]
    print(describe("busy SMs, not fitted", errors_of(held, device)))


if __name__ == "__main__":
    main()

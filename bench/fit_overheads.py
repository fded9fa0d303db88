"""Fit the four scheduler overheads of an H200 that were not measured alone; print them and the errors.

    python bench/fit_overheads.py

Input: the 232 undisturbed launches of tests/data/h200/schedule.csv. The cluster barrier and the interval between
two CTA launches are taken as measured (devices/h200.toml). The fit minimises the mean absolute relative
error of the makespan, by reweighted least squares on finite differences. The launches beside 33 busy
SMs are not used: they are a check.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.device import Device, load
from tilewright.schedule import overheads_for
from tilewright.sim import Busy, Disturbance, simulate

DATA = Path(__file__).parent.parent / "tests" / "data" / "h200"
FITTED = (
    "tile_overhead_cycles",
    "cluster_tile_cycles",
    "queue_fetch_cycles",
    "cta_turnover_cycles",
)
START = (100.0, 500.0, 1000.0, 1000.0)
STEP_CYCLES = 40.0

Row = dict[str, str]


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


def read_rows() -> list[Row]:
    """The measured launches."""
    with (DATA / "schedule.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def makespan_us(row: Row, tiles: list[int], device: Device) -> float:
    """What the simulator says of a measured launch."""
    overheads = overheads_for(device, int(row["cluster"]), int(row["prologue_cycles"]))
    busy = Disturbance(busy=(Busy(slots=int(row["busy_sms"])),))
    run = simulate(
        row["scheduler"],  # type: ignore[arg-type]
        tiles,
        int(row["resident_clusters"]),
        overheads=overheads,
        disturbance=busy,
    )
    return device.cycles_to_us(run.makespan_cycles)


def errors(rows: list[Row], costs: dict[str, list[int]], device: Device) -> np.ndarray:
    """Relative errors of the simulated makespans."""
    return np.array(
        [
            makespan_us(row, costs[row["costs"]], device) / float(row["makespan_us"]) - 1
            for row in rows
        ]
    )


def fit(rows: list[Row], costs: dict[str, list[int]], device: Device) -> dict[str, Any]:
    """The fitted overheads, to 5 cycles."""
    values = np.array(START)

    def at(point: np.ndarray) -> np.ndarray:
        return errors(
            rows, costs, replace(device, **dict(zip(FITTED, point.tolist(), strict=True)))
        )

    for _ in range(15):
        here = at(values)
        slopes = [(at(values + STEP_CYCLES * unit) - here) / STEP_CYCLES for unit in np.eye(4)]
        weight = np.sqrt(1 / np.maximum(np.abs(here), 1e-3))
        step, *_ = np.linalg.lstsq((np.array(slopes) * weight).T, -here * weight, rcond=None)
        values += step
    return dict(zip(FITTED, (5.0 * np.round(values / 5)).tolist(), strict=True))


def describe(name: str, found: np.ndarray) -> str:
    """One line of an error table."""
    mean, worst = float(np.abs(found).mean()), float(np.abs(found).max())
    return f"{name:42}{len(found):5} rows   mean {mean:6.2%}   worst {worst:6.2%}   bias {found.mean():+.2%}"


def main() -> None:
    """Print the fit and its errors."""
    rows, costs, device = read_rows(), read_costs(), load("h200")
    calm = [row for row in rows if row["busy_sms"] == "0"]
    fitted = fit(calm, costs, device)
    for name, value in fitted.items():
        print(f"{name} = {value:g}   (device file: {getattr(device, name)})")
    device = replace(device, **fitted)
    for cluster in ("1", "4"):
        for scheduler in ("single_tile", "static", "static_blocked", "dynamic_atomic"):
            some = [r for r in calm if r["cluster"] == cluster and r["scheduler"] == scheduler]
            print(describe(f"cluster {cluster}, {scheduler}", errors(some, costs, device)))
    print(describe("all undisturbed", errors(calm, costs, device)))
    held = [row for row in rows if row["busy_sms"] != "0"]
    print(describe("busy SMs, not fitted", errors(held, costs, device)))


if __name__ == "__main__":
    main()

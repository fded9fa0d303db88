"""Plans whose kernels are small enough to be emulated whole and large enough to fill an H200, and their recorded times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.draft import Options
from tilewright.kernels.abi import REQUESTS
from tilewright.kernels.harness import TIMELINE
from tilewright.problem import Gemm
from tilewright.timeline import of_times

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tilewright.sim import Scheduler
    from tilewright.timeline import Timeline

PROBLEM = Gemm(m=7 * 256, n=10 * 64, k=64)
TILES = 70
SLOTS = 66
"""Clusters of two that an H200 holds, one CTA an SM: the driver's word, tests/data/h200/occupancy.csv."""

SCHEDULERS: tuple[Scheduler, ...] = ("static", "dynamic_atomic")


def options(scheduler: Scheduler) -> Options:
    return Options(cluster_shape=(2, 1, 1), tile=(128, 64), scheduler=scheduler)


def as_rows(times: NDArray[np.void], requests: NDArray[np.void]) -> dict[str, Any]:
    """What a kernel kept, as JSON data: [start_ns, end_ns, sm, cta] by tile and rank, [ask_ns, answer_ns] by tile."""
    return {"tiles": times.tolist(), "requests": requests.tolist()}


def recorded(file: Path, scheduler: Scheduler) -> Timeline:
    """A run of a record that tests/gpu/record_times.py wrote."""
    rows = json.loads(file.read_text(encoding="utf-8"))["runs"][scheduler]
    times = np.array([[tuple(rank) for rank in tile] for tile in rows["tiles"]], TIMELINE)
    requests = np.array([tuple(row) for row in rows["requests"]], REQUESTS)
    return of_times(times, scheduler, requests, sms_per_slot=2)

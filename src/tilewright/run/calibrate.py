"""Measure spinning tiles under each scheduler on the GPU at hand, and fit a device's overheads to them.

Tiles of known cost (equal, lognormal, rising as causal attention's do), about as many as clusters are
resident and several times more, with clusters of one and of four. The makespan is read off the tiles' own
timestamps. Dynamic workers ask as a tile ends, as the model's do. The record holds every launch, so that the
fit replays without a GPU.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.kernels.harness import HarnessConfig
from tilewright.run.fit import Launch, errors_of, fit_overheads
from tilewright.run.measure import load_source, measure_clock
from tilewright.run.tiles import TileKernel

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tilewright.device import Device
    from tilewright.run.gpu import Gpu

CLUSTERS = (1, 4)
SCHEDULERS = ("single_tile", "static", "static_blocked", "dynamic_atomic")
SHAPES = ("equal", "lognormal", "rising")
MEAN_CYCLES = 20_000
SMEM_BYTES = 200_000
"""One CTA an SM on Hopper and Blackwell."""

THREADS = 128
REPEATS = 5

SPIN = """
#include "cluster.cuh"
// Spins, then meets the other CTAs of the tile: the model's tile ends with a cluster barrier.
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char*) {
    const long long start = clock64();
    const long long cycles = static_cast<const long long*>(arguments)[tile.id];
    while (clock64() - start < cycles) {
    }
    __syncwarp();
    cluster_sync();
}
"""


@dataclass(frozen=True, slots=True)
class CalibrationRecord:
    """Every launch of one calibration, and what was fitted.

    Attributes:
        clock_mhz: SM clock while one CTA spins; cycles of the tiles are converted with it.
        launches: makespans are medians of five.
        spreads: (largest - smallest) over the median of each launch's five.
        fitted: device values, and the mean and worst error of the launches with them.
    """

    gpu: str
    driver: str
    toolkit: str
    date: str
    command: str
    fitted_for: str
    clock_mhz: float
    launches: tuple[Launch, ...]
    spreads: tuple[float, ...]
    fitted: dict[str, float]
    mean_error: float
    worst_error: float

    def to_json(self) -> str:
        """The record as JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> CalibrationRecord:
        """What `to_json` wrote."""
        data: dict[str, Any] = json.loads(text)
        data["launches"] = tuple(
            Launch(**{**each, "tiles": tuple(each["tiles"])}) for each in data["launches"]
        )
        data["spreads"] = tuple(data["spreads"])
        return cls(**data)


def make_tiles(shape: str, count: int, seed: int) -> tuple[int, ...]:
    """Costs in cycles with a mean of about `MEAN_CYCLES`."""
    if shape == "lognormal":
        costs = np.random.default_rng(seed).lognormal(-0.125, 0.5, count) * MEAN_CYCLES
    elif shape == "rising":
        costs = 2.0 * MEAN_CYCLES * (np.arange(count) % 16 + 1) / 17
    else:
        costs = np.full(count, float(MEAN_CYCLES))
    return tuple(int(cost) for cost in costs)


def calibrate_gpu(gpu: Gpu, device: Device, command: str = "") -> CalibrationRecord:
    """Measure and fit; some seconds.

    Args:
        device: whose other values the model takes; `sm_clock_mhz` is measured here.
    """
    clock = measure_clock(gpu, load_source(gpu, "memory.cu")("spin")).value
    measured = list(_measure(gpu))
    launches = tuple(launch for launch, _ in measured)
    unit = replace(device, sm_clock_mhz=clock)
    fitted = fit_overheads(launches, unit)
    changed: dict[str, Any] = dict(fitted)
    errors = np.abs(errors_of(launches, replace(unit, **changed)))
    return CalibrationRecord(
        gpu=gpu.name,
        driver=gpu.driver_version,
        toolkit=gpu.toolkit,
        date=datetime.now(UTC).date().isoformat(),
        command=command,
        fitted_for=device.name,
        clock_mhz=clock,
        launches=launches,
        spreads=tuple(round(spread, 5) for _, spread in measured),
        fitted=fitted,
        mean_error=round(float(errors.mean()), 5),
        worst_error=round(float(errors.max()), 5),
    )


def _measure(gpu: Gpu) -> Iterator[tuple[Launch, float]]:
    for cluster, scheduler in product(CLUSTERS, SCHEDULERS):
        config = HarnessConfig(
            cluster,
            scheduler,
            threads=THREADS,
            smem_bytes=SMEM_BYTES,
            barrier="none",
            timeline=True,
            ask_ahead=False,
        )
        kernel = TileKernel(gpu, config, SPIN)
        resident = kernel.resident_clusters
        counts = (resident - 1, resident, resident + 1, 2 * resident + 1, 4 * resident + 3)
        for seed, (shape, count) in enumerate(product(SHAPES, counts)):
            tiles = make_tiles(shape, count, seed)
            costs = gpu.upload(np.asarray(tiles, np.int64))
            spans = [_makespan_us(kernel, count, costs) for _ in range(REPEATS)]
            gpu.free(costs)
            middle = median(spans)
            launch = Launch(scheduler, tiles, cluster, resident, round(middle, 3))  # type: ignore[arg-type]
            yield launch, (max(spans) - min(spans)) / middle


def _makespan_us(kernel: TileKernel, count: int, costs: int) -> float:
    """First tile's start to last tile's end."""
    times = kernel.timeline(count, costs)
    return float(times["end_ns"].max() - times["start_ns"].min()) / 1e3


def render_toml(record: CalibrationRecord, base: str) -> str:
    """A device file that overrides the fitted values of `base`."""
    how = (
        f"tilewright calibrate: fitted to {len(record.launches)} launches of spinning tiles, mean error "
        f"{record.mean_error:.2%}, worst {record.worst_error:.2%}"
    )
    where = f"{record.gpu}, driver {record.driver}, NVRTC {record.toolkit}, {record.date}"
    lines = [f"# {where}", "", f"base = {json.dumps(base)}"]
    for name, value in record.fitted.items():
        lines += [
            "",
            f"[{name}]",
            f"value = {value:g}",
            'unit = "cycles"',
            'kind = "measured"',
            f"source = {json.dumps(how)}",
            f"record = {json.dumps(where)}",
        ]
    return "\n".join(lines) + "\n"

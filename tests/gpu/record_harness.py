"""Run a tile function under every scheduler and cluster size, and count how often each tile ran.

python tests/gpu/record_harness.py FILE.json
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.kernels.harness import HarnessConfig
from tilewright.run.gpu import Gpu
from tilewright.run.tiles import TileKernel

SCHEDULERS = ("single_tile", "static", "static_blocked", "dynamic_atomic")
CLUSTERS = (1, 2, 4, 8, 16)
AROUND = (None, -1, 0, 1, 777)
"""Tiles beyond the resident clusters; None is a single tile."""

COUNTS = """
// Adds this thread's number through shared memory, so that a tile that starts before the last one's readers
// are done shows as a wrong sum; then counts the run.
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    int* own = reinterpret_cast<int*>(shared);
    own[threadIdx.x] = tile.id + threadIdx.x;
    __syncthreads();
    const int other = own[(threadIdx.x + 33) % tile.threads];
    const bool right = other == tile.id + (static_cast<int>(threadIdx.x) + 33) % tile.threads;
    const int all = __syncthreads_and(right);
    unsigned* counts = static_cast<unsigned*>(arguments);
    if (threadIdx.x == 0 && all) atomicAdd(&counts[tile.id * tile.size + tile.rank], 1);
}
"""


def run_case(gpu: Gpu, kernel: TileKernel, around: int | None) -> dict[str, Any]:
    """Two launches: every tile ran twice in every rank, and the counter was zero again between them."""
    tiles = 1 if around is None else kernel.resident_clusters + around
    size = kernel.config.cluster_size
    counts = gpu.upload(np.zeros((tiles, size), np.uint32))
    clusters = [kernel.launch(tiles, counts) for _ in range(2)]
    found = gpu.download(counts, (tiles, size), np.uint32)
    gpu.free(counts)
    return {
        "scheduler": kernel.config.scheduler,
        "cluster": size,
        "depth": kernel.config.depth,
        "tiles": tiles,
        "resident_clusters": kernel.resident_clusters,
        "grid_clusters": clusters[0],
        "passed": bool(np.all(found == 2)),
    }


def main() -> None:
    rows = []
    with Gpu() as gpu:
        for scheduler, cluster in product(SCHEDULERS, CLUSTERS):
            config = HarnessConfig(cluster, scheduler, depth=1 + cluster % 3, smem_bytes=4096)
            kernel = TileKernel(gpu, config, COUNTS)
            rows += [run_case(gpu, kernel, around) for around in AROUND]
        record = {
            "gpu": gpu.name,
            "driver": gpu.driver_version,
            "date": datetime.now(UTC).date().isoformat(),
            "rows": rows,
        }
    Path(sys.argv[1]).write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    good = sum(row["passed"] for row in rows)
    print(f"harness: {good} of {len(rows)} right")  # noqa: T201


if __name__ == "__main__":
    main()

"""The tile harness on the emulator: each tile done once by each rank, under every scheduler, order and decline.

TILEWRIGHT_SCHEDULES sets the schedules of each case; 3 by default, so that the suite stays quick.
"""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest

from tilewright.emulate import Buffers, Launch, prepare
from tilewright.emulate.explore import Expected, Explorer
from tilewright.kernels.harness import HarnessConfig, assemble, pack_arguments
from tilewright.ptx import parse_ptx
from tilewright.run.compiler import compile_source

pytestmark = pytest.mark.toolkit

SCHEDULES = int(os.environ.get("TILEWRIGHT_SCHEDULES", "3"))
RESIDENT = 3
COUNT = """
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    if (threadIdx.x == 0) atomicAdd(static_cast<unsigned*>(arguments) + tile.id * tile.size + tile.rank, 1u);
}
"""
SHARED = """
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    int* values = reinterpret_cast<int*>(shared);
    values[threadIdx.x] = tile.id * tile.size + tile.rank;
    %s
    if (threadIdx.x == 0) static_cast<int*>(arguments)[tile.id * tile.size + tile.rank] = values[tile.threads - 1];
}
"""
DEPTHS = {"dynamic_atomic": (1, 2, 3), "clc": (1, 2, 3)}
CASES = [
    (scheduler, size, depth)
    for scheduler in ("single_tile", "static", "static_blocked", "dynamic_atomic", "clc")
    for size, depth in itertools.product((1, 2, 4), DEPTHS.get(scheduler, (1,)))
]


def explorer(config: HarnessConfig, tiles: int, tile: str, expected: Any) -> Explorer:
    text = compile_source(assemble(config, tile), "harness.cu", "sm_100a").ptx
    done, counter = np.zeros(tiles * config.cluster_size, np.uint32), np.zeros(2, np.uint32)
    buffers = Buffers()
    argument = pack_arguments(
        tiles, arguments=buffers.address_of(done), work_counter=buffers.address_of(counter)
    )
    launch: Launch = prepare(
        parse_ptx(text),
        grid=config.grid_ctas(tiles, RESIDENT * config.cluster_size),
        block=config.threads,
        cluster=config.cluster_size,
        args=[argument],
        smem_bytes=config.launch_smem_bytes,
        buffers=buffers,
    )
    wanted = [Expected(done, expected, "tiles"), Expected(counter, np.zeros(2), "counter")]
    return Explorer(launch, expected=wanted)


@pytest.mark.parametrize(("scheduler", "size", "depth"), CASES)
def test_every_tile_is_done_once(scheduler: str, size: int, depth: int) -> None:
    config = HarnessConfig(size, scheduler, depth=depth, threads=64)
    for tiles in (RESIDENT - 1, RESIDENT, RESIDENT + 1, 2 * RESIDENT + 1):
        report = explorer(config, tiles, COUNT, np.ones(tiles * size)).explore(SCHEDULES)
        assert report.findings == [], (tiles, report.seed)


@pytest.mark.parametrize("scheduler", ["static", "clc"])
def test_the_barrier_between_tiles_is_needed_and_enough(scheduler: str) -> None:
    """A tile function that meets only inside: without a barrier between tiles its shared memory is reused
    while another warp still reads it."""
    tile = SHARED % "__syncthreads();"
    values = np.arange(7)
    cases: list[tuple[Any, set[str]]] = [("cta", set()), ("none", {"RACE"})]
    for barrier, found in cases:
        config = HarnessConfig(1, scheduler, threads=64, smem_bytes=256, barrier=barrier)
        report = explorer(config, 7, tile, values).explore(4, stop_at_failure=False)
        assert {f.rule for f in report.findings if f.rule != "RESULT"} == found, barrier

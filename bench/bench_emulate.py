"""How fast the emulator is: warp instructions a second, and one pair-MMA tile with cluster launch control.

    python bench/bench_emulate.py [--processes 2] [--schedules 60]

Needs the compiler of the `cuda` extra. The rows are what docs/emulate.md shows.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from tilewright.device import load
from tilewright.emulate import Buffers, prepare
from tilewright.emulate.explore import Expected, Explorer
from tilewright.kernels.config import GemmConfig
from tilewright.kernels.harness import HarnessConfig, assemble, pack_arguments
from tilewright.ptx import parse_ptx
from tilewright.run.check import GemmCase, GemmRun
from tilewright.run.compiler import compile_source
from tilewright.run.emulated import EmulatedGpu
from tilewright.run.gemm import GemmKernel
from tilewright.tile_map import Raster
from tilewright.tiling import make_tiling

ARITHMETIC = """.version 9.0
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 out)
.reqntid 256, 1, 1
{
    .reg .pred %p; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<3>;
    mov.u32 %r1, 0; mov.u32 %r2, %tid.x; cvt.rn.f32.u32 %f1, %r2; mov.f32 %f2, 0f3F800000;
LOOP:
    fma.rn.f32 %f2, %f2, %f1, %f1; add.f32 %f2, %f2, %f1; xor.b32 %r2, %r2, %r1; add.u32 %r1, %r1, 1;
    setp.lt.u32 %p, %r1, 500;
    @%p bra LOOP;
    ret;
}
"""
COUNT = """
__device__ void tilewright_tile(const Tile& tile, void* arguments, unsigned char* shared) {
    if (threadIdx.x == 0) atomicAdd(static_cast<unsigned*>(arguments) + tile.id * tile.size + tile.rank, 1u);
}
"""


def row(what: str, instructions: int, seconds: float) -> None:
    """One line of the table."""
    rate = instructions / seconds
    print(f"| {what} | {instructions} | {seconds:.2f} | {rate:.0f} |", flush=True)


def arithmetic() -> None:
    """Nothing but registers."""
    explorer = Explorer(prepare(ARITHMETIC, grid=2, args=[np.zeros(4, np.uint32)]))
    start = time.perf_counter()
    outcome = explorer.run(0)
    row("private arithmetic, 16 warps", outcome.instructions, time.perf_counter() - start)


def pair_gemm(*, races: bool) -> None:
    """One tile of an emitted kernel."""
    tiling = make_tiling(
        "bf16", 2, load("b200"), cta_tile=(128, 256), cluster_shape=(2, 1, 1), cta_group=2
    )
    config = GemmConfig(tiling, Raster("m", 8), "clc", schedule_depth=2)
    with EmulatedGpu("sm_100a", races=races) as gpu:
        run = GemmRun(gpu, GemmKernel(gpu, config), GemmCase(256, 256, 128))
        start = time.perf_counter()
        checked = run.check()
        seconds = time.perf_counter() - start
        if not checked.passed:
            raise SystemExit(f"wrong: {checked}")
        name = "one 256x256x128 tile, pair MMA, CLC" + ("" if races else ", no races")
        row(name, gpu.outcomes[-1].instructions, seconds)


def schedules(processes: int, count: int) -> None:
    """A work loop under many orders, alone and beside one another: the gain of each number of processes."""
    config = HarnessConfig(2, "clc", depth=2, threads=64)
    done, counter = np.zeros(14, np.uint32), np.zeros(2, np.uint32)
    buffers = Buffers()
    argument = pack_arguments(
        7, arguments=buffers.address_of(done), work_counter=buffers.address_of(counter)
    )
    launch = prepare(
        parse_ptx(compile_source(assemble(config, COUNT), "harness.cu", "sm_100a").ptx),
        grid=14,
        block=64,
        cluster=2,
        args=[argument],
        smem_bytes=config.launch_smem_bytes,
        buffers=buffers,
    )
    explorer = Explorer(launch, expected=[Expected(done, np.ones(14), "tiles")])
    workers, alone_s = 1, 0.0
    while workers <= processes:
        start = time.perf_counter()
        report = explorer.explore(count, processes=workers)
        seconds = time.perf_counter() - start
        alone_s = alone_s or seconds
        instructions = sum(outcome.instructions for outcome in report.outcomes)
        plural = "es" if workers > 1 else ""
        gain = f", {alone_s / seconds:.2f} times one" if workers > 1 else ""
        row(
            f"{count} schedules of a CLC loop, {workers} process{plural}{gain}",
            instructions,
            seconds,
        )
        workers *= 2


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=2, help="1, 2, 4, … up to so many")
    parser.add_argument("--schedules", type=int, default=60)
    given = parser.parse_args()
    print("| what | warp instructions | seconds | a second |\n|---|---|---|---|")
    arithmetic()
    pair_gemm(races=True)
    pair_gemm(races=False)
    schedules(given.processes, given.schedules)


if __name__ == "__main__":
    main()

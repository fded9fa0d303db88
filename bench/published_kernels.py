"""Published kernels as the model sees them: features in, time out.

    matrix product   tile, cluster, stages, accumulators, raster, scheduler, and what its loop hides
    padded grid      a grouped product under CLC with clusters that own nothing
    softmax          a tile list whose tile time is the published single-CTA row's
    attention        a forward pass under a schedule

Everything is composed of the package's own functions on the device's own file.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.attention import attention_cost, attention_tiles, attention_tiling
from tilewright.candidates import CLASSES, Candidates, busy_fraction
from tilewright.cost import TileCost, tile_cost
from tilewright.problem import Attention, Matmul
from tilewright.residency import CtaResources, Residency, find_residency
from tilewright.sim import Overheads, simulate
from tilewright.tile_map import Raster, TileMap
from tilewright.tiling import Tiling, make_tiling
from tilewright.traffic import Traffic, find_traffic, reads_of, unique_groups

if TYPE_CHECKING:
    from tilewright.device import Device

SHORT_QUEUE = 0.79
"""Tensor rate with one k-block of four MMAs in flight. Source: SemiAnalysis, Dissecting Nvidia Blackwell, "1 to
4 MMAs in flight reach 78 to 80 % of peak". Used for tcgen05 kernels that wait for each k-block."""

SOFTMAX_REGS = 168
"""Registers a thread: 128 of the row and 40 of the rest; three CTAs an SM. Kind: assumed."""

SOFTMAX_BARRIERS = 2
"""Cluster barriers a row: one for the maximum and one for the sum."""

Entry = dict[str, Any]
"""A kernel or a table of tests/data/published.toml."""


@dataclass(frozen=True)
class Loop:
    """A kernel's tiles and what they run on."""

    count: int
    slots: int
    cost: TileCost
    k_steps: float


def matmul_us(problem: Matmul, kernel: Entry, device: Device) -> float:
    """A matrix product as it was timed: launch by launch, or in a CUDA graph, or by its own duration."""
    found = library_us if kernel.get("library") else described_us
    launch = device.launch_us or 0.0
    return found(problem, kernel, device) + (launch if kernel.get("eager") else 0.0)


def library_us(problem: Matmul, kernel: Entry, device: Device) -> float:  # noqa: ARG001 (as described_us)
    """A library's kernel: the best of all candidates stands for it."""
    candidates = Candidates(problem, device)
    best = [found.cycles for kind in CLASSES if (found := candidates.best(kind))]
    return min(best) / device.sm_clock_mhz


def described_us(problem: Matmul, kernel: Entry, device: Device) -> float:
    """A kernel of the features that its author states."""
    tiling = described_tiling(problem, kernel, device)
    loop = loop_of(problem, tiling, kernel, device)
    overlap = kernel.get("overlap", "none")
    tile = tile_cycles(loop, overlap)
    around = 0.0
    if overlap != "none":  # the first fill and the last epilogue have no neighbour to hide behind
        around = loop.cost.fill_cycles
    if overlap == "pipelined":
        around += loop.cost.epilogue_cycles - loop.cost.exposed_epilogue_cycles
    run = simulate(
        kernel.get("scheduler", "single_tile"),
        np.full(loop.count, tile),
        loop.slots,
        overheads=overheads(device),
    )
    return (run.makespan_cycles + around) / device.sm_clock_mhz


def described_tiling(problem: Matmul, kernel: Entry, device: Device) -> Tiling:
    """The author's tile, cluster, stages and accumulators."""
    x, y, z = kernel.get("cluster", (1, 1, 1))
    rows, columns = kernel["tile"]
    tiling = make_tiling(
        problem.dtype,
        problem.out_bytes,
        device,
        cta_tile=(rows, columns),
        cluster_shape=(x, y, z),
        cta_group=kernel.get("cta_group", 1),
        num_stages=kernel["stages"],
        accumulator_stages=kernel.get("accumulators", 1),
    )
    blocks = kernel.get("a_blocks", 1)  # MMAs of a CTA that share one B
    if blocks == 1:
        return tiling
    smem = replace(tiling.smem, a_bytes=blocks * tiling.smem.a_bytes)
    return replace(tiling, cta_tile=tiling.cta_tile._replace(m=blocks * rows), smem=smem)


def loop_of(problem: Matmul, tiling: Tiling, kernel: Entry, device: Device) -> Loop:
    """Residency, traffic in the author's order, and cost."""
    residency = find_residency(tiling.resources, tiling.cluster_size, device)
    along, swizzle = kernel.get("raster", ("m", 1))
    raster = Raster(along, swizzle)
    traffic = traffic_of(problem, tiling, residency, raster, device)
    tiles = TileMap(problem.groups(), tiling.cta_tile, tiling.cluster_shape, raster)
    active = min(residency.sms_used, tiles.num_tiles * tiling.cluster_size)
    cost = tile_cost(
        problem,
        tiling,
        traffic,
        active_sms=active,
        ctas_per_sm=1,
        device=device,
        busy=busy_fraction(
            tiles.num_tiles, residency.resident_clusters, residency.sms_used / device.sm_count
        ),
    )
    if not kernel.get("mma_queue", True):
        stage = replace(cost.stage, mma=cost.stage.mma / SHORT_QUEUE)
        cost = replace(cost, stage=stage)
    steps = float(tiles.k_steps.max())
    return Loop(tiles.num_tiles, residency.resident_clusters, cost, steps)


def traffic_of(
    problem: Matmul, tiling: Tiling, residency: Residency, raster: Raster, device: Device
) -> Traffic:
    """Bytes of a launch whose tiles run in the author's order."""
    resident = residency.resident_clusters
    reads = reads_of(problem, tiling, resident, device, raster)
    return find_traffic(problem, tiling, resident, reads, unique_groups(problem.groups()))


def tile_cycles(loop: Loop, overlap: str) -> float:
    """Cycles of a tile, by what the kernel hides behind its neighbours."""
    alone = float(loop.cost.alone(loop.k_steps))
    if overlap == "none":
        return alone
    if overlap == "loads":
        return alone - loop.cost.fill_cycles
    return float(loop.cost.persistent(loop.k_steps))


def overheads(device: Device) -> Overheads:
    """Scheduling costs from the device's file."""
    return Overheads(
        turnover_cycles=round(device.cta_turnover_cycles or 0),
        clc_latency_cycles=round(device.clc_latency_cycles or 0),
    )


def padded_us(problem: Matmul, kernel: Entry, device: Device) -> float:
    """A grouped product under CLC whose grid is `padding` times as long as its rows need.

    A padded cluster is a tile that costs nothing but its request. With `cancel`, a cluster that meets
    padding cancels as many more as its budget says and exits, and the next one launches in its place.
    """
    pair: Entry = {"tile": (128, 256), "cluster": (2, 1, 1), "cta_group": 2, "stages": 4}
    loop = loop_of(problem, described_tiling(problem, pair, device), pair, device)
    groups = problem.groups()
    rows = int(groups.m.sum()) * kernel["padding"]
    columns = -(-int(groups.n[0]) // 256)
    padded = (-(-rows // 256) + len(groups.m) - 1) * columns - loop.count
    costs = overheads(device)
    around = loop.cost.fill_cycles + loop.cost.epilogue_cycles - loop.cost.exposed_epilogue_cycles
    if kernel.get("cancel"):
        relaunches = math.ceil(padded / (1 + cancel_budget(padded / loop.count)) / loop.slots)
        around += relaunches * costs.turnover_cycles
        padded = 0
    tile = float(loop.cost.persistent(loop.k_steps))
    tiles = np.concatenate([np.full(loop.count, tile), np.zeros(padded)])
    run = simulate("clc", tiles, loop.slots, overheads=costs)
    return (run.makespan_cycles + around) / device.sm_clock_mhz


def cancel_budget(excess: float) -> int:
    """Cancels that one cluster sprays, by padded clusters over real ones.

    Source: drisspg, A Tale of Two Schedulers; the last tier is a constant whose value the post leaves
    out, taken as twice the tier before, as every other tier is.
    """
    tiers = ((8, 64), (4, 32), (2, 16), (1, 8))
    return next((budget for scale, budget in tiers if excess >= scale), 2)


def softmax_gbps(kernel: Entry, first: Entry, device: Device) -> float:
    """Rows of 64 KiB a CTA as a tile list: the first row's time a tile, on the clusters that fit.

    The published single-CTA row gives the time of one tile; a larger cluster adds its barriers, and
    fewer of its CTAs are resident.
    """
    size, rows = int(kernel["cluster_size"]), int(kernel["rows"])
    moved = 2.0 * 65_536 * size * rows  # in and out
    cta = CtaResources(threads=128, smem_bytes=0, regs=SOFTMAX_REGS)
    alone = find_residency(cta, 1, device).resident_clusters
    first_us: float = 2.0 * 65_536 * first["rows"] / (first["published"][0] * 1e3)
    tile = first_us * device.sm_clock_mhz / math.ceil(first["rows"] / alone)
    if size > 1:
        tile += SOFTMAX_BARRIERS * (device.cluster_sync_cycles or 0.0)
    slots = find_residency(cta, size, device).resident_clusters
    run = simulate("single_tile", np.full(rows, tile), slots)
    return moved / (run.makespan_cycles / device.sm_clock_mhz) / 1e3


def attention_us(lengths: list[int], kernel: Entry, table: Entry, device: Device) -> float:
    """One attention forward of 32k tokens under the kernel's schedule."""
    heads, kv_heads, head_dim = table["extents"][0]
    repeats = max(1, 32_768 // sum(lengths))
    problem = Attention(
        seqlens=tuple(lengths * repeats),
        heads=heads,
        kv_heads=kernel.get("kv_heads", kv_heads),
        head_dim=head_dim,
        causal=kernel.get("causal", False),
        dtype=table["dtype"],
    )
    tiling = attention_tiling(problem, device)
    residency = find_residency(tiling.resources, 1, device)
    blocks = attention_tiles(problem, tiling).blocks
    active = min(residency.sms_used, len(blocks))
    total = float(blocks.sum())
    cost = attention_cost(problem, tiling, device, active_sms=active, blocks=total)
    scheduler = kernel.get("scheduler", "single_tile")
    alone = scheduler == "single_tile"
    run = simulate(
        scheduler,
        cost.alone(blocks) if alone else cost.persistent(blocks),
        residency.resident_clusters,
        overheads=overheads(device),
        order=kernel.get("order", "given"),
    )
    around = 0.0 if alone else cost.fill_cycles
    return (run.makespan_cycles + around) / device.sm_clock_mhz

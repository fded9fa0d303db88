"""Drafts of attention forward: unequal tiles, so the scheduler is the question and the cluster seldom is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.attention import (
    AttentionCost,
    AttentionTiles,
    AttentionTiling,
    attention_cost,
    attention_tiles,
    attention_tiling,
)
from tilewright.bound import find_bound, find_roofline
from tilewright.decide import Option, choose
from tilewright.device import tensor_fact
from tilewright.draft import Draft, Options
from tilewright.errors import BadInput, NoFit
from tilewright.evidence import derived
from tilewright.matmul import USED_FACTS, scheduler_flips
from tilewright.mma import Shape
from tilewright.plan_model import OptionRow
from tilewright.protocol import make_attention_protocol
from tilewright.residency import Residency, find_residency
from tilewright.sim import Overheads
from tilewright.work import Work, dynamic_scheduler

if TYPE_CHECKING:
    from tilewright.decide import Decision, Flip
    from tilewright.device import Device
    from tilewright.problem import Attention
    from tilewright.sim import Scheduler


class _Kernel:
    """One attention tiling with its tiles, cost and work."""

    def __init__(
        self, problem: Attention, device: Device, shape: tuple[int, int, int], options: Options
    ) -> None:
        self.tiling: AttentionTiling = attention_tiling(problem, device, shape)
        self.residency: Residency = find_residency(
            self.tiling.resources,
            self.tiling.cluster_size,
            device,
            busy_sms=options.busy.busy_sms,
            sm_budget=options.busy.sm_budget,
        )
        self.tiles: AttentionTiles = attention_tiles(problem, self.tiling)
        slots = max(self.residency.resident_clusters, 1)
        active = min(self.residency.sms_used, len(self.tiles.blocks) * self.tiling.cluster_size)
        self.blocks = int(self.tiles.blocks.sum())
        self.cost: AttentionCost = attention_cost(
            problem,
            self.tiling,
            device,
            active_sms=max(active, 1),
            blocks=self.blocks * self.tiling.cluster_size,
        )
        self.work = Work(
            alone_cycles=self.cost.alone(self.tiles.blocks),
            persistent_cycles=self.cost.persistent(self.tiles.blocks),
            slots=slots,
            start_cycles=self.cost.fill_cycles,
            drain_cycles=0.0,
            overheads=Overheads(
                turnover_cycles=round(device.cta_turnover_cycles or 0),
                clc_latency_cycles=round(device.clc_latency_cycles or 0),
            ),
            clock_mhz=device.sm_clock_mhz,
            clc_depth=options.clc_depth,
        )


def draft_attention(problem: Attention, device: Device, options: Options) -> Draft:
    """Decide an attention forward pass: one CTA against a cluster that shares K and V, three schedulers.

    Static persistent workers take tiles longest first where lengths or masks make them unequal.

    Raises:
        NoFit: no kernel fits, or there is nothing to compute.
    """
    kernels = {
        name: _Kernel(problem, device, shape, options) for name, shape in _shapes(device, options)
    }
    kernels = {name: k for name, k in kernels.items() if k.residency.resident_clusters}
    if not kernels:
        raise NoFit(f"no cluster of {options.cluster_shape} is resident on {device.name}")
    if not any(len(kernel.tiles.blocks) for kernel in kernels.values()):
        raise BadInput("every sequence is empty: there is nothing to launch", given=0)
    decision = choose(_options(kernels, device, options.scheduler))
    kernel = kernels[decision.chosen.name]
    tiling = kernel.tiling
    main = kernel.blocks * kernel.cost.block.total
    return Draft(
        decision=decision,
        work=kernel.work,
        main_cycles=main,
        resources=tiling.resources,
        residency=kernel.residency,
        cluster_shape=tiling.cluster_shape,
        cta_group=1,
        tile=Shape(tiling.block_q, tiling.block_kv, tiling.head_dim),
        pair_tile=None,
        num_stages=tiling.kv_stages,
        raster="sequence, head, rows",
        swap_ab=False,
        bound=find_bound(kernel.cost.block, kernel.work, main, decision.chosen.outcome),
        roofline=find_roofline(problem.flops, problem.compulsory_bytes, problem.dtype, device),
        flips=_flips(decision, kernels, device),
        options=_rows(decision, kernels),
        traffic=_traffic(problem, kernel),
        tile_map=_tile_map(kernel),
        protocol=make_attention_protocol(
            tiling, decision.chosen.scheduler, device, clc_depth=options.clc_depth
        ),
        used_facts={
            tensor_fact(problem.dtype): "main loop, roofline",
            "exp2_per_cycle": "softmax",
            **USED_FACTS,
        },
        derived=_derived(kernel),
        experiments=[],
        notes=_notes(kernel),
    )


def _shapes(device: Device, options: Options) -> list[tuple[str, tuple[int, int, int]]]:
    if options.cluster_shape is not None:
        x, y, z = options.cluster_shape
        if y * z != 1:
            raise BadInput(
                f"attention shares K and V along x only; cluster {options.cluster_shape} is not (x, 1, 1)",
                given=options.cluster_shape,
                nearest=f"({x}, 1, 1)",
            )
        return [("cluster" if x > 1 else "single", options.cluster_shape)]
    shapes = [("single", (1, 1, 1))]
    if device.multicast:
        shapes.append(("cluster", (2, 1, 1)))
    return shapes


def _options(kernels: dict[str, _Kernel], device: Device, only: Scheduler | None) -> list[Option]:
    options = []
    for rank, (name, kernel) in enumerate(kernels.items()):
        options += [
            Option(name, kernel.tiling.cluster_size, rank, outcome)
            for outcome in kernel.work.compare(dynamic_scheduler(device), only)
        ]
    return options


def _rows(decision: Decision, kernels: dict[str, _Kernel]) -> list[OptionRow]:
    return [
        OptionRow(
            option=option.name,
            tile=kernels[option.name].tiling.describe(),
            cluster_shape=kernels[option.name].tiling.cluster_shape,
            cta_group=1,
            scheduler=option.schedule,
            predicted_us=option.us,
            chosen=option is decision.chosen,
        )
        for option in (decision.chosen, *decision.rejected)
    ]


def _flips(decision: Decision, kernels: dict[str, _Kernel], device: Device) -> list[Flip]:
    flips: list[Flip] = []
    for step in decision.steps:
        if step.what == "scheduler":
            flips += scheduler_flips(step, kernels[step.chosen.name].work, device)
    return flips


def _traffic(problem: Attention, kernel: _Kernel) -> dict[str, Any]:
    ctas = kernel.blocks * kernel.tiling.cluster_size
    unshared = 2.0 * kernel.tiling.kv_block_bytes * ctas
    return {
        "compulsory_bytes": problem.compulsory_bytes,
        "l2_bytes": unshared / kernel.tiling.cluster_size,
        "l2_bytes_without_sharing": unshared,
        "stage_cycles": kernel.cost.block.demands,
        "stage_cycles_total": kernel.cost.block.total,
        "stage_bound": kernel.cost.block.bound,
    }


def _tile_map(kernel: _Kernel) -> dict[str, Any]:
    tiles, tiling = kernel.tiles, kernel.tiling
    return {
        "grid_clusters": len(tiles.blocks),
        "grid_ctas": len(tiles.blocks) * tiling.cluster_size,
        "cluster_shape": tiling.cluster_shape,
        "block_q": tiling.block_q,
        "block_kv": tiling.block_kv,
        "sequences": len(np.unique(tiles.sequence)),
        "key_blocks": {
            "min": int(tiles.blocks.min()),
            "max": int(tiles.blocks.max()),
            "sum": kernel.blocks,
        },
        "order": "sequence, then head, then rows",
    }


def _derived(kernel: _Kernel) -> list[Any]:
    block = kernel.cost.block
    rows = [
        derived(
            f"block.{name}",
            round(cycles, 1),
            "cycles",
            f"attention cost model, {name}",
            "main loop",
        )
        for name, cycles in block.demands.items()
    ]
    rows.append(
        derived(
            "block.total", round(block.total, 1), "cycles", "p-norm of the demands", "main loop"
        )
    )
    return rows


def _notes(kernel: _Kernel) -> list[str]:
    work = kernel.work
    notes = []
    if not work.uniform:
        notes.append(
            f"tile costs spread by {work.spread:.0%} of their mean: {int(kernel.tiles.blocks.min())} to "
            f"{int(kernel.tiles.blocks.max())} key blocks a tile"
        )
    return notes

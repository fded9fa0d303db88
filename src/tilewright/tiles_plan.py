"""Drafts of tile lists: costs and resources are the user's; the scheduler is what is decided."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tilewright.bound import BoundCandidate
from tilewright.decide import Option, choose
from tilewright.draft import Draft, Options
from tilewright.errors import BadInput, NoFit
from tilewright.matmul import scheduler_flips
from tilewright.plan_model import OptionRow
from tilewright.protocol import make_tiles_protocol
from tilewright.residency import CtaResources, find_residency
from tilewright.schedule import overheads_for
from tilewright.work import Work, dynamic_scheduler

if TYPE_CHECKING:
    from tilewright.decide import Decision
    from tilewright.device import Device
    from tilewright.problem import TileList

_USED_FACTS = {
    "sm_count": "residency",
    "gpc_sms": "clusters resident",
    "gpc_sms_max": "clusters resident",
    "sm_clock_mhz": "cycles to time",
    "smem_per_sm_bytes": "CTAs an SM",
    "smem_reserved_per_cta_bytes": "CTAs an SM",
    "regs_per_sm": "CTAs an SM",
    "threads_per_sm": "CTAs an SM",
    "cluster_ctas_per_sm_max": "clusters resident",
    "cta_turnover_cycles": "one tile a cluster",
    "atomic_cycles": "dynamic_atomic",
    "cluster_sync_cycles": "dynamic_atomic, tile end",
    "clc_latency_cycles": "CLC",
    "launch_us": "launch latency, beside the kernel time",
}


def draft_tiles(problem: TileList, device: Device, options: Options) -> Draft:
    """Decide the scheduler of a list of tiles.

    Raises:
        NoFit: a CTA or a cluster of these resources fits nowhere.
        BadInput: the list is empty.
    """
    costs = problem.costs(device.sm_clock_mhz)
    if not len(costs):
        raise BadInput("the tile list is empty: there is nothing to launch", given=0)
    shape = options.cluster_shape or problem.cluster_shape
    size = math.prod(shape)
    resources = CtaResources(problem.threads, problem.smem_bytes, problem.regs)
    residency = find_residency(
        resources, size, device, busy_sms=options.busy.busy_sms, sm_budget=options.busy.sm_budget
    )
    if not residency.resident_clusters:
        raise NoFit(f"no cluster of {shape} is resident on {device.name}: {residency.limited_by}")
    work = Work(
        alone_cycles=costs.astype(float),
        persistent_cycles=costs.astype(float),
        slots=residency.resident_clusters,
        start_cycles=0.0,
        drain_cycles=0.0,
        overheads=overheads_for(device, size),
        clock_mhz=device.sm_clock_mhz,
        clc_depth=options.clc_depth,
    )
    outcomes = work.compare(dynamic_scheduler(device), options.scheduler)
    decision = choose([Option("given", size, 0, outcome) for outcome in outcomes])
    return Draft(
        decision=decision,
        work=work,
        main_cycles=float(costs.sum()),
        resources=resources,
        residency=residency,
        cluster_shape=shape,
        cta_group=1,
        tile=None,
        pair_tile=None,
        num_stages=None,
        raster=None,
        swap_ab=False,
        bound=_bound(work, decision),
        roofline=None,
        flips=[f for step in decision.steps for f in scheduler_flips(step, work, device)],
        options=_rows(decision, shape),
        traffic={},
        tile_map={
            "grid_clusters": len(costs),
            "grid_ctas": len(costs) * size,
            "cluster_shape": shape,
            "cost_cycles": {
                "min": int(costs.min()),
                "max": int(costs.max()),
                "sum": int(costs.sum()),
            },
            "order": "as given",
        },
        protocol=make_tiles_protocol(
            shape,
            problem.threads,
            problem.smem_bytes,
            decision.chosen.scheduler,
            device,
            clc_depth=options.clc_depth,
        ),
        used_facts=_USED_FACTS,
        derived=[],
        experiments=[],
        notes=[],
    )


def _bound(work: Work, decision: Decision) -> list[BoundCandidate]:
    """Idle slots against the tiles' own cycles; what bounds a tile itself is the user's to know."""
    outcome = decision.chosen.outcome
    total = max(outcome.kernel_us, 1e-9)
    busy = float(np.sum(work.persistent_cycles)) / max(outcome.metrics.workers, 1) / work.clock_mhz
    idle = max(0.0, 1.0 - busy / total)
    unknown = "the list gives cycles, not what they are spent on"
    ncu = "ncu --section SpeedOfLight on the user's kernel"
    return [
        BoundCandidate("compute", None, unknown, unknown, ncu),
        BoundCandidate("bandwidth", None, unknown, unknown, ncu),
        BoundCandidate("latency", None, unknown, unknown, ncu),
        BoundCandidate(
            "scheduling",
            idle,
            f"slots and overheads take {idle:.1%} of the makespan",
            f"tiles take {1 - idle:.1%}",
            "record %globaltimer at each tile's start and end",
        ),
    ]


def _rows(decision: Decision, shape: tuple[int, int, int]) -> list[OptionRow]:
    return [
        OptionRow(
            option=option.name,
            tile="given",
            cluster_shape=shape,
            cta_group=1,
            scheduler=option.schedule,
            predicted_us=option.us,
            chosen=option is decision.chosen,
        )
        for option in (decision.chosen, *decision.rejected)
    ]

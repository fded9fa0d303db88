"""Drafts of matrix products: dense, batched and grouped.

Candidates of three classes, each under three schedulers, give the options; `decide` picks one; the rest
describes it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tilewright.bound import find_bound, find_roofline
from tilewright.candidates import CLASSES, Candidate, Candidates
from tilewright.cost import l2_bytes_per_cycle
from tilewright.decide import Decision, Flip, Option, Step, choose, find_flips
from tilewright.device import tensor_fact
from tilewright.draft import Draft, Options
from tilewright.errors import NoFit
from tilewright.evidence import derived
from tilewright.experiments import gemm_experiments, settle
from tilewright.plan_model import OptionRow
from tilewright.problem import Gemm, GroupedGemm
from tilewright.protocol import make_protocol
from tilewright.sim import Overheads
from tilewright.tile_map import cta_shares
from tilewright.tiling import make_tiling
from tilewright.traffic import RASTERS, reads_of
from tilewright.work import Work, dynamic_scheduler

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from tilewright.device import Device
    from tilewright.problem import Matmul
    from tilewright.sim import Scheduler
    from tilewright.tiling import Tiling

USED_FACTS: dict[str, str] = {
    "sm_count": "waves, residency",
    "gpc_sms": "clusters resident",
    "gpc_sms_max": "clusters resident",
    "sm_clock_mhz": "cycles to time",
    "smem_per_cta_max_bytes": "stages",
    "smem_per_sm_bytes": "CTAs an SM",
    "smem_reserved_per_cta_bytes": "CTAs an SM",
    "tmem_columns": "accumulator stages",
    "tmem_ctas_per_sm": "CTAs an SM",
    "cluster_ctas_per_sm_max": "clusters resident",
    "cluster_size_portable_max": "portable or not",
    "cluster_size_max": "largest cluster",
    "tensor_efficiency": "main loop",
    "tensor_efficiency_max": "main loop of a machine that idles in part",
    "smem_bytes_per_cycle": "main loop, epilogue",
    "l2_bytes": "HBM traffic, raster order",
    "l2_bandwidth_gbps": "main loop, epilogue",
    "l2_latency_cycles": "fill",
    "hbm_bandwidth_gbps": "roofline",
    "hbm_read_gbps": "main loop",
    "hbm_latency_cycles": "fill, epilogue",
    "cta_turnover_cycles": "one tile a CTA",
    "clc_latency_cycles": "CLC",
    "launch_us": "launch latency, beside the kernel time",
}
_TILING_RANGES = ("l2_bandwidth_gbps", "tensor_efficiency", "hbm_read_gbps")
_SCHEDULER_RANGES = {
    "cta_turnover_cycles": "turnover_cycles",
    "clc_latency_cycles": "clc_latency_cycles",
}


def draft_matmul(problem: Matmul, device: Device, options: Options) -> Draft:
    """Decide a matrix product.

    Raises:
        NoFit: no tiling matches what the user fixed.
    """
    candidates = Candidates(
        problem,
        device,
        busy=options.busy,
        allow=lambda tiling: _allowed(tiling, options),
        allow_swap=options.allow_swap,
    )
    best = {kind: candidate for kind in CLASSES if (candidate := candidates.best(kind))}
    if not best:
        raise _no_match(problem, device, options)
    works = {kind: make_work(candidate, device, options) for kind, candidate in best.items()}
    decision = choose(_options(works, best, device, options.scheduler))
    kind = decision.chosen.name
    candidate, work = best[kind], works[kind]  # type: ignore[index]
    tiling = candidate.tiling
    main = candidate.main_cycles
    scheduler = decision.chosen.scheduler
    return Draft(
        decision=decision,
        work=work,
        main_cycles=main,
        resources=tiling.resources,
        residency=candidate.residency,
        cluster_shape=tiling.cluster_shape,
        cta_group=tiling.cta_group,
        tile=tiling.cta_tile,
        pair_tile=tiling.pair_tile,
        num_stages=tiling.num_stages,
        raster=str(candidate.raster),
        swap_ab=candidate.swap_ab,
        bound=find_bound(candidate.cost.stage, work, main, decision.chosen.outcome),
        roofline=find_roofline(problem.flops, problem.compulsory_bytes, problem.dtype, device),
        flips=_flips(decision, candidates, best, works, device),
        options=_option_rows(decision, best),
        traffic=_traffic_table(candidate, device),
        tile_map=_tile_map_table(candidate),
        protocol=make_protocol(tiling, scheduler, device, clc_depth=options.clc_depth),
        used_facts={tensor_fact(problem.dtype): "main loop, roofline", **USED_FACTS},
        derived=_derived(candidate),
        experiments=gemm_experiments(problem, decision, best),
        notes=_notes(problem, candidate),
        tiles=candidate.tile_map,
    )


def _no_match(problem: Matmul, device: Device, options: Options) -> NoFit:
    """Why nothing matches what the user fixed: the reason of the tiling itself where it has one."""
    make_tiling(
        problem.dtype,
        problem.out_bytes,
        device,
        cta_tile=options.tile or (128, 128),
        cluster_shape=options.cluster_shape or (options.cta_group or 1, 1, 1),
        cta_group=options.cta_group or 1,
    )
    return NoFit(
        f"no tiling of {problem.dtype} on {device.name} is considered with cluster_shape="
        f"{options.cluster_shape}, cta_group={options.cta_group}, tile={options.tile}; clusters are powers of "
        "two along x and y, tiles of 64, 128 or 256 rows and multiples of 16 columns",
        given=options.cluster_shape or options.tile or "",
    )


def _allowed(tiling: Tiling, options: Options) -> bool:
    return (
        options.cluster_shape in {None, tiling.cluster_shape}
        and options.cta_group in {None, tiling.cta_group}
        and options.tile in {None, tiling.cta_tile[:2]}
    )


def make_work(candidate: Candidate, device: Device, options: Options) -> Work:
    """Tiles and slots of one candidate.

    The scheduler warp fetches the next tile while this one runs, so a fetch costs nothing by itself.
    """
    m, n, _ = candidate.tiling.cta_tile
    share = l2_bytes_per_cycle(device)
    fixup = 0.0 if share is None else 2.0 * 4.0 * m * n / share  # fp32 partials, out and back
    return Work(
        alone_cycles=candidate.tile_cycles(persistent=False),
        persistent_cycles=candidate.tile_cycles(persistent=True),
        slots=max(candidate.residency.resident_clusters, 1),
        start_cycles=candidate.cost.fill_cycles,
        drain_cycles=candidate.cost.epilogue_cycles,
        overheads=Overheads(
            turnover_cycles=round(device.cta_turnover_cycles or 0),
            clc_latency_cycles=round(device.clc_latency_cycles or 0),
            fixup_cycles=round(fixup),
        ),
        clock_mhz=device.sm_clock_mhz,
        clc_depth=options.clc_depth,
    )


def _options(
    works: dict[Any, Work], best: dict[Any, Candidate], device: Device, only: Scheduler | None
) -> list[Option]:
    return [
        Option(kind, best[kind].tiling.cluster_size, CLASSES.index(kind), outcome)
        for kind, work in works.items()
        for outcome in work.compare(dynamic_scheduler(device), only)
    ]


def _option_rows(decision: Decision, best: dict[Any, Candidate]) -> list[OptionRow]:
    rows = []
    for option in (decision.chosen, *decision.rejected):
        tiling = best[option.name].tiling
        rows.append(
            OptionRow(
                option=option.name,
                tile=str(tiling.cta_tile)
                + (f", pair {tiling.pair_tile}" if tiling.pair_tile else ""),
                cluster_shape=tiling.cluster_shape,
                cta_group=tiling.cta_group,
                scheduler=option.schedule,
                predicted_us=option.us,
                chosen=option is decision.chosen,
            )
        )
    return rows


def _flips(
    decision: Decision,
    candidates: Candidates,
    best: dict[Any, Candidate],
    works: dict[Any, Work],
    device: Device,
) -> list[Flip]:
    flips: list[Flip] = []
    for step in decision.steps:
        if step.what == "tiling":
            ranges = _plausible(device, _TILING_RANGES)
            gain = _tiling_gain(step, candidates, best, device)
            flips += find_flips(step, ranges, gain, lambda name: settle(name, device))
        else:
            flips += scheduler_flips(step, works[step.chosen.name], device)
    return flips


def scheduler_flips(step: Step, work: Work, device: Device) -> list[Flip]:
    """Overheads whose plausible range would make a scheduler step over this work not worth taking."""
    ranges = _plausible(device, _scheduler_ranges(step))
    gain = _scheduler_gain(step, work)
    return find_flips(step, ranges, gain, lambda name: settle(name, device))


def _scheduler_ranges(step: Step) -> tuple[str, ...]:
    """Device values that a choice between these two schedulers rests on."""
    asks = "clc" in {step.simpler.scheduler, step.chosen.scheduler}
    return tuple(name for name in _SCHEDULER_RANGES if asks or name != "clc_latency_cycles")


def _plausible(device: Device, names: tuple[str, ...]) -> dict[str, tuple[str, float, float]]:
    """Those of the named device values that have a plausible range: (kind, low, high)."""
    found: dict[str, tuple[str, float, float]] = {}
    for name in names:
        fact = device.facts.get(name)
        if fact is not None and fact.plausible is not None:
            found[name] = (fact.kind, *fact.plausible)
    return found


def _tiling_gain(
    step: Step, candidates: Candidates, best: dict[Any, Candidate], device: Device
) -> Callable[[str, float], float]:
    """The tiling step's gain with one device value changed, both sides under a persistent loop."""

    def gain_at(name: str, value: float) -> float:
        changed: dict[str, Any] = {name: value}
        other = replace(device, **changed)
        times = []
        for option in (step.simpler, step.chosen):
            known = best[option.name]
            varied = candidates.evaluate(known.tiling, swap_ab=known.swap_ab, device=other)
            times.append(varied.persistent_cycles)
        return times[0] / times[1] - 1

    return gain_at


def _scheduler_gain(step: Step, work: Work) -> Callable[[str, float], float]:
    """The scheduler step's gain with one overhead changed."""

    def gain_at(name: str, value: float) -> float:
        changed = replace(work.overheads, **{_SCHEDULER_RANGES[name]: round(value)})
        other = replace(work, overheads=changed)
        simpler, chosen = (
            other.run(o.scheduler, order=o.order).kernel_us for o in (step.simpler, step.chosen)
        )
        return simpler / chosen - 1

    return gain_at


def _traffic_table(candidate: Candidate, device: Device) -> dict[str, Any]:
    t, stage = candidate.traffic, candidate.cost.stage
    return {
        "compulsory_bytes": t.compulsory_bytes,
        "hbm_read_bytes": t.hbm_read_bytes,
        "hbm_write_bytes": t.hbm_write_bytes,
        "l2_bytes": t.l2_bytes,
        "l2_bytes_without_sharing": t.l2_bytes_unshared,
        "dsmem_bytes": t.dsmem_bytes,
        "smem_write_bytes": t.smem_write_bytes,
        "smem_read_bytes": t.smem_read_bytes,
        "wave_operand_bytes": t.wave_bytes,
        "hbm_reads_of_a": t.reads.a,
        "hbm_reads_of_b": t.reads.b,
        "stage_cycles": stage.demands,
        "stage_cycles_total": stage.total,
        "stage_bound": stage.bound,
        "rasters": _raster_table(candidate, device),
    }


def _raster_table(candidate: Candidate, device: Device) -> list[dict[str, Any]]:
    """HBM reads of every order of tiles that was considered, the chosen one marked."""
    rows = []
    for raster in RASTERS:
        reads = reads_of(
            candidate.problem,
            candidate.tiling,
            max(candidate.residency.resident_clusters, 1),
            device,
            raster,
            candidate.groups,
        )
        a, b = candidate.operand_bytes
        rows.append(
            {
                "along": raster.along,
                "swizzle": raster.swizzle,
                "reads_of_a": reads.a,
                "reads_of_b": reads.b,
                "hbm_read_bytes": reads.a * a + reads.b * b,
                "chosen": raster == candidate.raster,
            }
        )
    return rows


def _tile_map_table(candidate: Candidate) -> dict[str, Any]:
    tiling, tiles = candidate.tiling, candidate.tile_map
    element = candidate.problem.element
    shares = cta_shares(
        tiling.cta_tile, tiling.cluster_shape, tiling.cta_group, multicast=tiling.multicast
    )
    return {
        "grid_clusters": tiles.num_tiles,
        "grid_ctas": tiles.grid_ctas,
        "cta_tile": tiling.cta_tile._asdict(),
        "pair_tile": tiling.pair_tile._asdict() if tiling.pair_tile else None,
        "cluster_tile": tiling.cluster_tile._asdict(),
        "cluster_shape": tiling.cluster_shape,
        "raster": candidate.raster._asdict(),
        "swap_ab": candidate.swap_ab,
        "groups": len(candidate.groups.m),
        "batch": candidate.groups.repeat,
        "cluster_tiles_m": _short(tiles.m_tiles),
        "cluster_tiles_n": _short(tiles.n_tiles),
        "useful_fraction": tiles.useful_fraction,
        "padded_ctas": tiles.padded_ctas,
        "stage_k": tiling.cta_tile.k,
        "k_stages_max": int(tiles.k_steps.max(initial=0)),
        "ctas": [
            {
                **share._asdict(),
                "k": (0, int(candidate.groups.k.max(initial=0))),
                "a_mask": hex(share.a_mask),
                "b_mask": hex(share.b_mask),
                "a_bytes": element.bytes_of(
                    (share.a_rows[1] - share.a_rows[0]) * tiling.cta_tile.k
                ),
                "b_bytes": element.bytes_of(
                    (share.b_columns[1] - share.b_columns[0]) * tiling.cta_tile.k
                ),
            }
            for share in shares
        ],
    }


def _short(values: NDArray[np.int64]) -> dict[str, int]:
    return {"min": int(values.min()), "max": int(values.max()), "sum": int(values.sum())}


def _derived(candidate: Candidate) -> list[Any]:
    stage, cost = candidate.cost.stage, candidate.cost
    formulas = {
        "mma": "2 m n k / (tensor rate x efficiency)",
        "smem": "bytes the MMAs read / shared-memory bandwidth",
        "l2": "bytes this CTA requests / its share of L2 bandwidth",
        "hbm": "this stage's part of all HBM bytes / its share of HBM bandwidth",
        "latency": "memory latency / stages in flight",
        "exp": "exponentials / rate",
    }
    rows = [
        derived(f"stage.{name}", round(cycles, 1), "cycles", formulas[name], "main loop")
        for name, cycles in stage.demands.items()
    ]
    rows += [
        derived(
            "stage.total", round(stage.total, 1), "cycles", "p-norm of the demands", "main loop"
        ),
        derived("tile.fill", round(cost.fill_cycles), "cycles", "memory latency", "one tile a CTA"),
        derived(
            "tile.epilogue",
            round(cost.epilogue_cycles),
            "cycles",
            "output to shared memory, to L2, and a memory latency",
            "one tile a CTA, the last tile of a persistent loop",
        ),
    ]
    return rows


def _notes(problem: Matmul, candidate: Candidate) -> list[str]:
    notes = []
    tiles = candidate.tile_map
    if candidate.swap_ab:
        notes.append(
            "A and B are swapped: the kernel computes the transposed product, so its M is the problem's N, "
            "and the epilogue writes the tile transposed"
        )
    if tiles.padded_ctas:
        notes.append(
            f"{tiles.padded_ctas} of {tiles.grid_ctas} CTAs own no output: they pad clusters and still take "
            "part in barriers and multicast"
        )
    if tiles.useful_fraction < 0.9:
        notes.append(
            f"only {tiles.useful_fraction:.0%} of the computed output is asked for: edges of the tile grid"
        )
    if isinstance(problem, GroupedGemm):
        empty = sum(1 for count in problem.counts if count == 0)
        if empty:
            what = "have no tile" if problem.grouped == "m" else "still write zeros"
            notes.append(f"{empty} of {len(problem.counts)} groups are empty: they {what}")
    if isinstance(problem, Gemm) and problem.n * problem.out_bytes % 16:
        notes.append(
            f"rows of {problem.n} outputs are not a multiple of 16 bytes: the epilogue stores by predicate "
            "instead of TMA"
        )
    if candidate.residency.resident_clusters != candidate.residency.resident_clusters_max:
        r = candidate.residency
        notes.append(
            f"between {r.resident_clusters} and {r.resident_clusters_max} clusters are resident; planned with "
            f"the fewer. Decided by {r.decides}"
        )
    return notes

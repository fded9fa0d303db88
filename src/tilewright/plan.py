"""The map: problem and device in, plan out.

    problem, device -> draft      tiling, residency, traffic, schedule and protocol of what is chosen
    draft           -> Plan       conclusion, evidence, contract, schedule, validation, risks

Each kind of problem has its own draft (`matmul`, `attention_plan`, `tiles_plan`); what follows is common.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from tilewright import __version__
from tilewright.attention_plan import draft_attention
from tilewright.candidates import WORTH
from tilewright.decide import SCHEDULER_ERROR, Step, jitter_that_flips
from tilewright.draft import Draft, Options
from tilewright.evidence import constants, derived, from_device
from tilewright.matmul import draft_matmul
from tilewright.plan_model import (
    Boundary,
    BoundRow,
    Check,
    Conclusion,
    Contract,
    FlipValue,
    GainStep,
    Plan,
    ResidencyRow,
    ScheduleTables,
    TileShape,
    Validation,
)
from tilewright.problem import Attention, TileList, Workload
from tilewright.protocol.scheduler import check_scheduler
from tilewright.residency import find_residency
from tilewright.risks import find_risks
from tilewright.schedule import boundary_counts, schedulers_for
from tilewright.tiles_plan import draft_tiles
from tilewright.work import Outcome, dynamic_scheduler

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.device import Device
    from tilewright.evidence import Evidence
    from tilewright.mma import Shape

CLUSTER_SIZES = (1, 2, 4, 8, 16)
DEFAULT = Options()


def make_plan(problem: Workload, device: Device, options: Options = DEFAULT) -> Plan:
    """Decide a workload on a device.

    Raises:
        TilewrightError: bad input, nothing fits, or a value that the answer needs is unknown.
    """
    return plan_of(draft_of(problem, device, options), problem, device)


def plan_of(draft: Draft, problem: Workload, device: Device) -> Plan:
    """A draft written out."""
    outcomes = draft.outcomes(schedulers_for(device))
    return Plan(
        tilewright=__version__,
        problem=problem.model_dump(),
        device=_device(device),
        conclusion=conclude(draft, device, problem),
        evidence=tuple(_evidence(draft, device)),
        contract=_contract(draft, device),
        schedule=_schedule(draft, outcomes),
        validation=_validation(draft, device, problem),
        risks=tuple(find_risks(draft, device)),
    )


def draft_of(problem: Workload, device: Device, options: Options = DEFAULT) -> Draft:
    """The decision and all that it rests on, before it is written out."""
    if options.scheduler is not None:
        check_scheduler(options.scheduler, 1, options.clc_depth, device)
    if isinstance(problem, TileList):
        return draft_tiles(problem, device, options)
    if isinstance(problem, Attention):
        return draft_attention(problem, device, options)
    return draft_matmul(problem, device, options)


def _device(device: Device) -> dict[str, Any]:
    return {
        "name": device.name,
        "product": device.product,
        "compute_capability": ".".join(map(str, device.compute_capability)),
        "arch": device.arch,
        "sm_count": device.sm_count,
    }


def conclude(draft: Draft, device: Device, problem: Workload) -> Conclusion:
    """The answer of a draft, in words and numbers."""
    decision = draft.decision
    chosen = decision.chosen
    applies = decision.answers != ("leave-it-alone",)
    flips = [FlipValue(**flip._asdict()) for flip in draft.flips]
    flips += _jitter_flip(draft, device)
    return Conclusion(
        applies=applies,
        answer=decision.answers[0],
        answers=decision.answers,
        summary=_summary(draft, device, problem),
        use_cluster=draft.residency.cluster_size > 1,
        cluster_shape=draft.cluster_shape,
        cta_group=draft.cta_group,
        tile=_shape(draft.tile),
        pair_tile=_shape(draft.pair_tile),
        num_stages=draft.num_stages,
        scheduler=chosen.scheduler,
        tile_order=chosen.order,
        raster=draft.raster,
        swap_ab=draft.swap_ab,
        predicted_us=chosen.us,
        bound=draft.bound[0].bound if draft.bound[0].share is not None else "unknown",
        because=tuple(_gain(step) for step in decision.steps),
        measure_these_two=tuple(_measure(step) for step in decision.to_measure),
        would_flip=tuple(flips),
        notes=tuple(draft.notes),
    )


def _shape(shape: Shape | None) -> TileShape | None:
    return None if shape is None else TileShape(m=shape.m, n=shape.n, k=shape.k)


def _gain(step: Step) -> GainStep:
    return GainStep(
        what=step.what,
        over=_side(step, chosen=False),
        chosen=_side(step, chosen=True),
        over_us=step.simpler.us,
        chosen_us=step.chosen.us,
        gain=step.gain,
        error=step.error,
        inside_error=step.inside_error,
    )


def _side(step: Step, *, chosen: bool) -> str:
    option = step.chosen if chosen else step.simpler
    if step.what == "scheduler":
        return option.schedule
    what = {"single": "one CTA", "cluster": "a cluster", "pair": "a CTA pair"}.get(
        option.name, option.name
    )
    return f"{what} ({option.schedule})"


def _measure(step: Step) -> str:
    return (
        f"{_side(step, chosen=True)} against {_side(step, chosen=False)}: predicted {step.gain:+.1%}, "
        f"inside the model's error of {step.error:.0%}"
    )


def _jitter_flip(draft: Draft, device: Device) -> list[FlipValue]:
    dynamic = dynamic_scheduler(device)
    spread = jitter_that_flips(draft.work, draft.decision.chosen, dynamic)
    if spread is None:
        return []
    return [
        FlipValue(
            value="spread of tile times at run time",
            kind="assumed",
            low=0.0,
            high=0.2,
            at=spread,
            to=dynamic,
            experiment="record %globaltimer at each tile's start and end: a standard deviation of "
            f"{spread:.0%} of the mean makes {dynamic} faster by {WORTH:.0%}",
        )
    ]


_ANSWER_TEXT = {
    "leave-it-alone": "Leave it alone",
    "cluster-for-reuse": "cluster for reuse",
    "pair-mma": "pair MMA",
    "persistent-static": "persistent, static schedule",
    "persistent-dynamic": "persistent, dynamic schedule",
}


def _summary(draft: Draft, device: Device, problem: Workload) -> str:
    chosen, decision = draft.decision.chosen, draft.decision
    slots, tiles = draft.work.slots, draft.work.num_tiles
    x, y, z = draft.cluster_shape
    if not tiles:
        return "Nothing to launch: no group has an output tile."
    where = f"{tiles} tiles on {slots} resident {'clusters' if x * y * z > 1 else 'CTAs'}"
    if decision.answers == ("leave-it-alone",):
        best = min((option.us for option in decision.rejected), default=chosen.us)
        gain = chosen.us / best - 1
        gained = f"would gain {gain:.1%}" if gain > 0 else "gains nothing"
        return (
            f"Leave it alone: one CTA a tile, launched plainly, does it in {chosen.us:.1f} us ({where}); "
            f"anything more {gained}, and {WORTH:.0%} is what added machinery must bring."
        )
    parts = " + ".join(_ANSWER_TEXT[answer] for answer in decision.answers)
    parts = parts[0].upper() + parts[1:]
    tile = f", {draft.pair_tile} pair tile" if draft.pair_tile else ""
    if draft.tile and not draft.pair_tile and not isinstance(problem, Attention):
        tile = f", {draft.tile} CTA tile"
    cluster = f"cluster ({x}, {y}, {z})" if x * y * z > 1 else "no cluster"
    return (
        f"{parts}: {cluster}{tile}, {chosen.schedule}; {chosen.us:.1f} us predicted on "
        f"{device.name}, {where}."
    )


def _evidence(draft: Draft, device: Device) -> Iterable[Evidence]:
    yield from from_device(device, draft.used_facts)
    yield from draft.derived
    yield from constants()
    chosen = draft.decision.chosen
    yield derived(
        "predicted.kernel_us",
        round(chosen.us, 2),
        "us",
        f"simulated {chosen.scheduler}: {draft.work.num_tiles} tiles on {draft.work.slots} slots",
        "the choice",
    )
    yield derived(
        "resident_clusters",
        draft.residency.resident_clusters,
        "clusters",
        "sum over GPCs with sms >= c of floor(k sms / c)",
        "waves, grid",
    )


def _contract(draft: Draft, device: Device) -> Contract:
    protocol = draft.protocol.as_dict()
    rows = []
    for size in sorted({*CLUSTER_SIZES, draft.residency.cluster_size}):
        if size > device.cluster_size_max:
            continue
        found = (
            draft.residency
            if size == draft.residency.cluster_size
            else find_residency(draft.resources, size, device)
        )
        rows.append(
            ResidencyRow(**{name: getattr(found, name) for name in ResidencyRow.model_fields})
        )
    launch = {
        "threads": draft.resources.threads,
        "smem_bytes": draft.resources.smem_bytes,
        "regs": draft.resources.regs,
        **protocol.pop("launch", {}),
    }
    return Contract(
        launch=launch,
        residency=tuple(rows),
        tile_map=draft.tile_map,
        traffic=draft.traffic,
        **{name: protocol.get(name) for name in Contract.model_fields if name in protocol},
    )


def _schedule(draft: Draft, outcomes: dict[Any, Outcome]) -> ScheduleTables:
    work = draft.work
    costs = work.persistent_cycles
    roofline = draft.roofline
    return ScheduleTables(
        tiles=work.num_tiles,
        resident_clusters=work.slots,
        num_waves=work.num_tiles / work.slots,
        tile_cycles={
            "min": float(costs.min()) if len(costs) else 0.0,
            "mean": float(costs.mean()) if len(costs) else 0.0,
            "max": float(costs.max()) if len(costs) else 0.0,
            "spread": work.spread,
            "alone_mean": float(work.alone_cycles.mean()) if len(costs) else 0.0,
        },
        schedulers={name: _metrics(outcome) for name, outcome in outcomes.items()},
        boundary=tuple(_boundaries(draft, outcomes)),
        roofline={}
        if roofline is None
        else {
            "compute_us": roofline.compute_us,
            "memory_us": roofline.memory_us,
            "floor_us": roofline.floor_us,
            "flops": roofline.flops,
            "compulsory_bytes": roofline.compulsory_bytes,
            "of_floor": roofline.floor_us / draft.decision.chosen.us
            if draft.decision.chosen.us
            else 1.0,
        },
        bound=tuple(
            BoundRow(**{n: getattr(b, n) for n in BoundRow.model_fields}) for b in draft.bound
        ),
        options=tuple(draft.options),
    )


def _metrics(outcome: Outcome) -> dict[str, float]:
    return {**outcome.metrics.as_dict(), "kernel_us": outcome.kernel_us}


def _boundaries(draft: Draft, outcomes: dict[Any, Outcome]) -> Iterable[Boundary]:
    """R-1, R, R+1, 2R, 2R+1 tiles, by repeating or cutting the real list, and the real count."""
    work = draft.work
    for count in boundary_counts(work.num_tiles, work.slots):
        found = outcomes if count == work.num_tiles else work.resized(count).run_all(outcomes)
        yield Boundary(
            tiles=count,
            resident_clusters=work.slots,
            schedulers={name: _metrics(outcome) for name, outcome in found.items()},
        )


def _validation(draft: Draft, device: Device, problem: Workload) -> Validation:
    work, resources = draft.work, draft.resources
    base = (
        f"--device {shlex.quote(device.name)} --cluster {','.join(map(str, draft.cluster_shape))}"
    )
    kernel = (
        f"--threads {resources.threads} --smem-bytes {resources.smem_bytes} --regs {resources.regs}"
        + (f" --tmem-columns {resources.tmem_columns}" if resources.tmem_columns else "")
    )
    cost = round(float(work.persistent_cycles.mean())) if work.num_tiles else 0
    size = draft.residency.cluster_size
    residency = Check(
        command=f"tilewright residency --device {device.name} {kernel} --clusters {size}",
        refuted_if=f"cuOccupancyMaxActiveClusters on the unit at hand is not "
        f"{draft.residency.resident_clusters}; then plan again with that unit's gpc_sms",
    )
    verify = Check(
        command=f"tilewright plan {command_of(problem, device)} --verify",
        refuted_if="a tile is done twice or not at all under declines, busy SMs or a priority kernel (exit code 1)",
    )
    counts = boundary_counts(work.num_tiles, work.slots)[:-1]
    boundary = [
        Check(
            command=f"tilewright simulate {count}x{cost} {base} {kernel}",
            refuted_if=_boundary_expectation(count, work.slots),
        )
        for count in counts
    ]
    return Validation(
        correctness=(verify, residency),
        boundary=tuple(boundary),
        experiment=tuple(draft.experiments)
        or (_schedule_experiment(draft, base, kernel, problem, device),),
    )


def _boundary_expectation(count: int, slots: int) -> str:
    rounds = -(-count // slots)
    return f"a measured kernel of {count} equal tiles takes other than about {rounds} tile time{'s' * (rounds > 1)}"


def _schedule_experiment(
    draft: Draft, base: str, kernel: str, problem: Workload, device: Device
) -> Check:
    """Where no profiler builds both sides: write the tile costs out and replay measured ones."""
    chosen = draft.decision.chosen.scheduler
    others = [o.scheduler for o in draft.decision.rejected if o.scheduler != chosen]
    other = others[0] if others else "any other"
    if isinstance(problem, TileList):
        command = f"tilewright simulate COSTS.csv {base} {kernel}"
    else:
        command = (
            f"tilewright plan {command_of(problem, device)} --costs costs.csv && "
            f"tilewright simulate costs.csv {base} {kernel}"
        )
    return Check(
        command=command,
        refuted_if=f"with tile times measured on the device in place of costs.csv, {chosen} is slower than {other} "
        f"by more than {SCHEDULER_ERROR:.0%}",
    )


def command_of(problem: Workload, device: Device) -> str:
    """The `plan` arguments that give this problem; long lists are named by the file they came from."""
    given = problem.model_dump(exclude_defaults=True)
    given.pop("kind", None)
    words: list[str] = [problem.kind]
    if isinstance(problem, TileList):
        words.append("COSTS.csv")
        given = {
            "cluster": ",".join(map(str, problem.cluster_shape)),
            "threads": problem.threads,
            "smem_bytes": problem.smem_bytes,
            "regs": problem.regs,
        }
    for name, value in given.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words += [flag] if value else []
        elif isinstance(value, tuple):
            short = ",".join(map(str, value)) if len(value) <= 16 else f"{name.upper()}.csv"
            words += [flag, short]
        else:
            words += [flag, str(value)]
    return " ".join([*words, "--device", shlex.quote(device.name)])

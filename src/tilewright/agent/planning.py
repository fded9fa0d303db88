"""Tools over problems and devices: plan, residency, simulate, devices."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Annotated, Any, Literal

from pydantic import Field

from tilewright import __version__
from tilewright.agent.tool import Answer, Arguments, Call
from tilewright.candidates import Busy
from tilewright.device import Device, known_devices, load
from tilewright.draft import Options
from tilewright.evidence import Evidence
from tilewright.launch import Launch, simulate_launch
from tilewright.lists import parse_cost_runs, parse_cost_table
from tilewright.plan import make_plan
from tilewright.plan_model import (
    Conclusion,
    Contract,
    ResidencyRow,
    Risk,
    ScheduleTables,
    Validation,
)
from tilewright.problem import (
    Attention,
    Gemm,
    GroupedGemm,
    TileList,
    Workload,
)
from tilewright.report.tables import residency_rows
from tilewright.residency import CtaResources
from tilewright.sim import Scheduler

Shape = Annotated[
    tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)]],
    Field(description="x, y, z in CTAs"),
]
DeviceName = Annotated[
    str,
    Field(description="A known device, like b200, or a TOML file in an allowed folder."),
]
Costs = Annotated[
    str,
    Field(
        description="Tiles inline, 140x52000,24x190000 in cycles or 594x10.5us, or the name of a CSV in an allowed "
        "folder with one column cost_cycles or cost_us."
    ),
]
Part = Literal["conclusion", "evidence", "contract", "schedule", "validation", "risks"]


class Tiles(Arguments):
    """Tiles of known cost; each is the work of one cluster."""

    kind: Literal["tiles"]
    costs: Costs
    cluster_shape: Shape = (1, 1, 1)
    threads: int = Field(default=256, gt=0)
    smem_bytes: int = Field(default=0, ge=0)
    regs: int = Field(default=64, gt=0)


class PlanArguments(Arguments):
    """A workload, a device, and what is already decided."""

    problem: Annotated[Gemm | GroupedGemm | Attention | Tiles, Field(discriminator="kind")]
    device: DeviceName = "b200"
    parts: tuple[Part, ...] = Field(
        default=("conclusion", "validation", "risks"),
        description="What to return. contract holds tile map, barriers, masks, CLC loop, TMEM and SMEM maps.",
    )
    cluster_shape: Shape | None = None
    cta_group: Literal[1, 2] | None = None
    tile: Annotated[
        tuple[int, int] | None, Field(description="m, n of one CTA, not of the pair.")
    ] = None
    scheduler: Scheduler | None = None
    busy_sms: Annotated[int, Field(ge=0, description="SMs that foreign kernels hold.")] = 0
    sm_budget: Annotated[int | None, Field(description="SMs that this kernel may use.")] = None
    allow_swap: bool = True
    clc_depth: Annotated[int, Field(ge=1)] = 1


class PlanAnswer(Answer):
    """The parts asked for; the others are null."""

    tilewright: str
    problem: dict[str, Any]
    device: dict[str, Any]
    conclusion: Conclusion | None = None
    evidence: tuple[Evidence, ...] | None = None
    contract: Contract | None = None
    schedule: ScheduleTables | None = None
    validation: Validation | None = None
    risks: tuple[Risk, ...] | None = None


def plan(given: PlanArguments, call: Call) -> PlanAnswer:
    """Decide the workload."""
    chip = call.device(given.device)
    problem = _workload(given.problem, call)
    call.report(f"planning on {chip.name}")
    options = Options(
        cluster_shape=given.cluster_shape,
        cta_group=given.cta_group,
        tile=given.tile,
        busy=Busy(given.busy_sms, given.sm_budget),
        allow_swap=given.allow_swap,
        scheduler=given.scheduler,
        clc_depth=given.clc_depth,
    )
    found = make_plan(problem, chip, options)
    parts = {part: getattr(found, part) for part in given.parts}
    return PlanAnswer(tilewright=__version__, problem=found.problem, device=found.device, **parts)


def _workload(problem: Gemm | GroupedGemm | Attention | Tiles, call: Call) -> Workload:
    if not isinstance(problem, Tiles):
        return problem
    kernel = problem.model_dump(exclude={"kind", "costs"})
    return TileList.of({**_costs(problem.costs, call), **kernel})


def _costs(text: str, call: Call) -> dict[str, tuple[float, ...]]:
    return parse_cost_runs(text) or parse_cost_table(text, call.folders.read_text(text))


class ResidencyArguments(Arguments):
    """What one CTA takes, and the cluster sizes asked about."""

    device: DeviceName = "b200"
    threads: int = Field(default=256, gt=0)
    smem_bytes: int = Field(default=0, ge=0)
    regs: int = Field(default=32, gt=0, description="Registers a thread.")
    tmem_columns: int = Field(default=0, ge=0)
    cluster_sizes: tuple[Annotated[int, Field(ge=1, le=64)], ...] = Field(
        default=tuple(range(1, 17)), min_length=1, max_length=64
    )
    busy_sms: int = Field(default=0, ge=0)
    sm_budget: int | None = None
    nonportable: bool = Field(default=True, description="The non-portable attribute is set.")


class ResidencyAnswer(Answer):
    """A row a cluster size."""

    device: str
    gpc_sms: tuple[int, ...] | None
    rows: tuple[ResidencyRow, ...]


def residency(given: ResidencyArguments, call: Call) -> ResidencyAnswer:
    """Clusters resident by size."""
    chip = call.device(given.device)
    cta = CtaResources(given.threads, given.smem_bytes, given.regs, given.tmem_columns)
    rows = residency_rows(
        cta,
        given.cluster_sizes,
        chip,
        busy_sms=given.busy_sms,
        sm_budget=given.sm_budget,
        nonportable=given.nonportable,
    )
    return ResidencyAnswer(
        device=chip.name,
        gpc_sms=chip.gpc_sms,
        rows=tuple(ResidencyRow.model_validate(asdict(row)) for row in rows),
    )


class SimulateArguments(Arguments):
    """Tile costs, where they run, and beside what."""

    costs: Costs
    device: DeviceName | None = None
    workers: Annotated[
        int | None,
        Field(ge=1, le=100_000, description="Slots of the pure model, without a device."),
    ] = None
    cluster_shape: Shape = (1, 1, 1)
    threads: int = Field(default=256, gt=0)
    smem_bytes: int = Field(default=0, ge=0)
    regs: int = Field(default=32, gt=0)
    tmem_columns: int = Field(default=0, ge=0)
    prologue_cycles: int = Field(default=0, ge=0)
    scheduler: Scheduler | Literal["all"] = "all"
    order: Literal["given", "longest-first"] = "given"
    busy_sms: int = Field(default=0, ge=0)
    busy_us: float | None = Field(default=None, gt=0)
    sm_budget: int | None = None
    clc_depth: int = Field(default=1, ge=1)


class SimulateAnswer(Answer):
    """Metrics by scheduler, as `simulate --json` names them."""

    tiles: int
    where: str
    schedulers: dict[str, dict[str, float]]
    notes: tuple[str, ...]


def simulate(given: SimulateArguments, call: Call) -> SimulateAnswer:
    """Run the tiles under one scheduler or all."""
    costs = _costs(given.costs, call)
    chip = None if given.device is None else call.device(given.device)
    named = given.model_dump(include={field.name for field in fields(Launch)})
    call.report(f"simulating {len(next(iter(costs.values())))} tiles")
    found = simulate_launch(
        costs, chip, Launch(**named), scheduler=given.scheduler, order=given.order
    )
    return SimulateAnswer(
        tiles=found.num_tiles,
        where=found.where,
        schedulers=found.as_dict(),
        notes=tuple(found.notes),
    )


class DevicesArguments(Arguments):
    """A device, or none for the list of all."""

    name: DeviceName | None = None


class DeviceRow(Answer):
    """What a device can do."""

    name: str
    product: str
    compute_capability: str
    arch: str
    sm_count: int
    cluster_size_max: int
    cluster_size_portable_max: int
    capabilities: tuple[str, ...]


class FactRow(Answer):
    """One value of a device, and how it is known."""

    value: Any
    unit: str
    kind: str
    source: str
    plausible: tuple[float, float] | None
    note: str


class DevicesAnswer(Answer):
    """The devices; `facts` of the one that was named."""

    devices: tuple[DeviceRow, ...]
    facts: dict[str, FactRow] | None = None


CAPABILITIES = (
    "clusters",
    "tma",
    "multicast",
    "wgmma",
    "tcgen05",
    "cta_group_2",
    "clc",
    "clc_multicast",
)


def devices(given: DevicesArguments, call: Call) -> DevicesAnswer:
    """The known devices, or every value of one."""
    if given.name is None:
        return DevicesAnswer(devices=tuple(_device_row(load(name)) for name in known_devices()))
    chip = call.device(given.name)
    return DevicesAnswer(devices=(_device_row(chip),), facts=device_facts(chip))


def _device_row(chip: Device) -> DeviceRow:
    return DeviceRow(
        name=chip.name,
        product=chip.product,
        compute_capability=".".join(map(str, chip.compute_capability)),
        arch=chip.arch,
        sm_count=chip.sm_count,
        cluster_size_max=chip.cluster_size_max,
        cluster_size_portable_max=chip.cluster_size_portable_max,
        capabilities=tuple(name for name in CAPABILITIES if getattr(chip, name)),
    )


def device_facts(chip: Device) -> dict[str, FactRow]:
    """Every value of a device."""
    return {
        fact.name: FactRow(**{name: getattr(fact, name) for name in FactRow.model_fields})
        for fact in chip.facts.values()
    }

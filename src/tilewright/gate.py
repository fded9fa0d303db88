"""The gate: plans and kernels of a project held against what was accepted earlier; fails when something got worse.

A gate file names them and keeps what was accepted under `expected`, which `--update` writes:

    {"max_slowdown": 0.02,
     "plans":   [{"plan": "gemm --m 8192 --n 8192 --k 8192 --device b200"}],
     "kernels": [{"file": "kernel.cu", "arch": "sm_100a", "cluster": [2, 1, 1],
                  "launch": {"device": "b200", "threads": 256, "smem_bytes": 230400}}]}

A plan fails when its predicted time is longer by more than `max_slowdown`, when fewer of its clusters are resident, or
when there is none any more. A kernel fails on a finding (error or warning) that was not there, and, where `launch` is
given, when fewer clusters are resident or more bytes are spilled. A changed choice, a gain, a finding that is gone are
notes. Files are named from the gate file's folder.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from tilewright.device import load
from tilewright.errors import BadInput, TilewrightError
from tilewright.plan import conclude, draft_of
from tilewright.residency import CtaResources, find_residency

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tilewright.audit.run import Audited
    from tilewright.draft import Options
    from tilewright.problem import Workload

    ReadPlan = Callable[[str], tuple[Workload, str, Options]]

Shape = tuple[int, int, int]
State = Literal["ok", "fail", "note"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid")


class AcceptedPlan(_Entry):
    """What a plan said when it was accepted."""

    predicted_us: float
    resident_clusters: int
    choice: str


class GatedPlan(_Entry):
    """A plan by the arguments of `tilewright plan`."""

    plan: str
    max_slowdown: float | None = Field(default=None, ge=0)
    expected: AcceptedPlan | None = None


class KernelLaunch(_Entry):
    """How a kernel is launched; `regs` a thread only where the file is not compiled here."""

    device: str
    threads: int = Field(gt=0)
    smem_bytes: int = Field(default=0, ge=0)
    regs: int | None = Field(default=None, gt=0)
    tmem_columns: int = Field(default=0, ge=0)


class KnownFinding(_Entry):
    """A finding that was accepted; a moved line is the same finding."""

    id: str
    kernel: str
    message: str


class AcceptedKernel(_Entry):
    """What was found in a kernel when it was accepted; residency and spills where its launch is given."""

    findings: tuple[KnownFinding, ...] = ()
    resident_clusters: int | None = None
    spill_bytes: int | None = None


class GatedKernel(_Entry):
    """A .ptx, or a .cu with the architecture to compile for."""

    file: str
    arch: str | None = None
    options: tuple[str, ...] = ()
    cluster: Shape | None = None
    block: Shape | None = None
    launch: KernelLaunch | None = None
    expected: AcceptedKernel | None = None

    @model_validator(mode="after")
    def _known_registers(self) -> Self:
        if self.launch and self.launch.regs is None and not self.file.endswith(".cu"):
            raise ValueError(
                f"{self.file} is not compiled here: say launch.regs, registers a thread"
            )
        return self


class GateFile(_Entry):
    """The file."""

    max_slowdown: float = Field(default=0.02, ge=0)
    plans: list[GatedPlan] = []
    kernels: list[GatedKernel] = []


class Verdict(NamedTuple):
    """One line of the outcome."""

    state: State
    subject: str
    text: str
    file: str = ""


def read_gate(path: Path) -> GateFile:
    """The gate file.

    Raises:
        BadInput: unreadable, or not one; names the field.
    """
    try:
        gate = GateFile.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", given=path) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        message = str(first["msg"]).removeprefix("Value error, ")
        raise BadInput(f"{path}: {where + ': ' if where else ''}{message}", given=path) from None
    if not gate.plans and not gate.kernels:
        raise BadInput(f"{path} names no plan and no kernel", given=path)
    return gate


def write_gate(gate: GateFile, path: Path) -> None:
    """Write the gate file in one step."""
    text = json.dumps(gate.model_dump(mode="json", exclude_defaults=True), indent=2)
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(text + "\n", encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", given=path) from None


def run_gate(
    gate: GateFile, folder: Path, read_plan: ReadPlan, *, update: bool = False
) -> Iterator[Verdict]:
    """Hold everything against what was accepted, or with `update` accept what is.

    Args:
        folder: of the gate file.
        read_plan: problem, device name and options of a plan's arguments.
    """
    for plan in gate.plans:
        bound = gate.max_slowdown if plan.max_slowdown is None else plan.max_slowdown
        try:
            found = _plan_now(plan, read_plan)
        except TilewrightError as error:
            yield Verdict("fail", plan.plan, str(error))
            continue
        if update:
            plan.expected = found
        yield from _compare_plan(plan, found, bound)
    for kernel in gate.kernels:
        try:
            now = _kernel_now(kernel, folder)
        except TilewrightError as error:
            yield Verdict("fail", kernel.file, str(error), kernel.file)
            continue
        if update:
            kernel.expected = now
        yield from _compare_kernel(kernel, now)


def _plan_now(entry: GatedPlan, read_plan: ReadPlan) -> AcceptedPlan:
    problem, name, options = read_plan(entry.plan)
    device = load(name)
    draft = draft_of(problem, device, options)
    said = conclude(draft, device, problem)
    cluster = "x".join(map(str, said.cluster_shape))
    tile = "" if said.tile is None else f"tile {said.tile.m}x{said.tile.n}x{said.tile.k}, "
    return AcceptedPlan(
        predicted_us=round(said.predicted_us, 3),
        resident_clusters=draft.work.slots,
        choice=f"{tile}cluster {cluster}, {said.scheduler}, {said.tile_order}",
    )


def _compare_plan(entry: GatedPlan, now: AcceptedPlan, bound: float) -> Iterator[Verdict]:
    was = entry.expected
    if was is None:
        yield Verdict("fail", entry.plan, "nothing is accepted yet; --update accepts what is")
        return
    if now.choice != was.choice:
        yield Verdict("note", entry.plan, f"now {now.choice}; it was {was.choice}")
    change = now.predicted_us / was.predicted_us - 1 if was.predicted_us else 0.0
    times = f"{now.predicted_us:.1f} us predicted, it was {was.predicted_us:.1f} us ({change:+.1%})"
    slots = f"{now.resident_clusters} clusters resident, it was {was.resident_clusters}"
    slower, fewer = change > bound, now.resident_clusters < was.resident_clusters
    if slower:
        yield Verdict("fail", entry.plan, f"{times}; allowed is {bound:+.1%}")
    if fewer and now.choice == was.choice:
        yield Verdict("fail", entry.plan, slots)
    elif not slower:
        yield Verdict("ok", entry.plan, f"{times}; {slots}")


def _kernel_now(entry: GatedKernel, folder: Path) -> AcceptedKernel:
    from tilewright.audit.kernel import Options  # noqa: PLC0415  (a gate of plans needs no audit)
    from tilewright.audit.run import audit_text  # noqa: PLC0415
    from tilewright.ptx import parse_ptx  # noqa: PLC0415
    from tilewright.run.inputs import PtxText, read_input  # noqa: PLC0415

    given = read_input(str(folder / entry.file), entry.arch, entry.options)
    if not isinstance(given, PtxText):
        raise BadInput(f"{entry.file} has no PTX in it", given=entry.file)
    audited = audit_text(
        parse_ptx(given.ptx, given.name), given.sources, Options(entry.cluster, entry.block)
    )
    spilled, resident = None, None
    if entry.launch is not None:
        registers, spilled = _compiled(entry, folder)
        resident = _resident(entry, entry.launch, registers, audited)
    return AcceptedKernel(
        findings=_findings(audited), resident_clusters=resident, spill_bytes=spilled
    )


def _findings(audited: Audited) -> tuple[KnownFinding, ...]:
    rows = [each.finding for each in audited.findings if each.finding.severity != "note"]
    known = dict.fromkeys((f.rule, f.kernel, f.message) for f in rows)
    return tuple(KnownFinding(id=a, kernel=b, message=c) for a, b, c in known)


def _compiled(entry: GatedKernel, folder: Path) -> tuple[int, int | None]:
    """The most registers a thread of any kernel in the file, and the bytes that are spilled."""
    if not entry.file.endswith(".cu"):
        assert entry.launch is not None and entry.launch.regs is not None  # noqa: PT018, S101  (checked on reading)
        return entry.launch.regs, None
    from tilewright.run.compiler import compile_source  # noqa: PLC0415  (an extra)

    source = (folder / entry.file).read_text(encoding="utf-8")
    assert entry.arch is not None  # noqa: S101  (read_input compiled for it)
    uses = compile_source(source, entry.file, entry.arch, entry.options).functions
    registers = max((use.registers for use in uses if use.is_kernel), default=0)
    return registers, sum(use.spill_store_bytes for use in uses)


def _resident(entry: GatedKernel, launch: KernelLaunch, registers: int, audited: Audited) -> int:
    """Clusters of the launch's shape, or of the one that the kernel declares."""
    declared = [c.cluster_shape for c in audited.contracts if c.cluster_shape is not None]
    size = math.prod(entry.cluster or (declared[0] if declared else (1, 1, 1)))
    cta = CtaResources(
        launch.threads, launch.smem_bytes, launch.regs or registers, launch.tmem_columns
    )
    return find_residency(cta, size, load(launch.device)).resident_clusters


def _compare_kernel(entry: GatedKernel, now: AcceptedKernel) -> Iterator[Verdict]:
    was = entry.expected
    if was is None:
        yield Verdict(
            "fail", entry.file, "nothing is accepted yet; --update accepts what is", entry.file
        )
        return
    failed = False
    for finding in now.findings:
        if finding not in was.findings:
            failed = True
            text = f"new finding {finding.id} in {finding.kernel}: {finding.message}"
            yield Verdict("fail", entry.file, text, entry.file)
    for finding in was.findings:
        if finding not in now.findings:
            gone = f"{finding.id} in {finding.kernel} is gone; --update forgets it"
            yield Verdict("note", entry.file, gone, entry.file)
    for what, new, old, worse in (
        ("clusters resident", now.resident_clusters, was.resident_clusters, -1),
        ("bytes spilled", now.spill_bytes, was.spill_bytes, 1),
    ):
        if new is not None and old is not None and (new - old) * worse > 0:
            failed = True
            yield Verdict("fail", entry.file, f"{new} {what}, it was {old}", entry.file)
    if not failed:
        known = len(now.findings)
        resident = f", {now.resident_clusters} clusters resident" if now.resident_clusters else ""
        yield Verdict("ok", entry.file, f"no new finding, {known} known{resident}", entry.file)


def as_json(verdicts: list[Verdict]) -> dict[str, Any]:
    """What `gate --json` prints."""
    return {
        "passed": all(each.state != "fail" for each in verdicts),
        "verdicts": [each._asdict() for each in verdicts],
    }

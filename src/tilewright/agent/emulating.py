"""The tool over the emulator: check."""

from __future__ import annotations

import math
from pathlib import PurePath
from typing import TYPE_CHECKING, Annotated, Literal, Self

from pydantic import Field, model_validator

from tilewright.agent.kernels import Arch, ptx_of
from tilewright.agent.tool import Answer, Arguments, Call
from tilewright.emulate.errors import NotModelled
from tilewright.emulate.spec import LaunchSpec
from tilewright.errors import BadInput
from tilewright.plan_model import Plan
from tilewright.run.emulated_check import Checked, Schedules, check_ptx, unsupported
from tilewright.run.emulated_plan import check_plan
from tilewright.run.inputs import PtxText

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_SCHEDULES = 1000
"""In one call; the seed of the next call goes on from there."""

MAX_CTAS = 1 << 14
"""Of a grid."""

MAX_ARRAY_BYTES = 64 * 2**20
"""Of all arrays, those of files too. The race detector keeps some twenty times what a kernel touches."""


class CheckArguments(Arguments):
    """A kernel as text, as a file or as a plan's; how it is launched; which schedules."""

    ptx: Annotated[str | None, Field(description="PTX text.")] = None
    file: Annotated[
        str | None, Field(description="A .ptx or .cu file in an allowed folder, instead of ptx.")
    ] = None
    plan: Annotated[
        str | None,
        Field(
            description="Instead of a kernel and its launch: plan.json of an emitted folder, or plan --json, whose "
            "own kernel is run on small problems (extra cuda)."
        ),
    ] = None
    arch: Annotated[Arch | None, Field(description="To compile a .cu file for.")] = None
    launch: Annotated[
        LaunchSpec | None, Field(description="Grid, arguments, arrays and what they must end as.")
    ] = None
    launch_file: Annotated[
        str | None,
        Field(
            description="The same as TOML in an allowed folder; files that it names lie beside it."
        ),
    ] = None
    schedules: int = Field(default=20, ge=1, le=MAX_SCHEDULES)
    seed: int = Field(default=0, ge=0, lt=2**32, description="Of the first schedule.")
    resident: Annotated[
        int | None, Field(ge=1, description="Clusters at once; the seed varies it unless given.")
    ] = None
    decline_at: Annotated[
        tuple[Annotated[int, Field(ge=0)], ...] | None,
        Field(max_length=1024, description="Launch control requests that are declined."),
    ] = None
    races: bool = Field(default=True, description="Hold accesses against one another.")

    @model_validator(mode="after")
    def _one_of_each(self) -> Self:
        kernels = [each is not None for each in (self.ptx, self.file, self.plan)]
        launches = [each is not None for each in (self.launch, self.launch_file)]
        if sum(kernels) != 1:
            raise ValueError("give exactly one of ptx, file and plan")
        if self.plan is None and sum(launches) != 1:
            raise ValueError("give exactly one of launch and launch_file with a kernel")
        if self.plan is not None and (
            any(launches) or self.arch or self.resident is not None or self.decline_at is not None
        ):
            raise ValueError("a plan goes with schedules, seed and races alone")
        return self


class EmulatedFinding(Answer):
    """One break of a rule, with both places."""

    id: str
    severity: Literal["error", "warning", "note"]
    file: str
    line: int
    message: str
    other_line: int | None
    other_says: str


class ReplayRow(Answer):
    """Arguments that give the first failure again, with schedules = 1."""

    seed: int
    resident: int | None
    decline_at: tuple[int, ...]


class CoverageRow(Answer):
    """What the schedules came by; lines are the PTX's."""

    blocks: int
    blocks_run: int
    lines_not_run: tuple[tuple[int, int], ...]
    waits: int
    waits_both_ways: int = Field(
        description="Waits for an mbarrier at which some thread had to wait and one found its phase over."
    )
    lines_never_waited: tuple[int, ...] = Field(
        description="Waits that no schedule needed: without them the schedules would have passed as well."
    )


class CheckAnswer(Answer):
    """What `check --json` prints, and below it what the command prints besides.

    `message` names what is not emulated; `last_steps` led to the first failure, shrunk.
    """

    verdict: Literal["pass", "fail", "unsupported"]
    schedules: int
    findings: tuple[EmulatedFinding, ...]
    seed: int
    coverage: CoverageRow | None = None
    message: str = ""
    summary: str = ""
    notes: tuple[str, ...] = ()
    replay: ReplayRow | None = None
    last_steps: tuple[str, ...] = ()


def check(given: CheckArguments, call: Call) -> CheckAnswer:
    """Run a kernel on the emulator under many schedules."""
    asked = Schedules(
        given.schedules, given.seed, given.resident, given.decline_at, races=given.races
    )

    def progress(done: int) -> None:
        call.report(f"{done} of {given.schedules} schedules done")

    try:
        if given.plan is not None:
            found = _check_plan(given.plan, asked, call, progress)
        else:
            found = _check_kernel(given, asked, call, progress)
    except NotModelled as stopped:
        return CheckAnswer.model_validate(unsupported(stopped))
    return CheckAnswer(
        **found.as_dict(),
        summary=found.summary,
        notes=found.notes,
        replay=None if found.replay is None else ReplayRow(**found.replay._asdict()),
        last_steps=found.last_steps,
    )


def _check_plan(
    name: str, asked: Schedules, call: Call, progress: Callable[[int], None]
) -> Checked:
    plan = Plan.parse(call.folders.read_text(name), name)
    device = call.device(str(plan.device["name"]))
    call.report("compiling the plan's kernel")
    return check_plan(plan, device, asked, use_cache=False, progress=progress)


def _check_kernel(
    given: CheckArguments, asked: Schedules, call: Call, progress: Callable[[int], None]
) -> Checked:
    text = (
        PtxText("<ptx>", given.ptx, {"<ptx>": given.ptx})
        if given.ptx is not None
        else ptx_of(str(given.file), given.arch, call)
    )
    folder = PurePath()
    launch = given.launch
    if launch is None:
        name = str(given.launch_file)
        launch, folder = LaunchSpec.parse(call.folders.read_text(name), name), PurePath(name).parent
    _check_size(launch)
    left = MAX_ARRAY_BYTES - launch.nbytes

    def read(name: str) -> bytes:
        nonlocal left
        content = call.folders.read_bytes(str(folder / name))
        left -= len(content)
        if left < 0:
            raise _too_large("the arrays have", MAX_ARRAY_BYTES - left, MAX_ARRAY_BYTES, "bytes")
        return content

    return check_ptx(text, launch, read, asked, progress=progress)


def _check_size(launch: LaunchSpec) -> None:
    """Refuse what would take the worker's memory before any of it is taken."""
    if launch.nbytes > MAX_ARRAY_BYTES:
        raise _too_large("the arrays have", launch.nbytes, MAX_ARRAY_BYTES, "bytes")
    ctas = math.prod(launch.grid or ())
    if ctas > MAX_CTAS:
        raise _too_large("the grid has", ctas, MAX_CTAS, "CTAs")


def _too_large(what: str, given: int, most: int, unit: str) -> BadInput:
    return BadInput(
        f"{what} {given} {unit}; at most {most} are taken from an agent. A smaller problem shows the same protocol",
        given=given,
        allowed=f"<= {most} {unit}",
        nearest=str(most),
    )

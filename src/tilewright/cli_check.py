"""`tilewright check`: run a kernel on the emulator, under many schedules."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from tilewright.cli_options import JsonOption, parse_triple
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from tilewright.audit.locate import Locator
    from tilewright.emulate.explore import Explorer
    from tilewright.emulate.report import Outcome, Report
    from tilewright.ptx.finding import Finding


def check(
    file: Annotated[
        str | None, typer.Argument(help="A .ptx or .cu file, or - for PTX on standard input.")
    ] = None,
    args: Annotated[
        Path | None,
        typer.Option("--args", help="TOML file with the arguments, and launch values if wanted."),
    ] = None,
    plan: Annotated[
        Path | None,
        typer.Option("--plan", help="Instead of a file: the kernel of this plan (plan --json)."),
    ] = None,
    kernel: Annotated[str | None, typer.Option(help="Name of the entry.")] = None,
    grid: Annotated[str | None, typer.Option(help="CTAs of the grid: x,y,z.")] = None,
    cluster: Annotated[
        str | None,
        typer.Option(help="CTAs of a cluster: x,y,z; what the kernel says unless given."),
    ] = None,
    block: Annotated[str | None, typer.Option(help="Threads of a CTA: x,y,z; likewise.")] = None,
    smem_bytes: Annotated[int | None, typer.Option(help="Dynamic shared memory.")] = None,
    schedules: Annotated[int, typer.Option(min=1, help="Schedules to run.")] = 20,
    seed: Annotated[int, typer.Option(min=0, help="Of the first schedule; 0 is in turn.")] = 0,
    resident: Annotated[
        int | None, typer.Option(min=1, help="Clusters at once; the seed varies it unless given.")
    ] = None,
    decline_at: Annotated[
        str | None,
        typer.Option("--decline-at", help="Launch control requests that are declined: 0,2."),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, help="Schedules beside one another.")] = 1,
    races: Annotated[
        bool, typer.Option("--races/--no-races", help="Hold accesses against one another.")
    ] = True,
    arch: Annotated[str, typer.Option(help="To compile a .cu file for.")] = "sm_100a",
    as_json: JsonOption = False,
) -> None:
    """Run a kernel on the CPU under many schedules: wrong results, races, deadlocks, broken contracts.

    Exit code 1 on findings, 2 on an instruction that is not emulated or bad input.
    """
    from tilewright.emulate.errors import NotModelled

    if (file is None) == (plan is None):
        raise BadInput("name a .ptx or .cu file, or --plan plan.json")
    try:
        if plan is not None:
            report, notes = _check_plan(plan, schedules, seed, races=races)
            small, locator = report.failing, None
        else:
            shape: dict[str, object] = {"kernel": kernel, "smem_bytes": smem_bytes}
            for name, text in (("grid", grid), ("cluster", cluster), ("block", block)):
                shape[name] = parse_triple(f"--{name}", text)
            explorer, locator = _explorer(
                str(file), args, arch, shape, resident, _numbers(decline_at), races
            )
            report, notes = _explore(explorer, schedules, seed, processes)
            small = explorer.shrink(report.failing) if report.failing is not None else None
    except NotModelled as stopped:
        _print_unsupported(stopped, as_json)
        raise typer.Exit(2) from None
    if as_json:
        typer.echo(json.dumps(_document(report, locator), indent=2))
    else:
        _print(report, notes, small, locator)
    if report.verdict == "fail":
        raise typer.Exit(1)


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise BadInput(
            f'--decline-at "{text}" is not a list of numbers', given=text, allowed="0,2,5"
        )
    return [int(part) for part in parts]


def _explorer(
    file: str,
    args: Path | None,
    arch: str,
    shape: dict[str, object],
    resident: int | None,
    decline_at: list[int] | None,
    races: bool,
) -> tuple[Explorer, Locator]:
    from tilewright.audit.locate import Locator
    from tilewright.emulate.explore import Explorer
    from tilewright.emulate.spec import Spec
    from tilewright.ptx import parse_ptx
    from tilewright.run.inputs import PtxText, read_input

    found = read_input(file, arch)
    if not isinstance(found, PtxText):
        raise BadInput(f"{file} holds no PTX, which is what the emulator runs", given=file)
    spec = Spec.read(args) if args is not None else Spec()
    module = parse_ptx(found.ptx, found.name)
    launch, expected = spec.prepare(module, **shape)
    explorer = Explorer(
        launch, expected=expected, resident=resident, decline_at=decline_at, races=races
    )
    return explorer, Locator(module, found.sources)


def _explore(
    explorer: Explorer, schedules: int, seed: int, processes: int
) -> tuple[Report, list[str]]:
    start = time.perf_counter()
    with _Bar(schedules) as bar:
        report = explorer.explore(
            schedules, first_seed=seed, processes=processes, progress=bar.advance
        )
    took = time.perf_counter() - start
    instructions = sum(outcome.instructions for outcome in report.outcomes)
    return report, [f"{instructions} warp instructions in {took:.1f} s"]


def _check_plan(path: Path, schedules: int, seed: int, *, races: bool) -> tuple[Report, list[str]]:
    from pydantic import ValidationError

    from tilewright.plan_model import Plan
    from tilewright.run.emulated_plan import check_plan

    try:
        plan = Plan.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValidationError) as error:
        first = str(error).splitlines()[0]
        raise BadInput(
            f"{path} is not the output of tilewright plan --json ({first})", given=path
        ) from None
    with _Bar(schedules) as bar:
        found = check_plan(
            plan, schedules=schedules, first_seed=seed, races=races, progress=bar.advance
        )
    notes = [
        f"problems: {', '.join(found.cases)}",
        f"largest error: {found.worst:.3g} of its bound",
    ]
    return found.report, notes


class _Bar:
    """A progress bar on a terminal; nothing elsewhere."""

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._progress = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._progress.add_task("schedules", total=total)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def advance(self, done: int) -> None:
        self._progress.update(self._task, completed=done)


def _document(report: Report, locator: Locator | None) -> dict[str, Any]:
    """The JSON, with places in the source that the reader has."""
    found = report.as_dict()
    if locator is not None:
        for entry, finding in zip(found["findings"], report.findings, strict=True):
            located = locator.locate(finding)
            entry["file"], entry["line"] = located.place.file, located.place.line
            entry["other_line"] = located.other.line if located.other is not None else None
    return found


def _print_finding(finding: Finding, locator: Locator | None) -> None:
    """A finding with the text of both lines."""
    from tilewright.emulate.report import render_finding

    if locator is None:
        typer.echo(render_finding(finding))
        return
    located = locator.locate(finding)
    typer.echo(f"{located.place}: {finding.severity} {finding.rule}: {finding.message}")
    typer.echo(f"    {located.line_text.strip()}")
    if located.other is not None:
        typer.echo(f"    {located.other}: {finding.other_says or 'the other place'}")
        typer.echo(f"    {located.other_text.strip()}")


def _print(
    report: Report, notes: list[str], small: Outcome | None, locator: Locator | None
) -> None:
    count = len(report.outcomes)
    line = f"{report.kernel}: {report.verdict} after {count} schedule{'s' if count > 1 else ''}"
    if report.lines:
        line += f", {len(report.covered)} of {len(report.lines)} lines with an instruction ran"
    typer.echo(line)
    for note in notes:
        typer.echo(f"  {note}")
    failing = report.failing
    shown = failing.findings if failing is not None else report.findings
    for found in shown:
        _print_finding(found, locator)
    if failing is not None and small is not None:
        _print_story(failing, small)


def _print_story(failing: Outcome, small: Outcome) -> None:
    """The first failure: what replays it, and the steps before it."""
    again = f"--seed {failing.seed} --schedules 1"
    if failing.resident is not None:
        again += f" --resident {failing.resident}"
    if failing.decline_at:
        again += f" --decline-at {','.join(map(str, failing.decline_at))}"
    typer.echo(f"replay: {again}")
    away = sum(map(bool, small.picks))
    typer.echo(
        f"shrunk: fails with {away} of {len(failing.picks)} decisions other than in turn; the last steps:"
    )
    for step in small.trace or failing.trace:
        typer.echo(f"  {step}")


def _print_unsupported(stopped: Exception, as_json: bool) -> None:
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "verdict": "unsupported",
                    "schedules": 0,
                    "findings": [],
                    "seed": 0,
                    "message": str(stopped),
                },
                indent=2,
            )
        )
    else:
        typer.echo(f"unsupported: {stopped}", err=True)

"""`tilewright check`: run a kernel on the emulator, under many schedules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Self

import typer

from tilewright.cli_options import JsonOption, TraceOption, parse_triple, print_written, write_text
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from tilewright.audit.locate import Locator
    from tilewright.ptx.finding import Finding
    from tilewright.run.emulated_check import Checked, Schedules


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
    trace: TraceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a kernel on the CPU under many schedules: wrong results, races, deadlocks, broken contracts.

    Exit code 1 on findings, 2 on an instruction that is not emulated or bad input.
    """
    from tilewright.emulate.errors import NotModelled
    from tilewright.run.emulated_check import Schedules, unsupported

    if (file is None) == (plan is None):
        raise BadInput("name a .ptx or .cu file, or --plan plan.json")
    asked = Schedules(schedules, seed, resident, _numbers(decline_at), processes, races)
    shape = {"kernel": kernel, "smem_bytes": smem_bytes}
    shapes = {"grid": grid, "cluster": cluster, "block": block}
    try:
        with _Bar(schedules) as bar:
            if plan is not None:
                _check_only(args=args, resident=resident, decline_at=decline_at, **shape, **shapes)
                found = _check_plan(plan, asked, bar, trace=trace is not None)
            else:
                triples = {name: parse_triple(f"--{name}", text) for name, text in shapes.items()}
                found = _check_file(str(file), args, arch, asked, bar, **shape, **triples)
    except NotModelled as stopped:
        if as_json:
            typer.echo(json.dumps(unsupported(stopped), indent=2))
        else:
            typer.echo(f"unsupported: {stopped}", err=True)
        raise typer.Exit(2) from None
    if trace is not None:
        from tilewright.report.trace import render_trace

        write_text(trace, render_trace([found.timeline]))
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=2))
    else:
        _print(found)
        print_written(trace)
    if found.report.verdict == "fail":
        raise typer.Exit(1)


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise BadInput(
            f'--decline-at "{text}" is not a list of numbers', given=text, allowed="0,2,5"
        )
    return tuple(int(part) for part in parts)


def _check_only(**given: object) -> None:
    """A plan says by itself what a file has to be told."""
    for name, value in given.items():
        if value is not None:
            option = f"--{name.replace('_', '-')}"
            raise BadInput(
                f"{option} does not go with --plan, whose kernel has a launch of its own",
                given=option,
                allowed="--schedules, --seed, --no-races",
            )


def _check_file(
    file: str, args: Path | None, arch: str, schedules: Schedules, bar: _Bar, **given: object
) -> Checked:
    from tilewright.emulate.spec import LaunchSpec, files_in, read_launch
    from tilewright.run.emulated_check import check_ptx
    from tilewright.run.inputs import PtxText, read_input

    found = read_input(file, arch)
    if not isinstance(found, PtxText):
        raise BadInput(f"{file} holds no PTX, which is what the emulator runs", given=file)
    launch = LaunchSpec() if args is None else read_launch(args)
    read = files_in(Path() if args is None else args.parent)
    return check_ptx(found, launch, read, schedules, progress=bar.advance, **given)


def _check_plan(path: Path, schedules: Schedules, bar: _Bar, *, trace: bool) -> Checked:
    from tilewright.device import load
    from tilewright.plan_model import Plan
    from tilewright.run.emulated_plan import check_plan

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", given=path) from None
    plan = Plan.parse(text, str(path))
    device = load(str(plan.device["name"]))
    return check_plan(plan, device, schedules, trace=trace, progress=bar.advance)


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


def _print(found: Checked) -> None:
    typer.echo(found.summary)
    for note in found.notes:
        typer.echo(f"  {note}")
    failing = found.report.failing
    for finding in failing.findings if failing is not None else found.report.findings:
        _print_finding(finding, found.locator)
    _print_story(found)


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


def _print_story(found: Checked) -> None:
    """The first failure: what replays it, and the steps before it."""
    failing, smallest, replay = found.report.failing, found.smallest, found.replay
    if failing is None or smallest is None or replay is None:
        return
    again = f"--seed {replay.seed} --schedules 1"
    if replay.resident is not None:
        again += f" --resident {replay.resident}"
    if replay.decline_at:
        again += f" --decline-at {','.join(map(str, replay.decline_at))}"
    typer.echo(f"replay: {again}")
    away = sum(map(bool, smallest.picks))
    typer.echo(
        f"shrunk: fails with {away} of {len(failing.picks)} decisions other than in turn; the last steps:"
    )
    for step in found.last_steps:
        typer.echo(f"  {step}")

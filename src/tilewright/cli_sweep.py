"""`tilewright sweep`: thousands of problems on several devices."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli_options import print_blocks, write_text
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rich.console import Console

SUMMARIES = (".html", ".md")

QUIET_SECONDS = 10.0
"""Between two lines of progress where there is no terminal."""


def sweep(
    problems: Annotated[
        Path, typer.Argument(help="A .csv or .jsonl of problems, or a model's table as .json.")
    ],
    device: Annotated[
        str, typer.Option("--device", "-d", help="Devices or TOML files: b200,h200.")
    ],
    out: Annotated[Path, typer.Option(help="Results: .csv, .jsonl or .parquet (extra sweep).")],
    processes: Annotated[
        int | None, typer.Option(help="Processes; the cores unless given.", min=1)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Most that a problem may take.", min=0.1)] = 300.0,
    ray: Annotated[
        str | None, typer.Option(help="Address of a Ray cluster, or auto, instead (extra sweep).")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(help="Write the summary page too: .html or .md.")
    ] = None,
) -> None:
    """Plan every problem on every device; started again, it goes on where it was stopped.

    Exit code 1 when a problem could not be answered.
    """
    from rich.console import Console

    from tilewright.device import load
    from tilewright.sweep import sweep as run_sweep
    from tilewright.sweep.rows import read_rows
    from tilewright.sweep.summary import sweep_document

    check_summary(summary)
    rows = read_rows(problems)
    devices = [load(name.strip()) for name in dict.fromkeys(device.split(","))]
    console = Console(stderr=True)
    try:
        with _shown(console) as progress:
            done = run_sweep(
                rows,
                devices,
                out,
                processes=processes or os.cpu_count() or 1,
                seconds=seconds,
                ray=ray,
                progress=progress,
            )
    except KeyboardInterrupt:
        console.print(f"Stopped. {out}.part keeps what is answered; the same command goes on.")
        raise typer.Exit(130) from None
    print_blocks(sweep_document(done.lines))
    write_summary(summary, done.lines)
    typer.echo(f"Written: {out} ({done.asked} plans made, {done.known} known before)")
    if done.failed:
        raise typer.Exit(1)


def check_summary(path: Path | None) -> None:
    """See that a summary could be written, before hours of work.

    Raises:
        BadInput: another ending, or no such folder.
    """
    if path is None:
        return
    if path.suffix not in SUMMARIES:
        allowed = ", ".join(SUMMARIES)
        raise BadInput(f"--summary {path} is none of {allowed}", given=path, allowed=allowed)
    if not path.parent.is_dir():
        raise BadInput(f"--summary {path}: no folder {path.parent}", given=path)


def write_summary(path: Path | None, lines: list[dict[str, object]]) -> None:
    """The summary as a page."""
    if path is None:
        return
    from tilewright.report.markdown import render_markdown
    from tilewright.report.page import render_blocks, render_page
    from tilewright.sweep.summary import sweep_document, sweep_subject

    blocks = sweep_document(lines)
    if path.suffix == ".md":
        text = render_markdown(blocks)
    else:
        text = render_page(sweep_subject(lines), render_blocks(blocks, first="Totals"))
    write_text(path, text)


@contextmanager
def _shown(console: Console) -> Iterator[Callable[[int, int, int], None]]:
    """A bar with rate and time left on a terminal; elsewhere a line now and then."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    start, first, said = time.monotonic(), -1, 0.0

    def rest(done: int, total: int, failed: int) -> str:
        nonlocal first
        first = done if first < 0 else first
        passed = time.monotonic() - start
        rate = (done - first) / passed if passed else 0.0
        left = f", {(total - done) / rate:.0f} s left" if rate else ""
        bad = f", {failed} not answered" if failed else ""
        return f"{rate:.1f}/s{left}{bad}"

    if not console.is_terminal:

        def line(done: int, total: int, failed: int) -> None:
            nonlocal said
            text = rest(done, total, failed)
            if done == total or time.monotonic() - said > QUIET_SECONDS:
                said = time.monotonic()
                typer.echo(f"{done} of {total}, {text}", err=True)

        yield line
        return
    columns = (
        TextColumn("sweep"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rest]}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("sweep", rest="")

        def step(done: int, total: int, failed: int) -> None:
            bar.update(task, completed=done, total=total, rest=rest(done, total, failed))

        yield step

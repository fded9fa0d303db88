"""Options and helpers that several commands share."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.errors import BadInput, UnknownName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tilewright.report.document import Block
    from tilewright.sim import Scheduler

PIPED_COLUMNS = 110
"""Width of a report that goes into a file or a pipe."""

DeviceOption = Annotated[
    str, typer.Option("--device", "-d", help="Name of a device, or a TOML file of your own.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
MarkdownOption = Annotated[bool, typer.Option("--markdown", help="Print Markdown.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", help="Write a self-contained page to this file.")
]
TraceOption = Annotated[
    Path | None,
    typer.Option("--trace", help="Write a trace for Perfetto or chrome://tracing to this file."),
]
ClusterOption = Annotated[
    str | None, typer.Option("--cluster", help="Only this cluster shape: x,y,z in CTAs.")
]
CtaGroupOption = Annotated[int | None, typer.Option(help="Only this cta_group: 1 or 2.")]
TileOption = Annotated[
    str | None, typer.Option("--tile", help="Only this tile of one CTA (not of the pair): m,n.")
]
BusyOption = Annotated[int, typer.Option(help="SMs that foreign kernels hold.")]
BudgetOption = Annotated[int | None, typer.Option(help="SMs that this kernel may use.")]
SwapOption = Annotated[
    bool, typer.Option("--swap/--no-swap", help="Allow a kernel of the transposed product.")
]
SchedulerOption = Annotated[
    str | None,
    typer.Option(help="Plan for this scheduler instead of choosing: single_tile, static, clc, …"),
]
DepthOption = Annotated[int, typer.Option(help="CLC requests that a worker keeps ahead.")]
VerifyOption = Annotated[
    bool, typer.Option("--verify", help="Check the plan instead of printing it; exit 1 if refuted.")
]
CostsOption = Annotated[
    Path | None, typer.Option("--costs", help="Write the tile costs to this CSV.")
]
PartOption = Annotated[
    str | None, typer.Option("--part", help="Print one part alone, like contract.barriers.")
]


def parse_triple(name: str, text: str | None) -> tuple[int, int, int] | None:
    """One to three positive numbers, "2,1,1"; missing ones are 1. None stays None."""
    if text is None:
        return None
    parts = text.split(",")
    if not 1 <= len(parts) <= 3 or not all(p.strip().isdigit() and int(p) > 0 for p in parts):
        raise BadInput(
            f'{name} "{text}" is not one to three positive numbers like 2,1,1',
            given=text,
            allowed="x,y,z",
        )
    x, y, z = ([int(p) for p in parts] + [1, 1])[:3]
    return x, y, z


def parse_scheduler(name: str | None) -> Scheduler | None:
    """A scheduler by name; None stays None."""
    from tilewright.sim import SCHEDULERS

    if name is None:
        return None
    for known in SCHEDULERS:
        if known == name:
            return known
    raise UnknownName("scheduler", name, SCHEDULERS)


def print_blocks(blocks: Iterable[Block]) -> None:
    """Lay a document out on the terminal."""
    from rich.console import Console

    from tilewright.report.text import print_document

    terminal = sys.stdout.isatty() or "COLUMNS" in os.environ
    print_document(blocks, Console(width=None if terminal else PIPED_COLUMNS, highlight=False))


def write_text(path: Path, text: str) -> None:
    """Write a file.

    Raises:
        BadInput: the place cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", given=path) from None


def print_written(*paths: Path | None) -> None:
    """A line for each file that was asked for."""
    for path in paths:
        if path is not None:
            typer.echo(f"Written: {path}")

"""The `emit` commands: the options of `plan`, and where the folder goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from tilewright.cli_plan import READERS, Asked, add_command
from tilewright.errors import UnknownName

if TYPE_CHECKING:
    from tilewright.emit import Emitted

emit_app = typer.Typer(
    help="Write a folder with the kernel of a plan: source, launchers, test, benchmark.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

OutOption = Annotated[Path, typer.Option(help="Folder to write; empty or new.")]
ForceOption = Annotated[bool, typer.Option("--force", help="Replace a folder emitted before.")]


def _emit(
    asked: Asked,
    out: OutOption,
    c: Annotated[bool, typer.Option("--c", help="The epilogue adds beta * C.")] = False,
    bias: Annotated[
        bool, typer.Option("--bias", help="The epilogue adds a bias a column.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """What every `emit` command of a kernel does with its problem."""
    from tilewright.device import load
    from tilewright.emit import emit

    chip = load(asked.device)
    _print(
        emit(asked.problem, chip, out, options=asked.options, has_c=c, has_bias=bias, force=force)
    )


def _emit_tiles(
    asked: Asked,
    out: OutOption,
    tile: Annotated[
        Path | None,
        typer.Option(help="File that defines tilewright_tile; an example unless given."),
    ] = None,
    barrier: Annotated[
        str, typer.Option(help="Who meets between two tiles: none, cta or cluster.")
    ] = "cta",
    larger_clusters: Annotated[
        bool, typer.Option("--larger-clusters", help="The launch may prefer larger clusters.")
    ] = False,
    force: ForceOption = False,
) -> None:
    """What `emit tiles` does."""
    from tilewright.device import load
    from tilewright.emit import Around, emit_tiles
    from tilewright.kernels.harness import Meeting
    from tilewright.problem import TileList

    assert isinstance(asked.problem, TileList)  # noqa: S101  (the reader's kind)
    for known in get_args(Meeting):
        if known == barrier:
            around = Around(known, larger_clusters)
            break
    else:
        raise UnknownName("barrier", barrier, get_args(Meeting))
    _print(
        emit_tiles(
            asked.problem,
            load(asked.device),
            out,
            options=asked.options,
            tile=tile,
            around=around,
            force=force,
        )
    )


def _print(done: Emitted) -> None:
    from tilewright.emit.sections import architectures

    typer.echo(done.plan.conclusion.summary)
    for path in done.paths:
        predicted = (
            ""
            if path.predicted_us is None
            else f"; {path.predicted_us:.1f} us predicted on {path.device.name}"
        )
        typer.echo(f"{path.kind.name}: {', '.join(architectures(path))}; {path.what}{predicted}")
        for note in path.notes:
            typer.echo(f"  {note}")
    for name, why in done.absent:
        typer.echo(f"{name}: none, because {why}")
    typer.echo(f"Written: {done.folder} ({', '.join(done.files)})")
    arch = architectures(done.paths[0])[0].split()[0]
    typer.echo(f"Next: tilewright compile {done.folder} --arch {arch}")


for _name, _read in READERS.items():
    add_command(emit_app, _name, _read, _emit_tiles if _name == "tiles" else _emit)

"""`tilewright gate`: hold plans and kernels against what was accepted."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tilewright.cli_options import JsonOption
from tilewright.cli_plan import READERS, Asked, add_command
from tilewright.errors import BadInput

if TYPE_CHECKING:
    from tilewright.gate import Verdict

_LEVELS = {"fail": "error", "note": "notice"}


def gate(
    baseline: Annotated[Path, typer.Argument(help="The gate file, like gate.json.")],
    update: Annotated[
        bool, typer.Option("--update", help="Accept what is: write it into the file.")
    ] = False,
    as_json: JsonOption = False,
    github: Annotated[bool, typer.Option("--github", help="Print GitHub annotations.")] = False,
) -> None:
    """Fail on a new finding, lost residency, spills, or a predicted slowdown over the bound.

    Exit code 1 when something got worse.
    """
    from tilewright.gate import as_json as to_json, read_gate, run_gate, write_gate

    file = read_gate(baseline)
    verdicts = list(run_gate(file, baseline.parent, read_plan, update=update))
    if update:
        write_gate(file, baseline)
    if as_json:
        typer.echo(json.dumps(to_json(verdicts), indent=2))
    else:
        for each in verdicts:
            typer.echo(f"{each.state:<4} {each.subject}: {each.text}")
            if github and each.state in _LEVELS:
                typer.echo(_annotation(each, baseline))
    if any(each.state == "fail" for each in verdicts):
        raise typer.Exit(1)


def _annotation(verdict: Verdict, baseline: Path) -> str:
    """A workflow command; its text must keep to one line."""
    file = baseline.parent / verdict.file if verdict.file else baseline
    text = f"{verdict.subject}: {verdict.text}".replace("%", "%25").replace("\n", "%0A")
    return f"::{_LEVELS[verdict.state]} file={file},title=tilewright gate::{text}"


def read_plan(arguments: str) -> Asked:
    """What the arguments of `tilewright plan` ask.

    Raises:
        BadInput: as `tilewright plan` would complain.
    """
    try:
        asked = typer.main.get_command(_asking()).main(
            shlex.split(arguments), prog_name="plan", standalone_mode=False
        )
    except ValueError as error:  # of shlex
        raise BadInput(f'plan "{arguments}": {error}', given=arguments) from None
    except Exception as error:
        # usage errors are click's, which typer carries under a name of its own
        message = getattr(error, "format_message", None)
        if message is None:
            raise
        raise BadInput(f'plan "{arguments}": {message()}', given=arguments) from None
    if not isinstance(asked, Asked):
        raise BadInput(f'plan "{arguments}" asks nothing', given=arguments)
    return asked


def _asking() -> typer.Typer:
    """The readers of `plan`, which give back what is asked."""
    app = typer.Typer(
        rich_markup_mode=None, add_completion=False, context_settings={"help_option_names": []}
    )
    for name, read in READERS.items():
        add_command(app, name, read, _asked)
    return app


def _asked(asked: Asked) -> Asked:
    return asked

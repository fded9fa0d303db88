"""The commands for agents: skill and mcp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

skill_app = typer.Typer(
    help="The skill folder that coding agents load.", no_args_is_help=True, rich_markup_mode=None
)


@skill_app.command()
def install(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Folder of skills, like .claude/skills."),
    ],
    force: Annotated[bool, typer.Option("--force", help="Replace an older copy.")] = False,
) -> None:
    """Copy the skill to DIR/tilewright: SKILL.md, references, test prompts."""
    from tilewright.agent.skill import install_skill

    typer.echo(f"Written: {install_skill(folder, force=force)}")

"""The commands for agents: skill and mcp."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tilewright.errors import BadInput

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


def mcp(
    allow: Annotated[
        list[Path] | None,
        typer.Option(
            help="Folder whose files may be read and written; repeatable. None unless given."
        ),
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Streamable HTTP on loopback instead of stdio.")
    ] = False,
    port: Annotated[
        int, typer.Option(help="Port of --http; 0 takes a free one.", min=0, max=65535)
    ] = 8374,
    workers: Annotated[
        int | None, typer.Option(help="Calls that run at once; the cores unless given.", min=1)
    ] = None,
    seconds: Annotated[float, typer.Option(help="Most that a call may run.", min=0.1)] = 120.0,
) -> None:
    """Serve plan, residency, simulate, audit, compile, explain and devices to MCP clients (extra agent)."""
    import os

    import_mcp()
    import anyio

    from tilewright.agent.folders import Folders
    from tilewright.agent.server import make_server, serve_http, serve_stdio

    folders = Folders.of(tuple(allow or ()))
    server = make_server(folders, workers=workers or os.cpu_count() or 1, seconds=seconds)
    if http:
        anyio.run(serve_http, server, port, lambda url: typer.echo(url, err=True))
    else:
        anyio.run(serve_stdio, server)


def import_mcp() -> None:
    """See that the `agent` extra is there.

    Raises:
        BadInput: names the extra.
    """
    try:
        import mcp.server  # noqa: F401
    except ImportError as error:
        raise BadInput(
            f"the MCP server needs the agent extra: pip install 'tilewright[agent]' ({error})",
            nearest="pip install 'tilewright[agent]'",
        ) from None

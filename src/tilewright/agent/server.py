"""The MCP server: tools and resources over stdio, or over streamable HTTP on loopback.

Everything that takes time runs in `workers`; this process only speaks the protocol.
"""

from __future__ import annotations

import json
import socket
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError

from tilewright import __version__
from tilewright.agent.resources import TEMPLATES, list_resources, read_resource
from tilewright.agent.tools import TOOLS
from tilewright.agent.workers import MAX_ARGUMENT_BYTES, Workers
from tilewright.errors import BadInput, TilewrightError, UnknownName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from mcp.server.context import ServerRequestContext

    from tilewright.agent.folders import Folders

BEAT_SECONDS = 1.0
"""A caller that asked for progress hears of a running call this often."""

INSTRUCTIONS = (
    "Decide, check and explain cluster-persistent GPU kernels for NVIDIA Blackwell and Hopper. Call plan first; its default "
    "parts are the answer, how to refute it, and the risks. Every number says how it is known. Files are read only from the "
    "folders that were allowed at start."
)

JSON_TYPE = "application/json"


def make_server(folders: Folders, *, workers: int, seconds: float) -> Server[Workers]:
    """A server over the given folders.

    Args:
        workers: calls that run at once.
        seconds: most that a call may run.
    """

    @asynccontextmanager
    async def lifespan(_: Server[Workers]) -> AsyncIterator[Workers]:
        running = Workers(folders, count=workers, seconds=seconds)
        try:
            yield running
        finally:
            await running.close()

    return Server(
        "tilewright",
        version=__version__,
        title="Tilewright",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        on_list_tools=_list_tools,
        on_call_tool=_call_tool,
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
    )


async def serve_stdio(server: Server[Workers]) -> None:
    """Serve one client on standard input and output."""
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


async def serve_http(server: Server[Workers], port: int, announce: Callable[[str], None]) -> None:
    """Serve streamable HTTP on loopback; other hosts and other sites' origins are refused.

    Args:
        port: 0 takes a free one.
        announce: told the URL once the port is bound.
    Raises:
        BadInput: the port is taken.
    """
    import uvicorn  # noqa: PLC0415  (not needed on stdio)

    app = server.streamable_http_app(max_request_body_size=MAX_ARGUMENT_BYTES)
    try:
        bound = socket.create_server(("127.0.0.1", port))
    except OSError as error:
        raise BadInput(
            f"port {port} cannot be bound: {error.strerror}", given=port, nearest="--port 0"
        ) from None
    with bound:
        announce(f"http://127.0.0.1:{bound.getsockname()[1]}/mcp")
        config = uvicorn.Config(app, log_level="warning")
        await uvicorn.Server(config).serve(sockets=[bound])


async def _list_tools(
    _context: ServerRequestContext[Workers], _params: types.PaginatedRequestParams | None
) -> types.ListToolsResult:
    tools = [
        types.Tool(
            name=tool.name,
            title=tool.title,
            description=tool.description,
            input_schema=tool.arguments.model_json_schema(),
            output_schema=tool.answer.model_json_schema(mode="serialization"),
            annotations=types.ToolAnnotations(
                read_only_hint=not tool.writes, destructive_hint=tool.writes, open_world_hint=False
            ),
        )
        for tool in TOOLS.values()
    ]
    return types.ListToolsResult(tools=tools)


async def _call_tool(
    context: ServerRequestContext[Workers], params: types.CallToolRequestParams
) -> types.CallToolResult:
    if params.name not in TOOLS:
        raise _protocol_error(UnknownName("tool", params.name, TOOLS))
    started = time.monotonic()
    doing = "waiting for a worker"

    async def report() -> None:
        await context.session.report_progress(time.monotonic() - started, None, doing)

    async def now(what: str) -> None:
        nonlocal doing
        doing = what
        await report()

    async def beat() -> None:
        while True:
            await anyio.sleep(BEAT_SECONDS)
            await report()

    async with anyio.create_task_group() as beside:
        beside.start_soon(beat)
        try:
            answer = await context.lifespan_context.call(params.name, params.arguments or {}, now)
            result = types.CallToolResult(content=[_text(answer)], structured_content=answer)
        except TilewrightError as error:
            result = _failed(error)
        beside.cancel_scope.cancel()
    return result


def _failed(error: TilewrightError) -> types.CallToolResult:
    """An error as the command line prints it, with its fields beside."""
    return types.CallToolResult(
        content=[types.TextContent(text=f"error: {error}")],
        structured_content=error.as_dict(),
        is_error=True,
    )


def _text(answer: dict[str, Any]) -> types.TextContent:
    """The same as text, for clients that read no structured content."""
    return types.TextContent(text=json.dumps(answer, separators=(",", ":")))


async def _list_resources(
    _context: ServerRequestContext[Workers], _params: types.PaginatedRequestParams | None
) -> types.ListResourcesResult:
    return types.ListResourcesResult(
        resources=[
            types.Resource(
                uri=each.uri, name=each.name, description=each.description, mime_type=JSON_TYPE
            )
            for each in list_resources()
        ]
    )


async def _list_templates(
    _context: ServerRequestContext[Workers], _params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    return types.ListResourceTemplatesResult(
        resource_templates=[
            types.ResourceTemplate(
                uri_template=template, name=template, description=what, mime_type=JSON_TYPE
            )
            for template, what in TEMPLATES.items()
        ]
    )


async def _read_resource(
    _context: ServerRequestContext[Workers], params: types.ReadResourceRequestParams
) -> types.ReadResourceResult:
    try:
        text = read_resource(str(params.uri))
    except UnknownName as error:
        raise _protocol_error(error) from None
    return types.ReadResourceResult(
        contents=[types.TextResourceContents(uri=params.uri, mime_type=JSON_TYPE, text=text)]
    )


def _protocol_error(error: TilewrightError) -> MCPError:
    return MCPError(types.INVALID_PARAMS, str(error), error.as_dict())

"""Web: a server of the Model Context Protocol on standard input and output, with the official SDK.

The server reads no model itself. It checks the arguments, finds a file only inside the allowed folder, and asks a pool
of confined workers (`foretell.web.admission.pool`), which end when they take too long or too much memory. An error is
the result of a call (``is_error``), in one line, so that an agent can mend its arguments.
"""

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from mcp.server import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolRequestParams, CallToolResult, ListToolsResult, TextContent, Tool, ToolAnnotations

from foretell.errors import ForetellError, InputError
from foretell.web.admission.pool import Pool
from foretell.web.mcp.tools import TOOLS, Llm, find_model, read_arguments
from foretell.web.refusals import BusyError
from foretell.web.settings import Settings

_WORKER = (sys.executable, "-P", "-m", "foretell.web.mcp.worker")  # -P: nothing is imported from the working folder
_MOST_WAITING = 512
_MAX_MESSAGE = 1000
_INSTRUCTIONS = (
    "foretell predicts how deep-learning models run on GPUs before anyone runs them. Ask devices for names, fit "
    "whether a model fits, predict for one place, advise for the cheapest place under a limit, improve for changes "
    "that help. Every quantity has a 90 % interval (low, high) and its unit in its name; extrapolated: true means that "
    "the GPU was not measured. Nothing is executed, downloaded or rented."
)


@dataclass(frozen=True, slots=True)
class McpSettings:
    """What the server allows: the folder of model files (None: no file), time, memory and workers."""

    folder: Path | None = None
    timeout_s: float = 120.0
    memory_mib: float = 4096.0
    workers: int = 2

    def check(self) -> None:
        """Refuse settings that cannot work."""
        if self.folder is not None and not self.folder.is_dir():
            raise InputError(f"There is no folder {self.folder}; give one with model files to --folder.")
        Settings(timeout_s=self.timeout_s, workers=self.workers).check()
        if not 512 <= self.memory_mib < float("inf"):
            raise InputError(f"Got --memory-mib {self.memory_mib:g}; it must be 512 or more.")


class Tools:
    """The tools, and the workers that answer."""

    def __init__(self, settings: McpSettings, pool: Pool) -> None:
        self._folder = settings.folder
        self._pool = pool

    async def call(self, name: str, values: dict[str, Any]) -> CallToolResult:
        """The answer of a tool, or one line that says why there is none."""
        try:
            text, failed = await self._answer(name, values), False
        except ForetellError as error:
            text, failed = " ".join(str(error).split())[:_MAX_MESSAGE], True
        return CallToolResult(content=[TextContent(type="text", text=text)], is_error=failed)

    async def _answer(self, name: str, values: dict[str, Any]) -> str:
        arguments = read_arguments(name, values)
        fields = arguments.model_dump()
        models = [find_model(model, self._folder, language=isinstance(arguments, Llm)) for model in arguments.models()]
        if "of" in fields:
            fields["of"] = models
        elif models:
            fields["model"] = models[0]
        if models:
            # files are the user's own: not even their graphs stay in the cache
            fields["use_cache"] = not any(Path(model).is_absolute() for model in models)
        if "input_shape" in fields:
            fields["input_shape"] = fields["input_shape"] or None
        if self._pool.waiting >= _MOST_WAITING:
            raise BusyError(f"{_MOST_WAITING} calls are waiting. Try again later.", self._pool.wait_s)
        reply = await self._pool.ask({"tool": name, "fields": fields})
        if "error" in reply:
            raise InputError(reply["error"])
        return str(reply["text"])


def tool_list() -> list[Tool]:
    """What the server says of its tools."""
    hints = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
    return [
        Tool(name=name, description=arguments.__doc__, input_schema=_schema(arguments), annotations=hints)
        for name, arguments in TOOLS.items()
    ]


def _schema(arguments: Any) -> dict[str, Any]:
    """The JSON schema of a tool's arguments, without titles, which repeat the names."""
    schema: dict[str, Any] = arguments.model_json_schema()
    for field in schema["properties"].values():
        field.pop("title", None)
    return {name: value for name, value in schema.items() if name not in ("title", "description")}


def make_server(settings: McpSettings) -> "Server[Tools]":
    """The server; its workers start with the connection and end with it."""

    @asynccontextmanager
    async def lifespan(_: "Server[Tools]") -> AsyncIterator[Tools]:
        with tempfile.TemporaryDirectory(prefix="foretell-mcp-") as folder:
            allowed = str(settings.folder.resolve()) if settings.folder else ""
            limits = Settings(timeout_s=settings.timeout_s, workers=settings.workers, memory_mib=settings.memory_mib)
            pool = Pool(limits, Path(folder), (*_WORKER, allowed))
            pool.start()
            try:
                yield Tools(settings, pool)
            finally:
                await pool.stop()

    async def list_tools(_context: Any, _params: Any) -> ListToolsResult:
        return ListToolsResult(tools=tool_list())

    async def call_tool(context: Any, params: CallToolRequestParams) -> CallToolResult:
        tools: Tools = context.lifespan_context
        return await tools.call(params.name, dict(params.arguments or {}))

    return Server(
        "foretell", version=metadata.version("foretell"), instructions=_INSTRUCTIONS, lifespan=lifespan,
        on_list_tools=list_tools, on_call_tool=call_tool,
    )  # fmt: skip


def serve(settings: McpSettings) -> None:
    """Serve standard input and output until the client closes them."""
    asyncio.run(_serve(settings))


async def _serve(settings: McpSettings) -> None:
    server = make_server(settings)
    async with stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())

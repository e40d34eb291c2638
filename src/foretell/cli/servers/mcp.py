"""Cli: ``foretell mcp``."""

import importlib
from pathlib import Path

import click

from foretell.optional import versions


@click.command()
@click.option(
    "--folder", type=click.Path(path_type=Path), help="The only folder whose model files may be read [no file]."
)
@click.option("--timeout-s", type=float, default=120.0, help="The longest time for an answer.")
@click.option("--memory-mib", type=float, default=4096.0, help="The memory of a worker.")
@click.option("--workers", type=int, default=2, help="Worker processes that read models.")
def run(folder: Path | None, timeout_s: float, memory_mib: float, workers: int) -> None:
    """Serve the functions as tools for agents: Model Context Protocol on standard input and output."""
    versions("mcp", extra="mcp", purpose="Serving tools for agents")
    # Imported by name: the architecture does not allow cli and web to import each other.
    server = importlib.import_module("foretell.web.mcp.server")
    settings = server.McpSettings(folder, timeout_s, memory_mib, workers)
    settings.check()
    server.serve(settings)

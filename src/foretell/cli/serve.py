"""Cli: ``foretell serve``."""

import importlib
from typing import Annotated

import typer

from foretell.optional import versions

LIBRARIES = ("fastapi", "gradio", "prometheus_client", "python_multipart", "uvicorn")


def run(
    host: Annotated[
        str, typer.Option("--host", help="The address to listen at. One that others can reach needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="The port; 0: any free one.")] = 7860,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="FORETELL_TOKEN",
            help="The token that clients must send: as a bearer token, or as ?token= once.",
            show_default=False,
        ),
    ] = None,
    max_upload_mib: Annotated[float, typer.Option("--max-upload-mib", help="The largest upload.")] = 200.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="The longest time for an upload or an answer.")
    ] = 60.0,
    workers: Annotated[int, typer.Option("--workers", help="Worker processes that read models.")] = 2,
) -> None:
    """Serve a web page and a JSON API. Models are read in separate processes."""
    # Imported by name: the architecture does not allow cli and web to import each other.
    settings = importlib.import_module("foretell.web.settings").Settings(
        host, port, token or None, max_upload_mib, timeout_s, workers
    )
    # Wrong options are reported even if the libraries of the server are missing.
    settings.check()
    versions(*LIBRARIES, extra="web", purpose="Serving the page")
    typer.echo("starting …", err=True)
    server = importlib.import_module("foretell.web.server")
    server.serve(settings, lambda address: typer.echo(f"{address}  (Ctrl-C to stop)"))

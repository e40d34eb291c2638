"""Cli: ``foretell serve``."""

import importlib
from typing import Annotated

import typer

from foretell.optional import versions

LIBRARIES = ("fastapi", "gradio", "prometheus_client", "python_multipart", "uvicorn")


def run(
    host: Annotated[
        str, typer.Option("--host", help="Where to listen; an address that others can reach needs --token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="0 takes any free one.")] = 7860,
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            envvar="FORETELL_TOKEN",
            help="What a client must know: a bearer token, or ?token= once.",
            show_default=False,
        ),
    ] = None,
    max_upload_mib: Annotated[float, typer.Option("--max-upload-mib", help="The largest file taken.")] = 200.0,
    timeout_s: Annotated[
        float, typer.Option("--timeout-s", help="The longest that an upload or an answer may take.")
    ] = 60.0,
    workers: Annotated[int, typer.Option("--workers", help="Processes that read models, at the same time.")] = 2,
) -> None:
    """Serve a page in the browser and a JSON API beside it; models are read in processes of their own."""
    # by name: cli and web do not see each other
    settings = importlib.import_module("foretell.web.settings").Settings(
        host, port, token or None, max_upload_mib, timeout_s, workers
    )
    settings.check()
    versions(*LIBRARIES, extra="web", purpose="Serving the page")
    typer.echo("starting …", err=True)
    server = importlib.import_module("foretell.web.server")
    server.serve(settings, lambda place: typer.echo(f"{place}  (Ctrl-C ends it)"))

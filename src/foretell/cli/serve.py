"""Cli: ``foretell serve``."""

import importlib

import click

from foretell.optional import versions

LIBRARIES = ("fastapi", "gradio", "prometheus_client", "python_multipart", "uvicorn")


@click.command()
@click.option("--host", default="127.0.0.1", help="The address to listen at. One that others can reach needs --token.")
@click.option("--port", type=int, default=7860, help="The port; 0: any free one.")
@click.option(
    "--token", envvar="FORETELL_TOKEN", help="The token that clients must send: as a bearer token, or as ?token= once."
)
@click.option("--max-upload-mib", type=float, default=200.0, help="The largest upload.")
@click.option("--timeout-s", type=float, default=60.0, help="The longest time for an upload or an answer.")
@click.option("--workers", type=int, default=2, help="Worker processes that read models.")
def run(host: str, port: int, token: str | None, max_upload_mib: float, timeout_s: float, workers: int) -> None:
    """Serve a web page and a JSON API. Models are read in separate processes."""
    # Imported by name: the architecture does not allow cli and web to import each other.
    settings = importlib.import_module("foretell.web.settings").Settings(
        host, port, token or None, max_upload_mib, timeout_s, workers
    )
    # Wrong options are reported even if the libraries of the server are missing.
    settings.check()
    versions(*LIBRARIES, extra="web", purpose="Serving the page")
    click.echo("starting …", err=True)
    server = importlib.import_module("foretell.web.server")
    server.serve(settings, lambda address: click.echo(f"{address}  (Ctrl-C to stop)"))

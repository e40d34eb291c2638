"""Cli: ``foretell serve``."""

import importlib
from pathlib import Path

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
@click.option("--workers", type=int, help="Worker processes that read models; without it, one for each core.")
@click.option(
    "--allowed-host",
    "allowed_hosts",
    multiple=True,
    metavar="NAME",
    help="Another name by which clients call this server, such as that of a proxy in front of it. Repeatable.",
)
@click.option(
    "--behind-proxy",
    is_flag=True,
    help="Take the address of a client from X-Forwarded-For. Only behind a proxy of yours that sets it.",
)
@click.option(
    "--cache-dir", envvar="FORETELL_ANSWERS", type=click.Path(file_okay=False, path_type=Path),
    help="A folder of answers that several servers may share. It holds answers, no models.",
)  # fmt: skip
def run(
    host: str, port: int, token: str | None, max_upload_mib: float, timeout_s: float, workers: int | None,
    allowed_hosts: tuple[str, ...], behind_proxy: bool, cache_dir: Path | None,
) -> None:  # fmt: skip
    """Serve a web page and a JSON API. Models are read in separate processes."""
    # Imported by name: the architecture does not allow cli and web to import each other.
    web_settings = importlib.import_module("foretell.web.settings")
    settings = web_settings.Settings(
        host, port, token or None, max_upload_mib, timeout_s,
        web_settings.default_workers() if workers is None else workers,
        allowed_hosts=allowed_hosts, behind_proxy=behind_proxy, cache_dir=cache_dir,
    )  # fmt: skip
    # Wrong options are reported even if the libraries of the server are missing.
    settings.check()
    versions(*LIBRARIES, extra="web", purpose="Serving the page")
    click.echo("starting …", err=True)
    server = importlib.import_module("foretell.web.server")
    server.serve(settings, lambda address: click.echo(f"{address}  (Ctrl-C to stop)"))

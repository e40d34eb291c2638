"""Cli: ``foretell calibrate``."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working


def run(
    device: Annotated[
        str | None, typer.Option("--device", help="cuda or cpu; cuda where there is one.", show_default=False)
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure in a few seconds how fast this host launches work, for the eager latencies that predict tells."""
    from foretell.predictors import host_latency
    from foretell.workflows.measure.calibrate import calibrate, calibration_path

    with working("Running small networks"):
        found = calibrate(device)
    if as_json:
        typer.echo(json.dumps({**asdict(found), "path": str(calibration_path())}, indent=1))
        return
    typer.echo(printable(f"host               {found.host} · {found.cpu} · {found.device} · torch {found.torch}"))
    typer.echo(f"dispatch, CPU      {found.dispatch_us:.2f} µs an operator")
    if found.slowdown is None or found.training_slowdown is None:
        typer.echo(f"launches           not measured. {host_latency.CPU_ONLY}")
    else:
        typer.echo(f"inference          {found.slowdown:.2f} × the reference host")
        typer.echo(f"training           {found.training_slowdown:.2f} × the reference host")
        typer.echo(f"operator           {found.slowdown * host_latency.US_PER_CALL:.1f} µs a call that launches")
        typer.echo(f"module             {found.slowdown * host_latency.US_PER_MODULE:.1f} µs")
        typer.echo(
            f"backward           {found.training_slowdown * host_latency.US_PER_BACKWARD_CALL:.1f} µs an operator"
        )
        typer.echo(f"interval           {found.low:.2f} – {found.high:.2f} of an eager latency that the host decides")
    typer.echo(printable(f"kept in            {calibration_path()}"))

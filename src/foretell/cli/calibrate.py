"""Cli: ``foretell calibrate``."""

import json
from dataclasses import asdict

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working


@click.command()
@click.option("--device", help="cuda or cpu [cuda if there is a GPU].")
@options.as_json
def run(device: str | None, as_json: bool) -> None:
    """Measure in a few seconds how fast this host launches work. The eager latencies of predict need it."""
    # Every command imports its workflow late: workflows load heavy libraries, and --help needs none of them.
    from foretell.predictors import host_latency
    from foretell.workflows.measure.calibrate import calibrate, calibration_path

    with working("Running small networks"):
        calibration = calibrate(device)
    if as_json:
        click.echo(json.dumps({**asdict(calibration), "path": str(calibration_path())}, indent=1))
        return
    facts = (calibration.host, calibration.cpu, calibration.device, f"torch {calibration.torch}")
    click.echo(printable(f"host               {' · '.join(facts)}"))
    click.echo(f"dispatch, CPU      {calibration.dispatch_us:.2f} µs an operator")
    if calibration.slowdown is None or calibration.training_slowdown is None:
        click.echo(f"launches           not measured. {host_latency.CPU_ONLY}")
    else:
        click.echo(f"inference          {calibration.slowdown:.2f} × the reference host")
        click.echo(f"training           {calibration.training_slowdown:.2f} × the reference host")
        click.echo(f"operator           {calibration.slowdown * host_latency.US_PER_CALL:.1f} µs a call that launches")
        click.echo(f"module             {calibration.slowdown * host_latency.US_PER_MODULE:.1f} µs")
        click.echo(
            f"backward           {calibration.training_slowdown * host_latency.US_PER_BACKWARD_CALL:.1f} µs an operator"
        )
        bounds = f"{calibration.low:.2f} – {calibration.high:.2f}"
        click.echo(f"interval           {bounds} of an eager latency that the host decides")
    click.echo(printable(f"saved in           {calibration_path()}"))

"""cli: ``foretell doctor``."""

import json
from dataclasses import asdict

import typer

from foretell.cli import options
from foretell.workflows.diagnose import diagnose


def run(as_json: options.Json = False) -> None:
    """Say what is installed, which front-ends work, and whether a GPU is seen."""
    found = diagnose()
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    from foretell.cli.show import console

    out = console()
    out.print(f"foretell {found.foretell} · Python {found.python} · {found.platform}")
    out.print("\nfront-ends", style="bold")
    for name, remedy in found.frontends.items():
        out.print(f"  {'✓' if remedy is None else '✗'} {name}" + (f"   {remedy}" if remedy else ""), markup=False)
    out.print("\nlibraries", style="bold")
    for name, version in found.libraries.items():
        out.print(f"  {'✓' if version else '✗'} {name} {version or 'absent'}", markup=False)
    out.print("\nGPU", style="bold")
    for gpu, device in zip(found.gpus, found.known_gpus):
        out.print(f"  ✓ {gpu} ({device})", markup=False)
    if not found.gpus:
        out.print("  none seen; predictions need none")
    out.print(f"\ncache  {found.cache} ({found.cache_entries} graphs)", soft_wrap=True)

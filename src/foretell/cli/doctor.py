"""Cli: ``foretell doctor``."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from foretell.cli import options

if TYPE_CHECKING:
    from rich.console import Console


def run(as_json: options.Json = False) -> None:
    """Say what is installed, which front-ends work, and whether a GPU is seen."""
    from foretell.workflows.measure.diagnose import diagnose

    found = diagnose()
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=1))
        return
    from foretell.rendering.terminal.prediction import console

    out = console()
    out.print(f"foretell {found.foretell} · Python {found.python} · {found.platform}")
    out.print("\nfront-ends", style="bold")
    _show_ways(out, found.frontends)
    out.print("\nmeasuring and keeping", style="bold")
    _show_ways(out, found.measuring)
    out.print("\nlibraries", style="bold")
    for name, version in found.libraries.items():
        out.print(f"  {'✓' if version else '✗'} {name} {version or 'absent'}", markup=False)
    out.print("\nGPU", style="bold")
    for gpu, device in zip(found.gpus, found.known_gpus):
        out.print(f"  ✓ {gpu} ({device})", markup=False)
    if not found.gpus:
        out.print("  none seen; predictions need none")
    out.print(f"\ncache  {found.cache} ({found.cache_entries} graphs)", soft_wrap=True)


def _show_ways(out: "Console", ways: Mapping[str, str | None]) -> None:
    """What works, and what to do where something does not."""
    for name, remedy in ways.items():
        out.print(f"  {'✓' if remedy is None else '✗'} {name}" + (f"   {remedy}" if remedy else ""), soft_wrap=True)

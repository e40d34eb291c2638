"""Cli: ``foretell doctor``."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from foretell.cli import options

if TYPE_CHECKING:
    from rich.console import Console


@click.command()
@options.as_json
def run(as_json: bool) -> None:
    """Show what is installed, which front-ends work, and whether there is a GPU."""
    from foretell.workflows.measure.diagnose import diagnose

    diagnosis = diagnose()
    if as_json:
        click.echo(json.dumps(asdict(diagnosis), indent=1))
        return
    from foretell.rendering.terminal.prediction import console

    out = console()
    out.print(f"foretell {diagnosis.foretell} · Python {diagnosis.python} · {diagnosis.platform}")
    out.print("\nfront-ends", style="bold")
    _show_checks(out, diagnosis.frontends)
    for note in diagnosis.notes:
        out.print(f"  ! {note}", markup=False, soft_wrap=True)
    out.print("\nmeasuring and storing", style="bold")
    _show_checks(out, diagnosis.measuring)
    out.print("\nlibraries", style="bold")
    for name, version in diagnosis.libraries.items():
        out.print(f"  {'✓' if version else '✗'} {name} {version or 'absent'}", markup=False)
    out.print("\nGPU", style="bold")
    for gpu, device in zip(diagnosis.gpus, diagnosis.known_gpus):
        out.print(f"  ✓ {gpu} ({device})", markup=False)
    if not diagnosis.gpus:
        out.print("  none found; predictions need none")
    out.print(f"\ncache  {diagnosis.cache} ({diagnosis.cache_entries} graphs)", soft_wrap=True)


def _show_checks(out: "Console", checks: Mapping[str, str | None]) -> None:
    """Show which checks passed, and what to do about those that did not."""
    for name, remedy in checks.items():
        out.print(f"  {'✓' if remedy is None else '✗'} {name}" + (f"   {remedy}" if remedy else ""), soft_wrap=True)

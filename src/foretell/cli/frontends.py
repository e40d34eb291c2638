"""Cli: ``foretell frontends``: frameworks whose models are converted to ONNX, each in its own environment."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from foretell.cli import options
from foretell.rendering.terminal.progress import working

app = typer.Typer(
    help="Install and remove the frameworks that convert models: Keras and TensorFlow, PaddlePaddle, JAX.",
    invoke_without_command=True,
    rich_markup_mode=None,
)
Name = Annotated[str, typer.Argument(metavar="FRAMEWORK", help="keras (and TensorFlow), paddle or jax.")]


@app.callback()
def show(context: typer.Context, as_json: options.Json = False) -> None:
    """List the frameworks, their versions and where they are installed."""
    if context.invoked_subcommand is not None:
        return
    from foretell.workflows.measure.converters import list_frameworks

    frameworks = list_frameworks()
    if as_json:
        typer.echo(json.dumps([asdict(state) for state in frameworks], indent=1))
        return
    from foretell.rendering.terminal.prediction import console

    out = console()
    for state in frameworks:
        mark, where = ("✓", state.python or "") if state.python else ("✗", f"foretell frontends install {state.name}")
        out.print(f"{mark} {state.name}   {state.title}   {state.versions or ''}", markup=False, soft_wrap=True)
        out.print(f"    {where}", markup=False, soft_wrap=True)


@app.command("install")
def install(name: Name) -> None:
    """Install a framework and its converter into a separate environment in the cache folder."""
    from foretell.workflows.measure.converters import find_framework, install_framework

    with working(f"Installing {find_framework(name)} (a minute or more)"):
        state = install_framework(name)
    typer.echo(f"{state.name}: {state.versions}")
    typer.echo(state.python)


@app.command("remove")
def remove(name: Name) -> None:
    """Delete the environment of a framework."""
    from foretell.workflows.measure.converters import remove_framework

    typer.echo(f"{name}: {'removed' if remove_framework(name) else 'was not installed'}")

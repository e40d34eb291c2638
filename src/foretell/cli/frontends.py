"""Cli: ``foretell frontends``: frameworks whose models are converted to ONNX, each in its own environment."""

import json
from dataclasses import asdict

import click

from foretell.cli import options
from foretell.rendering.terminal.progress import working


@click.group(invoke_without_command=True)
@options.as_json
@click.pass_context
def app(context: click.Context, as_json: bool) -> None:
    """Install and remove the frameworks that convert models: Keras and TensorFlow, PaddlePaddle, JAX.

    Without a command, list them, their versions and where they are installed.
    """
    if context.invoked_subcommand is not None:
        return
    from foretell.workflows.measure.converters import list_frameworks

    frameworks = list_frameworks()
    if as_json:
        click.echo(json.dumps([asdict(state) for state in frameworks], indent=1))
        return
    from foretell.rendering.terminal.prediction import console

    out = console()
    for state in frameworks:
        mark, where = ("✓", state.python or "") if state.python else ("✗", f"foretell frontends install {state.name}")
        out.print(f"{mark} {state.name}   {state.title}   {state.versions or ''}", markup=False, soft_wrap=True)
        out.print(f"    {where}", markup=False, soft_wrap=True)


@app.command("install")
@click.argument("name", metavar="FRAMEWORK", help="keras (and TensorFlow), paddle or jax.")
def install(name: str) -> None:
    """Install a framework and its converter into a separate environment in the cache folder."""
    from foretell.workflows.measure.converters import find_framework, install_framework

    with working(f"Installing {find_framework(name)} (a minute or more)"):
        state = install_framework(name)
    click.echo(f"{state.name}: {state.versions}")
    click.echo(state.python)


@app.command("remove")
@click.argument("name", metavar="FRAMEWORK", help="keras (and TensorFlow), paddle or jax.")
def remove(name: str) -> None:
    """Delete the environment of a framework."""
    from foretell.workflows.measure.converters import remove_framework

    click.echo(f"{name}: {'removed' if remove_framework(name) else 'was not installed'}")

"""Cli: the ``foretell`` command: its sub-commands. Each is imported when it is called, because start-up time counts."""

import atexit
import gc
import os
import sys
from typing import Any

import click

from foretell.cli.running import run_application
from foretell.registry import Registry

COMMANDS = Registry(
    "command",
    {  # in the order of the help page
        "predict": "foretell.cli.models.predict:run",
        "fit": "foretell.cli.advice.fit:run",
        "advise": "foretell.cli.advice.advise:run",
        "improve": "foretell.cli.advice.improve:run",
        "llm": "foretell.cli.models.llm:run",
        "simulate": "foretell.cli.models.simulate:run",
        "pack": "foretell.cli.sharing.pack:run",
        "compare": "foretell.cli.models.compare:run",
        "sweep": "foretell.cli.models.sweep:run",
        "predict-many": "foretell.cli.models.predict_many:run",
        "share": "foretell.cli.sharing.share:run",
        "report": "foretell.cli.models.report:run",
        "serve": "foretell.cli.servers.serve:run",
        "mcp": "foretell.cli.servers.mcp:run",
        "inspect": "foretell.cli.models.inspect:run",
        "fuse": "foretell.cli.models.fuse:run",
        "roofline": "foretell.cli.models.roofline:run",
        "devices": "foretell.cli.devices:run",
        "profile": "foretell.cli.models.profile:run",
        "collect": "foretell.cli.collect:run",
        "adapt": "foretell.cli.models.adapt:run",
        "calibrate": "foretell.cli.calibrate:run",
        "characterise": "foretell.cli.characterise:run",
        "train": "foretell.cli.train:train",
        "evaluate": "foretell.cli.train:evaluate",
        "doctor": "foretell.cli.doctor:run",
        "data": "foretell.cli.data:app",
        "frontends": "foretell.cli.frontends:app",
    },
)
# commands that predict in this process; those that measure or fit use what the machine has
_ONE_THREAD = frozenset(
    {
        "predict", "fit", "advise", "improve", "llm", "simulate", "pack", "compare", "sweep", "share", "report",
        "roofline",
    }
)  # fmt: skip
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
_YOUNG_OBJECTS = 100_000  # objects between two searches for cycles: at most some 10 MiB wait for the next one


class Commands(click.Group):
    """A group whose commands are imported by name when they are needed."""

    def list_commands(self, _: click.Context) -> list[str]:
        """Return all names, in the order of the table."""
        return list(COMMANDS)

    def get_command(self, _: click.Context, cmd_name: str) -> click.Command:
        """Import and return a command; an unknown name raises an error with a suggestion."""
        command: click.Command = COMMANDS.load(cmd_name)
        if not any(variable.endswith("_COMPLETE") for variable in os.environ):
            return command
        from foretell.cli.completion import with_completion  # only a shell that completes needs it

        return with_completion(command, cmd_name)


def _show_version(context: click.Context, _: click.Parameter, requested: bool) -> None:
    if requested:
        from importlib import metadata

        click.echo(f"foretell {metadata.version('foretell')}")
        context.exit()


@click.group(
    cls=Commands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.option("--debug", is_flag=True, help="Show a traceback when something fails.")
@click.option(
    "--version", is_flag=True, callback=_show_version, is_eager=True, expose_value=False, help="Show the version."
)
def app(**_: Any) -> None:
    """Tells how a deep-learning model will run before anyone runs it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors end as one line on stderr and exit code 2."""
    # the search for cycles visits what imports make again and again, a tenth of the time of a prediction: make it rare
    gc.set_threshold(_YOUNG_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(_skip_last_collection)
    _use_one_thread(sys.argv[1:] if arguments is None else arguments)
    run_application(app, "foretell", arguments)


def _use_one_thread(arguments: list[str]) -> None:
    """Let numpy multiply with one thread, unless the user says otherwise.

    The products of a prediction are small. More threads spend their time waiting for each other: on two busy cores
    ``advise`` took five times as much of the processor. It has no effect where numpy is imported already.
    """
    command = next((argument for argument in arguments if not argument.startswith("-")), "")
    if command in _ONE_THREAD and not any(name in os.environ for name in _THREADS):
        os.environ[_THREADS[0]] = "1"


def _skip_last_collection() -> None:
    """At its end Python looks for garbage a last time: a tenth of the time of a prediction, for what the system frees.

    DuckDB would take what is left for leaks, and print them.
    """
    if "duckdb" not in sys.modules:
        gc.freeze()

"""cli: the ``foretell`` command: its sub-commands, and one clear line for every error."""

import io
import os
import sys
import traceback
from importlib import metadata
from typing import Any

import typer

from foretell.cli import (
    advise,
    calibrate,
    characterise,
    collect,
    compare,
    data,
    devices,
    doctor,
    frontends,
    fuse,
    inspect,
    predict,
    profile,
    report,
    roofline,
    serve,
    sweep,
    train,
)
from foretell.cli.printable import printable
from foretell.errors import ForetellError

MAX_MESSAGE = 1000  # characters: names inside a model may be of any length

# typer brings its own copy of click, or used the installed one: the base of its errors is found either way
_COMMAND_LINE_ERRORS: Any = tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")

app = typer.Typer(
    name="foretell",
    help="Tells how a deep-learning model will run before anyone runs it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("predict", cls=predict.Command)(predict.run)
app.command("advise")(advise.run)
app.command("compare")(compare.run)
app.command("sweep")(sweep.run)
app.command("report")(report.run)
app.command("serve")(serve.run)
app.command("inspect")(inspect.run)
app.command("fuse")(fuse.run)
app.command("roofline")(roofline.run)
app.command("devices")(devices.run)
app.command("profile")(profile.run)
app.command("collect")(collect.run)
app.command("calibrate")(calibrate.run)
app.command("characterise")(characterise.run)
app.command("train")(train.train)
app.command("evaluate")(train.evaluate)
app.command("doctor")(doctor.run)
app.add_typer(data.app, name="data")
app.add_typer(frontends.app, name="frontends")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"foretell {metadata.version('foretell')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show a traceback when something fails."),
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    del debug, version


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; errors end as one line on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    # --debug may stand anywhere; the parser wants it first
    given = (["--debug"] if debug else []) + [a for a in given if a != "--debug"]
    _never_fail_on_output()
    try:
        code = app(args=given, prog_name="foretell", standalone_mode=False)
    except ForetellError as error:
        code = fail(str(error), debug, 2)
    except (typer.Abort, KeyboardInterrupt):
        code = 130
    except _COMMAND_LINE_ERRORS as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is a page of help, not one line
            typer.echo(error.format_message(), err=True)
            code = 2
        else:
            code = fail(error.format_message(), debug, 2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        code = fail("Out of memory: the model is too large for this machine.", debug, 2)
    except Exception as error:  # noqa: BLE001 - a bug of ours, still one line
        code = fail(
            f"Internal error ({type(error).__name__}: {error}). Run again with --debug and report it.", debug, 1
        )
    sys.exit(code if isinstance(code, int) else 0)


def _never_fail_on_output() -> None:
    """A terminal or pipe that lacks a character gets a substitute instead of an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def fail(message: str, debug: bool, code: int) -> int:
    """Say what went wrong in one line; returns ``code``."""
    if debug:
        traceback.print_exc()
    line = printable(" ".join(message.split()))
    if len(line) > MAX_MESSAGE:
        line = line[: MAX_MESSAGE - 1] + "…"
    print("foretell: " + line, file=sys.stderr)  # noqa: T201
    return code

"""Cli: run a command line. Every error becomes one clear line and an exit code that scripts can read."""

import io
import os
import sys
import traceback
from typing import Any

import typer

from foretell.errors import ForetellError
from foretell.rendering.terminal.printable import printable

MAX_MESSAGE = 1000  # characters: a message may quote a name from inside a model, which has any length

# Newer versions of Typer bundle their own copy of click, older ones import the installed one. The base class of
# Typer's errors leads to the right copy in both cases.
_COMMAND_LINE_ERRORS: Any = tuple(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")


def run_application(app: Any, name: str, arguments: list[str] | None) -> None:
    """Run a command line and exit: 0 success, 1 a bug of ours, 2 any other error, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    # Users may write --debug anywhere, but the parser accepts it only before the sub-command.
    words = (["--debug"] if debug else []) + [a for a in words if a != "--debug"]
    _never_fail_on_output()
    try:
        code = app(args=words, prog_name=name, standalone_mode=False)
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
    except BrokenPipeError:  # such as `foretell devices | head`; without this Python complains again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        code = fail("Out of memory: the model is too large for this machine.", debug, 2)
    except Exception as error:  # noqa: BLE001 - a bug of ours: still one line, the traceback is for --debug
        code = fail(
            f"Internal error ({type(error).__name__}: {error}). Run again with --debug and report it.", debug, 1
        )
    # Without standalone mode Typer returns the exit code, or else the result of the command.
    sys.exit(code if isinstance(code, int) else 0)


def _never_fail_on_output() -> None:
    """Print an escape for a character that the terminal's encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def fail(message: str, debug: bool, code: int) -> int:
    """Print what went wrong in one line; return ``code``."""
    if debug:
        traceback.print_exc()
    line = printable(" ".join(message.split()))
    if len(line) > MAX_MESSAGE:
        line = line[: MAX_MESSAGE - 1] + "…"
    print("foretell: " + line, file=sys.stderr)  # noqa: T201
    return code

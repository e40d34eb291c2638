"""Cli: run a command line. Every error becomes one clear line and an exit code that scripts can read."""

import io
import os
import sys
from typing import Any

import click

from foretell.errors import ForetellError
from foretell.rendering.terminal.printable import printable

MAX_MESSAGE = 1000  # characters: a message may quote a name from inside a model, which has any length


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
        code = fail(str(error), debug, 2, name)
    except (click.Abort, KeyboardInterrupt):
        code = 130
    except click.exceptions.NoArgsIsHelpError as error:  # its message is a page of help, not one line
        click.echo(error.format_message(), err=True)
        code = 2
    except click.ClickException as error:
        code = fail(error.format_message(), debug, 2, name)
    except BrokenPipeError:  # such as `foretell devices | head`; without this Python complains again when it exits
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except MemoryError:
        code = fail("Out of memory: the model is too large for this machine.", debug, 2, name)
    except Exception as error:  # noqa: BLE001 - a bug of ours: still one line, the traceback is for --debug
        code = fail(
            f"Internal error ({type(error).__name__}: {error}). Run again with --debug and report it.", debug, 1, name
        )
    # Without standalone mode Typer returns the exit code, or else the result of the command.
    sys.exit(code if isinstance(code, int) else 0)


def _never_fail_on_output() -> None:
    """Print an escape for a character that the terminal's encoding lacks, instead of raising an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def fail(message: str, debug: bool, code: int, program: str = "foretell") -> int:
    """Print what went wrong in one line; return ``code``."""
    if debug:
        import traceback  # only here: start-up time counts

        traceback.print_exc()
    line = printable(" ".join(message.split()))
    if len(line) > MAX_MESSAGE:
        line = line[: MAX_MESSAGE - 1] + "…"
    print(f"{program}: {line}", file=sys.stderr)  # noqa: T201
    return code

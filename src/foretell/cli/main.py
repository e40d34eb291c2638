"""Cli: the ``foretell`` command and its sub-commands."""

from importlib import metadata

import typer

from foretell.cli import calibrate, characterise, collect, data, devices, doctor, frontends, serve, train
from foretell.cli.models import advise, compare, fuse, inspect, predict, profile, report, roofline, sweep
from foretell.cli.running import run_application

app = typer.Typer(
    name="foretell",
    help="Predict how a deep-learning model will run before you run it.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
# The order here is the order of `foretell --help`.
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


def _show_version(requested: bool) -> None:
    if requested:
        typer.echo(f"foretell {metadata.version('foretell')}")
        raise typer.Exit


@app.callback()
def _root(
    debug: bool = typer.Option(False, "--debug", help="Show a traceback when something fails."),
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    del debug, version  # run_application reads --debug itself, _show_version has handled --version


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. An error is printed as one line on stderr, and the exit code is 2."""
    run_application(app, "foretell", arguments)

"""Cli: ``foretell data``: look into stored measurements and maintain them."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import click

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working


@click.group(no_args_is_help=True)
def app() -> None:
    """Show, query and merge measured records."""


_GRAPHS = "graphs"
_WORST = 20


@app.command("card")
@click.option("--store", default="data", help="A folder of Parquet files, or postgresql://user@host/name.")
@options.as_json
@click.option("--markdown", type=options.PATH, help="Write the card to this file as Markdown.")
def card(store: str, as_json: bool, markdown: Path | None) -> None:
    """Show what a store holds: counts, ranges, noise, repeatability, failures, gaps."""
    from foretell.workflows import data

    # Only the part after @ is shown: a database address may have a password before it.
    with working(f"Reading {store.partition('@')[2] or store}"):
        dataset_card = data.card(store)
    if markdown is not None:
        data.write_card(dataset_card, markdown, store)
    if as_json:
        click.echo(json.dumps(dataset_card.to_dict(), indent=1))
    elif markdown is None:
        _show_card(dataset_card)


@app.command("query")
@click.argument("sql", metavar="SQL", help="One SELECT over the tables; views: training, llm.")
@click.option("--store", default="data", help="A folder of Parquet files, or postgresql://user@host/name.")
@options.as_json
def query(sql: str, store: str, as_json: bool) -> None:
    """Query a store with SQL."""
    from foretell.workflows import data

    columns, rows = data.query(sql, store)
    if as_json:
        click.echo(json.dumps({"columns": columns, "rows": rows}, indent=1, default=_plain))
        return
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    # A table that rich must squeeze wraps its cells and cannot be read.
    if _width(columns, cells) <= _screen_width():
        _show_table("", columns, cells)
        return
    for row in cells:  # too wide for the terminal: each row becomes a table of its own
        _show_table("", ("column", "value"), list(zip(columns, row)), (0, 1))


@app.command("merge")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE…", help="Folders or databases to copy from.")
@click.option("--store", required=True, help="Where the rows go: a folder or postgresql://…")
@options.as_json
def merge(sources: tuple[str, ...], store: str, as_json: bool) -> None:
    """Append all tables of other stores. Rows that the store already has are skipped."""
    from foretell.workflows import data

    with working("Merging"):
        added = data.merge_stores(sources, store)
    _show_counts("rows added", added, as_json)


@app.command("tables")
@click.argument("folder", type=options.PATH, metavar="FOLDER", help="The folder of a campaign, with its journal.")
@click.option("--keep-old", is_flag=True, help="Keep rows of the old tables that the journal lacks.")
@click.option("--allow-fewer", is_flag=True, help="Give up rows of the old tables that the journal lacks.")
@options.as_json
def tables(folder: Path, keep_old: bool, allow_fewer: bool, as_json: bool) -> None:
    """Write the Parquet tables of a campaign from its journal. Rows of older tables are never dropped unasked."""
    from foretell.errors import InputError
    from foretell.workflows import data

    if keep_old and allow_fewer:
        raise InputError("Give --keep-old or --allow-fewer, not both.")
    with working(f"Reading {folder}"):
        rows = data.write_tables(folder, fewer="keep" if keep_old else "allow" if allow_fewer else "refuse")
    _show_counts("rows", rows, as_json)


@app.command("check")
@click.argument("store", default="data", metavar="[STORE]", help="A folder of Parquet files, or of a campaign.")
@options.as_json
@click.pass_context
def check(context: click.Context, store: str, as_json: bool) -> None:
    """Read every record, find damaged ones and say what can be saved. Exit code 1 if something is damaged."""
    from foretell.workflows import data_check

    with working(f"Reading {store.partition('@')[2] or store}"):
        result = data_check.check(store)
    if as_json:
        click.echo(json.dumps(result.to_dict(), indent=1))
    else:
        _show_counts("whole", result.records, as_json=False)
        for damage in result.damage:
            lost = f"{damage.damaged:,} damaged, {damage.saved:,} can be saved"
            click.echo(printable(f"{damage.file}: {damage.kind}; {lost}. {damage.advice}"))
        aside = f"; {result.set_aside:,} damaged records were set aside earlier" if result.set_aside else ""
        click.echo(f"{result.files} files: {'whole' if result.whole else f'{len(result.damage)} damages'}{aside}")
    if not result.whole:
        context.exit(1)


@app.command("repack")
@click.option("--store", type=options.PATH, default=Path("data"), help="A folder of Parquet files.")
@options.as_json
def repack(store: Path, as_json: bool) -> None:
    """Rewrite the files of a store so that they take less space. The rows stay the same; old graphs become columns."""
    from foretell.workflows import data

    with working(f"Writing {store} again"):
        sizes = data.repack_store(store)
    columns = ("rows", "before_bytes", "after_bytes")
    if as_json:
        click.echo(json.dumps({table: dict(zip(columns, values)) for table, values in sizes.items()}, indent=1))
        return
    _show_table(
        "", ("table", *columns), [(table, *(f"{value:,}" for value in values)) for table, values in sizes.items()]
    )


def _plain(value: object) -> object:
    """Convert what JSON cannot hold: a DuckDB sum (Decimal) becomes a number, a time and the like becomes text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _cell(value: Any) -> str:
    return "" if value is None else printable(f"{value:.6g}" if isinstance(value, float) else str(value))


def _width(columns: list[str], rows: list[list[str]]) -> int:
    """The width that rich needs for a table: two blanks on either side, three between columns."""
    return 4 + sum(3 + max(map(len, (name, *(row[index] for row in rows)))) for index, name in enumerate(columns))


def _screen_width() -> int:
    from foretell.rendering.terminal.prediction import console

    return console().width


def _show_counts(title: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(counts, indent=1))
        return
    _show_table("", ["table", title], [[name, f"{count:,}"] for name, count in counts.items()])


def _show_card(dataset_card: Any) -> None:
    from foretell.datasets.card_text import sections
    from foretell.rendering.terminal.prediction import console

    for section in sections(dataset_card):
        _show_table(section.title, section.columns, section.rows, section.texts)
    out = console()
    out.print("known gaps", style="bold")
    for gap in dataset_card.gaps:
        out.print(f"  · {printable(gap)}")


def _show_table(title: str, columns: Any, rows: Any, texts: Sequence[int] = (0,)) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from foretell.rendering.terminal.prediction import console

    if title:  # above the table: rich would wrap a title to the width of the table
        console().print(Text(printable(title), style="bold"))
    table = Table(box=box.SIMPLE)
    for index, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="left" if index in texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)


@app.command("graphs")
@click.option("--store", type=options.PATH, default=Path("data"), help="A folder of Parquet files.")
@click.option(
    "--journal", type=options.PATH, default=Path("out/graphs"), help="Where graphs are stored until all are done."
)
@click.option("--again", is_flag=True, help="Retry what failed before.")
@click.option("--renew", is_flag=True, help="Also make graphs again that do not say what their program holds.")
@options.as_json
def make_graphs(store: Path, journal: Path, again: bool, renew: bool, as_json: bool) -> None:
    """Make the missing graphs of all measured models. If it is stopped, the same command continues."""
    from foretell.training.examples import graphs

    keys = graphs.measured_keys(store)

    def show_progress(number: int, total: int, key: Any, error: str) -> None:
        what = f"{error}" if error else f"{key.spec} {key.mode}"
        click.echo(printable(f"{number} of {total}: {what}"), err=True)

    renewed = graphs.unwatched_keys(store) if renew else set()
    done = graphs.stored_keys(store) - renewed
    counts = graphs.collect_graphs(keys, journal, done=done, again=again, on_progress=show_progress)
    path = graphs.write_graphs(journal, store / _GRAPHS, renewed=renewed)
    summary = {"needed": len(keys), "made": counts["ok"], "failed": counts["build_error"], "file": str(path or "")}
    click.echo(
        json.dumps(summary, indent=1) if as_json else ", ".join(f"{key} {value}" for key, value in summary.items())
    )


@app.command("link")
@click.option("--store", type=options.PATH, default=Path("data"), help="A folder of Parquet files.")
@options.as_json
def link_kernels(store: Path, as_json: bool) -> None:
    """Link every traced kernel to a node of its model's graph, and show how much of the kernel time has a node."""
    from foretell.training.examples import link

    with working(f"Linking the traces of {store}"):
        links, summary = link.link_store(store, store)
        link.write_links(links, store / _GRAPHS)
    report: dict[str, Any] = {"traces": len(summary.worst), "linked": len(links)}
    report |= {"tied": link.tied_share(summary.total_us), "total": _shares(summary.total_us)}
    report["by_mode"] = {mode: _shares(times) for mode, times in sorted(summary.by_mode.items())}
    report["by_family"] = {family: link.tied_share(times) for family, times in sorted(summary.by_family.items())}
    report["untied"] = dict(summary.untied.most_common(_WORST))
    report["worst"] = [
        {"share": share, "mode": mode, "spec": spec} for share, mode, spec in summary.worst_first(_WORST)
    ]
    if as_json:
        click.echo(json.dumps(report, indent=1))
        return
    click.echo(f"{len(links)} of {len(summary.worst)} traces linked; {report['tied']:.2%} of kernel time has a node")
    for mode, shares in report["by_mode"].items():
        click.echo(f"  {mode}: " + ", ".join(f"{fate} {share:.2%}" for fate, share in shares.items() if share))
    for row in report["worst"]:
        click.echo(printable(f"  {row['share']:.1%} not tied: {row['spec'][:80]} {row['mode']}"))


def _shares(times: Any) -> dict[str, float]:
    total = sum(times.values()) or 1.0
    return {fate: time / total for fate, time in times.most_common()}

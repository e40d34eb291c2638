"""Cli: ``foretell data``: what was measured, at rest."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import options
from foretell.rendering.terminal.printable import printable
from foretell.rendering.terminal.progress import working

app = typer.Typer(help="Look at measured records, ask them, merge them.", no_args_is_help=True, rich_markup_mode=None)

StorePlace = Annotated[str, typer.Option("--store", help="A folder of Parquet files, or postgresql://user@host/name.")]
Folder = Annotated[Path, typer.Option("--store", help="A folder of Parquet files.")]
_GRAPHS = "graphs"
_WORST = 20


@app.command("card")
def card(
    store: StorePlace = "data",
    as_json: options.Json = False,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", help="Write the card to this file as Markdown.", show_default=False)
    ] = None,
) -> None:
    """Show what a store holds: counts, ranges, noise, repeatability, failures, gaps."""
    from foretell.workflows import data

    with working(f"Reading {store.partition('@')[2] or store}"):
        found = data.card(store)
    if markdown is not None:
        data.write_card(found, markdown, store)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    elif markdown is None:
        _show_card(found)


@app.command("query")
def query(
    sql: Annotated[str, typer.Argument(metavar="SQL", help="One SELECT over the tables; views: training, llm.")],
    store: StorePlace = "data",
    as_json: options.Json = False,
) -> None:
    """Ask a store with SQL."""
    from foretell.workflows import data

    columns, rows = data.query(sql, store)
    if as_json:
        typer.echo(json.dumps({"columns": columns, "rows": rows}, indent=1, default=_plain))
        return
    cells = [[_cell(row[name]) for name in columns] for row in rows]
    if _width(columns, cells) <= _screen_width():
        _show_table("", columns, cells)
        return
    for row in cells:  # too wide for a table: one below the other
        _show_table("", ("column", "value"), list(zip(columns, row)), (0, 1))


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCE…", help="Folders or databases to take from.")],
    store: Annotated[str, typer.Option("--store", help="Where the rows go: a folder or postgresql://…")],
    as_json: options.Json = False,
) -> None:
    """Append all tables of other stores; rows that are there already are not added again."""
    from foretell.workflows import data

    with working("Merging"):
        added = data.merge_stores(sources, store)
    _show_counts("rows added", added, as_json)


@app.command("tables")
def tables(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a campaign, with its journal.")],
    as_json: options.Json = False,
) -> None:
    """Make the Parquet tables of a campaign's journal."""
    from foretell.workflows import data

    with working(f"Reading {folder}"):
        rows = data.write_tables(folder)
    _show_counts("rows", rows, as_json)


@app.command("repack")
def repack(
    store: Annotated[Path, typer.Option("--store", help="A folder of Parquet files.")] = Path("data"),
    as_json: options.Json = False,
) -> None:
    """Write the files of a store again, smaller and row for row the same; old graphs become columns."""
    from foretell.workflows import data

    with working(f"Writing {store} again"):
        sizes = data.repack_store(store)
    columns = ("rows", "before_bytes", "after_bytes")
    if as_json:
        typer.echo(json.dumps({table: dict(zip(columns, found)) for table, found in sizes.items()}, indent=1))
        return
    _show_table("", ("table", *columns), [(table, *(f"{value:,}" for value in of)) for table, of in sizes.items()])


def _plain(value: object) -> object:
    """What JSON has no word for: wide sums are numbers, moments and the like are text."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return str(value)


def _cell(value: Any) -> str:
    return "" if value is None else printable(f"{value:.6g}" if isinstance(value, float) else str(value))


def _width(columns: list[str], rows: list[list[str]]) -> int:
    """What a table takes: two blanks on either side, three between columns."""
    return 4 + sum(3 + max(map(len, (name, *(row[index] for row in rows)))) for index, name in enumerate(columns))


def _screen_width() -> int:
    from foretell.rendering.terminal.prediction import console

    return console().width


def _show_counts(title: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(counts, indent=1))
        return
    _show_table("", ["table", title], [[name, f"{count:,}"] for name, count in counts.items()])


def _show_card(found: Any) -> None:
    from foretell.datasets.card_text import sections
    from foretell.rendering.terminal.prediction import console

    for section in sections(found):
        _show_table(section.title, section.columns, section.rows, section.texts)
    out = console()
    out.print("known gaps", style="bold")
    for gap in found.gaps:
        out.print(f"  · {printable(gap)}")


def _show_table(title: str, columns: Any, rows: Any, texts: Sequence[int] = (0,)) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from foretell.rendering.terminal.prediction import console

    if title:  # above the table, not as its title: that would be as narrow as the table
        console().print(Text(printable(title), style="bold"))
    table = Table(box=box.SIMPLE)
    for index, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="left" if index in texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)


@app.command("graphs")
def make_graphs(
    store: Folder = Path("data"),
    journal: Annotated[Path, typer.Option("--journal", help="Where graphs are kept until all are made.")] = Path(
        "out/graphs"
    ),
    again: Annotated[bool, typer.Option("--again", help="Try once more what failed before.")] = False,
    as_json: options.Json = False,
) -> None:
    """Make the graphs of all measured models that the store lacks; can be stopped and called again."""
    from foretell.training.examples import graphs

    keys = graphs.measured_keys(store)

    def on_progress(number: int, total: int, key: Any, error: str) -> None:
        what = f"{error}" if error else f"{key.spec} {key.mode}"
        typer.echo(printable(f"{number} of {total}: {what}"), err=True)

    counts = graphs.collect_graphs(keys, journal, done=graphs.stored_keys(store), again=again, on_progress=on_progress)
    path = graphs.write_graphs(journal, store / _GRAPHS)
    found = {"needed": len(keys), "made": counts["ok"], "failed": counts["build_error"], "file": str(path or "")}
    typer.echo(json.dumps(found, indent=1) if as_json else ", ".join(f"{key} {value}" for key, value in found.items()))


@app.command("link")
def link_kernels(store: Folder = Path("data"), as_json: options.Json = False) -> None:
    """Tie every traced kernel to the node of its model's graph, and show how much of the time was tied."""
    from foretell.training.examples import link

    with working(f"Linking the traces of {store}"):
        links, summary = link.link_store(store, store)
        link.write_links(links, store / _GRAPHS)
    found: dict[str, Any] = {"traces": len(summary.worst), "linked": len(links)}
    found |= {"tied": link.tied_share(summary.total_us), "total": _shares(summary.total_us)}
    found["by_mode"] = {mode: _shares(times) for mode, times in sorted(summary.by_mode.items())}
    found["by_family"] = {family: link.tied_share(times) for family, times in sorted(summary.by_family.items())}
    found["untied"] = dict(summary.untied.most_common(_WORST))
    found["worst"] = [{"share": share, "mode": mode, "spec": spec} for share, mode, spec in summary.worst_first(_WORST)]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(f"{len(links)} of {len(summary.worst)} traces linked; {found['tied']:.2%} of kernel time has a node")
    for mode, shares in found["by_mode"].items():
        typer.echo(f"  {mode}: " + ", ".join(f"{fate} {share:.2%}" for fate, share in shares.items() if share))
    for row in found["worst"]:
        typer.echo(printable(f"  {row['share']:.1%} not tied: {row['spec'][:80]} {row['mode']}"))


def _shares(times: Any) -> dict[str, float]:
    whole = sum(times.values()) or 1.0
    return {fate: time / whole for fate, time in times.most_common()}

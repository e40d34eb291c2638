"""cli: ``foretell data``: what was measured, at rest."""

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer

from foretell.cli import data_graphs, options
from foretell.cli.printable import printable
from foretell.cli.progress import working

app = typer.Typer(help="Look at measured records, ask them, merge them.", no_args_is_help=True, rich_markup_mode=None)
data_graphs.add_commands(app)

StorePlace = Annotated[str, typer.Option("--store", help="A folder of Parquet files, or postgresql://user@host/name.")]


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
    from foretell.cli.show import console

    return console().width


def _show_counts(title: str, counts: dict[str, int], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(counts, indent=1))
        return
    _show_table("", ["table", title], [[name, f"{count:,}"] for name, count in counts.items()])


def _show_card(found: Any) -> None:
    from foretell.cli.show import console
    from foretell.datasets.card_text import sections

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

    from foretell.cli.show import console

    if title:  # above the table, not as its title: that would be as narrow as the table
        console().print(Text(printable(title), style="bold"))
    table = Table(box=box.SIMPLE)
    for index, name in enumerate(columns):
        table.add_column(Text(printable(name)), justify="left" if index in texts else "right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    console().print(table)

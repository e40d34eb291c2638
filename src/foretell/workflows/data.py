"""Workflows: stored records: make tables from a journal, merge and query stores, write the card of a store."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from foretell.datasets import journal_tables
from foretell.datasets.card import Card, make_card
from foretell.datasets.card_text import to_markdown
from foretell.datasets.graphs.repacking import repack
from foretell.datasets.opening import open_store
from foretell.datasets.parquet_files import unwritable
from foretell.datasets.store import Store, merge
from foretell.errors import DataError
from foretell.profiling.campaign.journal import RECORDS, read_records, read_traces

DEFAULT_STORE = "data"


def write_tables(folder: Path, *, fewer: journal_tables.Fewer = "refuse") -> dict[str, int]:
    """Write the tables of the journal in ``folder`` next to it; return the number of rows of each.

    ``fewer`` says what happens if a table that exists has records that the journal lacks: refuse, keep or allow.
    """
    if not (folder / RECORDS).exists():
        raise DataError(f"There is no journal ({RECORDS}) in {folder}. Choose the folder of a campaign.")
    return journal_tables.write_tables(folder, read_records(folder), read_traces(folder), fewer=fewer)


def open_existing(where: str) -> Store:
    """Open a store that must exist: a missing folder is probably a typing error, not a new store."""
    if "://" not in where and not Path(where).exists():
        raise DataError(f"There is no store at {where}. Give a folder or postgresql://… with --store.")
    return open_store(where)


def card(where: str = DEFAULT_STORE) -> Card:
    """Describe the content of a store."""
    store = open_existing(where)
    try:
        return make_card(store)
    finally:
        store.close()


def write_card(dataset_card: Card, path: Path, where: str) -> None:
    """Write a card as Markdown, completely or not at all."""
    text = to_markdown(dataset_card, f"foretell data card --store {_without_password(where)} --markdown {path}")
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        # Renaming is atomic: readers see the old file or the new one.
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritable(path.parent, error) from error


def _without_password(where: str) -> str:
    # rpartition: a password may contain @ itself
    scheme, mark, rest = where.partition("://")
    user, at, host = rest.rpartition("@")
    return f"{scheme}{mark}{user.partition(':')[0]}{at}{host}" if mark else where


def query(sql: str, where: str = DEFAULT_STORE) -> tuple[list[str], list[dict[str, Any]]]:
    """The columns and rows of one SELECT."""
    store = open_existing(where)
    try:
        answer = store.query(sql)
        return list(answer.column_names), answer.to_pylist()
    finally:
        store.close()


def repack_store(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Rewrite the files of a store in the current, smaller format; return rows, bytes before and bytes after."""
    open_existing(str(folder))
    sizes: dict[str, tuple[int, int, int]] = {}
    for file in repack(folder):
        rows, before, after = sizes.get(file.table, (0, 0, 0))
        sizes[file.table] = (rows + file.rows, before + file.before_bytes, after + file.after_bytes)
    return sizes


def merge_stores(sources: Sequence[str], where: str) -> dict[str, int]:
    """Append all tables of ``sources`` to the store at ``where``; return the number of new rows by table."""
    target = open_store(where)
    added: dict[str, int] = {}
    try:
        for source in sources:
            _add(added, _merge_one(source, where, target).items())
    finally:
        target.close()
    return added


def _merge_one(source: str, where: str, target: Store) -> dict[str, int]:
    # A folder inside the target is already part of it.
    if "://" not in where + source and Path(where).resolve() in (
        Path(source).resolve(),
        *Path(source).resolve().parents,
    ):
        raise DataError(f"{source} is inside the store {where}, which already has its tables.")
    store = open_existing(source)
    try:
        added = merge(store, target)
        if not added:
            raise DataError(
                f"There are no tables in {source}. If it has a journal, make them with: foretell data tables"
            )
        return added
    finally:
        store.close()


def _add(totals: dict[str, int], more: Iterable[tuple[str, int]]) -> None:
    for table, rows in more:
        totals[table] = totals.get(table, 0) + rows

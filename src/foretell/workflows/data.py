"""Workflows: records at rest: a journal becomes tables, stores are merged and asked, a store gets its card."""

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


def write_tables(folder: Path) -> dict[str, int]:
    """Write the tables of the journal in ``folder`` beside it; returns how many rows each has."""
    if not (folder / RECORDS).exists():
        raise DataError(f"There is no journal in {folder}: {RECORDS} is what a campaign writes.")
    return journal_tables.write_tables(folder, read_records(folder), read_traces(folder))


def open_existing(where: str) -> Store:
    """A store that is there: a folder that nobody made is a slip of the pen."""
    if "://" not in where and not Path(where).exists():
        raise DataError(f"There is no store at {where}. Give a folder or postgresql://… with --store.")
    return open_store(where)


def card(where: str = DEFAULT_STORE) -> Card:
    """What a store holds."""
    store = open_existing(where)
    try:
        return make_card(store)
    finally:
        store.close()


def write_card(found: Card, path: Path, where: str) -> None:
    """Write a card as Markdown, whole or not at all."""
    text = to_markdown(found, f"foretell data card --store {_without_password(where)} --markdown {path}")
    partial = path.with_name(path.name + ".part")
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise unwritable(path.parent, error) from error


def _without_password(where: str) -> str:
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
    """Write the files of a folder again, as small as today's are; rows, bytes before and bytes after of each table."""
    open_existing(str(folder))
    sizes: dict[str, tuple[int, int, int]] = {}
    for file in repack(folder):
        rows, before, after = sizes.get(file.table, (0, 0, 0))
        sizes[file.table] = (rows + file.rows, before + file.before_bytes, after + file.after_bytes)
    return sizes


def merge_stores(sources: Sequence[str], where: str) -> dict[str, int]:
    """Append all tables of ``sources`` to the store at ``where``; returns how many rows of each were new."""
    target = open_store(where)
    added: dict[str, int] = {}
    try:
        for source in sources:
            _add(added, _merge_one(source, where, target).items())
    finally:
        target.close()
    return added


def _merge_one(source: str, where: str, target: Store) -> dict[str, int]:
    if "://" not in where + source and Path(where).resolve() in (
        Path(source).resolve(),
        *Path(source).resolve().parents,
    ):
        raise DataError(f"{source} lies in the store {where}: its tables are there already.")
    store = open_existing(source)
    try:
        added = merge(store, target)
        if not added:
            raise DataError(f"There are no tables in {source}. Make those of a journal with: foretell data tables")
        return added
    finally:
        store.close()


def _add(totals: dict[str, int], more: Iterable[tuple[str, int]]) -> None:
    for table, rows in more:
        totals[table] = totals.get(table, 0) + rows

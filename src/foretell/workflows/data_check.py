"""Workflows: check a store or the folder of a campaign: which files are damaged, and what can be saved."""

import hashlib
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from foretell.datasets import journal_tables
from foretell.datasets.old_rows import OldTable
from foretell.datasets.parquet_files import check_pages, look, open_parquet, table_of, unreadable
from foretell.datasets.seals import seal_matches
from foretell.errors import DataError
from foretell.profiling.campaign.checked import TORN
from foretell.profiling.campaign.journal import DAMAGED, HEADERS, RECORDS, TRACES, pieces, read_records, read_traces
from foretell.workflows.data import open_existing

_RESUME = f"The campaign's command, run again, moves them to {DAMAGED} and measures them again."
_COPY = "Restore the file from a copy."


@dataclass(frozen=True)
class Damage:
    """What is wrong with one file. ``saved`` counts the records, or rows of a table, that can still be read."""

    file: str
    kind: str
    damaged: int
    saved: int
    advice: str


@dataclass(frozen=True)
class Check:
    """The result of a check. ``records`` counts those that are whole, ``set_aside`` those that were moved away."""

    store: str
    files: int
    records: dict[str, int]
    set_aside: int
    damage: tuple[Damage, ...]

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged."""
        return not self.damage

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell data check --json`` prints."""
        return {**asdict(self), "damage": [asdict(damage) for damage in self.damage], "whole": self.whole}


def check(where: str) -> Check:
    """Read every record of a store or of a campaign's folder. Nothing is changed."""
    if "://" in where:
        store = open_existing(where)
        try:
            return Check(where.rpartition("@")[2], 0, store.tables(), 0, ())
        finally:
            store.close()
    folder = Path(where)
    if not folder.is_dir():
        raise DataError(f"There is no store at {where}. Give a folder, or postgresql://…")
    records: Counter[str] = Counter()
    damage: list[Damage] = []
    tables = sorted(path for path in folder.rglob("*.parquet") if table_of(path) is not None)
    journals = sorted(path for name in (RECORDS, TRACES, HEADERS) for path in folder.rglob(name))
    for path in journals:
        damage += _check_journal(path, records)
    damaged_tables: set[Path] = set()
    for path in tables:
        found = _check_table(path, records)
        if found is not None:
            damaged_tables.add(path)
            damage.append(found)
    for path in journals:
        if path.name == RECORDS:
            damage += _check_against_tables(path.parent, damaged_tables)
    notes = [path.read_bytes().count(b"\n") for path in folder.rglob(DAMAGED)]
    return Check(where, len(tables) + len(journals), dict(sorted(records.items())), sum(notes), tuple(damage))


def _check_journal(path: Path, records: Counter[str]) -> Iterator[Damage]:
    reasons: Counter[str] = Counter(piece.why for piece in pieces(path))
    whole = reasons.pop("", 0)
    if path.name != HEADERS:  # the headers are in the journal, too
        records["traces" if path.name == TRACES else "journal"] += whole
    for why, count in sorted(reasons.items()):
        advice = _RESUME
        if why == TORN:
            advice = "The writer was stopped. The campaign's command, run again, cuts it off and measures it again."
        yield Damage(str(path), why, count, whole, advice)


def _check_table(path: Path, records: Counter[str]) -> Damage | None:
    """Read every value of a table; its pages and the whole file have checksums: in its seal, or in its name."""
    advice = _COPY
    if (path.parent / RECORDS).exists():
        advice = "Move it away, and make it again from the journal beside it: foretell data tables."
    try:
        file = look(path)
        check_pages([file])
    except DataError as error:
        # the reason stands in parentheses
        why = str(error).partition("(")[2].partition("). ")[0] or str(error)
        return Damage(str(path), f"cannot be read: {why}", *_readable_rows(path), advice)
    if not seal_matches(path):
        return Damage(str(path), "the content does not match its seal", 0, file.rows, advice)
    digest = path.stem.partition("-")[2]
    if digest and not hashlib.sha256(path.read_bytes()).hexdigest().startswith(digest):
        return Damage(str(path), "the content does not match the checksum in its name", 0, file.rows, advice)
    records[file.table] += file.rows
    return None


def _readable_rows(path: Path) -> tuple[int, int]:
    """How many rows of a damaged table cannot be read, and how many can."""
    lost = saved = 0
    try:
        with open_parquet(path) as opened:
            for group in range(opened.metadata.num_row_groups):
                rows = opened.metadata.row_group(group).num_rows
                try:
                    opened.read_row_group(group)
                except unreadable():
                    lost += rows
                else:
                    saved += rows
    except unreadable():
        return 0, 0
    return lost, saved


def _check_against_tables(folder: Path, damaged: set[Path]) -> Iterator[Damage]:
    """Find records that the tables beside a journal have and that the journal has lost."""
    with tempfile.TemporaryDirectory(prefix="foretell-check-") as made:
        try:
            names = journal_tables.write_tables(Path(made), read_records(folder), read_traces(folder))
        except DataError as error:
            yield Damage(str(folder / RECORDS), f"makes no tables: {error}", 0, 0, _COPY)
            return
        for name in names:
            path, new = folder / f"{name}.parquet", Path(made) / f"{name}.parquet"
            if new.exists() and path.exists() and path not in damaged:
                old = OldTable(path)
                lost = old.rows_lost(OldTable(new).records)
                if lost:
                    advice = f"They are in {path.name}. Keep the rows of both: foretell data tables {folder} --keep-old"
                    yield Damage(str(folder / RECORDS), f"lacks rows of {path.name}", lost, old.file.rows, advice)

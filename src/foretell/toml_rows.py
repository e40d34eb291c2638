"""TOML rows: reads the tables of a TOML file field by field, so that an error names the file, the table and the key."""

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from foretell.errors import DataError
from foretell.frozen import dataclass
from foretell.registry import did_you_mean

_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_DATE_EXAMPLES = "'2026', '2026-08' or '2026-08-15'"


@dataclass(frozen=True, slots=True)
class Row:
    """A table of a file. ``where`` names the file and the table in messages."""

    where: str
    fields: Mapping[str, object]

    def allow(self, *names: str) -> "Row":
        """Return this row; raise if it has any other field than these."""
        for name in self.fields:
            if name not in names:
                raise DataError(f"{self.where}: unknown key {name!r}.{did_you_mean(name, names)}")
        return self

    def rows(self, name: str) -> dict[str, "Row"]:
        """The tables inside the table ``name``; empty if it is absent."""
        inner = self.fields.get(name, {})
        if not isinstance(inner, dict):
            raise DataError(f"{self.where}: {name} is {_shown(inner)}; it must be a table, such as [{name}]")
        tables = {}
        for key, fields in inner.items():
            if not isinstance(fields, dict):
                raise DataError(f"{self.where}, {name}.{key} is {_shown(fields)}; it must be a table, such as {{ … }}")
            tables[key] = Row(f"{self.where}, {name}.{key}", fields)
        return tables

    def row(self, name: str) -> "Row":
        """The table ``name``, which must be present."""
        inner = self.fields.get(name)
        if not isinstance(inner, dict):
            raise DataError(f"{self.where}: {name} is {_shown(inner)}; it must be a table, such as [{name}]")
        return Row(f"{self.where}, {name}", inner)

    def list_of_rows(self, name: str) -> list["Row"]:
        """The tables of the list ``name``, as [[name]] writes them; empty if it is absent."""
        inner = self.fields.get(name, [])
        if not isinstance(inner, list) or not all(isinstance(fields, dict) for fields in inner):
            raise DataError(f"{self.where}: {name} is {_shown(inner)}; it must be a list of tables, such as [[{name}]]")
        return [Row(f"{self.where}, {name} {number}", fields) for number, fields in enumerate(inner, 1)]

    def texts(self, name: str) -> list[str]:
        """A list of strings; empty if it is absent."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(entry, str) and entry.strip() for entry in value):
            raise DataError(f"{self.where}: {name} is {_shown(value)}; it must be a list of texts in quotes")
        return list(value)

    def text(self, name: str) -> str:
        """A string that must be present and not empty."""
        value = self.fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{self.where}: {name} is {_shown(value)}; it must be text in quotes")
        return value

    def maybe_text(self, name: str) -> str | None:
        """A string, or None if it is absent."""
        return self.text(name) if name in self.fields else None

    def maybe_number(self, name: str, *, least: float, open_end: bool = False) -> float | None:
        """A finite number of at least ``least``, or above it with ``open_end``; None if it is absent."""
        if name not in self.fields:
            return None
        value = self.fields[name]
        allowed = f"a number above {least:g}" if open_end else f"a number of at least {least:g}"
        # a bool is an int in Python, and TOML knows nan and inf
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise DataError(f"{self.where}: {name} is {_shown(value)}; it must be {allowed}, or absent if unknown")
        if value < least or (open_end and value == least):
            raise DataError(f"{self.where}: {name} is {value}; it must be {allowed}, or absent if unknown")
        return float(value)

    def count(self, name: str, *, default: int) -> int:
        """An integer of at least 1."""
        value = self.fields.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise DataError(f"{self.where}: {name} is {_shown(value)}; it must be an integer of at least 1")
        return value

    def maybe_date(self, name: str = "date") -> str | None:
        """A year, a month or a day, such as 2026, 2026-08 or 2026-08-15; None if it is absent."""
        if name not in self.fields:
            return None
        value = self.fields[name]
        # TOML has dates of its own: 2026-08-15 without quotes
        written = value.isoformat() if isinstance(value, datetime.date) else value
        if isinstance(written, str) and _DATE.fullmatch(written):
            try:
                # "2026" is completed to "2026-01-01", "2026-08" to "2026-08-01"
                datetime.date.fromisoformat(written + "-01-01"[: 10 - len(written)])
            except ValueError:
                pass
            else:
                return written
        raise DataError(f"{self.where}: {name} is {_shown(value)}; it must be a date, such as {_DATE_EXAMPLES}")

    def date(self, name: str = "date") -> str:
        """A date that must be present."""
        value = self.maybe_date(name)
        if value is None:
            raise DataError(f"{self.where}: {name} is missing; give the date of the value, such as {_DATE_EXAMPLES}")
        return value

    def source(self, sources: Mapping[str, object]) -> str:
        """The source of the row: its own text, or the entry of [sources] that it names."""
        named = self.text("source")
        return str(sources.get(named, named))


def read_shipped(package: str, name: str) -> Row:
    """Read a TOML file that is shipped with a package of foretell."""
    return Row(name, tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8")))


def read_own(path: Path | str, page: str = "docs/costs.md") -> Row:
    """Read a TOML file of the user; ``page`` shows an example of it."""
    try:
        return Row(str(path), tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Give a TOML file; {page} shows an example") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}. {page} shows an example") from error


def sources_of(file: Row) -> dict[str, object]:
    """Return the entries of [sources]: name → text."""
    entries = file.fields.get("sources", {})
    if not isinstance(entries, dict):
        raise DataError(f"{file.where}: sources is {_shown(entries)}; it must be a table, such as [sources]")
    row = Row(f"{file.where}, sources", entries)
    return {name: row.text(name) for name in entries}


def _shown(value: object) -> str:
    """A value as a message shows it."""
    if value is None:
        return "absent"
    if isinstance(value, dict | list):
        return "a table" if isinstance(value, dict) else "a list"
    return repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}…"

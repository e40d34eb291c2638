"""The facts room: one table of a TOML file, read field by field, so that every mistake is named with its place."""

import datetime
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from foretell.errors import DataError
from foretell.registry import did_you_mean

_DATE = re.compile(r"[0-9]{4}(-[0-9]{2}){0,2}")
_DATE_EXAMPLES = "'2026', '2026-08' or '2026-08-15'"


@dataclass(frozen=True, slots=True)
class Row:
    """A table of a file, and where it stands, for messages."""

    where: str
    fields: Mapping[str, object]

    def allow(self, *names: str) -> "Row":
        """This row, if it has no other fields than these."""
        for name in self.fields:
            if name not in names:
                raise DataError(f"{self.where}: unknown key {name!r}.{did_you_mean(name, names)}")
        return self

    def rows(self, name: str) -> dict[str, "Row"]:
        """The tables inside a table; none where it is absent."""
        inner = self.fields.get(name, {})
        if not isinstance(inner, dict):
            raise DataError(f"{self.where}: {name} is {_kind(inner)}; it must be a table, as [{name}]")
        found = {}
        for key, fields in inner.items():
            if not isinstance(fields, dict):
                raise DataError(f"{self.where}, {name}.{key}: it is {_kind(fields)}; it must be a table, as {{ … }}")
            found[key] = Row(f"{self.where}, {name}.{key}", fields)
        return found

    def text(self, name: str) -> str:
        """A word or a sentence that has to be there."""
        found = self.fields.get(name)
        if not isinstance(found, str) or not found.strip():
            raise DataError(f"{self.where}: {name} is {_kind(found)}; it must be text in quotes")
        return found

    def maybe_text(self, name: str) -> str | None:
        """A word or a sentence, None where it is absent."""
        return self.text(name) if name in self.fields else None

    def maybe_number(self, name: str, *, least: float, open_end: bool = False) -> float | None:
        """A finite number from ``least`` on, or above it where the end is open; None where it is absent."""
        if name not in self.fields:
            return None
        found = self.fields[name]
        allowed = f"a number above {least:g}" if open_end else f"a number from {least:g} on"
        if isinstance(found, bool) or not isinstance(found, int | float) or not math.isfinite(found):
            raise DataError(f"{self.where}: {name} is {_kind(found)}; it must be {allowed}, or absent where unknown")
        if found < least or (open_end and found == least):
            raise DataError(f"{self.where}: {name} is {found}; it must be {allowed}, or absent where unknown")
        return float(found)

    def count(self, name: str, *, default: int) -> int:
        """A whole number from 1 on."""
        found = self.fields.get(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise DataError(f"{self.where}: {name} is {_kind(found)}; it must be a whole number from 1 on")
        return found

    def maybe_date(self, name: str = "date") -> str | None:
        """A year, month or day as 2026, 2026-08 or 2026-08-15; None where it is absent."""
        if name not in self.fields:
            return None
        found = self.fields[name]
        written = found.isoformat() if isinstance(found, datetime.date) else found
        if isinstance(written, str) and _DATE.fullmatch(written):
            try:
                datetime.date.fromisoformat(written + "-01-01"[: 10 - len(written)])
            except ValueError:
                pass
            else:
                return written
        raise DataError(f"{self.where}: {name} is {_kind(found)}; it must be a date, as {_DATE_EXAMPLES}")

    def date(self, name: str = "date") -> str:
        """A date that has to be there."""
        found = self.maybe_date(name)
        if found is None:
            raise DataError(f"{self.where}: there is no {name}; say when it was so, as {_DATE_EXAMPLES}")
        return found

    def source(self, sources: Mapping[str, object]) -> str:
        """Where the row comes from: text of its own, or the name of an entry of [sources]."""
        named = self.text("source")
        return str(sources.get(named, named))


def read_shipped(package: str, name: str) -> Row:
    """A file that a package of ours brings."""
    return Row(name, tomllib.loads(files(package).joinpath(name).read_text(encoding="utf-8")))


def read_own(path: Path | str) -> Row:
    """A file of the user."""
    try:
        return Row(str(path), tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror}. Give a TOML file; docs/costs.md shows one") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}. docs/costs.md shows such a file") from error


def sources_of(file: Row) -> dict[str, object]:
    """The entries of [sources]: name → text."""
    found = file.fields.get("sources", {})
    if not isinstance(found, dict):
        raise DataError(f"{file.where}: sources is {_kind(found)}; it must be a table, as [sources]")
    listed = Row(f"{file.where}, sources", found)
    return {name: listed.text(name) for name in found}


def _kind(found: object) -> str:
    """A value as a message shows it."""
    if found is None:
        return "absent"
    if isinstance(found, dict | list):
        return "a table" if isinstance(found, dict) else "a list"
    return repr(found) if len(repr(found)) <= 60 else f"{repr(found)[:57]}…"

"""Workflows: the files of a plan's predictions: a folder of Parquet files, each complete or absent, and a manifest.

A file is written under another name, sealed with a checksum of all its bytes, forced to disk and renamed, as those of
the store are. What is done is what is there: a run that was killed looks at the files, and nowhere else.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.datasets.parquet_files import open_parquet, rename, unreadable, unwritable
from foretell.datasets.seals import seal, seal_matches
from foretell.errors import DataError
from foretell.files import locked, write_whole
from foretell.optional import require
from foretell.workflows.many.plan import ManyPlan
from foretell.workflows.many.task import ERROR

log = logging.getLogger("foretell.many")

MANIFEST = "manifest.json"
_PLAN, _ERRORS = b"foretell_plan", b"foretell_errors"


@dataclass(frozen=True)
class Shard:
    """A complete file: its number, its rows, and how many of them are errors."""

    number: int
    rows: int
    errors: int


class ShardFolder:
    """The folder that a plan is predicted into."""

    def __init__(self, folder: Path, plan: ManyPlan) -> None:
        self.folder = folder
        self._plan = plan

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder: two runs in it would predict everything twice. The lock of a process that dies is freed."""
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
                for left in self.folder.glob(".shard-*.part"):  # of a process that was killed
                    left.unlink(missing_ok=True)
            except BlockingIOError as error:
                raise DataError(
                    f"Another run writes to {self.folder}. Wait for it, or choose another --out."
                ) from error
            except OSError as error:
                raise unwritable(self.folder, error) from error
            yield

    def path(self, number: int) -> Path:
        """The file of a shard."""
        return self.folder / f"shard-{number:06}.parquet"

    def begin(self) -> list[Shard]:
        """Write the manifest of a new folder, or check that the folder belongs to this plan; the complete shards."""
        manifest = self._read_manifest()
        if manifest is None:
            if any(self.folder.glob("shard-*.parquet")):
                raise DataError(f"{self.folder} has shards and no {MANIFEST}. Choose another --out.")
            self._write_manifest([])
        elif manifest.get("plan") != self._plan.identity:
            raise DataError(
                f"{self.folder} holds predictions of another plan, of other files or of another foretell. "
                "Choose another --out, or delete that folder."
            )
        return [shard for number in range(self._plan.shards) if (shard := self.look(number)) is not None]

    def look(self, number: int) -> Shard | None:
        """A shard, if its file is there and whole. A damaged file is removed."""
        path = self.path(number)
        if not path.exists():
            return None
        try:
            if seal_matches(path):
                with open_parquet(path) as file:
                    facts = file.schema_arrow.metadata or {}
                    if facts.get(_PLAN) == self._plan.identity.encode():
                        return Shard(number, file.metadata.num_rows, int(facts.get(_ERRORS, b"0")))
        except unreadable():
            pass
        log.warning("%s is damaged; it is predicted again", path)
        path.unlink()
        return None

    def write(self, number: int, tables: Sequence[Any]) -> Shard:
        """Write a shard from the tables of its tasks, in the order of its models."""
        arrow = require("pyarrow", extra="data", purpose="Predictions in Parquet")
        parquet = require("pyarrow.parquet", extra="data", purpose="Predictions in Parquet")
        table = arrow.concat_tables(tables).combine_chunks().sort_by("number")  # the sort is stable
        errors = table.column("status").to_pylist().count(ERROR)
        facts = {_PLAN: self._plan.identity.encode(), _ERRORS: str(errors).encode()}
        partial = self.folder / f".shard-{number:06}.part"
        try:
            parquet.write_table(
                table.replace_schema_metadata(facts), partial, compression="zstd", write_page_checksum=True
            )
            seal(partial)
            handle = os.open(partial, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            rename(partial, self.path(number))
        except OSError as error:
            raise unwritable(self.folder, error) from error
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
        return Shard(number, table.num_rows, errors)

    def finish(self, shards: Sequence[Shard]) -> None:
        """Write the manifest of a folder that is complete."""
        self._write_manifest(sorted(shards, key=lambda shard: shard.number))

    def _read_manifest(self) -> dict[str, Any] | None:
        try:
            found = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.folder / MANIFEST} cannot be read. Choose another --out.") from error
        return found if isinstance(found, dict) else {}

    def _write_manifest(self, shards: Sequence[Shard]) -> None:
        plan = self._plan
        files = {
            self.path(shard.number).name: {
                "rows": shard.rows,
                "errors": shard.errors,
                "sha256": hashlib.sha256(self.path(shard.number).read_bytes()).hexdigest(),
            }
            for shard in shards
        }
        manifest = {
            "plan": plan.identity, "models": plan.models, "combinations": list(plan.combinations),
            "models_a_shard": plan.shard_models, "shards": plan.shards, "complete": len(files) == plan.shards,
            "files": files,
        }  # fmt: skip
        try:
            write_whole(self.folder / MANIFEST, json.dumps(manifest, indent=1).encode())
        except OSError as error:
            raise unwritable(self.folder, error) from error

"""Predictors: fitted models as files, with their checksums beside them; ``foretell train`` writes them."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from foretell.errors import ModelError
from foretell.files import write_whole

CHECKSUMS, INDEX = "checksums.json", "index.json"
TRAINED = resources.files(__package__) / "trained"
ShippedIndex = dict[str, dict[str, dict[str, Any]]]


def shipped_index(folder: Traversable = TRAINED) -> ShippedIndex:
    """The index of shipped files: by device and predictor, the file and its held-out errors."""
    index: ShippedIndex = json.loads(_checked(folder, INDEX))
    return index


def judged_errors(device: str, predictor: str) -> dict[str, float]:
    """The mean errors of a shipped predictor on architectures that no fit saw, as the README says them; by metric.

    Where nobody judged it so, they are those of its own folds, which its card has.

    >>> judged_errors("h200", "unit-network")["latency_ms"]
    0.069
    """
    judged = tomllib.loads((resources.files(__package__) / "unit" / "judged.toml").read_text(encoding="utf-8"))
    card: Mapping[str, Any] = shipped_index().get(device, {}).get(predictor, {})
    errors = judged.get(device, {}).get(predictor) or card.get("held_out", {})
    return {name: error for name, error in errors.items() if isinstance(error, float)}


@cache
def best_fitted(device: str) -> str | None:
    """The predictor with the least held-out error among those fitted to a device; None where there is none."""
    fitted = shipped_index().get(device, {})
    return min(fitted, key=lambda name: float(fitted[name]["held_out"]["latency_ms"]), default=None)


def read_shipped(name: str) -> bytes | None:
    """The bytes of a shipped file, or None; refuse a damaged file."""
    return _checked(TRAINED, name) if (TRAINED / name).is_file() else None


def _checked(folder: Traversable, name: str) -> bytes:
    data = (folder / name).read_bytes()
    if hashlib.sha256(data).hexdigest() not in _checksums(folder).get(name, "").split():
        raise ModelError(f"{name} is damaged: its checksum does not match. Install foretell again.")
    return data


def write_fitted(folder: Path, name: str, data: bytes) -> Path:
    """Write a fitted model, and its checksum into the folder's list."""
    sums, new = _checksums(folder), hashlib.sha256(data).hexdigest()
    # a process that is killed meanwhile leaves the old file or the new one: until both are written, both are right
    _write_checksums(folder, {**sums, name: f"{sums[name]} {new}" if name in sums else new})
    write_whole(folder / name, data)
    _write_checksums(folder, {**sums, name: new})
    best_fitted.cache_clear()
    return folder / name


def _write_checksums(folder: Path, sums: dict[str, str]) -> None:
    write_whole(folder / CHECKSUMS, (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode())


def _checksums(folder: Traversable) -> dict[str, str]:
    file = folder / CHECKSUMS
    checksums: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return checksums

"""Predictors: fitted models as files, with their checksums beside them; ``foretell train`` writes them."""

import hashlib
import json
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from foretell.errors import ModelError
from foretell.files import write_whole

CHECKSUMS = "checksums.json"
TRAINED = resources.files(__package__) / "trained"
ShippedIndex = dict[str, dict[str, dict[str, Any]]]


def shipped_index(folder: Traversable = TRAINED) -> ShippedIndex:
    """The index of shipped files: by device and predictor, the file and its held-out errors."""
    index: ShippedIndex = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return index


def best_fitted(device: str) -> str | None:
    """The predictor with the least held-out error among those fitted to a device; None where there is none."""
    fitted = shipped_index().get(device, {})
    return min(fitted, key=lambda name: float(fitted[name]["held_out"]["latency_ms"]), default=None)


def read_shipped(name: str) -> bytes | None:
    """The bytes of a shipped file, or None; refuse a damaged file."""
    file = TRAINED / name
    if not file.is_file():
        return None
    data = file.read_bytes()
    if hashlib.sha256(data).hexdigest() != _checksums(TRAINED).get(name):
        raise ModelError(f"{name} is damaged: its checksum does not match. Install foretell again.")
    return data


def write_fitted(folder: Path, name: str, data: bytes) -> Path:
    """Write a fitted model, and its checksum into the folder's list."""
    write_whole(folder / name, data)
    sums = {**_checksums(folder), name: hashlib.sha256(data).hexdigest()}
    write_whole(folder / CHECKSUMS, (json.dumps(sums, indent=1, sort_keys=True) + "\n").encode())
    return folder / name


def _checksums(folder: Traversable) -> dict[str, str]:
    file = folder / CHECKSUMS
    checksums: dict[str, str] = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return checksums

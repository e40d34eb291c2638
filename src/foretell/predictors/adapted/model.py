"""Predictors: adapted: what ``foretell adapt`` learned, as a file: a zip of a JSON card and arrays, no pickle.

The file may come from somebody else, so nothing in it is believed: sizes before reading, types, shapes, numbers.
"""

import io
import json
import math
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.errors import ModelError
from foretell.predictors.adapted.regression import Factors, Widths
from foretell.predictors.adapted.units import CLASSES, WIDTH, Values
from foretell.units import bytes_from_mib

CARD = "adapted.json"
VERSION = 1
METRICS = ("latency_ms", "memory_mib", "power_w")
MAX_SAMPLES = 20_000
_MAX_BYTES = bytes_from_mib(64)
_BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError, OSError)


@dataclass(frozen=True)
class Card:
    """What an adapted predictor was made from.

    ``settings`` are the modes, dtypes and layouts that were measured; ``shares`` the largest share of the time that any
    measured workload spends in each class; ``probe`` what the base said about a fixed small workload at that time.
    """

    device: str
    base: str
    samples: int
    models: int
    made_at: str
    settings: tuple[str, ...]
    shares: tuple[float, ...]
    probe: tuple[float, ...]
    drift: float  # the standard deviation that measurements have around the adapted prediction, in logarithms


@dataclass(frozen=True)
class AdaptedModel:
    """Factors for every metric that was measured."""

    card: Card
    factors: Mapping[str, Factors]

    def to_bytes(self) -> bytes:
        """The file; the same model gives the same bytes."""
        described = {
            name: {"widths": asdict(factors.widths), "quantile": factors.quantile}
            for name, factors in self.factors.items()
        }
        card = {"version": VERSION, "width": WIDTH, **asdict(self.card), "factors": described}
        parts = {CARD: json.dumps(card, indent=1, sort_keys=True).encode()}
        for name, factors in self.factors.items():
            for part, values in (("weights", factors.weights), ("explained", factors.explained)):
                written = io.BytesIO()
                np.save(written, values.astype(np.float32), allow_pickle=False)
                parts[f"{name}.{part}.npy"] = written.getvalue()
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as archive:
            for name in sorted(parts):
                archive.writestr(zipfile.ZipInfo(name), parts[name], zipfile.ZIP_DEFLATED)
        return file.getvalue()

    @classmethod
    def from_file(cls, path: Path) -> "AdaptedModel":
        """Read what `to_bytes` wrote."""
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("it is too large")
            with zipfile.ZipFile(path) as archive:
                if sum(member.file_size for member in archive.infolist()) > _MAX_BYTES:
                    raise ValueError("its contents are too large")
                stored = json.loads(archive.read(CARD))
                if (stored["version"], stored["width"]) != (VERSION, WIDTH):
                    raise ModelError(f"{path} was made by another version of foretell; make it again: foretell adapt.")
                factors = {
                    name: _factors(stored["factors"][name], *(_array(archive, f"{name}.{part}.npy") for part in _PARTS))
                    for name in METRICS
                    if name in stored["factors"]
                }
            if "latency_ms" not in factors:
                raise ValueError("it has no latency")
            return cls(_card(stored), factors)
        except ModelError:
            raise
        except FileNotFoundError as error:
            raise ModelError(f"There is no file {path}.") from error
        except _BROKEN as error:
            raise ModelError(f"{path} is not a predictor of foretell adapt: {error}.") from error


_PARTS = ("weights", "explained")


def is_adapted(path: Path) -> bool:
    """Whether a file is one of ``foretell adapt``, and not of ``foretell train``."""
    try:
        with zipfile.ZipFile(path) as archive:
            return CARD in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def _array(archive: zipfile.ZipFile, name: str) -> Values:
    values = np.load(io.BytesIO(archive.read(name)), allow_pickle=False)
    if values.dtype != np.float32 or not np.isfinite(values).all():
        raise ValueError(f"{name} has numbers that are not finite")
    return np.asarray(values, np.float64)


def _factors(stored: Mapping[str, Any], weights: Values, explained: Values) -> Factors:
    if weights.shape != (WIDTH,) or explained.ndim != 2 or explained.shape[1] != WIDTH or len(explained) > MAX_SAMPLES:
        raise ValueError("its arrays have other shapes than they should")
    widths = Widths(**{name: _number(value, 0.0) for name, value in stored["widths"].items()})
    return Factors(weights, widths, explained, _number(stored["quantile"], 0.0))


def _card(stored: Mapping[str, Any]) -> Card:
    shares, probe = (tuple(_number(value, 0.0) for value in stored[name]) for name in ("shares", "probe"))
    if len(shares) != len(CLASSES):
        raise ValueError("it has other classes of units")
    return Card(
        device=_text(stored["device"]),
        base=_text(stored["base"]),
        samples=int(_number(stored["samples"], 1.0)),
        models=int(_number(stored["models"], 1.0)),
        made_at=_text(stored["made_at"]),
        settings=tuple(_text(setting) for setting in stored["settings"]),
        shares=shares,
        probe=probe,
        drift=_number(stored["drift"], 0.0),
    )


def _text(value: object) -> str:
    if not isinstance(value, str) or len(value) > 200 or not value.isprintable():
        raise ValueError("a name in it is no name")
    return value


def _number(value: object, least: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < least:
        raise ValueError(f"{value!r} in it is not a number that can be")
    return float(value)

"""Training: fits the kernels of plain torch that we measured on an H200: products, attention, experts, and the rest.

`lab.campaigns.serving.measure` writes a line for each part. A fifth of the shapes, fixed by their hash, only judges.
There are a few hundred rows of each kind, so trees are small; those of attention and experts also see what engines'
kernels of the same work take (`foretell.predictors.llm.kernels`), and so learn how torch differs from them.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import DataError
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.llm.kernels import BALANCED, SMALL, SMALL_BYTES, Kernels, own_name
from foretell.predictors.trees import Trees

FIT = TreeFit(
    rounds=300, leaves=15, learning_rate=0.05, least_in_leaf=5, objective="regression_l1",
    others={"bagging_fraction": 0.9, "bagging_freq": 1, "feature_fraction": 0.8},
)  # fmt: skip
_SCHEMES = {
    "bf16": "bf16", "fp8": "fp8", "int8": "int8", "int8-weights": "int8_weights", "int4-weights": "int4_weights"
}  # fmt: skip
# what is fitted together, by its name: the kind of kernel whose features it has, and the parts
_FITTED = {
    "generation": ("generation", ("decode",)),
    "paged": ("generation", ("paged-decode",)),
    "context": ("context", ("prefill",)),
    "experts": ("experts", ("experts",)),
    "small": ("small", tuple(SMALL)),
    "sample": ("sample", ("sample",)),
}
Row = dict[str, Any]


@dataclass(frozen=True)
class PartRows:
    """Measured parts that are fitted together: what was done, its time, and which shapes only judge."""

    name: str
    kind: str
    work: dict[str, Any]
    us: NDArray[np.float64]
    held_out: NDArray[np.bool_]
    labels: tuple[str, ...]


def read_lines(folder: Path, name: str) -> list[Row]:
    """The measured lines of all files ``name*.jsonl.gz`` in the folders of a store, without those with an error."""
    files = sorted(folder.glob(f"*-parts/{name}*.jsonl.gz"))
    if not files:
        raise DataError(f"There is no {name}.jsonl.gz in {folder}/*-parts. Give the folder of a device, data/h200.")
    lines = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).decode().splitlines()]
    return [line for line in lines if "us" in line]


def part_rows(lines: Iterable[Row]) -> list[PartRows]:
    """Lines as rows of each kind that is fitted."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for line in lines:
        for place in _places(line):
            groups.setdefault(place, []).append(line)
    return [_rows(name, kind, own) for (name, kind), own in sorted(groups.items())]


def _places(line: Row) -> list[tuple[str, str]]:
    """The fits that a line belongs to, each with its kind."""
    if line["part"] == "product":
        return [(own_name("product", _SCHEMES[line["precision"]]), "product")]
    return [(name, kind) for name, (kind, parts) in _FITTED.items() if line["part"] in parts]


def _rows(name: str, kind: str, lines: Sequence[Row]) -> PartRows:
    us = np.array([line["us"] for line in lines], dtype=np.float64)
    held_out = np.array([_is_held_out(line) for line in lines])
    labels = tuple(f"{line['part']}, {line['precision']}" for line in lines)
    return PartRows(name, kind, _work(kind, lines), us, held_out, labels)


def _is_held_out(line: Row) -> bool:
    """By the shape alone, so that all precisions of a shape are on one side."""
    shape = {name: value for name, value in sorted(line.items()) if name not in ("us", "copies", "precision")}
    return zlib.crc32(json.dumps(shape).encode()) % 5 == 0


def _work(kind: str, lines: Sequence[Row]) -> dict[str, Any]:
    def column(name: str) -> NDArray[np.float64]:
        return np.array([line[name] for line in lines], dtype=np.float64)

    rows = len(lines)
    if kind == "product":
        return {**{name: column(name) for name in "mnk"}, "scheme": [_SCHEMES[line["precision"]] for line in lines]}
    if kind in ("generation", "context"):
        sizes = {name: column(name) for name in ("batch", "heads", "kv_heads", "head_size")}
        cache = np.array([1 if line["precision"] == "fp8" else 2 for line in lines])
        return {
            **sizes,
            "tokens": column("context"),
            "window": np.zeros(rows),
            "kv_bytes": cache,
            "fp8": np.zeros(rows),
        }
    if kind == "experts":
        sizes = {name: column(name) for name in ("tokens", "hidden", "inner", "top", "experts")}
        one = np.ones(rows)
        return {
            **sizes, "tensor_parallel": one, "expert_parallel": one, "distribution": np.full(rows, BALANCED),
            "scheme": ["bf16"] * rows,
        }  # fmt: skip
    if kind == "sample":
        return {"tokens": column("tokens"), "vocabulary": column("vocabulary")}
    width = np.array([_width(line) for line in lines])
    written = np.array([1 if line["precision"] == "fp8" else 2 for line in lines])
    return {
        "tokens": column("tokens"), "width": width, "part": np.array([SMALL[line["part"]] for line in lines]),
        "bytes_per_token": width * [SMALL_BYTES[line["part"]] for line in lines], "written_bytes": written,
    }  # fmt: skip


def _width(line: Row) -> float:
    if line["part"] == "rotate":
        return float((line["heads"] + 2 * line["kv_heads"]) * line["head_size"])
    return float(line["width"])


def fit_parts(rows: Iterable[PartRows], kernels: Kernels, device: Device | None = None) -> dict[str, Trees]:
    """Fit trees of each kind to the shapes that do not judge."""
    device = device or find_device("h200")
    fitted = {}
    for part in rows:
        features, bound = kernels.own_features(part.kind, part.work, device)
        taught = ~part.held_out
        fitted[part.name] = trees_of(FIT.fit(features[taught], np.log(part.us / bound)[taught]))
    return fitted


def part_errors(part: PartRows, kernels: Kernels, device: Device | None = None) -> NDArray[np.float64]:
    """Signed relative errors of all rows of a kind by the fitted trees of ``kernels``."""
    features, bound = kernels.own_features(part.kind, part.work, device or find_device("h200"))
    errors: NDArray[np.float64] = bound * np.exp(kernels.own[part.name].predict(features)) / part.us - 1
    return errors

"""Lab: parts and whole steps of a small paged engine on an H200 that we measured, and what is predicted for them.

Parts (`lab.campaigns.serving.measure`) are judged at shapes that did not teach. Whole steps never teach: they are put
together from parts (``torch`` over a static cache, ``torch-paged`` over pages), and from engines' kernels of public
tables (``paged``), without any time of a host, since they are replays. A step's memory is the peak of the allocator
while it runs eagerly.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.deployment import Deployment
from foretell.predictors.llm.kernels import TORCH, TORCH_PAGED, Kernels
from foretell.predictors.llm.steps import Chunk, Steps
from foretell.training.judging.table import Cell, Comparison
from foretell.training.llm_parts import part_errors, part_rows, read_lines
from foretell.units import mib

SHARES = frozenset({"median", "p90", "bias", "paged", "paged bias", "memory", "memory p90"})
_SCHEMES = {"bf16": "bf16", "fp8": "fp8", "int4-weights": "int4_weights"}
_WORKSPACES_MIB = 64  # cuBLAS's, of 32 MiB on each of two streams
Row = dict[str, Any]


def judge_parts(store: Path, kernels: Kernels) -> Comparison:
    """Parts at shapes that did not teach, and how far engines' kernels of public tables are from the same work."""
    errors: dict[str, list[NDArray[np.float64]]] = defaultdict(list)
    for rows in part_rows(read_lines(store, "parts")):
        signed, labels = part_errors(rows, kernels), np.array(rows.labels)
        for name in sorted(set(rows.labels)):
            errors[name].append(signed[(labels == name) & rows.held_out])
    cells = {name: _cells(np.concatenate(parts)) for name, parts in sorted(errors.items())}
    title = "Parts of an engine of plain torch, H200, shapes that did not teach"
    return Comparison(title, cells, ranked=False, shares=SHARES, head="part")


def judge_steps(store: Path, kernels: Kernels) -> Comparison:
    """Whole steps by our parts and by engines' kernels, with their memory."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in read_lines(store, "steps"):
        kind = "prompts" if "prompt" in row else f"tokens, {_attention(row)}"
        groups[f"{row['precision']}, {kind}"].append(row)
    cells = {}
    steps = _cached_steps(kernels)
    for name, rows in sorted(groups.items()):
        own = np.array([_step_us(steps, row, _framework(row)) / row["us"] - 1 for row in rows])
        engines = np.array([_step_us(steps, row, None) / row["us"] - 1 for row in rows])
        memory = np.array([memory_mib(row) / row["peak_mib"] - 1 for row in rows])
        cells[name] = {
            **_cells(own), "paged": float(np.median(np.abs(engines))), "paged bias": float(np.median(engines)),
            "memory": float(np.median(np.abs(memory))), "memory p90": float(np.quantile(np.abs(memory), 0.9)),
        }  # fmt: skip
    title = "Whole steps of that engine, H200: by its parts, by engines' kernels (paged), and their memory"
    return Comparison(title, cells, ranked=False, shares=SHARES, head="steps")


def judge_step_models(store: Path, kernels: Kernels) -> Comparison:
    """The same by model."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in read_lines(store, "steps"):
        groups[row["model"]].append(row)
    steps = _cached_steps(kernels)
    cells = {}
    for name, rows in sorted(groups.items()):
        own = np.array([_step_us(steps, row, _framework(row)) / row["us"] - 1 for row in rows])
        memory = np.array([memory_mib(row) / row["peak_mib"] - 1 for row in rows])
        cells[name] = {**_cells(own), "memory": float(np.median(np.abs(memory)))}
    return Comparison("Whole steps by model", cells, ranked=False, shares=SHARES, head="model")


def _cells(errors: NDArray[np.float64]) -> dict[str, Cell]:
    return {
        "count": len(errors), "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)), "bias": float(np.median(errors)),
    }  # fmt: skip


def _attention(row: Row) -> str:
    return "static cache" if row["attention"] == "sdpa" else f"pages in {row['kv']}"


def _framework(row: Row) -> str:
    return TORCH if row["attention"] == "sdpa" else TORCH_PAGED


def _place(row: Row) -> Deployment:
    kv_bytes = 1 if row["kv"] == "fp8" else 2
    return Deployment(load_architecture(row["model"]), find_device("h200"), _SCHEMES[row["precision"]], kv_bytes)


def _cached_steps(kernels: Kernels) -> Callable[[Row, str | None], Steps]:
    known: dict[tuple[object, ...], Steps] = {}

    def steps(row: Row, framework: str | None) -> Steps:
        key = (row["model"], row["precision"], row["kv"], framework)
        if key not in known:
            known[key] = Steps(_place(row), kernels, framework)
        return known[key]

    return steps


def _step_us(steps: Callable[[Row, str | None], Steps], row: Row, framework: str | None) -> float:
    own = steps(row, framework)
    if "prompt" in row:
        return own.step_us(0, 0.0, [Chunk(row["prompt"])] * row["batch"])
    return own.step_us(row["batch"], row["context"])


def memory_mib(row: Mapping[str, Any]) -> float:
    """Weights, cache, activations of the step's tokens, logits of the sampled rows, and cuBLAS's workspaces."""
    place = _place(dict(row))
    tokens = row["batch"] * row.get("prompt", 1)
    logits = row["batch"] * place.architecture.vocabulary * 14
    size = place.weights_bytes_per_gpu + max(place.activation_bytes(tokens, 0), logits)
    if row["precision"] == "int4-weights":  # torch keeps a zero beside each scale of a group of 128
        size += (place.architecture.parameters - place.architecture.embeddings) / 64
    # the cache is a fact of the plan: so many pages were made
    return mib(size) + float(row["cache_mib"]) + _WORKSPACES_MIB


def tables(store: Path, kernels: Kernels) -> Sequence[Comparison]:
    """All tables of parts and steps."""
    return [judge_parts(store, kernels), judge_steps(store, kernels), judge_step_models(store, kernels)]

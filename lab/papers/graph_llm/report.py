"""Lab: chapter 7's tables: few samples beside other ways, ablations, and whether the fits had converged."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foretell.training.judging.table import Cell, Comparison, page
from lab.papers.graph_llm.fitting import last_tenth

OURS = "graph network and language model"
CONVERGED = 0.02
_SHARES = frozenset(("mean error", "between seeds", "median error", "within 10", "no number", "last tenth"))


def write_report(folder: Path, beside: Mapping[str, Mapping[str, Any]], is_small: bool) -> bytes:
    """The page of all tables that there are files for."""
    fitted = {file.stem: json.loads(file.read_bytes()) for file in sorted((folder / "few").glob("*.json"))}
    scale = "Scaled down to one core of a CPU (`--small`)" if is_small else "On a GPU"
    text = (
        "# Chapter 7: a graph network and a language model from few samples\n\n"
        f"{scale}; errors are means of |predicted − measured| / measured of the answers that are numbers, and answers "
        "that are none miss the 10 %. `last tenth` is by how much the last tenth of the steps lowered the error on "
        "rows held aside: a fit had converged if it is below 2 %. "
        "Remade by `python -m lab remake chapter7`; how it was made is in "
        "[0066](../docs/lab/0066-chapter-7.md)."
    )
    return page(text, [*few_tables(fitted, beside), *stage_tables(folder)])


def few_tables(fitted: Mapping[str, Mapping[str, Any]], beside: Mapping[str, Mapping[str, Any]]) -> list[Comparison]:
    """One table for each task and number of samples: every method, means over seeds."""
    found: dict[tuple[str, int], dict[str, list[Mapping[str, float]]]] = {}
    for name, record in beside.items():
        if name in fitted:
            rows = found.setdefault((record["task"], record["samples"]), {})
            rows.setdefault(OURS, []).append(fitted[name]["scores"])
            rows.setdefault("the same, without the samples", []).append(fitted[name]["before"])
            for method, scores in record["scores"].items():
                rows.setdefault(method, []).append(scores)
    return [
        Comparison(
            f"{task}, {number} samples ({len(rows[OURS])} seeds)",
            {method: summed(scores) for method, scores in rows.items()},
            ranked=False, shares=_SHARES, head="",
        )
        for (task, number), rows in found.items()
    ]  # fmt: skip


def summed(scores: Sequence[Mapping[str, float]]) -> dict[str, Cell]:
    """Means over seeds, and how far seeds are apart."""
    spoken = [each for each in scores if math.isfinite(each["error"])]  # some said no number at all
    errors, medians = [each["error"] for each in spoken], [each["median"] for each in spoken]
    return {
        "mean error": float(np.mean(errors)) if spoken else None,
        "between seeds": float(np.std(errors)) if spoken else None,
        "median error": float(np.mean(medians)) if spoken else None,
        "within 10": float(np.mean([each["within_10"] for each in scores])),
        "no number": float(np.mean([each["no_number"] for each in scores])),
    }  # fmt: skip


def stage_tables(folder: Path) -> list[Comparison]:
    """The stages' losses, and the fits to known rows with their ablations."""
    losses: dict[str, dict[str, Cell]] = {}
    fits: dict[str, dict[str, Cell]] = {}
    for file in sorted((folder / "curves").glob("*.json")):
        saved = json.loads(file.read_bytes())
        curve = saved["curve"]
        if not curve:
            continue
        facts: dict[str, Cell] = {"steps": curve[-1]["step"], "seconds": saved["spent_s"]}
        if "aside" in curve[-1]:
            first, last = curve[0]["aside"], curve[-1]["aside"]
            losses[file.stem] = facts | {"first loss": first, "last loss": last, "last tenth": _tenth(curve, "aside")}
        else:
            fits[file.stem] = (
                facts | summed([curve[-1]]) | {"between seeds": None, "last tenth": _tenth(curve, "median")}
            )
    tables = []
    if losses:
        tables.append(Comparison("Pre-training", losses, ranked=False, shares=_SHARES, head="stage"))
    if fits:
        tables.append(Comparison("Known rows held aside", fits, ranked=False, shares=_SHARES, head="fit"))
    return tables


def _tenth(curve: Sequence[Mapping[str, float]], name: str) -> float | None:
    value = last_tenth([dict(record) for record in curve], name)
    return value if math.isfinite(value) else None

"""Lab: chapter 7's tables: few samples beside other ways, ablations, and whether the fits had converged."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foretell.training.judging.table import Cell, Comparison, page
from lab.papers.graph_llm.fitting import last_tenth
from lab.papers.graph_llm.scores import scores

OURS = "graph network and language model"
NNLQP = "NNLQP's way"
_SCALES: Mapping[str, str] = {
    "gpu": "On a GPU",
    "small": "A first look on one core of a CPU (`--size small`), which has not converged",
    "processor": "On one core of a CPU (`--size processor`)",
    "few-by-processor": "Fitted to known platforms on a GPU, and to samples on one core (`--size few-by-processor`)",
}
_SHARES = frozenset(("mean error", "between seeds", "median error", "within 10", "no number", "last tenth"))


def write_report(folder: Path, beside: Mapping[str, Mapping[str, Any]], size: str) -> bytes:
    """The page of all tables that there are files for."""
    fitted = {file.stem: json.loads(file.read_bytes()) for file in sorted((folder / "few").glob("*.json"))}
    scale = _SCALES[size]
    text = (
        "# Chapter 7: a graph network and a language model from few samples\n\n"
        f"{scale}; errors are means of |predicted − measured| / measured of the answers that are numbers, and answers "
        "that are none miss the 10 %. `last tenth` is by how much the last tenth of the steps lowered the error on "
        "rows held aside: a fit had converged if it is below 2 %. "
        "Remade by `python -m lab remake chapter7`; how it was made is in "
        "[0066](../docs/lab/0066-chapter-7.md)."
    )
    return page(
        text,
        [*few_tables(fitted, beside), *known_tables(folder), *recipe_tables(folder), *stage_tables(folder),
         *curve_tables(folder)],
    )  # fmt: skip


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


def known_tables(folder: Path) -> list[Comparison]:
    """Known rows that were held aside, all of them and by platform, for both networks."""
    file = folder / "known.json"
    if not file.exists():
        return []
    saved = json.loads(file.read_bytes())
    platforms, told = np.array(saved["platforms"]), saved["told"]
    truth = np.array(told["truth"])
    tables = []
    for name in (OURS, NNLQP):
        if name in told:
            own = np.array(told[name], dtype=np.float64)
            rows = {"all": summed([scores(own, truth)])}
            for platform in sorted(set(platforms)):
                some = platforms == platform
                rows[str(platform)] = summed([scores(own[some], truth[some])]) | {"rows": int(some.sum())}
            rows["all"] |= {"rows": len(truth)}
            rows = {key: row | {"between seeds": None} for key, row in rows.items()}
            tables.append(Comparison(f"Known platforms, {name}", rows, ranked=False, shares=_SHARES, head="platform"))
    return tables


def recipe_tables(folder: Path) -> list[Comparison]:
    """How far held-out quarters of the samples are off by recipe: before, and after the best number of steps."""
    rows: dict[str, dict[str, Cell]] = {}
    for file in sorted((folder / "recipes").glob("*.json")):
        record = json.loads(file.read_bytes())
        offs = [each["off"] for each in record["curve"]]
        place = int(np.argmin(offs))
        cells = rows.setdefault(record["recipe"], {})
        cells |= {
            f"{record['task']}, no step": offs[0], f"{record['task']}, best": offs[place],
            f"{record['task']}, steps": record["curve"][place]["step"], f"{record['task']}, last": offs[-1],
        }  # fmt: skip
    if not rows:
        return []
    return [Comparison("Held-out samples, mean logarithm of how far off", rows, ranked=False, head="recipe")]


def curve_tables(folder: Path) -> list[Comparison]:
    """The curves of the fits to known platforms, as they were looked at."""
    tables = []
    for file in sorted((folder / "curves").glob("*.json")):
        curve = json.loads(file.read_bytes())["curve"]
        if curve and "error" in curve[-1]:
            rows: dict[str, dict[str, Cell]] = {
                f"{record['step']:.0f}": {"loss": record["loss"], "mean error": _finite(record["error"]),
                                          "median error": _finite(record["median"]), "within 10": record["within_10"]}
                for record in curve
            }  # fmt: skip
            tables.append(Comparison(f"Curve of {file.stem}", rows, ranked=False, shares=_SHARES, head="step"))
    return tables


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
    return _finite(last_tenth([dict(record) for record in curve], name))


def _finite(value: float) -> float | None:
    """A number; None where nothing that was said was one."""
    return value if math.isfinite(value) else None

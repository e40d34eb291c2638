"""workflows: fit predictors to measured workloads, and judge them on what they have not seen."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.evaluation.protocol import METRICS, MODES, Answerer, Fitter, Predicted, Run, compare, groups_of, run_once
from foretell.predictors.baselines import GradientBoosting, Linear
from foretell.predictors.sample import Sample
from foretell.predictors.unit_trees import UnitTrees
from foretell.predictors.unit_trees_training import Settings, fit_unit_trees, predict_samples
from foretell.registry import did_you_mean
from foretell.units import seconds_from_ms
from foretell.workflows.training_set import fingerprint, read_samples

Say = Callable[[str], None]
SPLITS = ("random", "architecture", "family")
_JUDGED_BY = ("predictors", "evaluation/protocol.py", "evaluation/metrics.py", "datasets/splits.py")


def _roofline(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    del train, validation, seed

    def answer(samples: Sequence[Sample]) -> Predicted:
        latency_ms = np.array([sample.roofline_ms for sample in samples])
        power_w = np.array([sample.roofline_w for sample in samples])
        memory_mib = np.array([sample.setting.memory_mib for sample in samples])
        energy_j = np.array([seconds_from_ms(time_ms) for time_ms in latency_ms]) * power_w
        return {"latency_ms": latency_ms, "memory_mib": memory_mib, "power_w": power_w, "energy_j": energy_j}

    return answer


def _linear(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    del seed
    return Linear.fit([*_whole(train), *validation]).predict


def _boosting(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    return GradientBoosting.fit([*_whole(train), *validation], seed).predict


def _unit_trees(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
    samples = [*train, *validation]
    trees = UnitTrees.load(fit_unit_trees(samples, groups_of(samples), Settings(seed=seed)))
    return lambda test: predict_samples(trees, test)


def _whole(samples: Sequence[Sample]) -> list[Sample]:
    return [sample for sample in samples if sample.captured]


# those without early stopping learn from the validation side too: it would serve them for nothing else
FITTERS: Mapping[str, Fitter] = {
    "roofline": _roofline,
    "linear": _linear,
    "gradient-boosting": _boosting,
    "unit-trees": _unit_trees,
}


def train(store: Path, device: str, cache: Path, out: Path, *, seed: int = 0, threads: int = 1, say: Say) -> Path:
    """Fit the unit trees to everything measured on a device; the file is written with its checksum beside it."""
    device = find_device(device).id
    samples = read_samples(store, device, cache, say)
    data = fit_unit_trees(samples, groups_of(samples), Settings(device=device, seed=seed, threads=threads), say)
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"unit-trees-{device}.zip"
    _write(file, data)
    index_file = out / "index.json"
    index = json.loads(index_file.read_text(encoding="utf-8")) if index_file.exists() else {}
    card = UnitTrees.load(data).card
    index[device] = {
        "predictor": "unit-trees",
        "file": file.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "workloads": card["workloads"],
        "held_out": card["held_out"],
        "held_out_by_family": card["held_out_by_family"],
    }
    _write(index_file, (json.dumps(index, indent=1, sort_keys=True) + "\n").encode())
    return file


def evaluate(
    names: Sequence[str],
    store: Path,
    device: str,
    cache: Path,
    runs: Path,
    *,
    splits: Sequence[str] = SPLITS,
    seeds: Sequence[int] = range(5),
    say: Say,
) -> list[Run]:
    """Every predictor on every split with every seed; what is known from an earlier call is not repeated."""
    for name in names:
        if name not in FITTERS:
            raise InputError(f"Unknown predictor {name!r}.{did_you_mean(name, FITTERS)}")
    for split in splits:
        if split not in SPLITS:
            raise InputError(f"Unknown split {split!r}.{did_you_mean(split, SPLITS)}")
    device = find_device(device).id
    samples = read_samples(store, device, cache, say)
    folder = runs / f"{device}-{fingerprint(store, *_JUDGED_BY)}"
    found = []
    for seed in seeds:
        for split in splits:
            for name in names:
                say(f"{name}, split by {split}, seed {seed}")
                found.append(run_once(name, FITTERS[name], samples, split, seed, folder))
    return found


def write_report(runs: Sequence[Run], folder: Path) -> Path:
    """All tables as Markdown and as JSON."""
    tables = list(_tables(runs))
    text = "# Predictors compared\n\nRemade by `foretell evaluate --report`.\n\n"
    text += "\n\n".join(table.to_markdown() for table in tables) + "\n"
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "evaluation.md", text.encode())
    _write(folder / "evaluation.json", json.dumps([json.loads(table.to_json()) for table in tables], indent=1).encode())
    return folder / "evaluation.md"


def _tables(runs: Sequence[Run]) -> Iterator[Any]:
    for split in dict.fromkeys(run.split for run in runs):
        for metric in METRICS:
            for mode in MODES:
                table = compare(runs, split, metric, mode)
                if table is not None:
                    yield table


def _write(file: Path, data: bytes) -> None:
    temporary = file.with_suffix(".part")
    temporary.write_bytes(data)
    os.replace(temporary, file)

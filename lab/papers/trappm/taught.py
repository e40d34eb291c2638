"""Lab: a teacher for TraPPM's regressors: the same network, fitted to inference first, of which there are more labels.

TraPPM pre-trains on graphs without labels. Inference has six times as many labels as training steps have here, and the
same operators; so this is what pre-training with labels is worth beside it.
"""

import io
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from foretell.files import write_whole
from lab.papers.dippm import fits
from lab.papers.dippm.sets import subset
from lab.papers.graph_networks.recipes import Recipe

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Fitted

_FILE = "taught.npz"
_MOST_NODES = 3_000  # 1 in 300 is larger
_VALIDATION = 16  # one workload in so many chooses the epoch


def is_taught(out: Path) -> bool:
    """Whether the teacher is there."""
    return (out / _FILE).exists()


def teach(
    recipe: Recipe, epochs: int, out: Path, progress: Callable[[int, dict[str, float]], None],
    device: str, seconds: float | None, narrow: bool | None,
) -> str:  # fmt: skip
    """Fit the network without an encoder to inference, and write it; one line about it."""
    from lab.papers.graph_networks.training import fit

    began = time.time()
    rows = [row for row in subset(fits.rows(), "inference") if len(row.graph) <= _MOST_NODES]
    order = np.random.default_rng(0).permutation(len(rows))
    aside = len(rows) // _VALIDATION
    learned, judged = (
        [(rows[place].graph, rows[place].truth) for place in part] for part in (order[aside:], order[:aside])
    )
    recipe = replace(recipe, embedding="zeros", batch=32, epochs=epochs, patience=epochs)
    checkpoint = out / "checkpoints" / "taught.pt"
    try:
        fitted = fit(
            learned, judged, recipe, 0, progress, device, checkpoint=checkpoint, seconds=seconds, narrow=narrow
        )  # fmt: skip
    except InterruptedError as interruption:
        return f"{interruption} of {epochs}; the next sitting goes on"
    write_whole(out / _FILE, _packed(fitted, len(learned)))
    checkpoint.unlink(missing_ok=True)
    told = ", ".join(f"{name} {error:.1%}" for name, error in fitted.metrics.items())
    return f"{len(fitted.history)} epochs over {len(learned)} workloads in {time.time() - began:.0f} s: {told} aside"


def _packed(fitted: "Fitted", graphs: int) -> bytes:
    facts = {
        "recipe": fitted.recipe.to_json(), "seed": fitted.seed, "metrics": fitted.metrics, "graphs": graphs,
        "curve": fits.thin(fitted.history),
    }  # fmt: skip
    data = io.BytesIO()
    weights = {f"weight:{name}": value for name, value in fitted.weights.items()}
    np.savez_compressed(data, allow_pickle=False, facts=np.array(json.dumps(facts)), **weights)
    return data.getvalue()


def read_taught(out: Path) -> "Fitted":
    """The network that `teach` wrote."""
    from lab.papers.graph_networks.training import Fitted

    with np.load(out / _FILE, allow_pickle=False) as stored:
        facts = json.loads(str(stored["facts"]))
        weights = {key.partition(":")[2]: stored[key] for key in stored.files if key.startswith("weight:")}
    return Fitted(Recipe.from_json(facts["recipe"]), weights, facts["seed"], facts["metrics"])

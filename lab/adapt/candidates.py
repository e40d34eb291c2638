"""Lab: the candidates of ``foretell adapt --suggest``: models of the store, described as adaptation sees them.

python -m lab candidates   writes src/foretell/predictors/trained/candidates.npz
"""

import io
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from foretell.datasets.splits import architecture_of
from foretell.devices import find_device
from foretell.graph import parse_dtype
from foretell.graph.ir.passes import normalise
from foretell.predictors import find_predictor
from foretell.predictors.adapted.base import base_of
from foretell.predictors.fitted_files import TRAINED, write_fitted
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, read_graphs, stored_keys
from foretell.workflows.adapting.suggest import CANDIDATES

MODELS = 80
SETTINGS = ((1, "fp32"), (16, "fp32"), (16, "fp16"))
_MOST_PARAMETERS = 6e7  # larger ones take minutes to measure on a CPU
_ZOOS = ("timm:", "torchvision:")


def write_candidates(store: Path, log: Callable[[str], None]) -> Path:
    """Describe one model of each of many architectures, some at random, at several batch sizes and precisions."""
    by_architecture: dict[str, GraphKey] = {}
    for key in sorted(stored_keys(store / "graphs")):
        is_plain = key.spec.startswith(_ZOOS) and "?" not in key.spec and key.mode == "inference"
        if is_plain and key.input_shape == (3, 224, 224):  # a plan leaves the size to the model
            by_architecture.setdefault(architecture_of(key.spec), key)
    keys = [by_architecture[name] for name in sorted(by_architecture)]
    order = np.random.default_rng(0).permutation(len(keys))
    chosen = [keys[place] for place in order[: 2 * MODELS]]
    target = Target(find_device("h200"))
    predictor = find_predictor(None, "h200")
    names: list[tuple[str, int, str]] = []
    rows, memory_mib = [], []
    for key, _, graph in read_graphs(store / "graphs", chosen):
        if graph.parameter_count > _MOST_PARAMETERS or len(names) >= MODELS * len(SETTINGS):
            continue
        for batch, dtype in SETTINGS:
            sized = normalise(graph).with_batch(batch).with_dtype(parse_dtype(dtype))
            base = base_of(Workload(sized, target, dtype), predictor)
            if base is None or base.prediction.memory_mib is None:
                continue
            names.append((key.spec, batch, dtype))
            rows.append(base.work.spent_us @ base.work.rows / base.work.spent_us.sum())
            memory_mib.append(base.prediction.memory_mib.value)
        log(f"{len(names)} candidates")
    file = io.BytesIO()
    np.savez_compressed(
        file, names=np.array(json.dumps(names)), rows=np.array(rows, np.float16), memory_mib=np.array(memory_mib)
    )
    return write_fitted(Path(str(TRAINED)), CANDIDATES, file.getvalue())

"""Training: unit classes: which class of kernel ran each traced unit, as an auxiliary label for networks.

Labels identify a unit by its features, not by its workload. Equal units get one class, that of most of them. Units
without a traced time get no class, so that nothing from the trace of a held-out workload reaches them.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.rows import UnitRows
from foretell.training.examples.kernel_labels import LABELS_VERSION, KernelLabels, Log, read_labels
from foretell.training.examples.samples import fingerprint

UNKNOWN = -1


def read_unit_classes(
    samples: list[Sample], store: Path, device: str, cache: Path, log: Log = lambda _: None
) -> NDArray[np.int16] | None:
    """The class of every unit of all samples, in order; None where the store has no names of kernels."""
    file = cache / f"unit-classes-{device}-{fingerprint(store, device, labels=LABELS_VERSION)}.npz"
    if not file.exists():
        try:
            labels = read_labels(store, device, cache, log)
        except DataError as error:
            log(f"networks do not learn which kernels run: {error}")
            return None
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, classes=match(UnitRows.of(samples), labels))
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as stored:
        return np.asarray(stored["classes"], np.int16)


def match(rows: UnitRows, labels: KernelLabels) -> NDArray[np.int16]:
    """The class of each row that was traced and has an equal unit among the labels."""
    known, place = np.unique(_keys(labels.features), return_inverse=True)
    pairs, where = np.unique(np.stack([place, labels.label], axis=1), axis=0, return_inverse=True)
    units = np.bincount(where.ravel(), labels.counts)
    order = np.lexsort(
        (units, pairs[:, 0])
    )  # for each key the class of most units comes last and overwrites the others
    of_key = np.full(len(known), UNKNOWN, np.int16)
    of_key[pairs[order, 0]] = pairs[order, 1]
    keys = _keys(rows.features)
    # `searchsorted` gives a position also for unknown keys: compare before use
    nearest = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(rows.is_traced & (known[nearest] == keys), of_key[nearest], UNKNOWN).astype(np.int16)


def _keys(features: NDArray[np.float32]) -> NDArray[Any]:
    """Each row as one value that can be sorted."""
    rows = np.ascontiguousarray(features, np.float32)
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]

"""workflows: which class of kernel ran each traced unit of the samples, as what a network learns beside its time.

Labels know units by what they are, not by the workload they are of: equal units have one class, that of most of them.
Units that no trace has timed have none, so that what a trace of another workload saw does not reach them.
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
from foretell.training.examples.kernel_labels import LABELS_VERSION, KernelLabels, Say, read_labels
from foretell.training.examples.samples import fingerprint

UNKNOWN = -1


def read_unit_classes(
    samples: list[Sample], store: Path, device: str, cache: Path, say: Say = lambda _: None
) -> NDArray[np.int16] | None:
    """The class of every unit of all samples, in their order; None where no kernel of the store has a name."""
    file = cache / f"unit-classes-{device}-{fingerprint(store, device, labels=LABELS_VERSION)}.npz"
    if not file.exists():
        try:
            labels = read_labels(store, device, cache, say)
        except DataError as error:
            say(f"networks do not learn which kernels run: {error}")
            return None
        data = io.BytesIO()
        np.savez_compressed(data, allow_pickle=False, classes=match(UnitRows.of(samples), labels))
        write_whole(file, data.getvalue())
    with np.load(file, allow_pickle=False) as kept:
        return np.asarray(kept["classes"], np.int16)


def match(rows: UnitRows, labels: KernelLabels) -> NDArray[np.int16]:
    """The class of each row that was traced and has its equal among the labels."""
    known, place = np.unique(_keys(labels.features), return_inverse=True)
    pairs, where = np.unique(np.stack([place, labels.label], axis=1), axis=0, return_inverse=True)
    units = np.bincount(where.ravel(), labels.counts)
    order = np.lexsort((units, pairs[:, 0]))  # of each key the class of most units comes last
    of_key = np.full(len(known), UNKNOWN, np.int16)
    of_key[pairs[order, 0]] = pairs[order, 1]
    keys = _keys(rows.features)
    found = np.minimum(np.searchsorted(known, keys), len(known) - 1)
    return np.where(rows.is_traced & (known[found] == keys), of_key[found], UNKNOWN).astype(np.int16)


def _keys(features: NDArray[np.float32]) -> NDArray[Any]:
    """Each row as one value that can be sorted."""
    rows = np.ascontiguousarray(features, np.float32)
    return rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1])))[:, 0]

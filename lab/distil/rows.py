"""Lab: distil: the rows of units that a small network is asked about while it learns from larger ones.

A teacher answers about any unit, measured or not, so rows cost no measurement. They come from the graphs of the store
that teach, as they were measured and at other batch sizes, precisions and layouts, and from networks of the search
space of ``examples/search.py``. Graphs of judging fields are left out, although no number measured on them would leak.
"""

import importlib.util
import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import architecture_of
from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.features import extract_units
from foretell.features.pooled import DistinctUnits
from foretell.graph import parse_dtype
from foretell.records import Target, Workload
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.samples import read_samples, teaches
from foretell.training.examples.workloads import measured_rows, workload_of
from foretell.training.judging.protocol import groups_of

DTYPES = ("fp16", "bf16", "fp32")
LARGEST_BATCH = 512
CHANNELS_LAST = 0.3  # the share of other settings in this layout, which torch.compile takes too
SPACE, SINGLE, FIRST_NETWORK = "the search space", "single operators", 1_000_000


@dataclass(frozen=True)
class Rows:
    """Distinct units: features, bound, and the number of their architecture.

    ``is_measured`` flags those of workloads that were measured.
    """

    features: NDArray[np.float32]
    bound_us: NDArray[np.float64]
    architecture: NDArray[np.int64]
    is_measured: NDArray[np.bool_]
    names: NDArray[np.str_]

    def save(self, file: Path) -> None:
        """Write them."""
        np.savez(file, allow_pickle=False, **vars(self))

    @classmethod
    def load(cls, file: Path) -> "Rows":
        """Read what `save` wrote."""
        with np.load(file, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in arrays.files})


def collect(store: Path, device: str, cache: Path, more: int, networks: int, seed: int = 0) -> Rows:
    """The rows of all samples, of ``more`` other settings of each teaching graph, and of ``networks`` of a space."""
    samples, names = read_samples(store, device, cache), dict[str, int]()
    parts = [
        _part(sample.units, names.setdefault(name, len(names)), True)
        for sample, name in zip(samples, groups_of(samples), strict=True)
    ]
    for name, workload in _others(store, Target(find_device(device)), more, networks, seed):
        try:
            units = extract_units(workload)
        except ForetellError:
            continue  # not every batch size can be run
        if len(units):
            parts.append(_part(DistinctUnits.of(units), names.setdefault(name, len(names)), False))
    features, bound_us, owner, is_measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    kept = distinct(features)  # a row that was seen before teaches nothing new
    return Rows(features[kept], bound_us[kept], owner[kept], is_measured[kept], np.array(list(names)))


def distinct(features: NDArray[np.float32]) -> NDArray[np.intp]:
    """The places of the rows that no earlier row is equal to."""
    whole = np.ascontiguousarray(features).view(f"V{features.itemsize * features.shape[1]}").ravel()
    _, first = np.unique(whole, return_index=True)
    return np.sort(first)


def _part(units: DistinctUnits, owner: int, is_measured: bool) -> tuple[NDArray[Any], ...]:
    """The columns of `Rows` for one workload."""
    count = len(units)
    return units.features, units.bound_us, np.full(count, owner), np.full(count, is_measured)


def _others(store: Path, target: Target, more: int, networks: int, seed: int) -> Iterator[tuple[str, Workload]]:
    """Name of the architecture, and a workload that nobody measured."""
    waiting: defaultdict[GraphKey, list[Any]] = defaultdict(list)
    for row in measured_rows(store).values():
        if teaches(row):
            waiting[GraphKey.of(row)].append(row)
    rng = random.Random(seed)
    for key, _, graph in read_graphs(store, list(waiting)):
        rows = waiting.pop(key)
        family, spec = rows[0]["family"], rows[0]["spec"]
        name = family if spec.startswith("wild:") else architecture_of(spec)
        largest = max(row["batch_size"] for row in rows)
        for _ in range(more):
            other = dict(rng.choice(rows))
            # evenly over the octaves up to twice the largest measured batch size
            other["batch_size"] = min(round(2 ** rng.uniform(0.0, 1.0 + np.log2(largest))), LARGEST_BATCH)
            other["dtype"] = rng.choice(DTYPES)
            other["channels_last"] = rng.random() < CHANNELS_LAST
            try:
                yield name, workload_of(other, graph, target)
            except ForetellError:
                continue  # the graph cannot take this batch size
    space = search_space()
    for number in range(networks):
        dtype, size = rng.choice(DTYPES), round(2 ** rng.uniform(0.0, 8.0))
        graph = space.network(number + FIRST_NETWORK).with_batch(size).with_dtype(parse_dtype(dtype))
        yield SPACE, Workload(graph, target, dtype, channels_last=rng.random() < CHANNELS_LAST)


def search_space() -> Any:
    """The module ``examples/search.py``."""
    spec = importlib.util.spec_from_file_location("search", Path(__file__).parents[2] / "examples" / "search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["search"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module

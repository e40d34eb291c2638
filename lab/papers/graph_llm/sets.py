"""Lab: chapter 7's rows: graphs and latencies of known platforms, and of what is new: two GPUs and one architecture.

As in the thesis, eight and more platforms are known, two are new, and vision transformers are a new architecture.
Known: the H200 in three number formats, an RTX 4090 (timm's table), four of NeuSight's GPUs (operators), a CPU. New: an
RTX 3090 (timm's table) and a T4 (operators). No vision transformer is among the known rows, on any platform, and none
is among those of the RTX 3090, so that one fit serves both tasks.

What is new is judged beside ``foretell adapt``, so its rows are those of `lab.adapt.sets`, in the same order.
"""

import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretell.datasets.splits import architecture_of
from foretell.devices import find_device
from foretell.errors import ForetellError, InputError
from foretell.files import write_whole
from foretell.predictors import find_predictor
from foretell.records import Target
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import measured_rows, workload_of
from lab.adapt.sets import Case, Judged, judged_set, left_out_base, measured_cases
from lab.judging.graph_set import pack, unpack
from lab.papers.graph_networks.arrays import GraphArrays, extract_graph_arrays

TRANSFORMERS = re.compile(
    r"(timm|torchvision|hf):(vit|deit|beit|eva|flexivit|naflexvit|samvit|cait|dinov2|clip)"
)  # fmt: skip
DTYPES = ("fp32", "fp16", "bf16")
MOST_NODES = 600  # larger graphs are left out of what is known; all of them are judged
_ZOOS = ("timm", "torchvision", "hf", "synthetic")
_WHOLE = ("cuda-graph", "cpu-timer")
# the platform's name in prompts, by the name of its set
KNOWN_TABLES: Mapping[str, str] = {
    "RTX 4090, inference": "rtx 4090 fp16",
    **{f"{name}, operators": f"{name.partition('-')[0].lower()} fp32"
       for name in ("A100-PCIE-40GB", "V100-PCIE-32GB", "P100", "P4")},
}  # fmt: skip
NEW_TABLES: Mapping[str, str] = {"RTX 3090, inference": "rtx 3090 fp16", "T4, operators": "t4 fp32"}
NEW_ARCHITECTURE = "H200, vision transformers"
TASKS = (*NEW_TABLES, NEW_ARCHITECTURE)
Log = Callable[[str], None]


@dataclass(frozen=True)
class Row:
    """A graph on a platform, and its latency; rows of one group never teach and judge both."""

    platform: str
    group: str
    graph: GraphArrays
    ms: float


@dataclass(frozen=True)
class Rows:
    """What is known, and what is new by task."""

    known: list[Row]
    new: dict[str, list[Row]]


def make(store: Path, cpu_store: Path, tables: Path, cache: Path, log: Log, most: int | None = None) -> Rows:
    """All rows; at most so many of each known platform, drawn at random."""
    cases = measured_cases(tables, store)
    known = [*_stored(store, "h200", log, most), *_stored(cpu_store, "cpu", log, most)]
    for name, platform in KNOWN_TABLES.items():
        known += _drawn(list(_rows_of(cases[name](), platform)), most)
        log(f"{platform} read")
    new = {}
    for name, platform in NEW_TABLES.items():
        rows = list(_rows_of(cases[name](), platform))
        judged = judged_set(name, cases[name], cache, log, left_out_base(tables, store, cache))
        new[name] = _aligned(rows, judged, name)
        log(f"{name}: {len(new[name])} rows")
    judged = transformers_judged(store, cache, log)
    rows = [_row(case, f"h200 {case[1].dtype}") for case in transformer_cases(store)]
    new[NEW_ARCHITECTURE] = _aligned(rows, judged, NEW_ARCHITECTURE)
    return Rows([row for row in known if not is_transformer(row.group)], new)


def is_transformer(group: str) -> bool:
    """Whether a group is of the new architecture; groups of timm's models have lost the name of their zoo.

    >>> is_transformer("vit_base_patch16"), is_transformer("hf:clip?layers=2"), is_transformer("levit")
    (True, True, False)
    """
    return TRANSFORMERS.match(group if ":" in group else f"timm:{group}") is not None


def judged_of(task: str, store: Path, tables: Path, cache: Path, log: Log) -> tuple[Judged, np.ndarray]:
    """What adaptation sees of a task, and the places of the rows that the task has (some sets have transformers)."""
    judged = (
        transformers_judged(store, cache, log)
        if task == NEW_ARCHITECTURE
        else judged_set(task, measured_cases(tables, store)[task], cache, log, left_out_base(tables, store, cache))
    )
    return judged, _places(judged.groups, task)


def transformers_judged(store: Path, cache: Path, log: Log) -> Judged:
    """The new architecture for adaptation, which starts from the roofline: the H200's networks have seen it."""
    base = find_predictor("roofline", "h200")
    return judged_set(NEW_ARCHITECTURE, lambda: transformer_cases(store), cache, log, lambda _: base)


def transformer_cases(store: Path) -> Iterator[Case]:
    """Every measured vision transformer on the H200."""
    rows = _wanted(store, lambda row: TRANSFORMERS.match(row["spec"]) is not None)
    target = Target(find_device("h200"))
    for key, _, graph in read_graphs(store, list(rows)):
        for row in rows[key]:
            yield architecture_of(row["spec"]), workload_of(row, graph, target), float(row["latency_ms"])


def write(rows: Rows, file: Path) -> None:
    """All rows as one file, which needs no store where it is read."""
    tagged = [("", row) for row in rows.known] + [(task, row) for task, some in rows.new.items() for row in some]
    data = io.BytesIO()
    np.savez_compressed(
        data, allow_pickle=False, **pack({str(number): row.graph for number, (_, row) in enumerate(tagged)}),
        tasks=np.array([task for task, _ in tagged]), platforms=np.array([row.platform for _, row in tagged]),
        groups=np.array([row.group for _, row in tagged]), ms=np.array([row.ms for _, row in tagged]),
    )  # fmt: skip
    write_whole(file, data.getvalue())


def read(file: Path) -> Rows:
    """The rows that `write` wrote."""
    if not file.exists():
        raise InputError(f"{file} is not there: run the step prepare first.")
    with np.load(file, allow_pickle=False) as stored:
        arrays = {name: stored[name] for name in stored.files}
    graphs = unpack(arrays).values()
    facts = zip(*(arrays[name].tolist() for name in ("tasks", "platforms", "groups", "ms")), graphs, strict=True)
    found = Rows([], {task: [] for task in TASKS})
    for task, platform, group, ms, graph in facts:
        (found.new[task] if task else found.known).append(Row(platform, group, graph, ms))
    return found


def _stored(store: Path, device: str, log: Log, most: int | None) -> list[Row]:
    """The rows of a store: one platform for each number format; graphs of other zoos are not for teaching."""
    chosen = _wanted(store, lambda row: row["spec"].partition(":")[0] in _ZOOS)
    target = Target(find_device(device))
    found: dict[str, list[Row]] = {}
    flat = [(key, row) for key, rows in chosen.items() for row in rows]
    order = np.random.default_rng(0).permutation(len(flat))
    kept: dict[GraphKey, list[Mapping[str, Any]]] = {}
    counts: dict[str, int] = {}
    for place in order:
        key, row = flat[place]
        if not TRANSFORMERS.match(row["spec"]) and (most is None or counts.get(row["dtype"], 0) < most):
            kept.setdefault(key, []).append(row)
            counts[row["dtype"]] = counts.get(row["dtype"], 0) + 1
    for key, _, graph in read_graphs(store, list(kept)):
        for row in kept[key]:
            try:
                case = (
                    architecture_of(str(row["spec"])),
                    workload_of(row, graph, target),
                    float(str(row["latency_ms"])),
                )
            except ForetellError as error:
                log(f"left out {row['spec']}: {error}")
                continue
            made = _row(case, f"{device} {row['dtype']}")
            if 1 <= len(made.graph) <= MOST_NODES:
                found.setdefault(made.platform, []).append(made)
    for platform, rows in found.items():
        log(f"{platform}: {len(rows)} rows")
    return [row for rows in found.values() for row in rows]


def _wanted(store: Path, wanted: Callable[[Mapping[str, Any]], bool]) -> dict[GraphKey, list[Mapping[str, Any]]]:
    found: dict[GraphKey, list[Mapping[str, Any]]] = {}
    for row in measured_rows(store).values():
        plain = row["mode"] == "inference" and row["dtype"] in DTYPES and not row.get("channels_last")
        if plain and row["latency_source"] in _WHOLE and wanted(row):
            found.setdefault(GraphKey.of(row), []).append(row)
    return found


def _rows_of(cases: Iterator[Case], platform: str) -> Iterator[Row]:
    return (_row(case, platform) for case in cases)


def _row(case: Case, platform: str) -> Row:
    group, workload, ms = case
    return Row(platform, group, extract_graph_arrays(workload), ms)


def _drawn(rows: list[Row], most: int | None) -> list[Row]:
    rows = [row for row in rows if 1 <= len(row.graph) <= MOST_NODES]
    return [rows[place] for place in np.random.default_rng(0).permutation(len(rows))[:most]]


def _aligned(rows: Sequence[Row], judged: Judged, task: str) -> list[Row]:
    """The rows of a set in the order in which adaptation has them; it may have left some out."""
    waiting = iter(rows)
    found = []
    for group, ms in zip(judged.groups, judged.measured_ms, strict=True):
        found.append(next(row for row in waiting if row.group == group and row.ms == ms))
    return [found[place] for place in _places(judged.groups, task)]


def _places(groups: Sequence[str], task: str) -> np.ndarray:
    keep = [task == NEW_ARCHITECTURE or not is_transformer(group) for group in groups]
    return np.flatnonzero(keep)

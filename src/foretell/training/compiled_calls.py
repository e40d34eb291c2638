"""Training: the calls of compiled code whose kernels were measured one by one, to judge the model by.

A call of a library is tied to the unit that it computes: both name the module. Where a module has several units, and
as many calls, they are paired in order. A generated kernel is described by what its call reads and writes, not by what
the partitioner predicts.

Limits: a generated kernel that gathers or pools is left out, because its call does not tell how much it reads.
"""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from foretell.datasets.parquet_files import find_files, read_columns
from foretell.features import extract_units
from foretell.features.units import Units
from foretell.graph import Graph
from foretell.predictors.compiled.fit import Measured
from foretell.predictors.compiled.inductor import lower
from foretell.predictors.compiled.kernels import CompiledKernels, Traffic, describe_generated, library_node
from foretell.records import Workload
from foretell.units import bytes_per_s

COLUMNS = (
    "workload_id", "library", "name", "operators", "modules", "sizes", "reduced", "read_bytes", "written_bytes",
    "kernels", "duration_us",
)  # fmt: skip
_PRODUCTS = re.compile(r"conv|mm|linear|attention|matmul|einsum|lstm|gru|rnn")
_UNCLEAR = re.compile(r"embedding|index|gather|pool|scatter|sort")
_INDEX = re.compile(r"\[(?:'([^']+)'|(\d+))\]")

Call = Mapping[str, Any]


def read_calls(store: Path) -> dict[str, list[Call]]:
    """By workload its calls, in order."""
    calls: defaultdict[str, list[Call]] = defaultdict(list)
    for file in find_files(store):
        if file.table == "compiled_calls":
            for row in read_columns(file, COLUMNS).to_pylist():
                calls[row["workload_id"]].append(row)
    return dict(calls)


def module_of(text: str) -> str:
    """The name of a module as graphs have it.

    >>> module_of("L['self'].features.3.squeeze"), module_of("L['self'].body._modules['0'].layers[2]")
    ('features.3.squeeze', 'body.0.layers.2')
    """
    path = _INDEX.sub(lambda found: f".{found[1] or found[2]}", text.partition("]")[2]).replace("._modules", "")
    return path.strip(".").removeprefix("_orig_mod").strip(".")


def library_times(graph: Graph, units: Units, calls: Sequence[Call]) -> list[float]:
    """The measured time of each unit that calls a library, in order; NaN where its call is unknown."""
    by_module: defaultdict[str, list[int]] = defaultdict(list)
    modules = [node.module for nodes in units.nodes if (node := library_node(graph, nodes)) is not None]
    for position, module in enumerate(modules):
        by_module[module].append(position)
    calls_of: defaultdict[str, list[Call]] = defaultdict(list)
    for call in calls:
        if call["library"] and call["kernels"]:
            calls_of[_module(call)].append(call)
    times_us = [float("nan")] * len(modules)
    for module, own in by_module.items():
        if len(calls_of[module]) == len(own):
            for position, call in zip(own, calls_of[module], strict=True):
                times_us[position] = float(call["duration_us"])
    return times_us


def _module(call: Call) -> str:
    """The module of the product that a call computes; it may also compute views of other modules."""
    modules, operators = json.loads(call["modules"]), json.loads(call["operators"])
    own = [module for module, name in zip(modules, operators, strict=True) if _PRODUCTS.search(name)]
    return module_of((own or modules or [""])[-1])


def traffic_of(call: Call) -> Traffic | None:
    """What a generated kernel moves and does; None where its call does not tell."""
    operators = json.loads(call["operators"])
    text = " ".join(operators)
    moved = call["read_bytes"] + call["written_bytes"]
    if call["library"] or not call["kernels"] or not moved or _UNCLEAR.search(text):
        return None
    nodes = {(name, module) for name, module in zip(operators, json.loads(call["modules"]), strict=True)}
    return Traffic(
        moved,
        max(len(nodes), 1),
        reduces=call["reduced"] > 1,
        transposes=len(json.loads(call["sizes"])) > 1,
    )


def measured_calls(workload: Workload, kernels: CompiledKernels, calls: Sequence[Call]) -> list[Measured]:
    """Each call of a workload whose time is known; ``kernels`` are those that are predicted for the workload."""
    if not calls:
        return []
    lowered = replace(workload, graph=lower(workload.graph))
    times_us = library_times(lowered.graph, extract_units(lowered), calls)
    return [*_library_rows(kernels, times_us), *_generated_rows(workload, calls)]


def _library_rows(kernels: CompiledKernels, times_us: Sequence[float]) -> Iterator[Measured]:
    for row, time_us in zip(np.flatnonzero(kernels.is_library).tolist(), times_us, strict=True):
        if time_us > 0:
            own = CompiledKernels(kernels.base_us[[row]], kernels.columns[[row]], (kernels.operators[row],))
            yield Measured(own, time_us)


def _generated_rows(workload: Workload, calls: Sequence[Call]) -> Iterator[Measured]:
    half, bandwidth = workload.dtype != "fp32", bytes_per_s(workload.target.hardware.bandwidth_gb_per_s)
    for call in calls:
        traffic = traffic_of(call)
        if traffic is not None and call["duration_us"] > 0:
            yield Measured(describe_generated([traffic], half=half, bandwidth=bandwidth), float(call["duration_us"]))

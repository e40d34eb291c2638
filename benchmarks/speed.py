"""Predictions a second for 1 and for 64 graphs, against a GraphSAGE network in PyTorch Geometric; one run, one thread.

python benchmarks/speed.py            stored graphs of 64 families; needs foretell[data,train], torch, torch-geometric

Graphs are read before the clock starts. unit-network is timed from the graph to a prediction with intervals, features
included. The network of DIPPM is timed from its arrays on: foretell's ONNX model, and the same layers in PyG.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Batch, Data
from torch_geometric.nn import SAGEConv, global_add_pool

from foretell.devices import find_device
from foretell.predictors import find_predictor
from foretell.records import Target, Workload
from foretell.training.examples.graphs import measured_keys, read_graphs
from lab.papers.graph_networks.arrays import SCHEMA, GraphArrays, extract_graph_arrays
from lab.papers.graph_networks.network import GraphNetwork
from lab.papers.graph_networks.onnx_model import to_onnx
from lab.papers.graph_networks.recipes import NODE_WIDTHS, Recipe, find_recipe, node_matrix, whole_matrix
from lab.papers.graph_networks.weights import initial_weights

STORE = Path(__file__).parents[1] / "data"
MANY = 64
BATCH = 8
ROUNDS = 7


class Sage(torch.nn.Module):  # type: ignore[misc]
    """The layers of DIPPM's network."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        widths = [NODE_WIDTHS[recipe.nodes], *[recipe.width] * (recipe.blocks * recipe.layers)]
        self.layers = torch.nn.ModuleList(SAGEConv(a, b, normalize=True) for a, b in pairwise(widths))
        dense = [recipe.width + len(recipe.columns), *[recipe.width] * recipe.dense]
        self.dense = torch.nn.ModuleList(torch.nn.Linear(a, b) for a, b in pairwise(dense))
        self.out = torch.nn.Linear(recipe.width, len(recipe.targets))

    def forward(self, batch: Any) -> Any:
        """All targets of all graphs."""
        rows = batch.x
        for layer in self.layers:
            rows = layer(rows, batch.edge_index).relu()
        state = torch.cat([global_add_pool(rows, batch.batch), batch.whole], dim=1)
        for layer in self.dense:
            state = layer(state).relu()
        return self.out(state)


def stored(count: int) -> list[Workload]:
    """One graph a family, the first of each that was measured."""
    by_family = {family: key for key, family in reversed(measured_keys(STORE).items()) if key.mode == "inference"}
    by_family.pop("synthetic-operators", None)
    target = Target(find_device("h200"))
    found = read_graphs(STORE / "graphs", list(by_family.values())[:count])
    return [Workload(graph.with_batch(BATCH).with_dtype("fp16"), target, "fp16") for _, _, graph in found]


def data_of(graph: GraphArrays, recipe: Recipe) -> Any:
    whole = torch.tensor(whole_matrix([graph], recipe), dtype=torch.float32)
    return Data(x=torch.tensor(node_matrix(graph, recipe)), edge_index=torch.tensor(graph.edges), whole=whole)


def a_second(work: Callable[[], object], predictions: int) -> float:
    work()
    taken = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return predictions / statistics.median(taken)


def main() -> None:
    torch.set_num_threads(1)
    workloads = stored(MANY)
    arrays = [extract_graph_arrays(workload) for workload in workloads]
    nodes = statistics.median(map(len, arrays))
    print(f"{len(workloads)} graphs of {nodes:.0f} nodes in the median, batch {BATCH}, one thread")
    recipe = find_recipe("dippm")
    notes = {"name": "dippm", "recipe": recipe.to_json(), "schema": SCHEMA}
    served = GraphNetwork.load(to_onnx(recipe, initial_weights(recipe, 0), notes))
    sage = Sage(recipe).eval()
    data = [data_of(graph, recipe) for graph in arrays]
    middle = sorted(range(len(arrays)), key=lambda position: len(arrays[position]))[len(arrays) // 2]
    predictor = find_predictor("unit-network", "h200")

    def pyg(chosen: Sequence[int]) -> object:
        with torch.inference_mode():
            return sage(Batch.from_data_list([data[i] for i in chosen]))

    systems: dict[str, Callable[[Sequence[int]], object]] = {
        "PyG, the layers of DIPPM": pyg,
        "foretell dippm, ONNX": lambda chosen: served.predict([arrays[i] for i in chosen]),
        "foretell unit-network, features and all": lambda chosen: [predictor.predict(workloads[i]) for i in chosen],
    }
    for chosen in ([middle], range(len(arrays))):
        rates = {name: a_second(partial(work, chosen), len(chosen)) for name, work in systems.items()}
        base = rates["PyG, the layers of DIPPM"]
        for name, rate in rates.items():
            print(f"{len(chosen):3} at once  {name:42} {rate:8.1f} a second   {rate / base:5.2f} times")


if __name__ == "__main__":
    main()

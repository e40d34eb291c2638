"""Lab: a fitted graph network, served by onnxruntime without torch."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.optional import require
from lab.papers.graph_networks.arrays import SCHEMA, GraphArrays
from lab.papers.graph_networks.recipes import Recipe, stack
from lab.papers.graph_networks.scales import log_bounds
from lab.papers.graph_networks.weights import Weights

_GRAPHS_AT_ONCE = 16  # more do not fit into the caches


class GraphNetwork:
    """A network that `lab.papers.graph_networks.onnx_model.to_onnx` wrote; by default it uses one thread."""

    def __init__(self, session: Any, notes: Mapping[str, str]) -> None:
        self._session = session
        self.notes = notes
        self.name = notes["name"]
        self.recipe = Recipe.from_json(notes["recipe"])

    @classmethod
    def load(cls, data: bytes, threads: int = 1) -> "GraphNetwork":
        """Read a network from the bytes of an ONNX model."""
        runtime = require("onnxruntime", extra="train", purpose="Serving graph networks")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.log_severity_level = 3
        try:
            session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ModelError(
                f"These {len(data)} bytes are not an ONNX model: write them with Fitted.to_onnx."
            ) from error
        notes = dict(session.get_modelmeta().custom_metadata_map)
        if not {"name", "recipe", "schema"} <= set(notes):
            raise ModelError("This ONNX model is not a graph network: write it with Fitted.to_onnx.")
        if notes["schema"] != SCHEMA:
            raise ModelError(
                f"The network {notes['name']!r} reads features of the schema {notes['schema']}, not {SCHEMA}: "
                "fit it again."
            )
        return cls(session, notes)

    @staticmethod
    def weights_of(data: bytes) -> Weights:
        """The weights in a written network, to start another fit from; 8-bit weights are as they are served."""
        onnx = require("onnx", extra="train", purpose="Reading the weights of a network")
        model = onnx.load_from_string(data)
        arrays = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
        # int8 matrices are stored as bytes and a step for each column
        small = {name.removesuffix(".bytes") for name in arrays if name.endswith(".bytes")}
        dequantised = {name: arrays[f"{name}.bytes"].astype(np.float32) * arrays[f"{name}.step"] for name in small}
        parts = {f"{name}.{part}" for name in small for part in ("bytes", "step")}
        return dequantised | {name: array for name, array in arrays.items() if "." in name and name not in parts}

    @property
    def targets(self) -> tuple[str, ...]:
        """The metrics that it predicts."""
        return self.recipe.targets

    @property
    def metrics(self) -> dict[str, float]:
        """Its errors on the validation side, by target."""
        errors: dict[str, float] = json.loads(self.notes.get("metrics", "{}"))
        return errors

    def predict(self, graphs: Sequence[GraphArrays]) -> dict[str, NDArray[np.float64]]:
        """Every target of every graph, in the unit of its name."""
        parts = [
            self._logs(graphs[start : start + _GRAPHS_AT_ONCE]) for start in range(0, len(graphs), _GRAPHS_AT_ONCE)
        ]
        logs = np.concatenate(parts) if parts else np.zeros((0, len(self.targets)))
        values = np.exp(logs + log_bounds(graphs, self.recipe))
        return {name: values[:, column] for column, name in enumerate(self.targets)}

    def _logs(self, graphs: Sequence[GraphArrays]) -> NDArray[np.float64]:
        inputs = stack(graphs, self.recipe)
        # the fields of a stack have the names of the model's inputs
        (logs,) = self._session.run(None, vars(inputs))
        return np.asarray(logs, np.float64)

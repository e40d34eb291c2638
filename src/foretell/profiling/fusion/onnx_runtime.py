"""Profiling: what ONNX Runtime fuses on a CPU; a model is exported and a session is created, nothing is run.

Idea. The session saves the graph that it would run. Tensors keep their names through the optimiser. So each optimised
node is matched with the nodes it replaced by walking the original graph back from its outputs, until tensors that still
exist in the optimised graph. Nodes that ONNX Runtime adds around the work (casts, transposes, reorders) count as part
of the node that they serve.

Weights are zeros in a sparse file: the optimiser needs their shapes, and folding a batch norm of zeros works like any
other. Limits: blocked (NCHWc) nodes rename their outputs; `_name_blocked` restores the names from the way in which ONNX
Runtime builds them.
"""

import contextlib
import functools
import importlib
import io
import re
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from foretell.optional import require
from foretell.profiling.fusion.kernels import Compiled
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.zoo import Built

LEVEL = "ORT_ENABLE_ALL"
_ZEROS, _SOURCE, _OPTIMIZED = "zeros.bin", "source.onnx", "optimized.onnx"
_LARGE = 1024
_LARGE_FOLDED = 65536
_FOLD_LIMIT = 4096
# operators that ONNX Runtime adds around the one that does the work
_HELPERS = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "ReorderInput", "ReorderOutput", "Identity"}
_BLOCKED_NAME = re.compile(r"^(?P<tensor>.+)_nchwc(?:_token_\d+)?$")


def export(built: Built, workload: Workload, folder: Path) -> Any:
    """Write the model into ``folder`` and return it as a ``ModelProto``; large weights are external zeros."""
    torch = require("torch", extra="torch", purpose="Exporting to ONNX")
    optimizer = importlib.import_module("onnxscript.optimizer")
    ir = importlib.import_module("onnx_ir")
    cache_registry()
    inputs = built.make_inputs(workload, "cpu", torch.float32)
    model = built.model.requires_grad_(False)
    quiet = io.StringIO()
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stdout(quiet):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, inputs.args, kwargs=dict(inputs.kwargs), dynamo=True, verbose=False, optimize=False
        )
        # not program.optimize(): it folds batch norms into convolutions, and we want to see whether ONNX Runtime does
        optimizer.fold_constants(program.model, input_size_limit=_FOLD_LIMIT, output_size_limit=_FOLD_LIMIT)
        optimizer.remove_unused_nodes(program.model)
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    largest = 1
    for value in program.model.graph.initializers.values():
        tensor = value.const_value
        is_weight = value.name in owned and tensor.size > _LARGE
        is_folded_weight = value.name.startswith("val_") and tensor.size > _LARGE_FOLDED and len(tensor.shape) == 2
        if is_weight or (is_folded_weight and tensor.dtype.is_floating_point()):
            largest = max(largest, tensor.nbytes)
            value.const_value = ir.ExternalTensor(
                _ZEROS, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=str(folder)
            )
    with (folder / _ZEROS).open("wb") as file:
        # a sparse file: all external weights read the same zeros, and no disk is used
        file.truncate(largest)
    proto = ir.to_proto(program.model)
    (folder / _SOURCE).write_bytes(proto.SerializeToString())
    return proto


@functools.cache
def cache_registry() -> None:
    """Let the exporter collect its operators once instead of for every model, which takes a tenth of its time."""
    registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    registry = getattr(registration, "ONNXRegistry", None)
    if registry is not None and hasattr(registry, "from_torchlib"):
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))


def compile_file(folder: Path) -> Compiled:
    """The kernels that ONNX Runtime makes of the model that `export` wrote."""
    onnx = require("onnx", extra="profile", purpose="Reading ONNX models")
    runtime = require("onnxruntime", extra="profile", purpose="Compiling with ONNX Runtime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, LEVEL)
    options.optimized_model_filepath = str(folder / _OPTIMIZED)
    # prepacking copies weights into other layouts: it takes time and changes no node
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_LARGE))
    runtime.InferenceSession(str(folder / _SOURCE), options, providers=["CPUExecutionProvider"])
    source = onnx.load(str(folder / _SOURCE), load_external_data=False)
    optimized = onnx.load(str(folder / _OPTIMIZED), load_external_data=False)
    return match(source.graph, optimized.graph)


def match(source: Any, optimized: Any) -> Compiled:
    """Which nodes of the ``source`` graph each node of the ``optimized`` graph computes."""
    return _Matching(source, optimized).read()


class _Matching:
    """An original graph beside its optimised graph; tensors go by their original names."""

    def __init__(self, source: Any, optimized: Any) -> None:
        self._nodes = list(optimized.node)
        self._folded = {tensor.name for tensor in optimized.initializer}
        self._names = {node.name for node in source.node}
        self._maker = {name: node for node in source.node for name in node.output if name}
        self._users: dict[str, list[Any]] = {}
        for node in source.node:
            for name in dict.fromkeys(node.input):
                self._users.setdefault(name, []).append(node)
        self._reads = Counter(name for node in self._nodes for name in dict.fromkeys(node.input) if name)
        self._made_by = {name: i for i, node in enumerate(self._nodes) for name in node.output if name}
        self._alias: dict[
            str, str
        ] = {}  # name of a tensor in the optimised graph → its name in the source, where they differ

    def read(self) -> Compiled:
        """Match all nodes."""
        for node in self._nodes:
            self._name_blocked(node)
        present = self._folded | {name for name in map(self._original, self._made_by) if name in self._maker}
        members: dict[str, list[int]] = {}
        used: dict[int, int] = {}
        kernels: list[str] = []
        for index, node in enumerate(self._nodes):
            results = [name for name in map(self._original, node.output) if name in self._maker]
            # a reorder has the same tensor as input and output: it computes nothing
            results = [name for name in results if name not in map(self._original, node.input)]
            if not results:
                continue
            parts = self._with_helpers(index)
            main = max(parts, key=lambda part: (self._nodes[part].op_type not in _HELPERS, -part))
            exact = {self._nodes[part].name: part for part in parts}
            for replaced in self._walk(results, present):
                part = exact.get(replaced.name, main)
                if part not in used:
                    used[part] = len(kernels)
                    kernels.append(_describe(self._nodes[part]))
                members.setdefault(replaced.name, []).append(used[part])
        return Compiled(
            tuple(kernels), {name: tuple(dict.fromkeys(kernel_ids)) for name, kernel_ids in members.items()}
        )

    def _original(self, name: str) -> str:
        return self._alias.get(name, name)

    def _with_helpers(self, index: int) -> list[int]:
        """A node, and the nodes before it whose results only it reads and the source does not know."""
        parts, waiting = [index], [index]
        while waiting:
            for name in self._nodes[waiting.pop()].input:
                maker = self._made_by.get(name)
                is_known = maker is None or any(self._original(o) in self._maker for o in self._nodes[maker].output)
                if maker is not None and not is_known and self._reads[name] == 1 and maker not in parts:
                    parts.append(maker)
                    waiting.append(maker)
        return parts

    def _walk(self, results: Iterable[str], present: set[str]) -> list[Any]:
        """The original nodes behind ``results``, back to tensors that still exist."""
        nodes: dict[str, Any] = {}
        waiting = [self._maker[name] for name in results]
        while waiting:
            node = waiting.pop()
            if node.name not in nodes:
                nodes[node.name] = node
                waiting += [self._maker[name] for name in node.input if name in self._maker and name not in present]
        return list(nodes.values())

    def _name_blocked(self, node: Any) -> None:
        """Give the result of a blocked (NCHWc) node the name that it has in the source.

        Such a node is named after the tensor that it first stood for. A sum and an activation that were fused into it
        later follow that tensor in the source.
        """
        matched = _BLOCKED_NAME.match(node.name)
        if node.domain != "com.microsoft.nchwc" or matched is None or matched["tensor"] not in self._maker:
            return
        tensor = matched["tensor"]
        extra = self._original(node.input[3]) if node.op_type == "Conv" and len(node.input) > 3 else ""
        if extra:
            tensor = self._follow(tensor, lambda user: user.op_type in ("Add", "Sum") and extra in user.input)
        activation = next((a.s.decode() for a in node.attribute if a.name == "activation"), "")
        if activation and self._maker[tensor].op_type != activation:
            tensor = self._follow(tensor, lambda user: user.op_type == activation)
        self._alias[node.output[0]] = tensor

    def _follow(self, tensor: str, matches: Any) -> str:
        return next((str(user.output[0]) for user in self._users.get(tensor, ()) if matches(user)), tensor)


def _describe(node: Any) -> str:
    domain = f"{node.domain.removeprefix('com.microsoft.')}." if node.domain and node.domain != "ai.onnx" else ""
    activation: Mapping[str, str] = {a.name: a.s.decode() for a in node.attribute if a.name == "activation"}
    return f"{domain}{node.op_type}" + (f"+{activation['activation']}" if activation else "")

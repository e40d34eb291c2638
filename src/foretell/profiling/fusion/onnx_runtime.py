"""Profiling: what ONNX Runtime fuses on a CPU. A model is exported, a session is created, nothing is run.

The session saves the graph it would run. Tensors keep their names through the optimiser, so an optimised node is
matched with what it replaced by walking the original graph back from its outputs to whatever still exists. Weights are
zeros in a sparse file: the optimiser asks for their shapes, and a folded batch norm does not mind.
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
# what ONNX Runtime adds around the operator that does the work
_PLUMBING = {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Cast", "ReorderInput", "ReorderOutput", "Identity"}
_BLOCKED_NAME = re.compile(r"^(?P<tensor>.+)_nchwc(?:_token_\d+)?$")


def export(built: Built, workload: Workload, folder: Path) -> Any:
    """Write the model into ``folder`` and return it as a ``ModelProto``; large weights are outside of it, and zero."""
    torch = require("torch", extra="torch", purpose="Exporting to ONNX")
    optimizer = importlib.import_module("onnxscript.optimizer")
    ir = importlib.import_module("onnx_ir")
    _keep_registry()
    inputs = built.make_inputs(workload, "cpu", torch.float32)
    model = built.model.requires_grad_(False)
    quiet = io.StringIO()
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stdout(quiet):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, inputs.args, kwargs=dict(inputs.kwargs), dynamo=True, verbose=False, optimize=False
        )
        # not program.optimize(): it folds batch norms into convolutions, which is what ONNX Runtime shall show
        optimizer.fold_constants(program.model, input_size_limit=_FOLD_LIMIT, output_size_limit=_FOLD_LIMIT)
        optimizer.remove_unused_nodes(program.model)
    owned = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    largest = 1
    for value in program.model.graph.initializers.values():
        tensor = value.const_value
        own = value.name in owned and tensor.size > _LARGE
        folded = value.name.startswith("val_") and tensor.size > _LARGE_FOLDED and len(tensor.shape) == 2
        if own or (folded and tensor.dtype.is_floating_point()):
            largest = max(largest, tensor.nbytes)
            value.const_value = ir.ExternalTensor(
                _ZEROS, 0, tensor.nbytes, tensor.dtype, shape=tensor.shape, name=value.name, base_dir=str(folder)
            )
    with (folder / _ZEROS).open("wb") as file:
        file.truncate(largest)
    proto = ir.to_proto(program.model)
    (folder / _SOURCE).write_bytes(proto.SerializeToString())
    return proto


@functools.cache
def _keep_registry() -> None:
    """Have the exporter collect its operators once; it would do so for every model, for a tenth of the time."""
    registration = importlib.import_module("torch.onnx._internal.exporter._registration")
    registry = getattr(registration, "ONNXRegistry", None)
    if registry is not None and hasattr(registry, "from_torchlib"):
        registry.from_torchlib = staticmethod(functools.cache(registry.from_torchlib))


def compile_file(folder: Path) -> Compiled:
    """What ONNX Runtime makes of the model that `export` wrote."""
    onnx = require("onnx", extra="profile", purpose="Reading ONNX models")
    runtime = require("onnxruntime", extra="profile", purpose="Compiling with ONNX Runtime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, LEVEL)
    options.optimized_model_filepath = str(folder / _OPTIMIZED)
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "optimized.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", str(_LARGE))
    runtime.InferenceSession(str(folder / _SOURCE), options, providers=["CPUExecutionProvider"])
    source = onnx.load(str(folder / _SOURCE), load_external_data=False)
    optimized = onnx.load(str(folder / _OPTIMIZED), load_external_data=False)
    return match(source.graph, optimized.graph)


def match(source: Any, optimized: Any) -> Compiled:
    """Which nodes of the ``source`` graph each node of the ``optimized`` one computes."""
    return _Matching(source, optimized).read()


class _Matching:
    """An original graph beside its optimised one; tensors are called by their original names."""

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
        self._alias: dict[str, str] = {}  # of a tensor of the optimised graph that the source has under another name

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
            results = [name for name in results if name not in map(self._original, node.input)]
            if not results:
                continue
            parts = self._with_plumbing(index)
            main = max(parts, key=lambda part: (self._nodes[part].op_type not in _PLUMBING, -part))
            exact = {self._nodes[part].name: part for part in parts}
            for replaced in self._walk(results, present):
                part = exact.get(replaced.name, main)
                if part not in used:
                    used[part] = len(kernels)
                    kernels.append(_describe(self._nodes[part]))
                members.setdefault(replaced.name, []).append(used[part])
        return Compiled(tuple(kernels), {name: tuple(dict.fromkeys(found)) for name, found in members.items()})

    def _original(self, name: str) -> str:
        return self._alias.get(name, name)

    def _with_plumbing(self, index: int) -> list[int]:
        """A node and those before it whose results only it reads and the source does not know."""
        found, waiting = [index], [index]
        while waiting:
            for name in self._nodes[waiting.pop()].input:
                maker = self._made_by.get(name)
                known = maker is None or any(self._original(o) in self._maker for o in self._nodes[maker].output)
                if maker is not None and not known and self._reads[name] == 1 and maker not in found:
                    found.append(maker)
                    waiting.append(maker)
        return found

    def _walk(self, results: Iterable[str], present: set[str]) -> list[Any]:
        """The original nodes behind ``results`` as far as tensors that still exist."""
        found: dict[str, Any] = {}
        waiting = [self._maker[name] for name in results]
        while waiting:
            node = waiting.pop()
            if node.name not in found:
                found[node.name] = node
                waiting += [self._maker[name] for name in node.input if name in self._maker and name not in present]
        return list(found.values())

    def _name_blocked(self, node: Any) -> None:
        """Give the result of a blocked (NCHWc) node the name that the source has for it.

        Such a node is named after the tensor it first stood for. A sum and an activation that it took over later follow
        that tensor in the source.
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

    def _follow(self, tensor: str, wanted: Any) -> str:
        return next((str(user.output[0]) for user in self._users.get(tensor, ()) if wanted(user)), tensor)


def _describe(node: Any) -> str:
    domain = f"{node.domain.removeprefix('com.microsoft.')}." if node.domain and node.domain != "ai.onnx" else ""
    activation: Mapping[str, str] = {a.name: a.s.decode() for a in node.attribute if a.name == "activation"}
    return f"{domain}{node.op_type}" + (f"+{activation['activation']}" if activation else "")

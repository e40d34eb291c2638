"""Frontends: exports an ``nn.Module`` with ``torch.export`` and reads its graph. No weight is ever allocated.

Idea: the module lives on the meta device, where tensors have shapes but no storage. ``torch.export`` in its non-strict
mode runs the forward pass once with fake tensors and records the ATen calls. It keeps PyTorch's own operators (one node
for an attention, a norm, a recurrent layer), and these are what eager PyTorch launches. It takes a second where an ONNX
export takes four.

Why batch 11: the program is traced at one batch size, and `foretell.graph.ir.batch` must find the batch axis of every
tensor afterwards. Most tensors inherit it from an input. But ``torch.zeros(batch, …)`` and an expanded class token show
the batch only as a number. With batch 1 that axis cannot be distinguished from any other axis of size 1; with 2, 3, 4
or 8 it looks like a number of channels, heads or steps. 11 is small, prime, and hardly any layer has it as a factor. So
11, 22 or 33 in the shape of a tensor that is made from nothing comes from the batch.

Limits: a forward pass that branches on values cannot be exported (`nothing_padded` helps with the
most frequent case). Sizes that depend on data count as 1, with a warning. A tensor that is made from nothing and has a
multiple of 11 by itself, say 88, may get a wrong batch axis.
"""

import contextlib
import io
import logging
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from foretell.frontends.torch.aten import AtenProgram, assemble
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.frontends.torch.composed import fast_paths
from foretell.frontends.torch.program import TorchProgram, export_error
from foretell.frontends.torch.tracing.checkpoints import NOTE as CHECKPOINTED
from foretell.frontends.torch.tracing.checkpoints import watch_checkpoints
from foretell.frontends.torch.tracing.devices import NOTE, devices_differ
from foretell.frontends.torch.tracing.padding import nothing_padded
from foretell.frontends.torch.tracing.precision import in_full_precision, in_half_precision, sets_dtypes
from foretell.frontends.torch.tracing.releases import Releases, watch_releases
from foretell.graph import Graph, Tensor
from foretell.graph.ir.batch import without_batch
from foretell.graph.ir.tensor import TensorKind
from foretell.optional import require

TRACE_BATCH = 11  # a size that hardly any layer has by itself; see the module's docstring
# dtypes that torch and foretell name differently; complex32 takes as many bytes as uint32
_LOGGERS = ("torch.fx.experimental.symbolic_shapes", "torch._subclasses.fake_tensor")
_DTYPES = {
    "float64": "fp64",
    "float32": "fp32",
    "float16": "fp16",
    "bfloat16": "bf16",
    "complex32": "uint32",
    "qint8": "int8",
    "quint8": "uint8",
    "qint32": "int32",
}


def import_torch() -> Any:
    """Import torch, or raise an error that says how to install it."""
    return require("torch", extra="torch", purpose="Reading PyTorch models")


def graph_from_program(program: TorchProgram, *, batch_size: int, training: bool = False) -> Graph:
    """Export a program whose inputs have ``batch_size`` items, and read its graph."""
    program.module.train(training)
    with watch_checkpoints() if training else contextlib.nullcontext() as checkpointed:
        graph = _graph(program, batch_size)
    if isinstance(graph, Exception):
        raise export_error(program, graph) from graph
    # an export in single precision does not see what the program casts to single precision by itself
    if not training and sets_dtypes(graph):
        with in_half_precision(program) as half_program:
            half = _graph(half_program, batch_size)
        if not isinstance(half, Exception):
            return in_full_precision(half)
    return replace(graph, warnings=(*graph.warnings, CHECKPOINTED)) if checkpointed else graph


def _graph(program: TorchProgram, batch_size: int) -> Graph | Exception:
    """The graph of a program, or the error of its export."""
    with watch_releases() as releases:
        exported, error = _export(program)
    notes = program.notes
    if error is not None:
        # perhaps the model only checks whether anything is padded, or makes tensors without a device: try again
        is_device = devices_differ(error)
        with import_torch().device("meta") if is_device else nothing_padded(), watch_releases() as releases:
            exported, second_error = _export(program)
        if second_error is not None:
            return error
        notes = (*notes, NOTE) if is_device else notes
    return graph_from_exported(
        exported,
        name=program.name,
        batch_size=batch_size,
        batch_axes=program.batch_axes,
        has_batch=program.has_batch,
        notes=notes,
        releases=releases,
        repeat=program.repeat,
    )


def _export(program: TorchProgram) -> tuple[Any, Exception | None]:
    """Return the exported program and None, or None and the error."""
    torch = import_torch()
    # when an export fails, torch prints the partial graph to stderr and logs what it could not decide or compute
    levels = {log: log.level for log in map(logging.getLogger, _LOGGERS)}
    for log in levels:
        log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()), fast_paths():
            warnings.simplefilter("ignore")
            return torch.export.export(program.module, program.args, program.kwargs, strict=False), None
    except Exception as error:  # noqa: BLE001 the model's own code runs: anything may go wrong
        return None, error
    finally:
        for log, level in levels.items():
            log.setLevel(level)


def graph_from_exported(
    exported: Any,
    *,
    name: str,
    batch_size: int,
    batch_axes: Mapping[str, int | None],
    has_batch: bool = True,
    notes: Iterable[str] = (),
    parameters: Mapping[str, str] | None = None,
    releases: Releases | None = None,
    repeat: Callable[[AtenProgram], AtenProgram] | None = None,
) -> Graph:
    """Return the graph of an ``ExportedProgram``.

    ``parameters`` maps those lifted constants that are parameters to their paths in the module. ``releases`` is what
    was watched while the program was exported. ``repeat`` puts back layers that were left out of it.
    """
    program = _Reader(exported, name, batch_size, batch_axes, notes, parameters or {}, releases).read()
    program = program if repeat is None else repeat(program)
    graph = assemble(program)
    return graph if has_batch else without_batch(graph, "")


class _Reader:
    """Walks through an exported FX graph and collects its tensors and calls."""

    def __init__(
        self,
        exported: Any,
        name: str,
        batch_size: int,
        batch_axes: Mapping[str, int | None],
        notes: Iterable[str],
        parameters: Mapping[str, str],
        releases: Releases | None,
    ) -> None:
        self.exported, self.name, self.batch_size, self.batch_axes, self.parameters = (
            exported,
            name,
            batch_size,
            batch_axes,
            parameters,
        )
        self.releases = releases
        self.traced: dict[str, tuple[str, int]] = {}  # FX node → its tensor, and the number of calls up to it
        self.tensors: dict[str, Tensor] = {}
        self.calls: list[AtenCall] = []
        self.warnings: list[str] = list(notes)
        self.seen: dict[int, str] = {}  # id of a weight → the first name it was listed under
        self.homes: dict[str, str] = {}  # parameter → the module that owns it
        self.torch = import_torch()

    def read(self) -> AtenProgram:
        """Read the placeholders, then the calls."""
        signature = self.exported.graph_signature
        kinds = {
            spec.arg.name: (spec.kind.name, spec.target) for spec in signature.input_specs if hasattr(spec.arg, "name")
        }
        environment: dict[Any, Any] = {}
        inputs: list[str] = []
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                kind, target = kinds.get(node.name, ("USER_INPUT", None))
                tied_name = self._tied_to(node.name, target)
                if tied_name is not None:
                    environment[node] = Ref(tied_name)
                    continue
                if target in self.parameters:
                    kind, self.homes[node.name] = "PARAMETER", self.parameters[target].rpartition(".")[0]
                if self._enter(node.name, node.meta.get("val"), _KINDS.get(kind, "input")) and kind == "USER_INPUT":
                    inputs.append(node.name)
                environment[node] = Ref(node.name) if node.name in self.tensors else node.meta.get("val")
        inputs = self._set_batch_axes(inputs)
        outputs = self._walk(self.exported.graph_module, environment, prefix="")
        names = [str(o) for o in _flat(outputs) if isinstance(o, Ref)]
        return AtenProgram(
            self.name,
            tuple(self.calls),
            self.tensors,
            tuple(inputs),
            tuple(dict.fromkeys(names)),
            self.batch_size,
            tuple(dict.fromkeys(self.warnings)),
            released=None if self.releases is None else self.releases.by_tensor(self.traced),
            names=() if self.releases is None else self.releases.names,
        )

    def _tied_to(self, name: str, target: str | None) -> str | None:
        """The first name of a shared weight, or None if this is the first: PyTorch lists it once for each owner."""
        tensor = self.exported.state_dict.get(target) if target else None
        if tensor is None:
            return None
        first = self.seen.setdefault(id(tensor), name)
        return first if first != name else None

    def _set_batch_axes(self, inputs: list[str]) -> list[str]:
        for name in inputs:
            tensor = self.tensors[name]
            axis = self.batch_axes.get(name, 0)
            if axis is not None and axis < len(tensor.shape) and tensor.shape[axis] % self.batch_size == 0:
                self.tensors[name] = Tensor(tensor.name, tensor.shape, tensor.dtype, tensor.kind, axis)
        return inputs

    def _walk(self, graph_module: Any, environment: dict[Any, Any], prefix: str) -> Any:
        """Read the nodes of a graph or sub-graph; returns its outputs."""
        for node in graph_module.graph.nodes:
            if node.op == "output":
                return self._value(node.args[0], environment)
            if node.op == "get_attr":
                environment[node] = self._constant(graph_module, node, prefix)
            elif node.op == "call_function":
                environment[node] = value = self._call(node, environment, prefix)
                if isinstance(value, Ref):
                    self.traced[node.name] = str(value), len(self.calls)
        return ()

    def _constant(self, graph_module: Any, node: Any, prefix: str) -> Any:
        """A tensor constant of the program becomes a tensor of the graph; a sub-graph is returned as it is."""
        value = graph_module
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, self.torch.Tensor):
            name = prefix + node.name
            self._enter(name, value, "constant")
            return Ref(name)
        return value

    def _call(self, node: Any, environment: dict[Any, Any], prefix: str) -> Any:
        """Record one call; returns its outputs."""
        target = str(node.target)
        arguments = [self._value(a, environment) for a in node.args]
        if "getitem" in target:  # picks one output of a call with several; no operator of its own
            source, index = arguments
            return source[index] if isinstance(source, list | tuple) else source
        submodules = [a for a in arguments if isinstance(a, self.torch.fx.GraphModule)]
        if submodules:
            return self._enter_submodule(submodules, arguments, prefix + node.name + "/")
        value = node.meta.get("val")
        name = prefix + node.name
        outputs = self._outputs(name, value)
        # a call without a module stack belongs to the module that owns one of its parameters
        module = _module_path(node) or next(
            (self.homes[str(a)] for a in arguments if isinstance(a, Ref) and str(a) in self.homes), ""
        )
        self.calls.append(
            AtenCall(name, target, self._named(node, arguments, environment), tuple(_flat_names(outputs)), module)
        )
        return outputs if outputs is not None else value

    def _enter_submodule(self, submodules: list[Any], arguments: list[Any], prefix: str) -> Any:
        """Read the sub-graph of a higher-order operator (no_grad, autocast) inline; of a cond, the first branch."""
        if len(submodules) > 1:
            self.warnings.append("The model branches on data; the first branch is counted.")
        inner = submodules[0]
        arguments_after = arguments[arguments.index(inner) + 1 :]
        operands = [a for a in _flat(arguments_after) if isinstance(a, Ref) or not hasattr(a, "graph")]
        placeholders = [n for n in inner.graph.nodes if n.op == "placeholder"]
        return self._walk(inner, dict(zip(placeholders, operands)), prefix)

    def _named(self, node: Any, arguments: list[Any], environment: dict[Any, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        # positional arguments get the names of the schema, so that refinements can find them by name
        schema = getattr(node.target, "_schema", None)
        keywords = {k: self._value(v, environment) for k, v in node.kwargs.items()}
        if schema is None:
            return {**{str(i): a for i, a in enumerate(arguments)}, **keywords}
        names = [a.name for a in schema.arguments]
        return {**dict(zip(names, arguments)), **keywords}

    def _value(self, argument: Any, environment: dict[Any, Any]) -> Any:
        """An argument with FX nodes replaced by what they stand for, and symbolic sizes by numbers."""
        if isinstance(argument, self.torch.fx.Node):
            return environment.get(argument)
        if isinstance(argument, list | tuple):
            return [self._value(a, environment) for a in argument]
        if isinstance(argument, self.torch.SymInt):
            return self._size(argument)
        return argument

    def _outputs(self, name: str, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._outputs(f"{name}.{i}", v) for i, v in enumerate(value)]
        return Ref(name) if self._enter(name, value, "activation") else None

    def _enter(self, name: str, value: Any, kind: TensorKind) -> bool:
        """Record a tensor; returns whether the value is one."""
        if not isinstance(value, self.torch.Tensor):
            return False
        dtype = str(value.dtype).removeprefix("torch.")
        shape = tuple(self._size(d) for d in value.shape)
        self.tensors[name] = Tensor(
            name, shape, "fp8" if dtype.startswith("float8") else _DTYPES.get(dtype, dtype), kind
        )
        return True

    def _size(self, size: Any) -> int:
        """A size as an integer. A size that depends on data counts as 1, with a warning."""
        if isinstance(size, int):
            return size
        try:
            return int(size)
        except Exception:  # noqa: BLE001 - torch raises errors of many kinds for a size it cannot know
            self.warnings.append("The model has sizes that depend on data; they are counted as 1.")
            return 1


_KINDS: dict[str, TensorKind] = {
    "PARAMETER": "parameter",
    "BUFFER": "buffer",
    "CONSTANT_TENSOR": "constant",
    "USER_INPUT": "input",
}


def _flat(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _flat_names(outputs: Any) -> Iterable[str]:
    return (str(o) if o is not None else "" for o in _flat(outputs))


def _module_path(node: Any) -> str:
    # the innermost module; "@1" marks the second call of the same module
    stack = node.meta.get("nn_module_stack") or {}
    path = next(reversed(stack.values()))[0] if stack else ""
    return ".".join(part.partition("@")[0] for part in str(path).split("."))

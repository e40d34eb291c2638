"""Frontends: reads ``net.py:build``, a Python file and a function that builds a PyTorch module; and module objects.

Reading a file runs the user's code, so it needs ``--trust``.
"""

import hashlib
import importlib.util
import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends.batch_inputs import refuse_false_batch, shared_batch
from foretell.frontends.batch_mixing import mixes_batch
from foretell.frontends.request import InputSpec, ModelRequest
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_program, import_torch
from foretell.frontends.torch.program import TorchProgram, build_without_weights, one_line
from foretell.frontends.torch.torchscript import torch_dtype
from foretell.graph import Graph
from foretell.optional import repair_torchvision, versions

MAX_FILES = 500  # a folder with more Python files is not fingerprinted, so its models are not cached


class PythonFileFrontend:
    """A function in a Python file that returns an ``nn.Module``, or ``(module, example inputs)``."""

    def load(self, request: ModelRequest) -> Graph:
        """Import the file, call the function on the meta device, and export the module."""
        path, _, function = str(request.source).rpartition(":")
        if not Path(path).is_file():
            raise ModelError(f"There is no file {path!r}.")
        if not request.trust:
            raise UntrustedModelError(
                f"Reading {request.source} runs the code in {Path(path).name}. If you trust it, add --trust."
            )
        torch = import_torch()
        repair_torchvision()  # before the file runs: it may import timm
        build = load_function(Path(path), function)
        try:
            built = build_without_weights(build)
        except (Exception, SystemExit) as error:
            raise ModelError(f"{request.source} raised {type(error).__name__}: {one_line(error)}") from error
        module, examples = built if isinstance(built, tuple) and len(built) == 2 else (built, None)
        if not isinstance(module, torch.nn.Module):
            raise ModelError(
                f"{request.source} returned {type(module).__name__}; it must return an nn.Module, or (nn.Module, "
                "example inputs)."
            )
        return graph_from_module(module, request, name=f"{Path(path).name}:{function}", examples=examples)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of all Python files of the folder, because the model may import its neighbours."""
        path = Path(str(request.source).rpartition(":")[0])
        if not request.trust or not path.is_file():
            return None
        files = sorted(path.parent.glob("*.py")) + sorted(path.parent.glob("*/*.py"))
        if len(files) > MAX_FILES:
            return None
        digest = hashlib.sha256()
        for file in files:
            digest.update(file.read_bytes())
        installed = versions("torch", extra="torch", purpose="Reading PyTorch models")
        return f"{request.source} {digest.hexdigest()} {installed}"


def load_function(path: Path, function: str) -> Any:
    """Import a Python file, which runs its code, and return one of its functions."""
    spec = importlib.util.spec_from_file_location(f"foretell_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ModelError(f"Cannot read {path}.")
    module = importlib.util.module_from_spec(spec)
    # the file may import its neighbours
    sys.path.insert(0, str(path.parent.resolve()))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise ModelError(f"{path.name} raised {type(error).__name__} on import: {one_line(error)}") from error
    finally:
        sys.path.pop(0)
    builder = getattr(module, function, None)
    if not callable(builder):
        raise ModelError(
            f"{path.name} has no function {function!r}. It has: {', '.join(_functions(module)) or 'none'}."
        )
    return builder


def _functions(module: Any) -> Iterable[str]:
    return (
        n
        for n, v in vars(module).items()
        if callable(v) and not n.startswith("_") and getattr(v, "__module__", None) == module.__name__
    )


class ModuleFrontend:
    """An ``nn.Module`` object of the running program."""

    def load(self, request: ModelRequest) -> Graph:
        """Export a copy of the module on the meta device; the module itself is not changed."""
        return graph_from_module(request.source, request, name=type(request.source).__name__, examples=None)

    def fingerprint(self, request: ModelRequest) -> str | None:  # noqa: ARG002 - as every front-end has it
        """None: an object has no content that could be hashed, so it is not cached."""
        return None


def graph_from_module(module: Any, request: ModelRequest, *, name: str, examples: Any) -> Graph:
    """Return the graph of a module, with the inputs of ``--input`` or with example inputs."""
    torch = import_torch()
    module = _on_meta(torch, module)
    training = request.mode == "training"
    if request.inputs:
        args, kwargs = _arguments(torch, module, request.inputs)
        program = TorchProgram(
            name,
            module,
            args,
            kwargs,
            _whole_axes(module, request.inputs),
            has_batch=not all(s.whole for s in request.inputs),
        )
        graph = graph_from_program(program, batch_size=TRACE_BATCH if program.has_batch else 1, training=training)
        _check_batch_axis(graph)
        return graph
    if examples is None:
        raise InputError(
            f"The inputs of {name} are not known. Give them, without the batch: --input 3x224x224, or for several "
            "inputs --input NAME=128:int64 for each"
        )
    shapes, args, kwargs = _from_examples(torch, examples)
    batch_size = shared_batch(shapes)
    program = TorchProgram(name, module, args, kwargs, has_batch=batch_size is not None)
    graph = graph_from_program(program, batch_size=batch_size or 1, training=training)
    return refuse_false_batch(graph, has_batch=program.has_batch)


def _check_batch_axis(graph: Graph) -> None:
    """Refuse a module whose first axis is no batch: an LSTM takes (time, batch, …) unless it is told otherwise."""
    operator = mixes_batch(graph)
    if operator is not None:
        raise InputError(
            f"A batch is put in front of the shapes in --input, but {operator} of {graph.name} reads across the first "
            "axis. Build the model batch-first; or write whole shapes, with ! for no batch: --input x=50x1x32!"
        )


def _on_meta(torch: Any, module: Any) -> Any:
    """A copy of the module without storage. No weight is copied."""
    from copy import deepcopy

    # weights that a hook computes anew, as those of torch.nn.utils.weight_norm, are plain attributes
    computed = [value for part in module.modules() for value in vars(part).values() if isinstance(value, torch.Tensor)]
    # deepcopy takes what is in its memo for copied already: every weight is replaced by an empty tensor
    memo: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers(), *(t for t in computed if not t.is_leaf)):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = (
            torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
            if isinstance(tensor, torch.nn.Parameter)
            else empty
        )
    try:
        return deepcopy(module, memo)
    except Exception as error:
        raise ModelError(f"Cannot copy {type(module).__name__}: {one_line(error)}") from error


def _arguments(torch: Any, module: Any, specs: tuple[InputSpec, ...]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The inputs of the user as positional and named arguments of the forward."""
    accepted = inspect.signature(module.forward).parameters
    # a forward with **kwargs takes any name
    open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
    args, kwargs = [], {}
    for spec in specs:
        tensor = _empty(torch, spec)
        if spec.name is None:
            args.append(tensor)
        elif spec.name in accepted or open_ended:
            kwargs[spec.name] = tensor
        else:
            raise InputError(f"The model has no input {spec.name!r}. Its inputs: {', '.join(accepted)}.")
    return tuple(args), kwargs


def _empty(torch: Any, spec: InputSpec) -> Any:
    dtype = torch_dtype(torch, spec.dtype)
    return torch.empty(spec.sizes(TRACE_BATCH), device="meta", dtype=dtype)


def _whole_axes(module: Any, specs: tuple[InputSpec, ...]) -> dict[str, None]:
    """The inputs of the user that have no batch, by the names that the export gives them."""
    positions = [p for p in inspect.signature(module.forward).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    unnamed = [s for s in specs if s.name is None]
    names = []
    for position, spec in enumerate(unnamed):
        parameter = positions[min(position, len(positions) - 1)]
        is_open = parameter.kind is parameter.VAR_POSITIONAL
        names.append((f"{parameter.name}_{position - len(positions) + 1}" if is_open else parameter.name, spec))
    names += [(s.name, s) for s in specs if s.name is not None]
    return {name: None for name, spec in names if spec.whole}


def _from_examples(torch: Any, examples: Any) -> tuple[list[tuple[int, ...]], tuple[Any, ...], dict[str, Any]]:
    """Example inputs: a tensor, a tuple of tensors, or a dictionary; and the shapes of all tensors among them."""
    tree = torch.utils._pytree
    on_meta = tree.tree_map(lambda x: x.to("meta") if isinstance(x, torch.Tensor) else x, examples)
    shapes = [tuple(x.shape) for x in tree.tree_leaves(on_meta) if isinstance(x, torch.Tensor)]
    if isinstance(on_meta, dict):
        return shapes, (), on_meta
    return shapes, tuple(on_meta) if isinstance(on_meta, list | tuple) else (on_meta,), {}

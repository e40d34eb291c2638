"""Frontends: picks the front-end for a model by its type, name or content, and caches the converted graph."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, InputError, ModelError, UntrustedModelError
from foretell.frontends import cache
from foretell.frontends.converted.frameworks import (
    recognise_foreign_file,
    recognise_foreign_folder,
    recognise_foreign_object,
    recognise_python_file,
)
from foretell.frontends.graph_file import load_graph_file
from foretell.frontends.request import MAX_ELEMENTS, MODES, Frontend, ModelRequest
from foretell.frontends.torch.archive import archive_kind
from foretell.graph import Graph, graph_costs
from foretell.graph.ir import serde
from foretell.graph.ir.operands import check_operands
from foretell.graph.ir.passes import normalise
from foretell.registry import Registry, did_you_mean

FRONTENDS = Registry(
    "front-end",
    {
        "onnx": "foretell.frontends.onnx.frontend:OnnxFrontend",
        "module": "foretell.frontends.torch.python_file:ModuleFrontend",
        "python": "foretell.frontends.torch.python_file:PythonFileFrontend",
        "pt2": "foretell.frontends.torch.pt2:Pt2Frontend",
        "torchscript": "foretell.frontends.torch.torchscript:TorchScriptFrontend",
        "timm": "foretell.frontends.torch.timm_models:TimmFrontend",
        "torchvision": "foretell.frontends.torch.torchvision_models:TorchvisionFrontend",
        "hf": "foretell.frontends.huggingface.frontend:HuggingFaceFrontend",
        "keras": "foretell.frontends.converted.keras_model:KerasFrontend",
        "tensorflow": "foretell.frontends.converted.keras_model:TensorFlowFrontend",
        "paddle": "foretell.frontends.converted.paddle_model:PaddleFrontend",
        "jax": "foretell.frontends.converted.jax_model:JaxFrontend",
    },
)
SPECS = (
    "a path (model.onnx, model.pt2, TorchScript, config.json, net.py:build, model.keras, saved_model/, Paddle's "
    "model.json) or timm:NAME, torchvision:NAME, hf:ID"
)
MAX_WORK = 2**100  # FLOPs or bytes of one run: the fastest machines would take millions of years
# protocol headers and the first opcodes of usual pickles; such a file is recognised, never opened
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"(dp", b"(lp", b"c__", b"cos\n", b"cposix")
_PICKLE_SUFFIXES = (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt", ".joblib")


def convert(request: ModelRequest, *, use_cache: bool = True) -> Graph:
    """Return the graph of a model, from the cache if it is there."""
    if request.mode not in MODES:
        raise InputError(f"Unknown mode {request.mode!r}.{did_you_mean(request.mode, MODES)}")
    if isinstance(request.source, Graph):
        return request.source
    if isinstance(request.source, Path):
        request = request.with_source(str(request.source))
    name = recognise(request.source)
    if request.mode in ("prefill", "decode") and name != "hf":
        raise InputError(
            f"The mode {request.mode!r} is for language models from hf:ID or a config.json; this model is none of them."
        )
    if name == "graph":
        return _checked(load_graph_file(request))
    frontend: Frontend = FRONTENDS.load(name)()
    fingerprint = frontend.fingerprint(request) if use_cache else None
    path = cache.entry_path(name, fingerprint, request) if fingerprint is not None else None
    cached = cache.read(path) if path is not None else None
    if cached is not None:
        return cached
    graph = _checked(normalise(frontend.load(request)))
    if path is not None:
        cache.write(path, graph)
    return graph


def _checked(graph: Graph) -> Graph:
    """Return the graph if its costs can be computed. Otherwise raise, before the graph is cached."""
    for tensor in graph.tensors.values():
        if tensor.elements > MAX_ELEMENTS:
            raise ModelError(f"Tensor {tensor.name!r} of {graph.name} has the impossible shape {tensor.shape}.")
    graph = _readable(graph)
    check_operands(graph)
    try:
        _check_work(graph)
    except ForetellError:
        raise
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"The costs of {graph.name} cannot be computed: {type(error).__name__}: {reason}") from error
    return graph


def _readable(graph: Graph) -> Graph:
    """Return the graph if its names can be written; a file's name that is no text becomes one.

    Python reads a file name that is not UTF-8, or a JSON text such as ``"\\ud800"``, as a string that no file, database
    or terminal takes.
    """
    try:
        "\n".join(_texts(graph)).encode()
    # protobuf hands out bytes where a text of the file is not UTF-8
    except (UnicodeEncodeError, TypeError) as error:
        raise ModelError(f"{_text(graph.name)} is damaged: a name or note in it is not valid text.") from error
    name = _text(graph.name)
    return graph if name == graph.name else replace(graph, name=name)


def _texts(graph: Graph) -> Iterator[str]:
    """All texts of a graph but its own name, also those of its bodies."""
    yield from (*graph.tensors, *graph.warnings, *graph.metadata, *graph.metadata.values())
    for node in graph.nodes:
        yield from (node.name, node.op, node.domain, node.module, node.origin, node.origin_op)
        for key, value in node.attributes.items():
            yield key
            if isinstance(value, str | tuple):
                yield from (v for v in ((value,) if isinstance(value, str) else value) if isinstance(v, str))
        for body in node.bodies:
            yield body.name
            yield from _texts(body)


def _text(name: str) -> str:
    return name.encode(errors="replace").decode().replace("\0", "?")


def _check_work(graph: Graph) -> None:
    """Raise if a run of the graph would do more than any machine can; such costs would not fit a number."""
    total = graph_costs(graph).total
    for what, amount in (("FLOPs", total.flops), ("bytes to move", total.bytes), ("kernels to launch", total.launches)):
        if not 0 <= amount <= MAX_WORK:
            raise ModelError(
                f"One run of {graph.name} would have about 2^{amount.bit_length()} {what}, which is impossible: at "
                f"most 2^{MAX_WORK.bit_length() - 1} are allowed. Its loops or sizes are wrong."
            )


def recognise(source: Any) -> str:
    """Return the name of the front-end for a model; raise if none fits."""
    if not isinstance(source, str):
        return _recognise_object(source)
    scheme, separator, _ = source.partition(":")
    if separator and scheme in ("timm", "torchvision", "hf"):
        return scheme
    path, separator, function = source.rpartition(":")
    if separator and path.endswith(".py") and function.isidentifier():
        return recognise_python_file(Path(path))
    return _recognise_path(source)


def _recognise_object(source: Any) -> str:
    """The front-end for a model object."""
    # the names of its classes identify the framework of an object, without an import of that framework
    kinds = {f"{c.__module__.partition('.')[0]}.{c.__name__}" for c in type(source).__mro__}
    if "torch.Module" in kinds:
        return "module"
    if "onnx.ModelProto" in kinds or type(source).__name__ == "ModelProto":
        return "onnx"
    foreign = recognise_foreign_object(source, kinds)
    if foreign:
        return foreign
    raise ModelError(f"Cannot read a model from {type(source).__name__}. Give a model of a framework or {SPECS}.")


def _recognise_path(source: str) -> str:
    """The front-end for a path."""
    path = Path(source)
    try:
        if not path.exists():
            raise ModelError(f"There is no file {source!r}. A model is {SPECS}.")
        if path.is_dir():
            foreign = recognise_foreign_folder(path)
            if foreign:
                return foreign
            if (path / "config.json").is_file():
                return "hf"
            raise ModelError(f"The folder {source} has no config.json. A model is {SPECS}.")
        if not path.is_file():
            raise ModelError(f"{source} is neither a file nor a folder. A model is {SPECS}.")
        if path.suffix == ".py":
            raise ModelError(f"Name the function of {path.name} that builds the model, such as {path.name}:build")
        with path.open("rb") as file:
            start = file.read(64)
    except ForetellError:
        raise
    except (OSError, ValueError) as error:  # ValueError: a zero byte in the name
        raise ModelError(f"Cannot read {source!r}: {getattr(error, 'strerror', None) or error}.") from error
    # a .json may be a Paddle program or a Hugging Face config
    return recognise_foreign_file(path, start) or ("hf" if path.suffix == ".json" else _recognise_content(path, start))


def _recognise_content(path: Path, start: bytes) -> str:
    """The front-end for a file, by its first bytes and its suffix."""
    if not start:
        raise ModelError(f"{path.name} is empty.")
    if start.startswith(serde.MAGIC):
        return "graph"
    if start.startswith(b"PK"):
        kind = archive_kind(path)
        if kind in ("pt2", "torchscript"):
            return kind
        if kind == "pickle":
            raise _pickled(path)
        raise ModelError(f"{path.name} is a zip file without a model in it, or it is damaged.")
    if start.startswith(_PICKLE_STARTS) or path.suffix in _PICKLE_SUFFIXES:
        raise _pickled(path)
    if path.suffix == ".pt2":
        raise ModelError(f"{path.name} is not a .pt2 archive, or it is damaged.")
    return "onnx"


def _pickled(path: Path) -> UntrustedModelError:
    return UntrustedModelError(
        f"{path.name} is a pickle, or is named like one. Opening a pickle can run any code, so it is never opened. "
        "Save the model with torch.export.save (.pt2), torch.jit.save or as ONNX."
    )

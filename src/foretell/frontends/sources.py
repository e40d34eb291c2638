"""frontends: which front-end reads a model, told by what it looks like; conversions are cached."""

from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends import cache
from foretell.frontends.request import MODES, Frontend, ModelRequest
from foretell.frontends.torchscript import archive_kind
from foretell.graph import Graph, serde
from foretell.graph.passes import normalise
from foretell.registry import Registry, did_you_mean

FRONTENDS = Registry(
    "front-end",
    {
        "onnx": "foretell.frontends.onnx_file:OnnxFrontend",
        "module": "foretell.frontends.python_file:ModuleFrontend",
        "python": "foretell.frontends.python_file:PythonFileFrontend",
        "pt2": "foretell.frontends.pt2:Pt2Frontend",
        "torchscript": "foretell.frontends.torchscript:TorchScriptFrontend",
        "timm": "foretell.frontends.timm_zoo:TimmFrontend",
        "torchvision": "foretell.frontends.torchvision_zoo:TorchvisionFrontend",
        "hf": "foretell.frontends.hf_frontend:HuggingFaceFrontend",
    },
)
SPECS = "a path (model.onnx, model.pt2, a TorchScript file, config.json, net.py:build) or timm:NAME, torchvision:NAME, hf:ID"
_PICKLE_STARTS = (b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"(dp", b"(lp", b"c__", b"cos\n", b"cposix")


def convert(request: ModelRequest, *, use_cache: bool = True) -> Graph:
    """The graph of a model, from the cache where it is there."""
    if request.mode not in MODES:
        raise InputError(f"Unknown mode {request.mode!r}.{did_you_mean(request.mode, MODES)}")
    if isinstance(request.source, Graph):
        return request.source
    if isinstance(request.source, Path):
        request = request.with_source(str(request.source))
    name = recognise(request.source)
    if name == "graph":
        return serde.load(request.source)
    frontend: Frontend = FRONTENDS.load(name)()
    fingerprint = frontend.fingerprint(request) if use_cache else None
    path = cache.entry_path(name, fingerprint, request) if fingerprint is not None else None
    kept = cache.read(path) if path is not None else None
    if kept is not None:
        return kept
    graph = normalise(frontend.load(request))
    if path is not None:
        cache.write(path, graph)
    return graph


def recognise(source: Any) -> str:
    """The name of the front-end for a model; raises where nothing fits."""
    if not isinstance(source, str):
        return _recognise_object(source)
    scheme, colon, _ = source.partition(":")
    if colon and scheme in ("timm", "torchvision", "hf"):
        return scheme
    path, colon, function = source.rpartition(":")
    if colon and path.endswith(".py") and function.isidentifier():
        return "python"
    return _recognise_path(source)


def _recognise_object(source: Any) -> str:
    kinds = {f"{c.__module__.partition('.')[0]}.{c.__name__}" for c in type(source).__mro__}
    if "torch.Module" in kinds:
        return "module"
    if "onnx.ModelProto" in kinds or type(source).__name__ == "ModelProto":
        return "onnx"
    raise ModelError(f"Cannot read a model from {type(source).__name__}. Give an nn.Module, an onnx.ModelProto, or {SPECS}.")


def _recognise_path(source: str) -> str:
    path = Path(source)
    if not path.exists():
        raise ModelError(f"There is no file {source!r}. A model is {SPECS}.")
    if path.is_dir():
        if (path / "config.json").is_file():
            return "hf"
        raise ModelError(f"The folder {source} has no config.json. A model is {SPECS}.")
    if path.suffix == ".json":
        return "hf"
    if path.suffix == ".py":
        raise ModelError(f"Say which function of {path.name} builds the model: {path.name}:build")
    try:
        with path.open("rb") as file:
            start = file.read(64)
    except OSError as error:
        raise ModelError(f"Cannot read {path}: {error.strerror or error}.") from error
    if start.startswith(serde.MAGIC):
        return "graph"
    if start.startswith(b"PK"):
        kind = archive_kind(path)
        if kind in ("pt2", "torchscript"):
            return kind
        if kind == "pickle":
            raise _pickled(path)
        raise ModelError(f"{path.name} is a zip file without a model in it, or it is damaged.")
    if start.startswith(_PICKLE_STARTS) and path.suffix != ".onnx":
        raise _pickled(path)
    if path.suffix in (".pt", ".pth", ".bin", ".pkl", ".pickle", ".ckpt"):
        raise _pickled(path)
    if start.startswith(_PICKLE_STARTS):
        raise _pickled(path)
    return "onnx"


def _pickled(path: Path) -> UntrustedModelError:
    return UntrustedModelError(
        f"{path.name} is a pickle: opening it could run any code, so it is never opened. Save the model with torch.export.save (.pt2), torch.jit.save or as ONNX."
    )

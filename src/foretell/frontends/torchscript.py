"""frontends: a TorchScript archive → Graph. Loaded on the meta device, checked for operators that touch the machine."""

import hashlib
import warnings
import zipfile
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends.program import one_line
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch_export import TRACE_BATCH, graph_from_exported, import_torch
from foretell.graph import Graph

# TorchScript runs in its own interpreter; these are its ways to files, Python or the terminal
_REFUSED = frozenset({"aten::from_file", "aten::save", "prim::PythonOp", "aten::wait", "prim::Print", "aten::_load_from_file", "prim::rpc_async", "prim::rpc_sync"})


class TorchScriptFrontend:
    """Modules that ``torch.jit.save`` wrote."""

    def load(self, request: ModelRequest) -> Graph:
        """Load on the meta device and export what it computes."""
        torch = import_torch()
        path = Path(request.source)
        script = self._load(torch, path)
        _check_operators(script, path.name)
        inputs = self._inputs(torch, script, request)
        holder = _holder(torch, script.train(request.mode == "training"))
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                exported = torch.export.export(holder, inputs, strict=False)
        except Exception as error:  # noqa: BLE001 - whatever a foreign model raises becomes one clear line
            raise ModelError(f"PyTorch could not run {path.name} with inputs {[tuple(i.shape) for i in inputs]}: {one_line(error)}") from error
        names = {id(p): n for n, p in script.named_parameters()}
        parameters = {key: names[id(value)] for key, value in exported.constants.items() if id(value) in names}
        return graph_from_exported(exported, name=path.name, batch_size=TRACE_BATCH, batch_axes={}, parameters=parameters)

    def _load(self, torch: Any, path: Path) -> Any:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return torch.jit.load(str(path), map_location="meta")
        except (RuntimeError, ValueError, OSError) as error:
            raise ModelError(f"{path.name} is not a TorchScript archive that this PyTorch reads: {one_line(error)}") from error

    def _inputs(self, torch: Any, script: Any, request: ModelRequest) -> tuple[Any, ...]:
        names = [i.debugName().partition(".")[0] for i in script.graph.inputs()][1:]
        if not request.inputs:
            raise InputError(f"TorchScript does not say the shapes of its inputs ({', '.join(names)}). Give them, without the batch: --input 3x224x224")
        if len(request.inputs) > len(names):
            raise InputError(f"{len(request.inputs)} inputs were given; the model takes {len(names)}: {', '.join(names)}.")
        by_name = {s.name: s for s in request.inputs if s.name}
        unknown = sorted(set(by_name) - set(names))
        if unknown:
            raise InputError(f"The model has no input {unknown[0]!r}. Its inputs: {', '.join(names)}.")
        unnamed = iter([s for s in request.inputs if s.name is None])
        ordered = [by_name.get(n) or next(unnamed, None) for n in names]
        return tuple(torch.empty(TRACE_BATCH, *s.shape, device="meta", dtype=torch_dtype(torch, s.dtype)) for s in ordered if s is not None)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The file's content."""
        with Path(request.source).open("rb") as file:
            return f"{Path(request.source).name} {hashlib.file_digest(file, 'sha256').hexdigest()}"


def torch_dtype(torch: Any, name: str | None) -> Any:
    """The torch dtype of an input as the user wrote it; fp32 where nothing is said."""
    known = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}
    found = getattr(torch, known.get(name or "fp32", name or ""), None)
    if not isinstance(found, torch.dtype):
        raise InputError(f"Unknown input dtype {name!r}. Use one of fp32, fp16, bf16, int64, int32, bool.")
    return found


def _holder(torch: Any, script: Any) -> Any:
    """A module that calls a script it does not own, so that the export lifts its tensors as constants."""

    class Holder(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.held = [script]

        def forward(self, *inputs: Any) -> Any:
            return self.held[0](*inputs)

    return Holder()


def _check_operators(script: Any, name: str) -> None:
    found = set()

    def visit(block: Any) -> None:
        for node in block.nodes():
            found.add(node.kind())
            for inner in node.blocks():
                visit(inner)

    for method in script._method_names() if hasattr(script, "_method_names") else ["forward"]:
        visit(getattr(script, method).inlined_graph if method != "forward" else script.inlined_graph)
    refused = sorted(found & _REFUSED)
    if refused:
        raise UntrustedModelError(f"{name} uses {', '.join(refused)}, which reaches outside the model: refused.")


def archive_kind(path: Path) -> str:
    """What a zip file holds: ``pt2``, ``torchscript``, ``pickle`` (a ``torch.save`` file) or ``other``."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError):
        return "other"
    inner = [n.partition("/")[2] for n in names]
    if any(n.startswith("models/") and n.endswith(".json") for n in inner):
        return "pt2"
    if any(n.startswith("code/") for n in inner) and "constants.pkl" in inner:
        return "torchscript"
    return "pickle" if any(n.endswith("data.pkl") for n in names) else "other"

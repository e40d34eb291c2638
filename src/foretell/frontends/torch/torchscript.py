"""Frontends: reads a TorchScript archive.

Its code is read as text before PyTorch loads it. An archive that could reach files, Python, other machines or the
terminal is refused. PyTorch then loads it in a cage, whatever that check found: a check can be wrong.
"""

import pickletools
import re
import struct
import warnings
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError, UntrustedModelError
from foretell.frontends.budget import Budget
from foretell.frontends.caged import read_caged
from foretell.frontends.request import ModelRequest, match_inputs
from foretell.frontends.torch.archive import check_members, check_unpacked_size, members_digest, read_members
from foretell.frontends.torch.export import TRACE_BATCH, graph_from_exported, import_torch
from foretell.frontends.torch.program import one_line
from foretell.frontends.torch.script_work import check_work
from foretell.graph import Graph

MAX_CODE_BYTES = 2**26
# TorchScript runs in its own interpreter; these operators reach files, Python, other machines or the terminal
_REFUSED = frozenset(
    [
        "aten::from_file",
        "aten::save",
        "aten::wait",
        "aten::_load_from_file",
        "prim::PythonOp",
        "prim::Print",
        "prim::rpc_async",
        "prim::rpc_sync",
        "prim::rpc_remote",
        "prim::fork",
    ]
)
# the same operators as words in the archive's code, under whatever name they are called
_REFUSED_WORDS = re.compile(
    r"""(?:\.|["'])\s*(?P<name>from_file|save|_load_from_file|fork|wait|rpc_async|rpc_sync|rpc_remote)\b|\b(?P<print>print)\s*\(|"""
    r"""\bops\s*\.\s*(?P<space>\w+)|\b(?P<alias>torch|ops)\b(?!\s*\.)|\bgetattr\s*\([^)]*(?P<escape>\\)"""
)
_KNOWN_SPACES = frozenset(
    ["aten", "prim", "prims", "quantized", "_quantized", "mkldnn", "mkldnn_prepacked", "prepacked", "torchvision"]
)
_RUNS_ON_LOADING = re.compile(r"\b__setstate__\b")


class TorchScriptFrontend:
    """Modules that ``torch.jit.save`` wrote."""

    def load(self, request: ModelRequest) -> Graph:
        """Check the code here, which is fast and needs no PyTorch; then read the archive in a cage."""
        check_code(Path(request.source), request.trust)
        return read_caged("foretell.frontends.torch.torchscript:read_script", request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The code and the structure of the module, and whether it is trusted. Weights are not hashed: none is read."""
        path = Path(request.source)
        members = read_members(path, "", (".py", ".pkl"), MAX_CODE_BYTES)
        return f"{path.name} {members_digest(members)} {request.trust}"


def read_script(request: ModelRequest) -> Graph:
    """In the cage: check the code once more, since the file may have changed, then load it."""
    check_code(Path(request.source), request.trust)
    check_pickles(Path(request.source))
    return load_script(request)


def load_script(request: ModelRequest) -> Graph:
    """In the cage: load the module on the meta device, and export it. This runs the archive's own code."""
    path = Path(request.source)
    torch = import_torch()
    script = _load(torch, path)
    # `hasattr(script, "forward")` is true for every module, and `inlined_graph` expands all calls
    if not script._c._has_method("forward"):
        raise ModelError(f"{path.name} has no method forward, so it cannot be run.")
    if not request.trust:
        check_work(script, Budget(path.name))
    _check_operators(script, path.name)
    inputs = _inputs(torch, script, request)
    holder = _holder(torch, script.train(request.mode == "training"))
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            exported = torch.export.export(holder, inputs, strict=False)
    except Exception as error:
        shapes = [tuple(i.shape) for i in inputs]
        raise ModelError(f"PyTorch could not run {path.name} with inputs {shapes}: {one_line(error)}") from error
    # the export lifts the script's tensors as constants; those that are parameters are found by identity
    names = {id(p): n for n, p in script.named_parameters()}
    parameters = {key: names[id(value)] for key, value in exported.constants.items() if id(value) in names}
    return graph_from_exported(exported, name=path.name, batch_size=TRACE_BATCH, batch_axes={}, parameters=parameters)


def _load(torch: Any, path: Path) -> Any:
    """Load the archive on the meta device."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.jit.load(str(path), map_location="meta")
    except Exception as error:
        raise ModelError(
            f"{path.name} is not a TorchScript archive that this PyTorch reads: {one_line(error)}"
        ) from error


def _inputs(torch: Any, script: Any, request: ModelRequest) -> tuple[Any, ...]:
    """The inputs of the user as tensors, in the order of the forward."""
    # the first input of the graph is the module itself
    names = [i.debugName().partition(".")[0] for i in script.graph.inputs()][1:]
    if not request.inputs:
        raise InputError(
            f"A TorchScript file does not contain the shapes of its inputs ({', '.join(names)}). "
            "Give them, without the batch: --input 3x224x224"
        )
    specs = match_inputs(request.inputs, names)
    ordered = [specs[n] for n in names if n in specs]
    return tuple(torch.empty(s.sizes(TRACE_BATCH), device="meta", dtype=torch_dtype(torch, s.dtype)) for s in ordered)


def torch_dtype(torch: Any, name: str | None) -> Any:
    """Return the torch dtype of an input; fp32 if the user gave none."""
    known = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64", "fp8": "float8_e4m3fn"}
    dtype = getattr(torch, known.get(name or "fp32", name or ""), None)
    if not isinstance(dtype, torch.dtype):
        raise InputError(f"PyTorch has no input dtype {name!r}. Use one of fp32, fp16, bf16, int64, int32, bool.")
    return dtype


def _holder(torch: Any, script: Any) -> Any:
    """A module that calls a script without owning it, so that the export lifts its tensors as constants."""

    class Holder(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.scripts = [script]  # in a list: nn.Module would register a plain attribute as a submodule

        def forward(self, *inputs: Any) -> Any:
            return self.scripts[0](*inputs)

    return Holder()


def check_code(path: Path, trust: bool) -> None:
    """Check the archive's code as text, before loading: PyTorch runs ``__setstate__`` as soon as it loads a module."""
    check_members(path)
    check_unpacked_size(path)
    for name, content in read_members(path, "code/", ".py", MAX_CODE_BYTES).items():
        code = content.decode(errors="replace")
        for match in _REFUSED_WORDS.finditer(code):
            if match["space"] is None or match["space"] not in _KNOWN_SPACES:
                word = match["name"] or match["print"] or match["alias"] or match["space"] or "getattr"
                raise UntrustedModelError(
                    f"{path.name} uses {word!r} ({name}), which may reach outside the model. It is refused."
                )
        if not trust and _RUNS_ON_LOADING.search(code):
            raise UntrustedModelError(
                f"{path.name} runs code of its own when it is loaded (__setstate__ in {name}). If you trust it, add "
                "--trust."
            )


def check_pickles(path: Path) -> None:
    """Walk through the pickles of an archive, without loading them, and refuse lengths that their bytes cannot have.

    PyTorch makes room for a text of 4 GiB, or for a table with 2^32 places, before it finds that the file ends.
    """
    for name, content in read_members(path, "", ".pkl", MAX_CODE_BYTES).items():
        try:
            for count, (opcode, argument, _) in enumerate(pickletools.genops(content)):
                if opcode.name.endswith("PUT") and int(argument or 0) > count:  # places are numbered in a row
                    raise ValueError(f"place {argument} of a table with {count}")
        except (ValueError, LookupError, struct.error) as error:
            raise ModelError(f"{path.name} is damaged: {name} cannot be read ({one_line(error)}).") from error


def _check_operators(script: Any, name: str) -> None:
    """Refuse a loaded script that has operators which reach outside the model."""
    kinds = set()

    def visit(block: Any) -> None:
        for node in block.nodes():
            kinds.add(node.kind())
            for inner in node.blocks():
                visit(inner)

    for method in script._method_names() if hasattr(script, "_method_names") else ["forward"]:
        visit(getattr(script, method).inlined_graph if method != "forward" else script.inlined_graph)
    refused = sorted(k for k in kinds if k in _REFUSED or k.partition("::")[0] not in _KNOWN_SPACES)
    if refused:
        raise UntrustedModelError(f"{name} uses {', '.join(refused)}, which reaches outside the model. It is refused.")

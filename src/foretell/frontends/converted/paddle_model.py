"""Frontends: reads models of PaddlePaddle. A separate process converts them with paddle2onnx."""

from importlib import import_module
from pathlib import Path
from typing import Any

from foretell.errors import InputError, ModelError
from foretell.frontends.converted.converter import (
    digest_files,
    private_folder,
    run_converter,
    task_of,
)
from foretell.frontends.converted.environments import need_environment
from foretell.frontends.converted.frameworks import paddle_program
from foretell.frontends.converted.python_foreign import fingerprint_python, is_python, load_python
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph

_PURPOSE = "Reading PaddlePaddle models"
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "fp64": "float64"}


class PaddleFrontend:
    """``.json`` or ``.pdmodel`` files with ``.pdiparams`` beside them, a folder of these, and layer objects."""

    def load(self, request: ModelRequest) -> Graph:
        """Convert the program; save a layer to a file first."""
        if not isinstance(request.source, str):
            return _load_layer(request)
        if is_python(request.source):
            return load_python(request, "paddle", _PURPOSE)
        path = _program(Path(request.source))
        return run_converter("paddle", path.name, _PURPOSE, task_of(request, "paddle", "program", path), request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of program and weights, and the versions of the converter."""
        if not isinstance(request.source, str):
            return None
        if is_python(request.source):
            return fingerprint_python(request, "paddle", _PURPOSE)
        path = _program(Path(request.source))
        files = [file for file in (path, path.with_suffix(".pdiparams")) if file.is_file()]
        return f"{path.name} {digest_files(path, files)} {need_environment('paddle', _PURPOSE).versions}"


def _program(path: Path) -> Path:
    program = paddle_program(path) if path.is_dir() else path
    if program is None:
        raise ModelError(f"{path} has no Paddle program: model.json or model.pdmodel, with model.pdiparams.")
    return program


def _load_layer(request: ModelRequest) -> Graph:
    """Convert a layer object: save it in evaluation mode, then convert the program."""
    name = type(request.source).__name__
    need_environment("paddle", _PURPOSE)
    if not request.inputs:
        raise InputError(f"The inputs of {name} are not known. Give them, without the batch: input_shape=(3, 224, 224)")
    paddle: Any = import_module("paddle")  # it is installed: the object comes from it
    specs = [
        paddle.static.InputSpec([None, *i.shape], _DTYPES.get(i.dtype or "fp32", i.dtype), i.name or f"x{n}")
        for n, i in enumerate(request.inputs)
    ]
    # paddle.jit.save saves the mode the layer is in; the caller's layers get theirs back afterwards
    in_training_mode = [layer for layer in request.source.sublayers(include_self=True) if layer.training]
    with private_folder() as folder:
        try:
            request.source.eval()
            paddle.jit.save(request.source, str(folder / "given"), input_spec=specs)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"{name} cannot be saved, so it cannot be read: {reason}") from error
        finally:
            for layer in in_training_mode:
                layer.training = True
        program = next(p for p in (folder / "given.json", folder / "given.pdmodel") if p.is_file())
        task = task_of(request, "paddle", "program", program)
        return run_converter("paddle", name, _PURPOSE, task, request, folder=folder)

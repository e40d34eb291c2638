"""Frontends: reads models of Keras 3 and TensorFlow. A separate process converts them with tf2onnx."""

from pathlib import Path

from foretell.errors import ModelError
from foretell.frontends.converted.converter import (
    digest_files,
    private_folder,
    run_converter,
    task_of,
)
from foretell.frontends.converted.environments import need_environment
from foretell.frontends.converted.python_foreign import fingerprint_python, is_python, load_python
from foretell.frontends.request import ModelRequest
from foretell.frontends.torch.archive import check_unpacked_size
from foretell.graph import Graph

_ENVIRONMENT = "keras"


class KerasFrontend:
    """``.keras`` and ``.h5`` files, and Keras model objects. Code in a file runs only with trust."""

    purpose = "Reading Keras models"

    def load(self, request: ModelRequest) -> Graph:
        """Convert the file; save a model object to a file first."""
        if not isinstance(request.source, str):
            return _load_object(request)
        if is_python(request.source):
            return load_python(request, _ENVIRONMENT, self.purpose)
        path = Path(request.source)
        with path.open("rb") as file:
            zipped = file.read(2) == b"PK"
        if zipped:
            check_unpacked_size(path)
        return _convert(request, path, "keras" if zipped else "h5", self.purpose)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of the file and the versions of the converter."""
        return _fingerprint(request, self.purpose)


class TensorFlowFrontend:
    """SavedModel folders, frozen ``.pb`` graphs, and concrete function objects."""

    purpose = "Reading TensorFlow models"

    def load(self, request: ModelRequest) -> Graph:
        """Convert the folder or file; save a function to a folder first."""
        if not isinstance(request.source, str):
            return _load_function(request)
        path = Path(request.source)
        return _convert(request, path, "saved_model" if path.is_dir() else "graph_def", self.purpose)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of the file or folder and the versions of the converter."""
        return _fingerprint(request, self.purpose)


def _convert(request: ModelRequest, path: Path, kind: str, purpose: str, folder: Path | None = None) -> Graph:
    task = task_of(request, _ENVIRONMENT, kind, path)
    name = path.name if folder is None else type(request.source).__name__
    return run_converter(_ENVIRONMENT, name, purpose, task, request, folder=folder)


def _load_object(request: ModelRequest) -> Graph:
    """Convert a Keras model object: save it, then convert the file."""
    need_environment(_ENVIRONMENT, KerasFrontend.purpose)
    with private_folder() as folder:
        path = folder / "given.keras"
        try:
            request.source.save(str(path))
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"The Keras model cannot be saved, so it cannot be read: {type(error).__name__}: {reason}"
            ) from error
        return _convert(request, path, "keras", KerasFrontend.purpose, folder)


def _load_function(request: ModelRequest) -> Graph:
    """Convert a concrete function: save it as a SavedModel, then convert the folder."""
    need_environment(_ENVIRONMENT, TensorFlowFrontend.purpose)
    from importlib import import_module

    tf = import_module("tensorflow")  # it is installed: the object comes from it
    with private_folder() as folder:
        path = folder / "given"
        module = tf.Module()
        module.function = request.source
        # a SavedModel stores only the variables that its module tracks
        module.tracked_variables = list(request.source.variables)
        try:
            tf.saved_model.save(module, str(path), signatures=request.source)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(f"The function cannot be saved, so it cannot be read: {reason}") from error
        return _convert(request, path, "saved_model", TensorFlowFrontend.purpose, folder)


def _fingerprint(request: ModelRequest, purpose: str) -> str | None:
    """The content of a source and the versions of the converter; None for objects."""
    if not isinstance(request.source, str):
        return None
    if is_python(request.source):
        return fingerprint_python(request, _ENVIRONMENT, purpose)
    path = Path(request.source)
    versions = need_environment(_ENVIRONMENT, purpose).versions
    return f"{path.name} {digest_files(path)} {versions} {request.trust}"

"""Frontends: reads functions of JAX and modules of Flax. A separate process converts them with jax2onnx."""

from foretell.errors import InputError, MissingExtraError, ModelError
from foretell.frontends.converted.converter import private_folder, run_converter, task_of
from foretell.frontends.converted.environments import find_environment
from foretell.frontends.converted.jax_objects import FILE, write_object
from foretell.frontends.converted.python_foreign import fingerprint_python, load_python
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.optional import require

_PURPOSE = "Reading JAX functions"


class JaxFrontend:
    """A function or Flax module object with ``input_shape``, or ``net.py:build``, which returns one."""

    def load(self, request: ModelRequest) -> Graph:
        """Convert the function with an open batch; write an object to a file first."""
        return load_python(request, "jax", _PURPOSE) if isinstance(request.source, str) else _load_object(request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """For ``net.py:build`` the Python files of its folder; None for an object, whose content cannot be hashed."""
        return fingerprint_python(request, "jax", _PURPOSE) if isinstance(request.source, str) else None


def _load_object(request: ModelRequest) -> Graph:
    """Convert a function or module object of the running program."""
    name = str(getattr(request.source, "__name__", None) or type(request.source).__name__)
    require("cloudpickle", extra="jax", purpose=_PURPOSE)
    # the running Python has the versions of JAX that the object was made with, so it is the better choice
    environment = find_environment("jax", running_first=True)
    if environment is None:
        raise MissingExtraError(
            f"{_PURPOSE} needs jax2onnx: pip install 'foretell[jax]', or foretell frontends install jax"
        )
    if not request.inputs:
        raise InputError(f"The inputs of {name} are not known. Give them, without the batch: input_shape=(224, 224, 3)")
    with private_folder() as folder:
        try:
            details = write_object(request.source, folder, _PURPOSE, own=environment.own)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"{name} cannot be sent to the converter's process: {type(error).__name__}: {reason}. "
                "Build it in a function of a file instead, and give net.py:build"
            ) from error
        # this is the caller's own code: it may run, and keeps its home folder
        task = task_of(request, "jax", "object", folder / FILE) | details | {"trust": True}
        return run_converter("jax", name, _PURPOSE, task, request, folder=folder, environment=environment)

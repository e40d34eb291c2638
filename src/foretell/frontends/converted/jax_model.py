"""frontends: functions of JAX and modules of Flax → Graph, converted by jax2onnx in a process of its own."""

from foretell.errors import InputError, MissingExtraError, ModelError
from foretell.frontends.converted.converter import graph_from_converted, private_folder, run_converter, task_of
from foretell.frontends.converted.environments import find_environment
from foretell.frontends.converted.jax_objects import FILE, write_object
from foretell.frontends.converted.python_foreign import fingerprint_python, load_python
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.optional import require

_PURPOSE = "Reading JAX functions"


class JaxFrontend:
    """A function or a Flax module of the running program, with ``input_shape``; ``net.py:build`` that returns one."""

    def load(self, request: ModelRequest) -> Graph:
        """Convert the function with its batch left open; an object is written to a file first."""
        return load_python(request, "jax", _PURPOSE) if isinstance(request.source, str) else _load_object(request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """Of ``net.py:build`` all Python files of its folder; a function has no content to tell it by."""
        return fingerprint_python(request, "jax", _PURPOSE) if isinstance(request.source, str) else None


def _load_object(request: ModelRequest) -> Graph:
    name = str(getattr(request.source, "__name__", None) or type(request.source).__name__)
    require("cloudpickle", extra="jax", purpose=_PURPOSE)
    # the running Python has the very versions that the object is made of: it is the better one, where it can convert
    environment = find_environment("jax", running_first=True)
    if environment is None:
        raise MissingExtraError(
            f"{_PURPOSE} needs jax2onnx: pip install 'foretell[jax]', or foretell frontends install jax"
        )
    if not request.inputs:
        raise InputError(f"The inputs of {name} are not known. Give them, without the batch: input_shape=(224, 224, 3)")
    with private_folder() as folder:
        try:
            told = write_object(request.source, folder, _PURPOSE, own=environment.own)
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
            raise ModelError(
                f"{name} cannot be handed to the converter's process: {type(error).__name__}: {reason}. "
                "Make it in a function of a file and give that: net.py:build"
            ) from error
        # the caller's own code: it needs no trust, and keeps its home
        task = task_of(request, "jax", "object", folder / FILE) | told | {"trust": True}
        converted = run_converter("jax", name, _PURPOSE, task, folder=folder, environment=environment)
        return graph_from_converted(converted, request, name)

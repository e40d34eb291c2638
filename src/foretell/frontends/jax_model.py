"""frontends: functions of JAX and modules of Flax → Graph, converted by jax2onnx.

A function of the running program is converted in it: a function cannot be handed to another process. What
``net.py:build`` returns is made and converted in a process of its own.
"""

from typing import Any

from foretell.errors import InputError, ModelError
from foretell.frontends.converter import Converted
from foretell.frontends.converter_worker import Refusal, strip_weights
from foretell.frontends.jax_worker import convert_function
from foretell.frontends.normalise import graph_from_converted
from foretell.frontends.python_foreign import fingerprint_python, load_python
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph
from foretell.optional import require

_PURPOSE = "Reading JAX functions"


class JaxFrontend:
    """A function or a Flax module of the running program, with ``input_shape``; ``net.py:build`` that returns one."""

    def load(self, request: ModelRequest) -> Graph:
        """Convert the function with its batch left open."""
        if isinstance(request.source, str):
            return load_python(request, "jax", _PURPOSE)
        name = getattr(request.source, "__name__", None) or type(request.source).__name__
        require("jax2onnx", extra="jax", purpose=_PURPOSE)
        given = [[spec.name, list(spec.shape), spec.dtype] for spec in request.inputs]
        if not given:
            raise InputError(
                f"The inputs of {name} are not known. Give them, without the batch: input_shape=(224, 224, 3)"
            )
        try:
            proto: Any = convert_function(request.source, given, None, Refusal)
        except Exception as error:
            reason = " ".join(str(error).split())[:300]
            raise ModelError(f"{name} cannot be converted: {type(error).__name__}: {reason}") from error
        strip_weights(proto.graph)
        return graph_from_converted(Converted(proto), request, str(name))

    def fingerprint(self, request: ModelRequest) -> str | None:
        """Of ``net.py:build`` all Python files of its folder; a function has no content to tell it by."""
        return fingerprint_python(request, "jax", _PURPOSE) if isinstance(request.source, str) else None

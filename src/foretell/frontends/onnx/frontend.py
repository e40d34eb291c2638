"""Frontends: ONNX models of any opset that the installed onnx knows."""

from importlib import metadata
from pathlib import Path

from foretell.frontends.budget import MAX_ONNX_BYTES, digest_file
from foretell.frontends.cache import CONVERSION
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph


class OnnxFrontend:
    """Reads ONNX files and ``ModelProto`` objects.

    The library onnx is imported in ``load`` only: a model whose graph is cached does not need it, and its import takes
    longer than a prediction.
    """

    def load(self, request: ModelRequest) -> Graph:
        """Read and convert the model."""
        from foretell.frontends.onnx.file import read_model

        return read_model(request)

    def fingerprint(self, request: ModelRequest) -> str | None:
        """The content of the file, and the versions of onnx and of the conversion. A model in memory has none."""
        if not isinstance(request.source, str):
            return None
        path = Path(request.source)
        digest = digest_file(path, MAX_ONNX_BYTES, "an ONNX file")
        return f"{path.name} {digest} onnx {metadata.version('onnx')} conversion {CONVERSION}"

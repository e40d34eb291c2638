"""Models of other frameworks for tests: converted ones as text, converters that misbehave, tiny real ones on disk."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from foretell.frontends.converted.converter import Converted
from foretell.frontends.converted.environments import find_environment
from foretell.frontends.converted.keras_worker import inputs_to_weights
from foretell.frontends.normalise.pipeline import normalise_converted
from foretell.frontends.onnx.file import graph_from_proto
from foretell.frontends.request import ModelRequest
from foretell.graph import Graph

FRAMEWORKS = {"keras": "keras", "tensorflow": "keras", "paddle": "paddle", "jax": "jax"}  # front-end → environment
KERAS = """
import keras
from keras import layers
entry = keras.Input((16, 16, 3), name="image")
x = layers.Conv2D(8, 3, padding="same", use_bias=False)(entry)
x = layers.Activation("swish")(layers.BatchNormalization()(x))
x = layers.Activation("gelu")(layers.LayerNormalization()(layers.Conv2D(8, 1)(x)))
x = layers.Dense(4)(layers.Flatten()(x))
model = keras.Model(entry, x)
"""
PADDLE = """
import paddle
from paddle import nn
class Net(nn.Layer):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2D(3, 8, 3, padding=1, bias_attr=False), nn.BatchNorm2D(8)
        self.point, self.layer, self.head = nn.Conv2D(8, 8, 1), nn.LayerNorm(8), nn.Linear(2048, 4)
    def forward(self, x):
        x = self.point(nn.functional.silu(self.norm(self.conv(x)))).transpose([0, 2, 3, 1])
        return self.head(nn.functional.gelu(self.layer(x)).flatten(1))
"""
JAX = """
from flax import nnx
class Net(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 8, (3, 3), use_bias=False, rngs=rngs)
        self.norm = nnx.BatchNorm(8, use_running_average=True, rngs=rngs)
        self.point, self.layer = nnx.Conv(8, 8, (1, 1), rngs=rngs), nnx.LayerNorm(8, rngs=rngs)
        self.head = nnx.Linear(2048, 4, rngs=rngs)
    def __call__(self, x):
        x = nnx.gelu(self.layer(self.point(nnx.silu(self.norm(self.conv(x))))), approximate=False)
        return self.head(x.reshape(x.shape[0], -1))
def build():
    return Net(nnx.Rngs(0))
"""
PARAMETERS = 8 * 27 + 2 * 8 + 8 * 8 + 8 + 2 * 8 + 2048 * 4 + 4  # of each of the three
MACS = 256 * (8 * 27 + 8 * 8) + 2048 * 4


def read(text: str, weights: Mapping[str, str], buffers: frozenset[str] = frozenset()) -> Graph:
    """The normalised graph of a converted model: ONNX as text, weights by name with their types ("float[4]")."""
    return normalise_converted(read_plainly(text, weights, buffers))


def read_plainly(text: str, weights: Mapping[str, str], buffers: frozenset[str] = frozenset()) -> Graph:
    """The graph as the ONNX path reads it."""
    from foretell.frontends.normalise.pipeline import mark_buffers

    return mark_buffers(graph_from_proto(proto(text, weights).proto, ModelRequest(None), "m"), buffers)


def proto(text: str, weights: Mapping[str, str]) -> Converted:
    import onnx.parser

    head, _, rest = text.strip().partition(")")
    listed = "".join(f", {kind} {name}" for name, kind in weights.items())
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 20]> m {head}{listed}){rest}')
    inputs_to_weights(model.graph, {name: name for name in weights})
    return Converted(model)


def counts(graph: Graph) -> dict[str, int]:
    return dict(sorted(graph.operator_counts.items()))


def fake_environment(folder: Path, body: str, framework: str = "keras") -> None:
    """An environment whose Python does not convert, but what ``body`` says; ``folder`` and ``task`` are there."""
    python = folder / framework / "bin" / "python"
    python.parent.mkdir(parents=True)
    lines = [f"#!{sys.executable}", "import json, os, signal, subprocess, sys, time", "folder = sys.argv[-1]"]
    lines += ["task = json.load(open(folder + '/task.json'))", body]
    python.write_text("\n".join(lines))
    python.chmod(0o755)
    (folder / framework / "foretell.json").write_text(json.dumps({"versions": "none 0.0"}))


def keras_file(path: Path, config: Any) -> Path:
    """A zip that looks like a Keras model."""
    import zipfile

    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("config.json", json.dumps(config))
        archive.writestr("metadata.json", "{}")
        archive.writestr("model.weights.h5", b"")
    return path


def make(name: str, folder: Path) -> str:
    """A tiny real model for a front-end, made by its framework; returns its path."""
    if name == "jax":
        (folder / "net.py").write_text(JAX)
        return f"{folder / 'net.py'}:build"
    scripts = {
        "keras": KERAS + "model.save('m.keras')",
        "tensorflow": KERAS + "model.export('saved', verbose=False)",
        "paddle": PADDLE
        + "net = Net(); net.eval()\n"
        + "spec = paddle.static.InputSpec([None, 3, 16, 16], 'float32', 'image')\n"
        + "paddle.jit.save(net, 'net', input_spec=[spec])",
    }
    run_python(FRAMEWORKS[name], scripts[name], folder)
    return str(folder / {"keras": "m.keras", "tensorflow": "saved", "paddle": "net.json"}[name])


def run_python(framework: str, code: str, folder: Path, **variables: str) -> str:
    """Run code with the Python of a framework's environment; returns what it printed."""
    environment = find_environment(framework)
    assert environment is not None
    script = folder / "script_of_the_test.py"  # Paddle reads the source of what it converts
    script.write_text(code)
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1", "KERAS_HOME": str(folder), "HOME": str(folder)}
    done = subprocess.run(
        [str(environment.python), str(script)],
        cwd=folder,
        env={**os.environ, **quiet, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout

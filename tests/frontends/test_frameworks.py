"""Real models of real frameworks, where ``foretell frontends install`` has made an environment for them."""

from pathlib import Path

import pytest

from command_line import run
from converted_models import FRAMEWORKS, KERAS, MACS, PADDLE, PARAMETERS, counts, make, run_python
from foretell.errors import ModelError, UntrustedModelError
from foretell.frontends.converter_environments import find_environment
from foretell.graph import graph_costs
from foretell.workflows.predict import load_graph

pytestmark = pytest.mark.slow
SOURCE = str(Path(__file__).parents[2] / "src")
LAMBDA = "import keras\nkeras.Sequential([keras.Input((8,)), keras.layers.Lambda(lambda x: x * 2)]).save('m.keras')"
CUSTOM = """
import keras
class Mine(keras.layers.Layer):
    def call(self, x): return x + 1
keras.Sequential([keras.Input((8,)), Mine()]).save('m.keras')
"""
FROZEN = (
    KERAS
    + """
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2 as freeze
model.trainable = True
for variable in model.variables:
    variable.assign(tf.random.uniform(variable.shape, 0.1, 0.9))
function = tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec((None, 16, 16, 3)))
open('frozen.pb', 'wb').write(freeze(function).graph.as_graph_def().SerializeToString())
"""
)


def need(framework: str) -> None:
    if find_environment(framework) is None:
        pytest.skip(f"foretell frontends install {framework}")


@pytest.fixture(params=list(FRAMEWORKS))
def name(request: pytest.FixtureRequest) -> str:
    need(FRAMEWORKS[request.param])
    return str(request.param)


def test_one_network_is_one_graph_in_every_framework(name: str, tmp_path: Path) -> None:
    inputs = "16x16x3" if name == "jax" else None
    graph = load_graph(make(name, tmp_path), input_shape=inputs, trust=name == "jax", batch_size=3)
    assert graph.parameter_count == PARAMETERS
    assert graph_costs(graph).total.macs == 3 * MACS
    found = counts(graph)
    assert {op: n for op, n in found.items() if op not in ("Transpose", "Reshape", "Flatten")} == {
        "BatchNormalization": 1,
        "Conv": 2,
        "Gelu": 1,
        "Gemm": 1,
        "LayerNormalization": 1,
        "Silu": 1,
    }
    assert graph.tensors[graph.inputs[0]].shape == (3, 3, 16, 16)


def test_other_files_of_tensorflow(tmp_path: Path) -> None:
    need("keras")
    run_python("keras", KERAS + "model.save('m.h5')", tmp_path)
    assert load_graph(tmp_path / "m.h5").parameter_count == PARAMETERS
    run_python("keras", FROZEN, tmp_path)
    assert graph_costs(load_graph(tmp_path / "frozen.pb")).total.macs == MACS


def test_objects_of_the_running_program(tmp_path: Path) -> None:
    need("keras")
    code = (
        KERAS
        + """
import foretell, tensorflow as tf
print(foretell.load_graph(model).parameter_count)
function = tf.function(lambda x: model(x)).get_concrete_function(tf.TensorSpec((None, 16, 16, 3), name="image"))
print(foretell.load_graph(function).parameter_count)
"""
    )
    shown = run_python("keras", code, tmp_path, PYTHONPATH=SOURCE).split()
    assert shown[-2:] == [str(PARAMETERS)] * 2
    assert not list(tmp_path.glob("foretell-convert-*"))


def test_functions_of_the_running_program(tmp_path: Path) -> None:
    need("jax")
    code = "import foretell, jax.numpy as jnp\nw = jnp.ones((8, 4))\n"
    code += "print(foretell.load_graph(lambda x: jnp.tanh(x @ w), input_shape='8').parameter_count)"
    assert run_python("jax", code, tmp_path, PYTHONPATH=SOURCE).split()[-1] == "32"


def test_code_in_a_file_does_not_run(tmp_path: Path) -> None:
    need("keras")
    run_python("keras", LAMBDA, tmp_path)
    with pytest.raises(UntrustedModelError, match="a Lambda layer"):
        load_graph(tmp_path / "m.keras")
    assert counts(load_graph(tmp_path / "m.keras", trust=True)) == {"Mul": 1}
    run_python("keras", CUSTOM, tmp_path)
    with pytest.raises(ModelError, match="custom object"):
        load_graph(tmp_path / "m.keras")


def test_operators_that_reach_files_ask_for_trust(tmp_path: Path) -> None:
    need("keras")
    code = """
import tensorflow as tf
class M(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec((None, 4))])
    def f(self, x):
        tf.io.write_file("here", "text")
        return x + 1
m = M()
tf.saved_model.save(m, "saved", signatures=m.f)
"""
    run_python("keras", code, tmp_path)
    with pytest.raises(UntrustedModelError, match="WriteFile"):
        load_graph(tmp_path / "saved")


def test_attention_and_recurrent_layers_of_paddle(tmp_path: Path) -> None:
    need("paddle")
    code = (
        PADDLE
        + """
class Words(nn.Layer):
    def __init__(self):
        super().__init__()
        self.cell, self.attend = nn.LSTM(16, 8), nn.MultiHeadAttention(16, 2)
    def forward(self, x):
        return self.cell(self.attend(x))[0]
spec = paddle.static.InputSpec([None, 6, 16], 'float32', 'x')
words = Words(); words.eval()
paddle.jit.save(words, 'words', input_spec=[spec])
"""
    )
    run_python("paddle", code, tmp_path)
    graph = load_graph(tmp_path / "words.json", batch_size=2)
    assert graph.parameter_count == 4 * (256 + 16) + 4 * 8 * (16 + 8) + 8 * 8
    found = counts(graph)
    assert (found["Attention"], found["LSTM"], found["Gemm"]) == (1, 1, 4)


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_a_file_that_is_cut_short_is_one_line(
    name: str, cut: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "jax":
        pytest.skip("has no file of its own")
    whole = Path(make(name, tmp_path))
    broken = whole / "saved_model.pb" if whole.is_dir() else whole
    content = broken.read_bytes()
    broken.write_bytes(content[: int(cut * len(content))])
    shown = run(capsys, "inspect", str(whole), code=2)
    assert shown.startswith("foretell: ")
    assert shown.count("\n") == 1

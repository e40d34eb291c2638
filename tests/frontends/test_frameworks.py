"""Real models of real frameworks, where ``foretell frontends install`` has made an environment for them."""

from pathlib import Path

import pytest

from command_line import run
from converted_models import FRAMEWORKS, JAX, KERAS, MACS, PADDLE, PARAMETERS, counts, make, run_python
from foretell.errors import ModelError, UntrustedModelError
from foretell.frontends.converted.environments import find_environment
from foretell.graph import graph_costs
from foretell.workflows.workload import load_graph

pytestmark = pytest.mark.slow
OPERATORS = {"BatchNormalization": 1, "Conv": 2, "Gelu": 1, "Gemm": 1, "LayerNormalization": 1, "Silu": 1}
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
    assert {op: n for op, n in counts(graph).items() if op not in ("Transpose", "Reshape", "Flatten")} == OPERATORS
    assert graph.tensors[graph.inputs[0]].shape == (3, 3, 16, 16)


@pytest.mark.parametrize("framework", ["jax", "paddle"])
def test_a_file_that_its_user_has_converted_is_the_same_graph(framework: str, tmp_path: Path) -> None:
    need(framework)
    made = make(framework, tmp_path)
    if framework == "jax":
        code = (
            JAX
            + "import jax, jax2onnx\nnet = build(); net.eval()\nshape = jax.ShapeDtypeStruct(('B', 16, 16, 3), 'f')\n"
        )
        code += "jax2onnx.to_onnx(net, [shape], return_mode='file', output_path='m.onnx')"
    else:
        code = "import paddle2onnx; paddle2onnx.export('net.json', 'net.pdiparams', 'm.onnx')"
    run_python(framework, code, tmp_path, POLYGRAPHY_AUTOINSTALL_DEPS="0")
    graph = load_graph(tmp_path / "m.onnx")
    direct = load_graph(made, input_shape="16x16x3" if framework == "jax" else None, trust=framework == "jax")
    assert graph.parameter_count == PARAMETERS
    assert graph_costs(graph).total == graph_costs(direct).total
    assert counts(graph) == counts(direct)


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


OBJECTS = """
import functools, os, time
import foretell, jax, jax.numpy as jnp
from foretell.errors import ForetellError
def read(source, shape="8"):
    try:
        print(foretell.load_graph(source, input_shape=shape).parameter_count, flush=True)
    except ForetellError as error:
        print(type(error).__name__, error, flush=True)
w, HERE = jnp.ones((8, 4)), os.getcwd()
"""
WRAPPED = """
def closure(weights):
    @jax.custom_vjp
    def twice(x):
        return 2 * x
    twice.defvjp(lambda x: (twice(x), None), lambda _, g: (2 * g,))
    return lambda x: twice(jax.nn.relu(x @ weights))
read(lambda x: jnp.tanh(x @ w))
read(closure(jnp.ones((8, 5))))
read(functools.partial(lambda weights, x: x @ weights, w))
read(jax.jit(jax.checkpoint(lambda x: x @ w)))
"""
DANGEROUS = """
def note():
    open(os.path.join(HERE, "pids"), "a").write(f"{os.getpid()} ")
def sleeps(x):
    note()
    time.sleep(600)
def takes(x):
    note()
    held = b"x" * (4 << 30)
def dies(x):
    note()
    os.abort()
read(takes)
read(dies)
os.environ["FORETELL_CONVERTER_TIMEOUT_S"] = "40"
read(sleeps)
import threading
lock = threading.Lock()
read(lambda x: lock)
"""


def test_functions_of_the_running_program(tmp_path: Path) -> None:
    need("jax")
    shown = run_python("jax", OBJECTS + WRAPPED, tmp_path, PYTHONPATH=SOURCE).split()
    assert shown == ["32", "40", "32", "32"]


def test_a_module_of_the_running_program_is_not_changed(tmp_path: Path) -> None:
    need("jax")
    code = OBJECTS + JAX + "net = build()\nnet.drop = nnx.Dropout(0.5, rngs=nnx.Rngs(1))\nnet.train()\n"
    code += (
        "read(net, '16x16x3')\nimport sys; sys.modules['jax2onnx'] = None  # as where an own environment alone has it\n"
    )
    code += "read(nnx.jit(net), '16x16x3')\nprint(net.drop.deterministic)\n"
    shown = run_python("jax", code, tmp_path, PYTHONPATH=SOURCE, TMPDIR=str(tmp_path)).split()
    assert shown == [str(PARAMETERS), str(PARAMETERS), "False"]
    assert not list(tmp_path.glob("foretell-convert-*"))


def test_a_function_that_harms_its_process_does_not_harm_ours(tmp_path: Path) -> None:
    need("jax")
    limits = {"FORETELL_CONVERTER_MEMORY_MIB": "2500", "TMPDIR": str(tmp_path)}
    shown = run_python("jax", OBJECTS + DANGEROUS, tmp_path, PYTHONPATH=SOURCE, **limits).splitlines()
    assert len(shown) == 4
    assert shown[0].startswith("ModelError Converting takes took more than 2500 MiB of memory and was stopped.")
    assert shown[1].startswith("ModelError The converter of dies was killed by SIGABRT.")
    assert shown[2].startswith("ModelError Converting sleeps took longer than 40 s and was stopped.")
    assert shown[3].startswith(
        "ModelError <lambda> cannot be sent to the converter's process: TypeError: cannot pickle"
    )
    pids = (tmp_path / "pids").read_text().split()
    assert len(pids) == 3
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    assert not list(tmp_path.glob("foretell-convert-*"))


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
    operators = counts(graph)
    assert (operators["Attention"], operators["LSTM"], operators["Gemm"]) == (1, 1, 4)


@pytest.mark.parametrize("cut", [0.3, 0.9])
def test_a_file_that_is_cut_short_is_one_line(
    name: str, cut: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "jax":
        pytest.skip("has no file of its own")
    file_path = Path(make(name, tmp_path))
    broken = file_path / "saved_model.pb" if file_path.is_dir() else file_path
    content = broken.read_bytes()
    broken.write_bytes(content[: int(cut * len(content))])
    shown = run(capsys, "inspect", str(file_path), code=2)
    assert shown.startswith("foretell: ")
    assert shown.count("\n") == 1

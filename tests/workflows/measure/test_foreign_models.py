"""Models that no zoo has, built as the child builds them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

torch = pytest.importorskip("torch")

from foretell.errors import InputError, ModelError
from foretell.optional import available
from foretell.profiling.single import Request
from foretell.profiling.workload import Workload
from foretell.testing import tiny_onnx
from foretell.workflows.measure.foreign_models import build_huggingface, build_onnx, build_python

NET = """
import torch
def bare():
    return torch.nn.Linear(8, 4)
def with_example():
    return torch.nn.Embedding(5, 2), torch.tensor([[4, 1], [3, 0], [2, 2]])
def named():
    return Two(), {"left": torch.ones(1, 8), "right": torch.ones(1, 8)}
class Two(torch.nn.Module):
    def forward(self, left, right):
        return left + right
def wrong():
    return 3
def broken():
    raise OSError("no weights")
"""


def inputs_of(source, batch=4, dtype=torch.float32):
    workload = Workload("net.py:build", batch, source.input_shape, "fp32")
    return source.built.make_inputs(workload, "cpu", dtype)


@pytest.fixture
def net(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(NET)
    return lambda name, *inputs: Request(f"{path}:{name}", inputs=inputs)


def test_inputs_come_from_the_command_line_or_from_examples(net):
    source = build_python(net("bare", "8"))
    assert inputs_of(source, dtype=torch.float16).args[0].shape == (4, 8)
    assert inputs_of(source, dtype=torch.float16).args[0].dtype is torch.float16
    example = build_python(net("with_example"))
    assert (example.input_shape, inputs_of(example).args[0].tolist()) == ((2,), [[4, 1], [3, 0], [2, 2], [4, 1]])
    assert dict(inputs_of(build_python(net("named"))).kwargs)["right"].shape == (4, 8)
    left, right = inputs_of(build_python(net("named", "left=8", "right=8:int64"))).kwargs
    assert (left[0], right[1].dtype) == ("left", torch.int64)


def test_errors_of_a_python_file_are_reported(net):
    with pytest.raises(InputError, match="--input"):
        build_python(net("bare"))
    with pytest.raises(ModelError, match="returned int"):
        build_python(net("wrong"))
    with pytest.raises(ModelError, match="OSError: no weights"):
        build_python(net("broken"))
    with pytest.raises(ModelError, match="bare"):
        build_python(net("absent"))


def convolution():
    """A convolution of images whose batch is open."""
    image, features = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("image", ["batch", 3, 8, 8]), ("features", ["batch", 4, 6, 6]))
    )
    weight = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "weight")
    node = helper.make_node("Conv", ["image", "weight"], ["features"])
    graph = helper.make_graph([node], "conv", [image], [features], [weight])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def test_an_onnx_file_is_left_to_its_runtime_and_gives_its_shape(tmp_path):
    (tmp_path / "conv.onnx").write_bytes(convolution().SerializeToString())
    request = Request(str(tmp_path / "conv.onnx"), batch_size=5, runtime="onnxruntime")
    source = build_onnx(request)
    assert (source.onnx_file, source.input_shape, source.built) == (request.model, (3, 8, 8), None)
    assert source.feeds == {"image": (5, 3, 8, 8)}
    with pytest.raises(InputError, match="'image' is"):
        build_onnx(replace(request, inputs=("3x9x9",)))


def test_a_damaged_onnx_file_is_an_error(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"nothing that anyone could read")
    with pytest.raises(ModelError, match=r"ONNX Runtime cannot load m\.onnx"):
        build_onnx(Request(str(tmp_path / "m.onnx")))
    (tmp_path / "m.onnx").write_bytes(tiny_onnx().SerializeToString())
    with pytest.raises(ModelError, match=r"The weights of m\.onnx are in another file, which is missing"):
        build_onnx(Request(str(tmp_path / "m.onnx")))


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "config.json"
    values = {"model_type": "gpt2", "n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 50, "n_positions": 64}
    path.write_text(json.dumps(values | {"architectures": ["GPT2LMHeadModel"]}))
    return str(path)


@pytest.mark.skipif(not available("transformers"), reason="needs transformers")
def test_a_transformer_runs_in_every_mode(config):
    from foretell.profiling.skeleton import Weights
    from foretell.profiling.steps import make_step

    for mode, shape in (("inference", (16,)), ("prefill", (16,)), ("decode", (16,)), ("training", (16,))):
        source = build_huggingface(Request(config, batch_size=2, inputs=("16",), mode=mode))
        assert (source.input_shape, source.family) == (shape, "hf-gpt2")
        Weights(source.built.model, cast_buffers=False).place("cpu", torch.float32)
        optimizer = "sgd" if mode == "training" else ""
        step = make_step(source.built, Workload("x:y", 2, source.input_shape, "fp32", mode, optimizer), "cpu")
        output = step.run()
        length = {"inference": 16, "prefill": 1, "decode": 1}.get(mode)
        assert torch.isfinite(getattr(output, "logits", output)).all()
        assert length is None or output.logits.shape == (2, length, 50)


@pytest.mark.skipif(not available("transformers"), reason="needs transformers")
def test_only_what_generates_has_a_prefill(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 12, "vocab_size": 30}))
    with pytest.raises(InputError, match="decoder-only"):
        build_huggingface(Request(str(path), mode="prefill"))

import pytest

torch = pytest.importorskip("torch")

from foretell.errors import InputError
from foretell.profiling.runtimes.onnx_runtime import (
    input_shapes,
    load_converter,
    make_session_step,
    parse_profile,
    trace_session,
)
from foretell.profiling.source import Source
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.registry import build


@pytest.fixture
def source(tmp_path):
    """An ONNX file whose batch is open: relu over rows of four."""
    onnx = pytest.importorskip("onnx")
    shapes = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["batch", "width"]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", shapes[:1], shapes[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
    path = tmp_path / "relu.onnx"
    onnx.save(model, str(path))
    return Source(None, (4,), onnx_file=str(path), feeds={"x": (3, 4)})


def save_sum(folder, kind, width="width"):
    """An ONNX file with two inputs: rows added to rows."""
    onnx = pytest.importorskip("onnx")
    shapes = [
        onnx.helper.make_tensor_value_info(name, getattr(onnx.TensorProto, kind), ["batch", width]) for name in "abc"
    ]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["a", "b"], ["c"])], "g", shapes[:2], shapes[2:])
    path = folder / "sum.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), str(path))
    return str(path)


def test_a_file_runs_at_the_batch_and_shape_asked_for(source, tmp_path):
    step = make_session_step(source, Workload("relu.onnx", 3, (4,), "fp32"), tmp_path, 1)
    (output,) = step.run()
    assert output.shape == (3, 4)
    assert output.min() >= 0
    assert trace_session(step, tmp_path)["op"] == ["Relu"]


def test_what_the_file_leaves_open_has_to_be_given(source, tmp_path):
    with pytest.raises(InputError, match="--input"):
        input_shapes(source.onnx_file, Workload("relu.onnx", 3, (), "fp32"), {})
    with pytest.raises(InputError, match="inference"):
        make_session_step(source, Workload("relu.onnx", 3, (4,), "fp32", "training"), tmp_path, 1)


def test_inputs_of_a_file_are_found_by_name_and_checked(tmp_path):
    path = save_sum(tmp_path, "FLOAT")
    shapes = input_shapes(path, Workload(path, 3, (), "fp32"), {"a": (4,), "b": (4,)})
    assert shapes == {"a": (3, 4), "b": (3, 4)}
    assert input_shapes(path, Workload(path, 3, (), "fp32"), {None: (4,)}) == shapes
    for given_shapes, words in (
        ({"a": (4,)}, "'b' is open"),
        ({"c": (4,), "a": (4,), "b": (4,)}, "no input 'c'.*Choose from: a, b"),
        ({"a": (4, 4), "b": (4,)}, "'a' is batchxwidth"),
    ):
        with pytest.raises(InputError, match=words):
            input_shapes(path, Workload(path, 3, (), "fp32"), given_shapes)
    with pytest.raises(InputError, match="computes in fp32: use --dtype fp32"):
        input_shapes(path, Workload(path, 3, (), "fp16"), {None: (4,)})


def test_a_fixed_size_is_not_silently_kept(tmp_path):
    path = save_sum(tmp_path, "FLOAT", width=8)
    assert input_shapes(path, Workload(path, 3, (), "fp32"), {}) == {"a": (3, 8), "b": (3, 8)}
    with pytest.raises(InputError, match="'a' is batchx8"):
        input_shapes(path, Workload(path, 3, (), "fp32"), {None: (4,)})


def test_a_torch_model_is_converted(tmp_path):
    pytest.importorskip("onnxscript")
    spec = "synthetic:mlp?act=relu&widths=8-4-2"
    step = make_session_step(Source(build(spec), (8,)), Workload(spec, 2, (8,), "fp32"), tmp_path, 1)
    assert step.run()[0].shape == (2, 2)


def test_the_converter_is_loaded_by_converting_one_layer(monkeypatch):
    pytest.importorskip("onnxscript")
    converted = []
    monkeypatch.setattr(torch.onnx, "export", lambda model, *_, **options: converted.append((model, options)))
    load_converter()
    ((model, options),) = converted
    assert isinstance(model, torch.nn.Linear)
    assert options["dynamo"]


def test_a_node_takes_the_median_of_its_runs_but_the_first():
    node = {"cat": "Node", "args": {"op_name": "Conv"}}
    events = [{"cat": "Session", "name": "model_run", "dur": 9}]
    for run in (90, 1, 7, 3):
        events += [{**node, "name": f"conv{number}_kernel_time", "dur": 10 * run + number} for number in (1, 2)]
    table = parse_profile(events, 4)
    assert (table["name"], table["duration_us"], table["op_index"]) == (["conv1", "conv2"], [31.0, 32.0], [0, 1])
    assert parse_profile(events[:3], 1)["duration_us"] == [901.0, 902.0]

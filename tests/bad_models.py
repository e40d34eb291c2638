"""Models that are wrong in one way, and how to run the command line on them; used by the tests of bad input."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from foretell.cli.main import main

Refuse = Callable[..., str]


def files_below(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*")}


def accept(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    with pytest.raises(SystemExit) as ended:
        main([*(str(a) for a in argv), "--json"])
    shown = capsys.readouterr()
    assert ended.value.code == 0, shown.err
    assert shown.err == ""
    return json.loads(shown.out)


def save(model: onnx.ModelProto, path: Path) -> Path:
    path.write_bytes(model.SerializeToString())
    return path


def tensor(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: tuple[onnx.TensorProto, ...] = (),
    infos: tuple[onnx.ValueInfoProto, ...] = (),
    domains: tuple[str, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "bad", inputs, outputs, list(weights), value_info=list(infos))
    opsets = [helper.make_opsetid("", 18), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def external(name: str, location: str, *shape: int) -> onnx.TensorProto:
    initializer = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    entry = initializer.external_data.add()
    entry.key, entry.value = "location", location
    return initializer


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('PWNED', 'w').close()",))


def relu(source: str, target: str, **more: Any) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=f"relu_{target}", **more)

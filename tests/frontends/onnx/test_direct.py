"""Shapes that are found without ONNX are those that ONNX infers; where ONNX refuses a node, nothing is found."""

import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from foretell.errors import ModelError
from foretell.frontends.onnx.direct import _RULES, direct_shape
from foretell.frontends.onnx.shapes import Shapes, read_attributes

RESNET = Path(__file__).parents[3] / "examples" / "resnet50.onnx"
ROUNDS = 150  # random nodes of each operator


def random_node(op: str, opset: int, rng: random.Random) -> tuple[onnx.NodeProto, Shapes]:
    """A node with random operands and attributes, some of which do not fit, and what is known of its operands."""
    shapes = Shapes({"": opset}, {})
    rank = rng.choice([1, 2, 3, 4, 4, 4, 5])
    image = tuple(rng.choice([1, 2, 3, 4, 6, 8, 9]) for _ in range(rank))
    axes, attributes, operands = max(rank - 2, 1), {}, [image]
    if op in ("Conv", "MaxPool", "AveragePool"):
        kernel = [rng.randint(1, 4) for _ in range(axes)]
        given = {
            "kernel_shape": kernel,
            "strides": [rng.randint(1, 3) for _ in range(axes)],
            "dilations": [rng.randint(1, 2) for _ in range(axes)],
            "pads": [rng.randint(0, 2) for _ in range(2 * axes)],
        }
        for name, values in given.items():
            if rng.random() < 0.6 or (name == "kernel_shape" and op != "Conv"):
                attributes[name] = values if rng.random() < 0.95 else [*values, 1]
        if rng.random() < 0.1:
            attributes["auto_pad"] = rng.choice(["SAME_UPPER", "VALID", "NOTSET"])
        if op != "Conv" and rng.random() < 0.2:
            attributes["ceil_mode"] = 1
        if op == "Conv":
            channels = image[1] if rank > 1 and rng.random() < 0.9 else 5
            operands.append((rng.choice([2, 4]), channels, *kernel))
    elif op in ("Add", "Sub", "Mul", "Div"):
        cut = rng.randint(0, rank)
        operands.append(tuple(rng.choice([size, size, size, 1, 7]) for size in image[cut:]))
    elif op == "BatchNormalization":
        channels = image[1] if rank > 1 and rng.random() < 0.9 else 11
        operands += [(channels,)] * 4
    elif op == "Gemm":
        attributes = {name: rng.randint(0, 1) for name in ("transA", "transB")}
        operands.append(tuple(rng.sample(image, min(rank, 2))))
    elif op == "Flatten":
        attributes["axis"] = rng.randint(-1, rank + 1)
    elif op == "Reshape":
        whole = int(np.prod(image))
        target = rng.choice([[-1], [0, -1], [image[0], -1], [whole], [0] * rank, [2, -1], [0, 0, -1, 1], list(image)])
        shapes.keep("in1", np.array(target, np.int64))
        operands.append((len(target),))
        attributes = {"allowzero": int(rng.random() < 0.4)}
    elif op == "ReduceMean":
        attributes = {"keepdims": rng.randint(0, 1)}
        chosen = [rng.choice([axis, axis - rank]) for axis in rng.sample(range(rank), rng.randint(1, rank))]
        if rng.random() < 0.1:
            chosen.append(rank)
        if opset >= 18:
            shapes.keep("in1", np.array(chosen, np.int64))
            operands.append((len(chosen),))
        else:
            attributes["axes"] = chosen
    names = [f"in{number}" for number in range(len(operands))]
    for number, (name, shape) in enumerate(zip(names, operands, strict=True)):
        is_integer = number == 1 and op in ("Reshape", "ReduceMean")
        shapes.enter(name, shape, onnx.TensorProto.INT64 if is_integer else onnx.TensorProto.FLOAT)
    return helper.make_node(op, names, ["out"], **attributes), shapes


@pytest.mark.parametrize("op", sorted(_RULES))
def test_they_are_those_of_onnx(op: str) -> None:
    rng, found = random.Random(op), 0
    for _ in range(ROUNDS):
        node, shapes = random_node(op, rng.choice([14, 17, 18, 20]), rng)
        direct = shapes._directly(node, read_attributes(node))
        if direct is None:
            continue
        found += 1
        try:
            assert direct == shapes._by_onnx(node, {}), node
        except ModelError as error:  # pragma: no cover
            pytest.fail(f"ONNX refuses what was found directly: {error} {node}")
    assert found > ROUNDS // 20, "the rule answers some of them"


def test_what_is_unusual_is_left_to_onnx() -> None:
    image, weight = (2, 3, 8, 8), (4, 3, 3, 3)
    assert direct_shape("Conv", 20, {}, [image, weight], [None, None]) == (2, 4, 6, 6)
    assert direct_shape("Conv", 13, {}, [image, weight], [None, None]) is None, "an older opset"
    assert direct_shape("Conv", 20, {"auto_pad": "SAME_UPPER"}, [image, weight], [None, None]) is None
    assert direct_shape("Conv", 20, {}, [(2, 5, 8, 8), weight], [None, None]) is None, "other channels"
    assert direct_shape("Reshape", 20, {}, [image, (1,)], [None, None]) is None, "the shape is not known"
    assert direct_shape("Einsum", 20, {}, [image, image], [None, None]) is None, "it has no rule"
    assert direct_shape("Relu", 20, {}, [(0, 3)], [None]) is None, "an empty tensor"


def test_operands_of_two_types_are_left_to_onnx() -> None:
    node, shapes = helper.make_node("Add", ["a", "b"], ["c"]), Shapes({"": 20}, {})
    shapes.enter("a", (2,), onnx.TensorProto.FLOAT)
    shapes.enter("b", (2,), onnx.TensorProto.DOUBLE)
    assert shapes._directly(node, {}) is None


def test_a_model_of_such_operators_does_not_load_the_register_of_onnx() -> None:
    code = (
        "import onnx.defs\n"
        "def refuse(*_): raise AssertionError('the register was loaded')\n"
        "onnx.defs.get_schema = refuse\n"
        "import foretell\n"
        f"print(len(foretell.load_graph({str(RESNET)!r}, use_cache=False).nodes))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "175", done.stderr

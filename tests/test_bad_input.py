"""Bad input: one clear line on stderr, exit code 2, nothing on stdout, no file left behind, no foreign code run."""

import io
import json
import os
import pickle
import random
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError, EncodeError
from onnx import TensorProto, helper

from foretell.cli.main import main
from foretell.testing import tiny_onnx

Refuse = Callable[..., str]


def files_below(folder: Path) -> dict[str, int]:
    return {str(p.relative_to(folder)): p.stat().st_size for p in folder.rglob("*")}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in; cache and temporary files go below it as well."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("FORETELL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refuse(place: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Refuse]:
    """Run the command line and check that it refuses; returns its one line."""

    def run(*argv: object) -> str:
        before = files_below(place)
        with pytest.raises(SystemExit) as ended:
            main([str(a) for a in argv])
        shown = capsys.readouterr()
        assert ended.value.code == 2, shown.err
        assert shown.out == ""
        assert shown.err.startswith("foretell: ")
        assert shown.err.endswith("\n")
        assert shown.err.count("\n") == 1
        assert "Traceback" not in shown.err
        assert "Internal error" not in shown.err
        assert files_below(place) == before
        return shown.err

    yield run
    assert not (place / "PWNED").exists()


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
    found = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
    entry = found.external_data.add()
    entry.key, entry.value = "location", location
    return found


class Payload:
    """Creates a file when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("open('PWNED', 'w').close()",))


# ── files that are no models ──────────────────────────────────────────────────────────────────────────────────────────


def offsets(length: int) -> list[int]:
    return sorted({round(i * (length - 1) / 49) for i in range(50)})


def test_truncated_at_fifty_offsets(refuse: Refuse, place: Path) -> None:
    model = tiny_onnx()
    for i in range(20):  # long enough for fifty different cuts in all its parts
        model.graph.node.append(
            helper.make_node("Relu", ["y" if i == 0 else f"y{i}"], [f"y{i + 1}"], name=f"/more/{i}")
        )
    model.graph.output[0].name = "y20"
    whole = model.SerializeToString()
    cuts = offsets(len(whole))
    assert len(cuts) == 50
    for cut in cuts:
        path = place / "cut.onnx"
        path.write_bytes(whole[:cut])
        refuse("predict", path)


def test_truncated_example_at_fifty_offsets(refuse: Refuse, place: Path) -> None:
    example = Path(__file__).parents[1] / "examples" / "resnet50.onnx"
    if not example.exists():
        pytest.skip("the example is not there")
    whole = example.read_bytes()
    path = place / "cut.onnx"
    for cut in offsets(len(whole)):
        path.write_bytes(whole[:cut])
        refuse("inspect", path)


def test_truncated_inside_the_graph_at_every_byte_never_passes(refuse: Refuse, place: Path) -> None:
    """A graph cut between two fields can parse: it must still be refused."""
    model = tiny_onnx()
    content = model.graph.SerializeToString()
    parsed = 0
    for cut in range(len(content)):
        part = onnx.GraphProto()
        try:
            part.ParseFromString(content[:cut])
        except DecodeError:
            continue
        parsed += 1
        shorter = onnx.ModelProto()
        shorter.CopyFrom(model)
        shorter.graph.CopyFrom(part)
        refuse("inspect", save(shorter, place / "part.onnx"))
    assert parsed > 3


@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".pt", ".model"])
def test_random_bytes(refuse: Refuse, place: Path, suffix: str) -> None:
    for seed in range(8):
        path = place / f"noise{suffix}"
        path.write_bytes(random.Random(seed).randbytes(10 ** (seed % 4 + 1)))
        refuse("predict", path)


@pytest.mark.parametrize(
    "content", [b"", b"hello\n", b"{}", b"PK\x03\x04 not a zip", b"\x00" * 100, b"foretell-graph\nxx"]
)
@pytest.mark.parametrize("suffix", [".onnx", ".pt2", ".txt", ".json"])
def test_not_a_model(refuse: Refuse, place: Path, content: bytes, suffix: str) -> None:
    if suffix == ".json":
        pytest.importorskip("transformers")
    path = place / f"model{suffix}"
    path.write_bytes(content)
    refuse("predict", path)


def test_flipped_bits(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged file may still be a model; if it is not, it is refused as cleanly as any."""
    whole = bytearray(tiny_onnx(batch=2).SerializeToString())
    path = place / "flipped.onnx"
    generator = random.Random(7)
    for _ in range(120):
        damaged = bytearray(whole)
        for _ in range(generator.randint(1, 3)):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(path), "--json", "--no-cache"])
        shown = capsys.readouterr()
        assert ended.value.code in (0, 2), (shown.err, bytes(damaged))
        assert shown.err.count("\n") == (1 if ended.value.code else 0)


def test_a_folder_a_missing_file_and_odd_names(refuse: Refuse, place: Path) -> None:
    (place / "folder.onnx").mkdir()
    assert "config.json" in refuse("predict", place / "folder.onnx")
    assert "no file" in refuse("predict", place / "absent.onnx")
    refuse("predict", "")
    refuse("predict", "a\0b.onnx")
    refuse("predict", "x" * 5000)
    refuse("predict", "net.py")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_or_device_is_not_waited_for(refuse: Refuse, place: Path) -> None:
    os.mkfifo(place / "pipe.onnx")
    refuse("predict", place / "pipe.onnx")
    refuse("predict", "/dev/zero")


def test_an_unreadable_file(refuse: Refuse, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tiny_onnx(), place / "closed.onnx")
    path.chmod(0)
    if os.access(path, os.R_OK):  # root reads everything

        def denied(self: Path, *args: object, **kwargs: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(Path, "open", denied)
    assert "Permission denied" in refuse("predict", path)


# ── ONNX graphs that cannot be ────────────────────────────────────────────────────────────────────────────────────────


def relu(source: str, target: str, **more: Any) -> onnx.NodeProto:
    return helper.make_node("Relu", [source], [target], name=f"relu_{target}", **more)


BAD_GRAPHS = {
    "cycle": (
        model_of(
            [helper.make_node("Add", ["x", "b"], ["a"]), relu("a", "b")], [tensor("x", 1, 4)], [tensor("b", 1, 4)]
        ),
        "cycle",
    ),
    "own tail": (model_of([relu("a", "a")], [tensor("x", 1, 4)], [tensor("a", 1, 4)]), "cycle"),
    "nobody makes it": (model_of([relu("ghost", "y")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]), "nothing makes"),
    "output made by no node": (model_of([relu("x", "y")], [tensor("x", 1, 4)], [tensor("z", 1, 4)]), "made by no node"),
    "made twice": (model_of([relu("x", "y"), relu("x", "y")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]), "made twice"),
    "input made again": (model_of([relu("x", "x")], [tensor("x", 1, 4)], [tensor("x", 1, 4)]), "made twice"),
    "input twice": (model_of([relu("x", "y")], [tensor("x", 1, 4), tensor("x", 1, 4)], [tensor("y", 1, 4)]), "twice"),
    "weight twice": (
        model_of(
            [relu("x", "y")],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
            (external("w", "w.bin", 4), external("w", "w.bin", 4)),
        ),
        "twice",
    ),
    "no operators": (model_of([], [tensor("x", 1, 4)], [tensor("x", 1, 4)]), "no operators"),
    "no outputs": (model_of([relu("x", "y")], [tensor("x", 1, 4)], []), "no outputs"),
    "negative input": (model_of([relu("x", "y")], [tensor("x", 1, -4)], [tensor("y", 1, 4)]), "negative"),
    "negative weight": (
        model_of(
            [helper.make_node("Add", ["x", "w"], ["y"])],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
            (external("w", "w.bin", -4),),
        ),
        "negative",
    ),
    "huge input": (model_of([relu("x", "y")], [tensor("x", 1, 2**62)], [tensor("y", 1, 4)]), "impossible"),
    "huge input of many": (
        model_of([relu("x", "y")], [tensor("x", 2**31, 2**31, 2**31)], [tensor("y", 1, 4)]),
        "impossible",
    ),
    "huge weight": (
        model_of(
            [helper.make_node("MatMul", ["x", "w"], ["y"])],
            [tensor("x", 1, 4)],
            [],
            (external("w", "w.bin", 4, 2**62),),
        ),
        "",
    ),
    "huge outer product": (
        model_of(
            [helper.make_node("MatMul", ["x", "z"], ["y"])],
            [tensor("x", 2**30, 1), tensor("z", 1, 2**30)],
            [tensor("y", 1)],
        ),
        "impossible",
    ),
    "open dimension": (model_of([relu("x", "y")], [tensor("x", "batch", "length")], [tensor("y", 1, 4)]), "--input"),
    "no shape": (
        model_of([relu("x", "y")], [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)], [tensor("y", 1, 4)]),
        "--input",
    ),
    "shapes that do not fit": (
        model_of(
            [helper.make_node("MatMul", ["x", "z"], ["y"])], [tensor("x", 2, 3), tensor("z", 4, 5)], [tensor("y", 2, 5)]
        ),
        "does not fit",
    ),
    "shape from data": (
        model_of(
            [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Cast", ["i"], ["y"], to=1)],
            [tensor("x", 2, 3)],
            [tensor("y", "n")],
        ),
        "depends on data",
    ),
    "no inputs to a convolution": (
        model_of([helper.make_node("Conv", [], ["y"])], [tensor("x", 1, 4)], [tensor("y", 1, 4)]),
        "",
    ),
    "not a tensor": (
        model_of(
            [helper.make_node("SequenceAt", ["s", "i"], ["y"])],
            [
                helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None),
                helper.make_tensor_value_info("i", TensorProto.INT64, []),
            ],
            [tensor("y", 1)],
        ),
        "not a tensor",
    ),
    "unknown operator of ONNX": (
        model_of([helper.make_node("Frobnicate", ["x"], ["y"])], [tensor("x", 1, 4)], [tensor("y", 1, 4)]),
        "--allow-unknown",
    ),
    "unknown element type": (
        model_of([relu("x", "y")], [helper.make_tensor_value_info("x", 99, [1, 4])], [tensor("y", 1, 4)]),
        "element type",
    ),
    "attribute of no function": (
        model_of(
            [
                onnx.NodeProto(
                    op_type="Elu",
                    input=["x"],
                    output=["y"],
                    attribute=[onnx.AttributeProto(name="alpha", type=1, ref_attr_name="a")],
                )
            ],
            [tensor("x", 1, 4)],
            [tensor("y", 1, 4)],
        ),
        "function",
    ),
    "If without branches": (
        model_of(
            [helper.make_node("If", ["c"], ["y"])],
            [helper.make_tensor_value_info("c", TensorProto.BOOL, [])],
            [tensor("y", 1, 4)],
        ),
        "malformed",
    ),
}


@pytest.mark.parametrize("name", BAD_GRAPHS)
def test_a_graph_that_cannot_be(refuse: Refuse, place: Path, name: str) -> None:
    model, expected = BAD_GRAPHS[name]
    line = refuse("predict", save(model, place / "bad.onnx"))
    assert expected in line


def test_an_opset_of_the_future_and_no_opset(refuse: Refuse, place: Path) -> None:
    model = tiny_onnx()
    model.opset_import[0].version = 999
    assert "opset 999" in refuse("predict", save(model, place / "future.onnx"))
    del model.opset_import[:]
    refuse("predict", save(model, place / "none.onnx"))


def test_a_zero_dimension_is_an_open_one(refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save(model_of([relu("x", "y")], [tensor("x", 1, 0)], [tensor("y", 1, 4)]), place / "zero.onnx")
    assert "--input" in refuse("predict", path)
    assert accept(capsys, "inspect", path, "--input", "5", "--no-cache")["inputs"] == {"x": [1, 5]}


def test_a_huge_shape_made_by_arithmetic(refuse: Refuse, place: Path) -> None:
    for sizes in ([2**62, 4], [2**32, 2**32], [2**33, 2**31], [-5, 3]):
        weight = helper.make_tensor("s", TensorProto.INT64, [2], sizes)
        for op in ("Expand", "ConstantOfShape"):
            inputs = ["x", "s"] if op == "Expand" else ["s"]
            nodes = [helper.make_node(op, inputs, ["e"]), helper.make_node("Add", ["e", "x"], ["y"])]
            refuse(
                "predict",
                save(model_of(nodes, [tensor("x", 1, 1)], [tensor("y", 1, 1)], (weight,)), place / "huge.onnx"),
            )


def test_arithmetic_on_values_stays_small(place: Path, refuse: Refuse) -> None:
    """Broadcasting 4096 × 4096 × 4096 would take 512 GiB."""
    values = np.arange(4096, dtype=np.int64)
    weights = tuple(
        onnx.numpy_helper.from_array(values.reshape(shape), name)
        for name, shape in (("a", (-1, 1, 1)), ("b", (1, -1, 1)), ("c", (1, 1, -1)))
    )
    nodes = [helper.make_node("Max", ["a", "b", "c"], ["m"]), helper.make_node("Reshape", ["x", "m"], ["y"])]
    refuse("predict", save(model_of(nodes, [tensor("x", 1, 4)], [tensor("y", "n")], weights), place / "broadcast.onnx"))


# ── unknown operators ─────────────────────────────────────────────────────────────────────────────────────────────────


def unknown_operator(declared: bool, op: str = "Relu") -> onnx.ModelProto:
    nodes = [helper.make_node(op, ["x"], ["h"], domain="acme.ops"), relu("h", "y")]
    return model_of(
        nodes,
        [tensor("x", "batch", 4)],
        [tensor("y", "batch", 4)],
        infos=(tensor("h", 1, 4),) if declared else (),
        domains=("acme.ops",),
    )


def test_an_unknown_domain_is_refused(refuse: Refuse, place: Path) -> None:
    line = refuse("predict", save(unknown_operator(declared=True), place / "custom.onnx"))
    assert "acme.ops" in line
    assert "--allow-unknown" in line


@pytest.mark.parametrize("op", ["Frobnicate", "Relu"])
def test_an_unknown_domain_is_reported_when_allowed(place: Path, capsys: pytest.CaptureFixture[str], op: str) -> None:
    path = save(unknown_operator(True, op), place / "custom.onnx")
    found = accept(capsys, "inspect", path, "--allow-unknown")
    assert list(found["unknown_operators"]) == [f"acme.ops.{op}"]
    assert 0 < found["unknown_operators"][f"acme.ops.{op}"] < 1
    assert found["coverage"] == pytest.approx(1 - found["unknown_operators"][f"acme.ops.{op}"])
    assert 0 < accept(capsys, "predict", path, "--allow-unknown")["coverage"] < 1


def test_an_unknown_operator_without_a_shape_is_refused_all_the_same(refuse: Refuse, place: Path) -> None:
    line = refuse("predict", save(unknown_operator(declared=False), place / "custom.onnx"), "--allow-unknown")
    assert "shape" in line


def test_an_unknown_operator_in_a_sub_graph_is_found(refuse: Refuse, place: Path) -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("Odd", ["x"], [name], domain="acme.ops")], name, [], [tensor(name, 1, 4)]
        )

    node = helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))
    inputs = [helper.make_tensor_value_info("c", TensorProto.BOOL, []), tensor("x", 1, 4)]
    assert "acme.ops" in refuse("predict", save(model_of([node], inputs, [tensor("y", 1, 4)]), place / "inner.onnx"))


# ── bombs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def nested(depth: int, op: str) -> onnx.GraphProto:
    """Sub-graphs in sub-graphs, two of them at each level for an If."""
    if depth == 0:
        return helper.make_graph([relu("x", "leaf")], "leaf", [], [tensor("leaf", 1, 4)])
    inner = nested(depth - 1, op)
    name = f"n{depth}"
    if op == "If":
        other = helper.make_graph([relu("x", f"e{depth}")], "else", [], [tensor(f"e{depth}", 1, 4)])
        node = helper.make_node("If", ["c"], [name], then_branch=inner, else_branch=other)
        return helper.make_graph([node], f"g{depth}", [], [tensor(name, 1, 4)])
    cond = helper.make_node("Identity", ["keep"], [f"go{depth}"])
    body_inputs = [
        helper.make_tensor_value_info(f"i{depth}", TensorProto.INT64, []),
        helper.make_tensor_value_info(f"k{depth}", TensorProto.BOOL, []),
    ]
    inner.input.extend(body_inputs)
    inner.output.insert(0, helper.make_tensor_value_info("keep", TensorProto.BOOL, []))
    node = helper.make_node("Loop", ["many", "keep"], [name], body=inner)
    return helper.make_graph([cond, node], f"g{depth}", [], [tensor(name, "n", 1, 4)])


@pytest.mark.parametrize("op", ["If", "Loop"])
@pytest.mark.parametrize("depth", [12, 25, 32])
def test_nested_sub_graphs(
    place: Path, refuse: Refuse, capsys: pytest.CaptureFixture[str], op: str, depth: int
) -> None:
    graph = nested(depth, op)
    graph.input.extend(
        [
            tensor("x", 1, 4),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            helper.make_tensor_value_info("keep", TensorProto.BOOL, []),
        ]
    )
    graph.initializer.append(helper.make_tensor("many", TensorProto.INT64, [], [2**31 - 1]))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    try:
        path = save(model, place / "nested.onnx")
    except EncodeError:
        pytest.skip("protobuf itself does not write so deep a model")
    if depth <= 16 and op == "If":
        assert accept(capsys, "predict", path)["latency_ms"]["value"] > 0
    else:
        refuse("predict", path)


def function_bomb(levels: int, calls: int, recursive: bool) -> onnx.ModelProto:
    functions = []
    for level in range(levels):
        callee = f"f{level + 1}" if level + 1 < levels else "f0" if recursive else None
        nodes = (
            [
                helper.make_node(callee, ["x" if i == 0 else f"t{i - 1}"], [f"t{i}"], domain="local")
                for i in range(calls)
            ]
            if callee
            else [relu("x", f"t{calls - 1}")]
        )
        functions.append(
            helper.make_function(
                "local",
                f"f{level}",
                ["x"],
                [f"t{calls - 1}"],
                nodes,
                [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)],
            )
        )
    model = model_of(
        [helper.make_node("f0", ["x"], ["y"], domain="local")],
        [tensor("x", 1, 4)],
        [tensor("y", 1, 4)],
        domains=("local",),
    )
    model.functions.extend(functions)
    return model


def test_functions_that_expand_without_end(refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expand" in refuse("predict", save(function_bomb(60, 2, recursive=False), place / "bomb.onnx"))
    assert "calls itself" in refuse("predict", save(function_bomb(3, 1, recursive=True), place / "loop.onnx"))
    assert accept(capsys, "inspect", save(function_bomb(5, 2, recursive=False), place / "good.onnx"))["nodes"] == 16


# ── external data ─────────────────────────────────────────────────────────────────────────────────────────────────────

OUTSIDE = [
    "/etc/passwd",
    "../secret.bin",
    "a/../../b",
    "..",
    "C:\\secret",
    "c:/x",
    "\\\\host\\share",
    "a\\..\\..\\b",
    "",
]


def with_weight(weight: onnx.TensorProto, where: str) -> onnx.ModelProto:
    add = helper.make_node("Add", ["x", weight.name], ["y"])
    if where == "initializer":
        return model_of([add], [tensor("x", 1, 4)], [tensor("y", 1, 4)], (weight,))
    constant = helper.make_node("Constant", [], [weight.name], value=weight)
    if where == "constant":
        return model_of([constant, add], [tensor("x", 1, 4)], [tensor("y", 1, 4)])
    branch = helper.make_graph([constant, add], "then", [], [tensor("y", 1, 4)])
    other = helper.make_graph([relu("x", "z")], "else", [], [tensor("z", 1, 4)])
    node = helper.make_node("If", ["c"], ["out"], then_branch=branch, else_branch=other)
    inputs = [tensor("x", 1, 4), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    return model_of([node], inputs, [tensor("out", 1, 4)])


@pytest.mark.parametrize("where", ["initializer", "constant", "sub-graph"])
def test_external_data_outside_its_folder(
    refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    for location in OUTSIDE:
        line = refuse("predict", save(with_weight(external("w", location, 4), where), place / "outside.onnx"))
        assert "outside" in line
    inside = save(with_weight(external("w", "weights/w.bin", 4), where), place / "inside.onnx")
    assert accept(capsys, "inspect", inside, "--no-cache")["parameters"] == 4


def test_a_symbolic_link_to_weights_is_never_opened(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "w.bin").symlink_to("/nonexistent/secret")
    path = save(with_weight(external("w", "w.bin", 4), "initializer"), place / "linked.onnx")
    assert accept(capsys, "inspect", path, "--no-cache")["parameters"] == 4


# ── pickles and archives ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pth", ".pt2", ".bin", ".pkl", ".ckpt", ".json", ""])
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_never_opened(refuse: Refuse, place: Path, suffix: str, protocol: int) -> None:
    if suffix == ".json":
        pytest.importorskip("transformers")
    path = place / f"model{suffix}"
    path.write_bytes(pickle.dumps(Payload(), protocol=protocol))
    refuse("predict", path)
    refuse("predict", path, "--trust")


def zipped(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("suffix", [".onnx", ".pt", ".pt2", ".bin", ".zip"])
def test_a_torch_save_archive_is_never_opened(refuse: Refuse, place: Path, suffix: str) -> None:
    payload = pickle.dumps(Payload(), protocol=2)
    path = zipped(
        place / f"model{suffix}",
        {"archive/data.pkl": payload, "archive/version": b"3\n", "archive/byteorder": b"little"},
    )
    assert "pickle" in refuse("predict", path)
    refuse("predict", zipped(path, {"anything": payload}))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"{}",
        b'{"schema_version": 8}',
        b'{"schema_version": {"major": 8}}',
        b"[" * 100_000,
        b'{"schema_version": {"major": ' + b"9" * 5000 + b"}}",
        b'{"schema_version": {"major": 7}}',
        b"\xff\xfe",
        b'{"schema_version": {"major": 8}, "graph_module": {"graph": {"nodes": 3, "tensor_values": []}, '
        b'"signature": {"input_specs": [{}]}}}',
    ],
)
def test_malformed_json_in_a_pt2(refuse: Refuse, place: Path, text: bytes) -> None:
    refuse("predict", zipped(place / "model.pt2", {"model/models/model.json": text}))


def test_a_zip_bomb(refuse: Refuse, place: Path) -> None:
    zeros = b" " * 2**26
    path = zipped(place / "bomb.pt2", {"model/models/model.json": zeros}, zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 2**18
    assert "unpacks" in refuse("predict", path)
    path = zipped(
        place / "bomb.pt", {"m/code/a.py": zeros, "m/constants.pkl": b"", "m/data.pkl": b""}, zipfile.ZIP_DEFLATED
    )
    assert "unpacks" in refuse("predict", path, "--input", "4")


def test_a_member_that_lies_about_its_size(refuse: Refuse, place: Path) -> None:
    path = zipped(place / "model.pt2", {"model/models/model.json": b" " * 2**20}, zipfile.ZIP_DEFLATED)
    content = bytearray(path.read_bytes())
    at = content.rindex(b"PK\x01\x02") + 24
    content[at : at + 4] = (100).to_bytes(4, "little")
    path.write_bytes(content)
    refuse("predict", path)


# ── code ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_python_file_is_not_run_without_trust(refuse: Refuse, place: Path) -> None:
    (place / "net.py").write_text("open('PWNED', 'w').close()\ndef build(): ...\n")
    assert "--trust" in refuse("predict", "net.py:build")
    assert "no file" in refuse("predict", "absent.py:build", "--trust")


# ── options ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BAD_OPTIONS = {
    "text": (["--input", "big"], "Cannot read"),
    "empty": (["--input", ""], "Cannot read"),
    "negative": (["--input", "3x-1x2"], "Cannot read"),
    "zero": (["--input", "0x16x16"], "impossible"),
    "overflow": (["--input", "9" * 18 + "x" + "9" * 18], "impossible"),
    "thousands of digits": (["--input", "1" * 5000], "Cannot read"),
    "wrong rank": (["--input", "3x16"], "dimensions"),
    "fixed size": (["--input", "4x16x16"], "fixed at 3"),
    "unknown name": (["--input", "z=3x16x16"], "no input 'z'"),
    "too many": (["--input", "3x16x16", "--input", "5"], "2 inputs were given"),
    "twice": (["--input", "x=3x16x16", "--input", "x=3x16x16"], "twice"),
    "unknown input dtype": (["--input", "3x16x16:fp99"], "dtype"),
    "wrong input dtype": (["--input", "3x16x16:int64"], "is fp32"),
    "batch zero": (["--batch-size", "0"], "batch size"),
    "batch negative": (["--batch-size", "-3"], "batch size"),
    "batch huge": (["--batch-size", str(2**70)], "batch size"),
    "batch text": (["--batch-size", "many"], "integer"),
    "dtype": (["--dtype", "fp99"], "Unknown dtype"),
    "mode": (["--mode", "infer"], "inference"),
    "language mode": (["--mode", "decode"], "language"),
    "option": (["--frobnicate"], "--frobnicate"),
    "context": (["--context", "-1"], "context"),
}
BAD_PREDICT = {
    "runtime": (["--runtime", "cudagraph"], "cuda-graph"),
    "optimizer": (["--mode", "training", "--optimizer", "adan"], "Unknown optimizer"),
    "optimizer in inference": (["--optimizer", "sgd"], "training"),
    "predictor": (["--predictor", "oracle"], "Unknown predictor"),
    "device": (["--device", "h20"], "Did you mean"),
    "strange device": (["--device", "abacus"], "foretell devices"),
    "slice": (["--slice", "half"], "slice"),
    "slice larger than the device": (["--slice", "sms:100000"], "132"),
    "slice above 100 %": (["--slice", "mps:101"], "100"),
    "empty slice": (["--slice", "mps:0"], "mps:0"),
    "unknown profile": (["--slice", "mig:9g.999gb"], "9g.999gb"),
    "slice of a device without MIG": (["--device", "t4", "--slice", "mig:1g.5gb"], "MIG"),
}
BAD_INSPECT = {
    "by": (["--by", "colour"], "operator, module, node"),
    "depth": (["--depth", "0"], "--depth"),
    "two formats": (["--json", "--csv"], "--json"),
    "optimizer": (["--optimizer", "adan"], "Unknown optimizer"),
}


@pytest.mark.parametrize("command", ["predict", "inspect"])
@pytest.mark.parametrize("name", BAD_OPTIONS)
def test_a_bad_option(refuse: Refuse, place: Path, command: str, name: str) -> None:
    options, expected = BAD_OPTIONS[name]
    assert expected in refuse(command, save(tiny_onnx(), place / "tiny.onnx"), *options)


@pytest.mark.parametrize("name", BAD_PREDICT)
def test_a_bad_option_of_predict(refuse: Refuse, place: Path, name: str) -> None:
    options, expected = BAD_PREDICT[name]
    assert expected in refuse("predict", save(tiny_onnx(), place / "tiny.onnx"), *options)


@pytest.mark.parametrize("name", BAD_INSPECT)
def test_a_bad_option_of_inspect(refuse: Refuse, place: Path, name: str) -> None:
    options, expected = BAD_INSPECT[name]
    assert expected in refuse("inspect", save(tiny_onnx(), place / "tiny.onnx"), *options)


def test_a_bad_command(refuse: Refuse) -> None:
    refuse("fortell")
    refuse("predict")
    refuse("devices", "h20")


def test_names_inside_a_model_cannot_steer_the_terminal(
    refuse: Refuse, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = "\x1b[2J[/bold]\nfake"
    line = refuse(
        "predict", save(model_of([relu("ghost", evil)], [tensor("x", 1, 4)], [tensor(evil, 1, 4)]), place / "evil.onnx")
    )
    assert "\x1b" not in line
    model = model_of(
        [helper.make_node("Relu", ["x"], ["y"], name=f"/{evil}/Relu")], [tensor("x", 1, 4)], [tensor("y", 1, 4)]
    )
    for more in ([], ["--by", "node"], ["--by", "module"]):
        with pytest.raises(SystemExit) as ended:
            main(["inspect", str(save(model, place / "[bold].onnx")), *more])
        shown = capsys.readouterr()
        assert ended.value.code == 0, shown.err
        assert "\x1b" not in shown.out


# ── the same in a process of its own ──────────────────────────────────────────────────────────────────────────────────


def test_as_a_process(place: Path) -> None:
    (place / "noise.onnx").write_bytes(random.Random(1).randbytes(1000))
    (place / "evil.pt").write_bytes(pickle.dumps(Payload()))
    (place / "net.py").write_text("open('PWNED', 'w').close()\n")
    save(BAD_GRAPHS["cycle"][0], place / "cycle.onnx")
    save(tiny_onnx(), place / "tiny.onnx")
    before = files_below(place)
    cases = [["noise.onnx"], ["evil.pt"], ["net.py:build"], ["cycle.onnx"]]
    for case in cases:
        ended = subprocess.run(
            [sys.executable, "-m", "foretell.cli", "predict", *case],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        assert ended.stderr.count("\n") == 1, ended.stderr
        assert ended.stderr.startswith("foretell: ")
    assert files_below(place) == before


def test_output_that_cannot_be_encoded(place: Path) -> None:
    save(tiny_onnx(), place / "tiny.onnx")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = subprocess.run(
        [sys.executable, "-m", "foretell.cli", "inspect", "tiny.onnx"],
        capture_output=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert io.BytesIO(ended.stdout).read().isascii()

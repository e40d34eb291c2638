"""Every front-end: a good tiny model is read, at any batch; a bad one raises; the second call comes from the cache."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from converted_models import FRAMEWORKS, keras_file, make
from foretell.errors import ForetellError, InputError, ModelError
from foretell.frontends import FRONTENDS, ModelRequest, cache, convert, parse_inputs
from foretell.frontends.converted.environments import find_environment
from foretell.frontends.sources import recognise
from foretell.graph import Graph, graph_costs
from foretell.graph.ir import serde
from foretell.testing import tiny_graph, tiny_onnx
from foretell.workflows.workload import load_graph

NEEDS = {
    "module": "torch",
    "python": "torch",
    "pt2": "torch",
    "torchscript": "torch",
    "timm": "timm",
    "torchvision": "torchvision",
    "hf": "transformers",
}
NET = """
import torch


def build():
    return torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 4))
"""


def tiny_module() -> Any:
    names: dict[str, Any] = {}
    exec(NET, names)
    return names["build"]().eval()


def good(name: str, folder: Path) -> ModelRequest:
    """A tiny model for a front-end."""
    image = parse_inputs(["3x16x16"])
    if name == "onnx":
        (folder / "m.onnx").write_bytes(tiny_onnx().SerializeToString())
        return ModelRequest(str(folder / "m.onnx"))
    if name == "module":
        return ModelRequest(tiny_module(), image)
    if name == "python":
        (folder / "net.py").write_text(NET)
        return ModelRequest(f"{folder / 'net.py'}:build", image, trust=True)
    if name == "pt2":
        import torch

        torch.export.save(torch.export.export(tiny_module(), (torch.zeros(2, 3, 16, 16),)), str(folder / "m.pt2"))
        return ModelRequest(str(folder / "m.pt2"))
    if name == "torchscript":
        import torch

        torch.jit.trace(tiny_module(), torch.zeros(1, 3, 16, 16)).save(str(folder / "m.pt"))
        return ModelRequest(str(folder / "m.pt"), image)
    if name in FRAMEWORKS:
        inputs = parse_inputs(["16x16x3"]) if name == "jax" else ()
        return ModelRequest(make(name, folder), inputs, trust=name == "jax")
    if name == "timm":
        return ModelRequest("timm:test_vit")
    if name == "torchvision":
        return ModelRequest("torchvision:squeezenet1_1", parse_inputs(["3x64x64"]))
    config = {
        "model_type": "electra",
        "architectures": ["ElectraModel"],
        "vocab_size": 50,
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "max_position_embeddings": 32,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return ModelRequest(str(folder / "config.json"), parse_inputs(["8"]))


def bad(name: str, folder: Path) -> ModelRequest:
    """Something that looks like a model of a front-end and is none."""
    if name == "module":
        return ModelRequest(tiny_module(), parse_inputs(["5x16x16"]))
    if name == "python":
        (folder / "net.py").write_text("def build(): raise RuntimeError('no')")
        return ModelRequest(f"{folder / 'net.py'}:build", trust=True)
    if name in ("timm", "torchvision"):
        return ModelRequest(f"{name}:no_such_model")
    if name in FRAMEWORKS:
        return ModelRequest(bad_foreign(name, folder), trust=name == "jax")
    path = folder / {"onnx": "m.onnx", "pt2": "m.pt2", "torchscript": "m.pt", "hf": "config.json"}[name]
    path.write_bytes(b"nonsense")
    return ModelRequest(str(path))


def bad_foreign(name: str, folder: Path) -> str:
    if name == "keras":
        return str(keras_file(folder / "m.keras", {"class_name": "Functional", "module": "keras", "config": {}}))
    if name == "jax":
        (folder / "net.py").write_text("import jax\ndef build(): raise RuntimeError('no')")
        return f"{folder / 'net.py'}:build"
    if name == "tensorflow":
        (folder / "saved").mkdir()
        (folder / "saved" / "saved_model.pb").write_bytes(b"nonsense")
        return str(folder / "saved")
    for file in ("net.json", "net.pdiparams"):
        (folder / file).write_bytes(b"nonsense")
    return str(folder / "net.json")


# a conversion by another framework takes seconds, and its environment may not be there
@pytest.fixture(params=[pytest.param(n, marks=pytest.mark.slow) if n in FRAMEWORKS else n for n in FRONTENDS])
def name(request: pytest.FixtureRequest) -> str:
    if request.param in FRAMEWORKS and find_environment(FRAMEWORKS[request.param]) is None:
        pytest.skip(f"foretell frontends install {FRAMEWORKS[request.param]}")
    if request.param in NEEDS:
        if request.param in ("timm", "torchvision", "hf"):
            pytest.importorskip("torch")
            from foretell.optional import repair_torchvision

            repair_torchvision()
        pytest.importorskip(NEEDS[request.param])
    return str(request.param)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:.*TorchScript.*:DeprecationWarning")
def test_a_good_model_is_read_and_kept(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if name == "hf":  # transformers takes seconds to import in a cage; huggingface/test_frontend.py does it once
        monkeypatch.setattr("foretell.frontends.caged.confined", lambda: True)
    request = good(name, tmp_path)
    graph = convert(request)
    assert graph_costs(graph).total.macs > 0
    assert graph.parameter_count > 0
    for batch_size in (1, 3):
        at = graph.with_batch(batch_size)
        assert graph_costs(at).total.macs == batch_size * graph_costs(graph.with_batch(1)).total.macs
        assert at.tensors[at.inputs[0]].shape[0] == batch_size
    frontend = FRONTENDS.load(name)()
    fingerprint = frontend.fingerprint(request)
    assert (fingerprint is None) == (name == "module")
    if fingerprint is not None:
        cached = cache.read(cache.entry_path(name, fingerprint, request))
        assert cached is not None
        assert cached.hash == graph.hash
        assert convert(request).hash == graph.hash


def test_a_bad_model_raises_and_leaves_nothing(name: str, tmp_path: Path, own_cache: Path) -> None:
    with pytest.raises(ForetellError):
        convert(bad(name, tmp_path))
    assert not list(own_cache.rglob("*.fgraph"))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("timm:resnet50", "timm"),
        ("torchvision:vgg16", "torchvision"),
        ("hf:bert-base-uncased", "hf"),
        ("a/b.py:build", "python"),
    ],
)
def test_specs_are_recognised_by_their_form(source: str, expected: str) -> None:
    assert recognise(source) == expected


def test_sources_that_are_no_model_are_refused() -> None:
    for source in (3, None, [1, 2], {"a": 1}):
        with pytest.raises(ModelError, match="Cannot read a model from"):
            recognise(source)


def test_a_graph_is_its_own_model(tmp_path: Path) -> None:
    graph = tiny_graph()
    assert convert(ModelRequest(graph)) is graph
    serde.save(graph, tmp_path / "tiny.fgraph")
    assert load_graph(tmp_path / "tiny.fgraph", batch_size=5).hash == graph.with_batch(5).hash


def test_a_graph_with_an_impossible_tensor_is_refused(tmp_path: Path) -> None:
    from dataclasses import replace

    graph = tiny_graph()
    huge = replace(
        graph, tensors={**graph.tensors, "conv.weight": replace(graph.tensors["conv.weight"], shape=(2**40, 3, 3, 3))}
    )
    serde.save(huge, tmp_path / "huge.fgraph")
    with pytest.raises(ModelError, match="impossible"):
        load_graph(tmp_path / "huge.fgraph")


def test_modes_of_language_models_are_for_language_models() -> None:
    with pytest.raises(InputError, match="language"):
        load_graph(tiny_onnx(), mode="decode")
    with pytest.raises(InputError, match="Unknown mode"):
        load_graph(tiny_onnx(), mode="guess")


def test_all_ways_to_one_model_agree(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    makers: list[Callable[[], Graph]] = [
        lambda n=n: convert(good(n, tmp_path)).with_batch(2) for n in ("module", "python", "pt2")
    ]  # type: ignore[misc]
    totals = [graph_costs(make()).total for make in makers]
    assert totals[0] == totals[1] == totals[2]


def test_a_file_name_that_is_no_text_becomes_one(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"net\xff.onnx")
    path.write_bytes(tiny_onnx().SerializeToString())
    graph = convert(ModelRequest(str(path)), use_cache=False)
    assert graph.name == "net?.onnx"
    graph.name.encode()

"""Whether a model fits, and what would make it fit."""

from dataclasses import replace

import pytest

import foretell
from foretell.devices import Device, find_device
from foretell.errors import InputError
from foretell.graph import Graph, Node, Tensor
from foretell.testing import tiny_graph
from foretell.workflows.memory.fit import Fit, fit
from foretell.workflows.workload import load_graph


def device_with(memory_mib: float) -> Device:
    return replace(find_device("a100"), id="small-a100", memory_gib=memory_mib / 1024)


def need_of(**options) -> foretell.Estimate:
    need = foretell.predict(tiny_graph(), device="a100", **options).device_memory_mib
    assert need is not None
    return need


def test_the_verdict_is_by_the_interval():
    need = need_of(batch_size=4096)
    for memory_mib, expected, code in ((need.high, "yes", 0), (need.value, "perhaps", 3), (need.low - 1, "no", 4)):
        answer = fit(tiny_graph(), device=device_with(memory_mib), batch_size=4096)
        assert (answer.fits, answer.exit_code) == (expected, code)
        assert answer.heading().startswith(f"{expected}: ")


@pytest.mark.parametrize("mode", ["inference", "training"])
def test_the_largest_batch_is_found(mode):
    """One item more does not surely fit, or does not fit at all; the model is not read again."""
    device = device_with(1200)
    answer = fit(tiny_graph(), device=device, batch_size=64, mode=mode)
    sure, perhaps = answer.largest_batch, answer.largest_batch_perhaps
    assert sure is not None
    assert perhaps is not None
    assert 64 < sure < perhaps

    def fits_at(batch_size: int) -> str | None:
        return foretell.predict(tiny_graph(), device=device, batch_size=batch_size, mode=mode).fits

    assert [fits_at(size) for size in (sure, sure + 1, perhaps, perhaps + 1)] == ["yes", "perhaps", "perhaps", "no"]


def test_a_batch_that_is_too_large_is_split_among_gpus():
    answer = fit(tiny_graph(), device=device_with(900), batch_size=2**19)
    assert answer.fits == "no"
    assert answer.largest_batch
    assert answer.gpus == -(-(2**19) // answer.largest_batch)
    assert f"--batch-size {answer.largest_batch}" in repr(answer)


def test_weights_that_are_too_large_are_divided_or_narrowed():
    weights = wide_graph()
    answer = fit(weights, device=device_with(1600))
    assert (answer.fits, answer.largest_batch, answer.largest_batch_perhaps) == ("no", 0, 0)
    assert answer.gpus == 2
    assert answer.parallel is not None
    assert "divided" in answer.parallel
    assert {other.dtype: other.fits for other in answer.precisions} == {"bf16": "yes", "fp8": "yes"}
    assert "--dtype bf16" in repr(answer)
    assert fit(weights, device=device_with(1600), dtype="bf16").precisions == ()


def test_a_training_step_is_shared_out():
    answer = fit(wide_graph(), device=device_with(3000), mode="training", optimizer="adamw")
    assert answer.fits == "no"
    assert answer.gpus
    assert answer.parallel is not None
    assert answer.parallel.startswith("zero3")
    assert [other.dtype for other in answer.precisions] == ["bf16"]


def test_a_model_without_a_batch_has_no_largest_one():
    answer = fit(without_batch_axes(), device="a100")
    assert (answer.fits, answer.largest_batch) == ("yes", None)
    assert "largest_batch" not in answer.to_dict()
    with pytest.raises(InputError, match="has no batch"):
        fit(without_batch_axes(), device="a100", batch_size=2)


def test_what_fits_says_little():
    answer = fit(tiny_graph(), device="a100")
    assert (answer.gpus, answer.precisions) == (1, ())
    said = answer.to_dict()
    assert said["fits"] == "yes"
    assert said["device_memory_mib"]["high"] <= said["capacity_mib"]
    assert isinstance(foretell.fit(tiny_graph(), device="a100"), Fit)


def wide_graph() -> Graph:
    """A product with a gibibyte of weights."""
    tensors = {
        "x": Tensor("x", (1, 2**14), dtype="fp32", kind="input", batch_axis=0),
        "w": Tensor("w", (2**14, 2**14), dtype="fp32", kind="parameter"),
        "y": Tensor("y", (1, 2**14), dtype="fp32", batch_axis=0),
    }
    return Graph.build("wide", [Node("y", "Gemm", ("x", "w"), ("y",), module="layer")], tensors, ["x"], ["y"])


def without_batch_axes() -> Graph:
    graph = load_graph(tiny_graph())
    tensors = {name: replace(tensor, batch_axis=None) for name, tensor in graph.tensors.items()}
    return replace(graph, tensors=tensors)

"""Changes of a workload, predicted again: `foretell.improve`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

import foretell
from foretell.advisors.improvement import CORRELATIONS, Improvement, gain_of
from foretell.devices import find_device
from foretell.errors import InputError
from foretell.graph import Graph, Node
from foretell.graph.ir.batch import mark_batch_axes
from foretell.records import Target, Workload
from foretell.testing import chain, tiny_onnx
from foretell.workflows.improving.improve import Limits, improve_workload
from foretell.workflows.improving.places import Prices


def block(channels: int = 64, size: int = 56) -> Graph:
    """A convolution, a batch norm and an activation, as a framework runs them."""
    image = (1, channels, size, size)
    shapes = {"x": image, "w": (channels, channels, 3, 3), "c": image, "n": image, "r": image}
    shapes |= dict.fromkeys(("w_s", "w_b", "w_m", "w_v"), (channels,))
    nodes = [
        Node("conv", "Conv", ("x", "w"), ("c",), {"pads": (1, 1, 1, 1)}, module="conv"),
        Node("norm", "BatchNormalization", ("c", "w_s", "w_b", "w_m", "w_v"), ("n",), module="norm"),
        Node("relu", "Relu", ("n",), ("r",), module="relu"),
    ]
    graph = chain(nodes, shapes, ["x"], ["r"])
    tensors = dict(graph.tensors) | {"x": replace(graph.tensors["x"], batch_axis=0)}
    return mark_batch_axes(replace(graph, tensors=tensors))


def asked(workload: Workload | None = None, **limits: Any) -> Improvement:
    found = workload or Workload(block().with_batch(32), Target(find_device("h200")))
    return improve_workload(found, Limits(**limits), Prices(), [])


def test_every_change_is_predicted_and_either_helps_or_is_rejected() -> None:
    answer = asked()
    names = {change.name for change in (*answer.changes, *answer.rejected)}
    assert names == {"fp16", "bf16", "tf32", "channels-last", "torch.compile", "batch norms folded"}
    assert answer.before.latency_ms is not None
    for change in (*answer.changes, *answer.rejected):
        assert change.after.latency_ms is not None
        gain = change.gains["latency"]
        assert gain.value == pytest.approx(answer.before.latency_ms.value / change.after.latency_ms.value)
        assert gain.low < gain.value < gain.high
        assert bool(change.reason) is (change in answer.rejected)
    lows = [change.gains["latency"].low for change in answer.changes]
    assert lows == sorted(lows, reverse=True)
    assert {change.accuracy for change in answer.changes if change.kind == "precision"} <= {"numerics"}


def test_a_change_that_may_cost_accuracy_can_be_ruled_out() -> None:
    answer = asked(accuracy="none")
    assert {change.accuracy for change in (*answer.changes, *answer.rejected)} == {"none"}


def test_what_a_rewrite_does_not_touch_narrows_its_interval() -> None:
    graph = block()
    plain = [
        Node(f"plain{i}", "Conv", (f"a{i}", f"w{i}"), (f"a{i + 1}",), {"pads": (1, 1, 1, 1)}, module=f"plain{i}")
        for i in range(8)
    ]
    tensors = dict(graph.tensors)
    for i in range(9):
        tensors[f"a{i}"] = replace(tensors["r"], name=f"a{i}")
        tensors[f"w{i}"] = replace(tensors["w"], name=f"w{i}")
    nodes = [*graph.nodes[:-1], replace(graph.nodes[-1], outputs=("a0",)), *plain]
    del tensors["r"], tensors["w8"]
    long = Graph.build("long", nodes, tensors, ["x"], ["a8"])
    answer = asked(Workload(long.with_batch(32), Target(find_device("h200"))))
    (change,) = (one for one in (*answer.changes, *answer.rejected) if one.name == "batch norms folded")
    assert answer.before.latency_ms is not None
    assert change.after.latency_ms is not None
    touched = gain_of(answer.before.latency_ms, change.after.latency_ms, CORRELATIONS["graph"])
    gain = change.gains["latency"]
    # eight of nine convolutions are the same before and after
    assert gain.high / gain.low < (touched.high / touched.low) ** 0.8


def test_changes_that_still_help_are_put_on_top_of_each_other() -> None:
    answer = asked()
    assert answer.together is not None
    parts = answer.together.name.split(" + ")
    assert parts[0] == answer.changes[0].name
    assert answer.together.gains["latency"].value > answer.changes[0].gains["latency"].value
    assert answer.together.accuracy == ("numerics" if {"fp16", "bf16", "tf32"} & set(parts) else "none")


def test_a_change_that_may_not_help_on_top_of_the_others_stays_out() -> None:
    half = Workload(block().with_batch(32).with_dtype("fp16"), Target(find_device("h200")), "fp16")
    answer = asked(half)
    # both help alone; compiled models in this layout were not measured, so that both together are uncertain
    names = {change.name for change in answer.changes}
    assert {"channels-last", "torch.compile"} <= names
    assert answer.together is None or not {"channels-last", "torch.compile"} <= set(answer.together.name.split(" + "))


def test_throughput_brings_batches_and_slices_and_a_limit_forbids_them() -> None:
    answer = asked(objective="throughput", max_batch=256)
    kinds = {change.kind for change in (*answer.changes, *answer.rejected)}
    assert {"batch", "slice", "precision"} <= kinds
    limited = asked(objective="throughput", latency_ms=0.05)
    (batch,) = (change for change in limited.rejected if change.kind == "batch")
    assert batch.reason.startswith("latency: ")
    assert not [change for change in limited.changes if change.kind == "slice"]


def test_an_eager_host_is_told_to_use_cuda_graphs() -> None:
    eager = Workload(block(8, 8), Target(find_device("h200"), None, "eager"))
    answer = asked(eager)
    found = {change.name: change for change in answer.changes}
    assert "CUDA graphs" in found
    assert found["CUDA graphs"].why.startswith("The host takes ")
    # the host decides: precision does not help, and the answer says so
    assert "fp16" in {change.name for change in answer.rejected}


def test_dollars_compare_places_with_what_is_rented_now(tmp_path: Path) -> None:
    file = tmp_path / "net.onnx"
    onnx.save(tiny_onnx(), file)
    answer = foretell.improve(file, by="usd", region="us-east-1", devices=["l4"], batch_size=256)
    found = {change.name: change for change in (*answer.changes, *answer.rejected)}
    region = next(change for change in found.values() if change.kind == "region")
    assert region.gains["usd"].value > 1
    assert region.gains["latency"].value == 1
    l4 = found["l4"]
    assert l4.gains["usd"].value != pytest.approx(l4.gains["latency"].value)
    assert "an hour $" in l4.why
    assert any("us-east-1" in note for note in answer.notes)


def test_training_has_other_changes() -> None:
    training = Workload(block().with_batch(32), Target(find_device("h200")), mode="training", optimizer="adamw")
    answer = asked(training)
    found = {change.name: change for change in (*answer.changes, *answer.rejected)}
    assert found["optimizer sgd"].accuracy == "retraining"
    assert "GradScaler" in found["fp16"].how
    assert "batch norms folded" not in found
    assert "torch.compile" not in found


def test_other_devices_say_what_was_not_measured_there() -> None:
    answer = asked(Workload(block(), Target(find_device("l4"))))
    assert any(note.startswith("torch.compile was not tried: ") for note in answer.notes)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"by": "speed"}, "Unknown objective 'speed'"),
        ({"accuracy": "some"}, "Unknown cost in accuracy 'some'"),
        ({"region": "mars-1"}, "There are no prices for the region 'mars-1'"),
        ({"by": "usd", "device": "mi300x", "region": "us-east-1"}, "No price of mi300x in us-east-1 is known"),
        ({"latency_limit_ms": -1}, "latency limit"),
        ({"devices": ["l5"]}, "Unknown device 'l5'"),
    ],
)
def test_mistakes_are_found_before_the_model_is_read(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((InputError, foretell.ForetellError), match=message):
        foretell.improve("no-such-file.onnx", **arguments)

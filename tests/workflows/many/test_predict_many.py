"""Many predictions are those that `predict` gives one by one, in order, with errors in their place."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import foretell
from foretell.errors import ForetellError, InputError, ModelError
from foretell.features.encoded import Encoded
from foretell.graph import Graph
from foretell.predictors.protocol import predict_all
from foretell.predictors.transfer import TransferPredictor
from foretell.predictors.unit import predictor as unit_predictor
from foretell.predictors.unit.network import UnitNetwork, UnitPredictions
from foretell.records import Prediction, Workload
from foretell.testing import tiny_graph, tiny_onnx
from foretell.workflows.many import predict_many as module
from foretell.workflows.many.predict_many import predict_many
from foretell.workflows.predict import predict

SETTINGS: list[dict[str, Any]] = [
    {},
    {"batch_size": 8, "dtype": "fp16"},
    {"device": "a100", "dtype": "bf16"},
    {"device": "h200", "slice": "mps:30"},
    {"device": "h200", "slice": "mig:1g.18gb", "batch_size": 4},
    {"device": "cpu"},
    {"device": "mi300x"},
    {"mode": "training", "optimizer": "adamw", "dtype": "bf16"},
    {"runtime": "eager"},
    {"channels_last": True},
    {"dtype": "fp8", "device": "h100-sxm"},
    {"predictor": "roofline"},
    {"input_shape": {"x": (3, 16, 16)}},
]


def same(first: Prediction, second: Prediction) -> bool:
    (left,), (right,) = first.rows(), second.rows()
    numbers = {name: value for name, value in left.items() if isinstance(value, float)}
    others = {name: value for name, value in left.items() if name not in numbers}
    return (
        numbers == pytest.approx({name: right[name] for name in numbers}, rel=1e-6)
        and others == {name: right[name] for name in others}
        and (first.mig, first.warnings, first.channels_last) == (second.mig, second.warnings, second.channels_last)
    )


def test_each_answer_is_that_of_predict() -> None:
    answers = list(predict_many([(tiny_onnx(), options) for options in SETTINGS]))
    for options, answer in zip(SETTINGS, answers, strict=True):
        assert isinstance(answer, Prediction), options
        assert same(answer, predict(tiny_onnx(), **options)), options


def test_options_serve_all_models_and_pairs_have_their_own() -> None:
    graph = tiny_graph(channels=16)
    answers = list(predict_many([graph, (graph, {"batch_size": 2})], device="a100", dtype="fp16", batch_size=32))
    assert [(answer.device, answer.batch_size) for answer in answers] == [("a100-sxm-40gb", 32), ("a100-sxm-40gb", 2)]  # type: ignore[union-attr]


def test_errors_stand_in_their_place() -> None:
    models = [
        tiny_graph(),
        "nothing.onnx",
        (tiny_graph(), {"batch_size": 0}),
        (tiny_graph(), {"size": 1}),
        tiny_graph(),
    ]
    answers = list(predict_many(models))
    assert [type(answer) for answer in answers] == [Prediction, ModelError, InputError, InputError, Prediction]
    assert "'size', which does not exist" in str(answers[3])


def test_a_mistake_in_what_all_share_is_one_error() -> None:
    with pytest.raises(InputError, match="batch size is 0"):
        predict_many([tiny_graph()], batch_size=0)


def test_models_are_taken_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", 4)
    taken, done = [], []

    def models() -> Iterator[Graph]:
        for number in range(10):
            taken.append(number)
            yield tiny_graph(channels=8 + number)

    answers = predict_many(models(), on_done=done.append)
    assert taken == []
    next(answers)
    assert taken == [0, 1, 2, 3]
    assert len(list(answers)) == 9
    assert done == [4, 8, 10]


def test_the_network_is_asked_once_about_all_units_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    model = unit_predictor.shipped("h200", "unit-network")
    monkeypatch.setattr(model, "_memo", type(model._memo)(4))
    calls = []
    predict_network = UnitNetwork.predict

    def counted(self: UnitNetwork, units: Encoded, bound_us: Any) -> UnitPredictions:
        calls.append(len(units))
        return predict_network(self, units, bound_us)

    monkeypatch.setattr(UnitNetwork, "predict", counted)
    graphs = [tiny_graph(channels=8 * number) for number in range(1, 9)]
    assert len(list(predict_many(graphs))) == 8
    assert len(calls) == 1
    list(predict_many(graphs, batch_size=graphs[0].batch_size))
    before = sum(calls)
    list(predict_many(graphs, batch_size=graphs[0].batch_size))
    assert sum(calls) == before, "what was asked before is remembered"


def test_a_predictor_without_a_state_is_asked_once_about_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    together = TransferPredictor.predict_many

    def counted(self: TransferPredictor, workloads: Sequence[Workload]) -> list[Prediction]:
        asked.append([workload.target.device.id for workload in workloads])
        return together(self, workloads)

    monkeypatch.setattr(TransferPredictor, "predict_many", counted)
    names = ("l4", "h200", "t4", "a40")
    answers = list(predict_many((tiny_graph(), {"device": name}) for name in names))
    assert asked == [["l4", "t4", "a40"]]
    assert [answer.device for answer in answers if isinstance(answer, Prediction)] == list(names)


def test_one_that_fails_does_not_spoil_the_others() -> None:
    class Picky:
        def predict(self, workload: Workload) -> Prediction:
            if workload.batch_size == 3:
                raise ModelError("not three")
            return predict(workload.graph, batch_size=workload.batch_size)

        def predict_many(self, workloads: list[Workload]) -> list[Prediction]:
            return [self.predict(workload) for workload in workloads]

    target = foretell.Target(foretell.devices()[0])
    workloads = [Workload(tiny_graph(batch_size), target) for batch_size in (2, 3, 4)]
    answers = predict_all(Picky(), workloads)
    assert [isinstance(answer, ForetellError) for answer in answers] == [False, True, False]


def test_a_file_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    monkeypatch.setattr(module, "load_graph", lambda model, **_: read.append(model) or tiny_graph())
    answers = list(predict_many([("model.onnx", {"batch_size": size}) for size in (1, 2, 4)]))
    assert [answer.batch_size for answer in answers if isinstance(answer, Prediction)] == [1, 2, 4]
    assert read == ["model.onnx"]

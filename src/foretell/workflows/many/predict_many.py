"""Workflows: predict many models, or one model in many ways.

Models are taken from any iterable, a part at a time. Those of a part are described first, and then each predictor is
asked once for all of them. So a million models take no more memory than a few, and what is equal in them is computed
once (`foretell.graph.signatures`, `foretell.predictors.row_memo`).
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from foretell.devices import Device
from foretell.errors import ForetellError, InputError
from foretell.graph import Graph
from foretell.predictors import Predictor
from foretell.predictors.host_latency import HostCalibration, with_host_latency
from foretell.predictors.protocol import predict_all
from foretell.records import Prediction, Target, Workload
from foretell.registry import did_you_mean
from foretell.workflows.measure.calibrate import read_calibration
from foretell.workflows.predict import advise_mig, predict, with_precision
from foretell.workflows.workload import (
    COMPILED,
    CUDA_GRAPH,
    Configuration,
    InputShape,
    choose_predictor,
    load_graph,
    read_configuration,
    runtime_name,
)

PART = 64  # models that are described together
_CONFIGURED = ("device", "slice", "runtime", "batch_size", "dtype", "mode", "optimizer", "channels_last")
_READ = (
    "input_shape", "mode", "context", "trust", "allow_unknown", "use_cache", "memory_limit_gib", "timeout_s",
)  # fmt: skip
_MAX_GRAPHS, _MAX_CONFIGURATIONS = 16, 1024

Answer = Prediction | ForetellError


def predict_many(
    models: Iterable[Any],
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    runtime: str = CUDA_GRAPH,
    slice: str | None = None,
    optimizer: str | None = None,
    channels_last: bool = False,
    predictor: str | None = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
    on_done: Callable[[int], None] = lambda _: None,
) -> Iterator[Prediction | ForetellError]:
    """Predict how many models will run, in their order; where one cannot be predicted, its error takes its place.

    Args:
        models: Each as `foretell.predict` takes it, or a pair of that and a dictionary of options of its own.
        device: A name from the catalogue, in any usual spelling.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        dtype: fp32, tf32, fp16, bf16, …; in training fp16 and bf16 mean autocast.
        mode: inference, training, prefill or decode.
        runtime: What drives the device: ``cuda-graph``, ``eager``, or ``compiled``.
        slice: A part of the device: ``mps:30``, ``mig:1g.18gb``, ``sms:66``.
        optimizer: sgd (momentum) or adamw, in training.
        channels_last: Model and images are converted with ``.to(memory_format=torch.channels_last)``.
        predictor: The name of a predictor, or a file of ``foretell train``; the best one for the device by default.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the models to run.
        allow_unknown: Count operators of unknown domains by the bytes they move instead of refusing them.
        use_cache: Store the converted graphs for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.
        on_done: Called with the number of models that are done, after each part.

    >>> from foretell.testing import tiny_onnx
    >>> found = predict_many([tiny_onnx(), (tiny_onnx(), {"batch_size": 8}), "no such file"], device="a100")
    >>> [getattr(answer, "batch_size", type(answer).__name__) for answer in found]
    [1, 8, 'ModelError']
    """
    options = {
        "device": device, "batch_size": batch_size, "input_shape": input_shape, "dtype": dtype, "mode": mode,
        "runtime": runtime, "slice": slice, "optimizer": optimizer, "channels_last": channels_last,
        "predictor": predictor, "context": context, "trust": trust, "allow_unknown": allow_unknown,
        "use_cache": use_cache, "memory_limit_gib": memory_limit_gib, "timeout_s": timeout_s,
    }  # fmt: skip
    _configuration(options)  # a mistake in what is the same for all is one error, not a million
    return _answers(iter(models), options, on_done)


def _answers(models: Iterator[Any], options: Mapping[str, Any], on_done: Callable[[int], None]) -> Iterator[Answer]:
    reading, calibration, done = _Reading(), read_calibration(), 0
    while part := list(islice(models, PART)):
        with _without_collecting():
            answers = _part(part, options, reading, calibration)
            reading.forget()
        yield from answers
        done += len(part)
        on_done(done)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Pause Python's search for cycles: it would visit all graphs of the caller again and again, a third of the time.

    What a part leaves behind in cycles is little, and is found right after it.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@dataclass(frozen=True)
class _Asked:
    """One workload and who is asked about it."""

    workload: Workload
    predictor: Predictor


def _part(
    models: Sequence[Any], options: Mapping[str, Any], reading: "_Reading", calibration: HostCalibration
) -> list[Answer]:
    described: list[_Asked | Answer] = []
    for model in models:
        try:
            described.append(reading.asked(*_with_own_options(model, options)))
        except ForetellError as error:
            described.append(error)
    groups: dict[int, list[int]] = {}
    for number, one in enumerate(described):
        if isinstance(one, _Asked):
            groups.setdefault(id(one.predictor), []).append(number)
    answers: dict[int, Answer] = {}
    for numbers in groups.values():
        asked = [one for number in numbers if isinstance(one := described[number], _Asked)]
        found = predict_all(asked[0].predictor, [one.workload for one in asked])
        for number, one, answer in zip(numbers, asked, found, strict=True):
            answers[number] = answer if isinstance(answer, ForetellError) else _finished(one, answer, calibration)
    return [answers[number] if isinstance(one, _Asked) else one for number, one in enumerate(described)]


def _finished(asked: _Asked, prediction: Prediction, calibration: HostCalibration) -> Answer:
    """What `predict` adds to the answer of a predictor."""
    try:
        precise = with_precision(prediction, asked.workload)
        return with_host_latency(advise_mig(precise, asked.workload, asked.predictor), asked.workload, calibration)
    except ForetellError as error:
        return error


def _with_own_options(model: Any, options: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """A model and its options; a pair has some of its own."""
    if not (isinstance(model, tuple) and len(model) == 2 and isinstance(model[1], Mapping)):
        return model, options
    for name in model[1]:
        if name not in options:
            raise InputError(f"A model has the option {name!r}, which does not exist.{did_you_mean(name, options)}")
    return model[0], {**options, **model[1]}


def _configuration(options: Mapping[str, Any]) -> Configuration:
    return read_configuration(**{name: options[name] for name in _CONFIGURED})


class _Reading:
    """Reads models and finds predictors; the last few of each are kept."""

    def __init__(self) -> None:
        self._predictors: dict[tuple[str | None, Target], Predictor] = {}
        self._plain: dict[type[Predictor], Predictor] = {}
        self._configurations: dict[tuple[object, ...], Configuration] = {}
        self._graph = lru_cache(_MAX_GRAPHS)(_load)
        self._copies: dict[int, tuple[Graph, Graph]] = {}  # by id: a graph of the caller, and its copy
        self._workloads: list[Workload] = []  # of these copies

    def asked(self, model: Any, options: Mapping[str, Any]) -> "_Asked | Prediction":
        """The workload of a model, and its predictor."""
        if runtime_name(options["runtime"]) == COMPILED:
            return predict(model, **options)
        configuration = self._configuration(options)
        workload = configuration.workload(self._read(model, options))
        if isinstance(model, Graph):
            self._workloads.append(workload)
        return _Asked(workload, self._predictor(options["predictor"], configuration.target))

    def _configuration(self, options: Mapping[str, Any]) -> Configuration:
        key = tuple(options[name] for name in _CONFIGURED)
        if key not in self._configurations:
            if len(self._configurations) >= _MAX_CONFIGURATIONS:
                self._configurations.clear()
            self._configurations[key] = _configuration(options)
        return self._configurations[key]

    def _read(self, model: Any, options: Mapping[str, Any]) -> Graph:
        if isinstance(model, Graph):
            # a copy, so that what is computed from it goes when it is done, and not with the caller's graph
            return self._copies.setdefault(id(model), (model, Graph(**model.__getstate__())))[1]
        reading = {name: options[name] for name in _READ}
        if isinstance(model, str | Path):
            try:
                return self._graph(model, tuple(reading.items()))
            except TypeError:  # a shape that cannot be a key, such as a dictionary
                pass
        return _load(model, tuple(reading.items()))

    def forget(self) -> None:
        """Let go of the graphs of the part that is done, and of what was computed from them: it refers to them."""
        for workload in self._workloads:
            workload.running_graph.forget()
            workload.graph.forget()
        for _, copy in self._copies.values():
            copy.forget()
        self._workloads.clear()
        self._copies.clear()

    def _predictor(self, name: str | None, target: Target) -> Predictor:
        key = name, target
        if key not in self._predictors:
            if len(self._predictors) >= _MAX_CONFIGURATIONS:
                self._predictors.clear()
            selected = choose_predictor(name, target)
            # one that has nothing of its own is the same for all devices: it is asked once about all of them
            has_state = any(vars(selected).values())
            self._predictors[key] = selected if has_state else self._plain.setdefault(type(selected), selected)
        return self._predictors[key]


def _load(model: Any, reading: tuple[tuple[str, Any], ...]) -> Graph:
    return load_graph(model, **dict(reading))

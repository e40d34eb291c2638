"""Workflows: does a model fit into a device's memory, and what would make it fit: a batch size, a precision, more GPUs.

The model is read once; every question below is another prediction of the same graph.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from foretell.advisors.batch import largest_batch
from foretell.devices import Device
from foretell.errors import InputError
from foretell.graph import Graph
from foretell.graph.ir.tensor import DTYPE_BITS
from foretell.predictors import Predictor
from foretell.predictors.roofline import peak_memory_mib
from foretell.readable import Readable, flat_row, spell
from foretell.records import Estimate, Fits, Prediction, Workload, fits_into, interval
from foretell.units import bytes_from_mib, size
from foretell.workflows.workload import (
    MAX_BATCH,
    Configuration,
    InputShape,
    choose_predictor,
    has_batch,
    load_graph,
    read_configuration,
)

EXIT_CODES: dict[Fits, int] = {"yes": 0, "perhaps": 3, "no": 4}
_NARROWER = ("bf16", "fp8")
_MOST_GPUS = 64
_STRATEGIES = ("ddp", "zero3")


@dataclass(frozen=True, slots=True)
class Alternative:
    """The same model and batch in another precision, and whether that fits."""

    dtype: str
    fits: Fits
    need_mib: Estimate


@dataclass(frozen=True, repr=False)
class Fit(Readable):
    """Whether a model fits into the memory of a device, and what would make it fit.

    ``largest_batch`` surely fits: the upper end of its interval does. Up to ``largest_batch_perhaps`` the lower end
    does. Both are 0 if not even one item fits, and None for a model without a batch. ``gpus`` is how many of the device
    hold the batch, None if that is not known; ``parallel`` says how they share it.
    """

    prediction: Prediction
    fits: Fits
    need_mib: Estimate
    capacity_mib: float
    largest_batch: int | None
    largest_batch_perhaps: int | None
    gpus: int | None
    parallel: str | None
    precisions: tuple[Alternative, ...]

    @property
    def exit_code(self) -> int:
        """The exit code of ``foretell fit``: 0 yes, 3 perhaps, 4 no."""
        return EXIT_CODES[self.fits]

    def heading(self) -> str:
        """The answer, with both numbers."""
        one = self.prediction
        value, low, high, capacity = (
            size(bytes_from_mib(mib))
            for mib in (self.need_mib.value, self.need_mib.low, self.need_mib.high, self.capacity_mib)
        )
        where = f"{one.device} {one.slice}" if one.slice else one.device
        return f"{self.fits}: {one.model} needs about {value} ({low} – {high}) of the {capacity} of {where}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The setting, the largest batch, the number of GPUs, and other precisions."""
        one = self.prediction
        yield "asked", f"{one.mode}, batch {one.batch_size}, {one.dtype}{f', {one.optimizer}' if one.optimizer else ''}"
        if self.largest_batch is not None:
            yield "largest batch", _batches(self.largest_batch, self.largest_batch_perhaps or 0)
        if self.gpus is not None and self.gpus > 1:
            yield "GPUs", f"{self.gpus}, {self.parallel}"
        for other in self.precisions:
            yield f"in {other.dtype}", f"{other.fits}: {spell(other.need_mib)} MiB"
        if self.fits != "yes":
            yield "next", self._next_step()
        yield "by", one.predictor + (", extrapolated" if one.extrapolated else "")

    def _next_step(self) -> str:
        """What to do, in one sentence."""
        smaller = next((other.dtype for other in self.precisions if other.fits == "yes"), None)
        steps = [f"--dtype {smaller}"] if smaller else []
        if self.largest_batch and self.largest_batch < self.prediction.batch_size:
            steps.append(f"--batch-size {self.largest_batch}")
        if self.gpus is not None and self.gpus > 1:
            steps.append(f"{self.gpus} GPUs")
        return " or ".join(steps) or "a GPU with more memory: foretell devices"

    def rows(self) -> list[dict[str, Any]]:
        """One flat row."""
        return [flat_row(self.to_dict(), leave_out="precisions")]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell fit --json`` prints; what is not known is absent."""
        one = self.prediction
        names = ("model", "device", "slice", "mode", "batch_size", "dtype", "optimizer")
        need = "memory_mib" if one.device_memory_mib is None else "device_memory_mib"
        result: dict[str, Any] = {
            **{name: getattr(one, name) for name in names}, "fits": self.fits, need: interval(self.need_mib),
            "capacity_mib": self.capacity_mib, "largest_batch": self.largest_batch,
            "largest_batch_perhaps": self.largest_batch_perhaps, "gpus": self.gpus, "parallel": self.parallel,
        }  # fmt: skip
        return {name: value for name, value in result.items() if value is not None} | {
            "precisions": [
                {"dtype": other.dtype, "fits": other.fits, need: interval(other.need_mib)} for other in self.precisions
            ],
            "predictor": one.predictor, "extrapolated": one.extrapolated, "warnings": list(one.warnings),
        }  # fmt: skip


def fit(
    model: Any,
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    slice: str | None = None,
    optimizer: str | None = None,
    predictor: str | None = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Fit:
    """Does a model fit into the memory of a device: yes, perhaps (the interval crosses the capacity) or no.

    Args:
        model: As `foretell.predict` takes it.
        device: A name from the catalogue, in any usual spelling.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        dtype: fp32, fp16, bf16, …; in training fp16 and bf16 mean autocast.
        mode: inference, training, prefill or decode.
        slice: A part of the device: ``mig:1g.18gb``.
        optimizer: sgd (momentum) or adamw, in training.
        predictor: The name of a predictor; the best one for the device by default.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move instead of refusing them.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> answer = fit(tiny_onnx(), device="t4", batch_size=2**20, dtype="fp32")
    >>> answer.fits, answer.largest_batch < 2**20 < answer.largest_batch * answer.gpus
    ('no', True)
    """
    configuration = read_configuration(
        device=device, slice=slice, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer
    )
    selected = choose_predictor(predictor, configuration.target)
    graph = load_graph(
        model, input_shape=input_shape, batch_size=batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache, memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    return fit_graph(graph, configuration, selected)


def fit_graph(graph: Graph, configuration: Configuration, predictor: Predictor) -> Fit:
    """The answer for a graph that was read already."""
    predicted = _Predictions(graph, configuration, predictor)
    prediction = predicted.at(configuration.batch_size)
    need, capacity_mib = prediction.need_mib, prediction.capacity_mib
    fits = fits_into(need, capacity_mib)
    if need is None or capacity_mib is None or fits is None:
        raise InputError(
            f"Whether {prediction.model} fits is not known: {prediction.predictor} does not predict the memory on "
            f"{prediction.device}. Leave out --predictor."
        )
    sure, perhaps = predicted.largest(capacity_mib) if has_batch(graph) else (None, None)
    gpus, parallel = (1, None) if fits == "yes" else _several(predicted, sure)
    others = () if fits == "yes" else _precisions(graph, configuration, predictor, capacity_mib)
    return Fit(prediction, fits, need, capacity_mib, sure, perhaps, gpus, parallel, others)


class _Predictions:
    """The predictions of one graph at several batch sizes, each made once."""

    def __init__(self, graph: Graph, configuration: Configuration, predictor: Predictor) -> None:
        self.graph, self.configuration, self.predictor = graph, configuration, predictor
        self._known: dict[int, Prediction] = {}

    def workload(self, batch_size: int) -> Workload:
        return replace(self.configuration, batch_size=batch_size).workload(self.graph)

    def at(self, batch_size: int) -> Prediction:
        """The prediction at a batch size."""
        if batch_size not in self._known:
            self._known[batch_size] = self.predictor.predict(self.workload(batch_size))
        return self._known[batch_size]

    def largest(self, capacity_mib: float) -> tuple[int, int]:
        """The largest batch that surely fits, and the largest that perhaps does."""

        def searched(end: Callable[[Estimate], float]) -> int:
            return largest_batch(lambda batch: end(self._need(batch)), self._guess_mib, capacity_mib, MAX_BATCH)

        sure = searched(lambda need: need.high)
        return sure, searched(lambda need: need.low)

    def _need(self, batch_size: int) -> Estimate:
        need = self.at(batch_size).need_mib
        assert need is not None
        return need

    def _guess_mib(self, batch_size: int) -> float:
        """The peak of live tensors and the driver's context: counted, without the times that make a prediction slow."""
        workload, known = self.workload(batch_size), self.at(self.configuration.batch_size)
        context_mib = 0.0
        if known.device_memory_mib is not None and known.memory_mib is not None:
            context_mib = known.device_memory_mib.value - known.memory_mib.value
        return peak_memory_mib(workload) + context_mib


def _several(predicted: _Predictions, sure: int | None) -> tuple[int | None, str | None]:
    """How many GPUs hold the batch, and how they share it; None if that is not known."""
    batch_size, target = predicted.configuration.batch_size, predicted.configuration.target
    if target.slice is not None or target.device.is_cpu:
        return None, None
    if predicted.configuration.mode == "training":
        return _trained_on(predicted)
    if sure:
        return math.ceil(batch_size / sure), f"each with at most {sure} of the {batch_size} items"
    one = predicted.at(batch_size)
    assert one.need_mib is not None
    assert one.capacity_mib is not None
    return math.ceil(one.need_mib.high / one.capacity_mib), "at least, with its layers divided among them"


def _trained_on(predicted: _Predictions) -> tuple[int | None, str | None]:
    """The fewest GPUs, a power of two, on which a training step surely fits, and the strategy."""
    # Imported late: few questions need it.
    from foretell.predictors.llm.collectives import fabric_of
    from foretell.predictors.parallel.training import predict_parallel

    batch_size, device = predicted.configuration.batch_size, predicted.configuration.target.device
    try:
        fabric = fabric_of(device, network="infiniband-ndr")
    except InputError:  # nobody knows how several of them are connected
        return None, None
    gpus = 2
    while gpus <= _MOST_GPUS:
        own = math.ceil(batch_size / gpus)
        for strategy in _STRATEGIES:
            step = predict_parallel(
                predicted.at(own), predicted.workload(own), predicted.predictor, strategy, gpus, fabric
            )
            if step.fits == "yes":
                return gpus, f"{strategy}, each with {own} of the {batch_size} items"
        gpus *= 2
    return None, None


def _precisions(
    graph: Graph, configuration: Configuration, predictor: Predictor, capacity_mib: float
) -> tuple[Alternative, ...]:
    """The same batch in narrower precisions. In training they mean autocast, which fp8 is no part of."""
    bits = DTYPE_BITS.get(configuration.dtype, DTYPE_BITS["fp32"])
    names = _NARROWER[:1] if configuration.mode == "training" else _NARROWER
    found = []
    for dtype in names:
        if DTYPE_BITS[dtype] < bits:
            need = predictor.predict(replace(configuration, dtype=dtype).workload(graph)).need_mib
            fits = fits_into(need, capacity_mib)
            if need is not None and fits is not None:
                found.append(Alternative(dtype, fits, need))
    return tuple(found)


def _batches(sure: int, perhaps: int) -> str:
    if sure == perhaps == MAX_BATCH:
        return f"{sure:,} or more"
    if not perhaps:
        return "none: not even one item fits"
    if not sure:
        return f"none for sure; perhaps {perhaps:,}"
    return f"{sure:,}" + (f" for sure, perhaps {perhaps:,}" if perhaps != sure else "")

"""Workflows: predict one model for many batch sizes, dtypes, devices and slices. The graph is made once."""

import builtins
import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from foretell.advisors.batch import saturations
from foretell.devices import Device, all_devices, device_of
from foretell.errors import ForetellError, InputError
from foretell.files import write_whole
from foretell.graph import Graph
from foretell.optional import require
from foretell.predictors.protocol import predict_all
from foretell.readable import Readable, spell
from foretell.records import Prediction, Target, Workload, flat_metrics
from foretell.workflows.workload import (
    Configuration,
    InputShape,
    check_batch_size,
    check_dtype,
    check_optimizer,
    choose_predictor,
    load_graph,
    read_configuration,
)

ALL = "all"
PART = 64  # workloads that a predictor is asked about at once
MAX_POINTS = 20_000
_MAX_LINES = 20
FIT_NOTES = {"perhaps": "perhaps does not fit", "no": "does not fit"}
_METRICS = ("latency_ms", "throughput_per_s", "memory_mib", "device_memory_mib", "energy_j", "power_w", "occupancy")


@dataclass(frozen=True, slots=True)
class Point:
    """A prediction, and whether the device has enough memory for it; None if that is not known."""

    prediction: Prediction
    fits: bool | None

    def to_row(self) -> dict[str, Any]:
        """A flat row for a table: each metric with its interval; unknown values are None."""
        prediction, names = self.prediction, ("model", "device", "slice", "dtype", "mode")
        row: dict[str, Any] = {name: getattr(prediction, name) for name in names}
        row |= {"batch_size": prediction.batch_size, "fits": self.fits, "verdict": prediction.fits}
        row |= {"capacity_mib": prediction.capacity_mib, "predictor": prediction.predictor}
        shown = [name + end for name in _METRICS for end in ("", "_low", "_high")]
        metrics = flat_metrics(prediction)
        return row | {name: metrics[name] for name in shown}


class Sweep(Readable, Sequence[Point]):
    """The points of a sweep, in the requested order."""

    def __init__(self, points: Iterable[Point]) -> None:
        self._points = tuple(points)

    def __len__(self) -> int:
        return len(self._points)

    @overload
    def __getitem__(self, place: int) -> Point: ...
    @overload
    def __getitem__(self, place: builtins.slice) -> "Sweep": ...
    def __getitem__(self, place: int | builtins.slice) -> "Point | Sweep":
        selection = self._points[place]
        return Sweep(selection) if isinstance(selection, tuple) else selection

    def heading(self) -> str:
        """The number of points, and the model."""
        return f"Sweep: {len(self)} points{f' of {self[0].prediction.model}' if self._points else ''}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """The latency of the first twenty points."""
        for point in self._points[:_MAX_LINES]:
            prediction = point.prediction
            place = f"{prediction.device} {prediction.slice or ''}".strip()
            latency = "?" if prediction.latency_ms is None else f"{spell(prediction.latency_ms)} ms"
            fits = FIT_NOTES.get(prediction.fits or "yes", "")
            yield f"{place}, batch {prediction.batch_size}, {prediction.dtype}", f"{latency}{', ' * bool(fits)}{fits}"
        if len(self) > _MAX_LINES:
            yield "…", f"{len(self) - _MAX_LINES} more"
        yield from (("batch", found.sentence) for found in saturations(point.prediction for point in self))

    def rows(self) -> list[dict[str, Any]]:
        """One flat row for each point."""
        return [point.to_row() for point in self]

    def to_dict(self) -> dict[str, Any]:
        """All points as rows."""
        return {"points": self.rows()}


def sweep(
    model: Any,
    *,
    devices: Sequence[str | Device] = ("h200",),
    batch_sizes: Sequence[int] = (1, 2, 4, 8, 16, 32, 64),
    dtypes: Sequence[str] = ("fp32",),
    slices: Sequence[str | None] = (None,),
    mode: str = "inference",
    optimizer: str | None = None,
    input_shape: InputShape = None,
    context: int | None = None,
    predictor: str | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Sweep:
    """Predict a model for every device and slice, dtype and batch size, in this order.

    Args:
        model: As `foretell.predict` takes it.
        devices: Names from the catalogue; ``all`` means every GPU in it.
        batch_sizes: Items in a batch.
        dtypes: fp32, fp16, bf16, …
        slices: Parts of each device (``mps:30``, ``sms:66``); None is the whole device.
        mode: inference, training, prefill or decode.
        optimizer: sgd or adamw, in training.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        context: Tokens already in the cache, when decoding.
        predictor: The name of a predictor; the best one for each device by default.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> points = sweep(tiny_onnx(), devices=["h200", "a100"], batch_sizes=[1, 8])
    >>> [(point.prediction.device, point.prediction.batch_size, point.fits) for point in points]
    [('h200', 1, True), ('h200', 8, True), ('a100-sxm-40gb', 1, True), ('a100-sxm-40gb', 8, True)]
    """
    places = [place for device in devices for place in devices_named(device)]
    targets = [
        read_configuration(device=place, slice=part, mode=mode, optimizer=optimizer).target
        for place in places
        for part in slices
    ]
    numbers = [check_dtype(dtype) for dtype in dtypes]
    sizes = [check_batch_size(batch_size) for batch_size in batch_sizes]
    count = len(targets) * len(numbers) * len(sizes)
    if not 0 < count <= MAX_POINTS:
        raise InputError(f"Got {count:,} predictions; it must be between 1 and {MAX_POINTS:,}.")
    graph = load_graph(
        model, input_shape=input_shape, mode=mode, context=context, trust=trust, allow_unknown=allow_unknown,
        use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    return Sweep(sweep_targets(graph, targets, numbers, sizes, mode, optimizer, predictor))


def devices_named(device: str | Device) -> list[Device]:
    """The device with a name; for ``all``, all GPUs of the catalogue."""
    return [place for place in all_devices() if not place.is_cpu] if device == ALL else [device_of(device)]


def sweep_targets(
    graph: Graph,
    targets: Sequence[Target],
    dtypes: Sequence[str],
    batch_sizes: Sequence[int],
    mode: str = "inference",
    optimizer: str | None = None,
    predictor: str | None = None,
) -> Iterator[Point]:
    """Predict a graph on all targets, at all dtypes and batch sizes."""
    checked_optimizer = check_optimizer(optimizer, mode)
    settings = [(dtype, batch_size) for dtype in dtypes for batch_size in batch_sizes]
    graphs: dict[tuple[str, int], Graph] = {}  # made once: they do not depend on the device
    for target in targets:
        selected = choose_predictor(predictor, target)
        for start in range(0, len(settings), PART):
            workloads = []
            for dtype, batch_size in settings[start : start + PART]:
                if (dtype, batch_size) not in graphs:
                    configuration = Configuration(target, batch_size, dtype, mode, checked_optimizer)
                    graphs[dtype, batch_size] = configuration.workload(graph).graph
                workloads.append(Workload(graphs[dtype, batch_size], target, dtype, mode, checked_optimizer))
            for prediction in predict_all(selected, workloads):
                if isinstance(prediction, ForetellError):
                    raise prediction
                yield Point(prediction, _fits(prediction))


def _fits(prediction: Prediction) -> bool | None:
    """Whether it may fit (`Prediction.fits` tells yes from perhaps). The advisors are stricter: it must surely fit."""
    return None if prediction.fits is None else prediction.fits != "no"


def write_points(points: Sequence[Point], file: Path) -> None:
    """Write all points as a table: CSV or Parquet, by the suffix of the file."""
    rows = [point.to_row() for point in points]
    if file.suffix == ".csv":
        text = io.StringIO()
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
    elif file.suffix == ".parquet":
        arrow = require("pyarrow", extra="data", purpose="Writing Parquet")
        parquet = require("pyarrow.parquet", extra="data", purpose="Writing Parquet")
        sink = arrow.BufferOutputStream()
        parquet.write_table(arrow.Table.from_pylist(rows), sink, compression="zstd")
        data = sink.getvalue().to_pybytes()
    else:
        raise InputError(f"Unknown format of {file.name!r}; use the suffix .csv or .parquet.")
    try:
        write_whole(file, data)
    except OSError as error:
        raise InputError(f"Cannot write {file}: {error.strerror}. Choose another --out.") from error

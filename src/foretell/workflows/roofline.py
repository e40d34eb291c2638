"""Workflows: the roofline of a workload: predicted times of its units under the ceilings of a device."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from foretell.devices import Device, Hardware
from foretell.devices.ceilings import Ceilings
from foretell.devices.device import DTYPES
from foretell.errors import InputError
from foretell.features import extract_units
from foretell.features.units import COLUMNS
from foretell.features.units import DTYPES as UNIT_DTYPES
from foretell.files import write_whole
from foretell.graph import Cost, graph_costs
from foretell.optional import require
from foretell.predictors import Predictor
from foretell.predictors.explain import timeline
from foretell.predictors.kernels.shares import classifier_for
from foretell.predictors.roofline import timeline as slots_of
from foretell.records import Workload
from foretell.registry import did_you_mean
from foretell.rendering.html.roofline_page import roofline_page
from foretell.rendering.svg.canvas import with_fixed_colours
from foretell.rendering.svg.roofline import Group, Point, Roof, Roofline, draw_roofline
from foretell.units import bytes_per_s, flops_per_s, us
from foretell.workflows.measure.characterise import known_ceilings
from foretell.workflows.workload import InputShape, find_answerer, load_graph, read_configuration

GROUPINGS = ("operator", "kernel")
FORMATS = (".svg", ".png", ".html")
_HBM = ("p100", "v100", "a100", "a30", "h100", "h200", "b200")  # the rest of the catalogue has GDDR or DDR
_SHOWN = ("fp32", "tf32", "bf16", "fp16")
_CATALOGUE = "catalogue"
# of the dtype of a unit the format of a peak; what is no arithmetic format counts as fp32, as everywhere
_NUMBERS = {row: name for row, name in enumerate(UNIT_DTYPES) if name in DTYPES}
_PIXELS_A_UNIT = 2.0
_FAR = 0.25  # of a ceiling: no ceiling is what limits


def roofline(
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
    by: str = "operator",
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
) -> Roofline:
    """Where the units of a model lie under the ceilings of a device; most arguments are those of `predict`.

    Args:
        model: As `foretell.predict` takes it.
        device: A name of the catalogue.
        batch_size: Items a batch.
        input_shape: Shape of the input without the batch.
        dtype: fp32, fp16, bf16, …
        mode: inference, training, prefill or decode.
        slice: A part of the device.
        optimizer: sgd or adamw, in training.
        predictor: The name of a predictor; the best one for the device where absent.
        by: ``operator`` or ``kernel``: what units are told apart by.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move.
        use_cache: Keep the converted graph for the next call.

    >>> from foretell.testing import tiny_onnx
    >>> found = roofline(tiny_onnx(), device="a100", batch_size=8)
    >>> [roof.name for roof in found.roofs if roof.used]
    ['HBM', 'fp32', 'tf32 tensor cores']
    """
    if by not in GROUPINGS:
        raise InputError(f"Nothing is grouped by {by!r}.{did_you_mean(by, GROUPINGS)}")
    configuration = read_configuration(
        device=device, slice=slice, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer
    )
    answerer = find_answerer(predictor, configuration.target)
    graph = load_graph(
        model, input_shape=input_shape, batch_size=configuration.batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache,
    )  # fmt: skip
    return roofline_of(configuration.workload(graph), answerer, by=by)


def roofline_of(workload: Workload, predictor: Predictor, *, by: str = "operator") -> Roofline:
    """The roofline of a workload as a predictor sees it."""
    told = predictor.predict(workload)
    if told.latency_ms is None:
        raise InputError(f"The predictor {told.predictor!r} knows no latency: choose another --predictor.")
    target = workload.target
    classifier, warning = classifier_for(target) if by == "kernel" else (None, None)
    ceilings = known_ceilings(target.device)
    hardware = replace(target, device=reached_by(target.device, ceilings)).hardware
    units = extract_units(workload)
    events: Any = timeline(workload, predictor, told.latency_ms.value, classifier)["traceEvents"]
    slots = slots_of(workload, graph_costs(workload.running_graph))
    numbers = [_NUMBERS.get(int(row), "fp32") for row in units.features[:, COLUMNS.index("dtype")]]
    works = [
        _work(event, slot.cost, number, hardware)
        for event, slot, number in zip(events[1:], slots, numbers, strict=True)
    ]
    if not works:
        raise InputError(f"The model {told.model!r} does no work on the device: there is nothing to draw.")
    products = [work for work in works if work.cost.macs] or works
    used = {(work.number, bool(work.cost.tensor_core_macs)) for work in products}
    grouped = "kernel" if classifier else "operator"
    return Roofline(
        model=told.model,
        device=target.device.id,
        device_name=target.device.name,
        slice=told.slice,
        batch_size=told.batch_size,
        dtype=told.dtype,
        mode=told.mode,
        predictor=told.predictor,
        by=grouped,
        latency_ms=told.latency_ms.value,
        roofs=roofs_of(hardware, ceilings, used),
        points=_points(works, grouped),
        groups=_groups(works, grouped),
        notes=(*([warning] if warning else []), *_notes(target.device, ceilings), *told.warnings),
    )


def reached_by(device: Device, ceilings: Ceilings | None) -> Device:
    """The device with what was measured in place of its peaks."""
    if ceilings is None:
        return device
    plain = ceilings.tflops if device.is_cpu else {k: v for k, v in ceilings.tflops.items() if k == "fp32"}
    tensor = {k: v for k, v in ceilings.tflops.items() if k not in plain}
    return replace(
        device,
        vector_tflops={**device.vector_tflops, **plain},
        tensor_tflops={**device.tensor_tflops, **tensor},
        bandwidth_gb_per_s=ceilings.dram_gb_per_s or device.bandwidth_gb_per_s,
    )


def roofs_of(hardware: Hardware, ceilings: Ceilings | None, used: Set[tuple[str, bool]]) -> tuple[Roof, ...]:
    """Memory, cache and arithmetic by number format; ``used`` are those of a workload, with or without tensor cores."""
    device = hardware.device
    source = f"{ceilings.source}, {ceilings.date}" if ceilings else ""
    memory = "HBM" if device.id.startswith(_HBM) else "DRAM"
    measured = ceilings is not None and ceilings.dram_gb_per_s is not None
    dram_per_s = bytes_per_s(hardware.bandwidth_gb_per_s)
    found = [Roof(memory, "memory", dram_per_s, True, measured, source if measured else _CATALOGUE)]
    if ceilings is not None and ceilings.cache_gb_per_s is not None:
        part = hardware.slice.l2_fraction if hardware.slice else 1.0
        cache = "last-level cache" if device.is_cpu else "L2"
        found.append(Roof(cache, "memory", bytes_per_s(ceilings.cache_gb_per_s * part), False, True, source))
    peaks = {hardware.peak_tflops(name, tensor_cores=tensor) for name, tensor in used}
    plain = hardware.peak_tflops("fp32", tensor_cores=False)
    rates: dict[tuple[float, bool], list[str]] = {}
    for name, tensor in product(DTYPES, (False, True)):
        if name in (device.tensor_tflops if tensor else device.vector_tflops):
            rate = hardware.peak_tflops(name, tensor_cores=tensor)
            # what is not used is shown where it would be faster
            faster = name in _SHOWN and (tensor or device.is_cpu) and rate > plain
            if name == "fp32" or faster or (name, tensor) in used:
                rates.setdefault((rate, tensor), []).append(name)
    for (rate, tensor), names in rates.items():
        timed = ceilings.tflops if ceilings and (tensor or device.is_cpu or names == ["fp32"]) else {}
        measured = all(name in timed for name in names)
        label = ", ".join(names) + (" tensor cores" if tensor else "")
        where = source if measured else _CATALOGUE
        found.append(Roof(label, "compute", flops_per_s(rate), rate in peaks, measured, where))
    return tuple(found)


def _notes(device: Device, ceilings: Ceilings | None) -> list[str]:
    """What the ceilings rest on."""
    if ceilings is None:
        return [
            f"The ceilings are the catalogue's peaks, without the cache's: on {device.id} itself, "
            "foretell characterise measures what they come to."
        ]
    found = [f"Ceilings as measured on {ceilings.name}, {ceilings.date}: {ceilings.source}."]
    if device.is_cpu:
        found.append("The times are those of the catalogue's generic processor; the ceilings are those of this one.")
    return found


@dataclass(frozen=True, slots=True)
class _Work:
    """One unit: what it is, what it costs, the time it takes, and the least it could."""

    event: Mapping[str, Any]
    cost: Cost
    number: str
    time_us: float
    least_us: float
    limit: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Units of which this is the same are one point."""
        told = self.event["args"]
        return self.event["name"], told["shapes"], self.cost.flops, self.cost.bytes, told.get("kernel")

    def group(self, by: str) -> str:
        """The operator, or the class of its kernel."""
        return str(self.event["args"]["kernel"] if by == "kernel" else self.event["name"])


def _work(event: Mapping[str, Any], cost: Cost, number: str, hardware: Hardware) -> _Work:
    on_tensor_cores = 2 * cost.tensor_core_macs
    compute_s = on_tensor_cores / flops_per_s(hardware.peak_tflops(number, tensor_cores=True))
    compute_s += (cost.flops - on_tensor_cores) / flops_per_s(hardware.peak_tflops(number, tensor_cores=False))
    memory_s = cost.bytes / bytes_per_s(hardware.bandwidth_gb_per_s)
    least_us, time_us = us(max(compute_s, memory_s)), float(event["dur"])
    if cost.launches * hardware.device.launch_overhead_us >= time_us / 2:
        limit = "launch"
    elif least_us < _FAR * time_us:
        limit = "kernel"
    elif compute_s > memory_s:
        limit = "compute"
    else:
        limit = "cache" if least_us > time_us else "memory"
    return _Work(event, cost, number, time_us, least_us, limit)


def _points(works: Sequence[_Work], by: str) -> tuple[Point, ...]:
    """Equal units as one point, most time first."""
    equal: dict[tuple[object, ...], list[_Work]] = {}
    for work in works:
        equal.setdefault(work.identity, []).append(work)
    whole_us = sum(work.time_us for work in works)
    found = []
    for members in equal.values():
        first, told = members[0], members[0].event["args"]
        spent_us = sum(work.time_us for work in members)
        found.append(
            Point(
                operator=str(first.event["name"]),
                module=str(told["module"]),
                shapes=str(told["shapes"]),
                group=first.group(by),
                count=len(members),
                flops=first.cost.flops,
                bytes=first.cost.bytes,
                time_us=spent_us / len(members),
                share=spent_us / whole_us,
                reached=sum(work.least_us for work in members) / spent_us,
                limit=_limit(members),
                kernel=told.get("kernel"),
                probability=told.get("probability"),
            )
        )
    return tuple(sorted(found, key=lambda point: -point.share))


def _groups(works: Sequence[_Work], by: str) -> tuple[Group, ...]:
    """Units of one operator or class of kernels as one row, most time first."""
    named: dict[str, list[_Work]] = {}
    for work in works:
        named.setdefault(work.group(by), []).append(work)
    whole_us = sum(work.time_us for work in works)
    found = []
    for name, members in named.items():
        spent_us = sum(work.time_us for work in members)
        least_us = sum(work.least_us for work in members)
        flops, moved = (sum(getattr(work.cost, what) for work in members) for what in ("flops", "bytes"))
        reached = (spent_us / whole_us, least_us / spent_us, _limit(members))
        found.append(Group(name, len(members), flops, moved, spent_us, *reached))
    return tuple(sorted(found, key=lambda group: -group.share))


def _limit(members: Sequence[_Work]) -> str:
    """What limits units for most of their time."""
    spent: dict[str, float] = {}
    for work in members:
        spent[work.limit] = spent.get(work.limit, 0.0) + work.time_us
    return max(spent, key=lambda limit: spent[limit])


def write_roofline(found: Roofline, file: Path, *, dark: bool = False) -> None:
    """The picture as .svg or .png, or a page with it as .html, by the name of the file; ``dark`` is for .png."""
    if file.suffix not in FORMATS:
        raise InputError(
            f"Cannot tell the format of {file.name!r}; name it {', '.join(FORMATS[:-1])} or {FORMATS[-1]}."
        )
    if file.suffix == ".html":
        data = roofline_page(found).encode()
    elif file.suffix == ".svg":
        data = draw_roofline(found).encode()
    else:
        data = bitmap(with_fixed_colours(draw_roofline(found), dark=dark))
    try:
        write_whole(file, data)
    except OSError as error:
        raise InputError(f"Cannot write {file}: {error.strerror}. Choose another --out.") from error


def bitmap(svg: str) -> bytes:
    """A picture as PNG, in a font that is the same everywhere; other fonts of the machine help where it lacks signs."""
    renderer = require("resvg_py", extra="pictures", purpose="Drawing PNG")
    font = require("font_source_sans_pro", extra="pictures", purpose="Drawing PNG")
    fonts = [str(path) for path in sorted(Path(font.font_directory).glob("*.otf"))]
    return bytes(renderer.svg_to_bytes(svg_string=svg, zoom=_PIXELS_A_UNIT, font_files=fonts))

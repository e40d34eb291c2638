"""Workflows: the roofline of a workload: the predicted times of its units, and the ceilings of the device."""

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
from foretell.features.units import COLUMNS, columns_of
from foretell.features.units import DTYPES as UNIT_DTYPES
from foretell.files import write_whole
from foretell.graph import Cost
from foretell.optional import require
from foretell.predictors import Predictor
from foretell.predictors.explain import timeline
from foretell.predictors.kernels.shares import classifier_for
from foretell.records import Workload
from foretell.registry import did_you_mean
from foretell.rendering.html.roofline_page import roofline_page
from foretell.rendering.svg.canvas import with_fixed_colours
from foretell.rendering.svg.roofline import Group, Point, Roof, Roofline, draw_roofline
from foretell.units import bytes_per_s, flops_per_s, us
from foretell.workflows.measure.characterise import known_ceilings
from foretell.workflows.workload import InputShape, choose_predictor, load_graph, read_configuration

GROUPINGS = ("operator", "kernel")
FORMATS = (".svg", ".png", ".html")
_HBM = ("p100", "v100", "a100", "a30", "h100", "h200", "b200")  # the rest of the catalogue has GDDR or DDR
_SHOWN_FORMATS = ("fp32", "tf32", "bf16", "fp16")
_CATALOGUE = "catalogue"
# From the dtype feature of a unit to the number format of a peak; integers and the like count as fp32.
_NUMBER_FORMATS = {row: name for row, name in enumerate(UNIT_DTYPES) if name in DTYPES}
_PNG_SCALE = 2.0
_FAR_SHARE = 0.25  # below this share of every ceiling, the kernel itself is the limit


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
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
) -> Roofline:
    """The roofline of a model on a device; most arguments are those of `predict`.

    Args:
        model: As `foretell.predict` takes it.
        device: A name from the catalogue.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch.
        dtype: fp32, fp16, bf16, …
        mode: inference, training, prefill or decode.
        slice: A part of the device.
        optimizer: sgd or adamw, in training.
        predictor: The name of a predictor; the best one for the device by default.
        by: Group units by ``operator`` or by ``kernel``.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.

    >>> from foretell.testing import tiny_onnx
    >>> result = roofline(tiny_onnx(), device="a100", batch_size=8)
    >>> [roof.name for roof in result.roofs if roof.used]
    ['HBM', 'fp32', 'tf32 tensor cores']
    """
    if by not in GROUPINGS:
        raise InputError(f"Cannot group by {by!r}.{did_you_mean(by, GROUPINGS)}")
    configuration = read_configuration(
        device=device, slice=slice, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer
    )
    selected = choose_predictor(predictor, configuration.target)
    graph = load_graph(
        model, input_shape=input_shape, batch_size=configuration.batch_size, mode=mode, context=context, trust=trust,
        allow_unknown=allow_unknown, use_cache=use_cache,
        memory_limit_gib=memory_limit_gib, timeout_s=timeout_s,
    )  # fmt: skip
    return roofline_of(configuration.workload(graph), selected, by=by)


def roofline_of(workload: Workload, predictor: Predictor, *, by: str = "operator") -> Roofline:
    """The roofline of a workload, with the times of a predictor."""
    prediction = predictor.predict(workload)
    if prediction.latency_ms is None:
        raise InputError(
            f"The predictor {prediction.predictor!r} does not predict latency: choose another --predictor."
        )
    target = workload.target
    classifier, warning = classifier_for(target) if by == "kernel" else (None, None)
    ceilings = known_ceilings(target.device)
    hardware = replace(target, device=with_measured_peaks(target.device, ceilings)).hardware
    units = extract_units(workload)
    events: Any = timeline(workload, predictor, prediction.latency_ms.value, classifier)["traceEvents"]
    number_formats = [_NUMBER_FORMATS.get(int(row), "fp32") for row in units.features[:, COLUMNS.index("dtype")]]
    # The first event of a trace is metadata; the others are the units, in order.
    works = [
        _work(event, cost, number_format, hardware)
        for event, cost, number_format in zip(events[1:], columns_of(workload).costs, number_formats, strict=True)
    ]
    if not works:
        raise InputError(f"The model {prediction.model!r} does no work on the device: there is nothing to draw.")
    # Only products decide which arithmetic roofs apply; other work is far below all of them.
    products = [work for work in works if work.cost.macs] or works
    used = {(work.number_format, bool(work.cost.tensor_core_macs)) for work in products}
    grouped = "kernel" if classifier else "operator"
    return Roofline(
        model=prediction.model,
        device=target.device.id,
        device_name=target.device.name,
        slice=prediction.slice,
        batch_size=prediction.batch_size,
        dtype=prediction.dtype,
        mode=prediction.mode,
        predictor=prediction.predictor,
        by=grouped,
        latency_ms=prediction.latency_ms.value,
        roofs=roofs_of(hardware, ceilings, used),
        points=_points(works, grouped),
        groups=_groups(works, grouped),
        notes=(*([warning] if warning else []), *_notes(target.device, ceilings), *prediction.warnings),
    )


def with_measured_peaks(device: Device, ceilings: Ceilings | None) -> Device:
    """The device with measured ceilings instead of the peaks of its datasheet."""
    if ceilings is None:
        return device
    # On a GPU, fp32 is measured without tensor cores and all other formats with them.
    plain = ceilings.tflops if device.is_cpu else {k: v for k, v in ceilings.tflops.items() if k == "fp32"}
    tensor = {k: v for k, v in ceilings.tflops.items() if k not in plain}
    return replace(
        device,
        vector_tflops={**device.vector_tflops, **plain, **ceilings.plain_tflops},
        tensor_tflops={**device.tensor_tflops, **tensor},
        bandwidth_gb_per_s=ceilings.dram_gb_per_s or device.bandwidth_gb_per_s,
    )


def roofs_of(hardware: Hardware, ceilings: Ceilings | None, used: Set[tuple[str, bool]]) -> tuple[Roof, ...]:
    """The roofs: memory, cache, and arithmetic by number format.

    ``used`` has the number formats of the workload, each with or without tensor cores. Formats with equal rates share a
    roof.
    """
    device = hardware.device
    source = f"{ceilings.source}, {ceilings.date}" if ceilings else ""
    memory = "HBM" if device.id.startswith(_HBM) else "DRAM"
    measured = ceilings is not None and ceilings.dram_gb_per_s is not None
    dram_per_s = bytes_per_s(hardware.bandwidth_gb_per_s)
    roofs = [Roof(memory, "memory", dram_per_s, True, measured, source if measured else _CATALOGUE)]
    if ceilings is not None and ceilings.cache_gb_per_s is not None:
        part = hardware.slice.l2_fraction if hardware.slice else 1.0
        cache = "last-level cache" if device.is_cpu else "L2"
        roofs.append(Roof(cache, "memory", bytes_per_s(ceilings.cache_gb_per_s * part), False, True, source))
    if ceilings is not None and ceilings.l1_gb_per_s is not None:
        rate = bytes_per_s(ceilings.l1_gb_per_s * hardware.sm_fraction)  # every SM has its own
        roofs.append(Roof("L1", "memory", rate, False, True, source))
    peaks = {hardware.peak_tflops(name, tensor_cores=tensor) for name, tensor in used}
    plain = hardware.peak_tflops("fp32", tensor_cores=False)
    rates: dict[tuple[float, bool], list[str]] = {}
    for name, tensor in product(DTYPES, (False, True)):
        if name in (device.tensor_tflops if tensor else device.vector_tflops):
            rate = hardware.peak_tflops(name, tensor_cores=tensor)
            # Formats that the workload does not use are shown only if they would be faster.
            faster = name in _SHOWN_FORMATS and (tensor or device.is_cpu) and rate > plain
            beside = not tensor and ceilings is not None and name in ceilings.plain_tflops and (name, True) in used
            if name == "fp32" or faster or beside or (name, tensor) in used:
                rates.setdefault((rate, tensor), []).append(name)
    for (rate, tensor), names in rates.items():
        timed: Mapping[str, float] = {}
        if ceilings is not None:
            timed = ceilings.tflops if tensor or device.is_cpu or names == ["fp32"] else ceilings.plain_tflops
        measured = all(name in timed for name in names)
        label = ", ".join(names) + (" tensor cores" if tensor else "")
        where = source if measured else _CATALOGUE
        roofs.append(Roof(label, "compute", flops_per_s(rate), rate in peaks, measured, where))
    return tuple(roofs)


def _notes(device: Device, ceilings: Ceilings | None) -> list[str]:
    """Where the ceilings come from."""
    if ceilings is None:
        return [
            "The ceilings are peaks from the catalogue, without the cache. To measure real ones, "
            f"run foretell characterise on a {device.id}."
        ]
    notes = [f"Ceilings as measured on {ceilings.name}, {ceilings.date}: {ceilings.source}."]
    if device.is_cpu:
        notes.append("The times are those of the catalogue's generic processor; the ceilings are those of this one.")
    return notes


@dataclass(frozen=True, slots=True)
class _Work:
    """One unit of work: what it is, what it costs, its predicted time and the least time that the ceilings allow."""

    event: Mapping[str, Any]
    cost: Cost
    number_format: str
    time_us: float
    least_us: float
    limit: str

    @property
    def identity(self) -> tuple[object, ...]:
        """Units with the same identity become one point."""
        arguments = self.event["args"]
        return self.event["name"], arguments["shapes"], self.cost.flops, self.cost.bytes, arguments.get("kernel")

    def group(self, by: str) -> str:
        """The operator, or the class of its kernel."""
        return str(self.event["args"]["kernel"] if by == "kernel" else self.event["name"])


def _work(event: Mapping[str, Any], cost: Cost, number_format: str, hardware: Hardware) -> _Work:
    """Find the limit of a unit: launch first, then distance from all ceilings, then the nearest ceiling."""
    # A MAC is two FLOP.
    on_tensor_cores = 2 * cost.tensor_core_macs
    compute_s = on_tensor_cores / flops_per_s(hardware.peak_tflops(number_format, tensor_cores=True))
    compute_s += (cost.flops - on_tensor_cores) / flops_per_s(hardware.peak_tflops(number_format, tensor_cores=False))
    memory_s = cost.bytes / bytes_per_s(hardware.bandwidth_gb_per_s)
    least_us, time_us = us(max(compute_s, memory_s)), float(event["dur"])
    if cost.launches * hardware.device.launch_overhead_us >= time_us / 2:
        limit = "launch"
    elif least_us < _FAR_SHARE * time_us:
        limit = "kernel"
    elif compute_s > memory_s:
        limit = "compute"
    else:
        limit = "cache" if least_us > time_us else "memory"
    return _Work(event, cost, number_format, time_us, least_us, limit)


def _points(works: Sequence[_Work], by: str) -> tuple[Point, ...]:
    """Equal units as one point, those with the most time first."""
    equal: dict[tuple[object, ...], list[_Work]] = {}
    for work in works:
        equal.setdefault(work.identity, []).append(work)
    total_us = sum(work.time_us for work in works)
    points = []
    for members in equal.values():
        first, arguments = members[0], members[0].event["args"]
        spent_us = sum(work.time_us for work in members)
        points.append(
            Point(
                operator=str(first.event["name"]),
                module=str(arguments["module"]),
                shapes=str(arguments["shapes"]),
                group=first.group(by),
                count=len(members),
                flops=first.cost.flops,
                bytes=first.cost.bytes,
                time_us=spent_us / len(members),
                share=spent_us / total_us,
                reached=sum(work.least_us for work in members) / spent_us,
                limit=_limit(members),
                kernel=arguments.get("kernel"),
                probability=arguments.get("probability"),
            )
        )
    return tuple(sorted(points, key=lambda point: -point.share))


def _groups(works: Sequence[_Work], by: str) -> tuple[Group, ...]:
    """Units of one operator or class of kernels as one row, those with the most time first."""
    named: dict[str, list[_Work]] = {}
    for work in works:
        named.setdefault(work.group(by), []).append(work)
    total_us = sum(work.time_us for work in works)
    groups = []
    for name, members in named.items():
        spent_us = sum(work.time_us for work in members)
        least_us = sum(work.least_us for work in members)
        flops, moved = (sum(getattr(work.cost, what) for work in members) for what in ("flops", "bytes"))
        reached = (spent_us / total_us, least_us / spent_us, _limit(members))
        groups.append(Group(name, len(members), flops, moved, spent_us, *reached))
    return tuple(sorted(groups, key=lambda group: -group.share))


def _limit(members: Sequence[_Work]) -> str:
    """The limit that applies to units for most of their time."""
    spent: dict[str, float] = {}
    for work in members:
        spent[work.limit] = spent.get(work.limit, 0.0) + work.time_us
    return max(spent, key=lambda limit: spent[limit])


def write_roofline(result: Roofline, file: Path, *, dark: bool = False) -> None:
    """Write the picture as .svg or .png, or a page as .html, by the suffix of the file; ``dark`` is for .png."""
    if file.suffix not in FORMATS:
        raise InputError(f"Unknown format of {file.name!r}; use the suffix {', '.join(FORMATS[:-1])} or {FORMATS[-1]}.")
    if file.suffix == ".html":
        data = roofline_page(result).encode()
    elif file.suffix == ".svg":
        data = draw_roofline(result).encode()
    else:
        data = bitmap(with_fixed_colours(draw_roofline(result), dark=dark))
    try:
        write_whole(file, data)
    except OSError as error:
        raise InputError(f"Cannot write {file}: {error.strerror}. Choose another --out.") from error


def bitmap(svg: str) -> bytes:
    """A picture as PNG. It uses a font from a package, so that it looks the same on all machines."""
    renderer = require("resvg_py", extra="pictures", purpose="Drawing PNG")
    font = require("font_source_sans_pro", extra="pictures", purpose="Drawing PNG")
    fonts = [str(path) for path in sorted(Path(font.font_directory).glob("*.otf"))]
    return bytes(renderer.svg_to_bytes(svg_string=svg, zoom=_PNG_SCALE, font_files=fonts))

"""Predictors: the roofline: the time of a unit is max(compute, memory) + launch; the latency is the sum of all units.

S. Williams, A. Waterman, D. Patterson: Roofline, CACM 52(4), 2009. The model is analytic and needs no training. The
peaks are those of the datasheet. Kernels reach only a share of them, and each adds a small fixed time. These constants
come from one look at an H200 (``docs/lab/0002-roofline.md``). For other devices, `reached` derives the shares from how
much work their peaks ask of each SM.

Limits: no caches, no overlap between kernels, no choice of algorithm. The prediction is therefore marked
``uncalibrated`` and its interval is wide; a predictor that is fitted to measurements of the device should replace it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, Hardware, find_device
from foretell.features.units import columns_of
from foretell.frozen import dataclass
from foretell.graph import Graph, graph_costs
from foretell.graph.ir.layout import layouts
from foretell.graph.memory.allocator import Tape
from foretell.graph.memory.liveness import cached_peak, inference_tape, live_peak
from foretell.graph.wiring import numbers_of, wiring
from foretell.predictors.options import with_options
from foretell.records import Estimate, OperatorShare, Prediction, Workload
from foretell.units import (
    bytes_from_gib,
    bytes_from_mib,
    bytes_per_s,
    flops_per_s,
    mib,
    ms,
    per_second,
    seconds_from_ms,
    seconds_from_us,
)

COMPUTE_EFFICIENCY = 0.5
MEMORY_EFFICIENCY = 0.3  # low: most kernels of a framework do not saturate the bandwidth of an SM
BEST_COMPUTE, BEST_MEMORY = 0.95, 0.9  # the shares where the SMs are no limit
# On the H200, measured / predicted is within 0.68 – 1.5 (latency), 0.99 – 1.12 (memory) and 0.78 – 1.25 (power) nine
# times in ten. Other devices were not measured, so the intervals are wider.
LATENCY_LOW, LATENCY_HIGH = 0.5, 2.0
OTHER_MAKERS = 1.5  # wider still, by assumption: nobody measured what kernels of AMD, Intel and Apple reach
MEMORY_LOW, MEMORY_HIGH = 0.95, 1.25
POWER_LOW, POWER_HIGH = 0.7, 1.4
BASE_SHARE_OF_TDP = 0.22  # the power of a GPU at full clocks without work
COMPUTE_POWER_SLOPE, MEMORY_POWER_SLOPE = 1.9, 1.6  # share of the rest of the TDP for each share of the peak in use
# memory that NVML shows beyond the allocator's (CUDA context, loaded kernels): median, 5 and 95 % on the H200
CONTEXT_MIB = Estimate(838.0, 758.0, 884.0)
CUBLAS_WORKSPACE_MIB = {"hopper": 32.0, "other": 8.125}  # PyTorch reserves it at the first matrix product
CUBLASLT_WORKSPACE_MIB = 1.0  # for matrix products with a bias
LEAST_LATENCY_MS = "least_latency_ms"  # the fact of a prediction that holds `least_latency_ms`
_LEAST_CONVOLUTION = 1 / 2.25  # of its arithmetic
BOUNDS = ("compute", "memory", "launch")
_RATES = ("fp64", "fp32", "bf16", "fp16", "fp8", "fp4", "int8")  # dtypes that datasheets give a peak for
_PRODUCTS = ("Gemm", "MatMul", "Einsum", "FusedMatMul", "Bilinear")
CONSTANTS_FROM = "h200"  # the device on which the constants above were measured

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Slots:
    """The units of work on the timeline, as columns: forward, then backward from the last node to the first, update."""

    operators: tuple[str, ...]  # with "(backward)" behind those of the backward pass
    compute_ms: Values
    memory_ms: Values
    launch_ms: Values

    def __len__(self) -> int:
        return len(self.operators)

    @property
    def latency_ms(self) -> Values:
        """The time of each."""
        return np.maximum(self.compute_ms, self.memory_ms) + self.launch_ms

    @property
    def bounds(self) -> NDArray[np.intp]:
        """What limits each, as a position in `BOUNDS`."""
        by_peak = np.where(self.compute_ms > self.memory_ms, BOUNDS.index("compute"), BOUNDS.index("memory"))
        is_launch = self.launch_ms > np.maximum(self.compute_ms, self.memory_ms)
        return np.where(is_launch, BOUNDS.index("launch"), by_peak)


class RooflinePredictor:
    """Predicts for every device of the catalogue, without data."""

    name = "roofline"

    def predict(self, workload: Workload) -> Prediction:
        """Latency, memory, energy and power of a workload, with a warning that nothing was measured."""
        prediction = analytic_prediction(workload)
        warnings = (uncalibrated(workload.target.device), *prediction.warnings)
        return with_options(replace(prediction, warnings=warnings, extrapolated=True), workload)


def analytic_prediction(workload: Workload, *, with_breakdown: bool = True) -> Prediction:
    """The roofline's prediction; other predictors replace the parts that they know better."""
    graph, hardware = workload.running_graph, workload.target.hardware
    warnings = [*workload.graph.warnings]
    table = graph_costs(graph)
    slots = timeline(workload)
    latency_ms = float(slots.latency_ms.sum())
    # a graph of views alone
    if not latency_ms:
        latency_ms = device_launch_ms(hardware)
        warnings.append("The graph does no work on the device; the time is that of an empty launch.")
    memory_mib = peak_memory_mib(workload)
    power_w = mean_power_w(slots, latency_ms, hardware)
    if table.unknown_operators:
        named = ", ".join(f"{op} ({share:.1%} of bytes)" for op, share in table.unknown_operators.items())
        warnings.append(f"Unknown operators, counted by the bytes they move: {named}")
    bound_ms = least_latency_ms(slots, graph, hardware)
    low, high = (LATENCY_LOW, LATENCY_HIGH)
    if _is_of_another_maker(workload.target.device):
        low, high = low / OTHER_MAKERS, high * OTHER_MAKERS
    latency = Estimate(latency_ms, latency_ms * low, latency_ms * high).at_least(bound_ms)
    power = Estimate(power_w, power_w * POWER_LOW, min(power_w * POWER_HIGH, workload.target.device.tdp_w))
    memory = Estimate(memory_mib, memory_mib * MEMORY_LOW, memory_mib * MEMORY_HIGH)
    energy_j = power_w * seconds_from_ms(latency_ms)
    return Prediction(
        model=graph.name,
        device=workload.target.device.id,
        slice=workload.target.slice.text if workload.target.slice else None,
        runtime=workload.target.runtime,
        threads=workload.target.threads,
        mode=workload.mode,
        batch_size=workload.batch_size,
        dtype=workload.dtype,
        optimizer=workload.optimizer,
        predictor=RooflinePredictor.name,
        latency_ms=latency,
        throughput_per_s=latency.inverted(per_second(workload.batch_size, 1.0)),
        memory_mib=memory,
        device_memory_mib=memory + CONTEXT_MIB if workload.target.device.is_nvidia else None,
        energy_j=Estimate(energy_j, energy_j * low * POWER_LOW, energy_j * high * POWER_HIGH),
        power_w=power,
        coverage=table.coverage,
        breakdown=shares(slots) if with_breakdown else (),
        warnings=tuple(warnings),
        facts={
            **{name: table.summed(name) for name in ("parameters", "macs", "flops")},
            "memory_capacity_mib": mib(bytes_from_gib(hardware.memory_gib)),
            LEAST_LATENCY_MS: bound_ms,
        },
    )


def least_latency_ms(slots: Slots, graph: Graph, hardware: Hardware) -> float:
    """The time below which no run can be: all arithmetic at the peak, and the weights of products read once.

    What the cache holds from the run before need not be read, and of a table of embeddings only some rows are.

    Less than half of the arithmetic of convolutions counts: libraries may choose an algorithm that multiplies less
    (A. Lavin and S. Gray, CVPR 2016: 2.25 times less for 3 × 3).
    """
    compute_share, _ = reached(hardware.device)
    shares = {operator: _LEAST_CONVOLUTION if "Conv" in operator else 1.0 for operator in set(slots.operators)}
    counted = [shares[operator] for operator in slots.operators]
    compute_ms = float(slots.compute_ms @ np.array(counted)) if counted else 0.0
    sizes = layouts(graph).bytes
    weights = sum([sizes[number] for number in _multiplied_weights(graph)])
    beyond_cache = max(0.0, weights - bytes_from_mib(hardware.l2_mib))
    return max(compute_ms * compute_share, ms(beyond_cache / bytes_per_s(hardware.bandwidth_gb_per_s)))


def _multiplied_weights(graph: Graph) -> Sequence[int]:
    """The numbers of the parameters that matrix products read."""
    if "multiplied weights" not in graph.structure:
        inputs = wiring(graph).inputs
        read = {number for node, own in zip(graph.nodes, inputs, strict=True) if node.op in _PRODUCTS for number in own}
        graph.structure["multiplied weights"] = sorted(read.intersection(numbers_of(graph, "parameter")))
    return graph.structure["multiplied weights"]  # type: ignore[no-any-return]


def uncalibrated(device: Device) -> str:
    """A warning that says what the prediction for this device rests on."""
    if device.id == CONSTANTS_FROM:
        return f"uncalibrated: an analytic roofline; only its constants come from measurements of {device.name}"
    if _is_of_another_maker(device):
        return (
            f"uncalibrated: nothing was measured on any GPU of {device.vendor}; {device.id} is answered by an analytic "
            "roofline whose constants come from an H200 and CUDA's kernels, hence the wide interval"
        )
    return (
        f"uncalibrated: {device.id} is extrapolated from an analytic roofline until measured data covers it; "
        f"no measurement of {device.name} went into this answer, and the roofline's constants come from an H200"
    )


def _is_of_another_maker(device: Device) -> bool:
    return not device.is_cpu and not device.is_nvidia


@cache
def reached(device: Device) -> tuple[float, float]:
    """The shares of the peaks of compute and bandwidth that kernels reach on a device.

    On an H200 it is the SM that slows kernels down, and of all devices only the B200 has peaks that ask more of each
    SM. So the time beyond the peak is scaled: for memory by the bytes, and for compute by the square root of the FLOPs,
    that an SM must handle in a cycle to keep up with the peak (``docs/lab/0022-other-gpus.md``).

    >>> from foretell.devices import find_device
    >>> [tuple(round(share, 2) for share in reached(find_device(name))) for name in ("h200", "a100", "rtx-4090")]
    [(0.5, 0.3), (0.57, 0.43), (0.71, 0.67)]
    """
    own_paces, reference_paces = _paces(device), _paces(find_device(CONSTANTS_FROM))
    if device.id == CONSTANTS_FROM or own_paces is None or reference_paces is None:
        return COMPUTE_EFFICIENCY, MEMORY_EFFICIENCY
    compute, memory = (own_paces[0] / reference_paces[0]) ** 0.5, own_paces[1] / reference_paces[1]
    return (
        # time beyond the best share, 1 / reached − 1 / best, is proportional to the pace of an SM
        1 / (1 / BEST_COMPUTE + (1 / COMPUTE_EFFICIENCY - 1 / BEST_COMPUTE) * compute),
        1 / (1 / BEST_MEMORY + (1 / MEMORY_EFFICIENCY - 1 / BEST_MEMORY) * memory),
    )


def _paces(device: Device) -> tuple[float, float] | None:
    """FLOPs (fp16) and bytes per SM and cycle at the peaks, up to a factor; None where the clock is unknown."""
    if device.is_cpu or not device.boost_clock_mhz:
        return None
    cycles = device.sms * device.boost_clock_mhz
    return device.peak_tflops("fp16", tensor_cores=True) / cycles, device.bandwidth_gb_per_s / cycles


def timeline(workload: Workload) -> Slots:
    """Every unit of work in the order in which it runs: forward, then backward and the optimizer."""
    hardware, units = workload.target.hardware, columns_of(workload)
    # datasheets give no peak for other types, such as int64: take that of fp32
    dtypes = {dtype: dtype if dtype in _RATES else "fp32" for dtype in sorted(set(units.first_dtypes))}
    on_tensor_cores, elsewhere = (
        _peaks(
            units.first_dtypes,
            {dtype: hardware.peak_tflops(rate, tensor_cores=cores) for dtype, rate in dtypes.items()},
        )
        for cores in (True, False)
    )
    compute_share, memory_share = reached(hardware.device)
    of_tensor_cores = units.work("tensor_core_flops")
    compute_s = (
        of_tensor_cores / on_tensor_cores + (units.work("flops") - of_tensor_cores) / elsewhere
    ) / compute_share
    memory_s = units.work("bytes") / bytes_per_s(hardware.bandwidth_gb_per_s) / memory_share
    launch_ms = units.work("launches") * device_launch_ms(hardware)
    return Slots(units.names, compute_s * ms(1.0), memory_s * ms(1.0), launch_ms)


def _peaks(dtypes: Sequence[str], tflops: Mapping[str, float]) -> Values:
    rates = {dtype: flops_per_s(rate) for dtype, rate in tflops.items()}
    if len(rates) == 1:
        return np.full(len(dtypes), rates[dtypes[0]])
    return np.array([rates[dtype] for dtype in dtypes])


def device_launch_ms(hardware: Hardware) -> float:
    """The gap on the device that one kernel launch leaves."""
    return ms(seconds_from_us(hardware.device.launch_overhead_us))


def peak_memory_mib(workload: Workload) -> float:
    """The peak of the framework's allocator: live tensors, and the workspaces of cuBLAS. It is cached on the graph."""
    device = workload.target.device
    kind = "cpu" if device.is_cpu else "hopper" if device.architecture.lower() == "hopper" else "other"
    key = kind, workload.is_training, workload.optimizer
    cache: dict[tuple[object, ...], float] = vars(workload.running_graph).setdefault("_peaks", {})
    if key not in cache:
        cache[key] = _peak_memory_mib(workload, kind)
    return cache[key]


def _peak_memory_mib(workload: Workload, kind: str) -> float:
    graph, optimizer, cuda = workload.running_graph, workload.optimizer or "sgd", kind != "cpu"
    tapes: dict[tuple[object, ...], Tape] = vars(graph).setdefault("_tapes", {})  # the same on all GPUs
    key = workload.is_training and optimizer, cuda
    reached, states = frozenset[str](), list[int]()
    if workload.is_training:
        # here, because most predictions are of forward passes
        from foretell.graph.memory.autograd import needing_gradients, reached_by_loss
        from foretell.graph.memory.training import optimizer_states, training_tape

        if key not in tapes:
            tapes[key] = training_tape(graph, optimizer, cuda=cuda)
        states = optimizer_states(graph, optimizer)
        reached = reached_by_loss(graph, needing_gradients(graph))
    elif key not in tapes:
        tapes[key] = inference_tape(graph, cuda=cuda)
    tape = tapes[key]
    if not cuda:
        return mib(live_peak(graph, tape, states).bytes)
    products = [node for node in graph.nodes if node.op in _PRODUCTS]
    # cuBLAS reserves nothing before the first product; the backward pass runs in a thread with a handle of its own
    handles = bool(products) + any(not reached.isdisjoint(node.outputs) for node in products)
    workspaces = [bytes_from_mib(CUBLAS_WORKSPACE_MIB[kind])] * handles
    if products:
        workspaces.append(bytes_from_mib(CUBLASLT_WORKSPACE_MIB))
    return mib(cached_peak(graph, tape, states, workspaces).bytes)


def mean_power_w(slots: Slots, latency_ms: float, hardware: Hardware) -> float:
    """Base power, plus a part for each share of the device's peaks in use; at most the TDP."""
    of_compute, of_memory = reached(hardware.device)
    # slots are timed at the peaks of the slice, which are a part of the device's
    bandwidth_fraction = hardware.bandwidth_gb_per_s / hardware.device.bandwidth_gb_per_s
    compute_share = float(slots.compute_ms.sum()) * of_compute / latency_ms * hardware.sm_fraction
    memory_share = float(slots.memory_ms.sum()) * of_memory / latency_ms * bandwidth_fraction
    busy = min(1.0, COMPUTE_POWER_SLOPE * compute_share + MEMORY_POWER_SLOPE * memory_share)
    return hardware.device.tdp_w * (BASE_SHARE_OF_TDP + (1 - BASE_SHARE_OF_TDP) * busy)


def shares(slots: Slots) -> tuple[OperatorShare, ...]:
    """Time by operator, longest first."""
    numbers: dict[str, int] = {}
    rows = np.array([numbers.setdefault(operator, len(numbers)) for operator in slots.operators], np.intp)
    latency_ms = slots.latency_ms
    total_ms = float(latency_ms.sum()) or 1.0
    by_bound = np.bincount(rows * len(BOUNDS) + slots.bounds, latency_ms, len(numbers) * len(BOUNDS))
    limits = by_bound.reshape(len(numbers), len(BOUNDS)).argmax(axis=1)
    spent_ms, counts = np.bincount(rows, latency_ms, len(numbers)), np.bincount(rows, minlength=len(numbers))
    found = [
        OperatorShare(
            operator, int(counts[row]), float(spent_ms[row]), float(spent_ms[row]) / total_ms, BOUNDS[limits[row]]
        )
        for operator, row in numbers.items()
    ]
    return tuple(sorted(found, key=lambda share: -share.latency_ms))

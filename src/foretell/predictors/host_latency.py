"""Predictors: host latency: the wall-clock time of eager PyTorch, as a host launches the kernels one by one.

Idea: the host runs ahead of the device, so the slower of the two decides. The wall-clock time is the larger of the
device's time and the time that the host needs for all its calls, plus one synchronisation. The host's time is a sum
over calls, each with the cost of its kind; these costs were fitted to eager runs beside an H200
(``docs/lab/0009-host-latency.md``). Another host needs a multiple of it, which ``foretell calibrate`` measures.

Limits: one multiple for all kinds of calls; no other load on the host; a model that synchronises in its middle
(``.item()``) waits more often than once.
"""

import math
from dataclasses import replace

from foretell.frozen import dataclass
from foretell.graph import Graph, graph_costs, run_groups
from foretell.graph.ir.operators import lookup
from foretell.records import Estimate, Prediction, Workload
from foretell.units import ms, seconds_from_us

# microseconds on the reference host
US_PER_CALL = 21.6  # an operator that launches something
US_PER_VIEW = 4.2  # an operator that makes a view
US_PER_MODULE = 12.7  # the Python code of a module's call
US_PER_RECURRENT_STEP = 20.8
US_PER_BACKWARD_CALL = 56.0  # includes what the forward call records for autograd
US_PER_PARAMETER = 34.8  # its gradient and its update
US_PER_ADAMW_PARAMETER = 31.2  # of AdamW beyond SGD
US_PER_TRAINING_STEP = 1280.0
US_TO_SYNCHRONISE = 62.0
DEVICE_SLOWDOWN = 1.065  # eager device time over that of a replayed CUDA graph
# standard deviation of ln(measured / predicted) without the noise between runs of one model on one host
MODEL_SPREAD = 0.22
_Z90 = 1.645
# for graphs without module paths (some ONNX files): models have about one module for each call
_MODULES_PER_CALL = 1.05
_WIDEST_PERSISTENT_STATE = 64  # cuDNN runs all steps of a layer up to this width in one kernel, except in bf16


@dataclass(frozen=True)
class HostCalibration:
    """How much slower than the reference host a host is; ``low`` to ``high`` holds nine in ten of true / predicted.

    ``slowdown`` is None where it could not be measured: on a host without CUDA only ``dispatch_us`` is known.
    """

    host: str
    cpu: str
    device: str
    torch: str
    slowdown: float | None
    training_slowdown: float | None
    low: float
    high: float
    dispatch_us: float | None = None
    measured_at: str = ""


# The host of data/h200. low and high are the 5th and 95th percentile over measuring runs, each held out in turn: they
# include the spread between runs. The dispatch cost without CUDA was not measured.
REFERENCE = HostCalibration(
    "vm (data/h200)", "Intel(R) Xeon(R) Processor", "NVIDIA H200", "2.11.0", 1.0, 1.0, low=0.62, high=1.69
)
ON_REFERENCE = (
    "The eager latency is that of the host of data/h200, a 16-core Xeon virtual machine; hosts differ. On yours, run: "
    "foretell calibrate"
)
CPU_ONLY = (
    "This host was calibrated without CUDA, which does not tell what a launch costs: the eager latency is that of the "
    "reference host. Where there is a GPU, run: foretell calibrate --device cuda"
)


def spread_bounds(standard_error: float) -> tuple[float, float]:
    """The interval of true / predicted on a host whose slowdown has this standard error (of its logarithm).

    >>> [round(bound, 2) for bound in spread_bounds(0.0)]
    [0.7, 1.44]
    """
    half_width = _Z90 * math.hypot(MODEL_SPREAD, standard_error)
    return math.exp(-half_width), math.exp(half_width)


@dataclass(frozen=True)
class Calls:
    """How many calls of each kind the host makes in one run."""

    calls: int
    views: int
    modules: int
    recurrent_steps: int
    backward_calls: int = 0
    parameters: int = 0
    adamw_parameters: int = 0
    training_steps: int = 0

    @property
    def reference_us(self) -> float:
        """The time that the reference host needs for these calls."""
        return (
            self.calls * US_PER_CALL
            + self.views * US_PER_VIEW
            + self.modules * US_PER_MODULE
            + self.recurrent_steps * US_PER_RECURRENT_STEP
            + self.backward_calls * US_PER_BACKWARD_CALL
            + self.parameters * US_PER_PARAMETER
            + self.adamw_parameters * US_PER_ADAMW_PARAMETER
            + self.training_steps * US_PER_TRAINING_STEP
        )


def count_calls(workload: Workload) -> Calls:
    """Count what eager PyTorch calls for a workload.

    >>> from foretell.devices import find_device
    >>> from foretell.records import Target
    >>> from foretell.testing import tiny_graph
    >>> count_calls(Workload(tiny_graph(), Target(find_device("h200"))))  # the reshape is a view
    Calls(calls=4, views=1, modules=4, recurrent_steps=0, backward_calls=0, parameters=0, adamw_parameters=0, \
training_steps=0)
    """
    graph = workload.running_graph
    groups = run_groups(graph_costs(graph))
    calls = sum(1 for group in groups if group.cost.launches)
    steps = sum(
        group.cost.launches
        for group in groups
        if lookup(group.op).kind == "recurrent" and not _is_persistent(graph, group.nodes[-1])
    )
    # without module paths, estimate from the number of calls
    modules = _count_modules(graph) or round(calls * _MODULES_PER_CALL)
    forward = Calls(calls, len(groups) - calls, modules, steps)
    if not workload.is_training:
        return forward
    from foretell.graph import training_step  # here, because most predictions are of forward passes

    optimizer = workload.optimizer or "sgd"
    parameters = sum(tensor.kind == "parameter" for tensor in graph.tensors.values())
    return replace(
        forward,
        backward_calls=sum(1 for cost in training_step(graph, optimizer).backward if cost.launches),
        parameters=parameters,
        adamw_parameters=parameters if optimizer == "adamw" else 0,
        training_steps=1,
    )


def _count_modules(graph: Graph) -> int:
    """The number of modules that run something, and of the modules around them."""
    paths: set[str] = set()
    for module in {node.module for node in graph.nodes if node.module}:
        parts = module.split(".")
        paths.update(".".join(parts[: depth + 1]) for depth in range(len(parts)))
    return len(paths)


def _is_persistent(graph: Graph, position: int) -> bool:
    """Whether one kernel runs all steps of a recurrent node."""
    # the last output is a state, which is as wide as the layer
    state = graph.tensors[[name for name in graph.nodes[position].outputs if name][-1]]
    return state.dtype != "bf16" and state.shape[-1] <= _WIDEST_PERSISTENT_STATE


def host_latency(workload: Workload, device_ms: Estimate, calibration: HostCalibration = REFERENCE) -> Estimate:
    """Wall-clock milliseconds of one eager run; never less than the device needs."""
    slowdown = calibration.training_slowdown if workload.is_training else calibration.slowdown
    if slowdown is None:
        return host_latency(workload, device_ms)
    launching_ms = ms(seconds_from_us(count_calls(workload).reference_us)) * slowdown
    waiting_ms = ms(seconds_from_us(US_TO_SYNCHRONISE)) * slowdown
    return Estimate(
        # host and device run at the same time: the slower one decides, then the host waits once
        max(device_ms.value * DEVICE_SLOWDOWN, launching_ms) + waiting_ms,
        max(device_ms.low, launching_ms * calibration.low),
        max(device_ms.high * DEVICE_SLOWDOWN, launching_ms * calibration.high) + waiting_ms * calibration.high,
    )


def with_host_latency(prediction: Prediction, workload: Workload, calibration: HostCalibration) -> Prediction:
    """The prediction with its eager wall-clock time, where eager is the runtime or this host is calibrated on CUDA.

    The device time stays what it is. A CPU launches nothing on a device, so there is no second time to predict.
    """
    device_ms = prediction.latency_ms
    is_calibrated = calibration.slowdown is not None and calibration != REFERENCE
    is_needed = workload.target.runtime == "eager" or is_calibrated
    if device_ms is None or prediction.host_latency_ms is not None or workload.target.device.is_cpu or not is_needed:
        return prediction
    if is_calibrated:
        warning = f"The eager latency is that of the host {calibration.host!r}, calibrated {calibration.measured_at}."
    else:
        warning = CPU_ONLY if calibration.slowdown is None else ON_REFERENCE
    return replace(
        prediction,
        host_latency_ms=host_latency(workload, device_ms, calibration),
        warnings=(*prediction.warnings, warning),
    )

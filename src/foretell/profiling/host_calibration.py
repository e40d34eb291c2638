"""Profiling: how fast this host launches work, compared with the reference host.

A dozen small networks run eagerly. They are workloads of the H200 dataset whose eager time depends on the host and not
on the GPU, so the same step is compared on two hosts. Without CUDA, only the cost of dispatching an operator can be
measured. It is recorded, but nothing is scaled by it, because it was not measured on the reference host.
"""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import require
from foretell.profiling.environment import describe
from foretell.profiling.workload import Workload
from foretell.units import ms, us

DEVICES = ("cuda", "cpu")
MIN_PROBES = 3
_WARMUPS = 5
_RUNS = 21
_PROBE_BUDGET_S = 0.2
_TOTAL_BUDGET_S = 20.0
_MAX_WAITING_SHARE = 0.5  # a run whose last half is waiting for the device tells little about the host
_DISPATCHES, _DISPATCH_REPEATS = 2000, 9


@dataclass(frozen=True)
class Probe:
    """A step, and the eager milliseconds it took on the reference host (data/h200)."""

    workload: Workload
    reference_ms: float


def _probe(
    reference_ms: float, spec: str, batch: int, shape: tuple[int, ...], dtype: str, optimizer: str = ""
) -> Probe:
    mode = "training" if optimizer else "inference"
    return Probe(Workload(f"synthetic:{spec}", batch, shape, dtype, mode, optimizer), reference_ms)


# Chosen among the networks that need nothing but torch: at least four times the device's time, and near what the fitted
# costs say, so that neither a lucky measurement nor an odd architecture sets the scale.
_RESIDUAL, _TRANSFORMER = "residual?act=", "transformer?act="
PROBES = (
    _probe(5.297, _RESIDUAL + "gelu&blocks=4-4&expand=4&kernel=5&norm=instance&se=true&stem=9&width=16",
           8, (3, 64, 64), "bf16"),
    _probe(3.853, _RESIDUAL + "relu&blocks=1-3-5-5&groups=1&kernel=3&norm=batch&stem=5&width=24",
           4, (3, 128, 128), "bf16"),
    _probe(1.474, _RESIDUAL + "relu&blocks=4-2&groups=1&kernel=3&norm=none&stem=7&width=48", 2, (3, 128, 128), "fp32"),
    _probe(4.137, _RESIDUAL + "silu&blocks=5-4-3&expand=2&kernel=5&norm=batch&se=false&stem=5&width=48",
           1, (3, 160, 160), "fp16"),
    _probe(1.626, _TRANSFORMER + "gelu&causal=false&classes=10&depth=4&heads=12&inner=768&width=192",
           16, (16, 192), "bf16"),
    _probe(3.177, _TRANSFORMER + "relu&causal=false&classes=1000&depth=8&heads=20&inner=3200&width=800",
           32, (16, 800), "fp16"),
    _probe(3.977, _TRANSFORMER + "relu&causal=true&classes=8000&depth=9&heads=12&inner=384&width=192",
           4, (197, 192), "fp16"),
    _probe(2.551, _TRANSFORMER + "silu&causal=true&classes=8000&depth=6&heads=2&inner=768&width=256",
           16, (128, 256), "fp16"),
    _probe(3.012, "lenet?act=leaky&scale=4", 8, (1, 28, 28), "fp32", "adamw"),
    _probe(3.828, "lenet?act=leaky&scale=4", 64, (1, 28, 28), "bf16", "adamw"),
    _probe(4.064, "cnn?act=relu&channels=1-64-16-128-256-512-512&dilation=4&dims=1&kernels=7-7-1-1-9-7&norm=none"
           "&strides=2-1-1-1-1-1", 2, (1, 1024), "fp32", "adamw"),
    _probe(7.613, _TRANSFORMER + "relu&causal=false&classes=10&depth=4&heads=1&inner=128&width=32",
           1, (577, 32), "fp32", "adamw"),
)  # fmt: skip


@dataclass(frozen=True)
class HostSpeed:
    """The result: for every probe that is bound by the host, its time divided by the time on the reference host."""

    host: str
    cpu: str
    device: str
    torch: str
    measured_at: str
    dispatch_us: float
    inference: tuple[float, ...] = ()
    training: tuple[float, ...] = ()


def measure_host(device: str | None = None, probes: Sequence[Probe] = PROBES) -> HostSpeed:
    """Measure this host in a few seconds, on ``device`` or by default on CUDA if there is any."""
    torch = require("torch", extra="profile", purpose="Calibrating a host")
    has_cuda = torch.cuda.is_available()
    device = device or ("cuda" if has_cuda else "cpu")
    if device not in DEVICES:
        raise MeasurementError(f"Cannot calibrate on {device!r}. Choose from: {', '.join(DEVICES)}.")
    if device == "cuda" and not has_cuda:
        raise MeasurementError(
            "There is no CUDA device here. Use --device cpu to measure only the cost of dispatching."
        )
    facts = describe(device)
    speed = HostSpeed(
        host=str(facts["host"]),
        cpu=str(facts["host_cpu"]),
        device=str(facts["device_name"]),
        torch=str(torch.__version__),
        measured_at=str(facts["date"]),
        dispatch_us=measure_dispatch_us(torch),
    )
    if device == "cpu":
        return speed
    ratios = _run_probes(torch, device, probes)
    if len(ratios["inference"]) < MIN_PROBES:
        raise MeasurementError(
            f"Only {len(ratios['inference'])} of the probes were bound by this host; {MIN_PROBES} are needed. The "
            "device is slow or busy: run foretell calibrate when nothing else uses it."
        )
    return replace(speed, inference=tuple(ratios["inference"]), training=tuple(ratios["training"]))


def measure_dispatch_us(torch: Any) -> float:
    """Microseconds to call one tiny operator on the CPU: the median of several rounds."""
    number = torch.zeros(1)  # so small that the time of the call is the time of dispatching
    rounds = []
    with torch.inference_mode():
        for _ in range(_DISPATCH_REPEATS):
            started = time.perf_counter()
            for _ in range(_DISPATCHES):
                torch.add(number, number)
            rounds.append((time.perf_counter() - started) / _DISPATCHES)
    return us(statistics.median(rounds))


def _run_probes(torch: Any, device: str, probes: Sequence[Probe]) -> dict[str, list[float]]:
    """By mode, ratios of this host's time to the reference; probes that fail or wait for the device are left out."""
    ratios: dict[str, list[float]] = {"inference": [], "training": []}
    started = time.perf_counter()
    for probe in probes:
        if time.perf_counter() - started > _TOTAL_BUDGET_S:
            break
        try:
            total_ms, waited_ms = _time_probe(torch, device, probe.workload)
        except RuntimeError:  # a card without bf16, or without the memory
            continue
        if waited_ms < _MAX_WAITING_SHARE * total_ms:
            ratios[probe.workload.mode].append(total_ms / probe.reference_ms)
    return ratios


def _time_probe(torch: Any, device: str, workload: Workload) -> tuple[float, float]:
    from foretell.profiling.skeleton import Weights
    from foretell.profiling.steps import make_step, weight_dtype
    from foretell.profiling.zoos.registry import build

    built = build(workload.spec)
    Weights(built.model, cast_buffers=built.cast_buffers).place(device, weight_dtype(workload))
    step = make_step(built, workload, device)
    try:
        return time_runs(step.run, torch.cuda.synchronize if device == "cuda" else lambda: None)
    finally:
        step.close()


def time_runs(run: Callable[[], object], synchronise: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds of a run until the device has finished, and how many of these the host waited; both are medians."""
    for _ in range(_WARMUPS):
        run()
        synchronise()
    totals: list[float] = []
    waits: list[float] = []
    while len(totals) < MIN_PROBES or (len(totals) < _RUNS and math.fsum(totals) < ms(_PROBE_BUDGET_S)):
        started = time.perf_counter()
        run()
        launched = time.perf_counter()
        synchronise()
        ended = time.perf_counter()
        totals.append(ms(ended - started))
        waits.append(ms(ended - launched))
    return statistics.median(totals), statistics.median(waits)

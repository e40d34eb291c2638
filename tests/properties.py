"""What must hold for every prediction, whatever the model; `violations` names what does not."""

import itertools
import math
from collections import Counter
from collections.abc import Iterator

from foretell.devices import parse_slice
from foretell.graph import Graph
from foretell.records import Estimate, Prediction
from foretell.workflows.workload import choose_predictor, read_configuration

METRICS = ("latency_ms", "throughput_per_s", "memory_mib", "energy_j", "power_w")
SHARES = (100, 60, 20)  # MPS percentages, falling
_SLACK = 1e-4


def check_model(
    graph: Graph, device: str, batch_size: int, dtype: str, mode: str, predictor: str | None = None
) -> Iterator[tuple[str, str, bool]]:
    """Every property that was checked: its name, the case, and whether it holds."""
    case = f"{graph.name} {mode} on {device}, batch {batch_size}, {dtype}"

    def predict(part: str | None) -> Prediction:
        configuration = read_configuration(
            device=device, slice=part, batch_size=batch_size, dtype=dtype, mode=mode,
            optimizer="sgd" if mode == "training" else None,
        )  # fmt: skip
        workload = configuration.workload(graph.with_batch(batch_size))
        return choose_predictor(predictor, configuration.target).predict(workload)

    whole = predict(None)
    yield from _check_alone(whole, case)
    target = read_configuration(device=device, batch_size=1, dtype=dtype, mode=mode).target.device
    instances = []
    for profile in target.mig_profiles:
        part = parse_slice(f"mig:{profile.name}", target)
        prediction = predict(part.text)
        yield from _check_alone(prediction, f"{case}, {part.text}")
        yield from _check_part(prediction, whole, f"{case}, {part.text}")
        instances.append((part, prediction))
    for (one, first), (two, second) in itertools.permutations(instances, 2):
        if (one.sms, one.bandwidth_fraction, one.l2_fraction) <= (
            two.sms,
            two.bandwidth_fraction,
            two.l2_fraction,
        ) and (one.bandwidth_fraction <= two.bandwidth_fraction and one.l2_fraction <= two.l2_fraction):
            holds = _value(first, "latency_ms") >= _value(second, "latency_ms") * (1 - _SLACK)
            yield "a smaller MIG instance is not faster", f"{case}, {one.text} and {two.text}", holds
    before = whole
    for percent in SHARES:
        prediction = predict(f"mps:{percent}")
        yield from _check_alone(prediction, f"{case}, mps:{percent}")
        yield from _check_part(prediction, before, f"{case}, mps:{percent}")
        if percent == 100:
            for metric in METRICS:
                near = abs(_value(prediction, metric) / _value(whole, metric) - 1) < 0.02
                yield "mps:100 is the whole device", f"{case}, {metric}", near
        before = prediction


def _check_alone(prediction: Prediction, case: str) -> Iterator[tuple[str, str, bool]]:
    for metric in METRICS:
        estimate: Estimate = getattr(prediction, metric)
        ends = (estimate.low, estimate.value, estimate.high)
        sound = all(math.isfinite(end) and end > 0 for end in ends) and ends == tuple(sorted(ends))
        yield "numbers are finite and in order", f"{case}, {metric}", sound
    product_j = _value(prediction, "power_w") * _value(prediction, "latency_ms") / 1e3
    yield "energy is power times latency", case, abs(_value(prediction, "energy_j") / product_j - 1) < 0.005
    assert prediction.latency_ms is not None
    least_ms = prediction.facts["least_latency_ms"]
    yield "the low end is not below the bound", case, prediction.latency_ms.low >= least_ms * (1 - _SLACK)


def _check_part(part: Prediction, larger: Prediction, case: str) -> Iterator[tuple[str, str, bool]]:
    slower = _value(part, "latency_ms") >= _value(larger, "latency_ms") * (1 - _SLACK)
    yield "a part is not faster", case, slower
    yield "a part does not draw more", case, _value(part, "power_w") <= _value(larger, "power_w") * (1 + _SLACK)


def _value(prediction: Prediction, metric: str) -> float:
    estimate: Estimate = getattr(prediction, metric)
    return estimate.value


def count(checks: Iterator[tuple[str, str, bool]], total: Counter[str], broken: dict[str, list[str]]) -> None:
    """Add checks to the totals, and the cases that do not hold to ``broken``."""
    for name, case, holds in checks:
        total[name] += 1
        if not holds:
            broken.setdefault(name, []).append(case)

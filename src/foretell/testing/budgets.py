"""Testing: assertions that fail a build when a model outgrows its budget. Nothing is run: a prediction decides.

    from foretell.testing import assert_fits, assert_latency

    def test_the_detector_stays_fast():
        assert_latency("detector.onnx", 20, device="l4", batch_size=8, dtype="fp16")
        assert_fits("detector.onnx", device="l4", batch_size=8, dtype="fp16")

By default the predicted value decides for latency, and certainty for memory: a model that only perhaps fits fails,
because a process without memory dies. ``sure`` changes either.
"""

from typing import TYPE_CHECKING, Any

from foretell.errors import InputError

if TYPE_CHECKING:
    from foretell.records import Estimate, Prediction
    from foretell.workflows.memory.fit import Fit


class BudgetError(AssertionError):
    """A model that takes more than its budget."""


def assert_fits(model: Any, *, device: str = "h200", sure: bool = True, **options: Any) -> "Fit":
    """Fail unless a model fits into the memory of a device; returns the answer of `foretell.fit`.

    Args:
        model: As `foretell.predict` takes it.
        device: A name from the catalogue.
        sure: Whether "perhaps" fails, too: the upper end of the interval does not fit.
        **options: Those of `foretell.fit`: batch_size, dtype, mode, input_shape, …

    >>> from foretell.testing import tiny_onnx
    >>> assert_fits(tiny_onnx(), device="t4", batch_size=8).fits
    'yes'
    """
    import foretell

    answer = foretell.fit(model, device=device, **options)
    if answer.fits == "no" or (sure and answer.fits != "yes"):
        raise BudgetError(f"{answer.heading()}. {_ADVICE}")
    return answer


def assert_latency(
    model: Any, limit_ms: float, *, device: str = "h200", sure: bool = False, **options: Any
) -> "Prediction":
    """Fail unless a batch takes at most ``limit_ms``; returns the prediction.

    Args:
        model: As `foretell.predict` takes it.
        limit_ms: The budget in milliseconds.
        device: A name from the catalogue.
        sure: Whether the upper end of the 90 % interval must keep the budget, not only the value.
        **options: Those of `foretell.predict`: batch_size, dtype, mode, runtime, slice, …

    >>> from foretell.testing import tiny_onnx
    >>> assert_latency(tiny_onnx(), 0.0001)
    Traceback (most recent call last):
    ...
    foretell.testing.budgets.BudgetError: tiny takes 0.0...
    """
    _check_limit(limit_ms, "ms")
    prediction = _predicted(model, device, options)
    latency = prediction.host_latency_ms if prediction.runtime == "eager" else None
    _keep(prediction, latency or prediction.latency_ms, limit_ms, "ms", "latency", sure=sure)
    return prediction


def assert_memory(
    model: Any, limit_mib: float, *, device: str = "h200", sure: bool = True, **options: Any
) -> "Prediction":
    """Fail unless the memory, as nvidia-smi shows it, stays within ``limit_mib``; returns the prediction.

    Args:
        model: As `foretell.predict` takes it.
        limit_mib: The budget in MiB.
        device: A name from the catalogue.
        sure: Whether the upper end of the 90 % interval must keep the budget, not only the value.
        **options: Those of `foretell.predict`.

    >>> from foretell.testing import tiny_onnx
    >>> assert_memory(tiny_onnx(), 2000).device
    'h200'
    """
    _check_limit(limit_mib, "MiB")
    prediction = _predicted(model, device, options)
    need = prediction.device_memory_mib or prediction.memory_mib
    _keep(prediction, need, limit_mib, "MiB", "memory", sure=sure)
    return prediction


_ADVICE = "See what would help: foretell improve."


def _predicted(model: Any, device: str, options: dict[str, Any]) -> "Prediction":
    import foretell

    return foretell.predict(model, device=device, **options)


def _check_limit(limit: float, unit: str) -> None:
    if not 0 < limit < float("inf"):
        raise InputError(f"The budget is {limit} {unit}; it must be a number above 0.")


def _keep(prediction: "Prediction", need: "Estimate | None", limit: float, unit: str, name: str, *, sure: bool) -> None:
    if need is None:
        raise InputError(f"The predictor {prediction.predictor!r} does not predict {name}: choose another one.")
    if (need.high if sure else need.value) <= limit:
        return
    where = f"{prediction.device}{f' {prediction.slice}' if prediction.slice else ''}"
    setting = f"on {where}, {prediction.mode}, batch {prediction.batch_size}, {prediction.dtype}"
    taken = f"{need.value:.4g} {unit} ({need.low:.4g} – {need.high:.4g})"
    raise BudgetError(f"{prediction.model} takes {taken} {setting}; the budget is {limit:g} {unit}. {_ADVICE}")

"""Predictors: unit: the pace of a core: all times on a CPU were measured beside a fixed product of two matrices.

They are brought to a core that takes `REFERENCE_MS` for it, so that measurements of other days and processors compare.
"""

from foretell.devices.cpu_runs import EAGER, ONE_THREAD, CpuRun

REFERENCE_MS = 0.14  # a product of 192 × 192 matrices in fp32 on one core
# where PyTorch has two threads, so has the product: 0.073 ms on a machine that takes 0.123 on one, brought to 0.14;
# beside ONNX Runtime, which has threads of its own, it keeps to one
_REFERENCE_ON_TWO_MS = 0.083
_PRODUCT = "two 192 × 192 matrices in"


def reference_ms(run: CpuRun) -> float:
    """How long the product takes beside the measurements of a run, on the core that all are brought to."""
    return _REFERENCE_ON_TWO_MS if run == CpuRun(EAGER, 2) else REFERENCE_MS


def core_note(run: CpuRun = ONE_THREAD) -> str:
    """What a time on the catalogue's CPU means."""
    measured = "as the measured one does" if run.threads == 1 else "as the measured ones do"
    rest = ", and foretell adapt --device cpu corrects the rest by a few measurements" if run == ONE_THREAD else ""
    pace = "its pace" if run.threads == 1 else "their pace"
    return f"{_cores(run)} {REFERENCE_MS:g} ms, {measured}; yours may differ: foretell characterise finds {pace}{rest}."


def paced_note(run: CpuRun, own_ms: float, date: str) -> str:
    """What a time means that was brought to the pace of this machine."""
    rest = "; foretell adapt --device cpu corrects the rest by a few measurements" if run == ONE_THREAD else ""
    return f"{_cores(run)} {own_ms:.3g} ms, as this machine does (foretell characterise, {date}){rest}."


def is_pace_note(text: str) -> bool:
    """Whether a warning is one of these notes."""
    return _PRODUCT in text


def _cores(run: CpuRun) -> str:
    how = "" if run == ONE_THREAD else f"{str(run)[0].upper()}{str(run)[1:]}, "
    start = f"{how}for" if how else "For"
    return f"{start} one core that multiplies {_PRODUCT}" if run.threads == 1 else (
        f"{start} {'two' if run.threads == 2 else run.threads} cores that multiply {_PRODUCT}"
    )  # fmt: skip

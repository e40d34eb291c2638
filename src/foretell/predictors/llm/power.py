"""Predictors: what a GPU draws while it serves a language model: a share of its limit, by arithmetic and traffic.

Least squares on 94,000 mixture-of-experts kernels of an H200 and a B200 (aiconfigurator, column power); nine in ten are
within `SPREAD`. Limits: other kernels and GPUs were not looked at.
"""

from foretell.devices import Device
from foretell.predictors.llm.architecture import Architecture, Experts
from foretell.units import GIGA, TERA

SPREAD = 0.3
_START, _ARITHMETIC, _TRAFFIC = 0.55, 1.22, 0.43


def power_w(device: Device, flops_per_s: float, bytes_per_s: float) -> float:
    """The mean draw of one GPU that computes and moves so much."""
    arithmetic = flops_per_s / (device.peak_tflops("bf16", tensor_cores=True) * TERA)
    traffic = bytes_per_s / (device.bandwidth_gb_per_s * GIGA)
    share = _START + _ARITHMETIC * min(arithmetic, 1.0) + _TRAFFIC * min(traffic, 1.0)
    return device.tdp_w * min(share, 1.0)


def touched(model: Architecture, batch: float) -> float:
    """The share of the weights that a step reads: of a mixture, the experts that some token chooses."""
    total = used = float(model.hidden * model.vocabulary)
    for group in model.groups:
        part, attention = group.feed_forward, group.attention.parameters(model.hidden)
        whole = part.parameters(model.hidden)
        read = whole * (1 - (1 - part.top / part.count) ** batch) if isinstance(part, Experts) else whole
        total, used = total + group.count * (attention + whole), used + group.count * (attention + read)
    return used / total

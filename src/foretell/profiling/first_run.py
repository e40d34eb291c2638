"""Profiling: the first run of a workload, in which the arithmetic and the outputs of its modules are counted.

The first run is slow, because libraries choose kernels for every new shape. So between two modules it lets workers that
wait to time use the device. Its counts give a rough cost of the next workloads of the same model.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn.modules import module as hooks

from foretell.profiling.workload import Workload
from foretell.units import GIB, TERA, ms

# Rates that typical models reach on a large GPU; used only to skip workloads that would take too long.
_RATES = {"fp32": 40 * TERA, "tf32": 100 * TERA, "fp16": 200 * TERA, "bf16": 200 * TERA}
_BYTES_PER_S = 2 * TERA
_CPU_FLOPS, _CPU_BYTES_PER_S = 0.05 * TERA, 0.01 * TERA  # the same on one core of a server
_TRAINING_FACTOR = 3.5


@dataclass
class Cost:
    """What the modules of one forward pass computed and wrote, for ``elements`` elements of input."""

    macs: float = 0.0
    outputs: float = 0.0
    peak_bytes: float = 0.0
    elements: int = 1

    def latency_ms(self, workload: Workload, elements: int, device: str = "cuda") -> float:
        """A rough latency of ``workload``."""
        scale = elements / self.elements
        width = 4 if workload.dtype in ("fp32", "tf32") or workload.mode == "training" else 2
        on_cpu = device == "cpu"
        flops, bytes_per_s = (_CPU_FLOPS, _CPU_BYTES_PER_S) if on_cpu else (_RATES[workload.dtype], _BYTES_PER_S)
        seconds = 2 * self.macs / flops + 3 * width * self.outputs / bytes_per_s
        return ms(scale * seconds) * (_TRAINING_FACTOR if workload.mode == "training" else 1.0)

    def memory_gib(self, elements: int) -> float:
        """A rough peak of the memory of activations."""
        return self.peak_bytes * elements / self.elements / GIB


def _macs(module: Any, output: Any) -> float:
    if isinstance(module, torch.nn.modules.conv._ConvTransposeNd):
        return 0.0 if not module.in_channels else output.numel() * module.weight[0].numel() / max(module.groups, 1)
    if isinstance(module, torch.nn.modules.conv._ConvNd):
        return float(output.numel() * module.weight[0].numel())
    if isinstance(module, torch.nn.Linear):
        return float(output.numel() * module.in_features)
    if type(module).__name__ == "Conv1D":  # GPT-2's linear layer
        return float(output.numel() * module.weight.shape[0])
    return 0.0


def run_first(run: Callable[[], Any], before_module: Callable[[], None]) -> tuple[Any, Cost]:
    """Run once, counting; ``before_module`` is called before every module."""
    cost = Cost()

    def before(_module: Any, _inputs: Any) -> None:
        before_module()

    def after(module: Any, _inputs: Any, output: Any) -> None:
        if isinstance(output, torch.Tensor) and not next(module.children(), None):
            cost.outputs += output.numel()
            cost.macs += _macs(module, output)

    handles = (hooks.register_module_forward_pre_hook(before), hooks.register_module_forward_hook(after))
    try:
        result = run()
    finally:
        for handle in handles:
            handle.remove()
    return result, cost


def is_finite(output: Any) -> bool | None:
    """Whether the first floating-point tensor of an output has only finite numbers."""
    if isinstance(output, torch.Tensor):
        return bool(torch.isfinite(output).all()) if output.is_floating_point() else None
    values = output.values() if hasattr(output, "values") else output if isinstance(output, tuple | list) else ()
    return next((result for result in map(is_finite, values) if result is not None), None)


def spread(values: list[float]) -> tuple[float, float]:
    """Mean and coefficient of variation.

    >>> spread([1.0, 1.0, 1.0])
    (1.0, 0.0)
    """
    mean = math.fsum(values) / len(values)
    variance = math.fsum((value - mean) ** 2 for value in values) / max(len(values) - 1, 1)
    return mean, math.sqrt(variance) / mean if mean else 0.0

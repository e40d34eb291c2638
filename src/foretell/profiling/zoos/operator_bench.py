"""Profiling: the operator bench: hundreds of independent operators in one model, so that one trace times them all.

Networks repeat a few shapes many times. A bench draws operators as networks use them, in many more shapes. That matters
because a grouped convolution, an odd number of channels or a masked attention decides which kernel runs, and the
kernels of one operator differ tenfold in time. All operands are views of one block of noise. Every result is returned,
so that none is removed as dead code. The kinds of operators are in `foretell.profiling.zoos.operators`.
"""

import math
import random
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from foretell.profiling.workload import Value
from foretell.profiling.zoos.operators.contractions import ATTENTION, CONTRACTIONS
from foretell.profiling.zoos.operators.convolutions import CONVOLUTIONS, FIRST_LAYERS, TRANSPOSED
from foretell.profiling.zoos.operators.drawing import Drawn, Kinds, Shape
from foretell.profiling.zoos.operators.elementwise import ELEMENTWISE
from foretell.profiling.zoos.operators.gathers import GATHERS
from foretell.profiling.zoos.operators.pictures import PICTURES
from foretell.profiling.zoos.operators.recurrence import RECURRENCE
from foretell.profiling.zoos.operators.rows import FEW_ROWS, LONG_ROWS, SHORT_SUMS
from foretell.profiling.zoos.operators.signals import NORMS, SIGNALS
from foretell.profiling.zoos.operators.spectra import SPECTRA
from foretell.profiling.zoos.operators.usual import ALL, PRODUCTS, SPREAD

_NOISE_ROWS = 1024
_MAX_ELEMENTS = 1 << 25
_MAX_OUTPUTS = 1 << 30
_MAX_MACS = 1e11
_TRIES = 10

# the first three were measured as they are: their limits and their sequences of draws never change
_FIRST: Mapping[str, Kinds] = MappingProxyType({"all": ALL, "products": PRODUCTS, "spread": SPREAD})
FOCUSES: Mapping[str, Kinds] = MappingProxyType(
    {
        "signals": SIGNALS, "norms": NORMS, "recurrence": RECURRENCE, "contractions": CONTRACTIONS,
        "attention": ATTENTION, "spectra": SPECTRA, "elementwise": ELEMENTWISE, "gathers": GATHERS,
        "pictures": PICTURES, "first_layers": FIRST_LAYERS, "transposed": TRANSPOSED, "convolutions": CONVOLUTIONS,
        "few_rows": FEW_ROWS, "short_sums": SHORT_SUMS, "long_rows": LONG_ROWS,
    }
)  # fmt: skip
_FOCUS_MAX_ELEMENTS = 1 << 24
_FOCUS_MAX_MACS = 2e10


class OperatorBench(nn.Module):  # type: ignore[misc]
    """``count`` operators drawn from ``seed``; the input sets only the batch and the precision.

    ``focus`` is what is drawn: ``all``, only ``products``, whose kernels differ most, only what cuDNN may ``spread``
    over streams (grouped convolutions and recurrent layers), or one of `FOCUSES`. If ``trained``, each operand is a
    parameter of its own, so that it gets a gradient, and the result in training is one number.
    """

    def __init__(self, seed: int, count: int, focus: str = "all", *, trained: bool = False) -> None:
        super().__init__()
        draw = random.Random(f"bench/{seed}" if focus in _FIRST else f"bench/{focus}/{seed}")
        kinds = {**_FIRST, **FOCUSES}[focus]
        max_elements, max_macs = _MAX_ELEMENTS, _MAX_MACS
        if focus in FOCUSES:
            max_elements, max_macs = _FOCUS_MAX_ELEMENTS, _FOCUS_MAX_MACS
        self.operators = nn.ModuleList()
        self.shapes: list[list[Shape]] = []
        largest, written = _NOISE_ROWS, 0
        for _ in range(_TRIES * count):
            module, shapes, macs = _draw(draw, kinds)
            sizes = [math.prod(shape) for shape in shapes] or [0]
            if max(sizes) > max_elements or macs > max_macs or written + sum(sizes) > _MAX_OUTPUTS:
                continue
            if len(self.operators) == count:
                break
            self.operators.append(module)
            self.shapes.append(shapes)
            largest, written = max(largest, *sizes), written + sum(sizes)
        self.trained = trained
        self.operands = nn.ParameterList()
        if trained:
            for shape in (shape for shapes in self.shapes for shape in shapes):
                self.operands.append(nn.Parameter(torch.empty(math.prod(shape), 1).normal_()))
        if trained:
            largest = _NOISE_ROWS  # nobody reads the noise
        self.noise = nn.Parameter(torch.empty(_NOISE_ROWS, -(-largest // _NOISE_ROWS)).normal_())

    def forward(self, image: Any) -> Any:
        """The results of all operators; in training the sum of their means."""
        noise = self.noise.view(-1)
        own = iter(self.operands)
        results = [image * 1.0]
        for operator, shapes in zip(self.operators, self.shapes):
            operands = [
                (next(own).view(-1) if self.trained else noise[: math.prod(shape)]).view(shape) for shape in shapes
            ]
            results.append(operator(*operands))
        if not self.training or not self.trained:
            return tuple(results)
        # the gradient of a mean is a dense tensor, as most operators get it in a network
        return torch.stack([result.mean().float() for result in results if result.is_floating_point()]).sum()


def operator_bench(arguments: Mapping[str, Value]) -> Any:
    """The bench of a spec: ``seed``, ``count``, ``focus`` and ``trained``."""
    seed, count = int(arguments["seed"]), int(arguments.get("count", 200))
    return OperatorBench(seed, count, str(arguments.get("focus", "all")), trained=bool(arguments.get("trained")))


def _draw(draw: random.Random, kinds: Kinds) -> Drawn:
    (kind,) = draw.choices(list(kinds), list(kinds.values()))
    return kind(draw)

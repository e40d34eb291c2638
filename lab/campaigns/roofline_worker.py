"""Lab: the worker of the roofline campaign: the product's counted worker, with a zoo of the laboratory's own networks.

Beside the U-Net of the thesis' chapter 3 the zoo has work that is known to the last operation, by which counters are
checked: a square product, a loop of plain fp16 multiply-adds, and a loop of loads that hit L1.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from foretell.errors import InputError
from foretell.profiling.campaign.plan import Part
from foretell.profiling.jit_kernels import Loop, half_loop, load_loop
from foretell.profiling.runtimes.counted_worker import main
from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.registry import ZOOS
from foretell.profiling.zoos.zoo import Built, Entry, image_inputs
from lab.papers.downscaling import network

PRODUCT_SIZE = 4096


class LabZoo:
    """``lab:downscaling``, ``lab:product``, ``lab:half-loop`` and ``lab:load-loop``."""

    def entries(self, part: Part, seed: int) -> Sequence[Entry]:
        """None: these are named, not drawn."""
        del part, seed
        return []

    def build(self, spec: str) -> Built:
        """The model of a spec, in eval mode."""
        makes: dict[str, Callable[[], nn.Module]] = {
            "downscaling": network.build,
            "product": lambda: nn.Linear(PRODUCT_SIZE, PRODUCT_SIZE, bias=False),
            "half-loop": lambda: _Looped(half_loop),
            "load-loop": lambda: _Looped(load_loop),
        }
        name = parse_spec(spec).name
        if name not in makes:
            raise InputError(f"Unknown network {spec!r}. Choose from: {', '.join(makes)}.")
        return Built(makes[name]().eval(), image_inputs)


class _Looped(nn.Module):  # type: ignore[misc]
    """A loop as a network: it is made in the first run, so that later ones have no other kernel."""

    def __init__(self, make: Callable[[Any, int], Loop]) -> None:
        super().__init__()
        self.make = make
        self.loop: Loop | None = None

    def forward(self, x: Any) -> Any:
        """The input, after the loop."""
        if self.loop is None:
            sms = torch.cuda.get_device_properties(0).multi_processor_count
            self.loop = self.make(torch, sms)
        self.loop.run()
        return x


if __name__ == "__main__":
    ZOOS.register("lab", "lab.campaigns.roofline_worker:LabZoo")
    sys.exit(main(sys.argv[1:]))

"""Lab: TraPPM's data in kind: training steps of eleven families, many batch sizes, two precisions, SGD and AdamW.

``python -m lab.papers.trappm.step_grid OUT.jsonl --seconds 300 --energy-share 0.1`` measures as `lab.papers.dippm.grid`
does, whose models these are, with those of ConvNeXt. The thesis has 7,536 labels of one precision.
"""

import argparse
import itertools
import os
import random
import re
from collections.abc import Sequence
from pathlib import Path

from lab.papers.dippm import grid
from lab.papers.dippm.sets import family_of

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
CONVNEXT = (
    "convnext_atto", "convnext_femto", "convnext_nano", "convnext_pico", "convnext_small", "convnext_tiny",
    "convnext_base", "convnext_large", "convnextv2_atto", "convnextv2_nano", "convnextv2_tiny",
)  # fmt: skip
DTYPES, OPTIMIZERS = ("fp32", "bf16"), ("sgd", "adamw")
SETTINGS = 15  # of a model
_MOST_PIXELS = 32 * 224 * 224
# windows of these divide only pictures of one size
_NATIVE = re.compile(r"swinv2_\w+_window(\d+)(?:to\d+)?_(\d+)(?:to(\d+))?$")


def names() -> list[str]:
    """The models of DIPPM's grid, and those of ConvNeXt."""
    return [*grid.planned_names(), *CONVNEXT]


def sides(name: str) -> tuple[int, ...]:
    """The two resolutions of a model; one where its windows allow no other.

    >>> sides("swinv2_tiny_window8_256"), sides("vit_tiny_patch14_224"), len(sides("resnet50"))
    ((256,), (224, 252), 2)
    """
    if native := _NATIVE.match(name):
        return (int(native[3] or native[2]),)
    if family_of(f"timm:{name}") in ("vit", "swin", "visformer"):
        return (224, 252) if "patch14" in name else (224, 256)
    return (224, random.Random(name).choice((128, 160, 192, 256, 288)))


def settings(name: str) -> list[grid.Row]:
    """Settings of a model by chance, as many as `SETTINGS`."""
    sized = family_of(f"timm:{name}") in ("vit", "swin", "visformer") and not _NATIVE.match(name)
    rows = [
        {"spec": f"timm:{name}?img_size={side}" if sized else f"timm:{name}", "batch_size": batch,
         "input_shape": [3, side, side], "dtype": dtype, "mode": "training", "optimizer": optimizer}
        for batch, side, dtype, optimizer in itertools.product(BATCHES, sides(name), DTYPES, OPTIMIZERS)
        if batch * side * side <= _MOST_PIXELS
    ]  # fmt: skip
    random.Random(f"steps {name}").shuffle(rows)
    return rows[:SETTINGS]


def groups_of(name: str) -> grid.Groups:
    """The settings of a model by spec."""
    return grid.grouped(name, settings(name))


PLAN = grid.Plan(names, groups_of)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=300.0, help="The command ends then [300].")
    parser.add_argument("--processes", type=int, default=16, help="Models at the same time [16].")
    parser.add_argument("--energy-share", type=float, default=0.0, help="The share of settings with power [0].")
    options = parser.parse_args(arguments)
    count = grid.run(options.out.resolve(), options.seconds, options.processes, options.energy_share, PLAN)
    grid.say(f"{count} settings measured")
    os._exit(0)  # a process that even the kernel cannot end must not keep this one


if __name__ == "__main__":
    main()

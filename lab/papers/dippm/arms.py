"""Lab: DIPPM's arms: which network is fitted to which workloads, with which split and seed, and for how long.

``best`` is the network as well as it can be had here; ``published`` is that of the paper's code: raw targets, Huber,
batch 1, rate 2.754e-5. The paper's ten epochs are 73,560 steps and its 500 epochs are 3.7 million, because it has 7,356
training graphs. Ten epochs over a smaller set are fewer steps (29,490 over our 2,949), so Table 4 is made
twice: with ten epochs, and with as many steps as the paper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lab.papers.graph_networks.recipes import BY_BOUND, Recipe, find_recipe

BLOCKS = ("dippm", "gcn", "gat", "gin", "mlp")
TABLE_4_STEPS = 73_560
EPOCHS, INFERENCE_EPOCHS = 500, 250
OF_BOUND, OF_POWER = "by bound", "by bound and power"
# two layers: what a node takes at least is known, so that it need not hear far
BOUND: Mapping[str, Any] = {**BY_BOUND, "blocks": 2, "layers": 1}
_TARGETS = ("latency_ms", "energy_j", "device_memory_mib", "memory_mib")
# a process that measures many settings cannot read device memory: most of the families have peak memory alone
_RAW_TARGETS = ("latency_ms", "energy_j", "memory_mib")
# energy is power times latency, and of the two power varies less
_POWER_TARGETS = ("latency_ms", "power_w", "device_memory_mib", "memory_mib")
_LEAST_SHARE, _ENOUGH = 0.05, 100


@dataclass(frozen=True)
class Arm:
    """A network to fit. ``steps``, where given, replace the epochs; ``seconds`` are its share of a sitting."""

    name: str
    subset: str
    split: str
    seed: int
    recipe: Recipe
    seconds: float
    steps: int | None = None

    @property
    def key(self) -> str:
        """The name of its file."""
        return f"{self.name}-{self.subset}-{self.split}-{self.seed}".replace(" ", "-")

    def sized(self, graphs: int) -> Recipe:
        """The recipe with the epochs that ``steps`` are on a number of graphs."""
        if self.steps is None:
            return self.recipe
        each = -(-graphs // self.recipe.batch)
        return replace(self.recipe, epochs=max(round(self.steps / each), 1))


def narrowed(arm: Arm, width: int) -> Arm:
    """The arm with all layers of another width; its fit is not that of the paper, and says so in its name."""
    return replace(arm, name=f"{arm.name} {width} wide", recipe=replace(arm.recipe, width=width))


Part = Literal["best", "published", "table-4", "thesis-mlp"]


def arms(part: Part) -> list[Arm]:
    """The arms of one part of the study, the most important first."""
    if part == "best":
        return [*_families(), *_inference()]
    if part == "thesis-mlp":
        return [_published_mlp(seed) for seed in range(3)]
    if part == "published":
        return [
            replace(arm, name=f"{arm.name} {loss}", recipe=replace(arm.recipe, loss=loss))
            for seed in range(2)
            for arm in [_published("dippm", seed, 500)]
            for loss in ("huber", "mse")
        ]
    ten = [
        replace(_published(block, seed, 120), name=f"{block} ten epochs",
                recipe=replace(find_recipe(block, published=True), epochs=10))
        for seed in range(3) for block in BLOCKS
    ]  # fmt: skip
    return [
        *(replace(_published(block, 0, 240), name=f"{block} as many steps", steps=TABLE_4_STEPS) for block in BLOCKS),
        *ten,
    ]


def _families() -> list[Arm]:
    """The ten families, as in the paper: DIPPM by chance, its rivals, what of it matters, and unseen architectures."""
    dippm, *others = [_best("dippm", "families", "random", seed, 200) for seed in range(3)]
    unseen = _best("dippm", "families", "architecture", 0, 200)

    def but(name: str, **changes: object) -> Arm:
        return replace(dippm, name=f"dippm {name}", recipe=replace(dippm.recipe, **changes))  # type: ignore[arg-type]

    powers = [
        replace(arm, name=f"dippm {OF_POWER}", recipe=replace(arm.recipe, **BOUND, targets=_POWER_TARGETS))
        for arm in (dippm, *others)
    ]
    return [
        *powers,
        dippm,
        but(OF_BOUND, **BOUND),
        *(_best(block, "families", "random", 0, 200) for block in BLOCKS[1:]),
        replace(unseen, name=f"dippm {OF_BOUND}", recipe=replace(unseen.recipe, **BOUND)),
        unseen,
        but("mse", loss="mse"),
        *others,
        but("16 classes", nodes="dippm"),
        but("without ratio", ratio=False),
        but("half the epochs", epochs=EPOCHS // 2),
    ]


def _inference() -> list[Arm]:
    """All inference on unseen architectures, and once by chance, to learn power from all that has it."""
    dippm, mlp = (
        [_best(block, "inference", "architecture", seed, 300) for seed in range(3)] for block in ("dippm", "mlp")
    )
    bound = [replace(arm, name=f"dippm {OF_BOUND}", recipe=replace(arm.recipe, **BOUND)) for arm in dippm]
    shorter = [replace(arm, recipe=replace(arm.recipe, epochs=INFERENCE_EPOCHS)) for arm in (*bound, dippm[0])]
    recipe = replace(shorter[0].recipe, targets=_POWER_TARGETS)
    power = replace(shorter[0], name=f"dippm {OF_POWER}", split="random", recipe=recipe)
    return [*shorter, power, *mlp]


def measured_targets(recipe: Recipe, truths: Sequence[Mapping[str, float]]) -> Recipe:
    """The recipe without the targets that too few of the workloads have: less than a twentieth, and less than 100."""
    least = max(min(_LEAST_SHARE * len(truths), _ENOUGH), 1)
    kept = [
        place
        for place, name in enumerate(recipe.targets)
        if sum(math.isfinite(truth.get(name, math.nan)) for truth in truths) >= least
    ]
    units = tuple(recipe.units[place] for place in kept) if recipe.units else ()
    return replace(recipe, targets=tuple(recipe.targets[place] for place in kept), units=units)


def _published_mlp(seed: int) -> Arm:
    """The MLP of the thesis (section 5.5.5.2): six static features, two layers of 512, raw milliseconds and squares."""
    trappm = find_recipe("trappm", published=True)
    recipe = replace(trappm, nodes="none", block="none", embedding="none", loss="mse", patience=1000)
    return Arm("mlp of the thesis", "training", "random", seed, recipe, 300)


def _best(block: str, subset: str, split: str, seed: int, seconds: float) -> Arm:
    # no patience: a cosine has to end before it is judged
    recipe = replace(find_recipe(block), targets=_TARGETS, epochs=EPOCHS, patience=EPOCHS)
    return Arm(block, subset, split, seed, recipe, seconds)


def _published(block: str, seed: int, seconds: float) -> Arm:
    recipe = replace(find_recipe(block, published=True), targets=_RAW_TARGETS, patience=10_000)
    return Arm(f"{block} published", "families", "random", seed, recipe, seconds)

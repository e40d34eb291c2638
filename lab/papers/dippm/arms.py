"""Lab: DIPPM's arms: which network is fitted to which workloads, with which split and seed, and for how long.

``best`` is the network as well as it can be had here; ``published`` is that of the paper's code: raw targets, Huber,
batch 1, rate 2.754e-5. The paper's ten epochs are 73,560 steps and its 500 epochs are 3.7 million, because it has 7,356
training graphs. Ten epochs over a set that is twenty times smaller are twenty times fewer steps, so Table 4 is made
twice: with ten epochs, and with as many steps as the paper.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from lab.papers.graph_networks.recipes import BY_BOUND, Recipe, find_recipe

BLOCKS = ("dippm", "gcn", "gat", "gin", "mlp")
TABLE_4_STEPS = 73_560
NARROW_EPOCHS, NARROW_STEPS, GRID_EPOCHS, JOINED_EPOCHS = 150, 20_000, 100, 30  # what a core can run
_TARGETS = ("latency_ms", "energy_j", "device_memory_mib", "memory_mib")
_RAW_TARGETS = ("latency_ms", "energy_j", "memory_mib")  # of the published code, where device memory is not known
_LEAST_SHARE = 0.05


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
    """The arm with all layers of another width; its fit is not that of the paper, and says so in its recipe."""
    return replace(arm, recipe=replace(arm.recipe, width=width))


Part = Literal[
    "main", "others", "published", "table-4", "narrow", "narrow-tables", "thesis-mlp", "grid", "grid-narrow", "joined"
]


def arms(part: Part) -> list[Arm]:
    """The arms of one part of the study, the most important first; the narrow ones are for a CPU."""
    if part == "narrow":
        return _narrow()
    if part == "narrow-tables":
        return _narrow_tables()
    if part == "grid":
        return _grid()
    if part == "grid-narrow":
        return _grid_narrow()
    if part == "joined":
        return _joined()
    if part == "thesis-mlp":
        return [_published_mlp(seed) for seed in range(3)]
    if part == "main":
        return [
            *(_best("dippm", "inference", "architecture", seed, 170) for seed in range(3)),
            *(_best("dippm", "vision", "random", seed, 90) for seed in range(3)),
            *(_best("dippm", "families", "random", seed, 40) for seed in range(5)),
            *(_best(block, "inference", "architecture", 0, 170) for block in BLOCKS[1:]),
        ]
    if part == "others":
        best = _best("dippm", "inference", "architecture", 0, 150)
        return [
            *(_best(block, "inference", "architecture", 1, 150) for block in BLOCKS[1:]),
            *(_best(block, "families", "random", seed, 40) for seed in range(5) for block in BLOCKS[1:]),
            *(_best(block, "vision", "random", 0, 90) for block in BLOCKS[1:]),
            replace(best, name="dippm without ratio", recipe=replace(best.recipe, ratio=False)),
            replace(best, name="dippm 16 classes", recipe=replace(best.recipe, nodes="dippm")),
            replace(best, name="dippm half the epochs", recipe=replace(best.recipe, epochs=250)),
            replace(best, name="dippm mse", recipe=replace(best.recipe, loss="mse")),
        ]
    if part == "published":
        return [
            replace(_published("dippm", seed, 260), name=f"dippm published {loss}",
                    recipe=replace(find_recipe("dippm", published=True), loss=loss, patience=500))
            for seed in range(2) for loss in ("huber", "mse")
        ]  # fmt: skip
    ten = [
        replace(_published(block, seed, 60), name=f"{block} ten epochs",
                recipe=replace(find_recipe(block, published=True), epochs=10))
        for seed in range(3) for block in BLOCKS
    ]  # fmt: skip
    return ten + [
        replace(_published(block, seed, 130), name=f"{block} as many steps", steps=TABLE_4_STEPS)
        for seed in range(2)
        for block in BLOCKS
    ]


def _narrow() -> list[Arm]:
    """Every block at its best on the ten families, squares, and GraphSAGE on architectures that it has not seen."""
    best = {block: _best(block, "families", "random", 0, 600) for block in ("mlp", *BLOCKS)}  # the quick one first
    dippm = best["dippm"]
    squares = replace(dippm, name="dippm mse", recipe=replace(dippm.recipe, loss="mse"))
    found = [*best.values(), _best("dippm", "families", "architecture", 0, 600), squares]
    narrow = [replace(arm, recipe=replace(arm.recipe, epochs=NARROW_EPOCHS)) for arm in found]
    half = replace(dippm, name="dippm half the epochs", recipe=replace(dippm.recipe, epochs=NARROW_EPOCHS // 2))
    return [*narrow, half]


def _narrow_tables() -> list[Arm]:
    """Table 4 by epochs and by steps, with Huber's loss for every block, and with squares for GraphSAGE."""
    found = []
    for arm in (arm for arm in arms("table-4") if arm.seed == 0):
        steps = None if arm.steps is None else NARROW_STEPS
        found.append(replace(arm, steps=steps))
        if arm.name.startswith("dippm"):
            squares = replace(arm.recipe, loss="mse")
            found.append(replace(arm, name=f"{arm.name} mse", recipe=squares, steps=steps))
    return found


def _grid() -> list[Arm]:
    """The study on data in kind: DIPPM by chance and on unseen architectures, its rivals, squares, and Table 4."""
    return [*_grid_best(), *_grid_tables()]


def _grid_best() -> list[Arm]:
    """Peak memory stands for device memory, which a process that measures many settings cannot read."""
    rivals = [_best(block, "grid", "random", 0, 300) for block in BLOCKS[1:]]
    dippm = [_best("dippm", "grid", "random", seed, 300) for seed in range(3)]
    squares = replace(dippm[0], name="dippm mse", recipe=replace(dippm[0].recipe, loss="mse"))
    return [dippm[0], _best("dippm", "grid", "architecture", 0, 300), *rivals, squares, *dippm[1:]]


def _grid_tables() -> list[Arm]:
    return [
        replace(arm, subset="grid", seconds=seconds, recipe=replace(arm.recipe, targets=_RAW_TARGETS))
        for arm in sorted(arms("table-4"), key=lambda arm: arm.steps is None)  # the longer ones are started first
        for seconds in [240.0 if arm.steps else 120.0]
        if arm.seed == 0
    ]


def _grid_narrow() -> list[Arm]:
    """The study on data in kind by a core: fewer epochs, beside them half as many, 16 classes of nodes, and Table 4."""
    best = _grid_best()
    dippm = best[0]
    classes = replace(dippm, name="dippm 16 classes", recipe=replace(dippm.recipe, nodes="dippm", epochs=GRID_EPOCHS))
    half = replace(dippm, name="dippm half the epochs", recipe=replace(dippm.recipe, epochs=GRID_EPOCHS // 2))
    mlp = [arm for arm in best if arm.name == "mlp"]
    whole = [replace(arm, recipe=replace(arm.recipe, epochs=GRID_EPOCHS)) for arm in best if arm.name != "mlp"]
    mlp = [arm for arm in best if arm.name == "mlp"]
    table = [arm for arm in _grid_tables() if arm.steps is None]
    return [whole[0], *mlp, *whole[1:5], half, classes, *table, *whole[5:]]


def _joined() -> list[Arm]:
    """All inference with the data in kind, by a core: by bound with two layers, and by architecture its rivals."""
    dippm, mlp = (_best(block, "inference", "architecture", 0, 300) for block in ("dippm", "mlp"))
    dippm = replace(dippm, recipe=replace(dippm.recipe, epochs=JOINED_EPOCHS))
    bound = replace(dippm, name="dippm by bound", recipe=replace(dippm.recipe, **BY_BOUND, blocks=2, layers=1))
    return [replace(bound, split="random"), bound, mlp, dippm]


def measured_targets(recipe: Recipe, truths: Sequence[Mapping[str, float]]) -> Recipe:
    """The recipe without the targets that less than a twentieth of the workloads have."""
    kept = [
        place
        for place, name in enumerate(recipe.targets)
        if sum(math.isfinite(truth.get(name, math.nan)) for truth in truths) >= max(_LEAST_SHARE * len(truths), 1)
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
    recipe = replace(find_recipe(block), targets=_TARGETS, epochs=500, patience=500)
    return Arm(block, subset, split, seed, recipe, seconds)


def _published(block: str, seed: int, seconds: float) -> Arm:
    recipe = replace(find_recipe(block, published=True), patience=10_000)
    return Arm(f"{block} published", "families", "random", seed, recipe, seconds)

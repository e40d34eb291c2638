"""Lab: TraPPM's study: encoders pre-trained on 25,000 graphs, and arms that show what the pre-training is worth.

``python -m lab.papers.trappm.encoders SET OUT --seconds 440 --processes 12`` first pre-trains encoders side by side,
then fits regressors of training steps with them. Both go on from checkpoints, and leave files that are not made again.

Encoders: as published (a ReLU at the end, dropout 0.5 before the next batch norm), without the ReLU, without dropout.
Dropout before a batch norm changes the variance that the norm sees between training and use (Li et al., 2018), so it
may be what keeps the published one from learning. Graphs of test architectures are in none of them.

Arms: *pre-trained* (frozen), *tuned* (pre-trained, then trained on), *random* (frozen, with the norms' statistics), and
*none* (zeros in its place), all of one shape; 10, 25, 50 and 100 % of the labels, equal numbers of steps.

A CPU fits narrow regressors, to encoders of a GPU or to narrow ones of its own (``--encoder-width 64``):
``--width 64 --whole --processes 1``. With ``--whole`` every encoder takes all of its steps and every regressor all of
its epochs, in several sittings if need be. With ``--further`` an encoder of fewer steps goes on from its weights.
"""

import argparse
import io
import json
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from foretell.datasets.splits import TEST, TRAIN, VALIDATION
from foretell.files import write_whole
from foretell.predictors.unit.fit_network import default_device
from lab.judging.graph_fits import share_of
from lab.papers.dippm import fits
from lab.papers.dippm.sets import Labelled, split_rows
from lab.papers.graph_networks.recipes import BY_BOUND, Recipe, find_recipe
from lab.papers.trappm.taught import is_taught, read_taught, teach
from lab.papers.trappm.unlabelled import unlabelled

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Encoder, Fitted

COUNT, HELD_ASIDE = 25_000, 500
STEPS = 100_000
SHARES = (0.1, 0.25, 0.5, 1.0)
SPLITS = ("random", "architecture")
_MOST_NODES = 600  # larger graphs would fill the memory: 1 in 8 is left out
_TARGETS = ("latency_ms", "memory_mib", "device_memory_mib", "power_w")
_SAVE_EVERY_S = 120.0
TAUGHT = "taught"


@dataclass(frozen=True)
class Plan:
    """How arms are fitted: narrow copies or not, on which device, and whether an arm may be stopped by the time.

    ``width`` is that of the regressors, ``encoder_width`` that of the encoders; where None, they are as published.
    """

    width: int | None = None
    encoder_width: int | None = None
    device: str = field(default_factory=default_device)
    whole: bool = False
    by_bound: bool = False
    narrow: bool | None = None
    captured: bool = False

    def recipe(self) -> Recipe:
        """The network of all arms; by bound, nodes know it, and what is learned is a ratio to it."""
        trappm = narrowed(find_recipe("trappm"), self.width, self.encoder_width)
        return replace(trappm, **BY_BOUND) if self.by_bound else trappm

    @property
    def of_width(self) -> str:
        """What the names of narrow copies end with."""
        return "" if self.width is None else f" {self.width} wide"

    def key(self, arm: "StepArm") -> str:
        """The name of the file of an arm."""
        return f"{arm.key}{self.of_width}".replace(" ", "-")

    def seconds(self, end: float) -> float | None:
        """What an arm may take; a whole one takes what it needs."""
        return None if self.whole else max(end - time.time(), 1.0)

    def progress(self, end: float) -> Callable[[int, dict[str, float]], None]:
        """What is called after each epoch."""
        return fits.stop_at(end if self.whole else float("inf"))


@dataclass(frozen=True)
class EncoderArm:
    """An encoder: its seed (of the split, too), whether a ReLU is its end, and its dropout."""

    seed: int
    last_relu: bool
    dropout: float
    masked: bool = False  # learns hidden features of nodes instead of edges

    @property
    def key(self) -> str:
        """The name of its file."""
        end = "masked" if self.masked else "relu" if self.last_relu else "linear"
        return f"{end}-{self.dropout:g}-{self.seed}"

    def recipe(self, graphs: int, steps: int, plan: Plan) -> Recipe:
        """Batches of 16 graphs, and the epochs that the steps are."""
        plain = replace(plan.recipe(), batch=16, last_relu=self.last_relu, encoder_dropout=self.dropout)
        return replace(plain, encoder_epochs=max(round(steps * plain.batch / graphs), 1))


def narrowed(recipe: Recipe, width: int | None, encoder_width: int | None) -> Recipe:
    """The recipe with layers of other widths, and the first one of the encoder twice as wide, as published."""
    if encoder_width is not None:
        widths = (2 * encoder_width, *(encoder_width,) * (len(recipe.encoder_widths) - 1))
        recipe = replace(recipe, encoder_widths=widths)
    return recipe if width is None else replace(recipe, width=width)


# the one that the arms use first
ENCODERS = (
    *(EncoderArm(seed, last_relu=False, dropout=0.0) for seed in range(3)),
    EncoderArm(0, last_relu=True, dropout=0.5),
    EncoderArm(0, last_relu=False, dropout=0.5),
    EncoderArm(0, last_relu=True, dropout=0.0),
    EncoderArm(0, last_relu=False, dropout=0.0, masked=True),
)


@dataclass(frozen=True)
class StepArm:
    """A regressor of training steps: which embedding, which share of the labels, which split and seed.

    A ``taught`` one starts from a network that was fitted to inference.
    """

    name: str
    embedding: Literal["frozen", "trained", "zeros"]
    share: float
    split: str
    seed: int
    encoder: str | None
    taught: bool = False

    @property
    def key(self) -> str:
        """The name of its file."""
        return f"{self.name}-{100 * self.share:g}-{self.split}-{self.seed}".replace(" ", "-")


def step_arms(seeds: Sequence[int] = range(3)) -> list[StepArm]:
    """All arms, those with all labels first; *tuned* has two shares alone, because it takes ten times as long."""
    found = []
    for share in sorted(SHARES, reverse=True):
        for seed in seeds:
            # a split at random leaves no architecture out, so that one encoder serves all seeds
            first, own = (EncoderArm(number, last_relu=False, dropout=0.0).key for number in (0, seed))
            for split in SPLITS:
                found += [
                    StepArm("pre-trained", "frozen", share, split, seed, first if split == "random" else own),
                    StepArm("random", "frozen", share, split, seed, None),
                    StepArm("none", "zeros", share, split, seed, None),
                ]
                if split == "random":  # its teacher has seen all architectures
                    found.append(StepArm("none, taught by inference", "zeros", share, split, seed, TAUGHT, taught=True))
                if share in (0.25, 1.0):
                    found.append(StepArm("tuned", "trained", share, split, seed, first if split == "random" else own))
    published = EncoderArm(0, last_relu=True, dropout=0.5).key
    masked = EncoderArm(0, last_relu=False, dropout=0.0, masked=True).key
    found += [StepArm("pre-trained as published", "frozen", share, "random", 0, published) for share in SHARES]
    found += [StepArm("masked features", "frozen", share, "random", 0, masked) for share in (0.25, 1.0)]
    return sorted(found, key=lambda arm: arm.embedding != "trained")  # the long ones first


def base_graphs(rows: Sequence[Labelled], side: str, seed: int) -> list[Labelled]:
    """Workloads with distinct graphs on one side of the split by architecture; training and inference alike."""
    seen, chosen = set(), []
    for row in split_rows(rows, "architecture", seed)[side]:
        key = (row.spec, len(row.graph), row.graph.output_shapes.tobytes())
        if key not in seen and 2 <= len(row.graph) <= _MOST_NODES and row.graph.edges.shape[1]:
            seen.add(key)
            chosen.append(row)
    return chosen


def pretrain_arm(
    arm: EncoderArm, out: Path, end: float, steps: int, count: int, plan: Plan | None = None
) -> str:  # fmt: skip
    """Pre-train one encoder, and write its weights; one line about it."""
    from lab.papers.graph_networks.forward import ENCODER
    from lab.papers.graph_networks.scales import node_scales
    from lab.papers.graph_networks.tensors import DeviceGraphs
    from lab.papers.trappm.pretraining import train_encoder

    plan = plan or Plan()
    began, device = time.time(), plan.device
    known = [row.graph for row in base_graphs(fits.rows(), TRAIN, arm.seed)]
    graphs = unlabelled(known, count, arm.seed)
    aside = [row.graph for row in base_graphs(fits.rows(), VALIDATION, arm.seed)]
    recipe = arm.recipe(len(graphs), steps, plan)
    planned = recipe.encoder_epochs
    start = read_encoder(out, arm.key) if (out / "encoders" / f"{arm.key}.npz").exists() else None
    if start is not None:
        recipe = replace(recipe, encoder_epochs=planned - len(start.history))
    scales = node_scales(f"{ENCODER}.nodes", graphs, recipe)
    sides = [DeviceGraphs.place(some, recipe, device) for some in (graphs, unlabelled(aside, HELD_ASIDE, arm.seed))]
    checkpoint = out / "checkpoints" / f"encoder-{arm.key}.pt"

    def train_by(captured: bool, narrow: bool | None) -> "Encoder":
        return train_encoder(
            sides[0], sides[1], recipe, arm.seed, scales, plan.progress(end), device, checkpoint,
            plan.seconds(end), _SAVE_EVERY_S, masked=arm.masked, narrow=narrow, captured=captured, start=start,
        )  # fmt: skip

    try:
        encoder, captured, _ = fits.first_finite(train_by, plan.captured, plan.narrow)
    except InterruptedError as interruption:
        return f"{interruption} of {recipe.encoder_epochs}; the next sitting goes on"
    each = -(-len(graphs) // recipe.batch)
    facts = {
        "encoder": arm.key, "graphs": len(graphs), "known": len(known), "epochs": len(encoder.history),
        "captured": captured, "planned_epochs": planned, "steps": len(encoder.history) * each,
        "loss": encoder.loss, "spent_s": round(time.time() - began, 1), "curve": fits.thin(encoder.history),
    }  # fmt: skip
    data = io.BytesIO()
    weights = {f"weight:{name}": value for name, value in encoder.weights.items()}
    np.savez_compressed(
        data, allow_pickle=False, facts=np.array(json.dumps(facts)), last_relu=np.array(arm.last_relu),
        loss=np.array(encoder.loss), **weights,
    )  # fmt: skip
    write_whole(out / "encoders" / f"{arm.key}.npz", data.getvalue())
    checkpoint.unlink(missing_ok=True)
    return f"{facts['steps']} steps in {facts['spent_s']} s, loss {encoder.loss:.4f} on graphs held aside"


@dataclass(frozen=True)
class Teacher:
    """The network that is fitted to inference."""

    key: str = TAUGHT


def teach_arm(_arm: Teacher, out: Path, end: float, epochs: int, plan: Plan) -> str:
    """Fit the teacher; one line about it."""
    recipe = replace(plan.recipe(), targets=_TARGETS)
    return teach(recipe, epochs, out, plan.progress(end), plan.device, plan.seconds(end), plan.narrow)


def fit_step_arm(
    arm: StepArm, out: Path, end: float, epochs: int, plan: Plan | None = None
) -> str:  # fmt: skip
    """Fit one regressor; one line about it."""
    from lab.papers.graph_networks.training import fit

    plan = plan or Plan()
    began, device = time.time(), plan.device
    steps = [row for row in fits.rows() if row.mode == "training"]
    parts = split_rows(steps, arm.split, arm.seed)
    labelled = share_of(parts[TRAIN], arm.split, arm.share, arm.seed)
    recipe = replace(plan.recipe(), targets=_TARGETS, batch=32, embedding=arm.embedding)
    # equal numbers of steps, however few the labels are
    longer = round(epochs * -(-len(parts[TRAIN]) // recipe.batch) / -(-len(labelled) // recipe.batch))
    recipe = replace(recipe, epochs=longer, patience=longer)
    encoder = _encoder_of(arm, recipe, out, parts[TRAIN], device)
    name, key = f"{arm.name}{plan.of_width}", plan.key(arm)
    checkpoint = out / "checkpoints" / f"{key}.pt"

    def fit_by(captured: bool, narrow: bool | None) -> "Fitted":
        return fit(
            [(row.graph, row.truth) for row in labelled], [(row.graph, row.truth) for row in parts[VALIDATION]],
            recipe, arm.seed, plan.progress(end), device=device, encoder=encoder, seconds=plan.seconds(end),
            captured=captured, checkpoint=checkpoint, save_every_s=_SAVE_EVERY_S, narrow=narrow,
            start=read_taught(out) if arm.taught else None,
        )  # fmt: skip

    try:
        fitted, captured, _ = fits.first_finite(fit_by, plan.captured, plan.narrow)
    except InterruptedError as interruption:
        return f"{interruption} of {recipe.epochs}; the next sitting goes on"
    facts = {
        "arm": name, "subset": f"training steps, {100 * arm.share:g} % of the labels", "split": arm.split,
        "seed": arm.seed, "device": device, "captured": captured, "spent_s": round(time.time() - began, 1),
    }  # fmt: skip
    line = fits.save(out / "arms" / f"{key}.npz", fitted, len(labelled), parts[TEST], facts)
    checkpoint.unlink(missing_ok=True)
    return line


def _encoder_of(
    arm: StepArm, recipe: Recipe, out: Path, rows: Sequence[Labelled], device: str
) -> "Encoder | None":  # fmt: skip
    from lab.papers.trappm.pretraining import random_encoder

    if arm.embedding == "zeros":
        return None
    if arm.encoder is None:
        return random_encoder([row.graph for row in rows], replace(recipe, last_relu=False), arm.seed, device)
    return read_encoder(out, arm.encoder)


def read_encoder(out: Path, name: str) -> "Encoder":
    """An encoder that `pretrain_arm` wrote."""
    from lab.papers.graph_networks.training import Encoder

    with np.load(out / "encoders" / f"{name}.npz", allow_pickle=False) as stored:
        weights = {key.partition(":")[2]: stored[key] for key in stored.files if key.startswith("weight:")}
        curve = tuple(json.loads(str(stored["facts"]))["curve"])
        return Encoder(weights, bool(stored["last_relu"]), float(stored["loss"]), curve)


def _has_all(out: Path, arm: EncoderArm, steps: int, *, further: bool) -> bool:
    """Whether an encoder need not be trained: it is there and, where it may go on, has all its steps."""
    file = out / "encoders" / f"{arm.key}.npz"
    if not file.exists() or not further:
        return file.exists()
    with np.load(file, allow_pickle=False) as stored:
        return bool(json.loads(str(stored["facts"]))["steps"] >= steps)


def main() -> None:
    """Pre-train what is missing, fit what is missing, and collect both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("set", type=Path, help="The file of python -m lab.papers.dippm.prepare.")
    parser.add_argument("out", type=Path, help="The folder of the results.")
    parser.add_argument("--seconds", type=float, default=440.0, help="For everything [440].")
    parser.add_argument("--share", type=float, default=0.65, help="Of them for pre-training [0.65].")
    parser.add_argument("--processes", type=int, default=12, help="Fits at the same time [12].")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"Of each encoder [{STEPS}].")
    parser.add_argument("--graphs", type=int, default=COUNT, help=f"Without labels [{COUNT}].")
    parser.add_argument("--epochs", type=int, default=300, help="Of each regressor [300].")
    parser.add_argument("--width", type=int, help="Narrow copies: the width of all layers of a regressor.")
    parser.add_argument("--encoder-width", type=int, help="The same for the layers of encoders.")
    parser.add_argument("--seeds", type=int, default=3, help="Seeds of the arms [3].")
    parser.add_argument("--encoders", default="", help="Those whose names begin so, separated by commas [all].")
    parser.add_argument("--splits", default=",".join(SPLITS), help="How labels are split [both].")
    parser.add_argument("--only", default="", help="Arms of these names, separated by commas [all].")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="Shares of the labels [all].")
    parser.add_argument("--whole", action="store_true", help="All steps and epochs, in several sittings if need be.")
    parser.add_argument("--by-bound", action="store_true", help="Nodes know their bound; ratios to it are learned.")
    parser.add_argument("--teach", type=int, default=0, help="Epochs of a teacher fitted to inference [no teacher].")
    parser.add_argument("--bf16", action="store_true", help="Nodes in 16 bits on a CPU, too, if it multiplies them.")
    parser.add_argument("--encoders-only", action="store_true", help="Pre-train encoders, and fit no regressor.")
    parser.add_argument("--further", action="store_true", help="Encoders of fewer steps go on from their weights.")
    parser.add_argument("--untested", action="store_true", help="Capture steps without comparing them first.")
    parser.add_argument("--device", default=default_device(), help="cpu or cuda [what there is].")
    options = parser.parse_args()
    began, out = time.time(), options.out
    first_end, end = began + options.share * options.seconds, began + options.seconds
    plan = Plan(
        options.width, options.encoder_width, options.device, options.whole, options.by_bound, options.bf16 or None
    )
    os.environ["OMP_NUM_THREADS"] = "1"
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, context, fits.open_set, (options.set,)) as pool:
        for _ in range(options.processes):
            pool.submit(time.sleep, 0.5)  # all processes read the set at once
        captured = options.device == "cuda" and (options.untested or fits.captures_work(options.set))
        plan = replace(plan, captured=captured)
        encoders = [arm for arm in ENCODERS if arm.key.startswith(tuple(options.encoders.split(",")))]
        encoders = [arm for arm in encoders if not _has_all(out, arm, options.steps, further=options.further)]
        _all(pool, pretrain_arm, [(arm, out, first_end, options.steps, options.graphs, plan) for arm in encoders])
        if options.teach and not is_taught(out):
            _all(pool, teach_arm, [(Teacher(), out, first_end, options.teach, plan)])
        made = (
            {file.stem for file in (out / "encoders").glob("*.npz")} | {None} | ({TAUGHT} if is_taught(out) else set())
        )
        names, splits, shares = options.only.split(","), options.splits.split(","), options.shares.split(",")
        planned = [
            arm
            for arm in step_arms(range(options.seeds))
            if arm.share in map(float, shares) and arm.split in splits and (not options.only or arm.name in names)
        ]
        if options.processes == 1:  # nothing is beside the long ones: a sitting that ends early lacks as few as can be
            planned.sort(key=lambda arm: arm.embedding == "trained")
        if options.encoders_only:
            planned = []
        waiting = [
            arm for arm in planned if not (out / "arms" / f"{plan.key(arm)}.npz").exists() and arm.encoder in made
        ]
        _all(pool, fit_step_arm, [(arm, out, end, options.epochs, plan) for arm in waiting])
    fits.collect(out, "trappm-arms.npz")
    facts = {}
    for file in sorted((out / "encoders").glob("*.npz")):
        with np.load(file, allow_pickle=False) as stored:
            facts[file.stem] = json.loads(str(stored["facts"]))
    write_whole(out / "trappm-encoders.json", json.dumps(facts).encode())


def _all(pool: ProcessPoolExecutor, work: Callable[..., str], tasks: Sequence[tuple[Any, ...]]) -> None:
    """Run tasks side by side; whatever ends one does not end the others."""
    futures = {pool.submit(work, *task): task[0] for task in tasks}
    for future in as_completed(futures):
        error = future.exception()
        fits.say(f"{futures[future].key}: {error if error is not None else future.result()}")


if __name__ == "__main__":
    main()

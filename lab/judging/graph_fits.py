"""workflows: graph networks of the papers, fitted for a split and a seed; what they say of its test side is kept.

A machine with an accelerator fits, another one judges: the second needs neither torch nor graphs.
"""

import hashlib
import io
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, architecture_of
from foretell.errors import DataError, InputError
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_network import default_device
from foretell.training.judging.protocol import Answerer, Fitter, Predicted, sides
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Encoder

Say = Callable[[str], None]
Graphs = Mapping[str, GraphArrays]

INFERENCE, TRAINING = ("inference", "prefill", "decode"), ("training",)
PRETRAINED = "trappm"
# DIPPM tells of inference, TraPPM of training; a baseline of both has a network for each, as each paper has one mode
MODES: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "dippm": (INFERENCE,),
    "gcn": (INFERENCE,),
    "gat": (INFERENCE,),
    "gin": (INFERENCE,),
    PRETRAINED: (TRAINING,),
    "nnlqp": (INFERENCE, TRAINING),
    "brp-nas": (INFERENCE, TRAINING),
    "mlp": (INFERENCE, TRAINING),
}
FIT_VERSION = 1  # raise it when a recipe, its training or its splits change: kept predictions are made again
_SAID_EVERY_S = 10.0
_NOT_METRICS = ("ids", "facts")


@dataclass(frozen=True)
class Arm:
    """A row of a comparison: a recipe, the share of the labels it sees, and whether its encoder is pre-trained."""

    title: str
    recipe: str
    share: float = 1.0
    pretrained: bool = True

    @property
    def stem(self) -> str:
        """Its part of a file's name; all labels and an encoder are the recipe as it is, under whichever title."""
        share = f"-{100 * self.share:g}" if self.share < 1 or not self.pretrained else ""
        return f"{self.recipe}{share}{'' if self.pretrained else '-no-pre-training'}"


def arms_of(name: str, label_shares: Sequence[float] = ()) -> list[Arm]:
    """The recipe alone, or with and without pre-training for each share of the labels.

    >>> [arm.title for arm in arms_of("trappm", (0.25,))]
    ['trappm 25%', 'trappm 25%, no pre-training']
    """
    for share in label_shares:
        if not 0 < share <= 1:
            raise InputError(f"Got a share of labels of {share:g}; give shares above 0 and up to 1, such as 0.1,0.5,1.")
    if not label_shares:
        return [Arm(name, name)]
    return [
        Arm(f"{name} {100 * share:g}%{'' if pretrained else ', no pre-training'}", name, share, pretrained)
        for share in dict.fromkeys(label_shares)
        for pretrained in (True, False)
    ]


@dataclass(frozen=True)
class Asked:
    """A network to fit: an arm on a split with a seed."""

    arm: Arm
    split: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm.title}, split by {self.split}, seed {self.seed}"

    def file(self, folder: Path) -> Path:
        """Where its predictions are kept."""
        return folder / f"{self.arm.stem}-{self.split}-{self.seed}.npz"


def fit_graph_networks(
    samples: Sequence[Sample],
    asked: Sequence[Asked],
    read_graphs: Callable[[], Graphs],
    folder: Path,
    seconds: float | None = None,
    say: Say = lambda _: None,
) -> None:
    """Fit what ``folder`` has no predictions of, and keep them there.

    ``seconds`` limits each network, and an encoder on its own. What is kept stays, whatever its limit was.
    """
    missing = {file: each for each in asked if not (file := each.file(folder)).exists()}
    if missing:
        bench = _Bench(samples, read_graphs(), folder, seconds, default_device(), say)
        for file, each in missing.items():
            say(f"graph network for {each}, on {bench.device}")
            write_whole(file, bench.predict_test_side(each))


def kept_fitter(file: Path) -> Fitter:
    """What fits nothing, and answers from the predictions in a file."""

    def fit(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> Answerer:
        del train, validation, seed
        return lambda test: _read(file, test)

    return fit


def _read(file: Path, test: Sequence[Sample]) -> Predicted:
    """What was predicted for samples; a metric that no mode has an answer for is left out."""
    with np.load(file, allow_pickle=False) as arrays:
        stored = {name: arrays[name] for name in arrays.files if name not in _NOT_METRICS}
        places = {workload_id: place for place, workload_id in enumerate(arrays["ids"].tolist())}
    absent = [sample.workload_id for sample in test if sample.workload_id not in places]
    if absent:
        raise DataError(f"{file} does not know the workload {absent[0]}: it is of another split; delete it.")
    rows = [places[sample.workload_id] for sample in test]
    return {name: values[rows] for name, values in stored.items() if np.isfinite(values[rows]).any()}


@dataclass(frozen=True)
class _Bench:
    """What all fits of a call share."""

    samples: Sequence[Sample]
    graphs: Graphs
    folder: Path
    seconds: float | None
    device: str
    say: Say

    def predict_test_side(self, asked: Asked) -> bytes:
        """Fit a network for each group of modes, and predict the test side; NaN where the recipe has no answer."""
        parts = sides(self.samples, asked.split, asked.seed)
        test, recipe = parts[TEST], find_recipe(asked.arm.recipe)
        found = {name: np.full(len(test), np.nan) for name in recipe.targets}
        facts = []
        for modes in MODES[asked.arm.recipe]:
            taught, held, judged = (captured_in(parts[side], modes) for side in (TRAIN, VALIDATION, TEST))
            labelled = share_of(taught, asked.split, asked.arm.share, asked.seed)
            targets = tuple(name for name in recipe.targets if has_truth(labelled, name))
            if not (targets and held and judged):
                self.say(
                    f"{asked}: no network for {' and '.join(modes)}, with {len(labelled)} workloads to learn from, "
                    f"{len(held)} to stop by and {len(judged)} to judge by"
                )
                continue
            longer = len(taught) / len(labelled)  # as many steps, however few the labels are
            own = replace(
                recipe,
                targets=targets,
                epochs=round(recipe.epochs * longer),
                patience=round(recipe.patience * longer),
                embedding=recipe.embedding if asked.arm.pretrained else "zeros",
            )
            encoder = self._encoder(asked, own, parts) if own.embedding == "frozen" else None
            what = f"{asked}, {' and '.join(modes)}"
            predicted, fact = self._fit(what, own, asked.seed, encoder, (labelled, held, judged))
            places = [place for place, sample in enumerate(test) if sample.setting.mode in modes]
            for name, values in predicted.items():
                found[name][places] = values
            facts.append({"modes": modes, **fact})
        ids = np.array([sample.workload_id for sample in test], dtype=np.str_)
        return _npz({**found, "ids": ids, "facts": np.array(json.dumps(facts))})

    def _fit(
        self,
        what: str,
        recipe: Recipe,
        seed: int,
        encoder: "Encoder | None",
        parts: tuple[Sequence[Sample], Sequence[Sample], Sequence[Sample]],
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, object]]:
        from lab.papers.graph_networks.training import fit

        taught, held, judged = parts
        begin = time.monotonic()
        fitted = fit(
            [(self.graphs[sample.workload_id], sample.truth) for sample in taught],
            [(self.graphs[sample.workload_id], sample.truth) for sample in held],
            recipe,
            seed,
            progress_of(what, self.say),
            self.device,
            encoder=encoder,
            seconds=self.seconds,
        )
        spent_s = time.monotonic() - begin
        errors = ", ".join(f"{name} {error:.1%}" for name, error in fitted.metrics.items())
        self.say(f"{what}: {len(fitted.history)} epochs in {spent_s:.0f} s, validation {errors}")
        facts: dict[str, object] = {
            "workloads": len(taught), "epochs": len(fitted.history), "spent_s": round(spent_s, 1),
            "limit_s": self.seconds, "device": self.device, "validation": fitted.metrics,
        }  # fmt: skip
        return fitted.predict([self.graphs[sample.workload_id] for sample in judged], self.device), facts

    def _encoder(self, asked: Asked, recipe: Recipe, parts: Mapping[str, Sequence[Sample]]) -> "Encoder":
        """TraPPM's encoder, from all graphs outside the test side, with or without labels; those of the validation
        side choose its epoch."""
        from lab.papers.graph_networks.pretraining import pretrain
        from lab.papers.graph_networks.training import Encoder

        file = self.folder / f"encoder-{asked.split}-{asked.seed}.npz"
        if not file.exists():
            what = f"encoder, split by {asked.split}, seed {asked.seed}"
            train, held = (
                [self.graphs[sample.workload_id] for sample in parts[side] if sample.captured]
                for side in (TRAIN, VALIDATION)
            )
            self.say(f"{what}, on {self.device}")
            made = pretrain(
                train, held, recipe, asked.seed, progress_of(what, self.say), self.device, seconds=self.seconds
            )
            self.say(f"{what}: best of {len(made.history)} epochs, loss {made.loss:.3f}")
            weights = {f"weight:{name}": value for name, value in made.weights.items()}
            write_whole(file, _npz({**weights, "last_relu": np.array(made.last_relu), "loss": np.array(made.loss)}))
        with np.load(file, allow_pickle=False) as arrays:
            kept = {name.partition(":")[2]: arrays[name] for name in arrays.files if name.startswith("weight:")}
            return Encoder(kept, bool(arrays["last_relu"]), float(arrays["loss"]))


def captured_in(samples: Sequence[Sample], modes: Sequence[str]) -> list[Sample]:
    """The whole workloads of some modes."""
    return [sample for sample in samples if sample.captured and sample.setting.mode in modes]


def has_truth(samples: Sequence[Sample], metric: str) -> bool:
    """Whether a metric was measured of any sample."""
    return any(np.isfinite(sample.truth[metric]) for sample in samples)


def share_of(samples: Sequence[Sample], split: str, share: float, seed: int) -> list[Sample]:
    """A share of samples: the smaller ones are in the larger ones, and every family gives its share.

    Where architectures are kept together by the split, they are here too.
    """
    if share >= 1:
        return list(samples)
    groups = [sample.workload_id if split == "random" else architecture_of(sample.spec) for sample in samples]
    # an architecture may have relatives in several families: the commonest counts
    families: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for group, sample in zip(groups, samples, strict=True):
        families[group][sample.family] += 1
    members: defaultdict[str, list[str]] = defaultdict(list)
    for group, counts in families.items():
        members[min(counts, key=lambda family: (-counts[family], family))].append(group)
    chosen = set()
    for family, own in members.items():
        # (rank + a number of the family's own in [0, 1)) / size: small families give one of them now and then
        shift = _fraction(f"{seed}|family|{family}")
        own.sort(key=lambda group: _fraction(f"{seed}|{group}"))
        chosen |= {group for rank, group in enumerate(own) if (rank + shift) / len(own) < share}
    return [sample for group, sample in zip(groups, samples, strict=True) if group in chosen]


def _fraction(text: str) -> float:
    """A number in [0, 1) that a text always has."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / float(1 << 48)


def progress_of(what: str, say: Say) -> Callable[[int, Mapping[str, float]], None]:
    """Says where a fit stands, every few seconds."""
    said = time.monotonic()

    def tell(epoch: int, record: Mapping[str, float]) -> None:
        nonlocal said
        if time.monotonic() - said >= _SAID_EVERY_S:
            said = time.monotonic()
            say(f"{what}: epoch {epoch + 1}, loss {record['loss']:.4g}, validation {record['score']:.4g}")

    return tell


def _npz(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    return data.getvalue()

"""Lab: graph fits: the papers' graph networks, fitted for a split and a seed; their test predictions are saved.

A machine with a GPU can fit, and another one can judge: the second needs neither torch nor graphs.
"""

import hashlib
import io
import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, architecture_of
from foretell.errors import DataError, InputError
from foretell.files import write_whole
from foretell.predictors.sample import Sample
from foretell.predictors.unit.fit_network import default_device
from foretell.training.judging.protocol import Fitter, Predicted, SamplePredictor, sides
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.recipes import Recipe, find_recipe

if TYPE_CHECKING:
    from lab.papers.graph_networks.training import Encoder

Log = Callable[[str], None]
Graphs = Mapping[str, GraphArrays]

INFERENCE, TRAINING = ("inference", "prefill", "decode"), ("training",)
PRETRAINED = "trappm"
# DIPPM predicts inference, TraPPM training; a baseline of both has one network for each, as each paper has one mode
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
FIT_VERSION = 2  # raise it when a recipe, its training or its splits change: saved predictions are then made again
_REPORT_EVERY_S = 10.0
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
        """Its part of a file's name; with all labels and an encoder it is the recipe's name, whatever the title."""
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
class PlannedFit:
    """A network to fit: an arm on a split with a seed."""

    arm: Arm
    split: str
    seed: int

    def __str__(self) -> str:
        return f"{self.arm.title}, split by {self.split}, seed {self.seed}"

    def file(self, folder: Path) -> Path:
        """The file of its predictions."""
        return folder / f"{self.arm.stem}-{self.split}-{self.seed}.npz"


def fit_graph_networks(
    samples: Sequence[Sample],
    planned: Sequence[PlannedFit],
    read_graphs: Callable[[], Graphs],
    folder: Path,
    seconds: float | None = None,
    log: Log = lambda _: None,
) -> None:
    """Fit the networks whose predictions are not in ``folder``, and save them there.

    ``seconds`` limits each network, and each encoder separately. Saved predictions stay, whatever their limit was.
    """
    missing = {file: fit for fit in planned if not (file := fit.file(folder)).exists()}
    if missing:
        context = _FittingContext(samples, read_graphs(), folder, seconds, default_device(), log)
        for file, fit in missing.items():
            log(f"graph network for {fit}, on {context.device}")
            # predictions, not weights: judging needs no more, and they are small
            write_whole(file, context.predict_test_side(fit))


def cached_fitter(file: Path) -> Fitter:
    """A fitter that fits nothing and reads the predictions in a file."""

    def fit(train: Sequence[Sample], validation: Sequence[Sample], seed: int) -> SamplePredictor:
        del train, validation, seed
        return lambda test: _read(file, test)

    return fit


def _read(file: Path, test: Sequence[Sample]) -> Predicted:
    """The saved predictions for samples; a metric without any prediction is left out."""
    with np.load(file, allow_pickle=False) as arrays:
        stored = {name: arrays[name] for name in arrays.files if name not in _NOT_METRICS}
        places = {workload_id: place for place, workload_id in enumerate(arrays["ids"].tolist())}
    unknown = [sample.workload_id for sample in test if sample.workload_id not in places]
    if unknown:
        raise DataError(
            f"{file} has no prediction for the workload {unknown[0]}: it belongs to another split; delete it."
        )
    rows = [places[sample.workload_id] for sample in test]
    return {name: values[rows] for name, values in stored.items() if np.isfinite(values[rows]).any()}


@dataclass(frozen=True)
class _FittingContext:
    """What all fits of a call share."""

    samples: Sequence[Sample]
    graphs: Graphs
    folder: Path
    seconds: float | None
    device: str
    log: Log

    def predict_test_side(self, planned: PlannedFit) -> bytes:
        """Fit a network for each group of modes and predict the test side; NaN where there is no prediction."""
        parts = sides(self.samples, planned.split, planned.seed)
        test, recipe = parts[TEST], find_recipe(planned.arm.recipe)
        predictions = {name: np.full(len(test), np.nan) for name in recipe.targets}
        facts = []
        for modes in MODES[planned.arm.recipe]:
            training, validation, test_samples = (captured_in(parts[side], modes) for side in (TRAIN, VALIDATION, TEST))
            labelled = share_of(training, planned.split, planned.arm.share, planned.seed)
            # a small share of labels may have no measurement of a metric
            targets = tuple(name for name in recipe.targets if has_truth(labelled, name))
            if not (targets and validation and test_samples):
                self.log(
                    f"{planned}: no network for {' and '.join(modes)}, with {len(labelled)} training, "
                    f"{len(validation)} validation and {len(test_samples)} test workloads"
                )
                continue
            epoch_factor = len(training) / len(labelled)  # the same number of steps, however few the labels are
            own = replace(
                recipe,
                targets=targets,
                epochs=round(recipe.epochs * epoch_factor),
                patience=round(recipe.patience * epoch_factor),
                # zeros keep the shape of the network: only the pre-training differs
                embedding=recipe.embedding if planned.arm.pretrained else "zeros",
            )
            encoder = self._encoder(planned, own, parts) if own.embedding == "frozen" else None
            label = f"{planned}, {' and '.join(modes)}"
            predicted, fact = self._fit(label, own, planned.seed, encoder, (labelled, validation, test_samples))
            # each group of modes has a network of its own: put its predictions in their places
            places = [place for place, sample in enumerate(test) if sample.setting.mode in modes]
            for name, values in predicted.items():
                predictions[name][places] = values
            facts.append({"modes": modes, **fact})
        ids = np.array([sample.workload_id for sample in test], dtype=np.str_)
        return _npz({**predictions, "ids": ids, "facts": np.array(json.dumps(facts))})

    def _fit(
        self,
        label: str,
        recipe: Recipe,
        seed: int,
        encoder: "Encoder | None",
        parts: tuple[Sequence[Sample], Sequence[Sample], Sequence[Sample]],
    ) -> tuple[dict[str, NDArray[np.float64]], dict[str, object]]:
        from lab.papers.graph_networks.training import fit

        training, validation, test_samples = parts
        begin = time.monotonic()
        fitted = fit(
            [(self.graphs[sample.workload_id], sample.truth) for sample in training],
            [(self.graphs[sample.workload_id], sample.truth) for sample in validation],
            recipe,
            seed,
            progress_of(label, self.log),
            self.device,
            encoder=encoder,
            seconds=self.seconds,
        )
        elapsed_s = time.monotonic() - begin
        errors = ", ".join(f"{name} {error:.1%}" for name, error in fitted.metrics.items())
        self.log(f"{label}: {len(fitted.history)} epochs in {elapsed_s:.0f} s, validation {errors}")
        facts: dict[str, object] = {
            "workloads": len(training), "epochs": len(fitted.history), "spent_s": round(elapsed_s, 1),
            "limit_s": self.seconds, "device": self.device, "validation": fitted.metrics,
        }  # fmt: skip
        return fitted.predict([self.graphs[sample.workload_id] for sample in test_samples], self.device), facts

    def _encoder(self, planned: PlannedFit, recipe: Recipe, parts: Mapping[str, Sequence[Sample]]) -> "Encoder":
        """TraPPM's encoder, pre-trained on all graphs outside the test side, with or without labels.

        The graphs of the validation side choose its epoch.
        """
        from lab.papers.graph_networks.training import Encoder
        from lab.papers.trappm.pretraining import pretrain

        file = self.folder / f"encoder-{planned.split}-{planned.seed}.npz"
        if not file.exists():
            label = f"encoder, split by {planned.split}, seed {planned.seed}"
            train, validation = (
                [self.graphs[sample.workload_id] for sample in parts[side] if sample.captured]
                for side in (TRAIN, VALIDATION)
            )
            self.log(f"{label}, on {self.device}")
            encoder = pretrain(
                train, validation, recipe, planned.seed, progress_of(label, self.log), self.device, seconds=self.seconds
            )
            self.log(f"{label}: best of {len(encoder.history)} epochs, loss {encoder.loss:.3f}")
            weights = {f"weight:{name}": value for name, value in encoder.weights.items()}
            write_whole(
                file, _npz({**weights, "last_relu": np.array(encoder.last_relu), "loss": np.array(encoder.loss)})
            )
        with np.load(file, allow_pickle=False) as arrays:
            encoder_weights = {
                name.partition(":")[2]: arrays[name] for name in arrays.files if name.startswith("weight:")
            }
            return Encoder(encoder_weights, bool(arrays["last_relu"]), float(arrays["loss"]))


def captured_in(samples: Sequence[Sample], modes: Sequence[str]) -> list[Sample]:
    """The samples of some modes whose whole workload was replayed."""
    return [sample for sample in samples if sample.captured and sample.setting.mode in modes]


def has_truth(samples: Sequence[Sample], metric: str) -> bool:
    """Whether a metric was measured for any sample."""
    return any(np.isfinite(sample.truth[metric]) for sample in samples)


class Placed(Protocol):
    """What is asked of a sample to place it: which workload, which model, which family."""

    @property
    def workload_id(self) -> str:
        """The workload."""
        ...

    @property
    def spec(self) -> str:
        """The model."""
        ...

    @property
    def family(self) -> str:
        """The family of the model."""
        ...


Some = TypeVar("Some", bound=Placed)


def share_of(samples: Sequence[Some], split: str, share: float, seed: int) -> list[Some]:
    """A share of samples; a smaller share is part of a larger one, and every family gives its share.

    Where the split keeps architectures together, they stay together here too.
    """
    if share >= 1:
        return list(samples)
    groups = [sample.workload_id if split == "random" else architecture_of(sample.spec) for sample in samples]
    # an architecture may occur in several families: the commonest one counts
    families: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for group, sample in zip(groups, samples, strict=True):
        families[group][sample.family] += 1
    members: defaultdict[str, list[str]] = defaultdict(list)
    for group, counts in families.items():
        members[min(counts, key=lambda family: (-counts[family], family))].append(group)
    chosen = set()
    for family, own in members.items():
        # the shift differs by family, so that some small families give a group at small shares, and others do not
        shift = _fraction(f"{seed}|family|{family}")
        own.sort(key=lambda group: _fraction(f"{seed}|{group}"))
        # groups are sorted by hash: a larger share contains the smaller one
        chosen |= {group for rank, group in enumerate(own) if (rank + shift) / len(own) < share}
    return [sample for group, sample in zip(groups, samples, strict=True) if group in chosen]


def _fraction(text: str) -> float:
    """A number in [0, 1) that depends on a text only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / float(1 << 48)


def progress_of(label: str, log: Log) -> Callable[[int, Mapping[str, float]], None]:
    """A callback that reports the progress of a fit every few seconds."""
    reported = time.monotonic()

    def report(epoch: int, record: Mapping[str, float]) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _REPORT_EVERY_S:
            reported = time.monotonic()
            log(f"{label}: epoch {epoch + 1}, loss {record['loss']:.4g}, validation {record['score']:.4g}")

    return report


def _npz(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    return data.getvalue()

"""Graph networks for a split and a seed: fitted once, judged elsewhere, and only in the modes they are made for."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretell.datasets.splits import TEST, TRAIN, VALIDATION, architecture_of
from foretell.errors import DataError, InputError
from foretell.predictors.sample import Sample
from foretell.training.examples.samples import read_samples
from foretell.training.judging.protocol import sides
from lab.judging import graph_fits
from lab.judging.graph_fits import (
    INFERENCE,
    MODES,
    Arm,
    PlannedFit,
    arms_of,
    cached_fitter,
    fit_graph_networks,
    share_of,
)
from lab.judging.graph_set import read_graph_set
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.graph_networks.recipes import RECIPES
from small.small_samples import small_samples
from small.small_store import write_store
from small.tiny_workloads import tiny_recipe

pytest.importorskip("pyarrow")
pytest.importorskip("torch")

from lab.papers.graph_networks import training as graph_training
from lab.papers.trappm import pretraining as graph_pretraining


@dataclass(frozen=True)
class World:
    samples: list[Sample]
    graphs: dict[str, GraphArrays]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    store, cache = write_store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("cache")
    samples = read_samples(store, "h200", cache)
    return World(samples, read_graph_set(samples, store, "h200", cache))


@dataclass
class Calls:
    """What was fitted: its arguments by name."""

    fits: list[dict[str, Any]] = field(default_factory=list)
    pretrainings: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Small recipes, and a note of every fit."""
    seen, fit, pretrain = Calls(), graph_training.fit, graph_pretraining.pretrain

    def noted(into: list[dict[str, Any]], original: Callable[..., Any]) -> Callable[..., Any]:
        def call(taught: Any, validation: Any, recipe: Any, *others: Any, **named: Any) -> Any:
            into.append({"taught": taught, "held": validation, "recipe": recipe, **named})
            return original(taught, validation, recipe, *others, **named)

        return call

    monkeypatch.setattr(graph_fits, "find_recipe", lambda name: tiny_recipe(name, epochs=2, encoder_epochs=1))
    monkeypatch.setattr(graph_training, "fit", noted(seen.fits, fit))
    monkeypatch.setattr(graph_pretraining, "pretrain", noted(seen.pretrainings, pretrain))
    return seen


def fit_all(world: World, planned: list[PlannedFit], folder: Path, **options: Any) -> None:
    fit_graph_networks(world.samples, planned, lambda: world.graphs, folder, **options)


def answers(world: World, planned: PlannedFit, folder: Path) -> tuple[list[Sample], dict[str, np.ndarray]]:
    test = sides(world.samples, planned.split, planned.seed)[TEST]
    return test, dict(cached_fitter(planned.file(folder))([], [], 0)(test))


def one(name: str, split: str = "random", seed: int = 0) -> PlannedFit:
    return PlannedFit(arms_of(name)[0], split, seed)


def test_every_recipe_has_its_modes() -> None:
    assert set(MODES) == set(RECIPES)


@pytest.mark.parametrize(
    ("name", "answered", "metrics"),
    [
        ("dippm", {"inference"}, {"latency_ms", "memory_mib", "energy_j"}),
        ("trappm", {"training"}, {"latency_ms", "memory_mib", "power_w"}),
        ("nnlqp", {"inference", "training"}, {"latency_ms", "memory_mib", "power_w"}),
        ("brp-nas", {"inference", "training"}, {"latency_ms"}),
        ("mlp", {"inference", "training"}, {"latency_ms", "memory_mib", "energy_j", "power_w"}),
    ],
)
def test_a_network_answers_in_its_modes_and_nowhere_else(
    world: World, tmp_path: Path, name: str, answered: set[str], metrics: set[str]
) -> None:
    planned = one(name)
    fit_all(world, [planned], tmp_path)
    test, predicted = answers(world, planned, tmp_path)
    modes = np.array([sample.setting.mode for sample in test])
    assert set(modes.tolist()) == {"inference", "training"}, "both must be there, or nothing is shown"
    assert set(predicted) == metrics, "device_memory_mib was not measured here"
    for values in predicted.values():
        assert np.array_equal(np.isfinite(values), np.isin(modes, list(answered)))
        assert (values[np.isfinite(values)] > 0).all()


def test_predictions_are_those_of_their_workloads(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network that knows the truth, asked in another order."""
    truth = {id(world.graphs[sample.workload_id]): sample.truth for sample in world.samples}

    class Oracle:
        history = ()

        @property
        def metrics(self) -> dict[str, float]:
            return {}

        def predict(self, graphs: list[GraphArrays], _: str) -> dict[str, np.ndarray]:
            return {"latency_ms": np.array([truth[id(graph)]["latency_ms"] for graph in graphs])}

    monkeypatch.setattr(graph_training, "fit", lambda *_, **__: Oracle())
    planned = one("mlp")
    fit_all(world, [planned], tmp_path)
    test = sides(world.samples, "random", 0)[TEST][::-1]
    predicted = cached_fitter(planned.file(tmp_path))([], [], 0)(test)
    np.testing.assert_array_equal(predicted["latency_ms"], [sample.truth["latency_ms"] for sample in test])


def test_it_learns_from_its_side_alone(world: World, tmp_path: Path, calls: Calls) -> None:
    fit_all(world, [one("dippm", "architecture", 3)], tmp_path)
    parts = sides(world.samples, "architecture", 3)
    (call,) = calls.fits
    for role, side in (("taught", TRAIN), ("held", VALIDATION)):
        expected = [id(world.graphs[s.workload_id]) for s in parts[side] if s.setting.mode in INFERENCE]
        assert [id(graph) for graph, _ in call[role]] == expected
        assert expected


def test_what_is_kept_is_not_fitted_again_and_needs_no_graphs(world: World, tmp_path: Path, calls: Calls) -> None:
    planned = [one("mlp"), one("mlp", seed=1)]
    fit_all(world, planned[:1], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mlp-random-0.npz"]
    fit_all(world, planned, tmp_path)
    assert len(calls.fits) == 4, "two networks for each seed, none of them twice"

    def refuse() -> dict[str, GraphArrays]:
        raise AssertionError

    fit_graph_networks(world.samples, planned, refuse, tmp_path)
    assert len(calls.fits) == 4


def test_the_encoder_sees_every_graph_but_those_of_the_test_side(world: World, tmp_path: Path, calls: Calls) -> None:
    fit_all(world, [one("trappm")], tmp_path)
    parts = sides(world.samples, "random", 0)
    (call,) = calls.pretrainings
    for role, side in (("taught", TRAIN), ("held", VALIDATION)):
        assert [id(graph) for graph in call[role]] == [id(world.graphs[s.workload_id]) for s in parts[side]]
    assert {s.setting.mode for s in parts[TRAIN]} == {"inference", "training"}, "labelled or not"


def test_shares_of_labels_with_and_without_pre_training(world: World, tmp_path: Path, calls: Calls) -> None:
    arms = arms_of("trappm", (0.5, 1.0))
    fit_all(world, [PlannedFit(arm, "random", 0) for arm in arms], tmp_path)
    assert len(calls.pretrainings) == 1, "one encoder serves all shares"
    half, half_plain, full, full_plain = calls.fits
    assert [call["recipe"].embedding for call in calls.fits] == ["frozen", "zeros", "frozen", "zeros"]
    assert half["encoder"] is not None
    assert half_plain["encoder"] is None
    ids = [{id(graph) for graph, _ in call["taught"]} for call in (half, half_plain, full, full_plain)]
    assert ids[0] == ids[1] < ids[2] == ids[3]
    ratio = len(ids[2]) / len(ids[0])
    assert half["recipe"].epochs == round(full["recipe"].epochs * ratio), "as many steps with fewer labels"
    assert len({len(call["held"]) for call in calls.fits}) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "encoder-random-0.npz",
        "trappm-100-no-pre-training-random-0.npz",
        "trappm-50-no-pre-training-random-0.npz",
        "trappm-50-random-0.npz",
        "trappm-random-0.npz",
    ]
    predicted = [answers(world, PlannedFit(arm, "random", 0), tmp_path)[1]["latency_ms"] for arm in arms]
    known = [values[np.isfinite(values)] for values in predicted]
    assert len({values.tobytes() for values in known}) == 4, "no arm is another"


def test_all_labels_and_an_encoder_are_the_recipe_itself(world: World, tmp_path: Path, calls: Calls) -> None:
    fit_all(world, [one("trappm")], tmp_path)
    (again, _) = arms_of("trappm", (1.0,))
    fit_all(world, [PlannedFit(again, "random", 0)], tmp_path)
    assert len(calls.fits) == 1
    assert again.title == "trappm 100%"


def test_the_limit_is_handed_on_and_written_down(world: World, tmp_path: Path, calls: Calls) -> None:
    messages: list[str] = []
    fit_all(world, [one("trappm")], tmp_path, seconds=0.001, log=messages.append)
    assert calls.fits[0]["seconds"] == calls.pretrainings[0]["seconds"] == 0.001
    with np.load(tmp_path / "trappm-random-0.npz", allow_pickle=False) as arrays:
        (fact,) = json.loads(str(arrays["facts"]))
    assert (fact["limit_s"], fact["epochs"], fact["modes"]) == (0.001, 1, ["training"])
    assert any(line.startswith("trappm, split by random, seed 0, training: 1 epochs in ") for line in messages)


def test_a_side_without_workloads_is_reported_and_has_no_predictions(
    world: World, tmp_path: Path, calls: Calls
) -> None:
    inference = [sample for sample in world.samples if sample.setting.mode == "inference"]
    messages: list[str] = []
    planned = one("trappm")
    fit_graph_networks(inference, [planned], lambda: world.graphs, tmp_path, log=messages.append)
    assert not calls.fits
    assert any("no network for training, with 0 training" in line for line in messages)
    test = sides(inference, "random", 0)[TEST]
    assert cached_fitter(planned.file(tmp_path))([], [], 0)(test) == {}


def test_predictions_for_another_side_are_refused(world: World, tmp_path: Path) -> None:
    planned = one("mlp")
    fit_all(world, [planned], tmp_path)
    with pytest.raises(DataError, match="to another split; delete it"):
        cached_fitter(planned.file(tmp_path))([], [], 0)(sides(world.samples, "random", 0)[TRAIN])


def test_arms_have_different_titles_and_files() -> None:
    arms = arms_of("trappm", (0.1, 0.25, 0.25, 1.0))
    assert [arm.title for arm in arms] == [
        "trappm 10%", "trappm 10%, no pre-training", "trappm 25%", "trappm 25%, no pre-training", "trappm 100%",
        "trappm 100%, no pre-training",
    ]  # fmt: skip
    assert [arm.stem for arm in arms] == [
        "trappm-10", "trappm-10-no-pre-training", "trappm-25", "trappm-25-no-pre-training", "trappm",
        "trappm-100-no-pre-training",
    ]  # fmt: skip
    assert arms_of("dippm") == [Arm("dippm", "dippm")]
    for share in (0.0, 1.5, float("nan")):
        with pytest.raises(InputError, match="give shares above 0"):
            arms_of("trappm", (0.5, share))


@pytest.mark.parametrize("split", ["random", "architecture", "family"])
def test_smaller_shares_are_in_larger_ones_and_near_their_size(split: str) -> None:
    samples = [sample for sample in small_samples() if sample.captured]
    sizes, before = [], set()
    for share in (0.1, 0.25, 0.5, 1.0):
        ids = {sample.workload_id for sample in share_of(samples, split, share, 1)}
        assert before <= ids
        before = ids
        sizes.append(len(ids))
    assert sizes[-1] == len(samples)
    seeds = [len(share_of(samples, split, 0.1, seed)) for seed in range(80)]
    # less than one of a family's four architectures: small families must not always give one
    assert np.mean(seeds) == pytest.approx(len(samples) / 10, rel=0.3)


def test_a_share_has_every_family_and_complete_architectures() -> None:
    samples = [sample for sample in small_samples() if sample.captured]
    shared = share_of(samples, "architecture", 0.5, 2)
    chosen = {architecture_of(sample.spec) for sample in shared}
    assert len(shared) == sum(architecture_of(sample.spec) in chosen for sample in samples)
    assert {sample.family for sample in shared} == {sample.family for sample in samples}
    assert shared != share_of(samples, "architecture", 0.5, 3)
    assert [s.workload_id for s in share_of(samples[::-1], "random", 0.5, 2)][::-1] == [
        s.workload_id for s in share_of(samples, "random", 0.5, 2)
    ], "the order does not matter"


def test_a_long_fit_reports_its_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    messages: list[str] = []
    now = iter((0.0, 1.0, 11.0, 11.0, 12.0))
    monkeypatch.setattr(graph_fits.time, "monotonic", lambda: next(now))
    report_progress = graph_fits.progress_of("dippm", messages.append)
    for epoch in range(3):
        report_progress(epoch, {"loss": 0.5, "score": 0.25})
    assert messages == ["dippm: epoch 2, loss 0.5, validation 0.25"]

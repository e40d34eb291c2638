"""Fitting a classifier of kernels: a rule is learned, equal rows are one, classes are those that were seen."""

import numpy as np
import pytest

from foretell.errors import InputError
from foretell.predictors.kernels.fit import fit_kernels
from foretell.predictors.kernels.inputs import kernel_inputs
from small.small_kernels import CLASSES, QUICK, fitted, labelled

pytest.importorskip("torch")


def test_a_rule_is_learned() -> None:
    features, layouts, labels = labelled()
    ranked = fitted().rank(kernel_inputs(features, layouts, False), 1).classes[:, 0]
    assert (ranked == labels).mean() > 0.95


def test_a_network_knows_the_classes_and_tiles_that_it_saw() -> None:
    products, others = (fitted().networks[part] for part in ("products", "others"))
    assert [CLASSES[number] for number in products.classes] == list(CLASSES[:2])
    assert products.tiles.tolist() == [[128, 128], [64, 64]]
    assert [CLASSES[number] for number in others.classes] == list(CLASSES[2:])
    assert not others.tiles.any()


def test_equal_rows_count_as_often_as_they_were_seen() -> None:
    features, layouts, labels = labelled()
    units, rows = kernel_inputs(features, layouts, False), np.flatnonzero(labels == 3)[:5]
    many = np.concatenate([rows] * 3)
    seen: list[str] = []
    fits = {"others": QUICK["others"], "products": QUICK["products"]}
    fit_kernels(units.of(many), labels[many], np.ones(len(many)), CLASSES, "h200", 132, fits, seen.append)
    assert seen[0] == f"{len(np.unique(units.numbers[rows], axis=0))} distinct units, others"


def test_every_unit_needs_a_class() -> None:
    features, layouts, labels = labelled()
    units = kernel_inputs(features, layouts, False)
    with pytest.raises(InputError, match="one class each"):
        fit_kernels(units, labels[:3], np.ones(3), CLASSES, "h200", 132, QUICK)
    with pytest.raises(InputError, match="Got 0 units"):
        fit_kernels(units.of(slice(0, 0)), labels[:0], np.ones(0), CLASSES, "h200", 132, QUICK)

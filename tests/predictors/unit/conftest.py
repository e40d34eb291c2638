"""Small trees on units, fitted once for the tests of this room."""

import pytest

from foretell.predictors.unit.model import UnitModel
from small.small_samples import QUICK, architectures, small_samples


@pytest.fixture(scope="session")
def file() -> bytes:
    """The file of a fit."""
    pytest.importorskip("lightgbm")
    from foretell.predictors.unit.fit_model import fit_unit_trees

    samples = small_samples()
    return fit_unit_trees(samples, architectures(samples), QUICK)


@pytest.fixture(scope="session")
def trees(file: bytes) -> UnitModel:
    """The model in that file."""
    return UnitModel.load(file)

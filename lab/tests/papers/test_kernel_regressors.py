"""A forest for each kernel: what it tells is what units of its kernel took, and a kernel with few rows borrows."""

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from foretell.errors import DataError
from foretell.features.units import COLUMNS
from lab.papers.kernel_regressors import MIN_ROWS, KernelRegressors

AT = {name: position for position, name in enumerate(COLUMNS)}


def rows_of(operator: int, dtype: int, count: int) -> np.ndarray:
    rows = np.full((count, len(COLUMNS)), -1.0, np.float32)
    rows[:, AT["operator"]], rows[:, AT["dtype"]] = operator, dtype
    rows[:, AT["log_flops"]] = np.linspace(10.0, 20.0, count)
    return rows


def time_us(rows: np.ndarray) -> np.ndarray:
    """One operator takes ten times as long as the other, and one type of it three times as long."""
    scale = np.where(rows[:, AT["operator"]] == 1, 1.0, 10.0) * np.where(rows[:, AT["dtype"]] == 1, 3.0, 1.0)
    return np.asarray(scale * np.exp2(rows[:, AT["log_flops"]] - 10.0), np.float64)


@pytest.fixture(scope="module")
def fitted() -> KernelRegressors:
    rows = np.concatenate([rows_of(1, 0, 300), rows_of(2, 0, 300), rows_of(2, 1, 300), rows_of(3, 0, MIN_ROWS // 4)])
    return KernelRegressors.fit(rows, time_us(rows))


@pytest.mark.parametrize(("operator", "dtype"), [(1, 0), (2, 0), (2, 1)])
def test_each_kernel_is_predicted_from_its_own_sizes(fitted: KernelRegressors, operator: int, dtype: int) -> None:
    rows = rows_of(operator, dtype, 57)[3:-3]  # forests do not look beyond the sizes they know
    np.testing.assert_allclose(fitted.predict(rows), time_us(rows), rtol=0.25)


def test_kernels_with_few_rows_use_their_operator_or_all_rows(fitted: KernelRegressors) -> None:
    unseen_type, unseen_operator = fitted.predict(rows_of(1, 5, 9)), fitted.predict(rows_of(9, 0, 9))
    np.testing.assert_allclose(unseen_type, fitted.predict(rows_of(1, 0, 9)))
    assert (unseen_operator > 0).all()
    assert (fitted.predict(rows_of(3, 0, 9)) == unseen_operator).all()


def test_rows_keep_their_order(fitted: KernelRegressors) -> None:
    mixed = np.concatenate([rows_of(2, 1, 40), rows_of(1, 0, 40)])
    order = np.random.default_rng(0).permutation(len(mixed))
    np.testing.assert_array_equal(fitted.predict(mixed)[order], fitted.predict(mixed[order]))


def test_nothing_timed() -> None:
    with pytest.raises(DataError, match="No unit has a traced time"):
        KernelRegressors.fit(rows_of(1, 0, 0), np.zeros(0))

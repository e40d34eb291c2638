"""Serving fitted trees with numpy against LightGBM itself, in one run and on one thread.

python benchmarks/trees.py            200 trees of 63 leaves, 40 columns, one of them categorical; needs foretell[train]
"""

import statistics
import time
from collections.abc import Callable

import numpy as np

from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.trees import Trees

COLUMNS = 40
CATEGORIES = 100
FITTED_ROWS = 5_000
SERVED_ROWS = (1, 5_000)


def rows(count: int, seed: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    table = draw.normal(size=(count, COLUMNS)).astype(np.float32)
    table[:, 0] = draw.integers(0, CATEGORIES, count)
    return table


def median_s(work: Callable[[], object], times: int = 15) -> float:
    work()
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def measure_serving() -> None:
    table = rows(FITTED_ROWS, seed=0)
    truth = np.abs(table[:, 1]) * table[:, 2] + np.sin(table[:, 0])
    booster = TreeFit().fit(table, truth, categorical=(0,))
    data = trees_of(booster).to_bytes()
    trees = Trees.load(data)
    print(f"{len(data):,} bytes; loading {median_s(lambda: Trees.load(data), 5):.3g} s")
    for count in SERVED_ROWS:
        fresh = rows(count, seed=1)
        served = median_s(lambda fresh=fresh: trees.predict(fresh))
        itself = median_s(lambda fresh=fresh: booster.predict(fresh, num_threads=1))
        print(
            f"{count:,} rows: {served:.3g} s, {count / served:,.0f} rows/s, LightGBM takes {itself / served:.2f} × that"
        )


if __name__ == "__main__":
    measure_serving()

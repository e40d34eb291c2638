"""Lab: linear regression and deep networks of 100 units a layer on flattened graphs, as the paper has them.

A network predicts the latency, or the slowdown, itself, in units of its standard deviation over the training side, and
is fitted to the mean absolute error, by which the paper judges. The depth, 1 to 20 hidden layers, is the one with the
least error on the dev side. Where vectors are long, the first layer is a sum of rows of a table over the nonzero
places: the same as a dense layer on the padded vector, without its zeros.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from foretell.optional import require

DEPTHS = (1, 2, 3, 5, 7, 10, 13, 16, 19, 20)
_UNITS = 100
_RATE = 1e-3
_BATCH = 64
_PATIENCE = 20  # epochs without a better dev side end a fit
_SHORT = 4096  # up to this length a dense first layer is faster than a sum of rows

Vector = tuple[NDArray[np.int64], NDArray[np.float32]]
Values = NDArray[np.float64]
Log = Callable[[str], None]


@dataclass(frozen=True)
class Examples:
    """Vectors with what was measured."""

    vectors: Sequence[Vector]
    truth: Values

    def part(self, places: NDArray[np.intp]) -> "Examples":
        """Some of them."""
        return Examples([self.vectors[place] for place in places], self.truth[places])


@dataclass
class Fitted:
    """A network: its depth, the dev error of every epoch, and its predictions."""

    depth: int
    errors: list[float] = field(default_factory=list)
    predict: Callable[[Sequence[Vector]], Values] = lambda _: np.zeros(0)

    @property
    def converged(self) -> bool:
        """Whether the last tenth of the epochs improved the dev error by less than 2 %."""
        best_before = min(self.errors[: max(1, len(self.errors) * 9 // 10)])
        return min(self.errors) > 0.98 * best_before


def fit_linear(train: Examples, ridge: float = 1e-2) -> Callable[[Sequence[Vector]], Values]:
    """Least squares with a constant; a little ridge, because many places are never or always set."""
    # places that no example sets have no weight
    used = np.unique(np.concatenate([places for places, _ in train.vectors]))
    rows = dense(train.vectors, used)
    mean, middle = rows.mean(axis=0), train.truth.mean()
    rows -= mean
    # in the dual: examples are fewer than places
    dual = np.linalg.solve(rows @ rows.T + ridge * len(rows) * np.eye(len(rows)), train.truth - middle)
    weights = rows.T @ dual
    return lambda vectors: np.asarray((dense(vectors, used) - mean) @ weights + middle, np.float64)


def dense(vectors: Sequence[Vector], used: NDArray[np.int64]) -> NDArray[np.float32]:
    """The vectors at the places ``used``, which are sorted."""
    rows = np.zeros((len(vectors), len(used)), np.float32)
    for row, (places, values) in zip(rows, vectors, strict=True):
        at = np.minimum(np.searchsorted(used, places), len(used) - 1)
        known = used[at] == places
        row[at[known]] = values[known]
    return rows


def fit_network(train: Examples, dev: Examples, width: int, depth: int, epochs: int = 400, seed: int = 0) -> Fitted:
    """Fit one network; the weights of the epoch with the least dev error are kept."""
    torch = require("torch", extra="train", purpose="Fitting a network")
    torch.manual_seed(seed)
    spread = max(float(train.truth.std()), 1e-12)
    middle = float(train.truth.mean())
    hidden = [layer for _ in range(depth - 1) for layer in (torch.nn.Linear(_UNITS, _UNITS), torch.nn.ReLU())]
    is_short = width <= _SHORT
    first = torch.nn.Linear(width, _UNITS, bias=False) if is_short else torch.nn.EmbeddingBag(width, _UNITS, mode="sum")
    torch.nn.init.normal_(first.weight, std=0.1)
    rest = torch.nn.Sequential(torch.nn.ReLU(), *hidden, torch.nn.Linear(_UNITS, 1))
    parameters = [*first.parameters(), *rest.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=_RATE)
    target = torch.tensor((train.truth - middle) / spread, dtype=torch.float32)

    def rows_of(vectors: Sequence[Vector]):  # type: ignore[no-untyped-def]  # a tensor, and torch may be missing
        return torch.from_numpy(dense(vectors, np.arange(width)))

    def run(vectors: Sequence[Vector], rows=None):  # type: ignore[no-untyped-def]
        if is_short:
            return rest(first(rows_of(vectors) if rows is None else rows))[:, 0]
        starts = torch.tensor(np.cumsum([0, *(len(places) for places, _ in vectors[:-1])]), dtype=torch.int64)
        places = torch.from_numpy(np.concatenate([places for places, _ in vectors]))
        values = torch.from_numpy(np.concatenate([values for _, values in vectors]))
        return rest(first(places, starts, per_sample_weights=values))[:, 0]

    def predict(vectors: Sequence[Vector]) -> Values:
        with torch.no_grad():
            return np.asarray(run(vectors).double().numpy() * spread + middle, np.float64)

    draw, errors = np.random.default_rng(seed), list[float]()
    best, kept = float("inf"), [copy.deepcopy(first.state_dict()), copy.deepcopy(rest.state_dict())]
    since, rows = 0, rows_of(train.vectors) if is_short else None
    for _ in range(epochs):
        order = draw.permutation(len(train.vectors))
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            found = run([train.vectors[place] for place in chosen], None if rows is None else rows[chosen])
            loss = (found - target[chosen]).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        errors.append(float(np.abs(predict(dev.vectors) - dev.truth).mean()))
        since += 1
        if errors[-1] < best:
            best, since = errors[-1], 0
            kept = [copy.deepcopy(first.state_dict()), copy.deepcopy(rest.state_dict())]
        if since >= _PATIENCE:
            break
    first.load_state_dict(kept[0])
    rest.load_state_dict(kept[1])
    return Fitted(depth, errors, predict)


def search_depth(
    train: Examples, dev: Examples, width: int, depths: Sequence[int] = DEPTHS, log: Log = lambda _: None
) -> Fitted:
    """The network whose depth has the least dev error."""
    best: Fitted | None = None
    for depth in depths:
        fitted = fit_network(train, dev, width, depth)
        log(f"{depth} hidden layers: {min(fitted.errors):.4g} on the dev side after {len(fitted.errors)} epochs")
        if best is None or min(fitted.errors) < min(best.errors):
            best = fitted
    assert best is not None
    return best

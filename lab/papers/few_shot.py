"""Lab: a new device from a few samples, on the published tables of HELP: its own way, NNLQP's, and shrinkage as ours.

Tables: latencies of encoded architectures on many devices (H. Lee et al., HELP: Hardware-adaptive Efficient Latency
Prediction for NAS via Meta-Learning, NeurIPS 2021, https://github.com/HayeonLee/HELP, MIT). Some devices are unseen, as
there; and, unlike there, the architectures that judge were not seen on any device either.

- *one factor*: the mean of the known devices, times a factor.
- *from scratch*: ridge regression on the encoding, fitted to the samples.
- *NNLQP's way* (L. Liu et al., NNLQP, ICPP 2022): one network for all known devices with a head for each; the new
  device gets a head of its own, which starts from the mean of theirs and is fitted to the samples.
- *HELP's way*: one network that is told a device by the latencies of the sampled architectures, trained over tasks
  drawn from known devices, then tuned on the samples by a few gradient steps. First-order steps stand for the
  second-order ones of the paper, and its network of modulations is left out.
- *known devices*: logarithms are a mix of those told for the known devices, with ridge regression towards their mean:
  shrinkage over devices, as `foretell adapt` shrinks over classes of units.

    python -m lab.papers.few_shot TABLES
"""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
from numpy.typing import NDArray

from foretell.training.judging.table import Cell, Comparison, page

UNSEEN = ("titan_rtx", "gold_6226", "fpga", "pixel2", "raspi4", "eyeriss")  # those of the paper
SAMPLES, DRAWS = (1, 10, 32, 128), 3
TEACHING = 0.7  # of the architectures; the rest judges
_SEED, _WIDTH, _EPOCHS, _BATCH, _RATE = 0, 128, 12, 512, 2e-3
_TASKS, _TUNING_STEPS, _TUNING_RATE = 600, 20, 5e-4
_RIDGE = 3.0
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Table:
    """Encoded architectures, and the logarithm of their latency by device."""

    codes: Values
    logs: dict[str, Values]

    def known(self) -> list[str]:
        """The devices that teach."""
        return [name for name in self.logs if not name.startswith(UNSEEN)]

    def unseen(self) -> list[str]:
        """The devices that judge."""
        return [name for name in self.logs if name.startswith(UNSEEN)]


def read(path: Path) -> Table:
    """One of HELP's tables; an architecture is a choice at each of some places, encoded one-hot."""
    frame = pd.read_parquet(path)
    choices = frame["arch"].map(_choices).tolist()
    columns = []
    for place in zip(*choices, strict=True):
        names = sorted(set(place))
        columns += [[float(choice == name) for choice in place] for name in names[1:]]
    logs = {name: np.log(frame[name].to_numpy(float)) for name in frame.columns if name != "arch"}
    return Table(np.array(columns).T, {name: values for name, values in logs.items() if np.isfinite(values).all()})


def _choices(text: str) -> list[str]:
    """The choices of an architecture, place by place."""
    if text.startswith("|"):
        return [choice for choice in text.replace("+", "").split("|") if choice]
    return [str(choice) for choice in json.loads(text)]


class Trunk:
    """A network on encodings with a linear head for each known device, and the same as plain arrays."""

    def __init__(self, table: Table, rows: NDArray[np.intp]) -> None:
        import torch

        torch.manual_seed(_SEED)
        known = table.known()
        truth = np.stack([table.logs[name][rows] for name in known], axis=1)
        self._middle = truth.mean(axis=0)
        layers = (torch.nn.Linear(table.codes.shape[1], _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH))
        self._body = torch.nn.Sequential(*layers, torch.nn.ReLU())
        self._heads = torch.nn.Linear(_WIDTH, len(known))
        inputs, target = (torch.tensor(each, dtype=torch.float32) for each in (table.codes[rows], truth - self._middle))
        both = torch.nn.Sequential(self._body, self._heads)
        _descend(both, lambda at: (both(inputs[at]) - target[at]).abs().mean(), len(rows), _EPOCHS)

    def told(self, codes: Values) -> Values:
        """The logarithm on every known device."""
        import torch

        with torch.no_grad():
            found = np.asarray(self._heads(self._body(torch.tensor(codes, dtype=torch.float32))), np.float64)
        return np.asarray(found + self._middle)

    def features(self, codes: Values) -> Values:
        """What the heads see."""
        import torch

        with torch.no_grad():
            return np.asarray(self._body(torch.tensor(codes, dtype=torch.float32)), np.float64)

    def mean_head(self) -> tuple[Values, float]:
        """The head that lies between those of the known devices."""
        weights, biases = (each.detach().numpy().astype(np.float64) for each in self._heads.parameters())
        return weights.mean(axis=0), float(biases.mean())


class Conditioned:
    """A network that is told a device by the latencies of ``number`` architectures: HELP's, in its simplest form."""

    def __init__(self, table: Table, rows: NDArray[np.intp], number: int) -> None:
        import torch

        torch.manual_seed(_SEED)
        self._number, self._draw = number, np.random.default_rng(_SEED)
        width = table.codes.shape[1] + number
        layers = (torch.nn.Linear(width, _WIDTH), torch.nn.ReLU(), torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU())
        self._network = torch.nn.Sequential(*layers, torch.nn.Linear(_WIDTH, 1))
        optimizer = torch.optim.Adam(self._network.parameters(), _RATE)
        known = table.known()
        # every task has the same reference architectures, as in the paper
        self.references = self._draw.permutation(rows)[:number]
        for _ in range(_TASKS):
            logs = table.logs[known[self._draw.integers(len(known))]]
            asked = self._draw.choice(rows, _BATCH)
            loss = self._loss(table.codes[asked], logs[asked], logs[self.references])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def _loss(self, codes: Values, logs: Values, seen: Values) -> Any:
        import torch

        target = torch.tensor(logs - seen.mean(), dtype=torch.float32)
        return (self._network(self._inputs(codes, seen))[:, 0] - target).abs().mean()

    def _inputs(self, codes: Values, seen: Values) -> Any:
        import torch

        device = np.broadcast_to(seen - seen.mean(), (len(codes), self._number))
        return torch.tensor(np.concatenate([codes, device], axis=1), dtype=torch.float32)

    def told(self, table: Table, logs: Values, asked: NDArray[np.intp]) -> Values:
        """The logarithms on a device whose references were measured, after a few steps on them."""
        import copy

        import torch

        seen, before = logs[self.references], copy.deepcopy(self._network.state_dict())
        optimizer = torch.optim.Adam(self._network.parameters(), _TUNING_RATE)
        for _ in range(_TUNING_STEPS):
            loss = self._loss(table.codes[self.references], seen, seen)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with torch.no_grad():
            found = np.asarray(self._network(self._inputs(table.codes[asked], seen))[:, 0]) + seen.mean()
        self._network.load_state_dict(before)
        return np.asarray(found, np.float64)


def _descend(module: Any, loss_at: Callable[..., Any], rows: int, epochs: int) -> None:
    import torch

    optimizer, draw = torch.optim.Adam(module.parameters(), _RATE), np.random.default_rng(_SEED)
    for _ in range(epochs):
        order = draw.permutation(rows)
        for begin in range(0, rows, _BATCH):
            loss = loss_at(order[begin : begin + _BATCH])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def ridge(rows: Values, target: Values, start: Values, strength: float) -> Values:
    """The weights nearest to ``start`` that fit; rows are centred by the caller."""
    left = target - rows @ start
    return np.asarray(start + np.linalg.solve(rows.T @ rows + strength * np.eye(rows.shape[1]), rows.T @ left))


def tell(
    table: Table, trunk: Trunk, logs: Values, taken: NDArray[np.intp], asked: NDArray[np.intp]
) -> dict[str, Values]:
    """The logarithms on a new device by every way but HELP's, from the sampled architectures."""
    codes, measured = table.codes, logs[taken]
    known_taken, known_asked = trunk.told(codes[taken]), trunk.told(codes[asked])
    factor = float(np.median(measured - known_taken.mean(axis=1)))
    found = {"one factor": known_asked.mean(axis=1) + factor}
    weights = ridge(codes[taken] - codes[taken].mean(0), measured - measured.mean(), np.zeros(codes.shape[1]), 1.0)
    found["from scratch"] = (codes[asked] - codes[taken].mean(0)) @ weights + measured.mean()
    features, start = trunk.features(codes[taken]), trunk.mean_head()[0]
    head = ridge(features - features.mean(0), measured - measured.mean(), start, _RIDGE)
    found["NNLQP's way"] = (trunk.features(codes[asked]) - features.mean(0)) @ head + measured.mean()
    middle = known_taken.mean(axis=0)
    even = np.full(known_taken.shape[1], 1.0 / known_taken.shape[1])
    mix = ridge(known_taken - middle, measured - measured.mean(), even, _RIDGE * 0.1)
    found["known devices"] = (known_asked - middle) @ mix + measured.mean()
    return found


def study(table: Table, title: str, samples: Sequence[int] = SAMPLES, draws: int = DRAWS) -> list[Comparison]:
    """A table by number of samples: the mean error of each way on each unseen device."""
    order = np.random.default_rng(_SEED).permutation(len(table.codes))
    teaching, judging = np.split(order, [int(TEACHING * len(order))])
    trunk = Trunk(table, teaching)
    tables = []
    for number in samples:
        conditioned = Conditioned(table, teaching, number) if number > 1 else None
        rows: dict[str, dict[str, float]] = {}
        for device in table.unseen():
            logs = table.logs[device]
            errors: dict[str, list[float]] = {}
            for draw in range(draws):
                taken = np.random.default_rng(draw).permutation(teaching)[:number]
                for name, told in tell(table, trunk, logs, taken, judging).items():
                    errors.setdefault(name, []).append(_off(told, logs[judging]))
            if conditioned is not None:
                errors["HELP's way"] = [_off(conditioned.told(table, logs, judging), logs[judging])]
            rows[device] = {name: float(np.mean(values)) for name, values in errors.items()}
        columns = next(iter(rows.values()))
        # a median: some architectures take next to nothing on one device of a table, so that any error is huge there
        rows["median of devices"] = {name: float(np.median([row[name] for row in rows.values()])) for name in columns}
        heading = f"{title}, {number} sample{'s' * (number != 1)}"
        cells: dict[str, dict[str, Cell]] = {device: dict(row) for device, row in rows.items()}
        tables.append(Comparison(heading, cells, ranked=False, shares=frozenset(columns), head="unseen device"))
    return tables


def _off(told: Values, truth: Values) -> float:
    return float(np.abs(np.expm1(told - truth)).mean())


def main(arguments: Sequence[str]) -> int:
    """Print the tables."""
    folder = Path(arguments[0]) / "help"
    tables = []
    for name in ("nasbench201", "fbnet"):
        tables += study(read(folder / f"{name}_latency.parquet"), name)
    print(page("# A new device from a few samples, on HELP's tables (mean errors)", tables).decode())  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

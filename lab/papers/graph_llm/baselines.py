"""Lab: what chapter 7's network is judged beside, on the same samples and the same rows.

*adapt* is ``foretell adapt``; *one factor* is its base times the median ratio of the samples. *NNLQP's way* is the
thesis' "GNN baseline" (L. Liu et al., ICPP 2022): the same encoder without a language model, the sizes of the graph
beside its embedding, one head for each known platform, logarithms of latency. A new platform gets the mean of the
heads; then trunk and heads go on with the samples. A new architecture keeps the heads of its platforms.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foretell.errors import InputError
from foretell.optional import require
from foretell.predictors.adapted.regression import LATENCY_PARTS
from foretell.predictors.adapted.regression import fit as fit_adaptation
from lab.adapt.sets import Judged
from lab.papers.graph_llm.encoder import SIZES, GinEncoder, Graphs, stack
from lab.papers.graph_llm.few import best_step, quarters
from lab.papers.graph_llm.fitting import Draw, Fitted, Schedule, fit
from lab.papers.graph_llm.scores import Numbers, Record, scores
from lab.papers.graph_llm.sets import Row
from lab.papers.graph_llm.stages import Parts, Places, Workplace, sides

torch = require("torch", extra="torch", purpose="Fitting graph networks")
Module: Any = torch.nn.Module
Tensor = Any
FILE = "nnlqp"
_RATE, _TUNING_RATE, _BATCH = 1e-3, 5e-4, 32
_LOOKS = 20
_LARGEST = 20.0  # in logarithms of ms: what lies beyond is as wrong


class GraphRegressor(Module):  # type: ignore[misc, unused-ignore]
    """An encoder, and a head for each platform."""

    def __init__(self, encoder: GinEncoder, platforms: Sequence[str], middle: float) -> None:
        super().__init__()
        self.encoder, self.platforms, self.middle = encoder, list(platforms), middle
        parts = (torch.nn.Linear(encoder.width + len(SIZES), encoder.width), torch.nn.ReLU())
        self.trunk = torch.nn.Sequential(*parts)
        # sums over neighbours can be far outside of what batch norms have seen
        self.norm = torch.nn.LayerNorm(encoder.width, elementwise_affine=False)
        self.heads = torch.nn.Linear(encoder.width, len(platforms))

    def forward(self, graphs: Graphs, platforms: Sequence[str]) -> Tensor:
        """Logarithms of milliseconds."""
        return self.read(self.embed(graphs), platforms)

    def embed(self, graphs: Graphs) -> Tensor:
        """What the trunk sees of each graph."""
        return torch.cat([self.norm(self.encoder.pooled(graphs)), graphs.sizes], dim=1)

    def read(self, embedded: Tensor, platforms: Sequence[str]) -> Tensor:
        """The same of graphs that were encoded."""
        found = self.heads(self.trunk(embedded))
        columns = torch.tensor([self.platforms.index(name) for name in platforms], device=found.device)
        return found.gather(1, columns[:, None])[:, 0] + self.middle

    def with_platform(self, name: str) -> None:
        """Add a head that is the mean of the others, unless the platform has one."""
        if name in self.platforms:
            return
        heads = torch.nn.Linear(self.encoder.width, len(self.platforms) + 1).to(self.heads.weight.device)
        with torch.no_grad():
            for own, old in ((heads.weight, self.heads.weight), (heads.bias, self.heads.bias)):
                own.copy_(torch.cat([old, old.mean(dim=0, keepdim=True)]))
        self.heads, self.platforms = heads, [*self.platforms, name]


def fit_regressor(place: Workplace, known: Sequence[Row], steps: int) -> tuple[GraphRegressor, Fitted]:
    """The regressor of the known platforms, its curve, and whether it is finished."""
    teaching, aside = sides(known)
    rows, judged = [known[number] for number in teaching], [known[number] for number in aside[: place.size.aside * 4]]
    network = _new(place, known)

    def look() -> Record:
        return scores(told(place, network, judged), np.array([row.ms for row in judged]))

    schedule = Schedule(steps, _RATE, _RATE, max(steps // 20, 1))
    fitted = fit(
        [(network.parameters(), _RATE)], Parts(network), lambda draw: _loss(place, network, rows, draw), look, schedule,
        place.checkpoint(FILE), place.end_s,
    )  # fmt: skip
    return network, fitted


def fitted(place: Workplace, known: Sequence[Row]) -> GraphRegressor:
    """The regressor that was fitted to the known platforms."""
    network = _new(place, known)
    saved = torch.load(place.folder / f"{FILE}.pt", weights_only=True, map_location=place.device)
    network.load_state_dict(saved["learned"])
    network.eval()
    return network


def tuned(
    place: Workplace, known: Sequence[Row], rows: Sequence[Row], taken: Places, judging: Places, seed: int
) -> tuple[Numbers, list[Record]]:
    """What the regressor says of rows after it went on with others, and the curve of a held-out quarter of these.

    As for the language model, the encoder stays as it is, and the quarter chooses the steps.
    """
    tuning = Tuning(place, known, rows)
    learning, held = (taken[places] for places in quarters([rows[number] for number in taken], seed))

    def look() -> Record:
        return scores(tuning.told(held), np.array([rows[number].ms for number in held]))

    most = place.size.tuning_steps
    tuning.begin(taken=learning)
    curve: list[Record] = [{"step": 0.0, **look()}, *tuning.go_on(learning, most, seed, look)]
    tuning.begin(taken)
    tuning.go_on(taken, best_step(curve), seed, dict)
    return tuning.told(judging), curve


class Tuning:
    """A regressor that goes on with rows whose graphs were encoded once."""

    def __init__(self, place: Workplace, known: Sequence[Row], rows: Sequence[Row]) -> None:
        self.network, self.rows = fitted(place, known), rows
        self.is_new = rows[0].platform not in self.network.platforms
        self.network.with_platform(rows[0].platform)
        self.start = {name: value.clone() for name, value in self.network.state_dict().items()}
        parts = [rows[begin : begin + _BATCH] for begin in range(0, len(rows), _BATCH)]
        with torch.no_grad():
            self.embedded = torch.cat(
                [self.network.embed(stack([row.graph for row in some], place.device)) for some in parts]
            )

    def begin(self, taken: Places) -> None:
        """From the start again; the device as a whole first: a factor, which the head's bias holds."""
        self.network.load_state_dict(self.start)
        off = np.log([self.rows[number].ms for number in taken]) - np.log(self.told(taken))
        with torch.no_grad():
            self.network.heads.bias[-1 if self.is_new else slice(None)] += float(np.median(off))

    def go_on(self, taken: Places, steps: int, seed: int, look: Callable[[], Record]) -> list[Record]:
        """Steps at one rate, so that a fit can end after each of them."""
        truth = torch.tensor(np.log([row.ms for row in self.rows]), dtype=torch.float32, device=self.embedded.device)

        def loss_of(draw: Draw) -> Tensor:
            some = draw.permutation(taken)[:_BATCH]
            return (self._logs(some) - truth[some]).abs().mean()

        parts = [(weights.parameters(), _TUNING_RATE) for weights in (self.network.trunk, self.network.heads)]
        schedule = Schedule(steps, _TUNING_RATE, 0.0, max(steps // _LOOKS, 1), seed, falls=False)
        return fit(parts, Parts(self.network), loss_of, look, schedule).curve

    def told(self, places: Places) -> Numbers:
        """What it says of some rows, in ms."""
        with torch.no_grad():
            return _ms(self._logs(places))

    def _logs(self, places: Places) -> Tensor:
        return self.network.read(self.embedded[places], [self.rows[number].platform for number in places])


def told(place: Workplace, network: GraphRegressor, rows: Sequence[Row]) -> Numbers:
    """What a regressor says of rows, in ms."""
    network.eval()
    found = []
    with torch.no_grad():
        for begin in range(0, len(rows), _BATCH):
            some = rows[begin : begin + _BATCH]
            logs = network(stack([row.graph for row in some], place.device), [row.platform for row in some])
            found.append(_ms(logs))
    return np.concatenate(found)


def adapted(judged: Judged, places: Places, rows: Sequence[Row], taken: Places, judging: Places) -> dict[str, Numbers]:
    """What ``foretell adapt``, its base, and one factor say of rows; ``places`` are those of the rows in its set."""
    if judged.measured_ms[places].tolist() != [row.ms for row in rows]:
        raise InputError(f"Adaptation has other rows of {judged.name} now: run the step prepare again.")
    samples, asked = places[taken], places[judging]
    base = judged.measured_ms[asked] / np.exp(judged.ratios[asked])
    learned = fit_adaptation(
        [judged.works[place] for place in samples], judged.ratios[samples], [judged.groups[place] for place in samples],
        LATENCY_PARTS.scaled(judged.deviation, judged.deviation),
    ).factors  # fmt: skip
    ratios = np.array([learned.ratio(judged.works[place]) for place in asked])
    factor = math.exp(float(np.median(judged.ratios[samples])))
    return {"base": base, "one factor": base * factor, "foretell adapt": base * np.exp(ratios)}


def _ms(logs: Tensor) -> Numbers:
    return np.asarray(np.exp(np.clip(logs.float().cpu().numpy().astype(np.float64), -_LARGEST, _LARGEST)))


def _new(place: Workplace, known: Sequence[Row]) -> GraphRegressor:
    torch.manual_seed(0)
    middle = float(np.log([row.ms for row in known]).mean())
    encoder = GinEncoder(place.size.width, place.size.layers)
    network = GraphRegressor(encoder, sorted({row.platform for row in known}), middle)
    network.to(place.device)
    return network


def _loss(place: Workplace, network: GraphRegressor, rows: Sequence[Row], draw: Draw) -> Tensor:
    network.train()
    chosen = [rows[number] for number in draw.permutation(len(rows))[:_BATCH]]
    found = network(stack([row.graph for row in chosen], place.device), [row.platform for row in chosen])
    truth = torch.tensor(np.log([row.ms for row in chosen]), dtype=torch.float32, device=place.device)
    return (found - truth).abs().mean()

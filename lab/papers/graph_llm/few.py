"""Lab: how chapter 7's network goes on with few samples of what is new, without harm.

The thesis goes on with all weights for three epochs. Here the encoder stays as it is: what it says of a graph is made
once for all steps, draws and methods, and 32 graphs cannot spoil it. A quarter of the samples' groups is held out and
chooses the number of steps, none among them; then a second fit of so many steps has all samples. `RECIPES` are what
may learn and how fast; the held-out quarters of all tasks choose one of them, never the rows that judge.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretell.optional import require
from lab.papers.graph_llm import texts
from lab.papers.graph_llm.encoder import stack
from lab.papers.graph_llm.fitting import Draw, Fitted, Schedule, fit
from lab.papers.graph_llm.language_model import LanguageModel
from lab.papers.graph_llm.network import Described, GraphLanguageNetwork
from lab.papers.graph_llm.scores import Numbers, Record, scores
from lab.papers.graph_llm.sets import Row
from lab.papers.graph_llm.stages import Places, Workplace, questions, spoken

torch = require("torch", extra="torch", purpose="Fitting a language model")
Tensor = Any
_LOOKS = 8
_HELD_OUT, _EPOCHS = 0.25, 3
_EMBEDDED_AT_ONCE, _SAID_AT_ONCE = 32, 128


@dataclass(frozen=True)
class Recipe:
    """What learns from few samples, and how fast."""

    name: str
    has_lora: bool = True  # beside the projector
    rate: float = 3e-4


RECIPES = (
    Recipe("lora"),
    Recipe("lora-fast", rate=1e-3),
    Recipe("projector", has_lora=False, rate=1e-3),
)


@dataclass(frozen=True)
class Shown:
    """Rows, and what the encoder says of them."""

    rows: Sequence[Row]
    embedded: Tensor

    def of(self, places: Sequence[int] | Places) -> "Shown":
        """Some of them."""
        chosen = [int(place) for place in places]
        return Shown([self.rows[place] for place in chosen], self.embedded[chosen])


Made = tuple[GraphLanguageNetwork, LanguageModel]


def show(place: Workplace, network: GraphLanguageNetwork, rows: Sequence[Row]) -> Shown:
    """Rows as the projector sees them."""
    network.eval()  # batch norms keep the statistics of all known graphs
    parts = []
    with torch.no_grad():
        for begin in range(0, len(rows), _EMBEDDED_AT_ONCE):
            some = rows[begin : begin + _EMBEDDED_AT_ONCE]
            parts.append(network.embed(stack([row.graph for row in some], place.device)))
    return Shown(rows, torch.cat(parts))


def quarters(rows: Sequence[Row], seed: int) -> tuple[Places, Places]:
    """Samples that teach, and those of a quarter of the groups that are held out."""
    groups = np.array([row.group for row in rows])
    names = np.random.default_rng((seed, 1)).permutation(np.unique(groups))
    is_held = np.isin(groups, names[: max(round(_HELD_OUT * len(names)), 1)])
    return np.flatnonzero(~is_held), np.flatnonzero(is_held)


def looked(
    place: Workplace, made: Made, start: dict[str, Tensor], recipe: Recipe, samples: Shown, seed: int
) -> list[Record]:
    """The errors of the held-out quarter from no step to the last, for a fit that has the other samples."""
    network, _ = made
    network.restore(start)
    learning, held = (samples.of(places) for places in quarters(samples.rows, seed))

    def look() -> Record:
        return say_scores(made, held)

    first = {"step": 0.0, **look()}
    most = most_steps(place, len(samples.rows))
    fitted = go_on(place, made, recipe, learning, flat(recipe, most, seed), look)
    return [first, *fitted.curve]


def fit_few(
    place: Workplace, made: Made, start: dict[str, Tensor], recipe: Recipe, samples: Shown, judging: Shown, seed: int
) -> tuple[Numbers, list[Record]]:
    """What a network says of some rows after it went on with others, and the curve of the held-out quarter."""
    curve = looked(place, made, start, recipe, samples, seed)
    steps = best_step(curve)
    made[0].restore(start)
    go_on(place, made, recipe, samples, flat(recipe, steps, seed), dict)
    return say(made, judging), curve


def most_steps(place: Workplace, samples: int) -> int:
    """What is tried at most: as many steps for few samples, three epochs, as in the thesis, for many."""
    return max(place.size.few_steps, round(_EPOCHS * samples / place.size.few_batch))


def flat(recipe: Recipe, steps: int, seed: int) -> Schedule:
    """Steps at one rate, so that a fit can end after each of them."""
    return Schedule(steps, recipe.rate, 0.0, max(steps // _LOOKS, 1), seed, falls=False)


def best_step(curve: Sequence[Record]) -> int:
    """The step after which the held-out samples are told best.

    >>> best_step([{"step": 0, "off": 0.5}, {"step": 10, "off": 0.3}, {"step": 20, "off": 0.4}])
    10
    """
    return int(min(curve, key=lambda record: record["off"])["step"])


def go_on(
    place: Workplace, made: Made, recipe: Recipe, samples: Shown, schedule: Schedule, look: Callable[[], Record]
) -> Fitted:
    """A fit that goes on with samples; the encoder does not learn."""
    network, language = made
    network.eval()
    parts = [*network.projector.parameters()]
    if recipe.has_lora:
        parts += [weight for weight in network.body.parameters() if weight.requires_grad]
    own = place.size.few_batch

    def loss_of(draw: Draw) -> Tensor:
        some = samples.of(draw.permutation(len(samples.rows))[:own])
        targets = [language.tokens(texts.written(row.ms)) for row in some.rows]
        return network.loss(questions(language, some.rows), Described(embedded=some.embedded), targets)

    return fit([(parts, recipe.rate)], network, loss_of, look, schedule)


def say(made: Made, shown: Shown) -> Numbers:
    """What a network says of rows that were shown to it."""
    places = np.array_split(np.arange(len(shown.rows)), -(-len(shown.rows) // _SAID_AT_ONCE))
    parts = [shown.of(some) for some in places]
    return np.concatenate([spoken(*made, part.rows, Described(embedded=part.embedded)) for part in parts])


def say_scores(made: Made, shown: Shown) -> Record:
    """How good that is."""
    return scores(say(made, shown), np.array([row.ms for row in shown.rows]))

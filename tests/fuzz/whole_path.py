"""One input through the whole path: read, normalise, costs, memory, prediction, JSON, inspection."""

import json
import warnings
from dataclasses import dataclass
from pathlib import Path
from random import Random

import foretell
from foretell.errors import ForetellError
from foretell.graph.ir import serde
from foretell.workflows.workload import load_graph


@dataclass(frozen=True)
class Choice:
    """How an input is read and predicted."""

    allow_unknown: bool = True
    batch_size: int = 1
    mode: str = "inference"
    predictor: str | None = None
    explain: bool = False


ALL = tuple(
    Choice(allow_unknown, batch_size, mode, predictor, explain=allow_unknown)
    for allow_unknown in (False, True)
    for batch_size in (1, 3)
    for mode in ("inference", "training")
    for predictor in (None, "roofline")
)


def draw_choice(random: Random) -> Choice:
    """One of the ways, by chance."""
    return Choice(
        random.random() < 0.8,
        random.choice((1, 3)),
        random.choice(("inference", "training")),
        random.choice((None, None, "roofline")),
        random.random() < 0.1,
    )


def follow(path: Path, choice: Choice, input_shape: tuple[str, ...] = ()) -> str:
    """Return "answered", or the kind of our error; everything else raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # NumPy warns before a number is no longer finite
        try:
            _answer(path, choice, input_shape)
        except ForetellError as error:
            str(error).encode()
            return type(error).__name__
    return "answered"


def _answer(path: Path, choice: Choice, input_shape: tuple[str, ...]) -> None:
    graph = load_graph(
        str(path),
        input_shape=input_shape or None,
        mode=choice.mode,
        batch_size=choice.batch_size,
        allow_unknown=choice.allow_unknown,
        use_cache=False,
    )
    assert serde.from_bytes(serde.to_bytes(graph)).hash == graph.hash
    prediction = foretell.predict(
        graph,
        batch_size=choice.batch_size,
        mode=choice.mode,
        predictor=choice.predictor,
        explain=choice.explain,
    )
    json.dumps(prediction.to_dict(), allow_nan=False)
    repr(prediction).encode()
    inspection = foretell.inspect(graph, batch_size=choice.batch_size, mode=choice.mode)
    json.dumps(inspection.to_dict(by="node"), allow_nan=False)
    repr(inspection).encode()

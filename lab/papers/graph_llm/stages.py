"""Lab: the three stages of chapter 7, each of which leaves one file, and the fits to few samples that follow them.

1. *encoder*: GraphMAE on graphs without labels. 2. *text*: projector and LoRA learn to summarise graphs; the encoder is
frozen. 3. *fit*: all parts learn latencies on the known platforms; a tenth of the groups is held aside for the curve.
*few*: what stage 3 left goes on with some samples of what is new, for each number of samples and seed anew.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.optional import require
from lab.papers.graph_llm import texts
from lab.papers.graph_llm.encoder import GinEncoder, MaskedAutoencoder, stack
from lab.papers.graph_llm.fitting import Draw, Fitted, Record, Schedule, fit, write_tensors
from lab.papers.graph_llm.language_model import LanguageModel, load
from lab.papers.graph_llm.network import Described, GraphLanguageNetwork, Shape
from lab.papers.graph_llm.sets import Row
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.trappm.unlabelled import unlabelled

torch = require("torch", extra="torch", purpose="Fitting a language model")

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]
_ASIDE = 0.1  # of the groups
_ANSWERED_AT_ONCE = 256
_JSON_SHARE = 4  # JSON is up to 1,300 tokens: a quarter of the rows at a time


@dataclass(frozen=True)
class Size:
    """How large everything is; the plain values are those of a GPU, `SMALL` those of one core of a CPU."""

    width: int = 1024
    layers: int = 5
    graphs: int = 20_000
    encoder_steps: int = 1_500
    encoder_batch: int = 128
    pairs: int = 20_000
    pair_layers: int = 4
    text_steps: int = 400
    text_batch: int = 64
    fit_steps: int = 1_200
    batch: int = 64
    samples: tuple[int, ...] = (32, 128, 512)
    few_steps: int = 60
    few_batch: int = 32
    ablation_steps: int = 150
    json_nodes: int = 40
    judged: int | None = None
    aside: int = 256
    regressor_steps: int = 1_500  # of NNLQP's way
    tuning_steps: int = 100


SMALL = Size(
    width=128, graphs=6_000, encoder_steps=150, encoder_batch=32, pairs=2_000, pair_layers=2, text_steps=40,
    text_batch=8, fit_steps=160, batch=32, samples=(32, 128), few_steps=10, few_batch=16, ablation_steps=40,
    json_nodes=12, judged=60, aside=48, regressor_steps=300, tuning_steps=20,
)  # fmt: skip


@dataclass(frozen=True)
class Arm:
    """A variant of the network: its shape, its kind of prompt, and which stages came before."""

    name: str = "main"
    shape: Shape = field(default_factory=Shape)
    kind: str = "graph"
    short: bool = False  # graphs whose JSON is short enough alone
    adapted: bool = True  # by graph-to-text pairs
    pretrained: bool = True  # the encoder, by GraphMAE
    rate: float = 1e-3
    encoder_rate: float = 1e-3
    few_rate: float = 3e-4  # of all weights when a fit goes on with samples


@dataclass(frozen=True)
class Workplace:
    """Where files are, what the model is, on which device, and until when a stage may go on."""

    folder: Path
    size: Size
    device: str
    end_s: float
    say: Callable[[str], None]

    def checkpoint(self, name: str) -> Path:
        """Where a stage that was stopped is."""
        return self.folder / "checkpoints" / f"{name}.pt"


class Parts:
    """Weights with `learned` and `restore`, for a module that is no `GraphLanguageNetwork`."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def learned(self) -> dict[str, Any]:
        """All its weights and statistics."""
        found: dict[str, Any] = self.module.state_dict()
        return found

    def restore(self, learned: dict[str, Any]) -> None:
        """Take them back."""
        self.module.load_state_dict(learned)


def pretrain_encoder(place: Workplace, known: Sequence[Row]) -> bool:
    """Stage 1; whether it is finished."""
    size = place.size
    graphs = [row.graph for row in known if len(row.graph) > 1]
    teaching = unlabelled(graphs, size.graphs, 0)
    aside = stack(_variants(graphs, size.aside, 1), place.device)
    torch.manual_seed(0)
    network = MaskedAutoencoder(GinEncoder(size.width, size.layers)).to(place.device)

    def loss_of(draw: Draw) -> Any:
        chosen = draw.choice(len(teaching), size.encoder_batch)
        generator = torch.Generator().manual_seed(int(draw.integers(2**31)))
        return network(stack([teaching[number] for number in chosen], place.device), generator)

    def look() -> Record:
        network.eval()
        with torch.no_grad():
            found = float(network(aside, torch.Generator().manual_seed(0)))
        network.train()
        return {"aside": found}

    schedule = Schedule(size.encoder_steps, 5e-4, 5e-4, max(size.encoder_steps // 20, 1))
    parts = Parts(network)
    fitted = fit(
        [(network.parameters(), 5e-4)], parts, loss_of, look, schedule, place.checkpoint("encoder"), place.end_s
    )
    return _finish(place, "encoder", fitted, network.encoder.state_dict())


def adapt_to_text(place: Workplace, known: Sequence[Row], arm: Arm) -> bool:
    """Stage 2 of an arm; whether it is finished."""
    size = place.size
    graphs = unlabelled([row.graph for row in known if len(row.graph) > 1], size.pairs, 2)
    network, language = make_network(place, arm, ())
    network.encoder.requires_grad_(False).eval()
    asked = language.tokens(texts.SUMMARISE)
    aside = _variants([row.graph for row in known if len(row.graph) > 1], max(size.aside // 4, 1), 3)

    def loss_on(some: Sequence[GraphArrays]) -> Any:
        answers = [language.tokens(f"{texts.summary(graph, size.pair_layers)}<|im_end|>") for graph in some]
        return network.loss(asked, Described(stack(some, place.device)), answers)

    def look() -> Record:
        with torch.no_grad():
            return {"aside": float(loss_on(aside))}

    schedule = Schedule(size.text_steps, arm.rate, 0.0, max(size.text_steps // 10, 1))
    learned = [(weights_of(network)[0], arm.rate)]
    fitted = fit(
        learned, network, lambda draw: loss_on([graphs[n] for n in draw.choice(len(graphs), size.text_batch)]), look,
        schedule, place.checkpoint(f"text-{arm.name}"), place.end_s,
    )  # fmt: skip
    return _finish(place, f"text-{arm.name}", fitted, network.learned())


def fit_known(place: Workplace, known: Sequence[Row], arm: Arm, name: str, steps: int) -> bool:
    """Stage 3 of an arm on some known rows; whether it is finished."""
    size = place.size
    network, language = make_network(place, arm, (f"text-{arm.name}",) if arm.adapted else ())
    teaching, aside = sides(known)
    judged = [known[number] for number in np.random.default_rng(1).permutation(aside)[: size.aside]]

    def look() -> Record:
        told = answers(place, network, language, arm, judged)
        network.train()
        return scores(told, np.array([row.ms for row in judged]))

    network.train()
    batch = max(size.batch // _JSON_SHARE, 1) if arm.kind == "json" else size.batch
    fitted = fit(
        list(zip(weights_of(network), (arm.rate, arm.encoder_rate), strict=True)), network,
        loss_on_rows(place, network, language, arm, [known[number] for number in teaching], batch), look,
        Schedule(steps, arm.rate, arm.encoder_rate, max(steps // 15, 1)), place.checkpoint(name), place.end_s,
    )  # fmt: skip
    return _finish(place, name, fitted, network.learned())


def fit_few(
    place: Workplace, made: tuple[GraphLanguageNetwork, LanguageModel], rows: Sequence[Row], taken: Places,
    judging: Places, arm: Arm, seed: int,
) -> tuple[Numbers, list[Record]]:  # fmt: skip
    """What a network says of some rows after it went on with others; NaN where its answer is no number."""
    size, rate = place.size, arm.few_rate
    network, language = made
    network.eval()  # batch norms keep the statistics of all known graphs: those of 32 others are far from them
    fitted = fit(
        [(some, rate) for some in weights_of(network)], network,
        loss_on_rows(place, network, language, arm, [rows[number] for number in taken], size.few_batch), dict,
        Schedule(size.few_steps, rate, rate, max(size.few_steps // 10, 1), seed),
    )  # fmt: skip
    return answers(place, network, language, arm, [rows[number] for number in judging]), fitted.curve


def make_network(place: Workplace, arm: Arm, start: Sequence[str]) -> tuple[GraphLanguageNetwork, LanguageModel]:
    """A network that starts from files of earlier stages."""
    language = load(place.folder / "model", place.device)
    torch.manual_seed(0)
    encoder = GinEncoder(place.size.width, place.size.layers).to(place.device)
    if arm.pretrained:
        saved = torch.load(place.folder / "encoder.pt", weights_only=True, map_location=place.device)
        encoder.load_state_dict(saved["learned"])
    network = GraphLanguageNetwork(language, encoder, arm.shape).to(place.device)
    for name in start:
        saved = torch.load(place.folder / f"{name}.pt", weights_only=True, map_location=place.device)
        network.restore(saved["learned"] if arm.pretrained or name.startswith("fit") else _without_encoder(saved))
    return network, language


def weights_of(network: GraphLanguageNetwork) -> tuple[list[Any], list[Any]]:
    """What is learned: projector and LoRA; the encoder."""
    of_encoder = set(map(id, network.encoder.parameters()))
    others = [weight for weight in network.parameters() if weight.requires_grad and id(weight) not in of_encoder]
    return others, [weight for weight in network.encoder.parameters() if weight.requires_grad]


def loss_on_rows(
    place: Workplace, network: GraphLanguageNetwork, language: LanguageModel, arm: Arm, rows: Sequence[Row], batch: int
) -> Callable[[Draw], Any]:
    """The loss of rows that are drawn: each batch is of one platform, the larger ones more often."""
    by_platform: dict[str, list[Row]] = {}
    for row in rows:
        by_platform.setdefault(row.platform, []).append(row)
    names = sorted(by_platform)
    weights = np.sqrt([len(by_platform[name]) for name in names])

    def loss_of(draw: Draw) -> Any:
        some = by_platform[names[draw.choice(len(names), p=weights / weights.sum())]]
        chosen = [some[number] for number in draw.permutation(len(some))[:batch]]
        targets = [language.tokens(texts.written(row.ms)) for row in chosen]
        described = describe(place, language, arm, [row.graph for row in chosen])
        return network.loss(language.tokens(texts.question(chosen[0].platform)), described, targets)

    return loss_of


def answers(
    place: Workplace, network: GraphLanguageNetwork, language: LanguageModel, arm: Arm, rows: Sequence[Row]
) -> Numbers:
    """What a network says of rows, in ms; NaN where it says no number."""
    network.eval()
    found = np.full(len(rows), np.nan)
    for places in _batches(rows):
        described = describe(place, language, arm, [rows[number].graph for number in places])
        told = network.answer(language.tokens(texts.question(rows[places[0]].platform)), described, texts.DIGITS)
        for number, tokens in zip(places, told, strict=True):
            value = texts.parsed(language.text(tokens))
            found[number] = np.nan if value is None else value
    return found


def describe(place: Workplace, language: LanguageModel, arm: Arm, graphs: Sequence[GraphArrays]) -> Described:
    """What stands for graphs in the prompts of an arm."""
    if arm.kind == "graph":
        return Described(stack(graphs, place.device))
    written = [texts.described(graph, arm.kind, place.size.json_nodes) for graph in graphs]
    return Described(tokens=[language.tokens(text) for text in written])


def scores(told: Numbers, truth: Numbers) -> Record:
    """The mean error of the numbers, the share within 10 %, and the share of no numbers, which miss."""
    off = np.abs(told / truth - 1)
    spoken = off[np.isfinite(off)]
    return {
        "error": float(spoken.mean()) if len(spoken) else float("inf"),
        "median": float(np.median(spoken)) if len(spoken) else float("inf"),
        "within_10": float((np.nan_to_num(off, nan=np.inf) <= 0.1).mean()),
        "no_number": float(np.isnan(told).mean()),
    }


def sides(rows: Sequence[Row]) -> tuple[Places, Places]:
    """Rows that teach, and rows of other groups that are held aside."""
    groups = np.array([row.group for row in rows])
    names = np.random.default_rng(0).permutation(np.unique(groups))
    is_aside = np.isin(groups, names[: max(round(_ASIDE * len(names)), 1)])
    return np.flatnonzero(~is_aside), np.flatnonzero(is_aside)


def _batches(rows: Sequence[Row]) -> Iterator[list[int]]:
    by_platform: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        by_platform.setdefault(row.platform, []).append(number)
    for places in by_platform.values():
        for begin in range(0, len(places), _ANSWERED_AT_ONCE):
            yield places[begin : begin + _ANSWERED_AT_ONCE]


def _variants(graphs: Sequence[GraphArrays], count: int, seed: int) -> list[GraphArrays]:
    """Variants alone: `unlabelled` begins with the known graphs, which teach."""
    return unlabelled(graphs, len(graphs) + count, seed)[len(graphs) :]


def write_curve(place: Workplace, name: str, fitted: Fitted) -> None:
    """The curve of a stage as a small file, also of one that was stopped; its weights may stay where they are."""
    record = {"curve": fitted.curve, "spent_s": fitted.spent_s, "is_done": fitted.is_done}
    write_whole(place.folder / "curves" / f"{name}.json", json.dumps(record).encode())


def _without_encoder(saved: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in saved["learned"].items() if not name.startswith("encoder.")}


def _finish(place: Workplace, name: str, fitted: Fitted, learned: dict[str, Any]) -> bool:
    last = fitted.curve[-1] if fitted.curve else {}
    place.say(f"{name}: {fitted.spent_s:.0f} s, {'finished' if fitted.is_done else 'to be continued'}, {last}")
    write_curve(place, name, fitted)
    if fitted.is_done:
        write_tensors(place.folder / f"{name}.pt", {"learned": learned})
        place.checkpoint(name).unlink(missing_ok=True)
    return fitted.is_done


def moment(seconds: float) -> float:
    """The moment of the clock that is so far away."""
    return time.monotonic() + seconds

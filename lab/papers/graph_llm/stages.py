"""Lab: the three stages of chapter 7, each of which leaves one file, and the fits to few samples that follow them.

1. *encoder*: GraphMAE on graphs without labels. 2. *text*: projector and LoRA learn to summarise graphs; the encoder is
frozen. 3. *fit*: all parts learn latencies on the known platforms; a tenth of the groups is held aside for the curve.
What stage 3 left goes on with some samples of what is new in `lab.papers.graph_llm.few`.
"""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.optional import require
from lab.papers.graph_llm import texts
from lab.papers.graph_llm.encoder import GinEncoder, MaskedAutoencoder, stack
from lab.papers.graph_llm.fitting import Draw, Fitted, Schedule, fit, write_tensors
from lab.papers.graph_llm.language_model import LanguageModel, load
from lab.papers.graph_llm.network import Described, GraphLanguageNetwork, Shape
from lab.papers.graph_llm.scores import Numbers, Record, scores
from lab.papers.graph_llm.sets import Row
from lab.papers.graph_llm.sizes import Size
from lab.papers.graph_networks.arrays import GraphArrays
from lab.papers.trappm.unlabelled import unlabelled

torch = require("torch", extra="torch", purpose="Fitting a language model")

Places = NDArray[np.int64]
_ASIDE = 0.1  # of the groups
_ANSWERED_AT_ONCE = 128
_JSON_SHARE = 4  # JSON is up to 1,300 tokens: a quarter of the rows at a time


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
        return network.loss([asked] * len(some), Described(stack(some, place.device)), answers)

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
    """Stage 3 of an arm on some known rows; whether it is finished.

    What a fit of fewer steps left goes on with the steps that it lacks: the rate rises and falls once more.
    """
    size, earlier = place.size, curve_of(place, name)
    done = int(earlier[-1]["step"]) if earlier else 0
    steps -= done
    start = (name,) if done else (f"text-{arm.name}",) if arm.adapted else ()
    network, language = make_network(place, arm, start)
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
        Schedule(steps, arm.rate, arm.encoder_rate, max(steps // 15, 1), seed=done), place.checkpoint(name),
        place.end_s,
    )  # fmt: skip
    if done:
        if not fitted.is_done:
            return False
        later = [record | {"step": record["step"] + done} for record in fitted.curve]
        fitted = replace(fitted, curve=[*earlier, *later])
    return _finish(place, name, fitted, network.learned())


def curve_of(place: Workplace, name: str) -> list[Record]:
    """The curve of a stage that is finished; empty where it is not."""
    file = place.folder / "curves" / f"{name}.json"
    if not file.exists() or not (place.folder / f"{name}.pt").exists():
        return []
    curve: list[Record] = json.loads(file.read_bytes())["curve"]
    return curve


def make_network(place: Workplace, arm: Arm, start: Sequence[str]) -> tuple[GraphLanguageNetwork, LanguageModel]:
    """A network that starts from files of earlier stages."""
    language = load(place.folder / "model", place.device, place.size.bf16)
    torch.manual_seed(0)
    encoder = GinEncoder(place.size.width, place.size.layers).to(place.device)
    if arm.pretrained and not any(name.startswith("fit") for name in start):  # which have an encoder of their own
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
    """The loss of rows that are drawn.

    Each batch has rows of some platforms, the larger ones more often: batch norms have to see what they see later, and
    rows of one platform are all operators, or all networks.
    """
    by_platform: dict[str, list[Row]] = {}
    for row in rows:
        by_platform.setdefault(row.platform, []).append(row)
    names = sorted(by_platform)
    weights = np.sqrt([len(by_platform[name]) for name in names])
    count = min(place.size.platforms, len(names), batch)

    def loss_of(draw: Draw) -> Any:
        chosen: list[Row] = []
        for number in draw.choice(len(names), count, replace=False, p=weights / weights.sum()):
            some = by_platform[names[number]]
            chosen += [some[other] for other in draw.permutation(len(some))[: batch // count]]
        targets = [language.tokens(texts.written(row.ms)) for row in chosen]
        described = describe(place, language, arm, [row.graph for row in chosen])
        return network.loss(questions(language, chosen), described, targets)

    return loss_of


def questions(language: LanguageModel, rows: Sequence[Row]) -> list[list[int]]:
    """What is asked of each row; rows of one platform share it."""
    asked = {name: language.tokens(texts.question(name)) for name in {row.platform for row in rows}}
    return [asked[row.platform] for row in rows]


def answers(
    place: Workplace, network: GraphLanguageNetwork, language: LanguageModel, arm: Arm, rows: Sequence[Row]
) -> Numbers:
    """What a network says of rows, in ms; NaN where it says no number."""
    network.eval()
    found = []
    for begin in range(0, len(rows), _ANSWERED_AT_ONCE):
        some = rows[begin : begin + _ANSWERED_AT_ONCE]
        with torch.no_grad():
            described = describe(place, language, arm, [row.graph for row in some])
        found.append(spoken(network, language, some, described))
    return np.concatenate(found)


def spoken(
    network: GraphLanguageNetwork, language: LanguageModel, rows: Sequence[Row], described: Described
) -> Numbers:
    """What a network says of rows that were described, in ms; NaN where it says no number."""
    told = network.answer(questions(language, rows), described, texts.DIGITS)
    values = [texts.parsed(language.text(tokens)) for tokens in told]
    return np.array([np.nan if value is None else value for value in values])


def describe(place: Workplace, language: LanguageModel, arm: Arm, graphs: Sequence[GraphArrays]) -> Described:
    """What stands for graphs in the prompts of an arm."""
    if arm.kind == "graph":
        return Described(stack(graphs, place.device))
    written = [texts.described(graph, arm.kind, place.size.json_nodes) for graph in graphs]
    return Described(tokens=[language.tokens(text) for text in written])


def sides(rows: Sequence[Row]) -> tuple[Places, Places]:
    """Rows that teach, and rows of other groups that are held aside."""
    groups = np.array([row.group for row in rows])
    names = np.random.default_rng(0).permutation(np.unique(groups))
    is_aside = np.isin(groups, names[: max(round(_ASIDE * len(names)), 1)])
    return np.flatnonzero(~is_aside), np.flatnonzero(is_aside)


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

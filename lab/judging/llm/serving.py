"""Lab: served language models against measured rows: time to first token, time a token, tokens a second.

Half of the models, fixed by a hash of their names, teach the few times that an engine's host adds; the other half only
judges. Kernels come from other tables and know nothing of these rows. Each row is simulated as it was measured
(`lab.judging.llm.serving_rows`). Splitwise's table (A100 and H100) judges alone: nothing is fitted to it.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.files import write_whole
from foretell.predictors.llm.engines import PAGED, RULES, Engine, Fitted, shipped_engines
from foretell.predictors.llm.kernels import KINDS, Kernels, shipped_kernels
from foretell.predictors.llm.serving import serve, with_arrival
from foretell.predictors.llm.steps import Steps
from foretell.training.judging.metrics import kendall_tau
from foretell.training.judging.table import Cell, Comparison, page
from foretell.training.llm_kernels import FIT, GPUS, KernelRows, errors_of, fit_trees, read_rows
from foretell.units import KILO
from lab.judging.llm.serving_rows import ServedRow, read_serving, teaching_models
from lab.judging.llm.serving_steps import tables as own_tables
from lab.judging.llm.splitwise import judge_splitwise

Log = Callable[[str], None]
Times = tuple[float, float]
# what no step explains: a queue that overflows, a stalled run
_LONGEST_TTFT_MS, _LONGEST_TPOT_MS = 10_000, 60
UNMODELLED = ("glm-5",)  # its sparse attention is computed as if it were dense
_SHARES = frozenset({"TTFT", "TPOT", "throughput", "TTFT bias", "TPOT bias", "TTFT in interval", "TPOT in interval",
                     "prompt", "token", "median", "p90", "bias"})  # fmt: skip


@dataclass(frozen=True)
class Judged:
    """A row and what was predicted for it."""

    row: ServedRow
    ttft_ms: float
    tpot_ms: float

    @property
    def logs(self) -> tuple[float, float, float]:
        """Predicted over measured, in logarithms: TTFT, TPOT, throughput."""
        row = self.row
        rate = row.rate(self.ttft_ms, self.tpot_ms) / row.tokens_per_s
        return float(np.log(self.ttft_ms / row.ttft_ms)), float(np.log(self.tpot_ms / row.tpot_ms)), float(np.log(rate))


def launched(engine: Engine, row: ServedRow) -> Engine:
    """The engine with the settings of a row's server."""
    launch = row.launch
    return replace(engine, token_budget=launch.token_budget, wait_steps=launch.wait_steps, wait_share=launch.wait_share)


def simulate_rows(rows: Iterable[ServedRow], kernels: Kernels, engines: Mapping[str, Engine]) -> list[Judged]:
    """Simulate each row as it was measured."""
    known: dict[tuple[object, ...], Steps] = {}
    judged = []
    for row in rows:
        engine, place = launched(engines[row.engine], row), row.deployment
        key = (row.model, place.weights, place.kv_bytes, row.parallelism, engine.framework)
        steps = known.setdefault(key, Steps(place, kernels, engine.framework))
        clients = max(1, row.clients // place.data)
        served = serve(steps, engine, clients, replace(row, clients=clients).requests(), row.launch.fraction)
        tpot_ms = float(np.mean([one.tpot_ms for one in served]))
        ttft_ms = float(np.mean([one.ttft_ms for one in served]))
        judged.append(Judged(row, with_arrival(ttft_ms, tpot_ms, engine, place.architecture.expert_layers), tpot_ms))
    return judged


def fit_engines(rows: Sequence[ServedRow], kernels: Kernels) -> Fitted:
    """Fit an engine's times to rows that teach: the least mean error in logarithms, every model counting the same.

    Kernels of a model may be off by a factor, so each model has one of its own while what an arrival waits for is
    fitted. Of those of mixtures the geometric mean is kept, where two of them or more teach. One mixture alone teaches
    SGLang, and one TensorRT-LLM: an arrival waits there as in vLLM, and for each layer of experts besides.
    """
    taught = [row for row in rows if row.model in teaching_models()]
    # rows of vLLM whose protocol is not said contradict the others: docs/lab/0037-serving.md
    taught = [row for row in taught if row.varied or row.engine != "vllm"]
    raw = [
        one
        for one in simulate_rows(taught, kernels, RULES)
        if one.row.ttft_ms < _LONGEST_TTFT_MS and one.row.tpot_ms < _LONGEST_TPOT_MS
    ]
    times = _fit_all(raw)
    # how far off a model is whose rows did not teach: each in turn
    unseen = []
    for model in sorted({one.row.model for one in raw if one.row.model not in UNMODELLED}):
        others = _fit_all([one for one in raw if one.row.model != model])
        for one in raw:
            if one.row.model == model:
                unseen.append(_with_times(one, others.get(one.row.engine, others[PAGED])).logs)
    logs = np.abs(unseen)
    spread = {name: round(float(np.quantile(logs[:, at], 0.9)), 3) for at, name in enumerate(("ttft", "tpot", "rate"))}
    return Fitted(times, spread)


def _fit_all(raw: Sequence[Judged]) -> dict[str, dict[str, float]]:
    """The times of each engine that has rows."""
    groups = {name: [one for one in raw if one.row.engine == name] for name in ("vllm", "sglang", "trtllm")}
    # vLLM is the engine that most models teach, by rows whose protocol is known
    arrival = _fit_arrival(groups["vllm"])
    times = {
        name: {**_fit_steps(modelled), **(arrival if name == "vllm" else _fit_expert_layers(group, arrival))}
        for name, group in groups.items()
        if (modelled := [one for one in group if one.row.model not in UNMODELLED])
    }
    return {**times, PAGED: dict(times["vllm"])}


def _with_times(one: Judged, times: Mapping[str, float]) -> Judged:
    """A row that was simulated without a host's times, with them; close to simulating it again."""
    clients = one.row.clients / one.row.deployment.data
    tpot_ms = one.tpot_ms + (times["step_us"] + times["request_us"] * clients) / KILO
    host: dict[str, Any] = dict(times)
    ttft_ms = with_arrival(
        one.ttft_ms, tpot_ms, replace(RULES[PAGED], **host), one.row.deployment.architecture.expert_layers
    )
    return Judged(one.row, ttft_ms, tpot_ms)


def _columns(judged: Sequence[Judged]) -> tuple[NDArray[np.float64], ...]:
    """Simulated and measured TTFT and TPOT."""
    pairs = [(one.ttft_ms, one.tpot_ms, one.row.ttft_ms, one.row.tpot_ms) for one in judged]
    return tuple(np.array(column) for column in zip(*pairs, strict=True))


def _fit_steps(judged: Sequence[Judged]) -> dict[str, float]:
    """What the host adds to a step, and for each request in it."""
    models = [one.row.model for one in judged]
    weight = np.array([1 / models.count(name) for name in models])
    clients = np.array([one.row.clients / one.row.deployment.data for one in judged])
    _, tpot, _, truth = _columns(judged)
    step_ms, request_ms = min(
        itertools.product(np.arange(0, 2.01, 0.1), np.arange(0, 0.051, 0.005)),
        key=lambda pair: float((weight * np.abs(np.log((tpot + pair[0] + pair[1] * clients) / truth))).sum()),
    )
    return {"step_us": round(float(step_ms * KILO), 3), "request_us": round(float(request_ms * KILO), 3)}


_FACTORS = np.arange(0.8, 2.55, 0.05)


def _fit_arrival(judged: Sequence[Judged]) -> dict[str, float]:
    """What an arrival waits for, with a factor for each model; rows whose protocol is known, if there are any."""
    known = [one for one in judged if one.row.varied] or judged
    groups = [[one for one in known if one.row.model == name] for name in sorted({one.row.model for one in known})]
    columns = [_columns(group) for group in groups]

    def losses(pair: tuple[float, float], at: int) -> NDArray[np.float64]:
        """The mean error of a model, for each factor."""
        ttft, _, true_ttft, true_tpot = columns[at]
        predicted = _FACTORS[:, None] * ttft + pair[0] + pair[1] * true_tpot
        errors: NDArray[np.float64] = np.abs(np.log(predicted / true_ttft)).mean(axis=1)
        return errors

    pairs = [(float(ms), float(steps)) for ms in range(0, 301, 5) for steps in np.arange(0, 8.1, 0.5)]
    best = min(pairs, key=lambda pair: sum(losses(pair, at).min() for at in range(len(groups))))
    factors = [
        float(_FACTORS[losses(best, at).argmin()])
        for at, group in enumerate(groups)
        if group[0].row.model not in UNMODELLED and group[0].row.deployment.architecture.has_experts
    ]
    factor = float(np.exp(np.mean(np.log(factors)))) if len(factors) > 1 else 1.0
    return {"arrival_ms": best[0], "arrival_steps": best[1], "mixture_prompts": round(factor, 3)}


def _fit_expert_layers(judged: Sequence[Judged], arrival: Mapping[str, float]) -> dict[str, float]:
    """What a prompt waits for each layer of experts, beside what every arrival waits for; a factor for each model.

    SGLang and TensorRT-LLM launch a prompt's kernels one by one, and those of experts are many; vLLM compiles them.
    """
    groups = _by([one for one in judged if one.row.varied], lambda row: row.model).values()
    mixtures = [group for group in groups if group[0].row.deployment.architecture.has_experts]

    def loss(layer_ms: float) -> float:
        total = 0.0
        for group in mixtures:
            ttft, _, true_ttft, true_tpot = _columns(group)
            waiting = arrival["arrival_ms"] + arrival["arrival_steps"] * true_tpot
            waiting = waiting + layer_ms * group[0].row.deployment.architecture.expert_layers
            predicted = _FACTORS[:, None] * ttft + waiting
            total += float(np.abs(np.log(predicted / true_ttft)).mean(axis=1).min())
        return total

    best = min(np.arange(0, 5.01, 0.1), key=lambda layer_ms: loss(float(layer_ms))) if mixtures else 0.0
    waits = {"arrival_ms": arrival["arrival_ms"], "arrival_steps": arrival["arrival_steps"]}
    return {**waits, "mixture_prompts": 1.0, "expert_layer_ms": round(float(best), 2)}


def evaluate(
    store: Path,
    device: str,
    cache: Path,
    *,
    only_networks: bool = False,
    fit_seconds: float | None = None,
    processes: int = 1,
    log: Log = print,
) -> list[Comparison]:
    """The tables: judging rows by model, engine and parallelism; rows that taught; Splitwise; kernels."""
    del device, cache, only_networks, fit_seconds, processes
    kernels, fitted = shipped_kernels(), shipped_engines()
    rows = read_serving(store)
    engines = {name: fitted.engine(name) for name in RULES}
    judged = simulate_rows(rows, kernels, engines)
    log(f"{len(judged)} rows simulated")
    teaching = set(teaching_models())
    fresh = [one for one in judged if one.row.model not in teaching]
    taught = [one for one in judged if one.row.model in teaching]
    known = [one for one in fresh if one.row.varied]
    tables = [
        _table("Models that only judge", {"all rows": fresh, "protocol known (InferenceMAX)": known,
               "– without later rows of DeepSeek-V3, TensorRT-LLM": [one for one in known if not _is_later(one.row)],
               "protocol not said": [one for one in fresh if not one.row.varied]}, fitted),
        _table("Where the protocol is known, by engine", _by(known, lambda row: row.engine), fitted),
        _table("The same, by model", _by(fresh, lambda row: f"{row.model}, {row.engine}"), fitted),
        _table("The same, by parallelism", _by(fresh, lambda row: row.parallelism), fitted),
        _table("The same, by lengths", _by(fresh, lambda row: f"{row.prompt} + {row.answer}"), fitted),
        _table("The same, by precision of the weights", _by(fresh, lambda row: row.deployment.weights), fitted),
        _table("Models that taught the engines' times", _by(taught, lambda row: f"{row.model}, {row.engine}"), fitted),
        _repeated(rows),
        _worst(fresh),
    ]  # fmt: skip
    splitwise = store.parent / "splitwise_perf_model.parquet"
    if splitwise.is_file():
        tables.append(judge_splitwise(splitwise, kernels, fitted))
    if _OWN.is_dir():
        tables += own_tables(_OWN, kernels)
    tables += _kernel_tables(store, kernels, log)
    return tables


_OWN = Path("data/h200")  # what we measured ourselves, in a checkout


def _is_later(row: ServedRow) -> bool:
    """Rows of 2026 that contradict earlier ones of the same configuration: docs/lab/0046-steps.md."""
    return (row.model, row.engine) == ("deepseek-v3", "trtllm") and row.id.startswith("2026")


def _by(judged: Sequence[Judged], key: Callable[[ServedRow], str]) -> dict[str, list[Judged]]:
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[key(one.row)].append(one)
    return dict(sorted(groups.items()))


def _table(title: str, groups: Mapping[str, Sequence[Judged]], fitted: Fitted) -> Comparison:
    """Median errors; τ is Kendall's over the rows of one model and one pair of lengths, averaged."""
    rows: dict[str, dict[str, Cell]] = {}
    for name, judged in groups.items():
        if not judged:
            continue
        logs = np.array([one.logs for one in judged])
        errors = np.abs(np.expm1(logs))
        rows[name] = {
            "count": len(judged),
            "TTFT": float(np.median(errors[:, 0])), "TPOT": float(np.median(errors[:, 1])),
            "throughput": float(np.median(errors[:, 2])),
            "TTFT bias": float(np.expm1(np.median(logs[:, 0]))), "TPOT bias": float(np.expm1(np.median(logs[:, 1]))),
            "τ": _tau(judged),
            "TTFT in interval": float(np.mean(np.abs(logs[:, 0]) <= fitted.spread["ttft"])),
            "TPOT in interval": float(np.mean(np.abs(logs[:, 1]) <= fitted.spread["tpot"])),
        }  # fmt: skip
    return Comparison(title, rows, ranked=False, shares=_SHARES, head="rows")


def _tau(judged: Sequence[Judged]) -> float | None:
    """Whether configurations are in the right order of throughput a GPU."""
    groups = _by(judged, lambda row: f"{row.model} {row.prompt} {row.answer}")
    taus = []
    for group in groups.values():
        if len(group) > 2:
            gpus = np.array([one.row.deployment.gpus for one in group])
            truth = np.array([one.row.tokens_per_s for one in group]) / gpus
            predicted = np.array([one.row.rate(one.ttft_ms, one.tpot_ms) for one in group]) / gpus
            taus.append(kendall_tau(truth, predicted))
    known = [tau for tau in taus if tau is not None]
    return float(np.mean(known)) if known else None


def _repeated(rows: Sequence[ServedRow]) -> Comparison:
    """How far the table is from itself: rows of one configuration, each against the median of them."""
    groups: dict[tuple[object, ...], list[ServedRow]] = defaultdict(list)
    for row in rows:
        groups[row.model, row.engine, row.parallelism, row.prompt, row.answer, row.clients].append(row)
    errors: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for group in groups.values():
        if len(group) > 1:
            middle = [float(np.median([getattr(row, name) for row in group])) for name in ("ttft_ms", "tpot_ms")]
            for row in group:
                pair = (abs(middle[0] / row.ttft_ms - 1), abs(middle[1] / row.tpot_ms - 1))
                errors[f"{row.model}, {row.engine}"].append(pair)
    cells: dict[str, dict[str, Cell]] = {
        name: {"count": len(pairs), "TTFT": float(np.median(np.array(pairs)[:, 0])),
               "TPOT": float(np.median(np.array(pairs)[:, 1]))}
        for name, pairs in sorted(errors.items())
    }  # fmt: skip
    title = "Rows measured more than once, against the median of their configuration"
    return Comparison(title, cells, ranked=False, shares=_SHARES, head="rows")


def _worst(judged: Sequence[Judged], count: int = 12) -> Comparison:
    ordered = sorted(judged, key=lambda one: -abs(one.logs[1]))[:count]
    rows: dict[str, dict[str, Cell]] = {
        f"{one.row.model}, {one.row.engine}, {one.row.parallelism}, {one.row.prompt} + {one.row.answer}, "
        f"{one.row.clients} clients": {
            "TTFT ms": one.row.ttft_ms, "predicted": one.ttft_ms, "TPOT ms": one.row.tpot_ms,
            "predicted TPOT": one.tpot_ms,
        }
        for one in ordered
    }  # fmt: skip
    return Comparison("The rows whose TPOT is furthest off", rows, ranked=False, head="row")


_JUDGED_ROWS, _TAUGHT_ROWS, _FEW_ROUNDS = 4000, 60_000, 150


def _kernel_tables(store: Path, kernels: Kernels, log: Log) -> list[Comparison]:
    """Kernels at shapes that were left out, and on GPUs that were left out (fits to fewer rows, to be quick)."""
    shapes: dict[str, dict[str, Cell]] = {}
    gpus: dict[str, dict[str, Cell]] = {}
    random = np.random.default_rng(0)
    for kind in KINDS:
        parts = {gpu: rows for gpu in GPUS if (rows := read_rows(store, gpu, kind)) is not None and len(rows.us)}
        for gpu, rows in parts.items():
            chosen = _some(rows.held_out, _JUDGED_ROWS, random)
            shapes[f"{kind}, {GPUS[gpu]}"] = _errors(errors_of(kernels.trees[kind], rows, kind, chosen))
        for gpu, rows in parts.items():
            others = [_fewer(part, random) for name, part in parts.items() if name != gpu]
            trees = fit_trees(others, kind, replace(FIT, rounds=_FEW_ROUNDS))
            chosen = _some(rows.held_out, _JUDGED_ROWS, random)
            gpus[f"{kind}, {GPUS[gpu]}"] = _errors(errors_of(trees, rows, kind, chosen))
        log(f"kernels judged: {kind}")
    return [
        Comparison("Kernels at shapes that were left out", shapes, ranked=False, shares=_SHARES, head="kernels"),
        Comparison("Kernels of a GPU that was left out", gpus, ranked=False, shares=_SHARES, head="kernels"),
    ]


def _some(among: NDArray[np.bool_], count: int, random: np.random.Generator) -> NDArray[np.bool_]:
    places = np.flatnonzero(among)
    chosen = np.zeros(len(among), dtype=bool)
    chosen[random.choice(places, min(count, len(places)), replace=False)] = True
    return chosen


def _fewer(rows: KernelRows, random: np.random.Generator) -> KernelRows:
    places = np.flatnonzero(_some(~rows.held_out, _TAUGHT_ROWS, random))
    work = {name: column[places] for name, column in rows.work.items()}
    return KernelRows(rows.device, work, rows.framework[places], rows.us[places], rows.held_out[places])


def _errors(errors: NDArray[np.float64]) -> dict[str, Cell]:
    return {
        "count": len(errors), "median": float(np.median(np.abs(errors))),
        "p90": float(np.quantile(np.abs(errors), 0.9)), "bias": float(np.median(errors)),
    }  # fmt: skip


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Language models as they are served, predicted and measured\n\n"
        "Rows are public measurements on H200 nodes (aiconfigurator's `h200_sxm_serving`; not the disaggregated ones, "
        "and repeated ones once). "
        f"Taught by {', '.join(teaching_models())}; all other models only judge. TTFT, TPOT and throughput are median "
        "relative errors; throughput follows from the other two by Little's law, measured and predicted. τ is "
        "Kendall's over configurations of one model and one pair of lengths. Remade by "
        "`python -m lab evaluate llm TABLES --report`; what it means is in docs/lab/0037-serving.md, "
        "docs/lab/0046-steps.md and docs/lab/0057-serving-parts.md."
    )
    write_whole(folder / "llm.md", page(text, tables))
    return folder / "llm.md"

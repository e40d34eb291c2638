"""Lab: trees on tables for language models, as chapter 6 of the thesis publishes them (Panner Selvam, 2025).

A forward pass is a row of 14 features of the model (batch size, sequence length, precision, nodes, edges, MACs,
parameters, memory, and six sizes of the configuration) and, with more than one GPU, features of the hardware. Boosted
trees (2,000 of depth 8 in the thesis), a random forest and boosted trees with linear leaves predict throughput, peak
memory and energy. All three are LightGBM's, which the thesis does not use: it has XGBoost.

The thesis splits rows at random, so that every model is on both sides; here also by architecture (a family of models,
such as BERT, is on one side). Truths are our measurements of text models on an H200. Hardware features need several
GPUs: for them there is Splitwise's table (prompts of two models on A100 and H100), of which 13 of the 20 can be told;
those of the host's CPU cannot.
"""

import gzip
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.files import write_whole
from foretell.graph.cost.node_costs import graph_costs
from foretell.optional import require
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.judging.metrics import kendall_tau
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import KILO

MODEL_FEATURES = (
    "batch size", "sequence length", "bits", "nodes", "edges", "MACs", "parameters", "memory", "positions", "layers",
    "heads", "hidden size", "vocabulary", "token types",
)  # fmt: skip
HARDWARE_FEATURES = (
    "fp32 TFLOP/s", "bandwidth", "compute major", "compute minor", "threads of a block", "threads of an SM",
    "registers of a block", "registers of an SM", "warp", "shared memory of a block", "shared memory of an SM", "SMs",
    "shared memory opt-in",
)  # fmt: skip
TARGETS = ("throughput", "memory", "energy")
PUBLISHED = {"throughput": 5.49, "memory": 1.81, "energy": 6.27}
PUBLISHED_NETWORK = {"throughput": 17.60, "memory": 9.45, "energy": 53.18}
FOLDS, SEEDS, ROUNDS = 5, 5, 500
_NOT_TEXT = ("vit", "clip", "dinov2", "whisper", "wav2vec2")
_ABLATION = {"MACs": ("MACs",), "MACs, parameters, memory": ("MACs", "parameters", "memory"), "all": MODEL_FEATURES}
_SHARES = frozenset({"MAPE", "thesis", "network of the thesis", "without hardware", "with hardware",
                     "thesis without", "thesis with", "rows at random", "architecture left out"})  # fmt: skip
Array = NDArray[np.float64]


@dataclass(frozen=True)
class Forward:
    """A measured forward pass: features by name, truths by target (NaN where not measured), and its architecture."""

    features: Mapping[str, float]
    truths: Mapping[str, float]
    family: str
    workload_id: str = ""


def read_forwards(store: Path) -> list[Forward]:
    """Forward passes of text models in the store: inference of encoders, prefill of decoders."""
    rows = [row for row in _measured(store) if not any(word in row["family"] for word in _NOT_TEXT)]
    keys = sorted({GraphKey.of(row) for row in rows})
    totals: dict[GraphKey, dict[str, float]] = {}
    for key, _, graph in read_graphs(store / "graphs", keys):
        single = graph.with_batch(1)
        cost = graph_costs(single).total
        totals[key] = {
            "nodes": len(single.nodes), "edges": sum(len(node.inputs) for node in single.nodes), "MACs": cost.macs,
            "parameters": cost.parameters, "memory": cost.bytes,
        }  # fmt: skip
    return [_forward(row, totals[key]) for row in rows if (key := GraphKey.of(row)) in totals]


def read_encoders(store: Path) -> list[Forward]:
    """Nine encoders of the thesis in fp32, fp16 and NF4 (`lab.campaigns.serving.encoder_grid`), with their totals."""
    files = sorted(store.glob("h200/*/encoders*.jsonl.gz"))
    lines = [json.loads(line) for file in files for line in gzip.decompress(file.read_bytes()).splitlines()]
    forwards = []
    for line in lines:
        if "latency_ms" in line:
            totals = {name: line[name] for name in _TOTALS}
            row = {"energy_j": None, **line, "input_shape": str(line["tokens"]), "family": _family(line["spec"])}
            forwards.append(_forward(row, totals))
    return forwards


_TOTALS = ("nodes", "edges", "MACs", "parameters", "memory")


def _family(spec: str) -> str:
    return spec.partition(":")[2].partition("?")[0]


def _measured(store: Path) -> Iterator[dict[str, Any]]:
    parquet = require("pyarrow.parquet", extra="train", purpose="Reading measurements")
    columns = ["spec", "family", "zoo", "mode", "dtype", "batch_size", "input_shape", "status", "latency_ms",
               "memory_mib", "energy_j", "runtime", "workload_id"]  # fmt: skip
    for file in sorted(store.glob("h200/*/measurements.parquet")):
        for row in parquet.read_table(file, columns=columns).to_pylist():
            is_forward = row["zoo"] == "hf" and row["mode"] in ("inference", "prefill") and row["status"] == "ok"
            if is_forward and row["latency_ms"] and row["family"]:
                yield row


_BITS = {"fp32": 32, "nf4": 4}


def _forward(row: Mapping[str, Any], totals: Mapping[str, float]) -> Forward:
    batch, tokens = row["batch_size"], int(row["input_shape"].split("x")[0])
    sizes = {name: values[0] for name, values in parse_qs(row["spec"].partition("?")[2]).items()}

    def size(*names: str) -> float:
        return next((float(sizes[name]) for name in names if sizes.get(name, "").isdigit()), 0.0)

    features = {
        **totals, "MACs": totals["MACs"] * batch, "memory": totals["memory"] * batch, "batch size": batch,
        "sequence length": tokens, "bits": _BITS.get(row["dtype"], 16),
        "positions": size("max_position_embeddings", "n_positions"),
        "layers": size("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        "heads": size("num_attention_heads", "n_head", "n_heads", "num_heads"),
        "hidden size": size("hidden_size", "n_embd", "dim", "d_model"), "vocabulary": size("vocab_size"),
        "token types": size("type_vocab_size"),
    }  # fmt: skip
    energy = row["energy_j"]
    truths = {
        "throughput": batch / row["latency_ms"] * KILO, "memory": row["memory_mib"] or np.nan,
        "energy": energy / batch if energy else np.nan,
    }  # fmt: skip
    family = row["family"].removeprefix("llm-").removeprefix("hf-")
    return Forward(features, truths, family, row.get("workload_id", ""))


Fit = Callable[[Array, Array, int], Callable[[Array], Array]]


def _trees(**parameters: object) -> Fit:
    """A fit by LightGBM of logarithms; parameters beside those of the thesis."""

    def fit(features: Array, truth: Array, seed: int) -> Callable[[Array], Array]:
        lightgbm = require("lightgbm", extra="train", purpose="Fitting trees")
        settings = {"objective": "regression", "max_depth": 8, "num_leaves": 63, "learning_rate": 0.1, "verbose": -1,
                    "min_data_in_leaf": 5, "seed": seed, "num_threads": 1, "deterministic": True,
                    "force_col_wise": True} | parameters  # fmt: skip
        rows = lightgbm.Dataset(np.log1p(features), np.log(truth), params=settings)
        booster = lightgbm.train(settings, rows, num_boost_round=ROUNDS)
        return lambda asked: np.exp(np.asarray(booster.predict(np.log1p(asked))))

    return fit


FITS: dict[str, Fit] = {
    "boosted trees": _trees(),
    "random forest": _trees(boosting="rf", bagging_fraction=0.63, bagging_freq=1, feature_fraction=0.6, max_depth=-1),
    "linear trees": _trees(linear_tree=True, linear_lambda=1.0, max_depth=4, num_leaves=15),
}


def folds(rows: Sequence[Forward], seed: int, *, by_family: bool) -> NDArray[np.int64]:
    """The fold of each row: at random, or with all rows of an architecture in one."""
    random = np.random.default_rng(seed)
    if not by_family:
        return random.permutation(len(rows)) % FOLDS
    families = sorted({row.family for row in rows})
    fold_of = dict(zip(families, random.permutation(len(families)) % FOLDS, strict=True))
    return np.array([fold_of[row.family] for row in rows])


def judge(
    rows: Sequence[Forward], names: Sequence[str], target: str, fit: Fit, *, by_family: bool, seeds: int = SEEDS
) -> dict[str, float]:
    """MAPE, RMSE and Kendall's τ of predictions for rows that did not teach, averaged over folds and seeds."""
    known = [row for row in rows if np.isfinite(row.truths[target])]
    features = np.array([[row.features[name] for name in names] for row in known], dtype=np.float64)
    truth = np.array([row.truths[target] for row in known])
    mape, rmse, tau = [], [], []
    for seed in range(seeds):
        predicted = _predicted(features, truth, folds(known, seed, by_family=by_family), fit, seed)
        mape.append(float(np.mean(np.abs(predicted / truth - 1))))
        rmse.append(float(np.sqrt(np.mean((predicted - truth) ** 2))))
        tau.append(kendall_tau(truth, predicted) or 0.0)
    return {"MAPE": float(np.mean(mape)), "RMSE": float(np.mean(rmse)), "τ": float(np.mean(tau))}


def _predicted(features: Array, truth: Array, fold: NDArray[np.int64], fit: Fit, seed: int) -> Array:
    """What is predicted for each row by a fit to the other folds."""
    predicted = np.zeros(len(truth))
    for number in range(FOLDS):
        taught = fold != number
        predicted[~taught] = fit(features[taught], truth[taught], seed)(features[~taught])
    return predicted


def judge_bits(rows: Sequence[Forward], grid: Sequence[Forward], seeds: int = SEEDS) -> Comparison:
    """The grid of encoders by precision, taught by all rows: at random, and with the architecture left out."""
    cells: dict[str, dict[str, Cell]] = {}
    both = [*grid, *rows]
    for target in TARGETS:
        known = [row for row in both if np.isfinite(row.truths[target])]
        of_grid = sum(np.isfinite(row.truths[target]) for row in grid)
        if not of_grid:
            continue
        features = np.array([[row.features[name] for name in MODEL_FEATURES] for row in known], dtype=np.float64)
        truth = np.array([row.truths[target] for row in known])
        bits = features[:of_grid, MODEL_FEATURES.index("bits")]
        errors = {
            by_family: np.mean([
                np.abs(_predicted(features, truth, folds(known, seed, by_family=by_family), FITS["linear trees"], seed)
                       / truth - 1)[:of_grid]
                for seed in range(seeds)
            ], axis=0)
            for by_family in (False, True)
        }  # fmt: skip
        for size in sorted(set(bits.tolist())):
            own = bits == size
            cells[f"{target}, {size:g} bits"] = {
                "count": int(own.sum()), "rows at random": float(np.mean(errors[False][own])),
                "architecture left out": float(np.mean(errors[True][own])),
            }  # fmt: skip
    title = "The nine encoders of the thesis by precision (4 bits: NF4 by bitsandbytes), linear trees"
    return Comparison(title, cells, ranked=False, shares=_SHARES, head="target")


def read_splitwise(file: Path) -> list[Forward]:
    """Prompts of Splitwise's table on A100 and H100 (Patel et al., ISCA 2024), equal settings once by their mean."""
    parquet = require("pyarrow.parquet", extra="train", purpose="Reading Splitwise's table")
    means: dict[tuple[Any, ...], list[float]] = {}
    for row in parquet.read_table(file).to_pylist():
        if row["hardware"] in _SPLITWISE_GPUS:
            key = (row["model"], row["hardware"], row["tensor_parallel"], row["prompt_size"], row["batch_size"])
            means.setdefault(key, []).append(row["prompt_time"])
    forwards = []
    for (model, gpu, gpus, prompt, batch), times in means.items():
        sizes, hardware = _SPLITWISE_MODELS[model], _hardware(_SPLITWISE_GPUS[gpu])
        tokens, parameters = prompt * batch, sizes["parameters"]
        features = {
            **dict.fromkeys(MODEL_FEATURES, 0.0), **sizes, **hardware, "batch size": batch, "sequence length": prompt,
            "bits": 16, "MACs": parameters * tokens, "memory": 2 * parameters, "GPUs": gpus,
        }  # fmt: skip
        forwards.append(Forward(features, {"throughput": batch / float(np.mean(times)) * KILO}, model))
    return forwards


_SPLITWISE_GPUS = {"a100-80gb": "a100-sxm-80gb", "h100-80gb": "h100-sxm"}
_SPLITWISE_MODELS = {
    "llama2-70b": {"parameters": 69e9, "layers": 80, "heads": 64, "hidden size": 8192, "vocabulary": 32000},
    "bloom-176b": {"parameters": 176e9, "layers": 70, "heads": 112, "hidden size": 14336, "vocabulary": 250880},
}
# CUDA Programming Guide, technical specifications: threads of an SM, KiB of shared memory of an SM and of a block
_LIMITS = {"8.0": (2048, 164, 163), "9.0": (2048, 228, 227)}


def _hardware(name: str) -> dict[str, float]:
    device = find_device(name)
    capability = str(device.compute_capability)
    threads, shared, block = _LIMITS[capability]
    major, minor = (float(part) for part in capability.split("."))
    values = (
        device.vector_tflops["fp32"], device.bandwidth_gb_per_s, major, minor, 1024, threads, 65536, 65536, 32, 48,
        shared, device.sms, block,
    )  # fmt: skip
    return dict(zip(HARDWARE_FEATURES, values, strict=True))


def evaluate(
    store: Path, device: str, cache: Path, *, tables: Path | None = None,
    log: Callable[[str], None] = lambda _: None, **others: object,
) -> list[Comparison]:  # fmt: skip
    """The tables of the chapter beside those of the thesis."""
    del device, cache, others
    rows = read_forwards(store)
    log(f"{len(rows)} forward passes of {len({row.family for row in rows})} architectures")
    made = []
    main: dict[str, dict[str, Cell]] = {}
    for target in TARGETS:
        for name, fit in FITS.items():
            random_rows, left_out = (judge(rows, MODEL_FEATURES, target, fit, by_family=own) for own in (False, True))
            main[f"{target}, {name}"] = {
                "count": sum(np.isfinite(row.truths[target]) for row in rows), "rows at random": random_rows["MAPE"],
                "τ at random": random_rows["τ"], "architecture left out": left_out["MAPE"], "τ left out": left_out["τ"],
                "thesis": PUBLISHED[target] / 100 if name == "boosted trees" else None,
                "network of the thesis": PUBLISHED_NETWORK[target] / 100 if name == "boosted trees" else None,
            }  # fmt: skip
        log(f"{target} judged")
    made.append(Comparison(
        "Mean errors on an H200: rows at random as in the thesis, and with the architecture left out", main,
        ranked=False, shares=_SHARES, head="target and model",
    ))  # fmt: skip
    ablation: dict[str, dict[str, Cell]] = {}
    for target in TARGETS:
        for name, features in _ABLATION.items():
            both = [
                judge(rows, features, target, FITS["boosted trees"], by_family=own, seeds=2)["MAPE"]
                for own in (False, True)
            ]
            ablation[f"{target}, {name}"] = {"rows at random": both[0], "architecture left out": both[1]}
    made.append(Comparison(
        "Features of the model, boosted trees, two seeds", ablation, ranked=False, shares=_SHARES, head="features"
    ))  # fmt: skip
    grid = read_encoders(store)
    if grid:
        made.append(judge_bits(rows, grid))
        log(f"{len(grid)} forward passes of encoders judged by precision")
    file = None if tables is None else tables.parent / "splitwise_perf_model.parquet"
    if file is not None and file.is_file():
        made.append(_with_hardware(read_splitwise(file)))
    return [*made, _speed(rows)]


_PUBLISHED_ABLATION = {"MACs": (39.36, 17.89), "MACs, parameters, memory": (43.25, 6.16), "all": (43.19, 5.49)}


def _with_hardware(rows: Sequence[Forward]) -> Comparison:
    """Throughput of prompts on A100 and H100 with and without what the trees know of the GPUs; rows at random."""
    cells: dict[str, dict[str, Cell]] = {}
    for name, features in _ABLATION.items():
        without, with_them = (
            judge(rows, (*features, *more), "throughput", FITS["boosted trees"], by_family=False)["MAPE"]
            for more in ((), (*HARDWARE_FEATURES, "GPUs"))
        )
        published = _PUBLISHED_ABLATION[name]
        cells[name] = {
            "count": len(rows), "without hardware": without, "with hardware": with_them,
            "thesis without": published[0] / 100, "thesis with": published[1] / 100,
        }  # fmt: skip
    title = "Hardware features: throughput of prompts on A100 and H100 (Splitwise), rows at random"
    return Comparison(title, cells, ranked=False, shares=_SHARES, head="features of the model")


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Trees on tables for language models, as the thesis has them\n\n"
        "Chapter 6 of the thesis predicts throughput, peak memory and energy of a forward pass by boosted trees on "
        "features of the model and of the hardware. Our rows are text models of 20 architectures on an H200; those "
        "of the thesis nine encoders on three GPUs. Mean errors of five folds and five seeds. Remade by "
        "`python -m lab evaluate llm-trees TABLES --report`; what it means is in docs/lab/0047-llm-trees.md."
    )
    write_whole(folder / "llm-trees.md", page(text, tables))
    return folder / "llm-trees.md"


def _speed(rows: Sequence[Forward]) -> Comparison:
    """Predictions a second on one core: boosted trees against two layers of GraphSAGE on the graph."""
    torch = require("torch", extra="torch", purpose="A graph network")
    features = np.array([[row.features[name] for name in MODEL_FEATURES] for row in rows])
    predict = FITS["boosted trees"](features, np.array([row.truths["throughput"] for row in rows]), 0)
    began = time.perf_counter()
    for _ in range(20):
        predict(features)
    by_trees = 20 * len(rows) / (time.perf_counter() - began)
    torch.set_num_threads(1)
    width, layers = 512, [torch.nn.Linear(2 * size, 512) for size in (32, 512)]
    took = 0.0
    chosen = rows[:: max(1, len(rows) // 40)]
    for row in chosen:
        nodes, edges = int(row.features["nodes"]), int(row.features["edges"])
        hidden, ends = torch.randn(nodes, 32), torch.randint(0, nodes, (2, edges))
        began = time.perf_counter()
        with torch.no_grad():
            for layer in layers:
                gathered = torch.zeros(nodes, hidden.shape[1]).index_add_(0, ends[1], hidden[ends[0]])
                hidden = torch.relu(layer(torch.cat([hidden, gathered], dim=1)))
            hidden.mean(0)
        took += time.perf_counter() - began
    by_network = len(chosen) / took
    cells: dict[str, dict[str, Cell]] = {
        "boosted trees": {"predictions/s": by_trees, "times": by_trees / by_network},
        f"GraphSAGE, 2 layers of {width}": {"predictions/s": by_network, "times": 1.0},
        "thesis: trees over network": {"predictions/s": None, "times": 267.6},
    }
    return Comparison("Speed on one core, features known", cells, ranked=False, head="model")

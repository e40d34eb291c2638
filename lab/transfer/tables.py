"""Lab: public tables of operators on many GPUs, as graphs of one operator with a measured time.

TABLES is a folder with three sources, as Parquet:

- ``neusight/ops``: operators in fp32 on P4, P100, V100, T4 and A100 (https://github.com/sitar-lab/NeuSight, MIT). They
  were timed from the host: the shortest times are those of a launch, so only times far above it are taken.
- ``aiconfigurator/{gpu}_gemm``, ``_attention``: products and attention in bf16 (https://github.com/ai-dynamo/
  aiconfigurator, Apache-2.0); the median of what several frameworks took.
- ``vidur/mlp_ops``: layers of language models in fp16 on A40, A100 and H100 (https://github.com/microsoft/vidur, MIT).

Shapes that all devices of a source have are preferred, some at random, the same on all its devices.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretell.graph import Graph, Node, Tensor
from foretell.optional import require

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]

NEUSIGHT = {
    "Tesla P4": "p4", "Tesla P100-PCIE-16GB": "p100", "Tesla V100-PCIE-32GB": "v100-pcie-32gb", "Tesla T4": "t4",
    "NVIDIA A100-PCIE-40GB": "a100-pcie-40gb",
}  # fmt: skip
NEUSIGHT_SIZES = {
    "bmm": ("B", "M", "N", "K"), "linear": ("B", "M", "N", "K"),
    "conv": ("B", "Input_Channel", "Output_Channel", "Input_Size"),
}  # fmt: skip
AICONFIGURATOR = {
    "a100_sxm": "a100-sxm-80gb", "b200_sxm": "b200", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s",
}  # fmt: skip
VIDUR = {"a40": "a40", "a100": "a100-sxm-80gb", "h100": "h100-sxm"}
_ABOVE_LAUNCH = 3.0  # times the fastest of its operator: below it a time is mostly the host's
_LONGEST_MS = 200.0
_LEAST_VIDUR_MS = 0.02  # its times are whole microseconds
_SHAPES = 200  # of each operator
_ELEMENTWISE = {
    "add": ("Add", 2), "mul": ("Mul", 2), "div": ("Div", 2), "pow": ("Pow", 2), "addu": ("Add", 1), "mulu": ("Mul", 1),
    "divu": ("Div", 1), "powu": ("Pow", 1), "relu": ("Relu", 1), "gelu": ("Gelu", 1), "tanh": ("Tanh", 1),
}  # fmt: skip
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Operator:
    """One operator that was measured: on which device, by whom, its graph, and its time in µs."""

    device: str
    source: str
    graph: Graph
    dtype: str
    measured_us: float


def operators(tables: Path, shapes: int = _SHAPES) -> Iterator[Operator]:
    """All operators of all sources; of each operator ``shapes`` shapes."""
    yield from _neusight(tables, shapes)
    yield from _products(tables, shapes)
    yield from _attentions(tables, shapes)
    yield from _layers(tables, shapes)


def one_operator(
    op: str, inputs: Mapping[str, tuple[Shape, str]], output: Shape, dtype: str, attributes: Mapping[str, object] = {}
) -> Graph:
    """A graph of one operator; ``inputs`` has a shape and a kind for each."""
    tensors = {name: Tensor(name, shape, dtype=dtype, kind=kind) for name, (shape, kind) in inputs.items()}  # type: ignore[arg-type]
    tensors["y"] = Tensor("y", output, dtype=dtype)
    node = Node("y", op, tuple(inputs), ("y",), dict(attributes))  # type: ignore[arg-type]
    given = [name for name, (_, kind) in inputs.items() if kind == "input"]
    return Graph.build(op, [node], tensors, given, ["y"])


def product(rows: int, inner: int, columns: int, dtype: str, *, bias: bool = False) -> Graph:
    """A linear layer."""
    inputs = {"x": ((rows, inner), "input"), "w": ((columns, inner), "parameter")}
    return one_operator(
        "Gemm", inputs | ({"b": ((columns,), "parameter")} if bias else {}), (rows, columns), dtype, {"transB": 1}
    )


def elementwise(op: str, operands: int, shape: Shape, dtype: str) -> Graph:
    """An operator on each element."""
    return one_operator(op, dict.fromkeys("ab"[:operands], (shape, "input")), shape, dtype)


def softmax(rows: int, row: int, dtype: str) -> Graph:
    """A softmax of each row."""
    return one_operator("Softmax", {"x": ((rows, row), "input")}, (rows, row), dtype, {"axis": -1})


def norm(rows: int, row: int, dtype: str) -> Graph:
    """A layer norm of each row."""
    inputs = {"x": ((rows, row), "input"), "w": ((row,), "parameter"), "b": ((row,), "parameter")}
    return one_operator("LayerNormalization", inputs, (rows, row), dtype, {"shape": (row,)})


def batched_product(batch: int, rows: int, inner: int, columns: int, dtype: str) -> Graph:
    """A product of two tensors with a batch."""
    inputs: dict[str, tuple[Shape, str]] = {
        "a": ((batch, rows, inner), "input"), "b": ((batch, inner, columns), "input"),
    }  # fmt: skip
    return one_operator("MatMul", inputs, (batch, rows, columns), dtype)


def convolution(batch: int, before: int, after: int, side: int, dtype: str) -> Graph:
    """A convolution of 3 × 3 that keeps the size of its images."""
    inputs: dict[str, tuple[Shape, str]] = {
        "x": ((batch, before, side, side), "input"), "w": ((after, before, 3, 3), "parameter"),
        "b": ((after,), "parameter"),
    }  # fmt: skip
    return one_operator("Conv", inputs, (batch, after, side, side), dtype, {"strides": (1, 1), "pads": (1, 1)})


def attention(batch: int, heads: int, groups: int, queries: int, keys: int, size: int, dtype: str) -> Graph:
    """Attention of queries to keys; causal, where there are several queries."""
    query, key = (batch, heads, queries, size), (batch, groups, keys, size)
    inputs = {"q": (query, "input"), "k": (key, "input"), "v": (key, "input")}
    return one_operator("Attention", inputs, query, dtype, {"is_causal": 1} if queries > 1 else {})


def neusight_graph(op: str, row: Mapping[str, float]) -> Graph:
    """One of NeuSight's operators; ``row`` has its sizes."""
    size = {name: int(value) for name, value in row.items()}
    if op in _ELEMENTWISE:
        return elementwise(*_ELEMENTWISE[op], (size["B"], size["H"]), "fp32")
    if op == "softmax":
        return softmax(size["B"], size["H"], "fp32")
    if op == "ln":
        return norm(size["B"], size["H"], "fp32")
    # N is what is summed over: the grids of their kernels cover M × K, as the table's columns of grids show
    if op == "linear":
        return product(size["M"], size["N"], size["K"], "fp32", bias=True)
    if op == "bmm":
        return batched_product(size["B"], size["M"], size["N"], size["K"], "fp32")
    return convolution(size["B"], size["Input_Channel"], size["Output_Channel"], size["Input_Size"], "fp32")


def _neusight(tables: Path, shapes: int) -> Iterator[Operator]:
    table = _pandas().read_parquet(tables / "neusight" / "ops.parquet")
    table = table[table["Latency"] < _LONGEST_MS]
    for op, rows in table.groupby("OPName"):
        keys = list(NEUSIGHT_SIZES.get(str(op), ("B", "H")))
        times = rows.groupby([*keys, "Device"])["Latency"].median().unstack()
        enough = times > _ABOVE_LAUNCH * times.quantile(0.02)
        # some of each size: a draw from all would be of the shortest
        order = times[enough.sum(axis=1) > 1].median(axis=1)
        chosen = _spread(np.log(order.to_numpy()), shapes if op in ("linear", "bmm", "conv") else shapes // 3)
        for index in order.index[chosen]:
            graph = neusight_graph(str(op), dict(zip(keys, index, strict=True)))
            for device in times.columns:
                if enough.loc[index, device]:
                    yield Operator(NEUSIGHT[device], "neusight", graph, "fp32", 1e3 * float(times.loc[index, device]))


def _spread(values: np.ndarray, count: int) -> np.ndarray:
    """Places of some values: as many of each fifth of their range, at random."""
    random = np.random.default_rng(0)
    bins = np.clip(((values - values.min()) / np.ptp(values) * 5).astype(int), 0, 4)
    places = [random.permutation(np.flatnonzero(bins == number))[: count // 5] for number in range(5)]
    return np.concatenate(places)


def _common(
    tables: Path, kind: str, keys: list[str], keep: "Callable[[pd.DataFrame], pd.Series]", shapes: int
) -> Iterator[tuple[Shape, str, float]]:
    """Shapes of a table of aiconfigurator that most devices have: shape, device, median in µs."""
    times = {}
    for file, device in AICONFIGURATOR.items():
        table = _pandas().read_parquet(tables / "aiconfigurator" / f"{file}_{kind}.parquet")
        table = table[keep(table) & (table["latency"] > 0) & (table["latency"] < _LONGEST_MS)]
        # a framework may have measured a shape several times: each has one vote
        times[device] = table.groupby([*keys, "framework"])["latency"].median().groupby(level=keys).median()
    together = _pandas().DataFrame(times).dropna()
    for index in together.index[_spread(np.log(together["h200"].to_numpy()), shapes)]:
        for device in together.columns:
            yield tuple(int(size) for size in index), device, 1e3 * float(together.loc[index, device])


def _products(tables: Path, shapes: int) -> Iterator[Operator]:
    found = _common(tables, "gemm", ["m", "n", "k"], lambda table: table["gemm_dtype"] == "bfloat16", 2 * shapes)
    for (m, n, k), device, measured_us in found:
        yield Operator(device, "aiconfigurator", product(m, k, n, "bf16"), "bf16", measured_us)


def _attentions(tables: Path, shapes: int) -> Iterator[Operator]:
    keys = ["batch_size", "isl", "num_heads", "num_key_value_heads", "head_dim", "step"]

    def plain(table: "pd.DataFrame", *, prefill: bool) -> "pd.Series":
        window = (table["window_size"].fillna(0) == 0) & ((table["step"] == 0) == prefill)
        return window & (table["attn_dtype"] == "bfloat16") & (table["kv_cache_dtype"] == "bfloat16")

    for prefill in (True, False):
        found = _common(tables, "attention", keys, partial(plain, prefill=prefill), shapes)
        for (batch, length, heads, groups, size, step), device, measured_us in found:
            graph = attention(batch, heads, groups, length if prefill else 1, length + step, size, "bf16")
            yield Operator(device, "aiconfigurator", graph, "bf16", measured_us)


def _layers(tables: Path, shapes: int) -> Iterator[Operator]:
    table = _pandas().read_parquet(tables / "vidur" / "mlp_ops.parquet")
    table = table[table["use_gated_mlp"]]
    keys = ["n_embd", "n_head", "n_kv_head", "n_expanded_embd", "num_tensor_parallel_workers", "num_tokens"]
    for op in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj", "add"):
        times = table.groupby([*keys, "device"])[f"time_stats.{op}.median"].median().unstack().dropna()
        times = times[(times > _LEAST_VIDUR_MS).all(axis=1)]
        for index in times.index[_spread(np.log(times["h100"].to_numpy()), shapes // 4)]:
            graph = _layer(op, *(int(size) for size in index))
            for device in times.columns:
                yield Operator(VIDUR[device], "vidur", graph, "fp16", 1e3 * float(times.loc[index, device]))


def _layer(op: str, width: int, heads: int, groups: int, expanded: int, workers: int, tokens: int) -> Graph:
    size = width // heads
    if op == "attn_pre_proj":
        return product(tokens, width, (heads + 2 * groups) * size // workers, "fp16")
    if op == "attn_post_proj":
        return product(tokens, width // workers, width, "fp16")
    if op == "mlp_up_proj":
        return product(tokens, width, 2 * expanded // workers, "fp16")
    if op == "mlp_down_proj":
        return product(tokens, expanded // workers, width, "fp16")
    return elementwise("Add", 2, (tokens, width), "fp16")


def _pandas() -> Any:
    # where rows are read from a file of their own, as on a machine with a GPU, there need be none
    return require("pandas", extra="pandas", purpose="Reading tables")

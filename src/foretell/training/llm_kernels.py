"""Training: fits the kernels of serving engines to public tables of aiconfigurator, and judges them.

The tables hold the same shapes under several frameworks and versions, so rows are split by shape: a fifth of the
shapes, fixed by their hash, only judges. Rows whose time is that of the host are left out. They show by a floor that
other frameworks do not have: products of vLLM in block-wise fp8 never take less than 57 µs, its latent attention 100;
products of TensorRT-LLM in fp8 take 12 µs at least, on an L40S as on a B200; its mxfp4 experts 50 to 73 µs.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device, find_device
from foretell.errors import DataError
from foretell.optional import require
from foretell.predictors.boosting import TreeFit, trees_of
from foretell.predictors.llm.kernels import FRAMEWORKS, KINDS, Kernels, features_of, with_framework
from foretell.predictors.trees import Trees
from foretell.units import KILO

GPUS = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s", "b200_sxm": "b200"
}  # fmt: skip
_FILES = {
    "product": "gemm", "context": "attention", "generation": "attention", "experts": "moe", "latent_context": "mla",
    "latent_generation": "mla",
}  # fmt: skip
_SCHEMES = {
    "bfloat16": "bf16", "fp8": "fp8", "fp8_block": "fp8_block", "sq": "int8", "int8_wo": "int8_weights",
    "int4_wo": "int4_weights", "w4a16_mxfp4": "mxfp4_weights", "nvfp4": "nvfp4",
}  # fmt: skip
_DISTRIBUTIONS = {"balanced": 0, "power_law_1.01": 1, "power_law_1.2": 2}
FIT = TreeFit(rounds=300, leaves=63, learning_rate=0.1, objective="regression_l1")
FIT_VERSION = 1

Rows = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class KernelRows:
    """Measured kernels of one kind on one GPU, equal ones once: what was done, by which framework, and its time."""

    device: Device
    work: Rows
    framework: NDArray[np.int64]
    us: NDArray[np.float64]
    held_out: NDArray[np.bool_]


def read_rows(folder: Path, gpu: str, kind: str) -> KernelRows | None:
    """The rows of one kind from a GPU's table; None where there is no such table."""
    file = folder / f"{gpu}_{_FILES[kind]}.parquet"
    if not file.is_file():
        return None
    parquet = require("pyarrow.parquet", extra="train", purpose="Reading tables of kernels")
    read = parquet.read_table(file)
    table: Rows = {name: read.column(name).to_numpy() for name in read.column_names}
    chosen, work = _READERS[kind](table)
    framework = np.array([FRAMEWORKS.index(name) for name in table["framework"][chosen]])
    return _grouped(find_device(GPUS[gpu]), work, framework, table["latency"][chosen].astype(np.float64) * KILO)


def _grouped(device: Device, work: Rows, framework: NDArray[np.int64], us: NDArray[np.float64]) -> KernelRows:
    """Equal shapes under one framework once: the shortest of its kernels and versions, as an engine would choose."""
    keys = [tuple(row) for row in zip(*(column.tolist() for column in work.values()), strict=True)]
    best: dict[tuple[object, ...], int] = {}
    for row, key in enumerate(zip(keys, framework.tolist(), strict=True)):
        if us[row] > 0 and (key not in best or us[row] < us[best[key]]):
            best[key] = row
    rows = np.array(sorted(best.values()), dtype=np.int64)
    held = np.array([zlib.crc32(repr(keys[row]).encode()) % 5 == 0 for row in rows], dtype=bool)
    return KernelRows(device, {name: column[rows] for name, column in work.items()}, framework[rows], us[rows], held)


def _by_host(framework: NDArray[Any], scheme: NDArray[Any], *, products: bool = True) -> NDArray[np.bool_]:
    """Which rows have the time of the host, not of the kernel."""
    pairs = (("vllm", "fp8_block"), ("trtllm", "fp8")) if products else (("trtllm", "w4a16_mxfp4"),)
    by_host = np.zeros(len(scheme), dtype=bool)
    for name, kind in pairs:
        by_host |= (framework == name) & (scheme == kind)
    return by_host


def _product(table: Rows) -> tuple[NDArray[np.bool_], Rows]:
    names = table["gemm_dtype"]
    chosen = np.isin(names, list(_SCHEMES)) & ~_by_host(table["framework"], names)
    work = {name: table[name][chosen] for name in "mnk"}
    return chosen, {**work, "scheme": np.array([_SCHEMES[name] for name in names[chosen]])}


def _attention(op_name: str) -> Callable[[Rows], tuple[NDArray[np.bool_], Rows]]:
    def read(table: Rows) -> tuple[NDArray[np.bool_], Rows]:
        chosen = table["op_name"] == op_name
        part = {name: column[chosen] for name, column in table.items()}
        is_context = op_name == "context_attention"
        work = {
            "batch": part["batch_size"],
            "tokens": part["isl"] if is_context else part["step"] + 1,
            "heads": part["num_heads"],
            "kv_heads": part["num_key_value_heads"],
            "head_size": part["head_dim"],
            "window": part["window_size"],
            "kv_bytes": np.where(part["kv_cache_dtype"] == "fp8", 1, 2),
        }
        return chosen, {**work, **({"fp8": (part["attn_dtype"] == "fp8").astype(np.int64)} if is_context else {})}

    return read


def _experts(table: Rows) -> tuple[NDArray[np.bool_], Rows]:
    odd = np.array([any(word in name for word in ("nongated", "situ")) for name in table["kernel_source"]])
    known = np.isin(table["moe_dtype"], list(_SCHEMES)) & np.isin(table["distribution"], list(_DISTRIBUTIONS))
    chosen = (
        (table["op_name"] == "moe") & known & ~odd & ~_by_host(table["framework"], table["moe_dtype"], products=False)
    )
    part = {name: column[chosen] for name, column in table.items()}
    columns = {
        "tokens": "num_tokens", "hidden": "hidden_size", "inner": "inter_size", "top": "topk",
        "experts": "num_experts", "tensor_parallel": "moe_tp_size", "expert_parallel": "moe_ep_size",
    }  # fmt: skip
    work = {name: part[column] for name, column in columns.items()}
    work["distribution"] = np.array([_DISTRIBUTIONS[name] for name in part["distribution"]])
    work["scheme"] = np.array([_SCHEMES[name] for name in part["moe_dtype"]])
    return chosen, work


def _latent(op_name: str) -> Callable[[Rows], tuple[NDArray[np.bool_], Rows]]:
    def read(table: Rows) -> tuple[NDArray[np.bool_], Rows]:
        plain = np.isin(table["table"], ["context_mla_perf", "generation_mla_perf"])
        chosen = (table["op_name"] == op_name) & plain & (table["framework"] != "vllm")
        part = {name: column[chosen] for name, column in table.items()}
        tokens = part["isl"] if op_name == "mla_context" else part["step"] + 1
        return chosen, {
            "batch": part["batch_size"].astype(np.int64),
            "tokens": tokens.astype(np.int64),
            "heads": part["num_heads"],
            "kv_bytes": np.where(part["kv_cache_dtype"] == "fp8", 1, 2),
        }

    return read


_READERS: dict[str, Callable[[Rows], tuple[NDArray[np.bool_], Rows]]] = {
    "product": _product,
    "context": _attention("context_attention"),
    "generation": _attention("generation_attention"),
    "experts": _experts,
    "latent_context": _latent("mla_context"),
    "latent_generation": _latent("mla_generation"),
}


def fit_trees(parts: Iterable[KernelRows], kind: str, fit: TreeFit = FIT) -> Trees:
    """Fit one kind to the rows that do not judge."""
    features, truth = [], []
    for rows in parts:
        taught = ~rows.held_out
        own, bound = features_of(kind, rows.work, rows.device)
        features.append(with_framework(own, rows.framework.astype(np.float32))[taught])
        truth.append(np.log(rows.us / bound)[taught])
    return trees_of(fit.fit(np.concatenate(features), np.concatenate(truth)))


def errors_of(trees: Trees, rows: KernelRows, kind: str, chosen: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Signed relative errors of the chosen rows."""
    own, bound = features_of(kind, {name: column[chosen] for name, column in rows.work.items()}, rows.device)
    logs = trees.predict(with_framework(own, rows.framework[chosen].astype(np.float32)))
    errors: NDArray[np.float64] = bound[chosen[chosen]] * np.exp(logs) / rows.us[chosen] - 1
    return errors


def frameworks_of(parts: Iterable[KernelRows], kind: str) -> dict[str, tuple[int, ...]]:
    """Which frameworks were measured, by kind and scheme."""
    seen: dict[str, set[int]] = {}
    for rows in parts:
        schemes = rows.work.get("scheme", np.full(len(rows.us), ""))
        for scheme, code in set(zip(schemes.tolist(), rows.framework.tolist(), strict=True)):
            seen.setdefault(f"{kind}/{scheme}", set()).add(code)
    return {name: tuple(sorted(codes)) for name, codes in seen.items()}


def fit_kernels(folder: Path, gpus: Sequence[str] = tuple(GPUS), kinds: Sequence[str] = KINDS) -> Kernels:
    """Fit all kinds to the tables of a folder."""
    trees: dict[str, Trees] = {}
    frameworks: dict[str, tuple[int, ...]] = {}
    for kind in kinds:
        parts = [rows for gpu in gpus if (rows := read_rows(folder, gpu, kind)) is not None and len(rows.us)]
        if not parts:
            raise DataError(
                f"{folder} has no {_FILES[kind]} tables. Give the folder aiconfigurator of the public data."
            )
        trees[kind] = fit_trees(parts, kind)
        frameworks |= frameworks_of(parts, kind)
    return Kernels(trees, frameworks, tuple(GPUS[gpu] for gpu in gpus))

"""Lab: the times of collectives: fits the constants of ``foretell.predictors.llm.collectives``, and judges them.

Rows are aiconfigurator's measurements of NCCL (2.26 to 2.29), of the all-reduce kernels of serving engines under CUDA
graphs, and of DeepEP's all-to-all across nodes; several versions of one shape count once, by their median. Judged are
sizes, numbers of GPUs and devices that a fit has not seen.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.predictors.least_squares import solve
from foretell.predictors.llm.collectives import (
    ENGINE_LIMIT_BYTES,
    FACTOR_BYTES,
    SWITCH_BYTES,
    SWITCH_GPUS,
    collective_time,
    fabric_of,
)
from foretell.training.judging.table import Cell, Comparison, page
from foretell.units import GIGA, KIB, KILO, MEGA, MIB
from foretell.units import us as us_of

Values = NDArray[np.float64]
Log = Callable[[str], None]
KINDS = {
    "all_reduce": "all-reduce", "all_gather": "all-gather", "reduce_scatter": "reduce-scatter", "alltoall": "all-to-all"
}  # fmt: skip
DEVICES = {
    "a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s"
}  # fmt: skip
_WIDTHS = {"half": 2, "int8": 1, "bfloat16": 2}
_OLD_NCCL = "2.23"  # its all-to-all is another one
_ENGINES = ("SGLang_CustomAllReduce_graph", "vLLM_custom_graph", "TRTLLM")
_FIRST = (math.log(6.0), math.log(0.2), math.log(3.0), math.log(0.4), math.log(0.8))
_NAMES = ("latency_us", "step", "ramp", "ramp_power", "local", "wire")
_REFERENCE = "Hopper"  # its latency and rate count as 1
# how the ramp grows with the number of GPUs; of an engine every GPU reads from every other
POWERS = {"NCCL": 0.0, "engine": 1.0}
_DELTA, _NUDGE = 0.1, 1e-5
_BANDS = ((0, 64 * KIB), (64 * KIB, 2 * MIB), (2 * MIB, 32 * MIB), (32 * MIB, math.inf))
_CARD_GB_PER_S = 50.0  # DeepEP's nodes have a card of 400 Gb/s a GPU
_FP8_SCALES = 4 / 128  # DeepEP dispatches fp8 with a float for 128 values


@dataclass(frozen=True)
class Rows:
    """Measured collectives as columns; ``moved_us`` is the size over the bandwidth of a link in one direction."""

    device: NDArray[np.str_]
    architecture: NDArray[np.str_]
    kind: NDArray[np.str_]
    gpus: Values
    size: Values
    us: Values

    def where(self, chosen: NDArray[np.bool_]) -> "Rows":
        """Some of them."""
        return Rows(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))

    @property
    def moved_us(self) -> Values:
        """Size over bandwidth."""
        links = np.array([_link_gb_per_s(name) for name in self.device])
        return np.asarray(self.size / links / GIGA * MEGA)

    @property
    def crossing(self) -> Values:
        """The share of the size that crosses a link."""
        return (self.gpus - 1) / self.gpus * np.where(self.kind == "all-reduce", 2.0, 1.0)


def _link_gb_per_s(device: str) -> float:
    facts = find_device(device)
    both = facts.nvlink_gb_per_s or facts.pcie_gb_per_s
    assert both is not None
    return both / 2


@dataclass(frozen=True)
class Fit:
    """Constants of some kinds, and factors of architectures."""

    kinds: tuple[str, ...]
    shapes: Mapping[str, Values]
    factors: Mapping[str, tuple[float, float, float]]
    sharing: float = 0.0

    def predict(self, rows: Rows) -> Values:
        """Microseconds of rows; an architecture that was not fitted has the mean factors."""
        mean = tuple(float(np.exp(np.mean(np.log(column)))) for column in zip(*self.factors.values(), strict=True))
        factors = np.array([self.factors.get(name, mean) for name in rows.architecture])
        shapes = np.array([self.shapes[kind] for kind in rows.kind])
        moved = rows.moved_us / factors[:, 1] * (rows.gpus / 2) ** self.sharing
        switch = np.where((rows.kind == "all-reduce") & (rows.gpus >= SWITCH_GPUS), factors[:, 2], 1.0)
        beyond = np.maximum(1 - SWITCH_BYTES / rows.size, 0.0)
        return _us(shapes, moved, rows.crossing * (1 - beyond + beyond / switch), rows.gpus, factors[:, 0])


def _us(shapes: Values, moved: Values, crossing: Values, gpus: Values, latency_factor: Values) -> Values:
    """The formula of `Shape.us`, in columns."""
    latency, step, ramp, power, local, wire = shapes.T
    result: Values = (
        latency * latency_factor * (1 + step * (gpus - 1))
        + ramp * gpus**power * np.sqrt(moved)
        + (local + wire * crossing) * moved
    )
    return result


def fit(rows: Rows, *, power: float = 0.0, shared: bool = False) -> Fit:
    """Fit all constants but the ramp's ``power`` at once, in logarithms.

    ``shared`` fits one shape for all kinds, and how GPUs share PCIe.
    """
    kinds = ("all",) if shared else tuple(sorted(set(rows.kind.tolist())))
    names = sorted(set(rows.architecture.tolist()))
    names.sort(key=lambda name: name != _REFERENCE)
    # an all-reduce inside the switch can be told from the rate only if other kinds are there
    switched = len(kinds) > 1 and bool(((rows.gpus >= SWITCH_GPUS) & (rows.kind == "all-reduce")).any())

    def unpack(parameters: Values) -> Fit:
        shapes = {}
        for number, kind in enumerate(kinds):
            own = np.exp(parameters[5 * number : 5 * number + 5])
            shapes[kind] = np.array([*own[:3], power, *own[3:]])
        # of each architecture latency, rate and what the switch adds; those of the first one have no meaning
        rest = np.exp(parameters[5 * len(kinds) : 5 * len(kinds) + 3 * len(names)]).reshape(-1, 3)
        rest[0, :2] = 1.0
        if not switched:
            rest[:, 2] = 1.0
        factors = {name: (float(a), float(b), float(c)) for name, (a, b, c) in zip(names, rest, strict=True)}
        if shared:
            shapes = dict.fromkeys(set(rows.kind.tolist()), shapes["all"])
        return Fit(kinds, shapes, factors, float(parameters[-1]) if shared else 0.0)

    def errors(parameters: Values) -> Values:
        return np.asarray(np.log(unpack(parameters).predict(rows) / rows.us))

    def with_slopes(parameters: Values) -> tuple[Values, Values]:
        here = errors(parameters)
        slopes = [(errors(parameters + step) - here) / _NUDGE for step in np.eye(len(parameters)) * _NUDGE]
        return here, np.array(slopes).T

    first = [*_FIRST * len(kinds), *[0.0] * (3 * len(names)), *([1.0] if shared else [])]
    return unpack(solve(with_slopes, np.array(first), _DELTA))


def read_rows(folder: Path) -> tuple[Rows, Rows, Rows]:
    """NCCL's rows, those of engines, and those of NCCL over PCIe."""
    nccl: defaultdict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    engine: defaultdict[tuple[str, str, int, float], list[float]] = defaultdict(list)
    for short, device in DEVICES.items():
        for row in _table(folder, short):
            if row["table"] not in ("nccl_perf", "custom_allreduce_perf"):
                continue
            width = _WIDTHS[str(row["nccl_dtype"] or row["allreduce_dtype"])]
            size, us = float(row["message_size"]) * width, float(row["latency"]) * KILO  # type: ignore[arg-type]
            key = (device, KINDS[str(row["op_name"])], int(row["num_gpus"]), size)  # type: ignore[call-overload]
            if row["table"] == "nccl_perf" and row["version"] != _OLD_NCCL:
                nccl[key].append(us)
            elif row["kernel_source"] in _ENGINES and size <= ENGINE_LIMIT_BYTES:
                engine[key].append(us)
    all_nccl, all_engine = _columns(nccl), _columns(engine)
    over_pcie = all_nccl.device == "l40s"
    return all_nccl.where(~over_pcie), all_engine.where(all_engine.device != "l40s"), all_nccl.where(over_pcie)


def read_engine_factors(folder: Path) -> dict[str, dict[int, list[float]]]:
    """What each engine's all-reduce takes on an H200 over the mean of all: by GPUs, at `FACTOR_BYTES`.

    Several versions were measured: their median counts. A larger message is never told to be quicker.
    """
    times: defaultdict[tuple[str, int], defaultdict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in _table(folder, "h200_sxm"):
        # SGLang has measured TensorRT-LLM's kernel too
        if row["kernel_source"] in _ENGINES and (row["framework"], row["kernel_source"]) != ("sglang", "TRTLLM"):
            size = float(row["message_size"]) * _WIDTHS[str(row["allreduce_dtype"])]  # type: ignore[arg-type]
            times[str(row["framework"]), int(row["num_gpus"])][size].append(float(row["latency"]) * KILO)  # type: ignore[call-overload,arg-type]
    fabric, factors = fabric_of(find_device("h200")), defaultdict[str, dict[int, list[float]]](dict)
    for (name, gpus), own in sorted(times.items()):
        sizes = sorted(own)
        us = np.maximum.accumulate([float(np.median(own[size])) for size in sizes])
        here = np.exp(np.interp(np.log(FACTOR_BYTES), np.log(sizes), np.log(us)))
        mean = [
            us_of(collective_time("all-reduce", size, gpus, fabric, "engine").seconds.value) for size in FACTOR_BYTES
        ]
        factors[name][gpus] = (here / mean).tolist()
    return dict(factors)


def _table(folder: Path, short: str) -> list[dict[str, object]]:
    file = folder / f"{short}_comm.parquet"
    if not file.is_file():
        raise DataError(f"There is no {file.name} below {folder}; give the folder of aiconfigurator's tables.")
    rows: list[dict[str, object]] = pq.read_table(file).to_pylist()
    return rows


def _columns(medians: Mapping[tuple[str, str, int, float], Sequence[float]]) -> Rows:
    device, kind, gpus, size = zip(*medians, strict=True)
    return Rows(
        np.array(device), np.array([find_device(name).architecture for name in device]), np.array(kind),
        np.array(gpus, float), np.array(size, float), np.array([float(np.median(us)) for us in medians.values()]),
    )  # fmt: skip


@dataclass(frozen=True)
class Network:
    """An all-to-all across nodes: what the cards reach, and what the network adds."""

    share: float
    latency_us: float
    errors: Mapping[int, Values]


def judge_network(folder: Path) -> Network:
    """Fit DeepEP's low-latency kernels on 2 and 4 nodes of H100; the errors on these, and on 8, by nodes."""
    inside: dict[tuple[str, float], float] = {}
    seen: defaultdict[tuple[int, str, float], list[float]] = defaultdict(list)
    sizes: dict[tuple[str, float], float] = {}
    for row in _table(folder, "h100_sxm"):
        if row["table"] != "wideep_deepep_ll_perf" or row["num_experts"] != 256 or row["hidden_size"] != 7168:
            continue
        tokens, hidden, chosen = (float(row[name]) for name in ("num_token", "hidden_size", "num_topk"))  # type: ignore[arg-type]
        for way, width in (("dispatch", 1 + _FP8_SCALES), ("combine", 2.0)):
            sizes[way, tokens] = tokens * hidden * chosen * width
            seen[int(row["node_num"]), way, tokens].append(float(row[f"{way}_avg_t_us"]))  # type: ignore[call-overload, arg-type]
    measured = {key: float(np.median(us)) for key, us in seen.items()}
    for (nodes, way, tokens), us in measured.items():
        if nodes == 1:
            inside[way, tokens] = us
    keys = [key for key in measured if key[0] > 1 and key[1:] in inside]

    def errors(share: float, latency_us: float, nodes: Iterable[int]) -> Values:
        own = [key for key in keys if key[0] in nodes]
        predicted = [
            max(inside[key[1:]], sizes[key[1:]] * (1 - 1 / key[0]) / (share * _CARD_GB_PER_S * GIGA) * MEGA)
            + latency_us
            for key in own
        ]
        return np.asarray(np.log(np.array(predicted) / np.array([measured[key] for key in own])))

    grid = [(share / 100, latency_us) for share in range(70, 101) for latency_us in range(2, 31)]
    share, latency_us = min(grid, key=lambda point: float(np.abs(errors(point[0], point[1], (2, 4))).mean()))
    return Network(share, latency_us, {nodes: errors(share, latency_us, (nodes,)) for nodes in (2, 4, 8)})


def evaluate(
    store: Path,
    device: str,  # noqa: ARG001 all devices of the tables are judged
    cache: Path,
    *,
    log: Log = lambda _: None,
    **networks: object,  # noqa: ARG001
) -> list[Comparison]:
    """Tables of errors; the constants of a fit to all rows are written to the cache folder."""
    nccl, engine, pcie = read_rows(store)
    unseen = {}
    for name, rows in (("NCCL", nccl), ("engine", engine)):
        unseen[name] = {
            "fitted": fit(rows, power=POWERS[name]).predict(rows),
            "sizes": _by_halves(rows, POWERS[name]),
            "GPUs": _left_out(rows, rows.gpus, (8.0,), POWERS[name]),
            "devices": _left_out(rows, rows.device, sorted(set(rows.device.tolist())), POWERS[name]),
            "architectures": _left_out(rows, rows.architecture, sorted(set(rows.architecture.tolist())), POWERS[name]),
        }
        log(f"{name}: {len(rows.us)} shapes judged")
    sides = {"NCCL": nccl, "engine": engine}
    tables = [
        Comparison(
            "What a fit has not seen", {
                f"{name}, {split} {'' if split == 'fitted' else 'left out'}".strip(): _errors(us, sides[name].us)
                for name, splits in unseen.items() for split, us in splits.items()
            }, ranked=False, shares=_SHARES, head="collectives",
        )
    ]  # fmt: skip
    for name, rows in sides.items():
        us = unseen[name]["sizes"]
        tables += [
            _by(f"{name} by kind, sizes left out", rows.kind, us, rows.us),
            _by(f"{name} by GPUs, sizes left out", rows.gpus.astype(int).astype(str), us, rows.us),
            _by(f"{name} by size, sizes left out", _bands(rows.size), us, rows.us),
            _by(f"{name} by device, the device left out", rows.device, unseen[name]["devices"], rows.us),
        ]
    host, network = fit(pcie, shared=True), judge_network(store)
    tables.append(_by("PCIe, one L40S host, fitted", pcie.gpus.astype(int).astype(str), host.predict(pcie), pcie.us))
    tables.append(
        Comparison(
            "All-to-all across nodes (DeepEP, H100), fitted on 2 and 4 nodes",
            {f"{nodes} nodes": _summary(np.expm1(own)) for nodes, own in network.errors.items()},
            ranked=False, shares=_SHARES, head="nodes",
        )
    )  # fmt: skip
    cache.mkdir(parents=True, exist_ok=True)
    write_whole(
        cache / "collectives.toml", constants(sides, unseen, pcie, host, network, read_engine_factors(store)).encode()
    )
    log(f"constants of a fit to all rows: {cache / 'collectives.toml'}; PCIe is shared by GPUs^{host.sharing:.2f}")
    return tables


def _by_halves(rows: Rows, power: float) -> Values:
    """Every second size from a fit to the others."""
    parity = np.round(np.log2(rows.size)).astype(int) % 2
    return _left_out(rows, parity, (0, 1), power)


def _left_out(rows: Rows, group: NDArray[np.generic], values: Iterable[object], power: float) -> Values:
    """Predictions of each group from a fit to the rest; NaN where a row is in none."""
    predicted = np.full(len(rows.us), np.nan)
    for value in values:
        own = np.asarray(group == value)
        predicted[own] = fit(rows.where(~own), power=power).predict(rows.where(own))
    return predicted


_SHARES = frozenset(("median", "mean", "90th", "bias"))


def _errors(us: Values, measured: Values) -> dict[str, Cell]:
    known = ~np.isnan(us)
    return _summary(us[known] / measured[known] - 1)


def _summary(errors: Values) -> dict[str, Cell]:
    absolute = np.abs(errors)
    return {
        "count": len(errors), "median": float(np.median(absolute)), "mean": float(absolute.mean()),
        "90th": float(np.quantile(absolute, 0.9)), "bias": float(np.median(errors)),
    }  # fmt: skip


def _by(title: str, group: NDArray[np.str_], us: Values, measured: Values) -> Comparison:
    rows = {name: _errors(us[group == name], measured[group == name]) for name in dict.fromkeys(group.tolist())}
    return Comparison(title, rows, ranked=False, shares=_SHARES, head="")


def _bands(size: Values) -> NDArray[np.str_]:
    names = ["up to 64 KiB", "to 2 MiB", "to 32 MiB", "above 32 MiB"]
    return np.array([next(n for n, (low, high) in zip(names, _BANDS, strict=True) if low < s <= high) for s in size])


def constants(
    sides: Mapping[str, Rows],
    unseen: Mapping[str, Mapping[str, Values]],
    pcie: Rows,
    host: Fit,
    network: Network,
    engine_factors: Mapping[str, Mapping[int, Sequence[float]]],
) -> str:
    """The file that the predictor reads."""
    fits = {name: fit(rows, power=POWERS[name]) for name, rows in sides.items()}
    lines = [
        "# Constants of collectives.py, from aiconfigurator's tables (Apache-2.0); remade by:",
        "# python -m lab evaluate collectives TABLES --cache out, which writes out/collectives.toml",
        "# spread: 90 % of the left-out sizes are within exp(±spread) of the prediction.",
    ]
    for kind, shape in fits["NCCL"].shapes.items():
        own = sides["NCCL"].kind == kind
        spread = _spread(unseen["NCCL"]["sizes"][own], sides["NCCL"].us[own])
        lines += ["", f"[nccl.{kind}]", *_written(shape, spread)]
    for name, factors in fits["NCCL"].factors.items():
        lines += ["", f"[architecture.{name!r}]", f"latency = {factors[0]:.4g}", f"rate = {factors[1]:.4g}"]
        lines += [f"switch = {factors[2]:.4g}"]
    spread = _spread(unseen["engine"]["sizes"], sides["engine"].us)
    lines += ["", "[engine]", *_written(fits["engine"].shapes["all-reduce"], spread)]
    for name, factors in fits["engine"].factors.items():
        lines += ["", f"[engine_architecture.{name!r}]", f"latency = {factors[0]:.4g}", f"rate = {factors[1]:.4g}"]
    for name, by_gpus in engine_factors.items():
        lines += ["", f"[engine_factors.{name}]"]
        lines += [f'gpus_{gpus} = "{" ".join(f"{factor:.3g}" for factor in own)}"' for gpus, own in by_gpus.items()]
    lines += ["", "[pcie]", *_written(host.shapes["all-reduce"], _spread(host.predict(pcie), pcie.us))]
    lines += [f"architectures = {sorted(set(pcie.architecture.tolist()))}".replace("'", '"')]
    all_errors = np.concatenate(list(network.errors.values()))
    lines += ["", "[network]", f"share = {network.share:.4g}", f"latency_us = {network.latency_us:.4g}"]
    lines += [f"spread = {float(np.quantile(np.abs(all_errors), 0.9)):.4g}"]
    return "\n".join(lines) + "\n"


def _spread(us: Values, measured: Values) -> float:
    return float(np.quantile(np.abs(np.log(us / measured)), 0.9))


def _written(shape: Values, spread: float) -> list[str]:
    return [f"{name} = {value:.4g}" for name, value in zip((*_NAMES, "spread"), (*shape, spread), strict=True)]


def write_report(tables: Sequence[Comparison], folder: Path) -> Path:
    """Write the tables as Markdown."""
    text = (
        "# Collectives, predicted and measured\n\n"
        "aiconfigurator's tables: NCCL 2.26 to 2.29 and the all-reduce kernels of serving engines on 2, 4 and 8 GPUs "
        "of a node, DeepEP across nodes. The predictor is `foretell.predictors.llm.collectives`. Remade by "
        "`python -m lab evaluate collectives TABLES --report`."
    )
    write_whole(folder / "collectives.md", page(text, tables))
    return folder / "collectives.md"

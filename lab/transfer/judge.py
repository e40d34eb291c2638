"""Lab: `foretell.predictors.transfer`, judged on GPUs that were left out of its fit.

Every device is predicted by numbers that were fitted without it; the two A100s are left out together. A second table
leaves out whole generations. Beside it: the rule without fitted numbers (``docs/lab/0022-other-gpus.md``), and the
roofline. Networks have a row each run. For pairs of GPUs that ran the same shapes or models, the error of the ratio
between them stands beside that of the best constant ratio, which has seen the pair.

    python -m lab evaluate transfer TABLES --report
"""

from collections.abc import Callable, Mapping
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foretell.devices import find_device
from foretell.features import COLUMNS
from foretell.files import write_whole
from foretell.predictors.roofline import BEST_COMPUTE, BEST_MEMORY, CONSTANTS_FROM, reached
from foretell.predictors.transfer.model import TransferModel
from foretell.training.judging.table import Cell, Comparison, page
from lab.transfer.examples import Examples
from lab.transfer.fit import fit, read, tell_us, write_model

A100S = ("a100-pcie-40gb", "a100-sxm-80gb")
GENERATIONS = {
    "Pascal": ("p4", "p100"), "Volta": ("v100-pcie-32gb",), "Turing": ("t4",),
    "Ampere": (*A100S, "a40", "rtx-3090"), "Ada Lovelace": ("l40s", "rtx-4090"), "Hopper": ("h100-sxm",),
    "Blackwell": ("b200",),
}  # fmt: skip
LEVEL = 0.9
LATENCY_FACTOR = 2.0  # `foretell.predictors.options` widens an interval by it where an option was not fitted
NAMES = {
    "Gemm": "products", "MatMul": "batched products", "Conv": "convolutions", "Softmax": "softmax and layer norms",
    "LayerNormalization": "softmax and layer norms",
}  # fmt: skip
_LEAST_PAIR = 40
_PAIR_SHARES = ("ratio told", "best constant", "order told", "order by the constant")
_AT = {name: position for position, name in enumerate(COLUMNS)}
Values = NDArray[np.float64]
Log = Callable[[str], None]


def kinds_of(examples: Examples) -> NDArray[np.str_]:
    """The kind of each measurement, in words."""
    queries = examples.features[examples.first[:-1], _AT["queries"]]
    kinds = []
    for source, name, number in zip(examples.source, examples.name, queries, strict=True):
        operator = name.split()[0]
        attention = "attention of a prompt" if number > 1 else "attention of one token"
        named = attention if operator == "Attention" else NAMES.get(operator, "element-wise")
        kinds.append(source if source.startswith("timm") else named)
    return np.array(kinds)


def unfitted_us(examples: Examples) -> Values:
    """The rule before anything was fitted."""
    features, source = examples.features.astype(np.float64), find_device(CONSTANTS_FROM)
    compute_us, memory_us = (np.exp2(features[:, _AT[name]]) for name in ("log_compute_us", "log_memory_us"))
    beyond = np.maximum(examples.h200_us - np.maximum(compute_us / BEST_COMPUTE, memory_us / BEST_MEMORY), 0.0)
    starting = np.minimum(beyond, (np.exp2(features[:, _AT["launches"]]) - 1.0) * source.launch_overhead_us)
    devices = [find_device(name) for name in examples.device]
    rows = np.diff(examples.first)
    clock = np.repeat([(source.boost_clock_mhz or 0) / (device.boost_clock_mhz or 1) for device in devices], rows)
    sms = np.repeat([source.sms / device.sms for device in devices], rows)
    peak = np.maximum(examples.own[:, 0] / BEST_COMPUTE, examples.own[:, 1] / BEST_MEMORY)
    return examples.summed(peak + (starting + (beyond - starting) * sms) * clock)


def roofline_us(examples: Examples) -> Values:
    """What the roofline tells."""
    rows = np.diff(examples.first)
    devices = [find_device(name) for name in examples.device]
    compute, memory = (np.repeat(column, rows) for column in zip(*(reached(each) for each in devices), strict=True))
    launch = np.repeat([device.launch_overhead_us for device in devices], rows)
    launches = np.exp2(examples.features[:, _AT["launches"]].astype(np.float64)) - 1.0
    return examples.summed(np.maximum(examples.own[:, 0] / compute, examples.own[:, 1] / memory) + launches * launch)


def left_out(
    examples: Examples, known: Examples, groups: Mapping[str, tuple[str, ...]], log: Log
) -> tuple[Values, Values]:
    """What models tell that have not seen the device: from the network's time on the H200, and from the known one."""
    told = np.full((2, len(examples)), np.nan)
    for name, devices in groups.items():
        model: TransferModel = fit(known, devices)
        rows = np.isin(examples.device, devices)
        told[0, rows], told[1, rows] = (tell_us(model, each.at(rows)) for each in (examples, known))
        log(f"left out {name}")
    return told[0], told[1]


def _off(told: Values, measured: Values) -> Values:
    return np.asarray(np.abs(told / measured - 1.0))


def _is_wide(examples: Examples) -> NDArray[np.bool_]:
    """Whether the interval is widened, because the network was not fitted to images that lie channels-last."""
    return np.char.endswith(examples.source.astype(str), "channels-last")


def _is_network(examples: Examples) -> NDArray[np.bool_]:
    return np.char.startswith(examples.source.astype(str), "timm")


def effective_units(examples: Examples) -> Values:
    """As many units of equal length would vary as much as those of each measurement."""
    spent = examples.h200_us * examples.count
    return np.asarray(
        examples.summed(examples.h200_us) ** 2 / np.add.reduceat(spent**2 / examples.count, examples.first[:-1])
    )


def beyond_doubt(rest: Values, doubt: Values, is_network: NDArray[np.bool_]) -> Values:
    """How far errors go beyond what the measured device's predictor doubts: both add as squares.

    Networks count in full: under autocast, which was not measured at inference, that predictor doubts three times as
    much as of a model in half precision. What is left beyond that says nothing about the latter.
    """
    return np.where(is_network, np.abs(rest), np.sqrt(np.maximum(rest**2 - doubt**2, 0.0)))


def far_off(rest: Values, doubt: Values) -> float:
    """How far off `LEVEL` of a generation's operators are, beyond what is usually doubted.

    The doubt of each would not do: it is largest where errors are, so that nothing would be left of most.
    """
    return float(np.sqrt(max(np.quantile(np.abs(rest), LEVEL) ** 2 - np.median(doubt) ** 2, 0.0)))


def widths_of(rest: Values, units: Values, is_network: NDArray[np.bool_]) -> tuple[float, float]:
    """The half widths of the device and of a unit that hold `LEVEL` of the networks and of the operators."""
    network = float(np.quantile(np.abs(rest[is_network]), LEVEL)) if is_network.any() else 0.0
    operator = float(np.quantile(np.abs(rest[~is_network]), LEVEL)) if (~is_network).any() else network
    # width² = device² + unit² / units, for one unit and for the median network
    many = float(np.median(units[is_network])) if is_network.any() else 1.0
    unit = max(operator**2 - network**2, 0.0) / max(1.0 - 1.0 / many, 1e-9)
    device = max(network**2 - unit / many, 1e-4)
    return float(np.sqrt(device)), float(np.sqrt(unit))


def coverage(examples: Examples, rest: Values, far_width: float) -> NDArray[np.bool_]:
    """Whether an interval holds each measurement, its widths taken from the other devices; ``far_width`` in training.

    One device trained, so that no other tells how far off training steps are.
    """
    training = np.char.startswith(examples.source.astype(str), "timm training")
    units, network, wide = effective_units(examples), _is_network(examples), _is_wide(examples)
    left = beyond_doubt(rest, examples.doubt, network)
    held = np.zeros(len(rest), bool)
    for device in np.unique(examples.device):
        mine, others = examples.device == device, (examples.device != device) & ~wide & ~training
        whole, unit = widths_of(left[others], units[others], network[others])
        wholes = np.where(training[mine], max(far_width, whole), whole)
        width = np.hypot(np.hypot(wholes, unit / np.sqrt(units[mine])), examples.doubt[mine])
        width += wide[mine] * np.log(LATENCY_FACTOR)
        held[mine] = np.abs(rest[mine]) <= width
    return held


def evaluate(
    store: Path, device: str, cache: Path, *, tables: Path, log: Log = lambda _: None, folder: Path | None = None,
    **_: object,
) -> list[Comparison]:  # fmt: skip
    """All tables; ``tables`` is the folder of public ones. Where a ``folder`` is given, the fit is written there."""
    del device
    examples, known = read(tables, store, cache)
    names = {each: (each,) for each in np.unique(examples.device) if each not in A100S} | {"A100s": A100S}
    told, from_known = left_out(examples, known, names, log)
    kinds, network, measured = kinds_of(examples), _is_network(examples), examples.measured_us
    rest = np.log(measured / told)
    several = {name: devices for name, devices in GENERATIONS.items() if len(devices) > 1}
    far = left_out(examples, known, several, log)[0]
    far = np.where(np.isnan(far), told, far)
    # training steps have the width of a new architecture
    plain = ~_is_wide(examples) & ~np.char.startswith(examples.source.astype(str), "timm training")
    left = beyond_doubt(rest, examples.doubt, network)
    whole, unit = widths_of(left[plain], effective_units(examples)[plain], network[plain])
    # a new architecture may be as far off as the worst that was left out
    generations = (~network & np.isin(examples.device, devices) for devices in GENERATIONS.values())
    worst = max(far_off(np.log(measured / far)[mine], examples.doubt[mine]) for mine in generations)
    far_width = max(float(np.sqrt(max(worst**2 - unit**2, 0.0))), whole)
    columns = {
        "transfer": told, "unfitted": unfitted_us(examples), "roofline": roofline_us(examples),
        "from a known H200": from_known,
    }  # fmt: skip
    errors = {name: _off(times, measured) for name, times in columns.items()}
    held = coverage(examples, rest, far_width)
    comparisons = [
        _table("Operators, by device left out", ~network, examples.device, errors, held, rest),
        _table("Networks, by device left out", network, _text(kinds, examples.device), errors, held, rest),
        _table("Operators, by kind and device left out", ~network, _text(kinds, examples.device), errors, held, rest),
        _generations(examples, network, far, errors),
        _pairs(examples, told),
    ]
    if folder is not None:
        card: dict[str, object] = {
            "predictor": "transfer", "devices": sorted(set(examples.device.tolist())),
            "measurements": len(examples), "left_out": _means(comparisons[0]),
        }  # fmt: skip
        log(f"written: {write_model(known, (whole, unit, far_width), card, folder)}")
    return comparisons


def _means(table: Comparison) -> dict[str, Cell]:
    return {name: row["transfer"] for name, row in table.rows.items()}


def _text(kinds: NDArray[np.str_], devices: NDArray[np.str_]) -> NDArray[np.str_]:
    return np.array([f"{kind}, {device}" for kind, device in zip(kinds, devices, strict=True)])


def _table(
    title: str, keep: NDArray[np.bool_], rows: NDArray[np.str_], errors: Mapping[str, Values],
    held: NDArray[np.bool_], rest: Values,
) -> Comparison:  # fmt: skip
    found: dict[str, dict[str, Cell]] = {}
    for name in np.unique(rows[keep]):
        at = keep & (rows == name)
        found[str(name)] = {
            "count": int(at.sum()), **{each: float(values[at].mean()) for each, values in errors.items()},
            "median": float(np.median(errors["transfer"][at])), "measured / told": float(np.exp(np.median(rest[at]))),
            "in the interval": float(held[at].mean()),
        }  # fmt: skip
    columns = tuple(next(iter(found.values())))
    found["mean of rows"] = {
        name: None if name == "count" else float(np.mean([row[name] for row in found.values()])) for name in columns
    }
    shares = frozenset({*errors, "median", "in the interval"})
    return Comparison(title, found, ranked=False, shares=shares, head="left out")


def _generations(
    examples: Examples, network: NDArray[np.bool_], far: Values, errors: Mapping[str, Values]
) -> Comparison:
    found: dict[str, dict[str, Cell]] = {}
    for name, devices in GENERATIONS.items():
        mine = np.isin(examples.device, devices)
        row: dict[str, Cell] = {}
        for kind, at in (("operators", mine & ~network), ("networks", mine & network)):
            if at.any():
                row[kind] = float(_off(far, examples.measured_us)[at].mean())
                row[f"{kind}, unfitted"] = float(errors["unfitted"][at].mean())
        found[name] = row
    shares = frozenset({"operators", "networks", "operators, unfitted", "networks, unfitted"})
    return Comparison("A generation left out", found, ranked=False, shares=shares, head="left out")


def _pairs(examples: Examples, told: Values) -> Comparison:
    """The ratio between two GPUs, told and as the constant that is best for the pair; and which one is faster."""
    found: dict[str, dict[str, Cell]] = {}
    wins = []
    for source in np.unique(examples.source):
        devices = np.unique(examples.device[examples.source == source])
        by = {
            each: _by_name(examples, told, (examples.source == source) & (examples.device == each)) for each in devices
        }
        for one, other in combinations(devices, 2):
            shared = sorted(set(by[one]) & set(by[other]))
            if len(shared) < _LEAST_PAIR:
                continue
            true = np.log([by[one][name][0] / by[other][name][0] for name in shared])
            mine = np.log([by[one][name][1] / by[other][name][1] for name in shared])
            off, constant = (float(np.abs(np.exp(each - true) - 1).mean()) for each in (mine, np.median(true)))
            wins.append(off < constant)
            found[f"{source}: {one} / {other}"] = {
                "count": len(shared), "ratio told": off, "best constant": constant,
                "order told": float((np.sign(mine) == np.sign(true)).mean()),
                "order by the constant": float((np.sign(np.median(true)) == np.sign(true)).mean()),
            }  # fmt: skip
    ordered = dict(sorted(found.items()))
    ordered["mean of rows"] = {name: float(np.mean([row[name] for row in found.values()])) for name in _PAIR_SHARES}
    title = f"The ratio between two GPUs: closer than the best constant in {sum(wins)} of {len(wins)}"
    return Comparison(title, ordered, ranked=False, shares=frozenset(_PAIR_SHARES), head="pair")


def _by_name(examples: Examples, told: Values, keep: NDArray[np.bool_]) -> dict[str, tuple[float, float]]:
    return dict(
        zip(examples.name[keep].tolist(), zip(examples.measured_us[keep], told[keep], strict=True), strict=True)
    )


def write_report(tables: list[Comparison], folder: Path) -> Path:
    """Write the page of the tables."""
    text = (
        "# GPUs that were never measured\n\n`transfer`, the default there, against public measurements of operators "
        "(NeuSight, aiconfigurator, Vidur) and networks (timm: autocast, batches of up to 1024). **Each device is "
        "told by numbers that were fitted without it.** Mean errors; *unfitted* is the rule before anything was "
        "fitted, *from a known H200* starts from a measured time on an H200 where a table has one. Intervals have "
        "their widths from the other devices. Attention below 60 µs on an H200 is left out: serving frameworks do "
        "more there than the attention. Remade by `python -m lab evaluate transfer TABLES --report` "
        "([what was tried](../docs/lab/0035-transfer.md))."
    )
    file = folder / "other-gpus.md"
    write_whole(file, page(text, tables))
    return file

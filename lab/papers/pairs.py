"""Lab: claims about batch, length, precision and mode that need no predictor: pairs of measurements that differ in one.

``python -m lab.papers.pairs`` prints, for each claim, how many pairs of the store there are, in how many it holds, and
the median ratio of the second to the first. A pair is two measurements of one model on one device that differ in the
batch size (the next larger one), the length of the input, or the dtype, and in nothing else.
"""

import argparse
import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from foretell.training.examples.workloads import measured_rows

Row = Mapping[str, Any]
_FIELDS = ("spec", "mode", "optimizer", "dtype", "batch_size", "input_shape", "channels_last")


@dataclass(frozen=True)
class Claim:
    """What is said of the second of a pair: the ratio of a quantity to that of the first is above or below 1."""

    text: str
    pairs: str
    quantity: Callable[[Row], float | None]
    rises: bool
    chosen: Callable[[Row], bool]


def _throughput(row: Row) -> float | None:
    return row["batch_size"] / row["latency_ms"] if row["latency_ms"] else None


def _energy_a_sample(row: Row) -> float | None:
    return row["energy_j"] / row["batch_size"] if row["energy_j"] else None


def _of(name: str) -> Callable[[Row], float | None]:
    return lambda row: row[name]


def _is_text(row: Row) -> bool:
    return row["spec"].startswith("hf:") and "x" not in row["input_shape"]


def _is_step(row: Row) -> bool:
    return bool(row["mode"] == "training")


def _is_forward(row: Row) -> bool:
    return row["mode"] in ("inference", "prefill")


CLAIMS = (
    Claim("a larger batch has a higher throughput", "batch", _throughput, rises=True, chosen=_is_forward),
    Claim("… language models", "batch", _throughput, rises=True, chosen=_is_text),
    Claim("a larger batch needs more memory", "batch", _of("memory_mib"), rises=True, chosen=_is_forward),
    Claim("a larger batch needs less energy a sample", "batch", _energy_a_sample, rises=False, chosen=_is_forward),
    Claim("a longer sequence has a lower throughput", "length", _throughput, rises=False, chosen=_is_text),
    Claim("a longer sequence needs more memory", "length", _of("memory_mib"), rises=True, chosen=_is_text),
    Claim("fp16 has a higher throughput than fp32", "fp16", _throughput, rises=True, chosen=_is_forward),
    Claim("fp16 needs less memory than fp32", "fp16", _of("memory_mib"), rises=False, chosen=_is_forward),
    Claim("fp16 needs less energy a sample than fp32", "fp16", _energy_a_sample, rises=False, chosen=_is_forward),
    Claim("mixed precision trains faster than single", "bf16", _throughput, rises=True, chosen=_is_step),
    Claim("mixed precision trains with less memory", "bf16", _of("memory_mib"), rises=False, chosen=_is_step),
    Claim("mixed precision trains with less power", "bf16", _of("power_w"), rises=False, chosen=_is_step),
)
# on the grid of encoders (`lab.campaigns.serving.encoder_grid`): NF4 by bitsandbytes against fp16
CLAIMS_4_BITS = (
    Claim("4 bits need less memory than fp16", "nf4", _of("memory_mib"), rises=False, chosen=_is_forward),
    Claim("4 bits take longer than fp16", "nf4", _of("latency_ms"), rises=True, chosen=_is_forward),
    Claim("4 bits need more energy than fp16", "nf4", _of("energy_j"), rises=True, chosen=_is_forward),
)
_BASES = {"nf4": "fp16"}  # what a precision is compared with; others with single precision


def ratios(rows: Sequence[Row], claim: Claim) -> list[float]:
    """The ratio of every pair for which the quantity was measured twice."""
    found = []
    for first, second in _pairs([row for row in rows if claim.chosen(row)], claim.pairs):
        one, other = claim.quantity(first), claim.quantity(second)
        if one and other:
            found.append(other / one)
    return found


def _pairs(rows: Sequence[Row], kind: str) -> Iterator[tuple[Row, Row]]:
    varied = {"batch": "batch_size", "length": "input_shape"}.get(kind, "dtype")
    groups: defaultdict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[tuple(row.get(name) for name in _FIELDS if name != varied)].append(row)
    for members in groups.values():
        if varied == "dtype":
            singles = [row for row in members if row["dtype"] == _BASES.get(kind, "fp32")]
            yield from ((single, row) for single in singles for row in members if row["dtype"] == kind)
        else:
            ordered = sorted(members, key=lambda row: int(str(row[varied]).split("x")[-1]))
            yield from pairwise(ordered)


def encoder_rows(store: Path) -> list[Row]:
    """The grid of encoders as rows of measurements."""
    plain = {"mode": "inference", "optimizer": "", "energy_j": None}
    lines = [
        line
        for file in sorted(store.glob("h200/*/encoders*.jsonl.gz"))
        for line in gzip.decompress(file.read_bytes()).splitlines()
    ]
    return [{**plain, **(row := json.loads(line)), "input_shape": str(row["tokens"])} for line in lines]


def main() -> None:
    """Print one line for each claim."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    store = parser.parse_args().store
    rows = [row for row in measured_rows(store).values() if row["latency_source"] == "cuda-graph"]
    encoders = [row for row in encoder_rows(store) if row.get("latency_ms")]
    for claim, own in ((claim, own) for claims, own in ((CLAIMS, rows), (CLAIMS_4_BITS, encoders)) for claim in claims):
        found = ratios(own, claim)
        holds = sum((ratio > 1) == claim.rises for ratio in found)
        middle = f"{median(found):.3g}" if found else "–"
        sys.stdout.write(f"{claim.text}: {holds} of {len(found)} pairs, median ratio {middle}\n")


if __name__ == "__main__":
    main()

"""Lab: how much of their error two predictions of one network share.

    python -m lab.campaigns.improvements.correlations data

Pairs of measured workloads differ in one setting: batch size, precision or memory format. Networks of judging fields
were seen by no predictor, so that their errors are honest; all others were, and their errors are too small, but their
correlation tells something where the judging fields have no pairs. Compiled workloads are predicted by models that have
not seen their architecture.
"""

import itertools
import math
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from foretell.devices import find_device
from foretell.predictors import find_predictor
from foretell.profiling.zoos.wild.zoo import judges
from foretell.records import Target
from foretell.training.compiled import MODEL, judge, read_compiled
from foretell.training.examples.graphs import GraphKey, read_graphs
from foretell.training.examples.workloads import Row, measured_rows, workload_of

_DEVICE = "h200"
_SEEN = 180  # networks that were seen: enough for a correlation
_PER_NETWORK = 8


@dataclass(frozen=True, slots=True)
class Error:
    """The error of one prediction, as a logarithm, and half of the width of its interval."""

    batch_size: int
    dtype: str
    channels_last: bool
    error: float
    width: float


def kind_of(one: Error, other: Error) -> str:
    """The setting in which two workloads differ; "" where it is none or more than one."""
    differing = {
        "batch": one.batch_size != other.batch_size,
        "precision": one.dtype != other.dtype,
        "layout": one.channels_last != other.channels_last,
    }
    names = [name for name, differs in differing.items() if differs]
    return names[0] if len(names) == 1 else ""


def correlation(pairs: Sequence[tuple[Error, Error]]) -> tuple[float, float, float]:
    """The correlation of errors over widths, the mean error of the ratio, and how often its interval holds."""
    errors, widths = (np.array([[getattr(e, name) for e in pair] for pair in pairs]) for name in ("error", "width"))
    scores = errors / widths
    shared = float((scores[:, 0] * scores[:, 1]).mean() / np.sqrt((scores**2).mean(0).prod()))
    difference = errors[:, 0] - errors[:, 1]
    half = np.sqrt((widths**2).sum(1) - 2 * shared * widths.prod(1))
    return shared, float(np.abs(np.expm1(difference)).mean()), float((np.abs(difference) <= half).mean())


def errors_of(store: Path) -> Iterator[tuple[bool, list[Error]]]:
    """For each network that was measured in several settings: whether it only judges, and its errors."""
    by_key: defaultdict[GraphKey, list[Row]] = defaultdict(list)
    for row in measured_rows(store).values():
        if row["mode"] == "inference" and row["latency_ms"]:
            by_key[GraphKey.of(row)].append(row)
    several = [key for key, rows in by_key.items() if len(rows) > 1]
    judging = [key for key in several if judges(str(by_key[key][0]["family"] or ""))]
    # seen networks with options first: the judging fields have few of those
    seen = sorted(set(several) - set(judging), key=lambda key: not any(r.get("channels_last") for r in by_key[key]))
    predictor, target = find_predictor(None, _DEVICE), Target(find_device(_DEVICE))
    for key, _, graph in read_graphs(store, [*judging, *seen[:_SEEN]]):
        errors = []
        for row in by_key[key][:_PER_NETWORK]:
            latency = predictor.predict(workload_of(row, graph, target)).latency_ms
            assert latency is not None
            error, width = math.log(row["latency_ms"] / latency.value), math.log(latency.high / latency.low) / 2
            errors.append(Error(row["batch_size"], row["dtype"], bool(row.get("channels_last")), error, width))
        yield key in judging, errors


def main(arguments: Sequence[str]) -> int:
    """Print the correlation by kind of change."""
    store = Path(arguments[0])
    pairs: defaultdict[tuple[str, str], list[tuple[Error, Error]]] = defaultdict(list)
    for is_judging, errors in errors_of(store):
        for one, other in itertools.combinations(errors, 2):
            if kind := kind_of(one, other):
                pairs["unseen" if is_judging else "seen", kind].append((one, other))
    compiled = read_compiled(store, _DEVICE, Path("out/training"))
    predicted = judge(compiled)[MODEL]
    for row, eager, after, seen in zip(compiled.rows, compiled.predicted_eager_ms, predicted, compiled.seen):
        both = (math.log(row["eager_ms"] / eager), math.log(row["compiled_ms"] / after))
        state = ("seen" if seen else "unseen", "compiler")
        pairs[state].append(tuple(Error(1, "", False, error, 1.0) for error in both))  # type: ignore[arg-type]
    for (seen_name, kind), found in sorted(pairs.items()):
        shared, error, held = correlation(found)
        sys.stdout.write(f"{seen_name} {kind}: {len(found)} pairs, r = {shared:.2f}, gain off by {error:.1%}")
        sys.stdout.write(f", interval holds {held:.0%}\n" if kind != "compiler" else "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

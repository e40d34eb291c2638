"""Lab: figure 7 of DNN-occu: does a group slow down as its summed occupancy grows, and sharply above 100 %?

``python -m lab.papers.dnn_occu.slowdowns`` takes groups that ran together under MPS, whole GPU, all of whose members
have counted occupancies, and prints the mean slowdown of a group by the sum, and the rank correlation.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from foretell.datasets.parquet_files import find_files, read_columns

EDGES = (0.0, 25.0, 50.0, 75.0, 100.0, 150.0, 300.0)
_MEMBERS = (
    "group_id", "campaign_id", "method", "members", "workload_id", "percentage", "solo_ms", "together_ms", "status",
)  # fmt: skip
Row = Mapping[str, Any]


def groups(members: Iterable[Row], occupancies: Mapping[str, float]) -> list[tuple[float, float]]:
    """The summed occupancy and the mean slowdown of every whole group."""
    together: defaultdict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in members:
        if row["method"] == "mps" and row.get("percentage") in (None, 100.0) and row["status"] == "ok":
            together[row["campaign_id"], row["group_id"]].append(row)
    found = []
    for rows in together.values():
        known = [occupancies.get(row["workload_id"]) for row in rows]
        if len(rows) == rows[0]["members"] and None not in known:
            slowdowns = [row["together_ms"] / row["solo_ms"] for row in rows]
            found.append((sum(value for value in known if value is not None), fmean(slowdowns)))
    return found


def rank_correlation(pairs: Sequence[tuple[float, float]]) -> float:
    """Spearman's: the correlation of the ranks.

    >>> rank_correlation([(1, 10), (2, 30), (3, 20)])
    0.5
    """
    ranks = [np.argsort(np.argsort(column)) for column in zip(*pairs, strict=True)]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    store, members, occupancies = parser.parse_args().store, list[Row](), dict[str, float]()
    for file in find_files(store):
        if file.table == "colocation":
            members += read_columns(file, _MEMBERS).to_pylist()
        elif file.table == "occupancy":
            for row in read_columns(file, ("workload_id", "occupancy_weighted", "status")).to_pylist():
                if row["status"] == "ok":
                    occupancies[row["workload_id"]] = row["occupancy_weighted"]
    pairs = groups(members, occupancies)
    sys.stdout.write(f"{len(pairs)} groups, rank correlation {rank_correlation(pairs):.2f}\n")
    for low, high in pairwise(EDGES):
        own = [slowdown for occupancy, slowdown in pairs if low <= occupancy < high]
        if own:
            sys.stdout.write(f"{low:g} to {high:g} %: {len(own)} groups, slowdown {median(own):.2f} in the median\n")


if __name__ == "__main__":
    main()

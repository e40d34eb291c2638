"""Lab: the file that DIPPM's arms are fitted to, made from a store: ``python -m lab.papers.dippm.prepare FILE``."""

import argparse
import sys
from collections import Counter
from pathlib import Path

from foretell.training.examples.samples import read_samples
from lab.judging.graph_set import read_graph_set
from lab.papers.dippm.sets import SUBSETS, family_of, read_set, subset, write_set


def main() -> None:
    """Write the file, and say what is in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--device", default="h200")
    parser.add_argument("--cache", type=Path, default=Path("out/training"))
    options = parser.parse_args()
    samples = read_samples(options.store, options.device, options.cache, _say)
    write_set(samples, read_graph_set(samples, options.store, options.device, options.cache, _say), options.file)
    rows = read_set(options.file)
    for name in SUBSETS:
        _say(f"{name}: {len(subset(rows, name))} workloads")
    families = Counter(family_of(row.spec) for row in subset(rows, "families"))
    _say(", ".join(f"{family} {number}" for family, number in families.most_common()))


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    main()

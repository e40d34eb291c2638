"""Lab: `foretell.predictors.transfer.clock.limited_share` against GPUs whose power limit was lowered step by step.

Tables of J. You et al., Zeus (NSDI 2023): training on a V100, an A40, an RTX 6000 and a P100, each network and batch
size at several limits. What a run draws at the highest limit is given; the time at every lower one is told.

    python -m lab.transfer.power_limits TABLES
"""

import sys
from pathlib import Path

import click
import numpy as np
import pandas as pd  # type: ignore[import-untyped]

from foretell.predictors.transfer.clock import limited_share

RATED_W = {"v100": 250.0, "a40": 300.0, "rtx6000": 260.0, "p100": 250.0}
_LEAST_POWER = 0.4  # of the maker's limit: who draws less is never limited
_LEAST_LIMIT = 0.35


def judge(tables: Path) -> pd.DataFrame:
    """A row for each run at a limit below what it draws: GPU, time over that without a limit, measured and told."""
    found = []
    for gpu, rated_w in RATED_W.items():
        table = pd.read_parquet(tables / "zeus" / f"trace_summary_power_{gpu}.parquet")
        for _, run in table.groupby(["dataset", "network", "batch_size", "optimizer"]):
            by_limit = run.groupby("power_limit")[["time_per_epoch", "average_power"]].median()
            top = by_limit.iloc[-1]
            if top["average_power"] < _LEAST_POWER * rated_w:
                continue
            for limit_w, row in by_limit.iloc[:-1].iterrows():
                if _LEAST_LIMIT * rated_w <= limit_w < top["average_power"]:
                    told = 1.0 / limited_share(float(top["average_power"]), float(limit_w), rated_w)
                    found.append((gpu, row["time_per_epoch"] / top["time_per_epoch"], told))
    return pd.DataFrame(found, columns=["gpu", "measured", "told"])


def main() -> None:
    """Print a line for each GPU."""
    runs = judge(Path(sys.argv[1]))
    for name, rows in [*runs.groupby("gpu"), ("all", runs)]:
        off, ignored = np.abs(rows["told"] / rows["measured"] - 1), np.abs(1 / rows["measured"] - 1)
        width = np.quantile(np.abs(np.log(rows["told"] / rows["measured"])), 0.9)
        click.echo(f"{name:8} {len(rows):4} runs  {off.mean():.1%} off, ignored {ignored.mean():.1%}; 90 % {width:.2f}")


if __name__ == "__main__":
    main()

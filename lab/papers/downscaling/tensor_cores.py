"""Lab: tensor cores: their share of the time of kernels, by name: ``python -m lab.papers.downscaling.tensor_cores``.

The thesis (section 3.4.2) has a profiler's "tensor-core utilisation" of training. A name tells whether a kernel uses
them: cuBLAS and cuDNN write the instruction or the number format into it. Two shares are printed, of the time of all
kernels and of the kernels of products, convolutions and attention alone, which could use them. Neither is how busy the
tensor cores are while such a kernel runs: only counters tell that.
"""

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from foretell.datasets.parquet_files import TableFile, find_files, read_columns
from foretell.predictors.kernels.classes import kernel_class
from foretell.training.examples.kernel_labels import kernel_names
from foretell.training.examples.workloads import measured_rows

# instructions (hmma, gmma, 1688, 16816), what CUTLASS calls them, TF32, kernels of Hopper, attention in 16 bits
_TENSOR = re.compile(
    r"nvjet|tensorop|tf32|[hi]mma|gmma|1688|16816|flash_(fwd|bwd)|flash::|sdpa|fmha_cutlass|xmma_\w*?_(bf16bf16|f16f16)_|s884|h884"
)
_PLAIN = re.compile(r"simt|ffma|sgemm|f32f32_f32f32")
# a depthwise convolution is no matrix product, and the cell of a recurrent layer is arithmetic on single elements
_CONTRACTION = re.compile(r"^(product|convolution(?!-depthwise)|attention|recurrent-persistent)")
_UNET = "synthetic:unet?base=56&classes=2"


@dataclass(frozen=True)
class Shares:
    """Microseconds of one workload: all kernels, contractions, and those on tensor cores."""

    all_us: float
    contraction_us: float
    tensor_us: float

    @property
    def of_all(self) -> float:
        """Tensor cores' share of the time of all kernels."""
        return self.tensor_us / self.all_us

    @property
    def of_contractions(self) -> float:
        """Tensor cores' share of the time of kernels that could use them."""
        return self.tensor_us / self.contraction_us if self.contraction_us else 0.0


def uses_tensor_cores(name: str) -> bool:
    """Whether the name of a kernel says that it uses tensor cores.

    >>> uses_tensor_cores("nvjet_sm90_tst_64x8_64x16_2x4_h_bz_TNT"), uses_tensor_cores("cutlass_80_simt_sgemm_64x64")
    (True, False)
    """
    return bool(_TENSOR.search(name)) and not re.search(r"simt|ffma", name)


def is_contraction(name: str) -> bool:
    """Whether a kernel is a product, a convolution, attention or a whole recurrent layer."""
    return bool(_CONTRACTION.search(kernel_class(name).algorithm))


def read_shares(store: Path) -> dict[str, Shares]:
    """The shares of every traced workload of a store; of one that was traced twice, the first trace."""
    files, found = find_files(store), dict[str, Shares]()
    for file in files:
        if file.table == "kernels":
            for workload_id, spent in _spent(file, kernel_names(files, file.path.parent)):
                found.setdefault(workload_id, shares_of(spent))
    return found


def _spent(file: TableFile, names: Mapping[int, str]) -> Iterator[tuple[str, Mapping[str, float]]]:
    """By workload the microseconds of each kernel's name, of its first campaign in the file."""
    table = read_columns(file, ("workload_id", "campaign_id", "name_id", "duration_us"))
    keys = [name for name in ("workload_id", "campaign_id", "name_id") if name in table.column_names]
    # one thread keeps the order of the groups, which decides which campaign comes first
    columns = table.group_by(keys, use_threads=False).aggregate([("duration_us", "sum")]).to_pydict()
    campaigns = columns.get("campaign_id") or [""] * len(columns["workload_id"])
    own: defaultdict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for workload_id, campaign, name, us in zip(
        columns["workload_id"], campaigns, columns["name_id"], columns["duration_us_sum"], strict=True
    ):
        own[workload_id, campaign][names[name]] = us
    yield from ((workload_id, spent) for (workload_id, _), spent in own.items())


def shares_of(spent: Mapping[str, float]) -> Shares:
    """The shares of kernels, given their times by name."""
    contraction_us = sum(us for name, us in spent.items() if is_contraction(name))
    tensor_us = sum(us for name, us in spent.items() if is_contraction(name) and uses_tensor_cores(name))
    return Shares(sum(spent.values()), contraction_us, tensor_us)


def unknown_names(store: Path) -> Counter[str]:
    """Contractions whose names say neither tensor cores nor plain arithmetic: counted as plain."""
    files, unknown = find_files(store), Counter[str]()
    for file in files:
        if file.table == "kernels":
            for _, spent in _spent(file, kernel_names(files, file.path.parent)):
                for name, us in spent.items():
                    if is_contraction(name) and not uses_tensor_cores(name) and not _PLAIN.search(name):
                        unknown[name] += us  # type: ignore[assignment]
    return unknown


def lines(store: Path) -> Iterator[str]:
    """The table, line by line, as Markdown."""
    shares, rows = read_shares(store), measured_rows(store)
    groups: defaultdict[tuple[str, str, str], list[Shares]] = defaultdict(list)
    for workload_id, own in shares.items():
        row = rows.get(workload_id)
        if row is None or not own.contraction_us or row["spec"].startswith("synthetic:operators"):
            continue
        groups["networks", row["mode"], row["dtype"]].append(own)
        if row["spec"].startswith(_UNET):
            groups[f"the U-Net, batch {row['batch_size']}", row["mode"], row["dtype"]].append(own)
    yield "| workloads | mode | dtype | number | of all kernels, median % | of contractions, median % |"
    yield "|---|---|---|---:|---:|---:|"
    for (what, mode, dtype), group in sorted(groups.items()):
        shown = (what, mode, dtype, str(len(group)), _middle(group, "of_all"), _middle(group, "of_contractions"))
        yield "| " + " | ".join(shown) + " |"


def _middle(own: Sequence[Shares], name: str) -> str:
    return f"{100 * median(getattr(shares, name) for shares in own):.0f}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=Path, default=Path("data"))
    parser.add_argument("--unknown", action="store_true", help="Show names that say neither.")
    options = parser.parse_args()
    if options.unknown:
        for name, us in unknown_names(options.store).most_common(40):
            sys.stdout.write(f"{us:12.0f} {kernel_class(name)} | {name[:150]}\n")
        return
    for line in lines(options.store):
        sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    main()

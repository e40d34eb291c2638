"""Lab: numbers of the seeds that follow from other numbers of the seeds: ``python -m lab.papers.arithmetic``.

No measurement is needed to check them. A line says what is printed, what follows, and whether the two agree when the
second is rounded as the first is.
"""

import sys
from dataclasses import dataclass

# Table 6 of LILOU, mean and root mean square of the errors on an A10G, by family, and the variants of Table 3
LILOU_A10G = {
    "BERT": (3.44, 4.48, 2), "ConvNeXt": (8.68, 9.92, 4), "DenseNet": (7.51, 9.84, 4), "EfficientNet": (4.11, 5.44, 8),
    "GPT2": (8.17, 10.91, 2), "GoogLeNet": (8.17, 10.91, 1), "MNASNet": (7.53, 6.66, 4), "MobileNet": (4.21, 5.31, 3),
    "RegNet": (11.11, 14.97, 15), "ResNet": (14.81, 17.32, 4), "ResNeXt": (4.75, 6.06, 1),
    "SqueezeNet": (13.87, 17.01, 2), "Wide ResNet": (6.91, 8.85, 1),
}  # fmt: skip
TRAPPM_STEP = (8.09, 6.69, 6.81, 7.98, 9.20, 13.02, 11.26, 9.01, 10.74, 14.79, 7.06)
TRAPPM_MEMORY = (4.95, 3.52, 3.55, 4.53, 5.28, 4.41, 4.65, 5.09, 10.48, 3.92, 3.78)
TRAPPM_LABELS = (466, 566, 795, 1613, 377, 821, 421, 937, 235, 439, 866)
DIPPM_GRAPHS = (1729, 1001, 1591, 1152, 1536, 547, 520, 768, 768, 896)


@dataclass(frozen=True)
class Sum:
    """A printed number and what it should be; ``decimals`` are those that are printed."""

    source: str
    text: str
    printed: float
    follows: float
    decimals: int = 1

    @property
    def agrees(self) -> bool:
        """Whether they differ by no more than one unit of the last printed digit."""
        return abs(self.follows - self.printed) <= 10.0**-self.decimals


def less(before: float, after: float) -> float:
    """By how many per cent ``after`` is less.

    >>> less(200, 150)
    25.0
    """
    return 100 * (1 - after / before)


def _mean(values: tuple[float, ...]) -> float:
    return sum(values) / len(values)


def _mean_lilou() -> float:
    return _mean(tuple(error for error, _, _ in LILOU_A10G.values()))


def _weighted_lilou() -> float:
    variants = sum(count for _, _, count in LILOU_A10G.values())
    return sum(error * count for error, _, count in LILOU_A10G.values()) / variants


SUMS = (
    Sum("D Table 2", "graphs in all", 10_508, sum(DIPPM_GRAPHS), 0),
    Sum("D Table 5", "densenet121, batch 8: 3,272 MB are 58 % of 5 GB", 58, 100 * 3272 / 5000, 0),
    Sum("D Table 5", "the same: 15 % of 20 GB", 15, 100 * 3272 / 20_000, 0),
    Sum("D Table 5", "convnext_base, batch 4: 1,652 MB are 61 % of 5 GB", 61, 100 * 1652 / 5000, 0),
    Sum("D Table 5", "convnext_base, batch 128: 30,996 MB are 77 % of 40 GB", 77, 100 * 30_996 / 40_000, 0),
    Sum("L Table 6", "mean over A10G's families, each once", 8.66, _mean_lilou(), 2),
    Sum("L Table 6", "mean over A10G's families, by variants", 8.66, _weighted_lilou(), 2),
    Sum("O Table VI", "makespan, occu-packing against slots", 19.71, less(133.10, 106.87), 2),
    Sum("O Table VI", "utilisation, occu-packing against slots", 31.45, 100 * (61.23 / 46.58 - 1), 2),
    Sum("T Table 3.3", "A100: mixed over single precision", 2.7, 0.10 / 0.037),
    Sum("T Table 3.3", "A100 mixed over V100 single", 2.4, 0.09 / 0.037),
    Sum("T Table 3.4", "GCP, one A100, ten trainings of 70 epochs", 13.03, 2.93 * 10 * 70 * 22.88 / 3600, 2),
    Sum("T Table 3.4", "AWS, p4d.24xlarge (8 GPUs, 4 at work)", 120.92, 32.77 * 10 * 70 * 18.94 / 3600, 0),
    Sum("T §3.4.5", "10,000 inferences on c5.4xlarge", 9.724, 0.68 * 1e4 * 5.15 / 3600, 2),
    Sum("T §3.4.5", "10,000 inferences on GCP's A100", 0.301, 2.93 * 1e4 * 0.037 / 3600, 3),
    Sum("T §5.5.7", "memory, TraPPM against NNLQP", 40.6, less(8.29, 4.92)),
    Sum("T §5.5.7", "step time, TraPPM against NNLQP", 34.2, less(14.47, 9.51)),
    Sum("T Table 5.4", "step time, plain mean of eleven families", 9.51, _mean(TRAPPM_STEP), 2),
    Sum("T Table 5.4", "memory, plain mean of eleven families", 4.92, _mean(TRAPPM_MEMORY), 2),
    Sum("T Table 5.1", "labelled graphs of an A100", 7536, sum(TRAPPM_LABELS), 0),
    Sum("T §5.6.2", "step time, RMSE with transfer", 55.03, less(44.59, 20.05), 2),
    Sum("T §5.6.2", "memory, RMSE with transfer", 48.76, less(1176.90, 603.03), 2),
    Sum("T §5.6.4", "EfficientNet-B6, 2e5 steps of 350 ms, USD", 57.04, 0.350 * 2e5 / 3600 * 2.934, 2),
    Sum("T §6.7", "throughput, trees against network", 68.81, less(17.60, 5.49), 2),
    Sum("T §6.7", "memory, trees against network", 80.85, less(9.45, 1.81), 2),
    Sum("T §6.7", "energy, trees against network", 88.21, less(53.18, 6.27), 2),
    Sum("T §7.5.2", "mean error, Mistral against the graph network", 8.26, less(12.96, 11.89), 2),
    Sum("T §7.5.2", "points of Acc(10 %)", 8.8, 60.49 - 51.72),
)  # fmt: skip


def impossible() -> list[str]:
    """Families whose root mean square is below their mean, which no set of numbers has."""
    return [family for family, (mean, root, _) in LILOU_A10G.items() if root < mean]


def main() -> None:
    """Print one line for each number."""
    for entry in SUMS:
        verdict = "agrees" if entry.agrees else "DIFFERS"
        sys.stdout.write(f"{verdict}: {entry.source}, {entry.text}: printed {entry.printed:g}, {entry.follows:.5g}\n")
    sys.stdout.write(f"RMSPE below MAPE in Table 6 of LILOU: {', '.join(impossible())}\n")
    twins = LILOU_A10G["GPT2"][:2] == LILOU_A10G["GoogLeNet"][:2]
    sys.stdout.write(f"GPT2 and GoogLeNet have the same errors there: {'yes' if twins else 'no'}\n")


if __name__ == "__main__":
    main()

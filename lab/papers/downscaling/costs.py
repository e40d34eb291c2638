"""Lab: the worked report of chapter 3: the U-Net's epochs, several GPUs, and prices: ``…downscaling.costs``.

Nothing here is measured: foretell predicts the network of `lab.papers.downscaling.network`, which it has never seen, on
the thesis' GPUs, and the thesis' own measurements stand beside it. They are TensorFlow's, with its input pipeline.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from foretell import Prediction, predict
from foretell.errors import DataError
from foretell.files import write_whole
from foretell.units import KILO

MODEL = f"{Path(__file__).with_name('network.py')}:build"
REPORT = Path("reports/downscaling.md")
STEPS_IN_TIME = 20_496  # of the training data
SECONDS_AN_HOUR = 3600
INFERENCES = 10_000
CORES_C5 = 8  # of 16 threads


@dataclass(frozen=True)
class Epoch:
    """A row of Table 3.2: the mean seconds of an epoch, and the mean power, on one GPU."""

    device: str
    batch: int
    dtype: str
    seconds: float
    power_w: float


# the columns of Table 3.2: V100 and A100, batch 32 and 64, single and mixed precision
EPOCHS = (
    Epoch("v100", 32, "fp32", 40.07, 259.13), Epoch("v100", 32, "fp16", 26.34, 244.14),
    Epoch("v100", 64, "fp32", 38.66, 252.35), Epoch("v100", 64, "fp16", 24.78, 238.49),
    Epoch("a100", 32, "fp32", 21.53, 116.01), Epoch("a100", 32, "fp16", 18.52, 98.73),
    Epoch("a100", 64, "fp32", 20.39, 116.99), Epoch("a100", 64, "fp16", 16.98, 107.51),
)  # fmt: skip
# section 3.4.5: mean seconds of an epoch on one and on four GPUs, mixed precision, a batch for each GPU
PARALLEL = {"v100": {1: 32.8, 4: 22.3}, "a100": {1: 22.88, 2: 19.3, 4: 18.94}}
# section 3.4.5, USD an hour: of one A100 at GCP, and of a c5.4xlarge
PRICES = {"a100": 2.93, "v100": 2.48, "c5.4xlarge": 0.68}


def predicted(device: str, dtype: str, batch: int, mode: str = "inference", gpus: int = 1) -> Prediction:
    """What foretell says of the network."""
    optimizer = "adamw" if mode == "training" else None
    return predict(
        MODEL, device=device, dtype=dtype, batch_size=batch, mode=mode, optimizer=optimizer, gpus=gpus,
        input_shape=(3, 96, 128), trust=True,
    )  # fmt: skip


def epoch_s(prediction: Prediction, batch: int, gpus: int = 1) -> float:
    """The seconds of an epoch of steps that follow each other without a gap."""
    return latency_of(prediction) / KILO * STEPS_IN_TIME / (batch * gpus)


def latency_of(prediction: Prediction) -> float:
    """Milliseconds; every device of the report has a predictor of them."""
    if prediction.latency_ms is None:
        raise DataError("No latency was predicted: name a device that has a predictor of it.")
    return prediction.latency_ms.value


def price(latency_ms: float, usd_per_h: float, share: float = 1.0) -> float:
    """USD of ten thousand inferences one after the other, on a share of an instance.

    >>> round(price(37, 2.93), 3)
    0.301
    """
    return latency_ms / KILO * INFERENCES / SECONDS_AN_HOUR * usd_per_h * share


def lines() -> Iterator[str]:
    """The report, line by line."""
    yield "# The U-Net of the thesis' chapter 3, predicted"
    yield (
        "\nTemperature downscaling: 3 × 96 × 128 in, two pictures out, 3,525,650 trainable parameters and 3,360 "
        "others, as the thesis counts them (`lab/papers/downscaling/network.py`). foretell was fitted to networks of "
        "an H200 and, for other GPUs, to public times of single operators; it has never seen this network. The thesis "
        "measured TensorFlow with its input pipeline. Remade by `python -m lab remake downscaling`."
    )
    yield "\n### Table 3.2: an epoch of 20,496 time steps on one GPU\n"
    yield from _table(["GPU", "batch", "precision", "thesis s", "predicted s", "off %", "thesis W", "predicted W"],
                      _epoch_rows())  # fmt: skip
    yield (
        "\nThe thesis' watts of an A100 go with a GPU that is busy 22 % of the time, although an epoch takes as long "
        "as predicted for a busy one: a mean over the four GPUs of its node would read so. Watts are not judged by it."
    )
    yield "\n### Section 3.4.3: one to four GPUs, mixed precision, 32 items each (data parallel)\n"
    yield from _table(["GPU", "GPUs", "thesis s", "predicted s", "thesis speed-up", "predicted speed-up"], _gpu_rows())
    yield "\n### Section 3.4.5: ten thousand inferences of one picture, one after the other\n"
    yield from _table(["where", "ms", "USD an hour", "USD"], _price_rows())
    yield (
        "\nThe thesis has 37 ms and 0.301 USD on an A100, 5.15 s and 9.72 USD on a c5.4xlarge: wall-clock of a "
        "framework, which starts anew. A core of `cpu` is the one in `data-cpu`, not that of a c5.4xlarge; "
        "its eight cores are taken to serve eight pictures at a time, each at a core's speed."
    )


def _epoch_rows() -> Iterator[Sequence[str]]:
    for row in EPOCHS:
        answer = predicted(row.device, row.dtype, row.batch, "training")
        seconds, power = epoch_s(answer, row.batch), answer.power_w
        kind = "mixed" if row.dtype == "fp16" else "single"
        yield (row.device, str(row.batch), kind, f"{row.seconds}", f"{seconds:.1f}",
               f"{100 * (seconds / row.seconds - 1):+.0f}", f"{row.power_w:.0f}",
               f"{power.value:.0f}" if power else "–")  # fmt: skip


def _gpu_rows() -> Iterator[Sequence[str]]:
    for device, known in PARALLEL.items():
        single = epoch_s(predicted(device, "fp16", 32, "training"), 32)
        for gpus in (1, 2, 3, 4):
            seconds = epoch_s(predicted(device, "fp16", 32, "training", gpus), 32, gpus)
            told = known.get(gpus)
            yield (device, str(gpus), f"{told}" if told else "–", f"{seconds:.1f}",
                   f"{known[1] / told:.2f}" if told else "–", f"{single / seconds:.2f}")  # fmt: skip


def _price_rows() -> Iterator[Sequence[str]]:
    for device, dtype in (("a100", "fp16"), ("a100", "fp32"), ("v100", "fp16"), ("v100", "fp32")):
        latency_ms = latency_of(predicted(device, dtype, 1))
        yield (f"{device}, {dtype}", f"{latency_ms:.3g}", f"{PRICES[device]}",
               f"{price(latency_ms, PRICES[device]):.2g}")  # fmt: skip
    latency_ms, usd_per_h = latency_of(predicted("cpu", "fp32", 1)), PRICES["c5.4xlarge"]
    yield ("one core of eight of a c5.4xlarge, fp32", f"{latency_ms:.3g}", f"{usd_per_h}",
           f"{price(latency_ms, usd_per_h, 1 / CORES_C5):.2g}")  # fmt: skip


def _table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|---|" + "---:|" * (len(head) - 1)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def main() -> None:
    """Write the report."""
    write_whole(REPORT, ("\n".join(lines()) + "\n").encode())
    sys.stdout.write(f"{REPORT}\n")


if __name__ == "__main__":
    main()

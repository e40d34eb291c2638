"""Lab: how large chapter 7's networks and fits are: on a GPU, on a core of a CPU, and for a first look."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Size:
    """How large everything is; the plain values are those of a GPU."""

    width: int = 1024
    layers: int = 5
    graphs: int = 20_000
    encoder_steps: int = 1_500
    encoder_batch: int = 128
    pairs: int = 20_000
    pair_layers: int = 4
    text_steps: int = 400
    text_batch: int = 64
    fit_steps: int = 1_200
    batch: int = 64
    platforms: int = 4  # whose rows a batch has
    samples: tuple[int, ...] = (32, 128, 512)
    few_steps: int = 60  # or three epochs; a held-out quarter of the samples chooses among fewer
    few_batch: int = 32
    ablation_steps: int = 150
    json_nodes: int = 40
    judged: int | None = None
    aside: int = 256
    regressor_steps: int = 1_500  # of NNLQP's way
    tuning_steps: int = 400
    bf16: bool = True  # the frozen weights of the language model


# minutes: whether everything runs
SMALL = Size(
    width=128, graphs=6_000, encoder_steps=150, encoder_batch=32, pairs=2_000, pair_layers=2, text_steps=40,
    text_batch=8, fit_steps=160, batch=32, samples=(32, 128), few_steps=20, few_batch=16, ablation_steps=40,
    json_nodes=12, judged=60, aside=48, regressor_steps=300, tuning_steps=100, bf16=False,
)  # fmt: skip
# an hour of one core with AVX-512 of bf16: 1,500 steps are 8.4 epochs of 5,700 known rows
PROCESSOR = Size(
    width=256, graphs=6_000, encoder_steps=400, encoder_batch=32, pairs=4_000, pair_layers=2, text_steps=120,
    text_batch=8, fit_steps=1_500, batch=32, few_steps=32, few_batch=16, ablation_steps=300, json_nodes=12,
    aside=192, regressor_steps=1_000,
)  # fmt: skip
# what a GPU has fitted to the known platforms goes on with few samples on one core
FEW_BY_PROCESSOR = Size(few_steps=32, few_batch=16)
SIZES: Mapping[str, Size] = {
    "gpu": Size(), "small": SMALL, "processor": PROCESSOR, "few-by-processor": FEW_BY_PROCESSOR,
}  # fmt: skip

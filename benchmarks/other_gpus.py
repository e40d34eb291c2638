"""What foretell predicts for GPUs that it has never measured, against timm's published results.

python benchmarks/other_gpus.py TABLES [--products FOLDER] [--models 120] [--report]   needs foretell[vision], pandas

TABLES has timm's results as Parquet: infer_rtx3090, infer_rtx4090, train_rtx3090 (model, batch, image size, step time).
They ran with autocast, channels first, cuDNN choosing by trial; foretell is asked for half precision. `transfer`
answers by default; beside it the roofline, and that with the shares of the peaks that are reached on an H200.

FOLDER has aiconfigurator's times of products in bf16 as Parquet: {a100_sxm,b200_sxm,h100_sxm,h200_sxm,l40s}_gemm (m, n,
k, latency in ms); shapes that all have, some at random, the median of what several frameworks took.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

import foretell
from foretell.devices import find_device
from foretell.errors import ForetellError
from foretell.files import write_whole
from foretell.graph import Graph, Node, Tensor
from foretell.predictors import find_predictor, roofline, transfer
from foretell.records import Target, Workload
from foretell.training.judging.table import Comparison, page

RUNS = (
    ("rtx-3090", "infer_rtx3090", "infer-amp-nchw-pt240-cu124-rtx3090", "inference"),
    ("rtx-4090", "infer_rtx4090", "infer-amp-nchw-pt291-cu128-4090", "inference"),
    ("rtx-3090", "train_rtx3090", "train-amp-nchw-pt112-cu113-rtx3090", "training"),
)
TRANSFER, ROOFLINE = transfer.TransferPredictor.name, roofline.RooflinePredictor.name
SHARES = (roofline.COMPUTE_EFFICIENCY, roofline.MEMORY_EFFICIENCY)
PRODUCTS = {"a100_sxm": "a100-sxm-80gb", "b200_sxm": "b200", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "l40s": "l40s"}
SHAPES = 250
REPORT = Path(__file__).parents[1] / "reports" / "other-gpus.md"


def rows(tables: Path, file: str, run: str, models: int) -> Iterator[tuple[str, int, int, float]]:
    """Models of a run, some at random: name, batch, image size, milliseconds."""
    table = pd.read_parquet(tables / f"{file}.parquet")
    table = (
        table[table["run"] == run].drop_duplicates("model").rename(columns=lambda name: name.partition("_")[2] or name)
    )
    for row in table.sample(min(models, len(table)), random_state=1).itertuples():
        yield str(row.model), int(row.batch_size), int(row.img_size), float(row.step_time)


def predict_ms(predictor: str, model: str, batch: int, size: int, device: str, mode: str) -> float:
    """What a predictor tells."""
    told = foretell.predict(
        f"timm:{model}", device=device, batch_size=batch, dtype="fp16", mode=mode, input_shape=(3, size, size),
        predictor=predictor,
    )  # fmt: skip
    assert told.latency_ms is not None
    return told.latency_ms.value


def product_table(folder: Path) -> Comparison:
    """Single products on GPUs of data centres; the H200's row is of its own network, by others' measurements."""
    known = {}
    for file, device in PRODUCTS.items():
        table = pd.read_parquet(folder / f"{file}_gemm.parquet")
        table = table[(table["gemm_dtype"] == "bfloat16") & (table["latency"] > 0)]
        known[device] = table.groupby(["m", "n", "k"])["latency"].median()
    shapes = sorted(set.intersection(*(set(times.index) for times in known.values())))
    chosen = [shapes[place] for place in np.random.default_rng(0).permutation(len(shapes))[:SHAPES]]
    found: dict[str, dict[str, float | int]] = {}
    for device, times in known.items():
        target = Target(find_device(device))
        told = np.array([_product_ms(shape, target) for shape in chosen]) / np.array([[times[s]] for s in chosen])
        off = np.abs(told - 1.0)
        found[device] = {
            "products": len(chosen), "mape": float(off[:, 0].mean()), "median_ape": float(np.median(off[:, 0])),
            "predicted / measured": float(np.median(told[:, 0])), "roofline: mape": float(off[:, 1].mean()),
        }  # fmt: skip
    shares = frozenset({"mape", "median_ape", "roofline: mape"})
    return Comparison(
        "Products in bf16 against aiconfigurator's tables", found, ranked=False, shares=shares, head="device"
    )


def _product_ms(shape: tuple[int, int, int], target: Target) -> list[float]:
    m, n, k = shape
    tensors = {
        "x": Tensor("x", (m, k), dtype="bf16", kind="input"), "w": Tensor("w", (k, n), dtype="bf16", kind="parameter"),
        "y": Tensor("y", (m, n), dtype="bf16"),
    }  # fmt: skip
    asked = Workload(
        Graph.build("product", [Node("y", "Gemm", ("x", "w"), ("y",))], tensors, ["x"], ["y"]), target, "bf16"
    )
    told = [find_predictor(name, target.device.id).predict(asked).latency_ms for name in (None, ROOFLINE)]
    return [each.value for each in told if each is not None]


def main() -> None:
    """Print a table, or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path)
    parser.add_argument("--products", type=Path)
    parser.add_argument("--models", type=int, default=120)
    parser.add_argument("--report", action="store_true")
    asked = parser.parse_args()
    found: dict[str, dict[str, float | int]] = {}
    for device, file, run, mode in RUNS:
        told = []
        for model, batch, size, step_ms in rows(asked.tables, file, run, asked.models):
            try:
                of = model, batch, size, device, mode
                now = [predict_ms(name, *of) for name in (TRANSFER, ROOFLINE)]
                with patch.object(roofline, "reached", lambda _: SHARES):
                    before = predict_ms(ROOFLINE, *of)
            except (ForetellError, RuntimeError) as error:  # timm of today has not every model of then
                print(f"left out {model}: {str(error)[:100]}")
                continue
            told.append(np.array([*now, before]) / step_ms)
        ratio = np.array(told)
        off = np.abs(ratio - 1.0).mean(axis=0)
        found[f"{device}, {mode}"] = {
            "models": len(ratio), "mape": float(off[0]), "median_ape": float(np.median(np.abs(ratio[:, 0] - 1.0))),
            "predicted / measured": float(np.median(ratio[:, 0])), "in the interval": _inside(1 / ratio[:, 0]),
            "roofline: mape": float(off[1]), "roofline as on an H200: mape": float(off[2]),
        }  # fmt: skip
    errors = ("mape", "median_ape", "in the interval", "roofline: mape", "roofline as on an H200: mape")
    shares = frozenset(errors)
    table = Comparison("Step time against timm's tables", found, ranked=False, shares=shares, head="device")
    tables = [table, *([product_table(asked.products)] if asked.products else [])]
    text = (
        "# GPUs that were never measured\n\n`transfer`, the default there, against [timm's published results]"
        "(https://github.com/huggingface/pytorch-image-models/tree/main/results) (autocast, channels first, batches of "
        "up to 1024), models taken at random. Beside it the roofline, and that with the shares of the peaks that "
        "are reached on an H200. "
        "Remade by `python benchmarks/other_gpus.py TABLES --products FOLDER --models 60 --report`."
    )
    if asked.report:
        write_whole(REPORT, page(text, tables))
    print(*(each.to_markdown() for each in tables), sep="\n\n")


def _inside(needed: np.ndarray) -> float:
    """The share of measurements, over what was told, that the interval holds."""
    return float(((needed >= transfer.LATENCY_LOW) & (needed <= transfer.LATENCY_HIGH)).mean())


if __name__ == "__main__":
    main()

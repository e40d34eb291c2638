"""Units of tiny networks whose kernels follow a rule: large products run in large tiles, small ones in small tiles."""

from functools import cache

import numpy as np

from foretell.features import extract_units
from foretell.features.layouts import operand_layouts
from foretell.predictors.kernels.classifier import KernelClassifier
from foretell.predictors.kernels.fit import KernelFit, fit_kernels
from foretell.predictors.kernels.inputs import KernelInputs, kernel_inputs
from small.small_samples import BATCHES, WIDTHS, workload

CLASSES = ("cublas product 128x128 tn", "cublas product 64x64 tn", "pytorch pointwise-vectors", "pytorch reduce")
_LARGE = 64 * 1024
QUICK = {
    "products": KernelFit(width=24, blocks=1, embedding=4, epochs=30, batch=64, rate=2e-2, dropped=0.0, members=2),
    "others": KernelFit(width=12, blocks=1, embedding=4, epochs=15, batch=64, rate=2e-2, dropped=0.0),
}


def labels_of(units: KernelInputs, operators: tuple[str, ...]) -> np.ndarray:
    size = units.along * units.across * units.many
    other = np.array([2 if operator == "Relu" else 3 for operator in operators])
    return np.where(units.is_product, np.where(size >= _LARGE, 0, 1), other)


@cache
def labelled() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, layouts and labels of many networks."""
    features, layouts, labels = [], [], []
    for width in WIDTHS:
        for batch in BATCHES:
            work = workload(width, batch)
            units = extract_units(work)
            features.append(units.features)
            layouts.append(operand_layouts(work, units))
            labels.append(labels_of(kernel_inputs(features[-1], layouts[-1], False), units.operators))
    return np.concatenate(features), np.concatenate(layouts), np.concatenate(labels)


@cache
def fitted() -> KernelClassifier:
    features, layouts, labels = labelled()
    units = kernel_inputs(features, layouts, False)
    return fit_kernels(units, labels, np.ones(len(labels)), CLASSES, "h200", 132, QUICK)

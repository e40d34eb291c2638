"""Lab: how good chapter 7's answers are."""

import math

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
Record = dict[str, float]


def scores(told: Numbers, truth: Numbers) -> Record:
    """The mean error of the numbers, the share within 10 %, and the share of no numbers, which miss.

    ``off`` is the mean logarithm of how far all are off, where no number is ten times off: it chooses.
    """
    off = np.abs(told / truth - 1)
    numbers = off[np.isfinite(off)]
    return {
        "error": float(numbers.mean()) if len(numbers) else float("inf"),
        "median": float(np.median(numbers)) if len(numbers) else float("inf"),
        "off": float(np.nan_to_num(np.abs(np.log(told / truth)), nan=math.log(10)).mean()),
        "within_10": float((np.nan_to_num(off, nan=np.inf) <= 0.1).mean()),
        "no_number": float(np.isnan(told).mean()),
    }

"""Lab: distil: a fitted predictor taken apart, and put together with a student in the place of its network."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np

from foretell.predictors.unit.model import NETWORK, write


def read_parts(file: Path) -> dict[str, bytes]:
    """The files in a fitted predictor."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def with_student(parts: dict[str, bytes], network: bytes, facts: dict[str, object]) -> bytes:
    """A fitted predictor with another network in it, and more facts in its card; its trees and quantiles stay."""
    card = {**json.loads(parts["card.json"]), **facts}
    known = np.load(io.BytesIO(parts["known.npy"]), allow_pickle=False)
    models = {name.removesuffix(".npz"): data for name, data in parts.items() if name.endswith(".npz")}
    return write({**models, NETWORK: network}, card, known)

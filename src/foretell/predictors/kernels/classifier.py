"""Predictors: a classifier of kernels: which class of kernel a unit of work runs.

There are two networks. One is for units that are products of matrices (also convolutions, attention and recurrent
layers), where the tile must be predicted. The other is for all other units. `foretell.predictors.kernels.classes` says
what a class is.
"""

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features.units import SCHEMA
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.kernels.inputs import GROUPS, INPUT_WIDTH, KernelInputs
from foretell.predictors.kernels.network import KernelNetwork, weight_names

MOST = 5
_PARTS = ("products", "others")
_CARD = "card"
_STORED = ("middle", "spread", "classes", "tiles", "allowed")


@dataclass(frozen=True)
class Ranked:
    """For each unit the likeliest classes by number, likeliest first, and their probabilities; −1 fills up."""

    classes: NDArray[np.int64]
    probability: NDArray[np.float32]


@dataclass(frozen=True)
class KernelClassifier:
    """The classifier fitted to the traces of one device; it has a network for ``products`` and one for ``others``."""

    device: str
    classes: tuple[str, ...]
    networks: Mapping[str, KernelNetwork]
    card: Mapping[str, Any]

    @classmethod
    def load(cls, data: bytes) -> "KernelClassifier":
        """Read what `write` wrote; refuse a file that was fitted to other features than today's."""
        try:
            with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
                stored = {name: arrays[name] for name in arrays.files}
            card = json.loads(stored[_CARD].tobytes())
            networks = {part: _network(stored, part, int(card["sms"])) for part in _PARTS if f"{part}.middle" in stored}
            classifier = cls(str(card["device"]), tuple(map(str, card["classes"])), networks, card)
            known, widths = card["schema"] == SCHEMA, {len(network.middle) for network in networks.values()}
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, KeyError, TypeError, ValueError) as error:
            raise ModelError(f"These {len(data)} bytes are not a classifier of kernels: {error}.") from error
        if not known or widths != {INPUT_WIDTH}:
            raise ModelError(
                "This classifier of kernels was fitted to other features than today's; fit it again: foretell train."
            )
        return classifier

    def rank(self, units: KernelInputs, most: int = MOST) -> Ranked:
        """The likeliest classes of units."""
        classes, probability = np.full((len(units), most), -1), np.zeros((len(units), most), np.float32)
        for part, rows in rows_by_network(units).items():
            if part in self.networks and len(rows):
                network = self.networks[part]
                probabilities = network.probabilities(units.of(rows))
                # a stable sort: equal probabilities keep the order of the classes on every machine
                order = np.argsort(-probabilities, axis=1, kind="stable")[:, :most]
                classes[rows, : order.shape[1]] = network.classes[order]
                probability[rows, : order.shape[1]] = np.take_along_axis(probabilities, order, axis=1)
        return Ranked(np.where(probability > 0, classes, -1), probability)


def rows_by_network(units: KernelInputs) -> dict[str, NDArray[np.intp]]:
    """The rows of the units for each network."""
    return dict(zip(_PARTS, (np.flatnonzero(units.is_product), np.flatnonzero(~units.is_product)), strict=True))


def _network(stored: Mapping[str, NDArray[Any]], part: str, sms: int) -> KernelNetwork:
    own = {name.removeprefix(f"{part}."): array for name, array in stored.items() if name.startswith(f"{part}.")}
    blocks = sum(name.startswith("up_bias") for name in own)
    weights = {name: np.asarray(own[name], np.float32) for name in weight_names(blocks)}
    middle, spread, tiles = (np.asarray(own[name], np.float32) for name in ("middle", "spread", "tiles"))
    if own["allowed"].shape != (GROUPS, len(own["classes"])) or len(tiles) != len(own["classes"]):
        raise ValueError(f"its table of classes is {own['allowed'].shape}")
    return KernelNetwork(weights, middle, spread, own["classes"].astype(np.int64), tiles, own["allowed"], sms)


def write(classifier: KernelClassifier) -> bytes:
    """A classifier as bytes; weights are stored in half precision."""
    arrays: dict[str, NDArray[Any]] = {}
    for part, network in classifier.networks.items():
        arrays |= {f"{part}.{name}": getattr(network, name) for name in _STORED}
        arrays |= {f"{part}.{name}": array.astype(np.float16) for name, array in network.weights.items()}
        sms = network.sms
    card = {**classifier.card, "device": classifier.device, "classes": classifier.classes, "sms": sms, "schema": SCHEMA}
    # npz holds only arrays: the card is stored as bytes
    arrays[_CARD] = np.frombuffer(json.dumps(card, sort_keys=True).encode(), np.uint8)
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    return data.getvalue()


def file_name(device: str) -> str:
    """The name of the file for a device."""
    return f"kernels-{device}.npz"


@cache
def shipped(device: str) -> KernelClassifier | None:
    """The classifier that the package ships for a device, or None."""
    data = read_shipped(file_name(device))
    return None if data is None else KernelClassifier.load(data)

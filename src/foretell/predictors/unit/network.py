"""predictors: a network on the units of a workload: how much longer than its bound each takes.

Members of equal shape are averaged. A member is a residual network: sizes come with the bins they are in, the code of
the operator becomes a vector, blocks of two layers follow. It tells the logarithm of kernel time over bound, what is
between kernels for each launch, and, where power was measured, what the device draws meanwhile. Served by numpy from an
ONNX model that any runtime runs (`foretell.predictors.unit.fit_network` fits it).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import ModelError
from foretell.features.encoded import ENCODED_WIDTH, Encoded
from foretell.optional import require
from foretell.predictors.unit.bins import Bins

KERNEL_LIMITS = (-4.0, 6.0)  # of the logarithm of kernel time over bound
FARTHEST = 6.0  # numbers are cut this many spreads from the middle
_STEEPEST = 30.0
_TINY = 1e-6
_SLICE = 4096  # rows at a time: what a member holds of them fits a cache
_OPSET, _IR_VERSION = 17, 9
_LARGE = 64  # rows and columns from which on a matrix is kept in bytes

Weights = Mapping[str, NDArray[np.float32]]


def weight_names(blocks: int) -> tuple[str, ...]:
    """The arrays of a network; each has one entry for a member along its first axis."""
    inner = [f"{name}{block}" for block in range(blocks) for name in ("scale", "up", "up_bias", "down", "down_bias")]
    return ("embedding", "enter", "enter_code", "enter_bias", *inner, "last_scale", "leave", "leave_bias")


@dataclass(frozen=True)
class UnitPredictions:
    """What a network tells of each unit: the logarithm of its time over its bound, and the power meanwhile, if any."""

    log_ratio: NDArray[np.float64]
    power_w: NDArray[np.float64] | None

    def of(self, rows: NDArray[np.intp]) -> "UnitPredictions":
        """What is told of some rows."""
        return UnitPredictions(self.log_ratio[rows], None if self.power_w is None else self.power_w[rows])


class UnitNetwork:
    """Members of one fit; ``middle`` and ``spread`` bring the encoded numbers and their bins to a like size.

    ``most_w`` is the power that no unit draws; None where it knows nothing of power.
    """

    def __init__(
        self,
        weights: Weights,
        bins: Bins,
        middle: NDArray[np.float32],
        spread: NDArray[np.float32],
        most_w: float | None = None,
    ) -> None:
        self.weights = weights
        self.bins = bins
        self.middle = middle
        self.spread = spread
        self.most_w = most_w
        self.blocks = sum(name.startswith("up_bias") for name in weights)

    @property
    def members(self) -> int:
        """How many networks are averaged."""
        return len(self.weights["embedding"])

    @property
    def operators(self) -> int:
        """How many codes of operators are known."""
        return int(self.weights["embedding"].shape[1])

    def predict(self, units: Encoded, bound_us: NDArray[np.float64]) -> UnitPredictions:
        """Every unit's time over its bound, and its power."""
        log_ratio, power_w = np.zeros(len(units)), np.zeros(len(units))
        for start in range(0, len(units), _SLICE):
            part = slice(start, start + _SLICE)
            numbers = scaled(self.bins.beside(units.numbers[part]), self.middle, self.spread)
            codes = np.minimum(units.operators[part], self.operators - 1)
            launches = units.launches[part] / bound_us[part]
            for member in range(self.members):
                told = self._forward(member, numbers, codes)
                gap_ratio = np.logaddexp(0.0, told[:, 1]) * launches
                log_ratio[part] += np.log(np.exp(np.clip(told[:, 0], *KERNEL_LIMITS)) + gap_ratio) / self.members
                if self.most_w is not None:
                    bent = np.clip(told[:, 2], -_STEEPEST, _STEEPEST)
                    power_w[part] += self.most_w / (1.0 + np.exp(-bent)) / self.members
        return UnitPredictions(log_ratio, power_w if self.most_w is not None else None)

    def _forward(self, member: int, numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> NDArray[np.float32]:
        own = {name: array[member] for name, array in self.weights.items()}
        state = numbers @ own["enter"] + own["embedding"][codes] @ own["enter_code"] + own["enter_bias"]
        for block in range(self.blocks):
            inner = _silu(_normed(state) * own[f"scale{block}"] @ own[f"up{block}"] + own[f"up_bias{block}"])
            state = state + inner @ own[f"down{block}"] + own[f"down_bias{block}"]
        return np.asarray(_silu(_normed(state) * own["last_scale"]) @ own["leave"] + own["leave_bias"])

    def to_onnx(self) -> bytes:
        """The network as an ONNX model; large matrices in bytes with a step for each column, the rest in halves."""
        return _write(self)

    @classmethod
    def load(cls, data: bytes) -> "UnitNetwork":
        """Read what `to_onnx` wrote."""
        onnx = require("onnx", extra="train", purpose="Reading a network")
        try:
            model = onnx.load_from_string(data)
            arrays = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
            arrays = {name: np.asarray(array, np.float32) for name, array in arrays.items()}
            for name in [name for name in arrays if f"{name}_step" in arrays]:
                arrays[name] *= arrays[f"{name}_step"]
            middle, spread = arrays["middle"], arrays["spread"]
            none = np.zeros(0, np.float32)  # files of old have no bins
            columns, lows, widths = (arrays.get(name, none) for name in ("columns", "lows", "widths"))
            bins = Bins(columns.astype(np.int64), lows, widths)
            most_w = float(arrays["most_w"]) if "most_w" in arrays else None
            blocks = sum(name.startswith("up_bias") for name in arrays)
            weights = {name: arrays[name] for name in weight_names(blocks)}
        except Exception as error:  # protobuf raises errors of its own
            raise ModelError(f"These {len(data)} bytes are no network on units: {error}.") from error
        if len(middle) != ENCODED_WIDTH + len(bins):
            raise ModelError("This network was fitted to other features; fit it again: foretell train.")
        return cls(weights, bins, middle, spread, most_w)


def scaled(
    numbers: NDArray[np.float32], middle: NDArray[np.float32], spread: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Numbers in spreads from their middle, and none of them very far from it."""
    return np.asarray(np.clip((numbers - middle) / spread, -FARTHEST, FARTHEST), np.float32)


def _silu(values: NDArray[np.float32]) -> NDArray[np.float32]:
    with np.errstate(over="ignore"):
        return np.asarray(values / (1.0 + np.exp(-values)), np.float32)


def _normed(state: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.asarray(state / np.sqrt((state * state).mean(axis=-1, keepdims=True) + np.float32(_TINY)))


class _Sheet:
    """An ONNX graph as it is written, node by node."""

    def __init__(self, make: Any, tensors: Any) -> None:
        self._make = make
        self._tensors = tensors
        self.nodes: list[Any] = []
        self.arrays: list[Any] = []

    def call(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(self._make.make_node(op, list(inputs), [name], **attributes))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        self.arrays.append(self._tensors.from_array(value, name))
        return name

    def weights(self, name: str, value: NDArray[np.float32]) -> str:
        if min(value.shape[1:]) < _LARGE:
            return self.call("Cast", self.constant(name, value.astype(np.float16)), to=1)
        step = np.maximum(np.abs(value).max(axis=1, keepdims=True), _TINY) / np.float32(127)
        whole = self.call("Cast", self.constant(name, np.rint(value / step).astype(np.int8)), to=1)
        return self.call("Mul", whole, self.constant(f"{name}_step", step))

    def silu(self, value: str) -> str:
        return self.call("Mul", value, self.call("Sigmoid", value))

    def normed(self, value: str, scale: str) -> str:
        mean = self.call("ReduceMean", self.call("Mul", value, value), axes=[-1], keepdims=1)
        return self.call("Mul", self.call("Div", value, self.call("Sqrt", self.call("Add", mean, "tiny"))), scale)


def _write(network: UnitNetwork) -> bytes:
    onnx = require("onnx", extra="train", purpose="Writing a network")
    make = onnx.helper
    sheet = _Sheet(make, onnx.numpy_helper)
    sheet.constant("columns", network.bins.columns)
    sheet.constant("lows", network.bins.lows)
    sheet.constant("widths", network.bins.widths)
    sheet.constant("middle", network.middle.astype(np.float32))
    sheet.constant("spread", network.spread.astype(np.float32))
    for name, value in (
        ("tiny", _TINY),
        ("before", 0.0),
        ("behind", 1.0),
        ("farthest", FARTHEST),
        ("least", KERNEL_LIMITS[0]),
        ("most", KERNEL_LIMITS[1]),
    ):
        sheet.constant(name, np.array(value, np.float32))
    sheet.constant("nearest", np.array(-FARTHEST, np.float32))
    held = {name: sheet.weights(name, array) for name, array in network.weights.items()}
    through = sheet.call("Sub", sheet.call("Gather", "numbers", "columns", axis=1), "lows")
    through = sheet.call("Clip", sheet.call("Div", through, "widths"), "before", "behind")
    numbers = sheet.call("Concat", "numbers", through, axis=1)
    numbers = sheet.call("Div", sheet.call("Sub", numbers, "middle"), "spread")
    numbers = sheet.call("Clip", numbers, "nearest", "farthest")
    codes = sheet.call("MatMul", sheet.call("Gather", held["embedding"], "operators", axis=1), held["enter_code"])
    state = sheet.call(
        "Add", sheet.call("Add", sheet.call("MatMul", numbers, held["enter"]), codes), held["enter_bias"]
    )
    for block in range(network.blocks):
        inner = sheet.call("MatMul", sheet.normed(state, held[f"scale{block}"]), held[f"up{block}"])
        inner = sheet.silu(sheet.call("Add", inner, held[f"up_bias{block}"]))
        inner = sheet.call("Add", sheet.call("MatMul", inner, held[f"down{block}"]), held[f"down_bias{block}"])
        state = sheet.call("Add", state, inner)
    last = sheet.call("MatMul", sheet.silu(sheet.normed(state, held["last_scale"])), held["leave"])
    last = sheet.call("Add", last, held["leave_bias"])
    outputs = [
        sheet.call("Gather", last, sheet.constant(f"output{number}", np.array(number, np.int64)), axis=2)
        for number in range(network.weights["leave"].shape[2])
    ]
    kernel = sheet.call("Exp", sheet.call("Clip", outputs[0], "least", "most"))
    both = sheet.call("Add", kernel, sheet.call("Mul", sheet.call("Softplus", outputs[1]), "launches"))
    told = {"log_ratio": sheet.call("Log", both)}
    if network.most_w is not None:
        most_w = sheet.constant("most_w", np.array(network.most_w, np.float32))
        told["power_w"] = sheet.call("Mul", sheet.call("Sigmoid", outputs[2]), most_w)
    for name, found in told.items():
        sheet.nodes.append(make.make_node("ReduceMean", [found], [name], axes=[0], keepdims=0))
    single, whole = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
    graph = make.make_graph(
        sheet.nodes,
        "unit-network",
        [
            make.make_tensor_value_info("numbers", single, ["units", ENCODED_WIDTH]),
            make.make_tensor_value_info("operators", whole, ["units"]),
            make.make_tensor_value_info("launches", single, ["units"]),  # of each unit, over its bound
        ],
        [make.make_tensor_value_info(name, single, ["units"]) for name in told],
        sheet.arrays,
    )
    opsets = [make.make_opsetid("", _OPSET)]
    written = make.make_model(graph, opset_imports=opsets, producer_name="foretell", ir_version=_IR_VERSION)
    return bytes(written.SerializeToString(deterministic=True))

"""Predictors: how long kernels of serving engines take: products, attention, mixtures of experts, latent attention.

Each kind has trees that predict, in logarithms, the ratio of a kernel's time to its bound on the device: the larger of
arithmetic over the peak and bytes over the bandwidth, plus a launch. They are fitted to the kernel tables of
aiconfigurator (NVIDIA, Apache-2.0), which hold A100, H100, H200, L40S and B200 under vLLM, SGLang and TensorRT-LLM.
The features are sizes, the bound and facts of the device, so that another GPU can be asked; how far that is off is in
docs/lab/0037-serving.md. Limits: beyond the measured sizes the ratio stays what it was at the edge.

The framework ``torch`` is our own: kernels of plain torch on an H200, over a static cache (``torch``) or over pages
(``torch-paged``), measured by `lab.campaigns.serving.measure`. Its trees are separate and small, and know H200 alone.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Device
from foretell.errors import ModelError
from foretell.predictors.fitted_files import read_shipped
from foretell.predictors.trees import Trees
from foretell.units import GIGA, MEGA, TERA

FILE = "llm-kernels.npz"
PARTS_FILE = "llm-parts.npz"
FRAMEWORKS = ("vllm", "sglang", "trtllm")
TORCH, TORCH_PAGED = "torch", "torch-paged"
KINDS = ("product", "context", "generation", "experts", "latent_context", "latent_generation")
SMALL = {"norm": 0, "gate": 1, "rotate": 2, "cast": 3}  # elementwise parts, by their code
SMALL_BYTES = {"norm": 8, "gate": 6, "rotate": 4, "cast": 4}  # of each number of their width, read and written in bf16
LAUNCH_US = 2.0  # the smallest product of the tables takes 1.7 to 2.5 µs

Array = NDArray[np.float64]
Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Scheme:
    """A way to store weights and to multiply: bytes of a weight with its scales, of an input, and the units' format."""

    code: int
    weight_bytes: float
    input_bytes: float
    units: str


# group scales of int4 and the formats of fp4 are counted with the weight: 16 bits for 128 weights, 8 bits for 32 or 16
SCHEMES = {
    "bf16": Scheme(0, 2, 2, "bf16"),
    "fp8": Scheme(1, 1, 1, "fp8"),
    "fp8_block": Scheme(2, 1, 1, "fp8"),
    "int8": Scheme(3, 1, 1, "int8"),
    "int8_weights": Scheme(4, 1, 2, "bf16"),
    "int4_weights": Scheme(5, 0.5 + 1 / 64, 2, "bf16"),
    "mxfp4_weights": Scheme(6, 0.5 + 1 / 32, 2, "bf16"),
    "nvfp4": Scheme(7, 0.5 + 1 / 16, 0.5 + 1 / 16, "fp4"),
}
BALANCED, POWER_LAW_1_01, POWER_LAW_1_2 = 0, 1, 2
LATENT_RANK, ROPE_SIZE, LATENT_HEAD, LATENT_VALUE = 512, 64, 192, 128  # of DeepSeek V2 and V3, whose kernels these are


def _rates(device: Device, scheme_names: Sequence[str]) -> Array:
    """Peak FLOP/s for each scheme."""
    return np.array([device.peak_tflops(SCHEMES[name].units, tensor_cores=True) * TERA for name in scheme_names])


def _log2(values: Any) -> Array:
    logs: Array = np.log2(np.maximum(np.asarray(values, dtype=np.float64), 1e-6))
    return logs


def _facts(device: Device, rows: int) -> list[Array]:
    capability = float(device.compute_capability or 0)
    facts = (capability, np.log2(device.sms), np.log2(device.bandwidth_gb_per_s), np.log2(device.l2_mib))
    return [np.full(rows, fact) for fact in facts]


def _bounds(flops: Array, peak: Array, size_bytes: Array, device: Device) -> tuple[Array, Array]:
    """Microseconds of arithmetic at the peak, and of bytes at the bandwidth."""
    return flops / peak * MEGA, size_bytes / (device.bandwidth_gb_per_s * GIGA) * MEGA


def _of_product(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    m, n, k = (np.asarray(work[name], dtype=np.float64) for name in "mnk")
    names = list(work["scheme"])
    weight, inputs = (np.array([getattr(SCHEMES[name], part) for name in names]) for part in _BYTES)
    arithmetic, traffic = _bounds(
        2 * m * n * k, _rates(device, names), k * n * weight + m * k * inputs + m * n * 2, device
    )
    tiles = np.ceil(m / 128) * np.ceil(n / 128)
    waves = tiles / device.sms
    own = [_log2(m), _log2(n), _log2(k), _log2(tiles), np.ceil(waves) / waves, m % 8, m % 64]
    return arithmetic, traffic, [*own, np.array([SCHEMES[name].code for name in names], dtype=np.float64)]


_MOST_KNOWN = 4096  # tables that are kept: less than a kilobyte each
_BYTES = ("weight_bytes", "input_bytes")


def _pairs(tokens: Array, window: Array) -> Array:
    """Pairs of a token and one that it sees, in causal attention; a window of 0 sees everything."""
    seen = np.where(window > 0, np.minimum(window, tokens), tokens)
    pairs: Array = seen * (seen + 1) / 2 + (tokens - seen) * seen
    return pairs


def _of_context(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    b, t, h, g, d, window, kv = _numbers(
        work, "batch", "tokens", "heads", "kv_heads", "head_size", "window", "kv_bytes"
    )
    fast = np.asarray(work["fp8"], dtype=np.float64)  # whether the products run in fp8
    peaks = np.where(fast > 0, *(device.peak_tflops(name, tensor_cores=True) * TERA for name in ("fp8", "bf16")))
    arithmetic, traffic = _bounds(4 * b * h * d * _pairs(t, window), peaks, b * t * d * (2 * h + 2 * g) * 2, device)
    blocks = b * h * np.ceil(t / 128) / device.sms
    own = [_log2(b), _log2(t), _log2(h), _log2(g), _log2(d), np.minimum(window, t), kv, fast, _log2(blocks)]
    return arithmetic, traffic, own


def _of_generation(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    b, t, h, g, d, window, kv = _numbers(
        work, "batch", "tokens", "heads", "kv_heads", "head_size", "window", "kv_bytes"
    )
    seen = np.where(window > 0, np.minimum(window, t), t)
    peak = np.full(len(b), device.peak_tflops("bf16", tensor_cores=True) * TERA)
    arithmetic, traffic = _bounds(4 * b * h * d * seen, peak, b * seen * g * d * 2 * kv + 4 * b * h * d, device)
    own = [_log2(b), _log2(seen), _log2(h), _log2(g), _log2(h / g), _log2(d), kv, _log2(b * g / device.sms)]
    return arithmetic, traffic, own


def _of_experts(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    t, width, inner, top, experts, tp, ep = _numbers(
        work, "tokens", "hidden", "inner", "top", "experts", "tensor_parallel", "expert_parallel"
    )
    names = list(work["scheme"])
    weight, inputs = (np.array([getattr(SCHEMES[name], part) for name in names]) for part in _BYTES)
    rows = t * top / ep
    here = experts / ep
    active = here * (1 - (1 - top / experts) ** t)  # experts that at least one token chooses
    matrices = 3 * width * inner / tp
    arithmetic, traffic = _bounds(
        2 * rows * matrices, _rates(device, names), active * matrices * weight + rows * width * (inputs + 2), device
    )
    own = [
        _log2(t), _log2(width), _log2(inner / tp), _log2(top), _log2(experts), _log2(here), _log2(rows / here),
        _log2(active), np.asarray(work["distribution"], dtype=np.float64),
        np.array([SCHEMES[name].code for name in names], dtype=np.float64),
    ]  # fmt: skip
    return arithmetic, traffic, own


def _of_latent_context(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    b, t, h, kv = _numbers(work, "batch", "tokens", "heads", "kv_bytes")
    peak = np.full(len(b), device.peak_tflops("bf16", tensor_cores=True) * TERA)
    flops = 2 * b * h * (LATENT_HEAD + LATENT_VALUE) * _pairs(t, np.zeros(len(t)))
    arithmetic, traffic = _bounds(flops, peak, b * t * h * (2 * LATENT_HEAD + 2 * LATENT_VALUE) * 2, device)
    return arithmetic, traffic, [_log2(b), _log2(t), _log2(h), kv, _log2(b * h * np.ceil(t / 128) / device.sms)]


def _of_latent_generation(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    b, t, h, kv = _numbers(work, "batch", "tokens", "heads", "kv_bytes")
    peak = np.full(len(b), device.peak_tflops("bf16", tensor_cores=True) * TERA)
    flops = 2 * b * h * (2 * LATENT_RANK + ROPE_SIZE) * t
    size = b * t * (LATENT_RANK + ROPE_SIZE) * kv + b * h * (2 * LATENT_RANK + ROPE_SIZE) * 2
    arithmetic, traffic = _bounds(flops, peak, size, device)
    return arithmetic, traffic, [_log2(b), _log2(t), _log2(h), kv, _log2(b / device.sms)]


def _numbers(work: Columns, *names: str) -> list[Array]:
    return [np.asarray(work[name], dtype=np.float64) for name in names]


def _of_small(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    """Norms with their residual, gated activations, rotary embeddings into the cache, casts: bytes alone."""
    tokens, width, size, written = _numbers(work, "tokens", "width", "bytes_per_token", "written_bytes")
    flops, traffic = _bounds(
        tokens * width, np.full(len(tokens), device.vector_tflops["fp32"] * TERA), tokens * size, device
    )
    return flops, traffic, [_log2(tokens), _log2(width), np.asarray(work["part"], dtype=np.float64), written]


def _of_sample(work: Columns, device: Device) -> tuple[Array, Array, list[Array]]:
    """Softmax and a draw over the logits of each row: seven passes in fp32, two in the logits' own format."""
    rows, vocabulary = _numbers(work, "tokens", "vocabulary")
    numbers = rows * vocabulary
    flops, traffic = _bounds(numbers, np.full(len(rows), device.vector_tflops["fp32"] * TERA), numbers * 32, device)
    return flops, traffic, [_log2(rows), _log2(vocabulary)]


_EXTRACTORS = {
    "small": _of_small,
    "sample": _of_sample,
    "product": _of_product,
    "context": _of_context,
    "generation": _of_generation,
    "experts": _of_experts,
    "latent_context": _of_latent_context,
    "latent_generation": _of_latent_generation,
}


def features_of(kind: str, work: Columns, device: Device) -> tuple[NDArray[np.float32], Array]:
    """The features of kernels without the framework, and their bounds in µs; fitting and serving both call this."""
    arithmetic, traffic, own = _EXTRACTORS[kind](work, device)
    bound = np.maximum(arithmetic, traffic) + LAUNCH_US
    columns = [*own, _log2(arithmetic), _log2(traffic), _log2(arithmetic / traffic), *_facts(device, len(bound))]
    return np.stack(columns, axis=1).astype(np.float32), bound


def with_framework(features: NDArray[np.float32], framework: int | NDArray[np.float32]) -> NDArray[np.float32]:
    """The features with the framework's code as their last column."""
    column = np.broadcast_to(np.asarray(framework, dtype=np.float32), len(features))
    return np.column_stack([features, column]).astype(np.float32)


def _times(bound: Array, logs: Any) -> Array:
    times: Array = bound * np.exp(logs)
    return times


@dataclass(frozen=True)
class Kernels:
    """The fitted trees of all kinds, and what they were fitted to: devices, and frameworks by kind and scheme."""

    trees: Mapping[str, Trees]
    frameworks: Mapping[str, tuple[int, ...]]
    devices: tuple[str, ...]
    own: Mapping[str, Trees] = field(default_factory=dict)  # of torch, by kind; "paged" is decoding over pages

    def seen(self, kind: str, scheme: str = "") -> tuple[int, ...]:
        """The codes of the frameworks whose kernels of a kind and scheme were measured."""
        return self.frameworks.get(f"{kind}/{scheme}", ())

    def times_us(self, kind: str, work: Columns, device: Device, framework: str | None) -> Array:
        """Microseconds of kernels of a kind, all of one scheme; equal work is looked up once.

        Without a framework, or where a framework's were not measured: the geometric mean of those that were; quantised
        products take the faster of that and of torch's kernel, which has no quantising of the input in it.
        """
        scheme = work["scheme"][0] if "scheme" in work else ""
        columns = tuple((name, np.asarray(work[name]).tobytes()) for name in work if name != "scheme")
        key = kind, scheme, columns, device, framework
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            found = self._known[key] = self._times_us(kind, scheme, work, device, framework)
        return found.copy()

    @cached_property
    def _known(self) -> dict[tuple[object, ...], Array]:
        return {}

    def _times_us(self, kind: str, scheme: str, work: Columns, device: Device, framework: str | None) -> Array:
        is_quantised = kind == "product" and scheme != "bf16" and device.architecture == "Hopper"
        own: Array | None = None
        name = own_name(kind, scheme, is_paged=framework == TORCH_PAGED)
        if name in self.own and (framework in (TORCH, TORCH_PAGED) or is_quantised):
            features, bound = self.own_features(kind, work, device)
            own = _times(bound, self.own[name].predict(features))
            # TensorRT-LLM multiplies fp8 by cuBLAS, as torch does, and quantises in the norm before; its table has both
            if framework in (TORCH, TORCH_PAGED) or (framework == "trtllm" and scheme == "fp8"):
                return own
        features, bound = features_of(kind, work, device)
        seen = self.seen(kind, scheme)
        wanted = (FRAMEWORKS.index(framework),) if framework in FRAMEWORKS else seen
        codes = [code for code in wanted if code in seen] or list(seen or range(len(FRAMEWORKS)))
        logs = [self.trees[kind].predict(with_framework(features, code)) for code in codes]
        engines = _times(bound, np.mean(logs, axis=0))
        # nobody keeps a kernel that is slower than another one that is free to use
        if own is not None and (framework is None or FRAMEWORKS.index(framework) not in seen):
            return np.minimum(own, engines)
        return engines

    def own_features(self, kind: str, work: Columns, device: Device) -> tuple[NDArray[np.float32], Array]:
        """The features and bounds for kernels of torch; those of attention and experts know what engines take."""
        features, bound = features_of(kind, work, device)
        if kind in KINDS and kind != "product":
            engines = np.log(self.times_us(kind, work, device, None) / bound)
            features = np.column_stack([features, engines]).astype(np.float32)
        return features, bound


def own_name(kind: str, scheme: str = "", *, is_paged: bool = False) -> str:
    """Under which name trees of torch's kernels are kept: products by their scheme, decoding over pages apart."""
    if kind == "product":
        return f"product/{scheme}"
    return "paged" if kind == "generation" and is_paged else kind


def parts_to_bytes(parts: Mapping[str, Trees]) -> bytes:
    """Trees of torch's kernels as one .npz file."""
    buffer = io.BytesIO()
    arrays = {kind: np.frombuffer(trees.to_bytes(), dtype=np.uint8) for kind, trees in parts.items()}
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def parts_from_bytes(data: bytes) -> dict[str, Trees]:
    """Read what `parts_to_bytes` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return {kind: Trees.load(arrays[kind].tobytes()) for kind in arrays.files}


def kernels_to_bytes(kernels: Kernels) -> bytes:
    """All trees as one .npz file."""
    arrays: dict[str, Any] = {"devices": np.array(kernels.devices)}
    for kind, trees in kernels.trees.items():
        arrays[f"trees/{kind}"] = np.frombuffer(trees.to_bytes(), dtype=np.uint8)
    for name, codes in kernels.frameworks.items():
        arrays[f"frameworks/{name}"] = np.array(codes)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def kernels_from_bytes(data: bytes) -> Kernels:
    """Read what `kernels_to_bytes` wrote."""
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return Kernels(
            {kind: Trees.load(arrays[f"trees/{kind}"].tobytes()) for kind in KINDS},
            {
                name.removeprefix("frameworks/"): tuple(int(code) for code in arrays[name])
                for name in arrays.files
                if name.startswith("frameworks/")
            },
            tuple(str(name) for name in arrays["devices"]),
        )


@lru_cache(maxsize=1)
def shipped_kernels() -> Kernels:
    """The trees that ship with foretell."""
    data = read_shipped(FILE)
    if data is None:
        raise ModelError(f"{FILE} is missing. Install foretell again, or fit it: python -m lab fit-llm TABLES")
    parts = read_shipped(PARTS_FILE)
    return replace(kernels_from_bytes(data), own={} if parts is None else parts_from_bytes(parts))

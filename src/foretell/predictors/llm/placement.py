"""Predictors: which precision a device can serve, how many GPUs a model takes, and how it is divided over them."""

from dataclasses import dataclass, replace

from foretell.devices import Device
from foretell.errors import DeviceError, InputError
from foretell.predictors.llm.architecture import Architecture
from foretell.predictors.llm.collectives import GPUS_PER_NODE, check_gpus, fabric_of
from foretell.predictors.llm.deployment import Deployment
from foretell.registry import did_you_mean

DTYPES = ("bf16", "fp16")
WEIGHTS = ("bf16", "fp8", "int8", "int4", "fp4")
CACHES = ("bf16", "fp8")
_SCHEMES = {"bf16": "bf16", "fp8": "fp8", "int8": "int8_weights", "int4": "int4_weights", "fp4": "nvfp4"}
_STORED_AS = {"fp8_block": "fp8", "mxfp4_weights": "fp4", "int4_weights": "int4", "int8_weights": "int8"}
_MEASURED_CACHE = ("Hopper", "Ada", "Blackwell")
_COUNTS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Precision:
    """The scheme of the weights and the bytes of a number in the cache; what was not measured is a sentence each."""

    weights: str
    kv_bytes: int
    notes: tuple[str, ...] = ()


def choose_precision(
    model: Architecture, device: Device, dtype: str = "bf16", weights: str | None = None, kv_dtype: str | None = None
) -> Precision:
    """The precision that was asked for, or that of the published checkpoint; one that the device lacks is refused."""
    if dtype not in DTYPES:
        raise InputError(
            f"Engines serve bf16 or fp16, not --dtype {dtype}; quantised weights are --weights fp8, int8 or int4."
        )
    if weights is not None and weights not in WEIGHTS:
        raise InputError(f"Unknown weights {weights!r}.{did_you_mean(weights, WEIGHTS)}")
    if kv_dtype is not None and kv_dtype not in (*CACHES, "fp16"):
        raise InputError(f"Unknown --kv-dtype {kv_dtype!r}. Choose from: {', '.join(CACHES)}.")
    scheme = model.stored if weights is None else _SCHEMES[weights]
    # a checkpoint that is published in a format keeps its own variant of it
    if weights is not None and _STORED_AS.get(model.stored) == weights:
        scheme = model.stored
    _check_units(scheme, device)
    notes = []
    if scheme in ("int4_weights", "int8_weights") and not model.has_experts and device.architecture != "Ampere":
        measured = f"Products with {scheme[:4]} weights of engines were measured on an A100 only"
        is_hopper = device.architecture == "Hopper"
        others = "torch's, measured on an H200, replace them where they are faster" if is_hopper else ""
        notes.append(f"{measured}; on {device.id} they are extrapolated{', and ' if others else ''}{others}.")
    if kv_dtype == "fp8" and device.architecture not in _MEASURED_CACHE:
        notes.append(f"A cache in fp8 was not measured on GPUs of {device.architecture}.")
    if dtype == "fp16":
        notes.append("fp16 is taken to be as fast as bf16, which was measured.")
    return Precision(scheme, 1 if kv_dtype == "fp8" else 2, tuple(notes))


def _check_units(scheme: str, device: Device) -> None:
    """Refuse a format whose products the device cannot compute."""
    if device.is_cpu or not device.has_tensor_cores:
        raise DeviceError(
            f"{device.id} has no tensor cores: no kernel of a serving engine was measured on such a device."
        )
    if not device.is_nvidia:
        raise DeviceError(
            f"{device.id} is a GPU of {device.vendor}: kernels of serving engines were measured on NVIDIA's alone."
        )
    if "bf16" not in device.tensor_tflops:
        raise DeviceError(f"{device.id} does not compute in bf16; engines' kernels were measured from Ampere on.")
    if scheme in ("fp8", "fp8_block") and "fp8" not in device.tensor_tflops:
        raise DeviceError(
            f"{device.id} has no fp8 units; use --weights int8 or int4, or a GPU that has them, such as h100-sxm."
        )
    if scheme == "nvfp4" and "fp4" not in device.tensor_tflops:
        raise DeviceError(
            f"{device.id} has no fp4 units; use --weights int4, or fp8 where the GPU has it, or --device b200."
        )


def divide(
    base: Deployment, tokens: int, clients: int, fraction: float, gpus: int | None,
    sizes: tuple[int | None, int | None, int | None, int | None],
) -> Deployment:  # fmt: skip
    """How the model is divided: as asked for, else over all GPUs by tensors.

    Where no GPUs are named: over the least that hold all requests, or one request if a node does not hold all.
    ``sizes`` are tensor, pipeline, data and expert parallelism; None is not asked for.
    """
    names = ("tensor-parallel", "pipeline-parallel", "data-parallel", "expert-parallel", "gpus")
    for name, size in zip(names, (*sizes, gpus), strict=True):
        if size is not None and size < 1:
            raise InputError(f"--{name} is {size}; it must be at least 1.")
    tensor, pipeline, data, expert = sizes
    if expert is not None and expert > 1 and not base.architecture.has_experts:
        raise InputError(f"{base.architecture.name} has no experts; leave --expert-parallel out.")
    rest = (pipeline or 1) * (data or 1)
    if tensor is None and gpus is not None:
        if gpus % rest:
            raise InputError(f"--gpus {gpus} is not a multiple of pipeline × data parallelism, {rest}.")
        whole = gpus // rest
        tensor = _largest_tensor(base, min(whole, GPUS_PER_NODE), whole)
        # what tensors do not take: stages where one group of GPUs is too small, else replicas
        over = whole // tensor
        if over > 1 and pipeline is None and data is None:
            alone = replace(base, tensor=tensor)
            pipeline, data = (1, over) if alone.max_concurrency(tokens, fraction) else (over, 1)
        elif over > 1:
            raise InputError(f"--gpus {gpus} is not tensor × pipeline × data parallelism; {tensor * rest} would be.")
    elif tensor is None and pipeline is None and data is None:
        spread = replace(base, expert=expert or 1)
        chosen = smallest(spread, tokens, fraction, clients) or smallest(spread, tokens, fraction)
        if chosen is not None:
            return chosen
        tensor = 1
    place = replace(base, tensor=tensor or 1, pipeline=pipeline or 1, data=data or 1, expert=expert or 1)
    if gpus is not None and place.gpus != gpus:
        raise InputError(
            f"--gpus {gpus} is not tensor × pipeline × data parallelism, {place.tensor} × {place.pipeline} × "
            f"{place.data} = {place.gpus}; leave --gpus out, or change one of them."
        )
    place.check()
    if place.gpus > 1:
        check_gpus(place.gpus, fabric_of(base.device, network=base.network))
    return place


def smallest(base: Deployment, tokens: int, fraction: float, clients: int = 1) -> Deployment | None:
    """The division over the least GPUs that hold the weights and so many requests; None where a node is too small."""
    most = GPUS_PER_NODE if base.network is None else _COUNTS[-1]
    for count in _COUNTS:
        if count > most:
            return None
        tensor = _largest_tensor(base, min(count, GPUS_PER_NODE), count)
        if tensor % base.expert:
            continue
        place = replace(base, tensor=tensor, pipeline=count // tensor, data=1)
        try:
            place.check()
        except InputError:
            continue
        if place.max_concurrency(tokens, fraction) >= clients:
            return place
    return None


def _largest_tensor(base: Deployment, most: int, divides: int) -> int:
    """The largest tensor parallelism that the model's sizes and a number of GPUs allow."""
    for size in range(most, 1, -1):
        if divides % size:
            continue
        try:
            replace(base, tensor=size, pipeline=1, data=1, expert=1).check()
        except InputError:
            continue
        return size
    return 1

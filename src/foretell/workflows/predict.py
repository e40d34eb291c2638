"""Workflows: load a model and predict how it runs on a device."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.advisors.mig import check_latency_limit, choose_mig
from foretell.devices import Device, MigProfile, all_devices, parse_slice
from foretell.errors import DataError, InputError
from foretell.files import write_whole
from foretell.graph.ir.operators import lookup
from foretell.predictors import Predictor
from foretell.predictors.host_latency import with_host_latency
from foretell.records import Estimate, Prediction, Workload
from foretell.registry import did_you_mean
from foretell.workflows.measure.calibrate import read_calibration
from foretell.workflows.workload import (
    COMPILED,
    CUDA_GRAPH,
    Configuration,
    InputShape,
    choose_predictor,
    load_graph,
    read_configuration,
    runtime_name,
)

# formats that no product was measured in, by the dtype of a tensor
_SMALL_FORMATS = {"fp8": "fp8", "fp4": "fp4", "int8": "int8", "uint8": "int8"}
EXPLAINED = ("units", "kernels")


def predict(
    model: Any,
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    runtime: str = CUDA_GRAPH,
    slice: str | None = None,
    optimizer: str | None = None,
    channels_last: bool = False,
    predictor: str | None = None,
    latency_limit_ms: float | None = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    as_written: bool = False,
    use_cache: bool = True,
    memory_limit_gib: float | None = None,
    timeout_s: float | None = None,
    explain: bool | str = False,
    trace: str | Path | None = None,
    store: str | Path | None = None,
    gpus: int = 1,
    parallel: str = "ddp",
    network: str | None = None,
    gpus_per_node: int = 8,
    threads: int = 1,
) -> Prediction:
    """Predict how a model will run on a device, without running it.

    Args:
        model: An object of a framework, a path, or a spec such as ``timm:resnet50``.
        device: A name from the catalogue, in any usual spelling.
        batch_size: Items in a batch.
        input_shape: Shape of the input without the batch; a dictionary if there are several inputs.
        dtype: fp32, tf32, fp16, bf16, …; in training fp16 and bf16 mean autocast. In fp32 convolutions run in TF32, as
            PyTorch sets it, and in tf32 matrix products too.
        mode: inference, training, prefill or decode.
        runtime: What drives the device: ``cuda-graph``, ``eager``, ``compiled`` (by torch.compile, inference), or
            ``onnxruntime`` (on a CPU, inference).
        slice: A part of the device: ``mps:30``, ``mig:1g.18gb``, ``sms:66``.
        optimizer: sgd (momentum) or adamw, in training.
        channels_last: Model and images are converted with ``.to(memory_format=torch.channels_last)``.
        predictor: The name of a predictor, or a file of ``foretell train``; the best one for the device by default.
        latency_limit_ms: The longest latency allowed; the MIG profile must meet it, and a miss gives a warning.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move instead of refusing them.
        as_written: Count QuantizeLinear and DequantizeLinear of an ONNX file by themselves; engines fuse them.
        use_cache: Store the converted graph for the next call.
        memory_limit_gib: Memory that reading a file may take; 8 GiB by default.
        timeout_s: Seconds that reading a file may take; 300 by default.
        explain: Also predict which units of work take the time; ``kernels``: and the classes of their kernels.
        trace: A file for the timeline of the units, to view in Chrome or Perfetto.
        store: A folder of measurements; if it has this workload, they replace the prediction.
        gpus: How many of the device train together; each has ``batch_size`` items.
        parallel: How they share the step: ddp, zero1, zero2, zero3 (FSDP) or tensor.
        network: What connects nodes: infiniband-ndr, -hdr or -edr, or the GB/s of one GPU as text.
        gpus_per_node: GPUs of one node.
        threads: Threads of a CPU, each on a core of its own: 1 or 2.

    >>> from foretell.testing import tiny_onnx
    >>> p = predict(tiny_onnx(), device="a100", batch_size=8, dtype="fp16")
    >>> p.latency_ms.low < p.latency_ms.value < p.latency_ms.high
    True
    >>> p.mig
    '1g.5gb'
    """
    check_latency_limit(latency_limit_ms)
    if isinstance(explain, str) and explain not in EXPLAINED:
        raise InputError(f"Cannot explain {explain!r}.{did_you_mean(explain, EXPLAINED)}")
    if store is not None:
        check_store(store)
    configuration = read_configuration(
        device=device, slice=slice, runtime=runtime, batch_size=batch_size, dtype=dtype, mode=mode, optimizer=optimizer,
        channels_last=channels_last, threads=threads,
    )  # fmt: skip
    check_parallel(configuration, gpus, parallel, network, gpus_per_node)
    target, is_compiled = configuration.target, runtime_name(runtime) == COMPILED
    selected = choose_predictor(predictor, target)
    if is_compiled:
        # Imported late: only this runtime needs it.
        from foretell.training.compiled import check_compile_request, on_compile

        check_compile_request(mode, target.device, {"--explain": explain, "--trace": trace, "--store": store})
        selected = on_compile(selected, target.device.id)
    graph = load_graph(
        model,
        input_shape=input_shape,
        batch_size=configuration.batch_size,
        mode=mode,
        context=context,
        trust=trust,
        allow_unknown=allow_unknown,
        as_written=as_written,
        use_cache=use_cache,
        memory_limit_gib=memory_limit_gib,
        timeout_s=timeout_s,
    )
    workload = configuration.workload(graph)
    prediction = with_precision(selected.predict(workload), workload)
    if store is not None:
        # After predicting: metrics that were not measured stay predicted.
        from foretell.workflows.recall import recall

        prediction = recall(prediction, workload, graph, Path(store), model)
    if gpus > 1:
        from foretell.predictors.llm.collectives import fabric_of
        from foretell.predictors.parallel.training import predict_parallel

        fabric = fabric_of(target.device, gpus_per_node=gpus_per_node, network=network)
        prediction = predict_parallel(prediction, workload, selected, parallel, gpus, fabric)
    else:
        prediction = advise_mig(prediction, workload, selected, latency_limit_ms)
    latency = prediction.latency_ms
    if explain and latency is not None:
        prediction = _explain(prediction, workload, selected, latency.value, kernels=explain == "kernels")
    if trace is not None and latency is not None:
        from foretell.predictors.explain import timeline
        from foretell.predictors.kernels.shares import classifier_for

        events = timeline(workload, selected, latency.value, classifier_for(target)[0])
        try:
            write_whole(Path(trace), json.dumps(events).encode())
        except OSError as error:
            raise InputError(f"Cannot write the trace {trace}: {error.strerror}. Choose another --trace.") from error
    if latency is not None and latency_limit_ms is not None and latency.value > latency_limit_ms:
        warning = f"Takes about {latency.value:.3g} ms here, more than the limit of {latency_limit_ms:g} ms."
        prediction = replace(prediction, warnings=(*prediction.warnings, warning))
    # The calibration is about eager launches, which torch.compile avoids.
    return prediction if is_compiled or gpus > 1 else with_host_latency(prediction, workload, read_calibration())


def check_store(store: str | Path) -> None:
    """Refuse a folder without measurements, before a model is read."""
    folder = Path(store)
    if not folder.is_dir():
        raise DataError(f"There is no folder {store} with measurements. Choose another --store.")


def check_parallel(
    configuration: Configuration, gpus: int, parallel: str, network: str | None, gpus_per_node: int
) -> None:
    """Refuse several GPUs that cannot work together, before a model is read."""
    if gpus == 1 and not isinstance(gpus, bool):
        return
    from foretell.predictors.llm.collectives import check_gpus, fabric_of
    from foretell.predictors.parallel.training import check_strategy

    check_strategy(parallel)
    check_gpus(gpus, fabric_of(configuration.target.device, gpus_per_node=gpus_per_node, network=network))
    if configuration.mode != "training":
        raise InputError(
            f"Several GPUs are predicted for training, not for {configuration.mode}: use --mode training, "
            "or foretell llm for serving language models."
        )
    if configuration.target.slice is not None:
        raise InputError("Several GPUs are predicted for whole GPUs: leave out the slice.")


def _explain(
    prediction: Prediction, workload: Workload, predictor: Predictor, latency_ms: float, *, kernels: bool
) -> Prediction:
    """Add the units of work and, if requested, the classes of their kernels."""
    from foretell.predictors.explain import explain, explain_kernels
    from foretell.predictors.kernels.shares import classifier_for

    classifier, warning = classifier_for(workload.target) if kernels else (None, None)
    prediction = replace(prediction, units=explain(workload, predictor, latency_ms, classifier=classifier))
    if classifier is not None:
        prediction = replace(prediction, kernels=explain_kernels(workload, predictor, latency_ms, classifier))
    return replace(prediction, warnings=(*prediction.warnings, *([warning] if warning else [])))


def with_precision(prediction: Prediction, workload: Workload) -> Prediction:
    """Say that a small format was not measured, and widen the intervals; a device may lack its units altogether."""
    device = workload.target.device
    dtype = _small_format(workload) or workload.dtype
    if dtype not in _SMALL_FORMATS.values():
        return prediction
    lacks = dtype not in device.tensor_tflops
    warning = (
        f"{device.id} has no {dtype} units: {dtype} saves memory there, and products run in a wider format. "
        "No such run was measured."
        if lacks
        else f"No operator was measured in {dtype}: times follow from those in other formats."
    )
    wide = 2.0 if lacks else 1.5

    def wider(estimate: Estimate | None) -> Estimate | None:
        return estimate and Estimate(estimate.value, estimate.low / wide, estimate.high * wide)

    return replace(
        prediction,
        latency_ms=wider(prediction.latency_ms),
        throughput_per_s=wider(prediction.throughput_per_s),
        energy_j=wider(prediction.energy_j),
        warnings=(*prediction.warnings, warning),
    )


def _small_format(workload: Workload) -> str | None:
    """The format of 8 or 4 bits in which a product or convolution of a quantised model reads its activations."""
    graph = workload.graph
    if all(tensor.dtype not in _SMALL_FORMATS for tensor in graph.classes.types):
        return None
    read = (
        graph.tensors[node.inputs[0]].dtype
        for node in graph.nodes
        if node.inputs and node.inputs[0] and lookup(node.op, node.domain).kind == "contraction"
    )
    return next((_SMALL_FORMATS[dtype] for dtype in read if dtype in _SMALL_FORMATS), None)


def advise_mig(
    prediction: Prediction, workload: Workload, predictor: Predictor, latency_limit_ms: float | None = None
) -> Prediction:
    """Add the MIG profile, if the prediction is for a whole device that supports MIG."""
    target = workload.target
    if target.slice is not None or not target.device.mig_profiles or prediction.device_memory_mib is None:
        return prediction

    def latency_ms_on(profile: MigProfile) -> Estimate:
        from foretell.predictors.slices.model import on_slices  # only a latency limit needs it

        part = replace(target, slice=parse_slice(f"mig:{profile.name}", target.device))
        latency_ms = on_slices(predictor, target.device).predict(replace(workload, target=part)).latency_ms
        if latency_ms is None:
            raise InputError(
                f"The predictor {prediction.predictor!r} does not predict latency: leave out the latency limit."
            )
        return latency_ms

    choice = choose_mig(
        target.device,
        prediction.device_memory_mib,
        latency_ms_on=None if latency_limit_ms is None else latency_ms_on,
        latency_limit_ms=latency_limit_ms,
    )
    return replace(prediction, mig=choice.profile, mig_reason=choice.reason)


def devices() -> list[Device]:
    """All devices of the catalogue.

    >>> "h200" in [d.id for d in devices()]
    True
    """
    return list(all_devices())

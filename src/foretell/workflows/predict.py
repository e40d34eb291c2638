"""workflows: load a model, place it on a device, predict."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from foretell.advisors import check_latency_limit, choose_mig
from foretell.devices import Device, MigProfile, all_devices, find_device, parse_slice
from foretell.errors import InputError
from foretell.files import write_whole
from foretell.frontends import MODES, InputSpec, ModelRequest, convert, parse_inputs
from foretell.graph import Graph, parse_dtype
from foretell.graph.training import find_optimizer
from foretell.predictors import Predictor, find_predictor
from foretell.predictors.host_latency import with_host_latency
from foretell.records import Estimate, Prediction, Target, Workload
from foretell.registry import did_you_mean
from foretell.workflows.calibrate import read_calibration

COMPILE = "compile"
RUNTIMES = ("cuda-graph", "eager", COMPILE)
EXPLAINED = ("units", "kernels")
MAX_BATCH = 2**20
InputShape = str | Sequence[int] | Sequence[str] | Mapping[str, Sequence[int]] | None


def read_input_shape(shape: InputShape) -> tuple[InputSpec, ...]:
    """Inputs as people give them, without the batch: a shape, several ``--input`` texts, or a dictionary of shapes.

    >>> read_input_shape((3, 224, 224)) == read_input_shape("3x224x224") == read_input_shape(["3x224x224"])
    True
    """
    if not shape:
        return ()
    if isinstance(shape, str):
        return parse_inputs([shape])
    if isinstance(shape, Mapping):
        return tuple(
            parse_inputs(f"{name}={'x'.join(str(d) for d in sizes) or 'scalar'}" for name, sizes in shape.items())
        )
    if all(isinstance(d, str) for d in shape):
        return parse_inputs([str(d) for d in shape])
    return parse_inputs(["x".join(str(d) for d in shape)])


def load_graph(
    model: Any,
    *,
    input_shape: InputShape = None,
    batch_size: int = 1,
    dtype: str | None = None,
    mode: str = "inference",
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
) -> Graph:
    """The graph of a model at a batch size, cast to ``dtype`` where one is given.

    >>> from foretell.testing import tiny_onnx
    >>> graph = load_graph(tiny_onnx(), batch_size=4)
    >>> graph.batch_size, graph.parameter_count
    (4, 248)
    """
    if not 1 <= batch_size <= MAX_BATCH:
        raise InputError(f"The batch size is {batch_size}; it must be between 1 and {MAX_BATCH}.")
    if context is not None and context < 1:
        raise InputError(f"The context is {context}; it must be 1 token or more.")
    wanted = parse_dtype(dtype) if dtype is not None else None
    request = ModelRequest(
        model, read_input_shape(input_shape), mode=mode, context=context, trust=trust, allow_unknown=allow_unknown
    )
    graph = convert(request, use_cache=use_cache).with_batch(batch_size)
    return graph if wanted is None else graph.with_dtype(wanted)


def predict(
    model: Any,
    *,
    device: str | Device = "h200",
    batch_size: int = 1,
    input_shape: InputShape = None,
    dtype: str = "fp32",
    mode: str = "inference",
    runtime: str = "cuda-graph",
    slice: str | None = None,
    optimizer: str | None = None,
    predictor: str | None = None,
    latency_limit_ms: float | None = None,
    context: int | None = None,
    trust: bool = False,
    allow_unknown: bool = False,
    use_cache: bool = True,
    explain: bool | str = False,
    trace: str | Path | None = None,
    store: str | Path | None = None,
) -> Prediction:
    """Tell how a model will run on a device, without running it.

    Args:
        model: An object of a framework, a path, or a spec such as ``timm:resnet50``.
        device: A name of the catalogue, as people write it.
        batch_size: Items a batch.
        input_shape: Shape of the input without the batch; a dictionary where there are several.
        dtype: fp32, fp16, bf16, …; in training fp16 and bf16 mean autocast.
        mode: inference, training, prefill or decode.
        runtime: What drives the device: ``cuda-graph``, ``eager``, or ``compile`` (torch.compile, inference).
        slice: A part of it: ``mps:30``, ``mig:1g.18gb``, ``sms:66``.
        optimizer: sgd (momentum) or adamw, in training.
        predictor: The name of a predictor, or a file of ``foretell train``; the best one for the device where absent.
        latency_limit_ms: The longest time allowed: the MIG profile must keep it, and a warning says where it is missed.
        context: Tokens already in the cache, when decoding.
        trust: Allow code that comes with the model to run.
        allow_unknown: Count operators of unknown domains by the bytes they move instead of refusing them.
        use_cache: Keep the converted graph for the next call.
        explain: Tell which units of work take the time, too; ``kernels``: and which kernels they run, by class.
        trace: A file to write the units to, one after the other, for Chrome or Perfetto.
        store: A folder of measurements; where it has this computation on this device, they are the answer.

    >>> from foretell.testing import tiny_onnx
    >>> p = predict(tiny_onnx(), device="a100", batch_size=8, dtype="fp16")
    >>> p.latency_ms.low < p.latency_ms.value < p.latency_ms.high
    True
    >>> p.mig
    '1g.5gb'
    """
    check_latency_limit(latency_limit_ms)
    if mode not in MODES:
        raise InputError(f"Unknown mode {mode!r}.{did_you_mean(mode, MODES)}")
    if isinstance(explain, str) and explain not in EXPLAINED:
        raise InputError(f"Nothing explains {explain!r}.{did_you_mean(explain, EXPLAINED)}")
    if runtime not in RUNTIMES:
        raise InputError(f"Unknown runtime {runtime!r}.{did_you_mean(runtime, RUNTIMES)}")
    number = parse_dtype(dtype)
    place = device if isinstance(device, Device) else find_device(device)
    target = Target(place, parse_slice(slice, place) if slice else None, "eager" if place.is_cpu else runtime)
    if mode == "training":
        optimizer = optimizer or "sgd"
        find_optimizer(optimizer)
    elif optimizer is not None:
        raise InputError(f"An optimizer ({optimizer!r}) needs --mode training.")
    answerer = find_predictor(predictor, place.id)
    if target.slice is not None:
        from foretell.predictors.slice_model import on_slices  # with numpy: predicting shall start quickly

        answerer = on_slices(answerer, place.id)
    if runtime == COMPILE:
        from foretell.workflows.compiled import check_asked, on_compile

        check_asked(mode, place, {"--explain": explain, "--trace": trace, "--store": store})
        answerer = on_compile(answerer, place.id)
    graph = load_graph(
        model,
        input_shape=input_shape,
        batch_size=batch_size,
        mode=mode,
        context=context,
        trust=trust,
        allow_unknown=allow_unknown,
        use_cache=use_cache,
    )
    autocast = mode == "training" and number in ("fp16", "bf16")
    workload = Workload(graph if autocast else graph.with_dtype(number), target, number, mode, optimizer)
    prediction = answerer.predict(workload)
    if store is not None:
        from foretell.workflows.recall import recall

        prediction = recall(prediction, workload, graph, Path(store))
    prediction = _advise_mig(prediction, workload, answerer, latency_limit_ms)
    latency = prediction.latency_ms
    if explain and latency is not None:
        prediction = _explain(prediction, workload, answerer, latency.value, kernels=explain == "kernels")
    if trace is not None and latency is not None:
        from foretell.workflows.explain import timeline
        from foretell.workflows.kernel_shares import classifier_for

        events = timeline(workload, answerer, latency.value, classifier_for(target)[0])
        try:
            write_whole(Path(trace), json.dumps(events).encode())
        except OSError as error:
            raise InputError(f"Cannot write the trace {trace}: {error.strerror}. Choose another --trace.") from error
    if latency is not None and latency_limit_ms is not None and latency.value > latency_limit_ms:
        late = f"Takes about {latency.value:.3g} ms here: more than the limit of {latency_limit_ms:g} ms."
        prediction = replace(prediction, warnings=(*prediction.warnings, late))
    return prediction if runtime == COMPILE else with_host_latency(prediction, workload, read_calibration())


def _explain(
    prediction: Prediction, workload: Workload, answerer: Predictor, latency_ms: float, *, kernels: bool
) -> Prediction:
    """The prediction with its units of work and, if asked for, the classes of their kernels."""
    from foretell.workflows.explain import explain, explain_kernels
    from foretell.workflows.kernel_shares import classifier_for

    classifier, warning = classifier_for(workload.target) if kernels else (None, None)
    prediction = replace(prediction, units=explain(workload, answerer, latency_ms, classifier=classifier))
    if classifier is not None:
        prediction = replace(prediction, kernels=explain_kernels(workload, answerer, latency_ms, classifier))
    return replace(prediction, warnings=(*prediction.warnings, *([warning] if warning else [])))


def _advise_mig(
    prediction: Prediction, workload: Workload, answerer: Predictor, latency_limit_ms: float | None
) -> Prediction:
    """The prediction with its MIG profile, where the whole of a device with MIG was asked about."""
    target = workload.target
    if target.slice is not None or not target.device.mig_profiles or prediction.device_memory_mib is None:
        return prediction

    def latency_ms_on(profile: MigProfile) -> Estimate:
        part = replace(target, slice=parse_slice(f"mig:{profile.name}", target.device))
        latency_ms = answerer.predict(replace(workload, target=part)).latency_ms
        if latency_ms is None:
            raise InputError(f"The predictor {prediction.predictor!r} knows no latency: leave out the latency limit.")
        return latency_ms

    choice = choose_mig(
        target.device,
        prediction.device_memory_mib,
        latency_ms_on=None if latency_limit_ms is None else latency_ms_on,
        latency_limit_ms=latency_limit_ms,
    )
    return replace(prediction, mig=choice.profile, mig_reason=choice.reason)


def devices() -> list[Device]:
    """The catalogue.

    >>> "h200" in [d.id for d in devices()]
    True
    """
    return list(all_devices())

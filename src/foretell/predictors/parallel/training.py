"""Predictors: parallel: a training step on several GPUs: memory of each, and time with communication overlapped.

Every GPU has a batch of its own, except with ``tensor``, where all work on one. The step of one GPU is predicted; what
several add follows from how frameworks do it:

* ``ddp``: PyTorch's DistributedDataParallel. Gradients are collected in buckets (1 MiB, then 25 MiB) in the order in
  which backward makes them, and all-reduced one after the other while backward goes on. It keeps a second copy of all
  gradients for the buckets.
* ``zero1``, ``zero2``: Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", SC
  2020. Buckets are reduce-scattered; each GPU updates its share of the parameters, and all are gathered at the end.
  Optimizer states are shared out, in ``zero2`` gradients too.
* ``zero3``: the same as PyTorch's FSDP. Parameters are shared out as well. Those of a block are gathered before its
  forward and again before its backward, one block ahead, and gradients are reduce-scattered behind. One stream
  communicates.
* ``tensor``: Shoeybi et al., "Megatron-LM", 2019: products and heads are divided; two all-reduces of the activations in
  the forward and two in the backward of each layer, which nothing hides. Activations: Korthikanti et al., "Reducing
  Activation Recomputation in Large Transformer Models", 2022, equation 2.

Limits: communication takes no SMs and no bandwidth from what it overlaps with, beyond a constant for waiting; smaller
products of ``tensor`` reach the same share of the peak. No training on several GPUs was measured here.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from foretell.errors import InputError
from foretell.graph.memory.training import StepMemory, training_memory
from foretell.predictors.llm.collectives import Fabric, Kind, check_gpus, collective_time
from foretell.predictors.parallel.step_parts import Block, StepParts, step_parts
from foretell.predictors.protocol import Predictor
from foretell.records import Estimate, Parallelism, Prediction, Workload
from foretell.registry import did_you_mean
from foretell.units import MIB, mib, ms, per_second, seconds_from_ms

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "tensor")
FIRST_BUCKET_BYTES, BUCKET_BYTES = MIB, 25 * MIB
# of the bytes of a layer's activations, 10 of 34 are whole on every GPU
_WHOLE_ACTIVATIONS = 10 / 34
# how the memory of several GPUs may differ from that of one, beyond its own interval: it was not measured
_MEMORY_LOW, _MEMORY_HIGH = 0.9, 1.15

# GPUs wait for the slowest of them: four published runs of DDP on 8 GPUs lose 2.0 to 4.6 % where communication is
# hidden. On many GPUs more is lost than collectives explain: FSDP on 2,048 H100 reaches 37 % less than on 128
# (docs/lab/0040-training-parallel.md). So the upper end grows with every doubling of the GPUs of a node.
_WAITING = {"value": 0.033, "low": 0.0, "high": 0.1}
_WAITING_PER_DOUBLING, _NODE_GPUS, _MANY_GPUS = 0.07, 8, 128

Exchange = Callable[[Kind, float], float]
"""How long a collective of so many bytes takes, in seconds."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a step: all of it, what is computed, and what is communicated."""

    whole: float
    computed: float
    communicated: float


def predict_parallel(
    prediction: Prediction, workload: Workload, predictor: Predictor, strategy: str, gpus: int, fabric: Fabric
) -> Prediction:
    """The same step on several GPUs; on one it is the prediction itself."""
    check_strategy(strategy)
    check_gpus(gpus, fabric)
    if gpus == 1:
        return prediction
    if not workload.is_training:
        raise InputError(
            f"Several GPUs are predicted for training, not for {workload.mode}: use --mode training, "
            "or foretell llm for serving language models."
        )
    latency, memory = prediction.latency_ms, prediction.memory_mib
    if latency is None or memory is None:
        raise InputError(f"The predictor {prediction.predictor!r} does not predict latency and memory; choose another.")
    parts, notes = step_parts(workload, predictor), set[str]()
    if strategy == "tensor":
        check_heads(parts, gpus, prediction.model)
    ends = []
    for step_ms, end in ((latency.value, "value"), (latency.low, "low"), (latency.high, "high")):

        def exchange(kind: Kind, size_bytes: float, end: str = end) -> float:
            time = collective_time(kind, size_bytes, gpus, fabric)
            notes.update(time.extrapolated)
            return float(getattr(time.seconds, end))

        times = step_times(parts, strategy, gpus, seconds_from_ms(step_ms), exchange)
        ends.append((times, times.whole + _waiting(end, gpus) * times.computed))
    step = Estimate(*(ms(whole) for _, whole in ends))
    together = strategy == "tensor"  # all GPUs work on one batch
    items = workload.batch_size * (1 if together else gpus)
    # without communication, and with nothing done twice
    ideal_s = [seconds_from_ms(own) / gpus for own in (latency.value, latency.low, latency.high)]
    shares = [(own if together else end.computed) / whole for own, (end, whole) in zip(ideal_s, ends, strict=True)]
    needed = _needed(memory, workload, parts, strategy, gpus)
    return replace(
        prediction,
        latency_ms=step,
        throughput_per_s=step.inverted(per_second(items, 1.0)),
        memory_mib=needed,
        device_memory_mib=_with_context(prediction, memory, needed),
        # these were measured and fitted on one GPU
        host_latency_ms=None,
        energy_j=None,
        power_w=None,
        occupancy=None,
        extrapolated=True,
        warnings=(*prediction.warnings, *_warnings(workload, strategy, gpus, notes)),
        parallel=Parallelism(
            strategy=strategy,
            gpus=gpus,
            batch_size=items,
            network=fabric.network if gpus > fabric.gpus_per_node else None,
            efficiency=Estimate(shares[0], min(shares), max(shares)),
            communication_ms=Estimate(*(ms(end.communicated) for end, _ in ends)),
            exposed_ms=Estimate(*(ms(end.whole - end.computed) for end, _ in ends)),
        ),
    )


def _waiting(end: str, gpus: int) -> float:
    """What GPUs wait for each other, as a share of what they compute."""
    doublings = math.log2(max(gpus / _NODE_GPUS, 1)) if end == "high" else 0.0
    return _WAITING[end] + _WAITING_PER_DOUBLING * doublings


def check_strategy(strategy: str) -> None:
    """Refuse an unknown strategy."""
    if strategy not in STRATEGIES:
        raise InputError(f"Unknown parallelism {strategy!r}.{did_you_mean(strategy, STRATEGIES)}")


def check_heads(parts: StepParts, gpus: int, model: str) -> None:
    """Refuse tensor parallelism that does not divide the heads."""
    if not parts.attentions:
        raise InputError(f"Tensor parallelism divides heads of attention, and {model} has none: use ddp or zero3.")
    heads = min(own for own, _ in parts.attentions)
    if any(own % gpus for own, _ in parts.attentions):
        allowed = [number for number in range(2, heads + 1) if not any(own % number for own, _ in parts.attentions)]
        works = f"use {', '.join(map(str, allowed))} GPUs" if allowed else "use ddp or zero3"
        raise InputError(f"{gpus} GPUs do not divide the {heads} heads of {model}: {works}.")


def step_times(parts: StepParts, strategy: str, gpus: int, step_s: float, exchange: Exchange) -> StepTimes:
    """How long a step takes whose time on one GPU is ``step_s``."""
    spent: list[float] = []

    def counted(kind: Kind, size_bytes: float) -> float:
        seconds = exchange(kind, size_bytes) if size_bytes else 0.0
        spent.append(seconds)
        return seconds

    forward, backward = step_s * parts.forward, step_s * parts.backward
    # a share of the parameters is a share of the bytes, and as many launches
    update = step_s * (parts.optimizer - (0.0 if strategy == "ddp" else parts.moved * (1 - 1 / gpus)))
    computed = forward + backward + update
    if strategy == "ddp":
        whole = forward + _buckets(parts, step_s, "all-reduce", counted) + update
    elif strategy in ("zero1", "zero2"):
        whole = forward + _buckets(parts, step_s, "reduce-scatter", counted) + update
        whole += counted("all-gather", parts.parameter_bytes)
    elif strategy == "zero3":
        whole = _gathered(parts.blocks, step_s, counted) + update
    else:
        computed -= step_s * parts.splittable * (1 - 1 / gpus)
        # the results of attention and of the feed-forward part, forward and backward
        whole = computed + sum(4 * counted("all-reduce", size) for _, size in parts.attentions)
        spent = [4 * own for own in spent]
    return StepTimes(max(whole, computed), computed, sum(spent))


def _buckets(parts: StepParts, step_s: float, kind: Kind, exchange: Exchange) -> float:
    """How long backward takes with the exchange of all gradients, bucket by bucket beside it."""
    end_s = 0.0
    for ready, size in buckets(parts.ready):
        end_s = max(end_s, ready * step_s) + exchange(kind, size)
    return max(end_s, parts.backward * step_s)


def buckets(ready: Iterable[tuple[float, int]]) -> Iterator[tuple[float, int]]:
    """Gradients in the order in which they are ready, collected until a bucket is full: when it is, and its bytes.

    >>> list(buckets([(0.1, 2 * MIB), (0.2, 20 * MIB), (0.3, 6 * MIB), (0.4, MIB)]))
    [(0.1, 2097152), (0.3, 27262976), (0.4, 1048576)]
    """
    limit, filled, moment = FIRST_BUCKET_BYTES, 0, 0.0
    for moment, size in ready:
        filled += size
        if filled >= limit:
            yield moment, filled
            limit, filled = BUCKET_BYTES, 0
    if filled:
        yield moment, filled


def _gathered(blocks: tuple[Block, ...], step_s: float, exchange: Exchange) -> float:
    """Forward and backward of FSDP: blocks are gathered one ahead, gradients scattered behind, in one stream."""
    root, rest = blocks[0], blocks[1:]
    # the root is gathered before anything runs, and kept; its own work is done beside the blocks, here at the ends
    stream_s = exchange("all-gather", root.parameter_bytes)
    compute_s = stream_s + root.forward * step_s
    before_s = stream_s
    for block in rest:
        # a gather may begin when the block before the one that runs is over: two blocks are in memory
        stream_s = max(stream_s, before_s) + exchange("all-gather", block.parameter_bytes)
        before_s = compute_s
        compute_s = max(compute_s, stream_s) + block.forward * step_s
    gathered_s = compute_s  # the last block is still there from the forward
    for number in range(len(rest) - 1, -1, -1):
        begin_s = max(compute_s, gathered_s)
        if number:
            gathered_s = stream_s = max(stream_s, begin_s) + exchange("all-gather", rest[number - 1].parameter_bytes)
        compute_s = begin_s + rest[number].backward * step_s
        stream_s = max(stream_s, compute_s) + exchange("reduce-scatter", rest[number].parameter_bytes)
    compute_s += root.backward * step_s
    return max(compute_s, stream_s) + exchange("reduce-scatter", root.parameter_bytes)


def memory_bytes(memory: StepMemory, strategy: str | None, gpus: int, blocks: tuple[Block, ...] = ()) -> float:
    """The peak of one GPU; without a strategy that of a GPU alone."""
    share = 1 / gpus
    parameters, states, update = float(memory.parameters), float(memory.states), float(memory.update)
    activations, gradients, extra = 1.0, 1.0, 0.0
    if strategy == "ddp":
        extra = memory.gradients
    if strategy in ("zero1", "zero2", "zero3"):
        states, update, extra = states * share, update * share, min(BUCKET_BYTES, memory.gradients)
    if strategy in ("zero2", "zero3"):
        gradients = share
    if strategy == "zero3":
        sizes = sorted((block.parameter_bytes for block in blocks[1:]), reverse=True)
        root = blocks[0].parameter_bytes if blocks else 0
        whole = root + sum(sizes[:2])  # one block runs, the next is there already
        parameters, extra = parameters * share, min(whole, memory.parameters * (1 - share)) + sum(sizes[:1])
    if strategy == "tensor":
        parameters, states, gradients, update = parameters * share, states * share, share, update * share
        activations = _WHOLE_ACTIVATIONS + (1 - _WHOLE_ACTIVATIONS) * share
    moments = (live * activations + own * gradients for live, own in memory.live)
    peak = max((*moments, memory.gradients * gradients + update))
    return parameters + memory.others + states + extra + peak


def _needed(memory: Estimate, workload: Workload, parts: StepParts, strategy: str, gpus: int) -> Estimate:
    """The predicted memory of one GPU, less what others take over."""
    split = training_memory(workload.running_graph, workload.optimizer or "sgd", cuda=not workload.target.device.is_cpu)
    alone, shared = memory_bytes(split, None, 1), memory_bytes(split, strategy, gpus, parts.blocks)
    # what the allocator and libraries take beyond the sum of blocks stays
    value = max(memory.value + mib(shared - alone), mib(shared) / 2)
    low = value * (memory.low / memory.value) * _MEMORY_LOW
    return Estimate(value, low, value * (memory.high / memory.value) * _MEMORY_HIGH)


def _with_context(prediction: Prediction, memory: Estimate, needed: Estimate) -> Estimate | None:
    """Memory as the driver counts it: the context and libraries take as much as before; NCCL's buffers are unknown."""
    device = prediction.device_memory_mib
    if device is None:
        return None
    return Estimate(
        needed.value + device.value - memory.value, needed.low + device.low - memory.low,
        needed.high + device.high - memory.high,
    )  # fmt: skip


def _warnings(workload: Workload, strategy: str, gpus: int, notes: set[str]) -> Iterator[str]:
    whose = "of all GPUs together" if strategy == "tensor" else f"of each GPU, {workload.batch_size * gpus:,} in all"
    yield (
        f"Training on several GPUs was not measured: one GPU is predicted, {gpus:,} follow from the times of "
        f"collectives, from how {strategy} overlaps them, and from {_WAITING['value']:.1%} for waiting on each other. "
        f"The batch size is that {whose}."
    )
    if gpus > _MANY_GPUS:
        yield (
            f"On more than {_MANY_GPUS} GPUs the value is optimistic, and the interval wide: published runs of FSDP on "
            "2,048 H100 reach 37 % less a GPU than on 128 (arXiv 2411.13055)."
        )
    if notes:
        yield f"Extrapolated: {'; '.join(sorted(notes))}."

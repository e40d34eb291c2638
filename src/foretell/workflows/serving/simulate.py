"""Workflows: simulate servers of a language model under a stream of requests: percentiles, goodput, throughput.

`foretell llm` tells the means of a steady load; here requests arrive at random, from a trace, or in a closed loop, and
every one is followed (`foretell.scheduling.serving`). Step times are those of `foretell llm`.
"""

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.devices import Device, device_of
from foretell.errors import InputError
from foretell.predictors.llm.architecture import load_architecture
from foretell.predictors.llm.collectives import GPUS_PER_NODE, collective_time, fabric_of
from foretell.predictors.llm.deployment import MEMORY_FRACTION, Deployment
from foretell.predictors.llm.engines import RULES, Engine, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.placement import choose_precision, divide, smallest
from foretell.predictors.llm.power import SPREAD, power_w, touched
from foretell.predictors.llm.steps import Steps
from foretell.readable import Readable, flat_row, spell
from foretell.records import Estimate
from foretell.registry import did_you_mean
from foretell.scheduling import serving
from foretell.scheduling.serving.totals import Spread
from foretell.units import MIB, ms, seconds_from_us
from foretell.workflows.llm import check_count

MAX_REQUESTS = 1024  # vLLM's max_num_seqs on GPUs with 70 GiB and more
_MOST_REQUESTS, _MOST_SIMULATED = 2**16, 10_000_000
_PILOT_REQUESTS = 500
_GROWS = 2.0  # waits this many times longer at the end than at the beginning: a queue that grows
_VARIATION = 0.1  # of lengths in a closed loop, as in `foretell.predictors.llm.serving`
_RUNNING_STEP = 0.5  # of the steps that an arrival waits for, the simulation has the half that runs already


@dataclass(frozen=True, repr=False)
class SimulatedServing(Readable):
    """Requests that were simulated. Times have a mean and the 50th, 95th and 99th percentile."""

    model: str
    device: str
    engine: str
    gpus: int
    servers: int
    prefill_servers: int
    requests: int
    offered_per_s: float | None
    concurrency: int | None
    ttft_ms: Mapping[str, Estimate]
    tpot_ms: Mapping[str, Estimate]
    requests_per_s: float
    tokens_per_s: float
    goodput_per_s: float
    good_share: float
    mean_in_flight: float
    utilisation: float
    preemptions: int
    cached_tokens: int
    energy_j_per_token: Estimate
    extrapolated: bool = False
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """What serves what."""
        apart = f" and {self.prefill_servers} for prompts" if self.prefill_servers else ""
        servers = f"{self.servers} server{'s' if self.servers > 1 else ''}{apart}"
        load = f"{self.concurrency} in flight" if self.offered_per_s is None else f"{self.offered_per_s:.3g} a second"
        where = f"{self.model} on {self.gpus} × {self.device} ({servers}, {self.engine})"
        return f"{where}: {self.requests:,} requests, {load}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Times, then rates."""
        for name, own in (("first token", self.ttft_ms), ("then a token every", self.tpot_ms)):
            for part, estimate in own.items():
                yield f"{name}, {part}", f"{spell(estimate)} ms"
        yield "requests", f"{self.requests_per_s:.3g} a second; {self.mean_in_flight:.3g} in flight"
        yield "tokens", f"{self.tokens_per_s:,.0f} a second"
        yield "within the limits", f"{self.good_share:.1%}: {self.goodput_per_s:.3g} requests a second"
        yield "energy", f"{spell(self.energy_j_per_token)} J a token"
        yield "servers busy", f"{self.utilisation:.0%} of the time; {self.preemptions:,} preemptions"
        for warning in self.warnings:
            yield "note", warning

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [flat_row(self.to_dict(), leave_out="warnings")]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell simulate --json`` prints; what is not known is absent."""
        shown: dict[str, Any] = {name: value for name, value in vars(self).items() if value is not None}
        for name in ("ttft_ms", "tpot_ms"):
            shown[name] = {part: estimate.to_dict() for part, estimate in getattr(self, name).items()}
        shown["energy_j_per_token"] = self.energy_j_per_token.to_dict()
        return {**shown, "warnings": list(self.warnings)}


def simulate(
    model: str,
    *,
    device: str | Device = "h200",
    requests_per_s: float | None = None,
    concurrency: int | None = None,
    trace: str | Path | None = None,
    input_tokens: int = 1024,
    output_tokens: int = 256,
    requests: int = 2000,
    gpus: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    data_parallel: int | None = None,
    expert_parallel: int | None = None,
    prefill_servers: int = 0,
    dtype: str = "bf16",
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str = "vllm",
    memory_fraction: float = MEMORY_FRACTION,
    network: str | None = None,
    prefix_share: float = 0.0,
    ttft_limit_ms: float | None = None,
    tpot_limit_ms: float | None = None,
    seed: int = 0,
) -> SimulatedServing:
    """Follow requests through servers of a language model.

    Args:
        model: A name such as ``meta-llama/Llama-3.1-8B``, a config.json, or a folder with one.
        device: A GPU of the catalogue, or a device file.
        requests_per_s: Arrivals a second, at random; of a trace its times are stretched to this rate.
        concurrency: Instead of a rate: so many requests are always in flight.
        trace: Azure's LLM inference trace as Parquet: lengths, and times unless a rate or a concurrency is given.
        input_tokens: Tokens of a prompt, without a trace.
        output_tokens: Tokens of an answer, without a trace.
        requests: How many are simulated; a trace begins anew where it is short.
        gpus: How many GPUs; without it the least that hold the model and the longest request.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: Stages of layers.
        data_parallel: Replicas; each is a server.
        expert_parallel: GPUs over which the experts of a mixture are spread.
        prefill_servers: Replicas beside these that only compute prompts.
        dtype: bf16 or fp16.
        weights: fp8, int8 or int4; without it those of the published checkpoint.
        kv_dtype: bf16 or fp8, of the cache.
        engine: vllm, sglang, trtllm, or paged, the mean of them.
        memory_fraction: The share of a GPU's memory that the engine takes.
        network: Between nodes of eight GPUs: infiniband-ndr, -hdr, -edr, or GB/s of a GPU.
        prefix_share: The share of every prompt that is the same for all, and cached.
        ttft_limit_ms: The longest time to the first token that counts as good.
        tpot_limit_ms: The longest mean time between tokens that counts as good.
        seed: Of the arrivals.

    >>> p = simulate("meta-llama/Llama-3.1-8B", device="h100-sxm", requests_per_s=2, requests=50)
    >>> p.gpus, p.requests, p.ttft_ms["p50"].value < p.ttft_ms["p99"].value
    (1, 50, True)
    """
    place_on = device_of(device)
    limits_ms = {"--ttft-limit-ms": ttft_limit_ms, "--tpot-limit-ms": tpot_limit_ms}
    _check(requests_per_s, concurrency, trace, requests, input_tokens, output_tokens, limits_ms)
    if engine not in RULES:
        raise InputError(f"Unknown engine {engine!r}.{did_you_mean(engine, RULES)}")
    if not 0 < memory_fraction <= 1:
        raise InputError(f"The memory fraction is {memory_fraction}; it must be above 0 and at most 1.")
    recorded = serving.read_azure(trace) if trace is not None else [(0.0, input_tokens, output_tokens)]
    longest = max(own[1] + own[2] for own in recorded)
    if trace is None and concurrency is not None:
        longest = math.ceil(longest * (1 + _VARIATION))
    architecture = load_architecture(model)
    if max(own[1] + own[2] for own in recorded) > architecture.context:
        raise InputError(
            f"A request of {longest:,} tokens is more than the context of {architecture.name}; "
            f"at most {architecture.context:,} are possible."
        )
    precision = choose_precision(architecture, place_on, dtype, weights, kv_dtype)
    base = Deployment(architecture, place_on, precision.weights, precision.kv_bytes, network=network)
    sizes = (tensor_parallel, pipeline_parallel, data_parallel, expert_parallel)
    place = divide(base, longest, 1, memory_fraction, gpus, sizes)
    if not place.max_concurrency(longest, memory_fraction):
        least = smallest(base, longest, memory_fraction)
        works = f"it takes {least.gpus}" if least else "quantise its weights, take a larger GPU, or add nodes"
        raise InputError(f"{architecture.name} does not fit on {place.gpus} × {place_on.id}; {works}.")
    fitted, kernels = shipped_engines(), shipped_kernels()
    host = fitted.engine(engine)
    deployment = deployment_of(place, host, Steps(place, kernels, host.framework), longest, memory_fraction)
    deployment = replace(deployment, prefix_share=prefix_share, prefill_servers=prefill_servers)

    def arrivals(count: int) -> Iterator[serving.Arrival]:
        if concurrency is not None:
            if trace is None:
                return serving.closed_loop(_varied(input_tokens, output_tokens, count, seed))
            return serving.closed_loop((own[1], own[2]) for own in itertools.islice(itertools.cycle(recorded), count))
        if trace is not None:
            return serving.trace_arrivals(recorded, count, requests_per_s)
        assert requests_per_s is not None
        return serving.poisson_arrivals(serving.fixed_lengths(input_tokens, output_tokens, count), requests_per_s, seed)

    # what a request waits for beside the simulation depends on the time of a step: a short run tells it
    pilot = serving.simulate_serving(arrivals(min(requests, _PILOT_REQUESTS)), deployment, concurrency=concurrency)
    steps = host.arrival_steps if concurrency is not None else max(host.arrival_steps - _RUNNING_STEP, 0.0)
    added_ms = host.arrival_ms + steps * ms(pilot.tpot.mean_s) + host.expert_layer_ms * architecture.expert_layers
    longer = host.mixture_prompts if architecture.has_experts else 1.0
    limits = serving.Limits(None if ttft_limit_ms is None else (ttft_limit_ms - added_ms) / longer, tpot_limit_ms)
    warmup = 0 if concurrency is None else min(concurrency, requests - 1)
    # a part of a trace may be denser than the whole
    offered = None if concurrency is not None else requests_per_s if trace is None else _offered(arrivals, requests)
    thirds = Spread(), Spread()  # times to the first token of those that arrive in the first and in the last third

    def done(arrival_s: float, first_s: float, *_: object) -> None:
        third = int(3 * arrival_s * (offered or 0.0) / requests)
        if third != 1:
            thirds[third > 1].add(first_s - arrival_s)

    totals = serving.simulate_serving(
        arrivals(requests), deployment, concurrency=concurrency, limits=limits, warmup=warmup, on_done=done
    )
    is_known = place_on.id in kernels.devices
    exchange = _exchange_notes(place)
    width = (1.0 if is_known else 1.5) * (1.5 if precision.notes or exchange else 1.0)
    width *= 2.0 if prefill_servers else 1.0
    notes = [*architecture.notes, *precision.notes, *exchange, *_notes(totals, offered, deployment, thirds)]
    if not is_known:
        notes.append(f"Kernels were measured on {', '.join(kernels.devices)}; {place_on.id} is extrapolated from them.")
    servers = deployment.servers + prefill_servers
    return SimulatedServing(
        model=architecture.name,
        device=place_on.id,
        engine=engine,
        gpus=place.gpus + prefill_servers * place.tensor * place.pipeline,
        servers=deployment.servers,
        prefill_servers=prefill_servers,
        requests=totals.requests,
        offered_per_s=offered,
        concurrency=concurrency,
        ttft_ms=_estimates(totals.ttft, longer, added_ms, fitted.spread["ttft"] * width),
        tpot_ms=_estimates(totals.tpot, 1.0, 0.0, fitted.spread["tpot"] * width) if totals.tpot.count else {},
        requests_per_s=totals.requests_per_s,
        tokens_per_s=totals.tokens_per_s,
        goodput_per_s=totals.goodput_per_s,
        good_share=totals.good / totals.counted if totals.counted else 0.0,
        mean_in_flight=totals.mean_in_system,
        utilisation=totals.busy_s / (totals.span_s * servers),
        preemptions=totals.preemptions,
        cached_tokens=totals.cached_tokens,
        energy_j_per_token=_energy(totals),
        extrapolated=not is_known,
        warnings=tuple(notes),
    )


def _check(
    requests_per_s: float | None,
    concurrency: int | None,
    trace: str | Path | None,
    requests: int,
    input_tokens: int,
    output_tokens: int,
    limits_ms: Mapping[str, float | None],
) -> None:
    if requests_per_s is not None and concurrency is not None:
        raise InputError("Give --requests-per-s or --concurrency, not both.")
    if requests_per_s is None and concurrency is None and trace is None:
        raise InputError("Say how requests arrive: --requests-per-s 4, --concurrency 32, or --trace FILE.")
    if requests_per_s is not None and not 0 < requests_per_s < math.inf:
        raise InputError(f"--requests-per-s is {requests_per_s}; it must be a number above 0.")
    for name, value, most in (
        ("--concurrency", concurrency, _MOST_REQUESTS), ("--requests", requests, _MOST_SIMULATED),
        ("--input-tokens", input_tokens, 2**22), ("--output-tokens", output_tokens, 2**22),
    ):  # fmt: skip
        if value is not None:
            check_count(name, value, most)
    for name, limit_ms in limits_ms.items():
        if limit_ms is not None and not 0 < limit_ms < math.inf:
            raise InputError(f"{name} is {limit_ms}; it must be a number of milliseconds above 0.")


def _varied(input_tokens: int, output_tokens: int, count: int, seed: int) -> Iterator[tuple[int, int]]:
    """Lengths around these: in a closed loop equal requests would all end at the same time, again and again."""
    rng = random.Random(seed)
    for _ in range(count):
        shares = (rng.uniform(1 - _VARIATION, 1 + _VARIATION) for _ in range(2))
        yield max(round(input_tokens * next(shares)), 1), max(round(output_tokens * next(shares)), 1)


def deployment_of(
    place: Deployment, host: Engine, steps: Steps, longest: int, memory_fraction: float
) -> serving.Deployment:
    """The servers of a deployment: a replica each, and a lane for each stage of a pipeline."""

    def step(prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float) -> float:
        host_us = host.step_us + host.request_us * (decode_requests + bool(prefill_tokens))
        return steps.seconds(prefill_tokens, prefill_context, decode_requests, decode_context) + seconds_from_us(
            host_us
        )

    own, device = place.tensor * place.pipeline, place.device

    def power(prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float) -> float:
        """All GPUs of a server; the rule is that of `foretell llm`."""
        seconds = step(prefill_tokens, prefill_context, decode_requests, decode_context)
        tokens = prefill_tokens + decode_requests
        flops = 2 * place.architecture.active_parameters * tokens / own
        weights = place.weights_bytes_per_gpu * touched(place.architecture, tokens)
        cache = per_token * decode_context
        return own * power_w(device, flops / seconds, (weights + cache) / seconds)

    rules = serving.ENGINES.get(host.name, serving.ENGINES["vllm"])
    rules = replace(rules, token_budget=host.token_budget, max_requests=min(MAX_REQUESTS, host.token_budget))
    per_token = place.cache_bytes_per_gpu(longest) / longest
    pool = place.pool_bytes(1, memory_fraction, of_free=host.of_free)
    tokens = max(int(pool / place.pipeline / per_token), longest + rules.block_tokens)
    fabric = fabric_of(place.device, network=place.network)
    apart = 2 if 2 * place.tensor <= GPUS_PER_NODE or place.network is None else 2 * GPUS_PER_NODE

    def transfer(moved: int) -> float:
        # each GPU sends its own part of the cache
        return collective_time("point-to-point", place.cache_bytes_per_gpu(moved), apart, fabric).seconds.value

    return serving.Deployment(
        step,
        tokens,
        servers=place.data * place.pipeline,
        rules=rules,
        power=power,
        idle_power_w=own * (device.idle_power_w or 0.0),
        transfer_time=transfer,
    )


def _estimates(spread: Spread, factor: float, added_ms: float, error: float) -> dict[str, Estimate]:
    values = {name: factor * value + added_ms for name, value in spread.to_dict().items()}
    return {name: Estimate(own, own / math.exp(error), own * math.exp(error)) for name, own in values.items()}


def _exchange_notes(place: Deployment) -> list[str]:
    """What is extrapolated in the exchanges between the GPUs of a server."""
    if place.tensor == 1:
        return []
    time = collective_time("all-reduce", MIB, place.tensor, fabric_of(place.device, network=place.network), "engine")
    return [f"Extrapolated: {note}." for note in time.extrapolated]


def _energy(totals: serving.ServingTotals) -> Estimate:
    """Joules of all GPUs for a generated token."""
    assert totals.energy_j is not None
    value = totals.energy_j / max(totals.generated_tokens, 1)
    return Estimate(value, value * (1 - SPREAD), value * (1 + SPREAD))


def _offered(arrivals: Callable[[int], Iterator[serving.Arrival]], requests: int) -> float:
    """Requests a second that arrive."""
    first = last = 0.0
    for number, (moment_s, *_) in enumerate(arrivals(requests)):
        first, last = (moment_s, moment_s) if not number else (first, moment_s)
    return (requests - 1) / (last - first) if last > first else float(requests)


def _notes(
    totals: serving.ServingTotals, offered: float | None, deployment: serving.Deployment, thirds: tuple[Spread, Spread]
) -> Iterator[str]:
    early, late = thirds
    if offered is not None and late.count and late.mean_s > _GROWS * early.mean_s:
        yield (
            f"The servers do not keep up: {offered:.3g} requests arrive in a second, {totals.requests_per_s:.3g} end. "
            "The longer this lasts, the longer requests wait; add replicas (--data-parallel) or lower the rate."
        )
    if totals.preemptions:
        yield f"The cache was full {totals.preemptions:,} times: requests were computed again."
    if deployment.prefill_servers:
        yield (
            "With prompts apart the first token comes later than told: on 28 measured deployments of DeepSeek-V3 it is "
            "48 % off, and the time a token 15 %."
        )

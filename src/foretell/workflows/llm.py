"""Workflows: predict a language model as it is served: does it fit, on how many GPUs, how fast, at what cost."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import TYPE_CHECKING, Any

from foretell.devices import Device, device_of
from foretell.errors import InputError
from foretell.predictors.llm.architecture import Architecture, LinearAttention, load_architecture
from foretell.predictors.llm.deployment import (
    MEMORY_FRACTION,
    RUNTIME_BYTES,
    RUNTIME_SPREAD_BYTES,
    TOKEN_BUDGET,
    Deployment,
)
from foretell.predictors.llm.engines import EAGER, ENGINES, PAGED, shipped_engines
from foretell.predictors.llm.kernels import shipped_kernels
from foretell.predictors.llm.placement import choose_precision, divide, smallest
from foretell.predictors.llm.power import SPREAD, power_w, touched
from foretell.predictors.llm.serving import LEAST_ANSWER, Load, steady_load
from foretell.predictors.llm.steps import Steps
from foretell.readable import Readable, flat_row, spell
from foretell.records import Estimate
from foretell.registry import did_you_mean
from foretell.units import GIGA, KIB, KILO, MEGA, mib

if TYPE_CHECKING:
    from foretell.advisors.placement import Offer

# how many times wider an interval is, in logarithms, for GPUs and precisions that were not measured; kernels of a GPU
# that is left out are in docs/lab/0037-serving.md
_OTHER_DEVICE, _UNMEASURED = 2.0, 1.5
_MOST_TAUGHT = 512  # clients of the rows that taught the engines' times
_MAX_TOKENS, _MAX_CLIENTS = 2**22, 2**16
_J_PER_KWH, _SECONDS_PER_H = 3.6 * MEGA, 3600


@dataclass(frozen=True, repr=False)
class LlmPrediction(Readable):
    """A language model as it is served. Times are None if it does not fit; ``tokens`` are those of answers."""

    model: str
    device: str
    engine: str
    fits: bool
    gpus: int
    smallest_gpus: int | None
    tensor_parallel: int
    pipeline_parallel: int
    data_parallel: int
    expert_parallel: int
    weights: str
    kv_dtype: str
    input_tokens: int
    output_tokens: int
    concurrency: int
    max_concurrency: int
    parameters: int
    active_parameters: int
    weights_mib: float
    kv_cache_mib_per_token: float
    memory_mib_per_gpu: Estimate
    ttft_ms: Estimate | None = None
    tpot_ms: Estimate | None = None
    tokens_per_s: Estimate | None = None
    tokens_per_s_per_gpu: Estimate | None = None
    requests_per_s: Estimate | None = None
    energy_j_per_token: Estimate | None = None
    usd_per_million_tokens: Estimate | None = None
    gco2_per_thousand_tokens: Estimate | None = None
    offer: str | None = None
    extrapolated: bool = False
    warnings: tuple[str, ...] = ()

    def heading(self) -> str:
        """Whether it fits, and how many GPUs it takes."""
        if self.fits:
            more = "" if self.smallest_gpus in (None, self.gpus) else f"; the least is {self.smallest_gpus}"
            division = _division(self)
            return f"{self.model} fits on {self.gpus} × {self.device}{division}{more}"
        needs = (
            f"it takes {self.smallest_gpus} of them"
            if self.smallest_gpus
            else "nor on 8 of them; quantise its weights, take a larger GPU, or add nodes: --gpus 16 --network …"
        )
        return f"{self.model} does not fit on {self.gpus} × {self.device}{_division(self)}; {needs}"

    def lines(self) -> Iterator[tuple[str, str]]:
        """Memory first, then times, then costs."""
        yield "weights", f"{self.weights_mib / KIB:,.1f} GiB in {self.weights} ({_billions(self)})"
        yield "cache of a token", f"{self.kv_cache_mib_per_token * KIB:,.1f} KiB in {self.kv_dtype}"
        yield "memory of a GPU", f"{spell(self.memory_mib_per_gpu.scaled(1 / KIB))} GiB"
        yield "requests at a time", f"{self.max_concurrency:,} of {self.input_tokens:,} + {self.output_tokens:,} tokens"
        quantities = (
            ("first token", self.ttft_ms, "ms"), ("then a token every", self.tpot_ms, "ms"),
            ("tokens", self.tokens_per_s, "a second"), ("of one GPU", self.tokens_per_s_per_gpu, "a second"),
            ("requests", self.requests_per_s, "a second"), ("energy", self.energy_j_per_token, "J a token"),
            ("cost", self.usd_per_million_tokens, f"$ a million tokens ({self.offer})"),
            ("carbon", self.gco2_per_thousand_tokens, "g CO₂e a thousand tokens"),
        )  # fmt: skip
        for name, estimate, unit in quantities:
            if estimate is not None:
                yield name, f"{spell(estimate)} {unit}"
        for warning in self.warnings:
            yield "note", warning

    def rows(self) -> list[dict[str, Any]]:
        """One row."""
        return [flat_row(self.to_dict(), leave_out="warnings")]

    def to_dict(self) -> dict[str, Any]:
        """The object that ``foretell llm --json`` prints; what is not known is absent."""
        known = {name: value for name, value in vars(self).items() if value is not None}
        values = {name: value.to_dict() if isinstance(value, Estimate) else value for name, value in known.items()}
        return {**values, "warnings": list(self.warnings)}


def llm(
    model: str,
    *,
    device: str | Device = "h200",
    input_tokens: int,
    output_tokens: int,
    concurrency: int = 1,
    gpus: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    data_parallel: int | None = None,
    expert_parallel: int | None = None,
    dtype: str = "bf16",
    weights: str | None = None,
    kv_dtype: str | None = None,
    engine: str = PAGED,
    memory_fraction: float = MEMORY_FRACTION,
    network: str | None = None,
    country: str | None = None,
    pue: float | None = None,
) -> LlmPrediction:
    """Predict a language model under a steady load of ``concurrency`` requests.

    Args:
        model: A name such as ``meta-llama/Llama-3.1-8B``, a config.json, or a folder with one.
        device: A GPU of the catalogue, or a device file.
        input_tokens: Tokens of a prompt.
        output_tokens: Tokens of an answer.
        concurrency: Requests in flight.
        gpus: How many GPUs; without it the least that hold the model and all requests, or what the parallelisms make.
        tensor_parallel: GPUs that share each layer.
        pipeline_parallel: Stages of layers.
        data_parallel: Replicas.
        expert_parallel: GPUs over which the experts of a mixture are spread.
        dtype: bf16 or fp16.
        weights: fp8, int8 or int4; without it those of the published checkpoint.
        kv_dtype: bf16 or fp8, of the cache.
        engine: ``paged`` (kernels are the mean of vLLM, SGLang and TensorRT-LLM), vllm, sglang, trtllm, or ``eager``:
            Hugging Face's generate on one GPU.
        memory_fraction: The share of a GPU's memory that the engine takes.
        network: Between nodes of eight GPUs: infiniband-ndr, -hdr, -edr, or GB/s of a GPU.
        country: The power grid, for carbon.
        pue: Energy of the data centre over that of the GPUs.

    >>> p = llm("meta-llama/Llama-3.1-70B", device="h100-sxm", input_tokens=1024, output_tokens=256, concurrency=8)
    >>> p.fits, p.gpus
    (True, 2)
    """
    from foretell.workflows.advise import Renting, find_offers

    place_on = device_of(device)
    check_numbers(input_tokens, output_tokens, concurrency, memory_fraction)
    if engine not in ENGINES:
        raise InputError(f"Unknown engine {engine!r}.{did_you_mean(engine, ENGINES)}")
    architecture = load_architecture(model)
    tokens = input_tokens + output_tokens
    if tokens > architecture.context:
        raise InputError(
            f"{input_tokens:,} + {output_tokens:,} tokens are more than the context of {architecture.name}; "
            f"together they may be at most {architecture.context:,}."
        )
    precision = choose_precision(architecture, place_on, dtype, weights, kv_dtype)
    base = Deployment(architecture, place_on, precision.weights, precision.kv_bytes, network=network)
    sizes = (tensor_parallel, pipeline_parallel, data_parallel, expert_parallel)
    place = divide(base, tokens, concurrency, memory_fraction, gpus, sizes)
    least = smallest(base, tokens, memory_fraction)
    answer = _memory(place, engine, least, input_tokens, output_tokens, concurrency, memory_fraction, dtype)
    notes = [*architecture.notes, *precision.notes, *_notes(architecture, place_on, answer)]
    if not answer.fits:
        return replace(answer, warnings=tuple(notes))
    if engine == EAGER:
        return _eager(answer, model, place, dtype, precision.weights, notes)
    host = shipped_engines().engine(engine)
    steps = Steps(place, shipped_kernels(), host.framework)
    load = steady_load(steps, host, input_tokens, output_tokens, concurrency, memory_fraction)
    offers = find_offers([place_on], Renting(country=country, pue=pue))
    return _served(answer, place, load, precision.notes, offers)


def served(
    place: Deployment, load: Load, engine: str, lengths: tuple[int, int], concurrency: int, fraction: float,
    notes: Sequence[str], offers: Sequence["Offer"],
) -> LlmPrediction:  # fmt: skip
    """The prediction of a deployment whose load is known; ``notes`` are those of its precision."""
    answer = _memory(place, engine, None, *lengths, concurrency, fraction, "bf16")
    return _served(answer, place, load, notes, offers)


def _served(
    answer: LlmPrediction, place: Deployment, load: Load, unmeasured: Sequence[str], offers: Sequence["Offer"]
) -> LlmPrediction:
    fitted, kernels, device = shipped_engines(), shipped_kernels(), place.device
    notes = [*place.architecture.notes, *unmeasured, *_notes(place.architecture, device, answer)]
    is_known = device.id in kernels.devices
    is_measured = not unmeasured and answer.output_tokens >= LEAST_ANSWER
    width = (1.0 if is_known else _OTHER_DEVICE) * (1.0 if is_measured else _UNMEASURED)
    if not is_known:
        notes.append(f"Kernels were measured on {', '.join(kernels.devices)}; {device.id} is extrapolated from them.")
    spreads = tuple(fitted.spread[name] * width for name in ("ttft", "tpot", "rate"))
    priced = _with_costs(_with_times(answer, load, spreads), place, load, offers)
    return replace(priced, extrapolated=not is_known, warnings=(*notes, *priced.warnings))


def check_numbers(input_tokens: int, output_tokens: int, concurrency: int, fraction: float) -> None:
    """Refuse lengths, clients and a share of the memory that no load has."""
    for name, value, most in (
        ("--input-tokens", input_tokens, _MAX_TOKENS), ("--output-tokens", output_tokens, _MAX_TOKENS),
        ("--concurrency", concurrency, _MAX_CLIENTS),
    ):  # fmt: skip
        check_count(name, value, most)
    if not 0 < fraction <= 1:
        raise InputError(
            f"The memory fraction is {fraction}; it must be above 0 and at most 1, such as {MEMORY_FRACTION}."
        )


def check_count(name: str, value: object, most: int) -> None:
    """Refuse what is no whole number from 1 on."""
    if isinstance(value, bool) or not isinstance(value, Integral) or not 1 <= int(value) <= most:
        raise InputError(f"{name} is {value}; it must be a whole number from 1 to {most:,}.")


def _memory(
    place: Deployment, engine: str, least: Deployment | None, prompt: int, answer: int, clients: int, fraction: float,
    dtype: str,
) -> LlmPrediction:  # fmt: skip
    """Everything that follows from sizes alone."""
    tokens, model = prompt + answer, place.architecture
    most = place.max_concurrency(tokens, fraction)
    own = max(1, min(math.ceil(clients / place.data), most // place.data))
    cache = own * place.cache_bytes_per_gpu(prompt + answer / 2)
    fixed = place.weights_bytes_per_gpu + place.activation_bytes(TOKEN_BUDGET, own)
    used = fixed + RUNTIME_BYTES + cache
    memory = Estimate(used, used - RUNTIME_SPREAD_BYTES, used + RUNTIME_SPREAD_BYTES).scaled(mib(1))
    return LlmPrediction(
        model=model.name, device=place.device.id, engine=engine, fits=most >= 1, gpus=place.gpus,
        smallest_gpus=None if least is None else least.gpus, tensor_parallel=place.tensor,
        pipeline_parallel=place.pipeline, data_parallel=place.data, expert_parallel=place.expert,
        weights=dtype if place.weights == "bf16" else place.weights.removesuffix("_weights"),
        kv_dtype="fp8" if place.kv_bytes == 1 else dtype, input_tokens=prompt, output_tokens=answer,
        concurrency=clients, max_concurrency=most, parameters=model.parameters,
        active_parameters=model.active_parameters, weights_mib=mib(place.weights_bytes),
        kv_cache_mib_per_token=mib(place.kv_bytes_per_token), memory_mib_per_gpu=memory,
    )  # fmt: skip


def _notes(model: Architecture, device: Device, answer: LlmPrediction) -> Iterator[str]:
    if answer.fits and answer.concurrency > answer.max_concurrency:
        yield (
            f"The cache holds {answer.max_concurrency:,} such requests at a time; the others wait, and the first token "
            "with them."
        )
    if min(answer.concurrency, answer.max_concurrency) > _MOST_TAUGHT * answer.data_parallel:
        yield f"More than {_MOST_TAUGHT} requests at a time on one replica were not measured."
    if answer.output_tokens < LEAST_ANSWER and answer.engine != EAGER:
        yield f"Answers of fewer than {LEAST_ANSWER} tokens were not measured."
    if model.model_type == "glm_moe_dsa":
        yield "Its sparse attention was not measured: it is counted as dense latent attention."
    if any(isinstance(group.attention, LinearAttention) for group in model.groups):
        yield "Kernels of its linear attention were not measured: they are counted by their bytes and arithmetic."
    if device.memory_gib < 24:
        yield "Steps of 8,192 tokens are assumed; engines take fewer on small GPUs, and then less memory."


def _estimate(value: float, spread: float) -> Estimate:
    return Estimate(value, value / math.exp(spread), value * math.exp(spread))


def _with_times(answer: LlmPrediction, load: Load, spreads: tuple[float, ...]) -> LlmPrediction:
    ttft, tpot, rate = spreads
    tokens = _estimate(load.tokens_per_s, rate)
    return replace(
        answer,
        ttft_ms=_estimate(load.ttft_ms, ttft),
        tpot_ms=_estimate(load.tpot_ms, tpot) if answer.output_tokens > 1 else None,
        tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens.scaled(1 / answer.gpus),
        requests_per_s=_estimate(load.requests_per_s, rate),
    )


def _with_costs(answer: LlmPrediction, place: Deployment, load: Load, offers: Sequence["Offer"]) -> LlmPrediction:
    """Energy from the shares of arithmetic and traffic, dollars from the cheapest offer, carbon from its grid."""
    assert answer.tokens_per_s is not None
    watts = _power_w(place, load, answer) * answer.gpus
    rate = answer.tokens_per_s
    joules = Estimate(watts / rate.value, watts * (1 - SPREAD) / rate.high, watts * (1 + SPREAD) / rate.low)
    answer = replace(answer, energy_j_per_token=joules)
    rents = {offer: rent for offer in offers if (rent := rent_usd_per_h(offer, place)) is not None}
    if not rents:
        together = "" if gpus_together(place) == 1 else f" with {gpus_together(place)} of them in one machine"
        note = f"No price of {place.device.id}{together} is known, so the cost is left out."
        return replace(answer, warnings=(*answer.warnings, note))
    best = min(rents, key=rents.__getitem__)
    answer = replace(answer, usd_per_million_tokens=rate.inverted(rents[best] / _SECONDS_PER_H * MEGA), offer=best.name)
    if best.g_co2e_per_kwh is None:
        return answer
    grams = best.g_co2e_per_kwh * (best.pue or 1.0) / _J_PER_KWH * KILO
    return replace(answer, gco2_per_thousand_tokens=joules.scaled(grams))


def gpus_together(place: Deployment) -> int:
    """How many GPUs must be in one machine: those that divide a model, unless a network joins machines."""
    if place.network is not None:
        return 1
    return place.gpus if place.shares_experts else place.tensor * place.pipeline


def rent_usd_per_h(offer: "Offer", place: Deployment) -> float | None:
    """The share of the instances' rent where copies of the model fill them, as `advise` counts; None without a price.

    An instance that is too small for one copy is no offer.
    """
    fit = offer.devices // gpus_together(place)
    if offer.usd_per_h is None or not fit:
        return None
    return offer.usd_per_h * place.gpus / gpus_together(place) / fit


def _power_w(place: Deployment, load: Load, answer: LlmPrediction) -> float:
    """The mean draw of one GPU."""
    model = place.architecture
    own = max(1.0, min(answer.concurrency, answer.max_concurrency) / place.data)
    flops_per_s = (
        2 * model.active_parameters * load.requests_per_s * (answer.input_tokens + answer.output_tokens) / answer.gpus
    )
    weights = place.weights_bytes_per_gpu * touched(model, own)
    cache = own * place.cache_bytes_per_gpu(answer.input_tokens + answer.output_tokens / 2)
    # an answer of one token has no steps of its own: its prompt is arithmetic
    bytes_per_s = (weights + cache) / (load.tpot_ms / KILO) if load.tpot_ms else 0.0
    return power_w(place.device, flops_per_s, bytes_per_s)


def _eager(
    answer: LlmPrediction, model: str, place: Deployment, dtype: str, weights: str, notes: list[str]
) -> LlmPrediction:
    """Hugging Face's generate: all requests start and end together, on one GPU, as ``foretell predict`` has it."""
    from foretell.workflows.predict import predict

    if place.gpus > 1 or weights != "bf16":
        raise InputError("--engine eager is Hugging Face's generate on one GPU in bf16 or fp16; use --engine paged.")
    name = model if "/" not in model or model.endswith(".json") or model.startswith("hf:") else f"hf:{model}"
    common: dict[str, Any] = {
        "device": place.device,
        "batch_size": answer.concurrency,
        "dtype": dtype,
        "runtime": "eager",
    }
    prompt = predict(name, mode="prefill", input_shape=(answer.input_tokens,), **common)
    middle = answer.input_tokens + answer.output_tokens // 2
    token = predict(name, mode="decode", context=middle, **common)
    first, then = (one.host_latency_ms or one.latency_ms for one in (prompt, token))
    if first is None or then is None:
        raise InputError(f"{model} could not be predicted in eager mode; use --engine paged.")
    whole = first + then.scaled(answer.output_tokens - 1)
    rate = whole.inverted(answer.concurrency * KILO)
    tokens = rate.scaled(answer.output_tokens)
    return replace(
        answer, ttft_ms=first, tpot_ms=then if answer.output_tokens > 1 else None, tokens_per_s=tokens,
        tokens_per_s_per_gpu=tokens, requests_per_s=rate, extrapolated=bool(prompt.extrapolated),
        warnings=(*notes, *dict.fromkeys((*prompt.warnings, *token.warnings))),
    )  # fmt: skip


def _division(answer: LlmPrediction) -> str:
    sizes = (
        ("tensor", answer.tensor_parallel), ("pipeline", answer.pipeline_parallel), ("data", answer.data_parallel),
        ("expert", answer.expert_parallel),
    )  # fmt: skip
    parts = [f"{name} parallel {size}" for name, size in sizes if size > 1]
    return f" ({', '.join(parts)})" if parts else ""


def _billions(answer: LlmPrediction) -> str:
    total, active = (count / GIGA for count in (answer.parameters, answer.active_parameters))
    return f"{total:,.1f} billion, {active:,.1f} active" if active < 0.8 * total else f"{total:,.1f} billion"

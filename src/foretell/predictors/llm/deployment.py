"""Predictors: a language model on several GPUs: what each GPU holds, and whether it fits.

Tensor parallelism divides heads and inner sizes, pipeline parallelism layers, data parallelism requests; experts are
spread over ``expert`` GPUs, and where that is more than ``tensor``, replicas of the attention share one set of
experts. The engine takes a fraction of a GPU's memory (0.9, vLLM's default) and keeps the cache in what weights,
activations and the context leave.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

from foretell.devices import Device
from foretell.errors import InputError
from foretell.predictors.llm.architecture import (
    Architecture,
    Experts,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    cache_elements,
)
from foretell.predictors.llm.kernels import SCHEMES
from foretell.units import GIB, bytes_from_gib

MEMORY_FRACTION = 0.9  # vLLM's --gpu-memory-utilization
TOKEN_BUDGET = 8192  # tokens of one step: vLLM's --max-num-batched-tokens on GPUs with 70 GiB and more
# CUDA context, cuBLAS and NCCL of one process, CUDA graphs: 2 to 3 GiB on an H100 in vLLM's start-up log; a constant
RUNTIME_BYTES = 2.5 * GIB
RUNTIME_SPREAD_BYTES = 1.0 * GIB
_MOST_NAMED = 64  # divisions that a message lists
EXPERTS_ONLY = ("mxfp4_weights", "int4_weights")  # published mixtures in these formats keep the attention in bf16


@dataclass(frozen=True)
class Deployment:
    """An architecture, where it runs and how it is divided; ``weights`` and ``kv_bytes`` say in which precision."""

    architecture: Architecture
    device: Device
    weights: str = "bf16"
    kv_bytes: int = 2
    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    expert: int = 1
    network: str | None = None

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.tensor * self.pipeline * self.data

    @property
    def shares_experts(self) -> bool:
        """Whether replicas of the attention share one set of experts."""
        return self.architecture.has_experts and self.expert > self.tensor

    @property
    def expert_tensor(self) -> int:
        """Over how many GPUs each single expert is divided."""
        return max(1, (self.tensor * self.data if self.shares_experts else self.tensor) // self.expert)

    def scheme(self, part: str) -> str:
        """In which scheme a part runs: attention, dense, shared or experts."""
        if part != "experts" and self.architecture.has_experts and self.weights in EXPERTS_ONLY:
            return "bf16"
        return self.weights

    @cached_property
    def weights_bytes_per_gpu(self) -> float:
        """Weights on the fullest GPU; embeddings and head stay in bf16, one on each end of a pipeline."""
        model, total = self.architecture, 0.0
        for group in model.groups:
            attention = group.attention.parameters(model.hidden) * self._attention_share(group.attention)
            total += group.count * attention * SCHEMES[self.scheme("attention")].weight_bytes
            part = group.feed_forward
            if isinstance(part, Experts):
                routed = 3 * model.hidden * part.count * part.inner / (self.expert * self.expert_tensor)
                shared = 3 * model.hidden * part.shared / self.tensor
                total += group.count * routed * SCHEMES[self.scheme("experts")].weight_bytes
                total += group.count * (
                    shared * SCHEMES[self.scheme("shared")].weight_bytes + model.hidden * part.count * 2
                )
            else:
                inner = part.parameters(model.hidden) / self.tensor
                total += group.count * inner * SCHEMES[self.scheme("dense")].weight_bytes
        tables = 1 if model.tied or self.pipeline > 1 else 2
        return total * self._stage_share + tables * model.hidden * model.vocabulary * 2 / self.tensor

    @property
    def weights_bytes(self) -> float:
        """Weights of one copy of the model, as they are stored."""
        return replace(self, tensor=1, pipeline=1, data=1, expert=1).weights_bytes_per_gpu

    def _attention_share(self, attention: object) -> float:
        """The share of an attention's weights on one GPU: down-projections of latent attention are not divided."""
        if not isinstance(attention, LatentAttention) or self.tensor == 1:
            return 1 / self.tensor
        hidden = self.architecture.hidden
        down = hidden * ((attention.query_rank or 0) + attention.rank + attention.rope_size)
        whole = attention.parameters(hidden)
        return (down + (whole - down) / self.tensor) / whole

    @property
    def _stage_share(self) -> float:
        """The share of the layers in the largest stage of the pipeline."""
        layers = self.architecture.layers
        return math.ceil(layers / self.pipeline) / layers

    def kv_heads(self, attention: GroupedAttention) -> int:
        """Heads of keys and values on one GPU: at least one, so more GPUs than heads hold copies."""
        return max(1, attention.kv_heads // self.tensor)

    @property
    def kv_bytes_per_token(self) -> float:
        """Bytes that one token leaves in the cache, all layers, one copy of the model; windows are not yet full."""
        return self.kv_bytes * sum(group.count * cache_elements(group.attention) for group in self.architecture.groups)

    def cache_bytes_per_gpu(self, tokens: float) -> float:
        """Bytes of cache on one GPU for one request with so many tokens; layers with a window keep no more than it."""
        total = 0.0
        for group in self.architecture.groups:
            attention = group.attention
            if isinstance(attention, LinearAttention):
                total += group.count * attention.state_elements / self.tensor * 4  # states are kept in fp32
            elif isinstance(attention, LatentAttention):
                total += group.count * cache_elements(attention) * tokens * self.kv_bytes
            else:
                seen = min(tokens, attention.window) if attention.window else tokens
                total += group.count * 2 * self.kv_heads(attention) * attention.head_size * seen * self.kv_bytes
        return total * self._stage_share

    def activation_bytes(self, token_budget: int, sequences: int) -> float:
        """The largest activations of a step: residual, norm, widest product of all tokens, logits of sequences."""
        model = self.architecture
        inner = max(
            (part.top * part.inner / self.expert_tensor + part.shared / self.tensor)
            if isinstance(part := group.feed_forward, Experts)
            else part.inner / self.tensor
            for group in model.groups
        )
        logits = sequences * model.vocabulary * 4 * 2 / self.tensor
        return token_budget * (4 * model.hidden + 3 * inner) * 2 + logits

    def pool_bytes(self, sequences: int, fraction: float = MEMORY_FRACTION, *, of_free: bool = False) -> float:
        """What one GPU has for the cache; negative where not even the weights fit.

        vLLM and SGLang take a fraction of the whole memory, TensorRT-LLM one of what the rest leaves (``of_free``).
        """
        taken = self.weights_bytes_per_gpu + self.activation_bytes(TOKEN_BUDGET, sequences) + RUNTIME_BYTES
        whole = bytes_from_gib(self.device.memory_gib)
        return (whole - taken) * fraction if of_free else whole * fraction - taken

    def max_concurrency(self, tokens: int, fraction: float = MEMORY_FRACTION) -> int:
        """Requests of so many tokens that the cache holds at a time, on all GPUs; 0 where not even one fits."""
        each = self.cache_bytes_per_gpu(tokens)
        count = max(0, int(self.pool_bytes(1, fraction) // each))
        # the engine sets memory for the logits of all sequences aside
        while count > 0 and count * each > self.pool_bytes(count, fraction):
            count = max(0, min(count - 1, int(self.pool_bytes(count, fraction) // each)))
        return count * self.data

    def check(self) -> None:
        """Refuse a division that the model's sizes do not allow, with one that they do."""
        model = self.architecture
        for group in model.groups:
            self._check_heads(group.attention)
            inner = group.feed_forward.inner
            if isinstance(group.feed_forward, Experts):
                inner = group.feed_forward.inner * self.expert_tensor  # checked below
            if inner % self.tensor and not isinstance(group.feed_forward, Experts):
                raise InputError(
                    f"--tensor-parallel {self.tensor} does not divide the inner size {inner} of {model.name}; "
                    f"{_divisors(inner)} do."
                )
        if self.pipeline > model.layers:
            raise InputError(
                f"--pipeline-parallel {self.pipeline} is more than the {model.layers} layers of {model.name}; "
                f"use at most {model.layers}."
            )
        if model.layers % self.pipeline and self.pipeline > 1:
            raise InputError(
                f"--pipeline-parallel {self.pipeline} does not divide the {model.layers} layers of {model.name}; "
                f"{_divisors(model.layers)} do."
            )
        self._check_experts()

    def _check_heads(self, attention: object) -> None:
        heads = attention.value_heads if isinstance(attention, LinearAttention) else getattr(attention, "heads", 1)
        kv_heads = attention.kv_heads if isinstance(attention, GroupedAttention) else heads
        # fewer heads of keys and values than GPUs: each has copies on as many of them
        allowed = [size for size in range(1, min(heads, _MOST_NAMED) + 1) if _divides(size, heads, kv_heads)]
        if not _divides(self.tensor, heads, kv_heads):
            grouped = f" of queries and the {kv_heads} of keys and values" if kv_heads != heads else ""
            raise InputError(
                f"--tensor-parallel {self.tensor} does not divide the {heads} heads{grouped} of "
                f"{self.architecture.name}; {', '.join(map(str, allowed))} do."
            )

    def _check_experts(self) -> None:
        model = self.architecture
        if self.expert == 1:
            return
        counts = [part.count for group in model.groups if isinstance(part := group.feed_forward, Experts)]
        if not counts:
            raise InputError(f"{model.name} has no experts; leave --expert-parallel out.")
        if counts[0] % self.expert:
            raise InputError(
                f"--expert-parallel {self.expert} does not divide the {counts[0]} experts of {model.name}; "
                f"{_divisors(counts[0])} do."
            )
        if (self.tensor * self.data) % self.expert:
            raise InputError(
                f"--expert-parallel {self.expert} does not divide the GPUs of --tensor-parallel {self.tensor} and "
                f"--data-parallel {self.data}; {_divisors(self.tensor * self.data)} do."
            )


def _divides(size: int, heads: int, kv_heads: int) -> bool:
    return heads % size == 0 and (kv_heads % size == 0 or size % kv_heads == 0)


def _divisors(number: int) -> str:
    return ", ".join(str(count) for count in range(1, min(number, _MOST_NAMED) + 1) if number % count == 0)

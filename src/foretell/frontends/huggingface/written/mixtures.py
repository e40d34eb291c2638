"""Frontends: mixtures of experts: Mixtral, Qwen 2 and Qwen 3, as transformers runs them with grouped products."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.decoders import (
    COMMON,
    ORDER,
    QWEN,
    QWEN_IGNORED,
    check_decoder,
    choose,
    run_decoder,
)
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import ROPE_KEYS, Settings, check_rope, need
from foretell.frontends.huggingface.written.values import Trace, Value


def experts(
    t: Trace, hidden_states: Value, top_k_index: Value, top_k_weights: Value, count: int, width: int, kind: str
) -> Value:
    """``grouped_mm_experts_forward``: tokens are sorted by their expert, and one operator multiplies all groups."""
    num_top_k = top_k_index.shape[-1]
    num_tokens, hidden_dim = hidden_states.shape
    sample_weights = top_k_weights.reshape(-1)
    expert_ids = top_k_index.reshape(-1)
    expert_ids_g, perm = t.call_many("sort", {"self": expert_ids}, [expert_ids.shape] * 2, "int64")
    selected_hidden_states_g = _rows(t, hidden_states, perm.with_other("floor_divide", num_top_k))
    sample_weights_g = _rows(t, sample_weights, perm)
    histc_input = expert_ids_g.to("int32")
    tokens_per_expert = t.call("histc", {"self": histc_input}, (count,), "int32")
    offsets = t.call("cumsum", {"self": tokens_per_expert, "dim": 0}, (count,), "int32")
    selected_weights = t.weight("gate_up_proj", count, 2 * width, hidden_dim)
    proj_out = _grouped(t, selected_hidden_states_g, selected_weights, offsets)
    proj_out = _gated(t, proj_out, kind)
    selected_weights = t.weight("down_proj", count, hidden_dim, width)
    proj_out = _grouped(t, proj_out, selected_weights, offsets)
    weighted_out = proj_out * sample_weights_g.unsqueeze(-1)
    inv_perm = perm.apply("empty_like")
    inv_perm.put_(perm, blocks.arange(t, perm.shape[0]))
    weighted_out = _rows(t, weighted_out, inv_perm)
    final_hidden_states = weighted_out.view(num_tokens, num_top_k, hidden_dim).reduce("sum", 1, keep=False)
    return final_hidden_states.to(hidden_states.dtype)


def _rows(t: Trace, table: Value, index: Value) -> Value:
    return t.call("index", {"self": table, "indices": [index]}, (*index.shape, *table.shape[1:]), table.dtype)


def _grouped(t: Trace, x: Value, weight: Value, offsets: Value) -> Value:
    return _grouped_product(t, x, weight.transpose(-2, -1), offsets)


def _grouped_product(t: Trace, x: Value, weight: Value, offsets: Value) -> Value:
    shape = (x.shape[0], weight.shape[-1])
    arguments = {"input": x.to(weight.dtype), "weight": weight, "offs": offsets}
    return t.call("transformers::grouped_mm_fallback", arguments, shape, weight.dtype)


def _gated(t: Trace, gate_up: Value, kind: str) -> Value:
    gate, up = gate_up.chunk(2, -1)
    return blocks.activation(t, "act_fn", kind, gate) * up


# ── routers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mixtral_router(t: Trace, c: Settings, hidden_states: Value) -> tuple[Value, Value, Value]:
    hidden_states = hidden_states.reshape(-1, c.hidden_size)
    router_logits = route(t, hidden_states, c.num_local_experts)
    router_probs = router_logits.to("fp32").softmax()
    router_top_value, router_indices = router_probs.top(c.num_experts_per_tok)
    router_top_value.divide_(router_top_value.reduce("sum", -1, keep=True))
    return router_logits, router_top_value, router_indices


def _qwen_router(t: Trace, c: Settings, hidden_states: Value) -> tuple[Value, Value, Value]:
    hidden_states = hidden_states.reshape(-1, c.hidden_size)
    router_logits = route(t, hidden_states, c.num_experts)
    router_probs = router_logits.softmax(-1, "fp32")
    router_top_value, router_indices = router_probs.top(c.num_experts_per_tok)
    if c.norm_topk_prob:
        router_top_value.divide_(router_top_value.reduce("sum", -1, keep=True))
    router_top_value = router_top_value.to(router_logits.dtype)
    return router_logits, router_top_value, router_indices


def route(t: Trace, hidden_states: Value, count: int) -> Value:
    """How much each expert is for each token."""
    weight = t.weight("weight", count, hidden_states.shape[-1])
    return t.call("linear", {"input": hidden_states, "weight": weight}, (hidden_states.shape[0], count), weight.dtype)


# ── blocks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mixtral_block(t: Trace, c: Settings, _: int, hidden_states: Value) -> Value:
    shape = hidden_states.shape
    hidden_states = hidden_states.view(-1, shape[-1])
    _logits, top_k_weights, top_k_index = t.run("gate", _mixtral_router, c, hidden_states)
    sizes = (c.num_local_experts, c.intermediate_size, c.hidden_act)
    hidden_states = t.run("experts", experts, hidden_states, top_k_index, top_k_weights, *sizes)
    return hidden_states.reshape(*shape)


def _is_sparse(c: Settings, index: int) -> bool:
    return index not in c.mlp_only_layers and (index + 1) % c.decoder_sparse_step == 0


def _qwen2_block(t: Trace, c: Settings, index: int, hidden_states: Value) -> Value:
    if not _is_sparse(c, index):
        return blocks.gated_mlp(t, hidden_states, c.intermediate_size, c.hidden_act)
    shape = hidden_states.shape
    hidden_states_reshaped = hidden_states.view(-1, shape[-1])
    width = c.shared_expert_intermediate_size
    shared_expert_output = t.run("shared_expert", blocks.gated_mlp, hidden_states_reshaped, width, c.hidden_act)
    _logits, routing_weights, selected_experts = t.run("gate", _qwen_router, c, hidden_states_reshaped)
    sizes = (c.num_experts, c.moe_intermediate_size, c.hidden_act)
    expert_output = t.run("experts", experts, hidden_states_reshaped, selected_experts, routing_weights, *sizes)
    gate = [blocks.linear(t, "shared_expert_gate", hidden_states_reshaped, 1)]
    shared_expert_output = gate.pop().apply("sigmoid") * shared_expert_output
    expert_output = expert_output + shared_expert_output
    return expert_output.reshape(*shape)


def _qwen3_block(t: Trace, c: Settings, index: int, hidden_states: Value) -> Value:
    if not _is_sparse(c, index):
        return blocks.gated_mlp(t, hidden_states, c.intermediate_size, c.hidden_act)
    shape = hidden_states.shape
    hidden_states_reshaped = hidden_states.view(-1, shape[-1])
    _logits, routing_weights, selected_experts = t.run("gate", _qwen_router, c, hidden_states_reshaped)
    sizes = (c.num_experts, c.moe_intermediate_size, c.hidden_act)
    final_hidden_states = t.run("experts", experts, hidden_states_reshaped, selected_experts, routing_weights, *sizes)
    return final_hidden_states.reshape(*shape)


def _mixtral(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, window=c.sliding_window, cache_first=True, mlp=_mixtral_block, fills_head=True)
    if c.head_dim is None:
        check_rope(values, "default")  # transformers cannot compute the others without it
    need(not c.output_router_logits, "output_router_logits")
    need(sizes.mode != "training" or c.router_jitter_noise == 0, "router_jitter_noise")
    need(1 <= c.num_experts_per_tok <= c.num_local_experts, "more experts a token than there are")
    check_decoder(c, values, sizes)


def _check_qwen(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    need(not c.output_router_logits and not c.use_sliding_window, "router logits, or a sliding window in some layers")
    need(1 <= c.num_experts_per_tok <= c.num_experts and c.decoder_sparse_step >= 1, "experts that do not fit")
    check_decoder(c, values, sizes)


def _qwen2(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qkv_bias=c.qkv_bias, mlp=_qwen2_block, makes_mask=True)  # transformers makes it and uses it nowhere
    _check_qwen(c, values, sizes)


def _qwen3(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qk_norm=True, qkv_bias=c.attention_bias, output_bias=c.attention_bias, mlp=_qwen3_block)
    _check_qwen(c, values, sizes)


_QWEN_MIXTURE = QWEN | {
    "hidden_size": 2048, "num_hidden_layers": 24, "decoder_sparse_step": 1, "norm_topk_prob": False,
    "output_router_logits": False, "mlp_only_layers": [],
}  # fmt: skip
_IGNORED = (*QWEN_IGNORED, "router_aux_loss_coef")

FAMILIES = {
    "mixtral": Family(
        ("MixtralForCausalLM",),
        COMMON
        | {
            "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
            "sliding_window": None, "num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False,
            "router_jitter_noise": 0.0,
        },
        (*ROPE_KEYS, "router_aux_loss_coef"),
        _mixtral,
        run_decoder,
        f"{ORDER} gate experts gate_up_proj down_proj",
    ),
    "qwen2_moe": Family(
        ("Qwen2MoeForCausalLM",),
        _QWEN_MIXTURE
        | {
            "intermediate_size": 5632, "num_attention_heads": 16, "num_key_value_heads": 16, "qkv_bias": True,
            "moe_intermediate_size": 1408, "shared_expert_intermediate_size": 5632, "num_experts_per_tok": 4,
            "num_experts": 60,
        },
        _IGNORED,
        _qwen2,
        run_decoder,
        f"{ORDER} gate experts gate_up_proj down_proj shared_expert shared_expert_gate",
    ),
    "qwen3_moe": Family(
        ("Qwen3MoeForCausalLM",),
        _QWEN_MIXTURE
        | {
            "intermediate_size": 6144, "num_key_value_heads": 4, "attention_bias": False, "moe_intermediate_size": 768,
            "num_experts_per_tok": 8, "num_experts": 128,
        },
        _IGNORED,
        _qwen3,
        run_decoder,
        f"{ORDER} experts gate gate_up_proj down_proj",
    ),
}  # fmt: skip

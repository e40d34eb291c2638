"""Frontends: DeepSeek V2 and V3: latent attention, and mixtures with shared experts and experts in groups."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.decoders import COMMON, check_decoder, choose, run_decoder
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.mixtures import experts
from foretell.frontends.huggingface.written.settings import ROPE_KEYS, Optional, Settings, need
from foretell.frontends.huggingface.written.values import Trace, Value, cat

_GROUPED = "group_limited_greedy"

# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Any, cache: blocks.Cache | None
) -> Value:
    """Keys and values are kept as one short vector a token, and expanded for all heads at every step."""
    batch, length, _ = hidden_states.shape
    nope, rope = c.qk_nope_head_dim, c.qk_rope_head_dim
    q_states = _queries(t, c, hidden_states)
    q_states = q_states.view(batch, length, -1, nope + rope).transpose(1, 2)
    q_pass, q_rot = q_states.split([nope, rope], -1)
    compressed_kv = blocks.linear(t, "kv_a_proj_with_mqa", hidden_states, c.kv_lora_rank + rope, bias=c.attention_bias)
    kv_nope, k_rot = compressed_kv.split([c.kv_lora_rank, rope], -1)
    if c.version == 2:  # here the name of the part lives on
        latent = blocks.rms_norm(t, "kv_a_layernorm", kv_nope).view(batch, 1, length, c.kv_lora_rank)
    else:
        kv_nope = blocks.rms_norm(t, "kv_a_layernorm", kv_nope)
        kv_nope = latent = kv_nope.view(batch, 1, length, c.kv_lora_rank)
        del kv_nope
    k_rot = k_rot.view(batch, 1, length, rope)
    q_rot, k_rot = c.turn(q_rot, k_rot, rotary)
    if cache is not None:
        latent, k_rot = cache.update(t, index, latent, k_rot)
    query_states = cat([q_pass, q_rot], -1)
    key_states, value_states = _expand(t, c, latent, k_rot)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(batch, length, -1).contiguous()
    return blocks.linear(t, "o_proj", attn_output, c.hidden_size, bias=c.attention_bias)


def _queries(t: Trace, c: Settings, hidden_states: Value) -> Value:
    width = c.num_attention_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim)
    if c.q_lora_rank is None:
        return blocks.linear(t, "q_proj", hidden_states, width)
    low = [blocks.linear(t, "q_a_proj", hidden_states, c.q_lora_rank, bias=c.attention_bias)]
    return blocks.linear(t, "q_b_proj", blocks.rms_norm(t, "q_a_layernorm", low.pop()), width)


def _expand(t: Trace, c: Settings, kv_nope: Value, k_rot: Value) -> tuple[Value, Value]:
    batch, _, length, _ = kv_nope.shape
    nope, width = c.qk_nope_head_dim, c.qk_nope_head_dim + c.v_head_dim
    kv_nope = blocks.linear(t, "kv_b_proj", kv_nope, c.num_attention_heads * width)
    kv_nope = kv_nope.view(batch, length, -1, width).transpose(1, 2)
    k_nope, value_states = kv_nope.split([nope, c.v_head_dim], -1)
    k_rot = k_rot.expand(-1, k_nope.shape[1], -1, -1)
    shape = (*kv_nope.shape[:-1], nope + c.qk_rope_head_dim)
    key_states = t.call("new_empty", {"self": kv_nope}, shape, kv_nope.dtype)
    key_states.slice(-1, 0, nope).copy_(k_nope)
    key_states.slice(-1, nope).copy_(k_rot)
    return key_states, value_states


def _turn_pairs(q: Value, k: Value, rotary: tuple[Value, Value]) -> tuple[Value, Value]:
    """Columns that lie beside each other are turned together."""
    half = rotary[0].shape[-1] // 2
    cos = rotary[0].slice(-1, 0, half).unsqueeze(1)
    sin = rotary[1].slice(-1, 0, half).unsqueeze(1)
    q1, q2 = q.slice(-1, 0, None, 2), q.slice(-1, 1, None, 2)
    k1, k2 = k.slice(-1, 0, None, 2), k.slice(-1, 1, None, 2)
    q_embed = cat([q1 * cos - q2 * sin, q2 * cos + q1 * sin], -1)
    k_embed = cat([k1 * cos - k2 * sin, k2 * cos + k1 * sin], -1)
    return q_embed, k_embed


def _turn_halves(q: Value, k: Value, rotary: tuple[Value, Value]) -> tuple[Value, Value]:
    return blocks.apply_rotary(q, k, *rotary)


def _turn_complex(q: Value, k: Value, rotary: Value) -> tuple[Value, Value]:
    return _turned(q, k, rotary.to("complex64"))


def _turned(xq: Value, xk: Value, freqs_cis: Value) -> tuple[Value, Value]:
    xq_ = xq.to("fp32").reshape(*xq.shape[:-1], -1, 2).as_complex()
    xk_ = xk.to("fp32").reshape(*xk.shape[:-1], -1, 2).as_complex()
    freqs_cis = freqs_cis.unsqueeze(1).to("complex64")
    xq_out = (xq_ * freqs_cis).as_real().flatten(3, -1).to_type_of(xq)
    xk_out = (xk_ * freqs_cis).as_real().flatten(3, -1).to_type_of(xk)
    return xq_out, xk_out


def _rotary_complex(t: Trace, position_ids: Value, width: int) -> Value:
    return t.run("rotary_emb", _polar, position_ids, width)


def _polar(t: Trace, position_ids: Value, width: int) -> Value:
    inv_freq = t.weight("inv_freq", width // 2, kind="buffer")
    t.weight("original_inv_freq", width // 2, kind="buffer")
    freqs = position_ids.unsqueeze(2).to("fp32") * inv_freq.to("fp32")
    freqs_cis = t.call("polar", {"abs": freqs.apply("ones_like"), "angle": freqs}, freqs.shape, "complex64")
    return freqs_cis * 1.0


# ── mixtures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _mlp(t: Trace, c: Settings, index: int, hidden_states: Value) -> Value:
    if index < c.first_k_dense_replace:
        return blocks.gated_mlp(t, hidden_states, c.intermediate_size, c.hidden_act, bias=c.mlp_bias)
    residuals, shape = hidden_states, hidden_states.shape
    _logits, topk_weights, topk_indices = t.run("gate", c.router, c, hidden_states)
    hidden_states = hidden_states.view(-1, shape[-1])
    sizes = (c.n_routed_experts, c.moe_intermediate_size, c.hidden_act)
    hidden_states = t.run("experts", experts, hidden_states, topk_indices, topk_weights, *sizes).view(*shape)
    return hidden_states + t.run("shared_experts", _shared, c, residuals)


def _shared(t: Trace, c: Settings, x: Value) -> Value:
    return blocks.gated_mlp(t, x, c.moe_intermediate_size * c.n_shared_experts, c.hidden_act, bias=c.mlp_bias)


def _route(t: Trace, c: Settings, hidden_states: Value) -> Value:
    weight = t.weight("weight", c.n_routed_experts, c.hidden_size)
    arguments = {"input": hidden_states.to("fp32"), "weight": weight.to("fp32")}
    return t.call("linear", arguments, (hidden_states.shape[0], c.n_routed_experts), "fp32")


def _router_v3(t: Trace, c: Settings, hidden_states: Value) -> tuple[Value, Value, Value]:
    hidden_states = hidden_states.view(-1, c.hidden_size)
    router_logits = _route(t, c, hidden_states)
    scores = router_logits.apply("sigmoid")
    scores_for_choice = scores + t.weight("e_score_correction_bias", c.n_routed_experts, kind="buffer")
    in_group = c.n_routed_experts // c.n_group
    group_scores = scores_for_choice.view(-1, c.n_group, in_group).top(2)[0].reduce("sum", -1, keep=False)
    group_idx = group_scores.top(c.topk_group)[1]
    group_mask = group_scores.apply("zeros_like")
    group_mask.scatter_(1, group_idx)
    score_mask = group_mask.unsqueeze(-1).expand(-1, c.n_group, in_group).reshape(-1, c.n_routed_experts)
    scores_for_choice = scores_for_choice.masked_fill(score_mask.to("bool").apply("bitwise_not"))
    topk_indices = scores_for_choice.top(c.num_experts_per_tok)[1]
    topk_weights = scores.gather(1, topk_indices)
    if c.norm_topk_prob:
        denominator = topk_weights.reduce("sum", -1, keep=True) + 1e-20
        topk_weights.divide_(denominator)
    topk_weights = topk_weights * 2.5
    return router_logits, topk_weights, topk_indices


def _router_v2(t: Trace, c: Settings, hidden_states: Value) -> tuple[Value, Value, Value]:
    hidden_states = hidden_states.view(-1, c.hidden_size)
    router_logits = _route(t, c, hidden_states)
    scores = router_logits.softmax(-1, "fp32")
    if c.topk_method == _GROUPED:
        in_group = c.n_routed_experts // c.n_group
        group_scores = scores.view(-1, c.n_group, in_group).largest()[0]
        group_idx = group_scores.top(c.topk_group)[1]
        group_mask = group_scores.apply("zeros_like")
        group_mask.scatter_(1, group_idx)
        score_mask = group_mask.unsqueeze(-1).expand(-1, c.n_group, in_group).reshape(-1, c.n_routed_experts)
        scores = scores.masked_fill(score_mask.to("bool").apply("bitwise_not"))
    topk_weights, topk_indices = scores.top(c.num_experts_per_tok)
    topk_weights = topk_weights * 1.0
    return router_logits, topk_weights, topk_indices


# ── families ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _check(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    c.cache_keys, c.cache_values = (1, c.kv_lora_rank), (1, c.qk_rope_head_dim)
    c.head_dim = c.qk_rope_head_dim
    need(values.get("head_dim", c.head_dim) == c.head_dim, "head_dim")
    check_decoder(c, values, sizes)
    heads = c.num_attention_heads
    need(c.num_key_value_heads == heads, "fewer heads of keys than of queries")
    need(not c.output_router_logits and c.norm_topk_prob in (True, False), "output_router_logits")
    need(c.num_experts_per_tok is not None and c.first_k_dense_replace is not None, "how many experts a token has")
    need(1 <= c.num_experts_per_tok <= c.n_routed_experts and c.n_shared_experts >= 1, "experts that do not fit")


def _check_groups(c: Settings) -> None:
    need(c.n_group is not None and c.topk_group is not None and c.n_group >= 1, "no groups of experts")
    need(c.n_routed_experts % c.n_group == 0 and 1 <= c.topk_group <= c.n_group, "groups that do not divide")


def _v3(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    turn = _turn_pairs if c.rope_interleave else _turn_halves
    choose(c, mlp=_mlp, attention=_attention, router=_router_v3, turn=turn, version=3)
    _check(c, values, sizes)
    _check_groups(c)
    need(c.n_routed_experts // c.n_group >= 2, "groups of one expert")


def _v2(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choices = {"router": _router_v2, "turn": _turn_complex, "rotary": _rotary_complex, "mlp_bias": c.mlp_bias}
    choose(c, mlp=_mlp, attention=_attention, version=2, **choices)
    _check(c, values, sizes)
    need(c.topk_method in ("greedy", _GROUPED), c.topk_method)
    if c.topk_method == _GROUPED:
        _check_groups(c)


_DEEPSEEK = {key: value for key, value in COMMON.items() if key != "head_dim"} | {
    "kv_lora_rank": 512, "q_lora_rank": Optional(1536), "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "attention_bias": False, "output_router_logits": False, "norm_topk_prob": False,
}  # fmt: skip
_IGNORED = (
    *ROPE_KEYS, "pretraining_tp", "routed_scaling_factor", "aux_loss_alpha", "ep_size", "moe_layer_freq", "seq_aux",
    "scoring_func", "num_nextn_predict_layers", "head_dim",
)  # fmt: skip
_ORDER = (
    "weight bias model embed_tokens layers self_attn q_proj q_a_proj q_a_layernorm q_b_proj kv_a_proj_with_mqa "
    "kv_a_layernorm kv_b_proj o_proj mlp experts gate gate_up_proj e_score_correction_bias shared_experts gate_proj "
    "up_proj down_proj input_layernorm post_attention_layernorm norm rotary_emb inv_freq original_inv_freq lm_head"
)

FAMILIES = {
    "deepseek_v2": Family(
        ("DeepseekV2ForCausalLM",),
        _DEEPSEEK
        | {
            "vocab_size": 102400, "n_routed_experts": 64, "n_shared_experts": 2, "n_group": None, "topk_group": None,
            "topk_method": "greedy", "num_experts_per_tok": None, "first_k_dense_replace": 0,
            "moe_intermediate_size": 1407, "mlp_bias": False,
        },
        _IGNORED,
        _v2,
        run_decoder,
        _ORDER,
    ),
    "deepseek_v3": Family(
        ("DeepseekV3ForCausalLM",),
        _DEEPSEEK
        | {
            "vocab_size": 129280, "hidden_size": 7168, "intermediate_size": 18432, "moe_intermediate_size": 2048,
            "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": Optional(128),
            "n_shared_experts": 1, "n_routed_experts": 256, "n_group": Optional(8), "topk_group": Optional(4),
            "num_experts_per_tok": Optional(8), "first_k_dense_replace": Optional(3), "norm_topk_prob": True,
            "max_position_embeddings": 4096, "rope_interleave": True,
        },
        (*_IGNORED, "topk_method"),
        _v3,
        run_decoder,
        _ORDER,
    ),
}  # fmt: skip

"""Frontends: decoders with rotary positions, RMS norms and gated networks: Llama and what is built like it."""

from collections.abc import Callable, Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import ROPE_KEYS, Optional, Settings, check_rope, need
from foretell.frontends.huggingface.written.values import Trace, Value, cat

ORDER = (
    "model embed_tokens embed_scale layers self_attn q_proj k_proj v_proj o_proj q_norm k_norm mlp gate_proj up_proj "
    "down_proj input_layernorm post_attention_layernorm norm rotary_emb inv_freq original_inv_freq lm_head weight bias"
)


def run_decoder(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    """Run the model; return the logits and the cache."""
    input_ids = t.input("input_ids", sizes.length)
    cache = blocks.start_cache(t, sizes, [c.window] * c.num_hidden_layers, c.cache_keys, c.cache_values)
    hidden_states = t.run("model", _model, c, input_ids, cache)
    tied = "model.embed_tokens.weight" if c.tie_word_embeddings else ""
    logits = blocks.last_logits(t, hidden_states, c.vocab_size, last=cache is not None, tied=tied)
    return [logits, *(cache.tensors if cache else ())]


def _model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    norm: Callable[[Trace, str, Value], Value] = c.norm
    if cache is not None and c.cache_first:
        cache.start(t)
    inputs_embeds = t.run("embed_tokens", c.embed, c, input_ids)
    if cache is not None and not c.cache_first:
        cache.start(t)
    position_ids = blocks.positions(t, input_ids.shape[1], cache.past if cache else 0)
    blocks.check_packing(t, position_ids, cache is not None)
    if c.makes_mask:
        blocks.check_packing(t, position_ids, cache is not None)
        _mask = blocks.causal_mask(t, input_ids.shape[1], cache.past if cache else 0, sliding=True)
    hidden_states = inputs_embeds
    position_embeddings = c.rotary(t, position_ids, c.rotary_width or c.head_dim)
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"layers.{index}", _layer, c, index, hidden_states, position_embeddings, cache)
    return norm(t, "norm", hidden_states)


def _embed(t: Trace, c: Settings, input_ids: Value) -> Value:
    return blocks.look_up(t, input_ids, c.vocab_size, c.hidden_size)


def _embed_scaled(t: Trace, c: Settings, input_ids: Value) -> Value:
    """Gemma scales its embeddings by a buffer."""
    return _embed(t, c, input_ids) * t.weight("embed_scale", kind="buffer").to(t.dtype)


def _layer(t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Any, cache: blocks.Cache | None) -> Value:
    residual = hidden_states
    hidden_states = c.norm(t, "input_layernorm", hidden_states)
    hidden_states = t.run("self_attn", c.attention, c, index, hidden_states, rotary, cache)
    hidden_states = residual + _dropped(t, c, "resid_attn_dropout", hidden_states)
    residual = hidden_states
    hidden_states = c.norm(t, "post_attention_layernorm", hidden_states)
    hidden_states = t.run("mlp", c.mlp, c, index, hidden_states)
    return residual + _dropped(t, c, "resid_mlp_dropout", hidden_states)


def _dropped(t: Trace, c: Settings, name: str, x: Value) -> Value:
    return x if c.resid_share is None else blocks.dropout(t, name, x, c.resid_share)


def _dense(t: Trace, c: Settings, _: int, x: Value) -> Value:
    return blocks.gated_mlp(t, x, c.intermediate_size, c.hidden_act, bias=c.mlp_bias)


def _attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Any, cache: blocks.Cache | None
) -> Value:
    input_shape = hidden_states.shape[:-1]
    hidden_shape = (*input_shape, -1, c.head_dim)

    def project(name: str, heads: int) -> Value:
        return blocks.linear(t, name, hidden_states, heads * c.head_dim, bias=c.qkv_bias).view(*hidden_shape)

    if c.qk_norm:
        query_states = c.norm(t, "q_norm", project("q_proj", c.num_attention_heads)).transpose(1, 2)
        key_states = c.norm(t, "k_norm", project("k_proj", c.num_key_value_heads)).transpose(1, 2)
    else:
        query_states = project("q_proj", c.num_attention_heads).transpose(1, 2)
        key_states = project("k_proj", c.num_key_value_heads).transpose(1, 2)
    value_states = project("v_proj", c.num_key_value_heads).transpose(1, 2)
    cos, sin = rotary
    query_states, key_states = blocks.apply_rotary(query_states, key_states, cos, sin)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    return blocks.linear(t, "o_proj", attn_output, c.hidden_size, bias=c.output_bias)


def _fused_attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Any, cache: blocks.Cache | None
) -> Value:
    """Phi-3: one product for queries, keys and values, and positions for a part of each head."""
    input_shape = hidden_states.shape[:-1]
    hidden_shape = (*input_shape, -1, c.head_dim)
    query_pos, kv_width = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    qkv = blocks.linear(t, "qkv_proj", hidden_states, query_pos + 2 * kv_width)
    query_states = qkv.slice(-1, 0, query_pos)
    key_states = qkv.slice(-1, query_pos, query_pos + kv_width)
    value_states = qkv.slice(-1, query_pos + kv_width)
    query_states = query_states.view(*hidden_shape).transpose(1, 2)
    key_states = key_states.view(*hidden_shape).transpose(1, 2)
    value_states = value_states.view(*hidden_shape).transpose(1, 2)
    cos, sin = rotary
    query_states, key_states = _apply_part(query_states, key_states, cos, sin)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    return blocks.linear(t, "o_proj", attn_output, c.hidden_size)


def _apply_part(q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    width = cos.shape[-1]
    q_rot, q_pass = q.slice(-1, 0, width), q.slice(-1, width)
    k_rot, k_pass = k.slice(-1, 0, width), k.slice(-1, width)
    q_embed = cat([(q_rot * cos) + (blocks.rotate_half(q_rot) * sin), q_pass], -1)
    k_embed = cat([(k_rot * cos) + (blocks.rotate_half(k_rot) * sin), k_pass], -1)
    return q_embed, k_embed


def _fused_mlp(t: Trace, c: Settings, _: int, hidden_states: Value) -> Value:
    up_states = blocks.linear(t, "gate_up_proj", hidden_states, 2 * c.intermediate_size)
    gate, up_states = up_states.chunk(2, -1)
    up_states = up_states * blocks.activation(t, "activation_fn", c.hidden_act, gate)
    return blocks.linear(t, "down_proj", up_states, c.hidden_size)


COMMON = {
    "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "hidden_act": "silu", "max_position_embeddings": 2048,
    "pad_token_id": None, "tie_word_embeddings": False, "attention_dropout": 0.0, "head_dim": None,
}  # fmt: skip
QWEN = COMMON | {
    "vocab_size": 151936, "intermediate_size": 22016, "max_position_embeddings": 32768, "use_sliding_window": False,
}  # fmt: skip
QWEN_IGNORED = (*ROPE_KEYS, "sliding_window", "max_window_layers")


def choose(c: Settings, **choices: Any) -> None:
    """Note the choices of a family: what is not named is as in Llama without biases."""
    usual = {
        "window": None, "qk_norm": False, "qkv_bias": False, "output_bias": False, "mlp_bias": False,
        "cache_first": False, "makes_mask": False, "cache_keys": None, "cache_values": None, "mlp": _dense,
        "fills_head": False, "rotary_width": None, "resid_share": None, "norm": blocks.rms_norm,
        "embed": _embed, "attention": _attention, "rotary": blocks.rotary,
    }  # fmt: skip
    for name, value in (usual | choices).items():
        setattr(c, name, value)


def check_decoder(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    """Fill in what follows from other values, and refuse what transformers would refuse or run otherwise."""
    # transformers reads a head_dim of null only where the family fills it in
    need(c.fills_head or values.get("head_dim", 0) is not None, "head_dim = None")
    check_rope(values)
    c.num_key_value_heads = c.num_attention_heads if c.num_key_value_heads is None else c.num_key_value_heads
    c.head_dim = c.hidden_size // c.num_attention_heads if c.head_dim is None else c.head_dim
    c.cache_keys = c.cache_keys or (c.num_key_value_heads, c.head_dim)
    c.cache_values = c.cache_values or (c.num_key_value_heads, c.head_dim)
    need(c.num_attention_heads % c.num_key_value_heads == 0, "heads that do not divide")
    need(c.hidden_size % c.num_attention_heads == 0, "a width that is no multiple of the heads")
    need(c.head_dim % 2 == 0, "an odd head")
    need(c.hidden_act in blocks.ACTIVATIONS, c.hidden_act)
    blocks.check_padding(c)
    blocks.check_shares(c.attention_dropout)
    need(c.window is None or sizes.length + sizes.past < c.window, "more tokens than a sliding window")


def _llama(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qkv_bias=c.attention_bias, output_bias=c.attention_bias, mlp_bias=c.mlp_bias, fills_head=True)
    check_decoder(c, values, sizes)


def _mistral(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, window=c.sliding_window, fills_head=True)
    check_decoder(c, values, sizes)


def _qwen2(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qkv_bias=True)
    need(not c.use_sliding_window, "a sliding window in some layers")
    check_decoder(c, values, sizes)


def _qwen3(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qk_norm=True, qkv_bias=c.attention_bias, output_bias=c.attention_bias)
    need(not c.use_sliding_window, "a sliding window in some layers")
    check_decoder(c, values, sizes)


def _phi3(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    need(c.hidden_size % c.num_attention_heads == 0, "heads that do not divide")
    width = blocks.rotary_width(c.hidden_size // c.num_attention_heads, c.partial_rotary_factor)
    choices = {"window": c.sliding_window, "rotary_width": width, "resid_share": c.resid_pdrop}
    choose(c, attention=_fused_attention, mlp=_fused_mlp, **choices)
    check_rope(values, "default")
    blocks.check_shares(c.resid_pdrop)
    c.head_dim = None
    check_decoder(c, values, sizes)


def _gemma(c: Settings, values: Mapping[str, Any], sizes: Sizes) -> None:
    choose(c, qkv_bias=c.attention_bias, output_bias=c.attention_bias, norm=blocks.shifted_norm, embed=_embed_scaled)
    check_decoder(c, values, sizes)


FAMILIES = {
    "llama": Family(
        ("LlamaForCausalLM",),
        COMMON | {"attention_bias": False, "mlp_bias": False},
        (*ROPE_KEYS, "pretraining_tp"),
        _llama,
        run_decoder,
        ORDER,
    ),
    "mistral": Family(
        ("MistralForCausalLM",),
        COMMON
        | {
            "intermediate_size": 14336,
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": Optional(4096),
        },
        ROPE_KEYS,
        _mistral,
        run_decoder,
        ORDER,
    ),
    "qwen2": Family(
        ("Qwen2ForCausalLM",), QWEN | {"num_key_value_heads": Optional(32)}, QWEN_IGNORED, _qwen2, run_decoder, ORDER
    ),
    "qwen3": Family(
        ("Qwen3ForCausalLM",),
        QWEN | {"num_key_value_heads": Optional(32), "head_dim": 128, "attention_bias": False},
        QWEN_IGNORED,
        _qwen3,
        run_decoder,
        ORDER,
    ),
    "phi3": Family(
        ("Phi3ForCausalLM",),
        {key: value for key, value in COMMON.items() if key != "head_dim"}
        | {
            "vocab_size": 32064, "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
            "resid_pdrop": 0.0, "pad_token_id": Optional(32000), "sliding_window": None, "partial_rotary_factor": 1.0,
        },
        (*ROPE_KEYS, "embd_pdrop", "original_max_position_embeddings", "attention_bias"),
        _phi3,
        run_decoder,
        f"{ORDER} qkv_proj gate_up_proj down_proj",
    ),
    "gemma": Family(
        ("GemmaForCausalLM",),
        COMMON
        | {
            "vocab_size": 256000,
            "hidden_size": 3072,
            "intermediate_size": 24576,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh",
            "max_position_embeddings": 8192,
            "pad_token_id": Optional(0),
            "tie_word_embeddings": True,
            "attention_bias": False,
        },
        (*ROPE_KEYS, "hidden_activation"),
        _gemma,
        run_decoder,
        ORDER,
    ),
}  # fmt: skip

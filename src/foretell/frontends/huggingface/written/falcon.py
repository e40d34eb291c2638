"""Frontends: Falcon: one projection for queries, keys and values, and attention and network side by side."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import ROPE_KEYS, Settings, check_rope, need
from foretell.frontends.huggingface.written.values import Trace, Value

Rotary = tuple[Value, Value]


def _run(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    cache = blocks.start_cache(t, sizes, [None] * c.num_hidden_layers, c.cached, c.cached)
    hidden_states = t.run("transformer", _model, c, input_ids, cache)
    tied = "transformer.word_embeddings.weight" if c.tie_word_embeddings else ""
    logits = blocks.last_logits(t, hidden_states, c.vocab_size, last=sizes.cached, tied=tied)
    return [logits, *(cache.tensors if cache else ())]


def _model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    inputs_embeds = blocks.embedding(t, "word_embeddings", input_ids, c.vocab_size, c.hidden_size)
    length, past = input_ids.shape[1], cache.past if cache else 0
    position_ids = blocks.positions(t, length, past)
    causal_mask = blocks.causal_mask(t, length, past)
    hidden_states = inputs_embeds
    position_embeddings = blocks.rotary(t, position_ids, c.head_dim)
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"h.{index}", _layer, c, index, hidden_states, causal_mask, position_embeddings, cache)
    return blocks.layer_norm(t, "ln_f", hidden_states)


def _layer(
    t: Trace, c: Settings, index: int, hidden_states: Value, mask: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    residual = hidden_states
    two_norms = c.new_decoder_architecture and c.num_ln_in_parallel_attn == 2
    if two_norms:
        attention_layernorm_out = blocks.layer_norm(t, "ln_attn", hidden_states)
        mlp_layernorm_out = blocks.layer_norm(t, "ln_mlp", hidden_states)
    else:
        attention_layernorm_out = blocks.layer_norm(t, "input_layernorm", hidden_states)
        mlp_layernorm_out = attention_layernorm_out
    attention_output = t.run("self_attention", _attention, c, index, attention_layernorm_out, mask, rotary, cache)
    if not c.parallel_attn:
        residual = _dropout_add(attention_output, residual, c.attention_dropout)
        mlp_layernorm_out = blocks.layer_norm(t, "post_attention_layernorm", residual)
    mlp_output = t.run("mlp", _mlp, c, mlp_layernorm_out)
    if c.parallel_attn:
        mlp_output.add_(attention_output)
    return _dropout_add(mlp_output, residual, c.hidden_dropout)


def _dropout_add(x: Value, residual: Value, share: float) -> Value:
    out = x.dropout(share)
    return residual + out


def _linear(t: Trace, name: str, x: Value, width: int, c: Settings) -> Value:
    return t.run(name, _product, x, width, c.bias)


def _product(t: Trace, x: Value, width: int, bias: bool) -> Value:
    hidden_states = x.matmul(t.weight("weight", width, x.shape[-1]).reversed())
    return hidden_states + t.weight("bias", width) if bias else hidden_states


def _attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, mask: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    fused_qkv = _linear(t, "query_key_value", hidden_states, c.qkv_width, c)
    query_layer, key_layer, value_layer = c.split_heads(t, c, fused_qkv)
    batch, length, heads, width = query_layer.shape
    kv_heads = c.cached[0]
    query_layer = query_layer.transpose(1, 2).reshape(batch, heads, length, width)
    key_layer = key_layer.transpose(1, 2).reshape(batch, kv_heads, length, width)
    value_layer = value_layer.transpose(1, 2).reshape(batch, kv_heads, length, width)
    cos, sin = rotary
    query_layer, key_layer = blocks.apply_rotary(query_layer, key_layer, cos, sin)
    if cache is not None:
        key_layer, value_layer = cache.update(t, index, key_layer, value_layer)
    arguments = {"query": query_layer, "key": key_layer, "value": value_layer, "attn_mask": mask}
    attn_output = t.call("scaled_dot_product_attention", arguments, query_layer.shape, query_layer.dtype)
    attn_output = attn_output.view(batch, heads, length, width)
    attn_output = attn_output.permute(0, 2, 1, 3)
    attn_output = attn_output.reshape(batch, length, heads * width)
    return _linear(t, "dense", attn_output, c.hidden_size, c)


def _split_groups(t: Trace, c: Settings, fused_qkv: Value) -> list[Value]:
    """Queries in groups, with a key and a value for each group."""
    batch, length, _ = fused_qkv.shape
    qkv = fused_qkv.view(batch, length, -1, c.num_attention_heads // c.num_kv_heads + 2, c.head_dim)
    query = qkv.slice(3, 0, -2)
    key = _pick(t, qkv, 3)
    value = _pick(t, qkv, 3)
    key = key.broadcast_to(*query.shape)
    value = value.broadcast_to(*query.shape)
    return [x.flatten(2, 3) for x in (query, key, value)]


def _split_query(t: Trace, c: Settings, fused_qkv: Value) -> list[Value]:
    """One key and one value for all queries."""
    batch, length, _ = fused_qkv.shape
    fused_qkv = fused_qkv.view(batch, length, c.num_attention_heads + 2, c.head_dim)
    return [fused_qkv.slice(2, 0, -2), _pick(t, fused_qkv, 2), _pick(t, fused_qkv, 2)]


def _split_equal(_: Trace, c: Settings, fused_qkv: Value) -> list[Value]:
    batch, length = fused_qkv.shape[:2]
    fused_qkv = fused_qkv.view(batch, length, c.num_attention_heads, 3, c.head_dim)
    return [fused_qkv.select(3) for _part in range(3)]


def _pick(t: Trace, x: Value, axis: int) -> Value:
    """``x[..., [-2], :]``: a list of one position, which copies."""
    shape = (*x.shape[:axis], 1, *x.shape[axis + 1 :])
    indices = [None] * axis + [t.constant(1, dtype="int64")]
    return t.call("index", {"self": x, "indices": indices}, shape, x.dtype)


def _mlp(t: Trace, c: Settings, x: Value) -> Value:
    x = blocks.activation(t, "act", c.activation, _linear(t, "dense_h_to_4h", x, c.ffn_hidden_size, c))
    return _linear(t, "dense_4h_to_h", x, c.hidden_size, c)


def _check(c: Settings, values: Mapping[str, Any], _: Sizes) -> None:
    check_rope(values)
    need(not c.alibi and c.hidden_size % c.num_attention_heads == 0, "alibi, or heads that do not divide")
    c.head_dim = c.hidden_size // c.num_attention_heads
    c.num_kv_heads = c.num_attention_heads if c.num_kv_heads is None else c.num_kv_heads
    c.ffn_hidden_size = 4 * c.hidden_size if c.ffn_hidden_size is None else c.ffn_hidden_size
    heads = c.num_attention_heads
    if c.new_decoder_architecture:
        c.num_ln_in_parallel_attn = 2 if c.num_ln_in_parallel_attn is None else c.num_ln_in_parallel_attn
        need(heads % c.num_kv_heads == 0 and c.num_ln_in_parallel_attn in (1, 2), "heads that do not divide")
        c.split_heads, c.cached = _split_groups, (heads, c.head_dim)
        c.qkv_width = (2 * c.num_kv_heads + heads) * c.head_dim
    elif c.multi_query:
        c.split_heads, c.cached, c.qkv_width = _split_query, (1, c.head_dim), c.hidden_size + 2 * c.head_dim
    else:
        need(c.num_kv_heads == heads, "fewer heads of keys than of queries")
        c.split_heads, c.cached, c.qkv_width = _split_equal, (heads, c.head_dim), 3 * c.hidden_size
    need(c.new_decoder_architecture or c.num_ln_in_parallel_attn is None, "norms that are not used")
    need(c.parallel_attn or not c.new_decoder_architecture, "attention before the network")
    need(c.head_dim % 2 == 0 and c.activation in ("gelu", "relu"), "an odd head, or another activation")
    blocks.check_shares(c.hidden_dropout, c.attention_dropout)


FAMILIES = {
    "falcon": Family(
        ("FalconForCausalLM",),
        {
            "vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71,
            "num_ln_in_parallel_attn": None, "hidden_dropout": 0.0, "attention_dropout": 0.0, "num_kv_heads": None,
            "alibi": False, "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True,
            "bias": False, "max_position_embeddings": 2048, "ffn_hidden_size": None, "activation": "gelu",
            "tie_word_embeddings": True,
        },
        (*ROPE_KEYS, "apply_residual_connection_post_layernorm"),
        _check,
        _run,
        "weight bias transformer word_embeddings h self_attention query_key_value dense mlp dense_h_to_4h "
        "dense_4h_to_h post_attention_layernorm input_layernorm ln_attn ln_mlp ln_f rotary_emb inv_freq "
        "original_inv_freq lm_head",
    ),
}  # fmt: skip

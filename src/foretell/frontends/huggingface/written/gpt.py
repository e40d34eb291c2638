"""Frontends: decoders with layer norms: GPT-2, GPT-NeoX, OPT and Phi."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import Optional, Settings, check_rope, need
from foretell.frontends.huggingface.written.values import Trace, Value, cat

Rotary = tuple[Value, Value]
OPT_OFFSET = 2  # its table of positions begins with two rows that are no positions


def _outputs(logits: Value, cache: blocks.Cache | None) -> list[Value]:
    return [logits, *(cache.tensors if cache else ())]


def _cache(t: Trace, sizes: Sizes, layers: int, heads: int, width: int) -> blocks.Cache | None:
    return blocks.start_cache(t, sizes, [None] * layers, (heads, width), (heads, width))


# ── GPT-2 ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _gpt2(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    cache = _cache(t, sizes, c.n_layer, c.n_head, c.n_embd // c.n_head)
    hidden_states = t.run("transformer", _gpt2_model, c, input_ids, cache)
    tied = "transformer.wte.weight" if c.tie_word_embeddings else ""
    return _outputs(blocks.last_logits(t, hidden_states, c.vocab_size, last=sizes.cached, tied=tied), cache)


def _gpt2_model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    length = input_ids.shape[1]
    input_ids = input_ids.view(-1, length)
    inputs_embeds = blocks.embedding(t, "wte", input_ids, c.vocab_size, c.n_embd)
    position_ids = blocks.positions(t, length, cache.past if cache else 0)
    position_embeds = blocks.embedding(t, "wpe", position_ids, c.n_positions, c.n_embd)
    hidden_states = inputs_embeds + position_embeds.to(t.dtype)
    blocks.check_packing(t, position_ids, cache is not None)
    hidden_states = blocks.dropout(t, "drop", hidden_states, c.embd_pdrop)
    for index in range(c.n_layer):
        hidden_states = t.run(f"h.{index}", _gpt2_layer, c, index, hidden_states, cache)
    hidden_states = blocks.layer_norm(t, "ln_f", hidden_states)
    return hidden_states.view(-1, length, c.n_embd)


def _gpt2_layer(t: Trace, c: Settings, index: int, hidden_states: Value, cache: blocks.Cache | None) -> Value:
    residual = hidden_states
    hidden_states = blocks.layer_norm(t, "ln_1", hidden_states)
    attn_output = t.run("attn", _gpt2_attention, c, index, hidden_states, cache)
    hidden_states = attn_output + residual
    residual = hidden_states
    hidden_states = blocks.layer_norm(t, "ln_2", hidden_states)
    feed_forward = t.run("mlp", _gpt2_mlp, c, hidden_states)
    return residual + feed_forward


def _gpt2_attention(t: Trace, c: Settings, index: int, hidden_states: Value, cache: blocks.Cache | None) -> Value:
    head = c.n_embd // c.n_head
    query_states, key_states, value_states = t.run("c_attn", _conv1d, hidden_states, 3 * c.n_embd).split(c.n_embd, 2)
    key_states = key_states.view(*key_states.shape[:-1], -1, head).transpose(1, 2)
    value_states = value_states.view(*value_states.shape[:-1], -1, head).transpose(1, 2)
    query_states = query_states.view(*query_states.shape[:-1], -1, head).transpose(1, 2)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attn_pdrop)
    attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
    attn_output = t.run("c_proj", _conv1d, attn_output, c.n_embd)
    return blocks.dropout(t, "resid_dropout", attn_output, c.resid_pdrop)


def _gpt2_mlp(t: Trace, c: Settings, hidden_states: Value) -> Value:
    width = 4 * c.n_embd if c.n_inner is None else c.n_inner
    hidden_states = t.run("c_fc", _conv1d, hidden_states, width)
    hidden_states = blocks.activation(t, "act", c.activation_function, hidden_states)
    hidden_states = t.run("c_proj", _conv1d, hidden_states, c.n_embd)
    return blocks.dropout(t, "dropout", hidden_states, c.resid_pdrop)


def _conv1d(t: Trace, x: Value, width: int) -> Value:
    """A product whose weight is not transposed."""
    shape = (*x.shape[:-1], width)
    weight, bias = t.weight("weight", x.shape[-1], width), t.weight("bias", width)
    rows = x.view(-1, x.shape[-1])
    x = t.call("addmm", {"self": bias, "mat1": rows, "mat2": weight}, (rows.shape[0], width), x.dtype)
    del rows
    return x.view(*shape)


def _check_gpt2(c: Settings, _: Mapping[str, Any], __: Sizes) -> None:
    need(c.n_embd % c.n_head == 0, "heads that do not divide")
    need(c.activation_function in blocks.ACTIVATIONS, c.activation_function)
    need(not c.reorder_and_upcast_attn and not c.add_cross_attention, "another attention")
    blocks.check_shares(c.resid_pdrop, c.embd_pdrop, c.attn_pdrop)


# ── GPT-NeoX ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _neox(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    heads = c.num_attention_heads
    cache = _cache(t, sizes, c.num_hidden_layers, heads, c.hidden_size // heads)
    hidden_states = t.run("gpt_neox", _neox_model, c, input_ids, cache)
    tied = "gpt_neox.embed_in.weight" if c.tie_word_embeddings else ""
    return _outputs(blocks.last_logits(t, hidden_states, c.vocab_size, last=sizes.cached, tied=tied), cache)


def _neox_model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    inputs_embeds = blocks.embedding(t, "embed_in", input_ids, c.vocab_size, c.hidden_size)
    position_ids = blocks.positions(t, input_ids.shape[1], cache.past if cache else 0)
    blocks.check_packing(t, position_ids, cache is not None)
    hidden_states = blocks.dropout(t, "emb_dropout", inputs_embeds, c.hidden_dropout)
    position_embeddings = blocks.rotary(t, position_ids, c.rotary_width)
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"layers.{index}", _neox_layer, c, index, hidden_states, position_embeddings, cache)
    return blocks.layer_norm(t, "final_layer_norm", hidden_states)


def _neox_layer(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    attn_output = t.run(
        "attention",
        _neox_attention,
        c,
        index,
        blocks.layer_norm(t, "input_layernorm", hidden_states),
        rotary,
        cache,
    )
    attn_output = blocks.dropout(t, "post_attention_dropout", attn_output, c.hidden_dropout)
    if c.use_parallel_residual:
        mlp_output = t.run("mlp", _neox_mlp, c, blocks.layer_norm(t, "post_attention_layernorm", hidden_states))
        mlp_output = blocks.dropout(t, "post_mlp_dropout", mlp_output, c.hidden_dropout)
        hidden_states = mlp_output + attn_output + hidden_states
    else:
        attn_output = attn_output + hidden_states
        mlp_output = t.run("mlp", _neox_mlp, c, blocks.layer_norm(t, "post_attention_layernorm", attn_output))
        mlp_output = blocks.dropout(t, "post_mlp_dropout", mlp_output, c.hidden_dropout)
        hidden_states = mlp_output + attn_output
    return hidden_states


def _neox_attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    input_shape = hidden_states.shape[:-1]
    head = c.hidden_size // c.num_attention_heads
    qkv = blocks.linear(t, "query_key_value", hidden_states, 3 * c.hidden_size, bias=c.attention_bias)
    qkv = qkv.view(*input_shape, -1, 3 * head).transpose(1, 2)
    query_states, key_states, value_states = qkv.chunk(3, -1)
    cos, sin = rotary
    query_states, key_states = _apply_part(query_states, key_states, cos, sin)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    return blocks.linear(t, "dense", attn_output, c.hidden_size, bias=c.attention_bias)


def _apply_part(q: Value, k: Value, cos: Value, sin: Value) -> Rotary:
    """Turn the first columns of queries and keys by their positions."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    width = cos.shape[-1]
    q_rot, q_pass = q.slice(-1, 0, width), q.slice(-1, width)
    k_rot, k_pass = k.slice(-1, 0, width), k.slice(-1, width)
    q_embed = (q_rot * cos) + (blocks.rotate_half(q_rot) * sin)
    k_embed = (k_rot * cos) + (blocks.rotate_half(k_rot) * sin)
    q_embed = cat([q_embed, q_pass], -1)
    k_embed = cat([k_embed, k_pass], -1)
    return q_embed, k_embed


def _neox_mlp(t: Trace, c: Settings, hidden_states: Value) -> Value:
    hidden_states = blocks.linear(t, "dense_h_to_4h", hidden_states, c.intermediate_size, bias=True)
    hidden_states = blocks.activation(t, "act", c.hidden_act, hidden_states)
    return blocks.linear(t, "dense_4h_to_h", hidden_states, c.hidden_size, bias=True)


def _check_neox(c: Settings, values: Mapping[str, Any], _: Sizes) -> None:
    need(not values.get("rope_scaling") and not values.get("rope_parameters"), "rope_scaling")
    need(c.hidden_size % c.num_attention_heads == 0, "heads that do not divide")
    need(c.hidden_act in blocks.ACTIVATIONS, c.hidden_act)
    c.rotary_width = blocks.rotary_width(c.hidden_size // c.num_attention_heads, c.rotary_pct)
    blocks.check_shares(c.attention_dropout, c.hidden_dropout)


# ── Phi ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _phi(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    cache = _cache(t, sizes, c.num_hidden_layers, c.num_key_value_heads, c.head_dim)
    hidden_states = t.run("model", _phi_model, c, input_ids, cache)
    tied = "model.embed_tokens.weight" if c.tie_word_embeddings else ""
    return _outputs(blocks.last_logits(t, hidden_states, c.vocab_size, last=sizes.cached, tied=tied, bias=True), cache)


def _phi_model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    inputs_embeds = blocks.embedding(t, "embed_tokens", input_ids, c.vocab_size, c.hidden_size)
    position_ids = blocks.positions(t, input_ids.shape[1], cache.past if cache else 0)
    blocks.check_packing(t, position_ids, cache is not None)
    inputs_embeds = blocks.dropout(t, "embed_dropout", inputs_embeds, c.embd_pdrop)
    hidden_states = inputs_embeds
    position_embeddings = blocks.rotary(t, position_ids, c.rotary_width)
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"layers.{index}", _phi_layer, c, index, hidden_states, position_embeddings, cache)
    return blocks.layer_norm(t, "final_layernorm", hidden_states)


def _phi_layer(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    residual = hidden_states
    hidden_states = blocks.layer_norm(t, "input_layernorm", hidden_states)
    attn_outputs = t.run("self_attn", _phi_attention, c, index, hidden_states, rotary, cache)
    attn_outputs = blocks.dropout(t, "resid_dropout", attn_outputs, c.resid_pdrop)
    feed_forward = blocks.dropout(t, "resid_dropout", t.run("mlp", _phi_mlp, c, hidden_states), c.resid_pdrop)
    return attn_outputs + feed_forward + residual


def _phi_attention(
    t: Trace, c: Settings, index: int, hidden_states: Value, rotary: Rotary, cache: blocks.Cache | None
) -> Value:
    input_shape = hidden_states.shape[:-1]
    hidden_shape = (*input_shape, -1, c.head_dim)
    kv_width = c.num_key_value_heads * c.head_dim
    query_states = (
        blocks.linear(t, "q_proj", hidden_states, c.hidden_size, bias=True).view(*hidden_shape).transpose(1, 2)
    )
    key_states = blocks.linear(t, "k_proj", hidden_states, kv_width, bias=True).view(*hidden_shape).transpose(1, 2)
    value_states = blocks.linear(t, "v_proj", hidden_states, kv_width, bias=True).view(*hidden_shape).transpose(1, 2)
    if c.qk_layernorm:
        query_states = blocks.layer_norm(t, "q_layernorm", query_states)
        key_states = blocks.layer_norm(t, "k_layernorm", key_states)
    cos, sin = rotary
    width = c.rotary_width
    query_rot, query_pass = query_states.slice(-1, 0, width), query_states.slice(-1, width)
    key_rot, key_pass = key_states.slice(-1, 0, width), key_states.slice(-1, width)
    query_rot, key_rot = blocks.apply_rotary(query_rot, key_rot, cos, sin)
    query_states = cat([query_rot, query_pass], -1)
    key_states = cat([key_rot, key_pass], -1)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    return blocks.linear(t, "dense", attn_output, c.hidden_size, bias=True)


def _phi_mlp(t: Trace, c: Settings, hidden_states: Value) -> Value:
    hidden_states = blocks.linear(t, "fc1", hidden_states, c.intermediate_size, bias=True)
    hidden_states = blocks.activation(t, "activation_fn", c.hidden_act, hidden_states)
    return blocks.linear(t, "fc2", hidden_states, c.hidden_size, bias=True)


def _check_phi(c: Settings, values: Mapping[str, Any], _: Sizes) -> None:
    check_rope(values, "default")
    c.num_key_value_heads = c.num_attention_heads if c.num_key_value_heads is None else c.num_key_value_heads
    need(c.hidden_size % c.num_attention_heads == 0, "heads that do not divide")
    need(c.num_attention_heads % c.num_key_value_heads == 0, "heads that do not divide")
    need(c.hidden_act in blocks.ACTIVATIONS, c.hidden_act)
    blocks.check_padding(c)
    c.head_dim = c.hidden_size // c.num_attention_heads
    c.rotary_width = blocks.rotary_width(c.head_dim, c.partial_rotary_factor)
    blocks.check_shares(c.attention_dropout, c.resid_pdrop, c.embd_pdrop)


# ── OPT ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _opt(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    heads = c.num_attention_heads
    cache = _cache(t, sizes, c.num_hidden_layers, heads, c.hidden_size // heads)
    hidden_states = t.run("model.decoder", _opt_model, c, input_ids, cache)
    tied = "model.decoder.embed_tokens.weight" if c.tie_word_embeddings else ""
    return _outputs(blocks.last_logits(t, hidden_states, c.vocab_size, last=sizes.cached, tied=tied), cache)


def _opt_model(t: Trace, c: Settings, input_ids: Value, cache: blocks.Cache | None) -> Value:
    length, past = input_ids.shape[1], cache.past if cache else 0
    input_ids = input_ids.view(-1, length)
    inputs_embeds = blocks.embedding(t, "embed_tokens", input_ids, c.vocab_size, c.word_embed_proj_dim)
    mask = t.call("ones", {}, (t.batch_size, past + length), "fp32")
    position_ids = t.call("cumsum", {"self": mask, "dim": 1}, mask.shape, "fp32")
    position_ids = (position_ids * mask - 1).to("int64")
    position_ids = position_ids.slice(1, past)
    pos_embeds = t.run("embed_positions", _opt_positions, c, mask, position_ids)
    if c.word_embed_proj_dim != c.hidden_size:
        inputs_embeds = blocks.linear(t, "project_in", inputs_embeds, c.hidden_size)
    hidden_states = inputs_embeds + pos_embeds.to(t.dtype)
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"layers.{index}", _opt_layer, c, index, hidden_states, cache)
    if c.do_layer_norm_before:
        hidden_states = blocks.layer_norm(t, "final_layer_norm", hidden_states)
    if c.word_embed_proj_dim != c.hidden_size:
        hidden_states = blocks.linear(t, "project_out", hidden_states, c.word_embed_proj_dim)
    return hidden_states


def _opt_positions(t: Trace, c: Settings, _: Value, position_ids: Value) -> Value:
    table = t.weight("weight", c.max_position_embeddings + OPT_OFFSET, c.hidden_size)
    shape = (*position_ids.shape, c.hidden_size)
    return t.call("embedding", {"weight": table, "indices": position_ids + OPT_OFFSET}, shape, t.dtype)


def _opt_layer(t: Trace, c: Settings, index: int, hidden_states: Value, cache: blocks.Cache | None) -> Value:
    residual = hidden_states
    if c.do_layer_norm_before:
        hidden_states = blocks.layer_norm(t, "self_attn_layer_norm", hidden_states)
    hidden_states = t.run("self_attn", _opt_attention, c, index, hidden_states, cache)
    hidden_states = hidden_states.dropout(c.dropout)
    hidden_states = residual + hidden_states
    if not c.do_layer_norm_before:
        hidden_states = blocks.layer_norm(t, "self_attn_layer_norm", hidden_states)
    shape = hidden_states.shape
    hidden_states = hidden_states.reshape(-1, shape[-1])
    residual = hidden_states
    if c.do_layer_norm_before:
        hidden_states = blocks.layer_norm(t, "final_layer_norm", hidden_states)
    hidden_states = blocks.linear(t, "fc1", hidden_states, c.ffn_dim, bias=c.enable_bias)
    hidden_states = blocks.activation(t, "activation_fn", c.activation_function, hidden_states)
    hidden_states = blocks.linear(t, "fc2", hidden_states, c.hidden_size, bias=c.enable_bias)
    hidden_states = hidden_states.dropout(c.dropout)
    hidden_states = (residual + hidden_states).view(*shape)
    if not c.do_layer_norm_before:
        hidden_states = blocks.layer_norm(t, "final_layer_norm", hidden_states)
    return hidden_states


def _opt_attention(t: Trace, c: Settings, index: int, hidden_states: Value, cache: blocks.Cache | None) -> Value:
    batch, length, width = hidden_states.shape
    heads = (batch, -1, c.num_attention_heads, width // c.num_attention_heads)
    query_states = blocks.linear(t, "q_proj", hidden_states, width, bias=c.enable_bias) * 0.125
    query_states = query_states.view(*heads).transpose(1, 2)
    key_states = blocks.linear(t, "k_proj", hidden_states, width, bias=c.enable_bias)
    value_states = blocks.linear(t, "v_proj", hidden_states, width, bias=c.enable_bias)
    key_states = key_states.view(*heads).transpose(1, 2)
    value_states = value_states.view(*heads).transpose(1, 2)
    if cache is not None:
        key_states, value_states = cache.update(t, index, key_states, value_states)
    attn_output = blocks.attend(t, query_states, key_states, value_states, c.attention_dropout)
    attn_output = attn_output.reshape(batch, length, -1).contiguous()
    return blocks.linear(t, "out_proj", attn_output, width, bias=c.enable_bias)


def _check_opt(c: Settings, _: Mapping[str, Any], __: Sizes) -> None:
    c.word_embed_proj_dim = c.hidden_size if c.word_embed_proj_dim is None else c.word_embed_proj_dim
    need(c.hidden_size % c.num_attention_heads == 0, "heads that do not divide")
    need(c.layer_norm_elementwise_affine and not c._remove_final_layer_norm, "norms without weights")
    need(c.activation_function in blocks.ACTIVATIONS, c.activation_function)
    need(c.layerdrop == 0, "layerdrop")
    blocks.check_padding(c)
    blocks.check_shares(c.dropout, c.attention_dropout)


FAMILIES = {
    "gpt2": Family(
        ("GPT2LMHeadModel",),
        {
            "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "n_inner": None,
            "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
            "reorder_and_upcast_attn": False, "add_cross_attention": False, "tie_word_embeddings": True,
        },
        ("n_ctx", "summary_first_dropout", "scale_attn_weights", "scale_attn_by_inverse_layer_idx"),
        _check_gpt2,
        _gpt2,
        "transformer wte wpe h ln_1 attn c_attn c_fc c_proj ln_2 mlp ln_f lm_head weight bias",
        positions="n_positions",
    ),
    "gpt_neox": Family(
        ("GPTNeoXForCausalLM",),
        {
            "vocab_size": 50432, "hidden_size": 6144, "num_hidden_layers": 44, "num_attention_heads": 64,
            "intermediate_size": 24576, "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0,
            "max_position_embeddings": 2048, "tie_word_embeddings": False, "use_parallel_residual": True,
            "attention_bias": True, "rotary_pct": 0.25,
        },
        ("rotary_emb_base", "rope_scaling", "rope_parameters", "classifier_dropout"),
        _check_neox,
        _neox,
        "gpt_neox embed_in layers input_layernorm post_attention_layernorm attention query_key_value dense mlp "
        "dense_h_to_4h dense_4h_to_h final_layer_norm rotary_emb inv_freq original_inv_freq lm_head weight bias",
    ),
    "phi": Family(
        ("PhiForCausalLM",),
        {
            "vocab_size": 51200, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32,
            "num_key_value_heads": None, "intermediate_size": 8192, "hidden_act": "gelu_new", "resid_pdrop": 0.0,
            "embd_pdrop": 0.0, "attention_dropout": 0.0, "max_position_embeddings": 2048, "tie_word_embeddings": False,
            "qk_layernorm": False, "partial_rotary_factor": 0.5, "pad_token_id": None,
        },
        ("rope_theta", "rope_scaling", "rope_parameters"),
        _check_phi,
        _phi,
        "model embed_tokens layers self_attn q_proj k_proj v_proj dense q_layernorm k_layernorm mlp fc1 fc2 "
        "input_layernorm rotary_emb inv_freq original_inv_freq final_layernorm lm_head weight bias",
    ),
    "opt": Family(
        ("OPTForCausalLM",),
        {
            "vocab_size": 50272, "hidden_size": 768, "num_hidden_layers": 12, "ffn_dim": 3072,
            "max_position_embeddings": 2048, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
            "word_embed_proj_dim": None, "dropout": 0.1, "attention_dropout": 0.0, "num_attention_heads": 12,
            "activation_function": "relu", "layerdrop": 0.0, "pad_token_id": Optional(1), "enable_bias": True,
            "layer_norm_elementwise_affine": True, "tie_word_embeddings": True,
        },
        ("init_std", "activation_dropout"),
        _check_opt,
        _opt,
        "model decoder embed_tokens embed_positions project_out project_in self_attn k_proj v_proj q_proj out_proj "
        "self_attn_layer_norm fc1 fc2 final_layer_norm layers lm_head weight bias",
        positions="max_position_embeddings",
    ),
}  # fmt: skip

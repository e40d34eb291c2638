"""Frontends: T5: an encoder and a decoder with relative positions, which are added to the scores of attention."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import Optional, Settings, need
from foretell.frontends.huggingface.written.values import Trace, Value

# what attention returns: its output and the bias, which the next layer takes over
Biased = tuple[Value, Value]
Caches = tuple[blocks.Cache, blocks.Cache]  # of the decoder itself, and of what it reads from the encoder


def _run(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    t.weight("shared.weight", c.vocab_size, c.d_model)
    if sizes.mode == "decode":
        decoder_ids = t.input("decoder_input_ids", 1)
        hidden_states = t.input("encoder_hidden_states", sizes.source, c.d_model, dtype=t.dtype)
        _declare_encoder(t, c)
    else:
        input_ids = t.input("input_ids", sizes.source)
        decoder_ids = t.input("decoder_input_ids", sizes.length)
        hidden_states = t.run("encoder", _stack, c, input_ids, None, None)
    caches = _start_caches(t, c, sizes)
    decoder_output = t.run("decoder", _stack, c, decoder_ids, hidden_states, caches)
    sequence_output = decoder_output
    if c.scale_decoder_outputs:
        sequence_output = sequence_output * 0.125
        logits = _tied_head(t, c, sequence_output)
    else:
        logits = blocks.linear(t, "lm_head", sequence_output, c.vocab_size)
    if caches is None:
        return [logits, hidden_states]
    return [logits, *caches[0].tensors, *(() if sizes.past else caches[1].tensors)]


def _declare_encoder(t: Trace, c: Settings) -> None:
    """The weights of the encoder are there, although only the decoder runs."""
    aside = Trace(t.batch_size, t.dtype, training=False, order="")
    aside.weight("shared.weight", c.vocab_size, c.d_model)
    aside.run("encoder", _stack, c, aside.input("input_ids", 1), None, None)
    for path, value in aside.weights.items():
        t.weight(path, *value.shape)


def _tied_head(t: Trace, c: Settings, x: Value) -> Value:
    with t.within("lm_head"):
        arguments = {"input": x, "weight": t.weights["shared.weight"]}
        return t.call("linear", arguments, (*x.shape[:-1], c.vocab_size), x.dtype)


def _start_caches(t: Trace, c: Settings, sizes: Sizes) -> Caches | None:
    if not sizes.cached:
        return None
    heads = (c.num_heads, c.d_kv)
    layers: list[int | None] = [None] * c.num_decoder_layers
    cross = blocks.Cache(0, layers)
    own = blocks.start_cache(t, sizes, layers, heads, heads)
    assert own is not None
    for layer in range(len(layers) if sizes.past else 0):
        cross.layers[layer] = [
            t.input(f"cross_{layer}_{name}", c.num_heads, sizes.source, c.d_kv, dtype=t.dtype)
            for name in ("keys", "values")
        ]
    return own, cross


def _stack(t: Trace, c: Settings, tokens: Value, encoder_states: Value | None, caches: Caches | None) -> Value:
    is_decoder = encoder_states is not None
    inputs_embeds = t.run("embed_tokens", _embed, c, tokens)
    position_bias = cross_bias = None
    hidden_states = blocks.dropout(t, "dropout", inputs_embeds, c.dropout_rate)
    for index in range(c.num_decoder_layers if is_decoder else c.num_layers):
        hidden_states, position_bias, cross_bias = t.run(
            f"block.{index}", _block, c, index, hidden_states, position_bias, encoder_states, cross_bias, caches
        )
    hidden_states = _norm(t, "final_layer_norm", hidden_states)
    return blocks.dropout(t, "dropout", hidden_states, c.dropout_rate)


def _embed(t: Trace, c: Settings, tokens: Value) -> Value:
    arguments = {"weight": t.weights["shared.weight"], "indices": tokens}
    return t.call("embedding", arguments, (*tokens.shape, c.d_model), t.dtype)


def _norm(t: Trace, name: str, x: Value) -> Value:
    return t.run(name, _scale, x)


def _scale(t: Trace, hidden_states: Value) -> Value:
    weight = t.weight("weight", hidden_states.shape[-1])
    variance = hidden_states.to("fp32").apply("pow").reduce("mean", -1, keep=True)
    hidden_states = hidden_states * (variance + 1e-6).apply("rsqrt")
    if weight.dtype != "fp32":
        hidden_states = hidden_states.to(weight.dtype)
    return weight * hidden_states


def _block(
    t: Trace,
    c: Settings,
    index: int,
    hidden_states: Value,
    position_bias: Value | None,
    encoder_states: Value | None,
    cross_bias: Value | None,
    caches: Caches | None,
) -> tuple[Value, Value, Value | None]:
    is_decoder = encoder_states is not None
    own, cross = caches or (None, None)
    hidden_states, own_bias = t.run("layer.0", _own_attention, c, index, hidden_states, position_bias, own, is_decoder)
    new_cross_bias = None
    if encoder_states is not None:
        hidden_states, new_cross_bias = t.run(
            "layer.1", _cross_attention, c, index, hidden_states, encoder_states, cross_bias, cross
        )
    hidden_states = t.run("layer.2" if is_decoder else "layer.1", _feed_forward, c, hidden_states)
    return hidden_states, own_bias, new_cross_bias


def _own_attention(
    t: Trace,
    c: Settings,
    index: int,
    hidden_states: Value,
    position_bias: Value | None,
    cache: blocks.Cache | None,
    is_decoder: bool,
) -> Biased:
    normed_hidden_states = _norm(t, "layer_norm", hidden_states)
    attention_output, position_bias = t.run(
        "SelfAttention", _attention, c, index, normed_hidden_states, None, position_bias, cache, is_decoder
    )
    attention_output = hidden_states + blocks.dropout(t, "dropout", attention_output, c.dropout_rate)
    return attention_output, position_bias


def _cross_attention(
    t: Trace,
    c: Settings,
    index: int,
    hidden_states: Value,
    encoder_states: Value,
    position_bias: Value | None,
    cache: blocks.Cache | None,
) -> Biased:
    normed_hidden_states = _norm(t, "layer_norm", hidden_states)
    attention_output, position_bias = t.run(
        "EncDecAttention", _attention, c, index, normed_hidden_states, encoder_states, position_bias, cache, False
    )
    layer_output = hidden_states + blocks.dropout(t, "dropout", attention_output, c.dropout_rate)
    return layer_output, position_bias


def _attention(
    t: Trace,
    c: Settings,
    index: int,
    hidden_states: Value,
    encoder_states: Value | None,
    position_bias: Value | None,
    cache: blocks.Cache | None,
    is_causal: bool,
) -> Biased:
    input_shape, inner = hidden_states.shape[:-1], c.num_heads * c.d_kv
    past = cache.past if cache is not None else 0
    query_states = blocks.linear(t, "q", hidden_states, inner).view(*input_shape, -1, c.d_kv).transpose(1, 2)
    if cache is not None and encoder_states is not None and index in cache.layers:
        key_states, value_states = cache.layers[index]
        for name in ("k.weight", "v.weight"):
            t.weight(name, inner, c.d_model)  # not read in this run, but there
    else:
        current_states = hidden_states if encoder_states is None else encoder_states
        kv_shape = (*current_states.shape[:-1], -1, c.d_kv)
        key_states = blocks.linear(t, "k", current_states, inner).view(*kv_shape).transpose(1, 2)
        value_states = blocks.linear(t, "v", current_states, inner).view(*kv_shape).transpose(1, 2)
        if cache is not None:
            key_states, value_states = cache.update(t, index, key_states, value_states)
    if position_bias is None:
        key_length = key_states.shape[-2]
        if encoder_states is not None:
            position_bias = t.call("zeros", {}, (1, c.num_heads, input_shape[1], key_length), t.dtype)
        else:
            position_bias = _bias(t, c, input_shape[1], key_length, past, is_causal)
    attn_output = _attend(t, query_states, key_states, value_states, position_bias, is_causal)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    attn_output = blocks.linear(t, "o", attn_output, c.d_model)
    return attn_output, position_bias


def _attend(t: Trace, query: Value, key: Value, value: Value, position_bias: Value, is_causal: bool) -> Value:
    mask = _causal(t, position_bias) if is_causal and query.shape[2] > 1 else position_bias.contiguous()
    arguments = {"query": query, "key": key, "value": value, "attn_mask": mask}
    attn_output = t.call("scaled_dot_product_attention", arguments, query.shape, query.dtype)
    return attn_output.transpose(1, 2).contiguous()


def _causal(t: Trace, position_bias: Value) -> Value:
    length, key_length = position_bias.shape[2:]
    causal_mask = (
        blocks.arange(t, length).unsqueeze(1).with_other("ge", blocks.arange(t, key_length).unsqueeze(0), "bool")
    )
    causal_mask = causal_mask.view(1, 1, length, key_length)
    return position_bias.where(causal_mask).contiguous()


def _bias(t: Trace, c: Settings, length: int, key_length: int, past: int, is_decoder: bool) -> Value:
    context_position = blocks.arange(t, length).unsqueeze(1) + past
    memory_position = blocks.arange(t, key_length).unsqueeze(0)
    relative_position = memory_position - context_position
    buckets = _buckets(t, relative_position, is_decoder)
    rows, heads = c.relative_attention_num_buckets, c.num_heads
    values = blocks.embedding(t, "relative_attention_bias", buckets, rows, heads)
    return values.permute(2, 0, 1).unsqueeze(0)


def _buckets(t: Trace, relative_position: Value, is_decoder: bool) -> Value:
    """Near positions have a bucket each, far ones share it."""
    if is_decoder:
        buckets = None
        relative_position = -relative_position.with_other("min", relative_position.apply("zeros_like"))
    else:
        buckets = relative_position.with_other("gt", 0, "bool").to("int64") * 16 + 0
        relative_position = relative_position.apply("abs")
    is_small = relative_position.with_other("lt", 8, "bool")
    if_large = ((relative_position.to("fp32") / 8).apply("log") / 2.77 * 8).to("int64") + 8
    if_large = if_large.with_other("min", if_large.apply("full_like"))
    arguments = {"condition": is_small, "self": relative_position, "other": if_large}
    if buckets is None:
        return t.call("where", arguments, relative_position.shape, "int64") + 0
    buckets.add_(t.call("where", arguments, relative_position.shape, "int64"))
    return buckets


def _feed_forward(t: Trace, c: Settings, hidden_states: Value) -> Value:
    forwarded_states = _norm(t, "layer_norm", hidden_states)
    forwarded_states = t.run("DenseReluDense", _dense, c, forwarded_states)
    return hidden_states + blocks.dropout(t, "dropout", forwarded_states, c.dropout_rate)


def _dense(t: Trace, c: Settings, hidden_states: Value) -> Value:
    if c.is_gated:
        hidden_gelu = blocks.activation(t, "act", c.act, blocks.linear(t, "wi_0", hidden_states, c.d_ff))
        hidden_linear = blocks.linear(t, "wi_1", hidden_states, c.d_ff)
        hidden_states = hidden_gelu * hidden_linear
    else:
        hidden_states = blocks.linear(t, "wi", hidden_states, c.d_ff)
        hidden_states = blocks.activation(t, "act", c.act, hidden_states)
    hidden_states = blocks.dropout(t, "dropout", hidden_states, c.dropout_rate)
    return blocks.linear(t, "wo", hidden_states, c.d_model)


def _check(c: Settings, values: Mapping[str, Any], _: Sizes) -> None:
    c.num_decoder_layers = c.num_layers if c.num_decoder_layers is None else c.num_decoder_layers
    gate, _dash, act = c.feed_forward_proj.rpartition("-")
    need(gate in ("", "gated"), c.feed_forward_proj)
    c.is_gated, c.act = gate == "gated", "gelu_new" if c.feed_forward_proj == "gated-gelu" else act
    need(c.act in blocks.ACTIVATIONS, c.act)
    c.scale_decoder_outputs = values.get("tie_word_embeddings") is not False
    need(values.get("tie_word_embeddings") in (None, True, False), "tie_word_embeddings")
    need(c.is_encoder_decoder and not c.is_decoder, "an encoder or a decoder alone")
    need(c.relative_attention_num_buckets >= 4 and c.relative_attention_max_distance > 16, "few buckets")
    blocks.check_shares(c.dropout_rate)


FAMILIES = {
    "t5": Family(
        ("T5ForConditionalGeneration",),
        {
            "vocab_size": 32128, "d_model": 512, "d_kv": 64, "d_ff": 2048, "num_layers": 6, "num_decoder_layers": None,
            "num_heads": 8, "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128,
            "dropout_rate": 0.1, "feed_forward_proj": "relu", "is_encoder_decoder": True, "is_decoder": False,
            "pad_token_id": Optional(0),
        },
        ("tie_word_embeddings", "n_positions", "classifier_dropout"),
        _check,
        _run,
        "weight shared encoder block layer SelfAttention EncDecAttention q k v o relative_attention_bias "
        "DenseReluDense wi wi_0 wi_1 wo layer_norm final_layer_norm decoder lm_head",
        is_encoder_decoder=True,
    ),
}  # fmt: skip

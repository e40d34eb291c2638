"""Frontends: encoders: BERT, RoBERTa and DistilBERT, bare or with the head that predicts masked tokens."""

from collections.abc import Mapping
from typing import Any

from foretell.frontends.huggingface.written import blocks
from foretell.frontends.huggingface.written.family import Family, Sizes
from foretell.frontends.huggingface.written.settings import Optional, Settings, need
from foretell.frontends.huggingface.written.values import Trace, Value


def _attend(t: Trace, names: str, hidden_states: Value, heads: int, share: float) -> Value:
    """Attention of all tokens to all; ``names`` are those of the three projections."""
    input_shape, width = hidden_states.shape[:-1], hidden_states.shape[-1]
    hidden_shape = (*input_shape, -1, width // heads)
    query_layer, key_layer, value_layer = (
        blocks.linear(t, name, hidden_states, width, bias=True).view(*hidden_shape).transpose(1, 2)
        for name in names.split()
    )
    attn_output = blocks.attend(t, query_layer, key_layer, value_layer, share, causal=False)
    return attn_output.reshape(*input_shape, -1).contiguous()


def _head(t: Trace, name: str, x: Value, c: Settings, bias: Value) -> Value:
    """The product with the embeddings of all tokens."""
    with t.within(name):
        arguments = {"input": x, "weight": t.weights[c.embeddings], "bias": bias}
        return t.call("linear", arguments, (*x.shape[:-1], c.vocab_size), x.dtype)


# ── BERT and RoBERTa ──────────────────────────────────────────────────────────────────────────────────────────────────


def _bert(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    if not c.has_head:
        return _bert_model(t, c, input_ids, pooled=True)
    c.embeddings = f"{c.prefix}.embeddings.word_embeddings.weight"
    (sequence_output,) = t.run(c.prefix, _bert_model, c, input_ids)
    return [t.run(c.head_path, c.head, c, sequence_output)]


def _bert_model(t: Trace, c: Settings, input_ids: Value, *, pooled: bool = False) -> list[Value]:
    embedding_output = t.run("embeddings", c.embed, c, input_ids)
    sequence_output = t.run("encoder", _bert_encoder, c, embedding_output)
    return [sequence_output, t.run("pooler", _pool, sequence_output)] if pooled else [sequence_output]


def _bert_encoder(t: Trace, c: Settings, hidden_states: Value) -> Value:
    for index in range(c.num_hidden_layers):
        hidden_states = t.run(f"layer.{index}", _bert_layer, c, hidden_states)
    return hidden_states


def _bert_embeddings(t: Trace, c: Settings, input_ids: Value) -> Value:
    length = input_ids.shape[1]
    table = (1, c.max_position_embeddings)
    position_ids = t.weight("position_ids", *table, kind="buffer", dtype="int64").slice(1, 0, length)
    buffer = t.weight("token_type_ids", *table, kind="buffer", dtype="int64")
    return _embed(t, c, input_ids, position_ids, [buffer.expand(1, -1)])


def _roberta_embeddings(t: Trace, c: Settings, input_ids: Value) -> Value:
    position_ids = _roberta_positions(t, input_ids)
    table = (1, c.max_position_embeddings)
    t.weight("position_ids", *table, kind="buffer", dtype="int64")
    buffer = t.weight("token_type_ids", *table, kind="buffer", dtype="int64").to("int64")
    return _embed(t, c, input_ids, position_ids, [buffer.expand(t.batch_size, -1)])


def _roberta_positions(t: Trace, input_ids: Value) -> Value:
    mask = input_ids.with_other("ne", 1, "bool").to("int32")
    incremental = (t.call("cumsum", {"self": mask, "dim": 1}, mask.shape, "int64").to_type_of(mask) + 0) * mask
    return incremental.to("int64") + 1


def _embed(t: Trace, c: Settings, input_ids: Value, position_ids: Value, buffered: list[Value]) -> Value:
    """Words, types and positions; ``buffered`` is a list because transformers forgets the buffer's view here."""
    buffered_ids = buffered.pop().gather(1, position_ids)
    token_type_ids = buffered_ids.expand(*input_ids.shape)
    width = c.hidden_size
    inputs_embeds = blocks.embedding(t, "word_embeddings", input_ids, c.vocab_size, width)
    token_type_embeddings = blocks.embedding(t, "token_type_embeddings", token_type_ids, c.type_vocab_size, width)
    embeddings = inputs_embeds + token_type_embeddings
    position_embeddings = blocks.embedding(t, "position_embeddings", position_ids, c.max_position_embeddings, width)
    embeddings = embeddings + position_embeddings
    embeddings = blocks.layer_norm(t, "LayerNorm", embeddings)
    return blocks.dropout(t, "dropout", embeddings, c.hidden_dropout_prob)


def _bert_layer(t: Trace, c: Settings, hidden_states: Value) -> Value:
    attention_output = t.run("attention", _bert_attention, c, hidden_states)
    return _feed_forward(t, c, attention_output)


def _feed_forward(t: Trace, c: Settings, attention_output: Value) -> Value:
    intermediate_output = t.run("intermediate", _bert_intermediate, c, attention_output)
    return t.run("output", _bert_output, c, intermediate_output, attention_output)


def _bert_attention(t: Trace, c: Settings, hidden_states: Value) -> Value:
    heads, share = c.num_attention_heads, c.attention_probs_dropout_prob
    attention_output = t.run("self", _attend, "query key value", hidden_states, heads, share)
    return t.run("output", _bert_output, c, attention_output, hidden_states)


def _bert_intermediate(t: Trace, c: Settings, hidden_states: Value) -> Value:
    hidden_states = blocks.linear(t, "dense", hidden_states, c.intermediate_size, bias=True)
    return blocks.activation(t, "intermediate_act_fn", c.hidden_act, hidden_states)


def _bert_output(t: Trace, c: Settings, hidden_states: Value, input_tensor: Value) -> Value:
    hidden_states = blocks.linear(t, "dense", hidden_states, c.hidden_size, bias=True)
    hidden_states = blocks.dropout(t, "dropout", hidden_states, c.hidden_dropout_prob)
    return blocks.layer_norm(t, "LayerNorm", hidden_states + input_tensor)


def _pool(t: Trace, hidden_states: Value) -> Value:
    first_token_tensor = hidden_states.select(1)
    pooled_output = blocks.linear(t, "dense", first_token_tensor, first_token_tensor.shape[-1], bias=True)
    return blocks.activation(t, "activation", "tanh", pooled_output)


def _bert_head(t: Trace, c: Settings, hidden_states: Value) -> Value:
    bias = t.weight("bias", c.vocab_size)
    hidden_states = t.run("transform", _bert_transform, c, hidden_states)
    return _head(t, "decoder", hidden_states, c, bias)


def _bert_transform(t: Trace, c: Settings, hidden_states: Value) -> Value:
    hidden_states = blocks.linear(t, "dense", hidden_states, c.hidden_size, bias=True)
    hidden_states = blocks.activation(t, "transform_act_fn", c.hidden_act, hidden_states)
    return blocks.layer_norm(t, "LayerNorm", hidden_states)


def _roberta_head(t: Trace, c: Settings, features: Value) -> Value:
    bias = t.weight("bias", c.vocab_size)
    x = blocks.linear(t, "dense", features, c.hidden_size, bias=True)
    x = x.apply("gelu")
    x = blocks.layer_norm(t, "layer_norm", x)
    return _head(t, "decoder", x, c, bias)


def _check(c: Settings) -> None:
    need(c.hidden_size % c.num_attention_heads == 0, "heads that do not divide")
    need(c.hidden_act in blocks.ACTIVATIONS, c.hidden_act)
    need(not c.is_decoder and not c.add_cross_attention, "a decoder")
    need(c.chunk_size_feed_forward == 0 and c.position_embedding_type == "absolute", "chunks, or other positions")
    c.has_head = c.architecture.endswith("ForMaskedLM")
    need(c.tie_word_embeddings or not c.has_head, "a head of its own")
    blocks.check_padding(c)
    blocks.check_shares(c.hidden_dropout_prob, c.attention_probs_dropout_prob)


def _check_bert(c: Settings, _: Mapping[str, Any], __: Sizes) -> None:
    c.prefix, c.head_path, c.head, c.embed = "bert", "cls.predictions", _bert_head, _bert_embeddings
    _check(c)


def _check_roberta(c: Settings, _: Mapping[str, Any], sizes: Sizes) -> None:
    c.head_path, c.head, c.embed = "lm_head", _roberta_head, _roberta_embeddings
    c.prefix = "roberta"
    _check(c)
    need(c.pad_token_id is not None, "no padding token")
    # positions start after the row of the padding token
    need(sizes.length <= c.max_position_embeddings - c.pad_token_id - 1, "more tokens than positions")


# ── DistilBERT ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _distilbert(t: Trace, c: Settings, sizes: Sizes) -> list[Value]:
    input_ids = t.input("input_ids", sizes.length)
    if not c.architecture.endswith("ForMaskedLM"):
        return [_distilbert_model(t, c, input_ids)]
    hidden_states = t.run("distilbert", _distilbert_model, c, input_ids)
    logits = blocks.linear(t, "vocab_transform", hidden_states, c.dim, bias=True)
    logits = blocks.activation(t, "activation", c.activation, logits)
    logits = blocks.layer_norm(t, "vocab_layer_norm", logits)
    with t.within("vocab_projector"):
        bias = t.weight("bias", c.vocab_size)
    c.embeddings = "distilbert.embeddings.word_embeddings.weight"
    logits = _head(t, "vocab_projector", logits, c, bias)
    return [logits]


def _distilbert_model(t: Trace, c: Settings, input_ids: Value) -> Value:
    embeddings = t.run("embeddings", _distilbert_embeddings, c, input_ids)
    return t.run("transformer", _distilbert_encoder, c, embeddings)


def _distilbert_encoder(t: Trace, c: Settings, hidden_states: Value) -> Value:
    for index in range(c.n_layers):
        hidden_states = t.run(f"layer.{index}", _distilbert_layer, c, hidden_states)
    return hidden_states


def _distilbert_embeddings(t: Trace, c: Settings, input_ids: Value) -> Value:
    inputs_embeds = blocks.embedding(t, "word_embeddings", input_ids, c.vocab_size, c.dim)
    table = t.weight("position_ids", 1, c.max_position_embeddings, kind="buffer", dtype="int64")
    position_ids = table.slice(1, 0, input_ids.shape[1])
    position_embeddings = blocks.embedding(t, "position_embeddings", position_ids, c.max_position_embeddings, c.dim)
    embeddings = inputs_embeds + position_embeddings
    embeddings = blocks.layer_norm(t, "LayerNorm", embeddings)
    return blocks.dropout(t, "dropout", embeddings, c.dropout)


def _distilbert_layer(t: Trace, c: Settings, hidden_states: Value) -> Value:
    attention_output = t.run("attention", _distilbert_attention, c, hidden_states)
    attention_output = blocks.layer_norm(t, "sa_layer_norm", attention_output + hidden_states)
    ffn_output = t.run("ffn", _distilbert_ffn, c, attention_output)
    return blocks.layer_norm(t, "output_layer_norm", ffn_output + attention_output)


def _distilbert_attention(t: Trace, c: Settings, hidden_states: Value) -> Value:
    input_shape = hidden_states.shape[:-1]
    hidden_shape = (*input_shape, -1, c.dim // c.n_heads)
    query_layer = blocks.linear(t, "q_lin", hidden_states, c.dim, bias=True).view(*hidden_shape).transpose(1, 2)
    key_layer = blocks.linear(t, "k_lin", hidden_states, c.dim, bias=True).view(*hidden_shape).transpose(1, 2)
    value_layer = blocks.linear(t, "v_lin", hidden_states, c.dim, bias=True).view(*hidden_shape).transpose(1, 2)
    attn_output = blocks.attend(t, query_layer, key_layer, value_layer, c.attention_dropout, causal=False)
    attn_output = attn_output.reshape(*input_shape, -1).contiguous()
    return blocks.linear(t, "out_lin", attn_output, c.dim, bias=True)


def _distilbert_ffn(t: Trace, c: Settings, x: Value) -> Value:
    x = blocks.linear(t, "lin1", x, c.hidden_dim, bias=True)
    x = blocks.activation(t, "activation", c.activation, x)
    x = blocks.linear(t, "lin2", x, c.dim, bias=True)
    return blocks.dropout(t, "dropout", x, c.dropout)


def _check_distilbert(c: Settings, _: Mapping[str, Any], __: Sizes) -> None:
    need(c.dim % c.n_heads == 0, "heads that do not divide")
    need(c.activation in ("gelu", "relu"), c.activation)
    need(c.tie_word_embeddings and c.chunk_size_feed_forward == 0, "a head of its own, or chunks")
    need(not c.sinusoidal_pos_embds, "positions that are not learned")
    blocks.check_padding(c)
    blocks.check_shares(c.dropout, c.attention_dropout)


_BERT = {
    "vocab_size": 30522, "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12,
    "intermediate_size": 3072, "hidden_act": "gelu", "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": Optional(0), "is_decoder": False,
    "add_cross_attention": False, "tie_word_embeddings": True, "chunk_size_feed_forward": 0,
    "position_embedding_type": "absolute",
}  # fmt: skip
_ORDER = (
    "weight bias dense {0} embeddings word_embeddings {1} position_ids token_type_ids encoder layer attention self "
    "query key value intermediate output pooler {2}"
)

FAMILIES = {
    "bert": Family(
        ("BertModel", "BertForMaskedLM"),
        _BERT,
        ("classifier_dropout",),
        _check_bert,
        _bert,
        _ORDER.format(
            "bert", "position_embeddings token_type_embeddings LayerNorm", "cls predictions transform decoder"
        ),
        generates=False,
        positions="max_position_embeddings",
    ),
    "roberta": Family(
        ("RobertaModel", "RobertaForMaskedLM"),
        _BERT | {"vocab_size": 50265, "pad_token_id": Optional(1)},
        ("classifier_dropout",),
        _check_roberta,
        _bert,
        _ORDER.format("roberta", "token_type_embeddings LayerNorm position_embeddings", "lm_head layer_norm decoder"),
        generates=False,
        positions="max_position_embeddings",
    ),
    "xlm-roberta": Family(
        ("XLMRobertaModel",),
        _BERT | {"pad_token_id": Optional(1)},
        ("classifier_dropout",),
        _check_roberta,
        _bert,
        _ORDER.format("roberta", "token_type_embeddings LayerNorm position_embeddings", ""),
        generates=False,
        positions="max_position_embeddings",
    ),
    "distilbert": Family(
        ("DistilBertModel", "DistilBertForMaskedLM"),
        {
            "vocab_size": 30522, "max_position_embeddings": 512, "sinusoidal_pos_embds": False, "n_layers": 6,
            "n_heads": 12, "dim": 768, "hidden_dim": 3072, "dropout": 0.1, "attention_dropout": 0.1,
            "activation": "gelu", "pad_token_id": Optional(0), "tie_word_embeddings": True,
            "chunk_size_feed_forward": 0,
        },
        ("qa_dropout", "seq_classif_dropout", "tie_weights_"),
        _check_distilbert,
        _distilbert,
        "weight bias distilbert embeddings word_embeddings position_embeddings LayerNorm position_ids transformer "
        "layer attention q_lin k_lin v_lin out_lin sa_layer_norm ffn lin1 lin2 output_layer_norm vocab_transform "
        "vocab_layer_norm vocab_projector",
        generates=False,
        positions="max_position_embeddings",
    ),
}  # fmt: skip

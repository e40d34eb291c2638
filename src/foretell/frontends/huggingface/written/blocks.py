"""Frontends: the blocks of language models, as transformers runs them: norms, rotary positions, attention.

Local variables have the names and lifetimes that they have there, because these decide what stays in memory
(`foretell.frontends.huggingface.written.values`).
"""

from dataclasses import dataclass, field

from foretell.frontends.huggingface.written.family import Sizes
from foretell.frontends.huggingface.written.settings import Settings, need
from foretell.frontends.huggingface.written.values import Trace, Value, cat

_MAX_GROUPED_HEAD = 256  # larger heads are repeated for grouped queries


def linear(t: Trace, name: str, x: Value, width: int, *, bias: bool = False) -> Value:
    """``nn.Linear``."""
    with t.within(name):
        arguments = {"input": x, "weight": t.weight("weight", width, x.shape[-1])}
        if bias:
            arguments["bias"] = t.weight("bias", width)
        return t.call("linear", arguments, (*x.shape[:-1], width), x.dtype)


def embedding(t: Trace, name: str, tokens: Value, rows: int, width: int) -> Value:
    """``nn.Embedding``."""
    return t.run(name, look_up, tokens, rows, width)


def look_up(t: Trace, tokens: Value, rows: int, width: int) -> Value:
    """The rows of the current module's table."""
    table = t.weight("weight", rows, width)
    return t.call("embedding", {"weight": table, "indices": tokens}, (*tokens.shape, width), t.dtype)


def rms_norm(t: Trace, name: str, hidden_states: Value) -> Value:
    """``LlamaRMSNorm``, in single precision."""
    return t.run(name, _rms_norm, hidden_states)


def _rms_norm(t: Trace, hidden_states: Value) -> Value:
    dtype = hidden_states.dtype
    weight = t.weight("weight", hidden_states.shape[-1])
    hidden_states = hidden_states.to("fp32")
    variance = hidden_states.apply("pow").reduce("mean", -1, keep=True)
    hidden_states = hidden_states * (variance + 1e-6).apply("rsqrt")
    return weight * hidden_states.to(dtype)


def shifted_norm(t: Trace, name: str, x: Value) -> Value:
    """``GemmaRMSNorm``: its weight is a difference from 1."""
    return t.run(name, _shifted_norm, x)


def _shifted_norm(t: Trace, x: Value) -> Value:
    weight = t.weight("weight", x.shape[-1])
    output = _unit(x.to("fp32"))
    output = output * (1.0 + weight.to("fp32"))
    return output.to_type_of(x)


def _unit(x: Value) -> Value:
    return x * (x.apply("pow").reduce("mean", -1, keep=True) + 1e-6).apply("rsqrt")


def layer_norm(t: Trace, name: str, x: Value, *, bias: bool = True) -> Value:
    """``nn.LayerNorm`` over the last axis."""
    with t.within(name):
        arguments = {"input": x, "normalized_shape": [x.shape[-1]], "weight": t.weight("weight", x.shape[-1])}
        if bias:
            arguments["bias"] = t.weight("bias", x.shape[-1])
        return t.call("layer_norm", arguments, x.shape, x.dtype)


def dropout(t: Trace, name: str, x: Value, share: float) -> Value:
    """``nn.Dropout``."""
    with t.within(name):
        return x.dropout(share)


# ── activations ───────────────────────────────────────────────────────────────────────────────────────────────────────

_SINGLE = {
    "silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu", "relu": "relu", "tanh": "tanh",
}  # fmt: skip
ACTIVATIONS = (*_SINGLE, "gelu_new")


def activation(t: Trace, name: str, kind: str, x: Value) -> Value:
    """The function of that name in transformers' table."""
    return t.run(name, _gelu_new, x) if kind == "gelu_new" else t.run(name, _single, _SINGLE[kind], x)


def _single(_: Trace, op: str, x: Value) -> Value:
    return x.apply(op)


def _gelu_new(_: Trace, x: Value) -> Value:
    return (0.5 * x) * (1.0 + (0.79788 * (x + 0.044715 * x.apply("pow"))).apply("tanh"))


# ── checks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def check_shares(*shares: float) -> None:
    """Refuse a dropout that is no share."""
    need(all(0 <= share <= 1 for share in shares), "a dropout that is no share")


def check_padding(c: Settings) -> None:
    """Refuse a padding token that an embedding would refuse."""
    need(c.pad_token_id is None or 0 <= c.pad_token_id < c.vocab_size, "a padding token outside the vocabulary")


def rotary_width(head: int, share: float) -> int:
    """The columns of a head that are turned by their position, where only a share of them is."""
    width = int(head * share)
    need(width > 0 and width % 2 == 0 and width <= head, "an odd number of columns to turn")
    return width


# ── positions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def positions(t: Trace, length: int, past: int) -> Value:
    """The positions of the tokens: ``(torch.arange(length) + past).unsqueeze(0)``."""
    return (arange(t, length) + past).unsqueeze(0)


def arange(t: Trace, length: int) -> Value:
    """``torch.arange``."""
    return t.call("arange", {}, (length,), "int64")


def check_packing(t: Trace, position_ids: Value, cached: bool) -> None:
    """Without a cache, the causal mask expands the positions to look for packed sequences in them."""
    if not cached:
        position_ids.expand(t.batch_size, -1)


def causal_mask(t: Trace, length: int, past: int, *, sliding: bool = False) -> Value:
    """``sdpa_mask``: which tokens each token sees, where that is written out."""
    batch_arange, head_arange = arange(t, t.batch_size), arange(t, 1)
    q_arange = arange(t, length) + past
    kv_arange = arange(t, past + length) + 0
    mask = (_in_window if sliding else _before)(t, *_spread(batch_arange, head_arange, q_arange, kv_arange))
    return mask.expand(t.batch_size, -1, length, past + length)


def _spread(batch: Value, head: Value, q: Value, kv: Value) -> tuple[Value, Value, Value, Value]:
    batch = batch.unsqueeze(1).unsqueeze(2).unsqueeze(3)
    head = head.unsqueeze(0).unsqueeze(2).unsqueeze(3)
    q = q.unsqueeze(0).unsqueeze(1).unsqueeze(3)
    kv = kv.unsqueeze(0).unsqueeze(1).unsqueeze(2)
    return batch, head, q, kv


def _before(_: Trace, _batch: Value, _head: Value, q: Value, kv: Value) -> Value:
    return kv.with_other("le", q, "bool")


def _in_window(t: Trace, _batch: Value, _head: Value, q: Value, kv: Value) -> Value:
    result = t.call("new_ones", {"self": q}, (), "bool")
    result = result.with_other("__and__", kv.with_other("gt", q - 0, "bool").to("bool"))
    return result.with_other("__and__", kv.with_other("le", q, "bool").to("bool"))


def rotary(t: Trace, position_ids: Value, width: int) -> tuple[Value, Value]:
    """Cosines and sines of the positions, of ``width`` columns (``LlamaRotaryEmbedding``)."""
    return t.run("rotary_emb", _rotary, position_ids, width)


def _rotary(t: Trace, position_ids: Value, width: int) -> tuple[Value, Value]:
    count = -(-width // 2)
    inv_freq = t.weight("inv_freq", count, kind="buffer")
    t.weight("original_inv_freq", count, kind="buffer")
    freqs = position_ids.unsqueeze(2).to("fp32") * inv_freq.to("fp32")
    emb = cat([freqs, freqs], -1)
    cos = emb.apply("cos") * 1.0
    sin = emb.apply("sin") * 1.0
    return cos.to(t.dtype), sin.to(t.dtype)


def rotate_half(x: Value) -> Value:
    """The two halves of the last axis change places, one of them negated."""
    half = x.shape[-1] // 2
    x1 = x.slice(-1, 0, half)
    x2 = x.slice(-1, half)
    return cat([-x2, x1], -1)


def apply_rotary(q: Value, k: Value, cos: Value, sin: Value) -> tuple[Value, Value]:
    """Turn queries and keys by their positions."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed


# ── attention ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Cache:
    """The keys and values of all layers. ``windows`` has the sliding window of each layer, or None."""

    past: int
    windows: list[int | None]
    layers: dict[int, list[Value]] = field(default_factory=dict)
    marks: dict[int, Value] = field(default_factory=dict)

    def start(self, t: Trace) -> None:
        """Make the cache of a prompt: a sliding layer notes its window in a tensor."""
        if self.past:
            return
        for layer, window in enumerate(self.windows):
            if window is not None:
                constant = t.constant(dtype="int64")
                self.marks[layer] = t.call("lift_fresh_copy", {"self": constant}, (), "int64").detach_()

    def update(self, t: Trace, layer: int, key: Value, value: Value) -> tuple[Value, Value]:
        """Append keys and values; return all of them."""
        if layer not in self.layers:
            self.layers[layer] = [t.constant(0).detach_() for _ in range(2)]
            if layer in self.marks:
                self.marks[layer] = t.call("to", {"self": self.marks[layer]}, (), "int64")
        past_keys, past_values = self.layers[layer]
        full_keys, full_values = cat([past_keys, key], -2), cat([past_values, value], -2)
        window = self.windows[layer]
        self.layers[layer] = [full_keys, full_values]
        if window is not None:
            self.layers[layer] = [full_keys.slice(2, 1 - window), full_values.slice(2, 1 - window)]
        return full_keys, full_values

    @property
    def tensors(self) -> list[Value]:
        """Keys and values in the order in which a model returns them."""
        return [value for layer in sorted(self.layers) for value in self.layers[layer]]


def start_cache(
    t: Trace, sizes: Sizes, windows: list[int | None], keys: tuple[int, int], values: tuple[int, int]
) -> Cache | None:
    """The cache of a run, None in modes without one. The tensors of a filled one are inputs.

    ``keys`` and ``values`` are their heads and widths.
    """
    if not sizes.cached:
        return None
    cache = Cache(sizes.past, windows)
    for layer in range(len(windows) if sizes.past else 0):
        parts = (("keys", *keys), ("values", *values))
        cache.layers[layer] = [
            t.input(f"past_{layer}_{name}", heads, sizes.past, width, dtype=t.dtype) for name, heads, width in parts
        ]
    return cache


def repeat_heads(x: Value, count: int) -> Value:
    """Each head of keys or values for several heads of queries."""
    batch, heads, length, width = x.shape
    if count == 1:
        return x
    x = x.unsqueeze(2).expand(batch, heads, count, length, width)
    return x.reshape(batch, heads * count, length, width)


def attend(t: Trace, query: Value, key: Value, value: Value, share: float, *, causal: bool = True) -> Value:
    """``sdpa_attention_forward`` without a mask; ``share`` is the dropout of training."""
    groups = query.shape[1] // key.shape[1]
    grouped = groups > 1
    if grouped and not key.shape[-1] == value.shape[-1] <= _MAX_GROUPED_HEAD:
        key = repeat_heads(key, groups)
        value = repeat_heads(value, groups)
        grouped = False
    arguments: dict[str, object] = {"query": query, "key": key, "value": value}
    if causal and query.shape[2] > 1:
        arguments["is_causal"] = True
    if t.training and share:
        arguments["dropout_p"] = share
    if grouped:
        arguments["enable_gqa"] = True
    shape = (*query.shape[:-1], value.shape[-1])
    attn_output = t.call("scaled_dot_product_attention", arguments, shape, query.dtype)
    return attn_output.transpose(1, 2).contiguous()


# ── feed-forward networks ─────────────────────────────────────────────────────────────────────────────────────────────


def gated_mlp(t: Trace, x: Value, width: int, kind: str, *, bias: bool = False) -> Value:
    """``LlamaMLP``: ``down(act(gate(x)) * up(x))``."""
    return linear(
        t,
        "down_proj",
        activation(t, "act_fn", kind, linear(t, "gate_proj", x, width, bias=bias))
        * linear(t, "up_proj", x, width, bias=bias),
        x.shape[-1],
        bias=bias,
    )


def last_logits(t: Trace, hidden_states: Value, vocabulary: int, *, last: bool, tied: str, bias: bool = False) -> Value:
    """The head of a language model, over all tokens or the last; ``tied`` is the embedding that it shares, or empty."""
    kept = hidden_states.slice(1, -1 if last else 0)
    if not tied:
        return linear(t, "lm_head", kept, vocabulary, bias=bias)
    with t.within("lm_head"):
        arguments = {"input": kept, "weight": t.weights[tied]}
        if bias:
            arguments["bias"] = t.weight("bias", vocabulary)
        return t.call("linear", arguments, (*kept.shape[:-1], vocabulary), kept.dtype)

"""Frontends: operators that PyTorch composes of others, written out as what a GPU runs.

Some calls look like one operator and run several, and some modules run other operators than their code shows. The graph
has what runs, because units of work are what a device launches:

* In evaluation mode ``nn.TransformerEncoderLayer`` and ``nn.MultiheadAttention`` call native functions, their fast
  paths (``native_multi_head_attention_cuda`` and ``transformer_encoder_layer_forward`` in ATen). They copy neither the
  packed projections nor the result of the attention, and the activation is part of a product. A trace on the meta
  device never takes these paths, so `fast_paths` replaces the forward of both modules while a model is exported.
* ``gru_cell`` and ``lstm_cell`` are two products and one kernel for all gates; ``rnn_tanh_cell`` adds and applies the
  function apart.
* ``einsum`` of three or more operands contracts two at a time: of three the cheapest pair first, as PyTorch does where
  the package opt_einsum is installed. It was on the machines that were measured; without it PyTorch goes from left to
  right. Two operands of which no axis is summed are multiplied element by element.

Limits: a key padding mask makes ``nn.TransformerEncoder`` use nested tensors; such a model is read as its code shows.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.graph import Tensor
from foretell.graph.ir.strides import einsum_order
from foretell.optional import require

EINSUM_STEP = "step_"  # in the name of a node: an einsum of three or more operands contracts two at a time
_ALIGNED_HEAD = 8  # fused attention takes heads whose size is a multiple of this

# ── modules ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def fast_paths() -> Iterator[None]:
    """Within this context, modules with a fast path call the operators that it runs on a GPU without gradients."""
    from unittest import mock  # here: it imports asyncio, and who reads an ONNX file needs neither

    torch = require("torch", extra="torch", purpose="Reading PyTorch models")
    nn = torch.nn
    layer_forward, attention_forward = nn.TransformerEncoderLayer.forward, nn.MultiheadAttention.forward

    def layer(
        self: Any, src: Any, src_mask: Any = None, src_key_padding_mask: Any = None, is_causal: bool = False
    ) -> Any:
        if not _layer_is_fast(self, src, src_key_padding_mask):
            return layer_forward(self, src, src_mask, src_key_padding_mask, is_causal)
        return _encode(self, src, masked=src_mask is not None)

    def attention(self: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        names = ("key_padding_mask", "need_weights", "attn_mask", "average_attn_weights", "is_causal")
        given = {**dict(zip(names, args)), **kwargs}
        masks = [mask for mask in (given.get("attn_mask"), given.get("key_padding_mask")) if mask is not None]
        same = query is key and key is value
        if not same or not _attention_is_fast(self, query) or any(mask.is_floating_point() for mask in masks):
            return attention_forward(self, query, key, value, *args, **kwargs)
        weighed = bool(given.get("need_weights", True))
        result, weights = _attend(self, query, masked=bool(masks), weighed=weighed)
        if weighed and given.get("average_attn_weights", True):
            weights = weights.sum(1).div_(self.num_heads)
        return result, weights

    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(nn.TransformerEncoderLayer, "forward", layer))
        stack.enter_context(mock.patch.object(nn.MultiheadAttention, "forward", attention))
        yield


def _attention_is_fast(attention: Any, query: Any) -> bool:
    """Whether the attention of a sequence to itself takes the fast path (the conditions of torch 2.11)."""
    torch = require("torch", extra="torch")
    return bool(
        torch.backends.mha.get_fastpath_enabled()
        and not attention.training
        and not torch.is_autocast_enabled()
        and query.dim() == 3
        and attention.batch_first
        and attention.in_proj_bias is not None
        and attention._qkv_same_embed_dim
        and attention.num_heads % 2 == 0
        and attention.bias_k is None
        and not attention.add_zero_attn
        and query.dtype == attention.in_proj_weight.dtype
    )


def _layer_is_fast(layer: Any, src: Any, padding: Any) -> bool:
    return bool(
        not layer.training
        and padding is None
        and _attention_is_fast(layer.self_attn, src)
        and layer.activation_relu_or_gelu
        and layer.norm1.eps == layer.norm2.eps
        and layer.linear1.bias is not None
        and not any(module._forward_hooks or module._forward_pre_hooks for module in layer.modules())
    )


def _attend(attention: Any, tokens: Any, *, masked: bool, weighed: bool) -> tuple[Any, Any]:
    """The attention of ``native_multi_head_attention_cuda``: fused where nothing is masked or returned beside it."""
    functional = require("torch.nn.functional", extra="torch")
    batch, length, width = tokens.shape
    heads, weight, bias = attention.num_heads, attention.in_proj_weight, attention.in_proj_bias
    fused = not masked and not weighed and (width // heads) % _ALIGNED_HEAD == 0
    # where nothing is fused, one kernel adds the bias, scales and separates the heads
    packed = functional.linear(tokens, weight, bias) if fused else functional.linear(tokens, weight) + bias
    query, key, value = (part.view(batch, length, heads, -1).transpose(1, 2) for part in packed.chunk(3, -1))
    scores = None
    if fused:
        mixed = functional.scaled_dot_product_attention(query, key, value)
    else:
        scores = functional.softmax(query @ key.transpose(-2, -1), -1)  # the kernel that masks is that of the softmax
        mixed = scores @ value
    joined = mixed.transpose(1, 2).reshape(batch, length, width)
    return functional.linear(joined, attention.out_proj.weight, attention.out_proj.bias), scores


def _encode(layer: Any, src: Any, *, masked: bool) -> Any:
    """The layer as ``transformer_encoder_layer_forward`` runs it."""
    torch = require("torch", extra="torch")
    functional = torch.nn.functional

    def norm(tokens: Any, module: Any) -> Any:
        return functional.layer_norm(tokens, module.normalized_shape, module.weight, module.bias, module.eps)

    tokens = norm(src, layer.norm1) if layer.norm_first else src
    tokens = _attend(layer.self_attn, tokens, masked=masked, weighed=False)[0].add_(src)
    tokens = tokens if layer.norm_first else norm(tokens, layer.norm1)
    inner = norm(tokens, layer.norm2) if layer.norm_first else tokens
    rows, first = inner.reshape(-1, inner.shape[-1]), layer.linear1
    gelu = layer.activation_relu_or_gelu == 2
    # the activation is the epilogue of the product
    hidden = torch.ops.aten._addmm_activation(first.bias, rows, first.weight.t(), use_gelu=gelu)
    hidden = hidden.view(*inner.shape[:-1], -1)
    result = functional.linear(hidden, layer.linear2.weight, layer.linear2.bias).add_(tokens)
    return result if layer.norm_first else norm(result, layer.norm2)


# ── calls ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_out(
    calls: tuple[AtenCall, ...], tensors: Mapping[str, Tensor]
) -> tuple[list[list[AtenCall]], dict[str, Tensor]]:
    """Replace composed calls by what they run; return that for every call, and all tensors with those in between."""
    known, steps = dict(tensors), list[list[AtenCall]]()
    for call in calls:
        name = call.target.removeprefix("torch.ops.").removeprefix("aten.").partition(".")[0]
        written: list[AtenCall] = []
        if name in ("gru_cell", "lstm_cell", "rnn_tanh_cell", "rnn_relu_cell"):
            written = _cell(call, name, known)
        elif name == "einsum":
            written = _einsum(call, known)
        steps.append(written or [call])
    return steps, known


def _cell(call: AtenCall, name: str, tensors: dict[str, Tensor]) -> list[AtenCall]:
    """Two products, and one kernel for the gates of an LSTM or a GRU; a plain cell adds and applies its function."""
    arguments = call.arguments
    states = arguments.get("hx")
    states = list(states) if isinstance(states, list | tuple) else [states]
    operands = [arguments.get(key) for key in ("input", "w_ih", "w_hh")]
    if not all(isinstance(value, Ref) and value in tensors for value in (*operands, *states)):
        return []
    sequence, input_weight, state_weight = (str(value) for value in operands)
    biases = [arguments.get("b_ih"), arguments.get("b_hh")]
    plain = name.startswith("rnn")
    calls = []
    for part, (rows, weight) in enumerate(((sequence, input_weight), (str(states[0]), state_weight))):
        shape = (*tensors[rows].shape[:-1], tensors[weight].shape[0])
        gates = _between(call, f"gates_{part}", replace(tensors[rows], shape=shape, kind="activation"), tensors)
        more = {"bias": biases[part]} if plain and isinstance(biases[part], Ref) else {}
        calls.append(replace(call, name=gates, target="aten.linear.default", outputs=(gates,),
                             arguments={"input": Ref(rows), "weight": Ref(weight), **more}))  # fmt: skip
    both = [Ref(made.outputs[0]) for made in calls]
    if plain:
        total = _between(call, "sum", tensors[both[0]], tensors)
        calls.append(
            replace(call, name=total, target="aten.add.Tensor", arguments=dict(zip("ab", both)), outputs=(total,))
        )
        function = "aten.relu.default" if "relu" in name else "aten.tanh.default"
        return [*calls, replace(call, target=function, arguments={"self": Ref(total)})]
    parts = {"gates": both, "state": states, "biases": [bias for bias in biases if isinstance(bias, Ref)]}
    return [*calls, replace(call, target=f"aten._thnn_fused_{name}.default", arguments=parts)]


def _einsum(call: AtenCall, tensors: dict[str, Tensor]) -> list[AtenCall]:
    """Two operands at a time: what neither a later operand nor the result names is summed.

    Where nothing is summed, PyTorch multiplies element by element. A contraction of two operands stays as it is.
    """
    equation, operands = call.arguments.get("equation"), call.arguments.get("tensors")
    if not isinstance(equation, str) or not isinstance(operands, list | tuple) or len(operands) < 2:
        return []
    terms, arrow, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    repeated = any(len(set(name)) < len(name) for name in names)
    if (
        not arrow
        or "." in equation
        or repeated
        or len(names) != len(operands)
        or not all(o in tensors for o in operands)
    ):
        return []
    axes: dict[str, int] = {}
    for letters, operand in zip(names, operands, strict=True):
        for letter, size in zip(letters, tensors[operand].shape):
            axes[letter] = max(size, axes.get(letter, 1))
    sizes = [dict(zip(name, tensors[operand].shape)) for name, operand in zip(names, operands, strict=True)]
    order = einsum_order(sizes, result)
    names, operands = [names[place] for place in order], [operands[place] for place in order]
    calls, first, letters = list[AtenCall](), str(operands[0]), names[0]
    for position in range(1, len(operands)):
        second, last = str(operands[position]), position == len(operands) - 1
        later = set(result).union(*names[position + 1 :])
        kept = result if last else "".join(dict.fromkeys(c for c in letters + names[position] if c in later))
        if last:
            step = call
        else:
            shape = tuple(axes[letter] for letter in kept)
            like = replace(tensors[first], shape=shape, kind="activation")
            made = _between(call, f"{EINSUM_STEP}{position}", like, tensors)
            step = replace(call, name=made, outputs=(made,))
        if set(letters + names[position]) == set(kept):
            pair = []
            for side, (operand, own) in enumerate(((first, letters), (second, names[position]))):
                views, view = _aligned(step, f"side_{side}", operand, own, kept, tensors)
                calls += views
                pair.append(view)
            step = replace(step, target="aten.mul.Tensor", arguments={"self": pair[0], "other": pair[1]})
        else:
            arguments = {"equation": f"{letters},{names[position]}->{kept}", "tensors": [Ref(first), Ref(second)]}
            step = replace(step, arguments=arguments)
        calls.append(step)
        first, letters = step.outputs[0], kept
    return calls


def _aligned(
    call: AtenCall, suffix: str, operand: str, letters: str, kept: str, tensors: dict[str, Tensor]
) -> tuple[list[AtenCall], Ref]:
    """Views of an operand whose axes are those of ``kept``, in this order; an axis that it lacks has the size 1."""
    calls = list[AtenCall]()
    order = [letters.index(letter) for letter in kept if letter in letters]
    tensor = tensors[operand]
    if order != sorted(order):
        shape = tuple(tensor.shape[axis] for axis in order)
        name = _between(call, f"{suffix}_turned", replace(tensor, shape=shape, kind="activation"), tensors)
        turned = {"self": Ref(operand), "dims": order}
        calls.append(replace(call, name=name, target="aten.permute.default", arguments=turned, outputs=(name,)))
        operand, tensor = name, tensors[name]
    if len(order) < len(kept):
        sizes = iter(tensor.shape)
        shape = tuple(next(sizes) if letter in letters else 1 for letter in kept)
        name = _between(call, suffix, replace(tensor, shape=shape, kind="activation"), tensors)
        arguments = {"self": Ref(operand), "size": list(shape)}
        calls.append(replace(call, name=name, target="aten.view.default", arguments=arguments, outputs=(name,)))
        operand = name
    return calls, Ref(operand)


def _between(call: AtenCall, suffix: str, like: Tensor, tensors: dict[str, Tensor]) -> str:
    """Enter a tensor between two parts of a call; its batch axis is found like that of any other."""
    name = f"{call.name}_{suffix}"
    tensors[name] = replace(like, name=name, batch_axis=None)
    return name

"""Training: calls: which node of a graph a traced call of PyTorch is.

Idea. A trace names the outermost ATen calls that launched kernels, in program order, each with the module that was
running. A graph has a node for each operator of the same program, also in program order. So this is a sequence
alignment: each call gets a score with each node, by name, operator and module, and dynamic programming
(`foretell.graph.ir.alignment`) finds the monotone assignment with the largest total. Several calls may share one node,
because one node (a normalisation, an attention) may be several calls.

Gradients are aligned in the same way with the nodes in reverse: the autograd engine always takes the ready function
that was recorded last, so gradients are computed in exactly the reverse of the forward order. Calls between the last
node and the first gradient are the loss function. ``_foreach`` and ``_fused`` calls, and all calls after the last
gradient, are the optimizer.

Limits: names of calls differ between PyTorch versions; `_PARTS` lists what was seen. Calls that only move data have a
small weight, since they may belong to either neighbour. Models that reuse a module many times are aligned by order
alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from foretell.frontends.torch.aten import canonical_operator
from foretell.graph import Graph
from foretell.graph.ir.alignment import NONE, align

BACKWARD = "autograd::engine::evaluate_function: "
FORWARD_PHASE, BACKWARD_PHASE, LOSS_PHASE, OPTIMIZER_PHASE = "forward", "backward", "loss", "optimizer"
# Kernels of a training step that belong to no node of the model: the loss function and the update of the parameters.
LOSS, OPTIMIZER = -2, -3

# scores of a pair of a call and a node; the last one is for a call that shares a node with the call before it
_SAME_NAME, _SAME_OPERATOR, _PART_OF = 6, 4, 3
_SAME_MODULE = 5
_SHARED = 1
_COMPUTES = 100  # weight of a call that computes against one that only moves data
_NUMBER = re.compile(r"_\d+$")
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])|(?<=[0-9]D)(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_LOSS_CALLS = _names(
    "cross_entropy_loss square mean log_softmax nll_loss nll_loss_forward mse_loss pow ones_like to float"
)
# Calls that only move data, and the functions that move gradients back.
_MOVES = _names(
    "view reshape unsafe_view t transpose permute expand squeeze unsqueeze slice select unbind split split_with_sizes "
    "clone contiguous as_strided alias detach to to_copy copy chunk narrow flatten copy_slices reshape_alias unfold "
    "roll movedim type_as"
)
_NORMS = _names("native_batch_norm cudnn_batch_norm batch_norm native_group_norm native_layer_norm fused_rms_norm")
_CONVOLUTIONS = _names(
    "convolution cudnn_convolution conv1d conv2d conv3d conv_depthwise2d conv_depthwise3d slow_conv3d thnn_conv2d "
    "slow_conv_transpose2d"
)
_RECURRENT = _names("cudnn_rnn thnn_fused_lstm_cell thnn_fused_gru_cell lstm gru rnn_tanh rnn_relu")
# For each operator of a node the calls, and the autograd functions, that may be part of it.
_PARTS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "Gemm": _names("addmm mm linear matmul bmm add") | _MOVES,
        "MatMul": _names("addmm mm bmm matmul linear mv dot baddbmm mul sum") | _MOVES,
        "Einsum": _names("bmm mul sum einsum") | _MOVES,
        "Attention": _names(
            "bmm matmul softmax safe_softmax mul div add where masked_fill native_dropout dropout baddbmm cat "
            "native_multi_head_attention transformer_encoder_layer_fwd scaled_dot_product_flash_attention "
            "scaled_dot_product_efficient_attention scaled_dot_product_cudnn_attention "
            "scaled_dot_product_attention_math"
        )
        | _MOVES,
        "Conv": _CONVOLUTIONS | _MOVES | _names("constant_pad_nd pad"),
        "ConvTranspose": _CONVOLUTIONS | _MOVES,
        "BatchNormalization": _NORMS | _names("add"),
        "InstanceNormalization": _NORMS | _MOVES | _names("repeat mul add"),
        "LayerNormalization": _NORMS,
        "GroupNormalization": _NORMS | _MOVES | _names("mul add"),
        "RMSNormalization": _NORMS | _MOVES | _names("mul rsqrt pow mean add"),
        "LSTM": _RECURRENT | _MOVES,
        "GRU": _RECURRENT | _MOVES,
        "RNN": _RECURRENT | _MOVES,
        "Softmax": _names("safe_softmax"),
        "_weight_norm": _names("weight_norm_interface"),
        "GlobalAveragePool": _names("mean adaptive_avg_pool2d adaptive_avg_pool1d") | _MOVES,
        "AdaptiveAveragePool": _names("mean adaptive_avg_pool2d avg_pool2d") | _MOVES,
        "MaxPool": _names("max_pool2d_with_indices max_pool3d_with_indices max_pool2d squeeze"),
        "ReduceVariance": _names("var_mean std_mean var std"),
        "ReduceL2": _names("linalg_vector_norm norm"),
        "DropoutMask": _names("native_dropout bernoulli mul div empty_like"),
        "Mul": _names("matmul einsum"),  # an outer product: rotary embeddings are spelled either way
        "LSTMCell": _names("lstm_cell thnn_fused_lstm_cell"),
        "GRUCell": _names("gru_cell thnn_fused_gru_cell"),
        "Copy": _MOVES,
        "Contiguous": _MOVES,
        "Reshape": _MOVES,
        "Transpose": _MOVES,
        "Cast": _MOVES,
        "Identity": _MOVES,
        "Slice": _MOVES,
        "Split": _names("cat") | _MOVES,
        "Select": _names("index") | _MOVES,
        "Roll": _names("cat") | _MOVES,
        "Pad": _names("constant_pad_nd"),
        "Gather": _names("embedding index index_select"),
        "Concat": _names("cat stack"),
    }
)


@dataclass(frozen=True)
class Call:
    """An outermost call of a trace that launched kernels."""

    op_index: int
    op: str
    module: str = ""

    @property
    def phase(self) -> str:
        """Forward, backward, or the update of the parameters."""
        if self.op.startswith(BACKWARD):
            return BACKWARD_PHASE
        name = self.op.removeprefix("aten::")
        # `_fused_rms_norm` begins like an optimizer and is a normalisation
        return OPTIMIZER_PHASE if name.startswith(("_foreach", "_fused_")) and "rms" not in name else FORWARD_PHASE

    @property
    def name(self) -> str:
        """The ATen operator, for a gradient the one whose gradient it is.

        >>> Call(0, BACKWARD + "NativeBatchNormBackward0").name, Call(0, "aten::add_").name
        ('native_batch_norm', 'add')
        """
        if not self.op.startswith(BACKWARD):
            return self.op.rpartition("::")[2].strip("_")
        name = re.sub(r"Backward\d*(Alt\d*)?$", "", self.op.removeprefix(BACKWARD).rpartition("::")[2])
        return _CAMEL.sub("_", name).lower()


def link_calls(graph: Graph, calls: Sequence[Call]) -> list[int]:
    """For each call the position of its node, or `LOSS`, `OPTIMIZER` or `NONE`."""
    nodes = [_Step.of_node(node.name, node.op, node.module) for node in graph.nodes]
    linked = [NONE] * len(calls)
    forward = [i for i, call in enumerate(calls) if call.phase == FORWARD_PHASE]
    backward = [i for i, call in enumerate(calls) if call.phase == BACKWARD_PHASE]
    for i, call in enumerate(calls):
        if call.phase == OPTIMIZER_PHASE:
            linked[i] = OPTIMIZER
    first_backward = backward[0] if backward else len(calls)
    if backward:
        last_backward = backward[-1]
        for i in forward:
            if i > last_backward:
                linked[i] = OPTIMIZER  # the model has finished when its last gradient has
        forward = [i for i in forward if i <= last_backward]
    steps = [_Step.of_call(calls[i]) for i in forward]
    own, shared = _scores(steps, nodes, full_names=False)
    for i, node in zip(forward, align(own, shared), strict=True):
        linked[i] = node
    if backward:
        _find_loss(calls, forward, linked, first_backward)
        steps = [_Step.of_call(calls[i]) for i in backward]
        # reversed nodes; whole names only, because a gradient of a view matches almost everything otherwise
        own, shared = _scores(steps, nodes[::-1], full_names=True)
        for i, node in zip(backward, align(own, shared), strict=True):
            linked[i] = NONE if node == NONE else len(nodes) - 1 - node
        _attach_followers(calls, backward, linked)
    return linked


def _find_loss(calls: Sequence[Call], forward: Sequence[int], linked: list[int], first_backward: int) -> None:
    """Mark the calls between the model's last node and the first gradient as the loss function's."""
    for i in reversed([i for i in forward if i < first_backward]):
        # the loss is called outside of all modules; the first other call, from the end, is the model's
        if calls[i].module or calls[i].name not in _LOSS_CALLS:
            break
        linked[i] = LOSS


def _attach_followers(calls: Sequence[Call], backward: Sequence[int], linked: list[int]) -> None:
    """Link calls that move or add up a gradient to the function that has just computed it.

    Before the first linked gradient they belong to the loss.
    """
    last = LOSS
    for i in backward:
        if linked[i] != NONE:
            last = linked[i]
        # sums of gradients (accumulate) and copies have no node of their own
        elif last == LOSS or calls[i].name in _MOVES or "accumulate" in calls[i].name:
            linked[i] = last


@dataclass(frozen=True)
class _Step:
    """The parts of a call or a node that are compared."""

    name: str
    op: str
    module: str

    @classmethod
    def of_node(cls, name: str, op: str, module: str) -> "_Step":
        return cls(_NUMBER.sub("", name.rpartition("/")[2]).strip("_"), op, module)

    @classmethod
    def of_call(cls, call: Call) -> "_Step":
        # names lost their leading underscore: try both
        op = canonical_operator(f"aten.{call.name}.default") or canonical_operator(f"aten._{call.name}.default")
        return cls(call.name, op, call.module)


def _scores(calls: Sequence[_Step], nodes: Sequence[_Step], *, full_names: bool) -> tuple[Any, Any]:
    """How well each call fits each node, alone and as one of several calls; each pair of kinds is computed once.

    With ``full_names``, a call that only moves data fits only nodes of its own kind.
    """
    rows, row_of = _kinds(calls)
    columns, column_of = _kinds(nodes)
    fit = np.zeros((len(calls), len(nodes)), np.int32)
    if calls and nodes:
        fit = np.array([[_fit(call, node, full_names) for node in columns] for call in rows], np.int32)
        # scores of distinct kinds, expanded to all pairs: a thousand calls have some dozens of kinds
        fit = fit[np.ix_(row_of, column_of)]
    modules = {name: number for number, name in enumerate(dict.fromkeys(step.module for step in (*calls, *nodes)))}
    call_modules = np.array([modules[step.module] for step in calls], np.int32)
    node_modules = np.array([modules[step.module] for step in nodes], np.int32)
    same = call_modules[:, None] == node_modules[None, :]
    # 100 moves together must not outweigh one call that computes
    weight = np.array([1 if step.name in _MOVES else _COMPUTES for step in calls], np.int32)[:, None]
    own = np.where(fit > 0, fit + _SAME_MODULE * same, 0) * weight
    shared = np.where(fit > 0, _SHARED + same, 0) * weight
    return own, shared


def _kinds(steps: Sequence[_Step]) -> tuple[list[tuple[str, str]], list[int]]:
    known: dict[tuple[str, str], int] = {}
    numbers = [known.setdefault((step.name, step.op), len(known)) for step in steps]
    return list(known), numbers


def _fit(call: tuple[str, str], node: tuple[str, str], full_names: bool) -> int:
    if call[0] == node[0]:
        return _SAME_NAME
    if call[1] and call[1] == node[1]:
        return _SAME_OPERATOR
    if full_names and call[0] in _MOVES:
        return 0
    return _PART_OF if call[0] in _PARTS.get(node[1], ()) else 0

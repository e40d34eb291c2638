"""Frontends: which tensors of a program have a precision of their own, whatever the model is cast to.

Idea: graphs are exported in single precision and cast later (`Graph.with_dtype`). In single precision ``x.float()``
does nothing: it returns ``x`` itself, and no trace can tell it from ``x.to(y.dtype)``. In half precision it is a copy
of twice the size. So a program that casts, or that makes floating-point tensors by itself, is exported once more in
bf16. What is still single precision there is *fixed*. The graph is handed out in single precision as usual, and knows
its fixed tensors (`Graph.fixed`).

Limits: all buffers are cast, which some loaders do not do. A program that cannot run in bf16 keeps the graph of its
first export. In training, autocast decides, and no second export is made.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from foretell.frontends.torch.program import TorchProgram
from foretell.graph import Graph
from foretell.optional import require

_SOURCES = ("ConstantOfShape", "Range", "RandomNormal", "EyeLike")


def sets_dtypes(graph: Graph) -> bool:
    """Whether a program casts to a floating-point dtype, or makes floating-point tensors from nothing."""
    if graph.dtype != "fp32":
        return False
    for node in graph.nodes:
        result = graph.tensors.get(node.outputs[0]) if node.outputs else None
        if result is None or not result.is_float or not result.elements:
            continue
        if node.op == "Cast" or (node.op == "Identity" and node.name.startswith(("to", "_to_copy", "type_as"))):
            return True
        if node.op in _SOURCES and result.shape and not any(node.inputs):
            return True
    return any(tensor.kind == "constant" and tensor.is_float and tensor.shape for tensor in graph.tensors.values())


@contextlib.contextmanager
def in_half_precision(program: TorchProgram) -> Iterator[TorchProgram]:
    """Within this context, the same program in bf16."""
    torch = require("torch", extra="torch", purpose="Reading PyTorch models")

    def cast(value: Any, old: Any, new: Any) -> Any:
        return value.to(new) if isinstance(value, torch.Tensor) and value.dtype == old else value

    def half(value: Any) -> Any:
        return cast(value, torch.float32, torch.bfloat16)

    # not ``module.to``: it would make complex weights real
    program.module._apply(half)
    try:
        arguments = {name: half(value) for name, value in program.kwargs.items()}
        yield replace(program, args=tuple(map(half, program.args)), kwargs=arguments)
    finally:
        program.module._apply(lambda tensor: cast(tensor, torch.bfloat16, torch.float32))


def in_full_precision(graph: Graph) -> Graph:
    """The graph of an export in bf16 in single precision; it keeps in mind what had been single precision already."""
    fixed = frozenset(
        name
        for name, tensor in graph.tensors.items()
        if tensor.dtype == "fp32" and tensor.kind in ("activation", "constant")
    )
    return replace(graph, fixed=fixed).with_dtype("fp32")

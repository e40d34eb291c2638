"""Profiling: flat programs: an exported program whose ``no_grad`` and autocast wrappers are inlined.

Compilers trace into these wrappers, but lose track of which wrapped operator a kernel came from.
"""

import operator
from collections.abc import Mapping
from typing import Any

import torch

_WRAPPERS = ("wrap_with_autocast", "wrap_with_set_grad_enabled")


def flatten(module: Any) -> tuple[Any, Mapping[str, str]]:
    """The module with its wrappers inlined, and for each of its nodes its name in foretell's graph.

    A wrapped node is called ``wrapper/node`` there.
    """
    if not any(_wrapped(node, module) for node in module.graph.nodes):
        return module, {node.name: node.name for node in module.graph.nodes}
    flat, names = torch.fx.Graph(), {}

    def copy(owner: Any, known: dict[Any, Any], prefix: str, path: str) -> Any:
        def value(node: Any) -> Any:
            return known[node]

        for node in owner.graph.nodes:
            if node in known:
                continue
            if node.op == "output":
                result = torch.fx.map_arg(node.args[0], value)
                if not prefix:
                    flat.output(result).meta.update(node.meta)
                return result
            inner = _wrapped(node, owner)
            if inner is not None:
                # the arguments after the wrapped module are its inputs; copy its nodes in place of the call
                position = next(i for i, argument in enumerate(node.args) if _attribute(owner, argument) is inner)
                inner_inputs = torch.fx.map_arg(node.args[position + 1 :], value)
                holders = [inner_node for inner_node in inner.graph.nodes if inner_node.op == "placeholder"]
                inner_path = f"{path}{node.args[position].target}."
                known[node] = copy(inner, dict(zip(holders, inner_inputs)), f"{prefix}{node.name}/", inner_path)
            # a wrapper with several results returned them as a list: take the item instead of copying the getitem
            elif node.target is operator.getitem and isinstance(known[node.args[0]], list | tuple):
                known[node] = known[node.args[0]][node.args[1]]
            elif not isinstance(_attribute(owner, node), torch.fx.GraphModule):
                known[node] = new = flat.node_copy(node, value)
                if node.op == "get_attr":
                    new.target = f"{path}{node.target}"
                names[new.name] = prefix + node.name
        return ()

    copy(module, {}, "", "")
    return torch.fx.GraphModule(module, flat), names


def _attribute(owner: Any, node: Any) -> Any:
    """The value that a ``get_attr`` node refers to, or None."""
    if not isinstance(node, torch.fx.Node) or node.op != "get_attr":
        return None
    value = owner
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value


def _wrapped(node: Any, owner: Any) -> Any:
    """The module inside a wrapper, or None for other nodes."""
    if node.op != "call_function" or getattr(node.target, "__name__", "") not in _WRAPPERS:
        return None
    modules = (_attribute(owner, argument) for argument in node.args)
    return next((module for module in modules if isinstance(module, torch.fx.GraphModule)), None)

"""Frontends: whether a forward pass does something by the number of a layer, seen in its source.

A layer may ask a cache for the tensors of its number, and a model may look up what its configuration says of a layer.
Whatever else is done with the number (a comparison, arithmetic, an entry of another list), with the number of layers,
or with their list, means that layers that look the same may not be. So does source that is not at hand.
"""

import ast
import builtins
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_NO_FORWARD = frozenset(("__init__", "_init_weights", "extra_repr", "reset_parameters", "post_init"))
_LIBRARIES = frozenset(("torch", "transformers", "abc", "typing", "collections", "functools"))
_OF_CACHE = frozenset(
    ("update", "update_conv_state", "update_recurrent_state", "update_indexer", "get_seq_length", "get_conv_state",
     "get_recurrent_state", "has_previous_state", "is_recording_past", "get_mask_sizes")
)  # fmt: skip
_QUEUES = frozenset(("next", "pop", "popleft", "popitem", "append", "appendleft"))
_LISTS_OF_CACHE = frozenset(("layers", "is_updated"))


def uses_number(layers: Any, parents: list[Any], name: str, numbers: set[str], lists: set[str]) -> bool:
    """Whether the number of a layer decides anything in the forward pass of ``layers`` or of the ``parents`` around.

    Args:
        layers: The list of layers.
        parents: The modules around it, from the model inwards.
        name: The attribute that is the list.
        numbers: Attributes of layers that are their number.
        lists: Lists of the configuration with an entry for each layer.
    """
    try:
        inner = _functions({type(part) for layer in layers for part in layer.modules()})
        outer = _functions({type(parent) for parent in parents})
        if any(_reads_number(function, numbers, lists) for function in (*inner, *outer)):
            return True
        if any(_notes(node, function) for function in inner for node in ast.walk(function)):
            return True
        everywhere = _functions({type(part) for part in parents[0].modules()}) if lists else []
        if any(_reads_lists(function, numbers, lists, name) for function in everywhere):
            return True
        loops = [_loops(function, name, lists) for function in outer]
    except (OSError, SyntaxError, TypeError, LookupError):
        return True
    return None in loops or sum(loop or 0 for loop in loops) != 1


def _functions(classes: set[type]) -> list[ast.AST]:
    """The functions that run in a forward pass of classes: their own and inherited methods, and what these name."""
    found: dict[tuple[str, str], ast.AST] = {}
    waiting: list[tuple[str, ast.AST]] = []
    for each in classes:
        overridden: set[str] = set()
        for kind in each.__mro__:
            if _is_known(kind.__module__) or getattr(builtins, kind.__name__, None) is kind:
                continue
            for node in _definition(kind, ast.ClassDef).body:
                if not isinstance(node, ast.FunctionDef) or node.name in _NO_FORWARD | overridden:
                    continue
                if not any(_last_name(inner) == "super" for inner in ast.walk(node)):
                    overridden.add(node.name)
                key = kind.__module__, f"{kind.__name__}.{node.name}.{node.lineno}"
                if key not in found:
                    found[key] = node
                    waiting.append((kind.__module__, node))
    while waiting:
        module, function = waiting.pop()
        for node in ast.walk(function):
            value = vars(sys.modules[module]).get(node.id) if isinstance(node, ast.Name) else None
            value = inspect.unwrap(value) if callable(value) else None
            if not isinstance(value, types.FunctionType) or _is_known(value.__module__):
                continue
            if (value.__module__, value.__qualname__) not in found:
                definition = found[value.__module__, value.__qualname__] = _definition(value, ast.FunctionDef)
                waiting.append((value.__module__, definition))
    return list(found.values())


def _is_known(module: str) -> bool:
    """Whether it is known what a module does with numbers of layers: a library, and not the models of one."""
    is_model = module.startswith("transformers.models.") and ".generation_" not in module
    return module.partition(".")[0] in _LIBRARIES and not is_model


def _definition(value: Any, kind: Any) -> Any:
    """Where a class or a function is defined, at the top of a file."""
    path = inspect.getsourcefile(value)
    if path is None:
        raise LookupError(value.__name__)
    named = [node for node in _parse(path).body if isinstance(node, kind) and node.name == value.__qualname__]
    if len(named) != 1:
        raise LookupError(value.__name__)
    return named[0]


@functools.lru_cache(maxsize=8)
def _parse(path: str) -> ast.Module:
    return ast.parse(Path(path).read_text(encoding="utf-8"))


def _with_parents(function: ast.AST) -> Iterator[tuple[ast.AST, list[ast.AST]]]:
    """All nodes of a function, each with those around it, the innermost last."""
    waiting: list[tuple[ast.AST, list[ast.AST]]] = [(function, [])]
    while waiting:
        node, around = waiting.pop()
        yield node, around
        waiting += [(child, [*around, node]) for child in ast.iter_child_nodes(node)]


def _reads_number(function: ast.AST, numbers: set[str], lists: set[str]) -> bool:
    """Whether a function uses the number of a layer for anything but a cache and the lists of the configuration."""
    for node, around in _with_parents(function):
        if isinstance(node, ast.Attribute) and node.attr in numbers and not _is_harmless(node, around, lists):
            return True
        if isinstance(node, ast.Constant) and node.value in numbers:
            call = around[-1]
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "hasattr"):
                return True
        if isinstance(node, ast.Attribute) and node.attr == "__dict__":
            return True
    return False


def _is_harmless(node: ast.expr, around: list[ast.AST], lists: set[str]) -> bool:
    """Whether a number only finds what belongs to the layer, or is shown in a text."""
    if any(isinstance(outer, ast.JoinedStr | ast.Raise) for outer in around):
        return True
    outer = around[-1]
    if isinstance(outer, ast.keyword):
        outer = around[-2]
    if isinstance(outer, ast.Call) and isinstance(outer.func, ast.Attribute):
        of_cache = outer.func.attr in _OF_CACHE
        return of_cache or (outer.func.attr == "get" and _last_name(outer.func.value) == "is_updated")
    if isinstance(outer, ast.Subscript) and outer.slice is node and isinstance(outer.value, ast.Attribute):
        if outer.value.attr in lists:
            return True
        return outer.value.attr in _LISTS_OF_CACHE and _last_name(outer.value.value) != "self"
    return False


def _notes(node: ast.AST, function: ast.AST) -> bool:
    """Whether a layer notes something outside of itself, or takes it from there: it could count the layers."""
    if isinstance(node, ast.Global | ast.Nonlocal):
        return True
    if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load):
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return not is_own and node.attr != "requires_grad"
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
        return not _is_local(node.target.value, function)
    if isinstance(node, ast.Call) and _last_name(node.func) in _QUEUES:
        return not (isinstance(node.func, ast.Attribute) and _is_local(node.func.value, function))
    return False


def _is_local(node: ast.expr, function: ast.AST) -> bool:
    """Whether a list or dictionary is made in a function, and is not another name of one from elsewhere."""
    made = [
        statement.value
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign)
        and any(isinstance(target, ast.Name) and target.id == _last_name(node) for target in statement.targets)
    ]
    displays = ast.List | ast.Dict | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp
    return isinstance(node, ast.Name) and bool(made) and all(isinstance(value, displays) for value in made)


def _reads_lists(function: ast.AST, numbers: set[str], lists: set[str], name: str) -> bool:
    """Whether a function asks lists of the configuration for more than the entry of a layer, or what is in them."""
    counters = set()
    for node, around in _with_parents(function):
        loop = _loop(node, around) if isinstance(node, ast.Attribute) and node.attr == name else None
        counters |= {loop[1]} if loop else set()
    for node, around in _with_parents(function):
        if isinstance(node, ast.Attribute) and node.attr in lists:
            outer = around[-1]
            is_entry = isinstance(outer, ast.Subscript) and _last_name(outer.slice) in numbers | counters
            is_set = isinstance(outer, ast.Call) and _last_name(outer.func) == "set"
            is_asked = isinstance(outer, ast.Compare) and node in outer.comparators
            if not (is_entry or is_set or is_asked):
                return True
    return False


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _loops(function: ast.AST, name: str, lists: set[str]) -> int | None:
    """How many loops over the list of layers a function has; None if it does anything else with it."""
    count = 0
    for node, around in _with_parents(function):
        if not (isinstance(node, ast.Attribute) and node.attr == name):
            continue
        owner = _last_name(node.value)
        if "past" in owner or "cache" in owner:
            continue  # a cache has layers, too
        loop = _loop(node, around)
        if loop is None or not _is_even(loop[0], loop[1], function, lists):
            return None
        count += 1
    return count


def _loop(node: ast.expr, around: list[ast.AST]) -> tuple[ast.For, str] | None:
    """The loop over a list of layers, and the variable that counts them."""
    around = list(around)
    current: ast.AST = node
    outer = around.pop()
    # self.layers[: self.config.num_hidden_layers] are all
    if isinstance(outer, ast.Subscript) and outer.value is current and isinstance(outer.slice, ast.Slice):
        part = outer.slice
        if part.lower is not None or part.step is not None or "layers" not in _last_name(part.upper or node):
            return None
        current, outer = outer, around.pop()
    counter = ""
    if isinstance(outer, ast.Call) and _last_name(outer.func) == "enumerate" and outer.args == [current]:
        current, outer = outer, around.pop()
        if not isinstance(outer, ast.For) or not isinstance(outer.target, ast.Tuple):
            return None
        if not isinstance(outer.target.elts[0], ast.Name):
            return None
        counter = outer.target.elts[0].id
    return (outer, counter) if isinstance(outer, ast.For) and outer.iter is current else None


def _is_even(loop: ast.For, counter: str, function: ast.AST, lists: set[str]) -> bool:
    """Whether a loop does the same for each layer, except for what the configuration says of it."""
    for node, around in _with_parents(function):
        is_read = isinstance(node, ast.Name) and node.id == counter and isinstance(node.ctx, ast.Load)
        if is_read and not _is_harmless(node, around, lists):  # type: ignore[arg-type]
            return False
    for node in (child for statement in loop.body for child in ast.walk(statement)):
        if isinstance(node, ast.Break) or (isinstance(node, ast.Call) and _last_name(node.func) in ("len", *_QUEUES)):
            return False
        if isinstance(node, ast.AugAssign) and not isinstance(node.target, ast.Name):
            return False
        if isinstance(node, ast.AugAssign) and isinstance(node.value, ast.Constant):
            return False
    return True

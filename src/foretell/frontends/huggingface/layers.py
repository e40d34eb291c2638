"""Frontends: leaves out layers of a model before it is traced; they are put back into the trace as copies of others.

Idea: layers are of a kind if nothing differs between them but their number: the classes of their parts, all attributes,
the shapes of weights, and their entries in the lists of the configuration. Of a row of layers only as many are kept
as show every kind between every pair of neighbours twice; `foretell.frontends.torch.tracing.repeats` compares them.
The layers that are kept are those of the whole model, so that whatever it did to them by their number stays.

Limits: what a forward pass does by the number of a layer is not seen here, but in its source
(`foretell.frontends.huggingface.numbering`). An attribute that cannot be compared makes a layer a kind of its own.
"""

import enum
import functools
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from foretell.frontends.huggingface.numbering import uses_number
from foretell.frontends.torch.aten import AtenProgram
from foretell.frontends.torch.tracing.repeats import repeat
from foretell.frontends.torch.tracing.stacks import Stack, UnequalError, list_weights
from foretell.optional import require

LEAST = 5  # layers of a row that may be shortened
_PLAIN = (bool, int, float, str, bytes, complex, type(None), type, enum.Enum, range, slice)
_CALLABLE = (types.FunctionType, types.BuiltinFunctionType)
_INTERNAL = frozenset(("_parameters", "_buffers", "_modules", "training"))
_PER_LAYER = ("layer", "type", "block", "pattern")  # names of lists that have an entry for each layer
_NUMBER = ("idx", "index", "layer_id", "layer_number")


def shorten(model: Any) -> Callable[[AtenProgram], AtenProgram] | None:
    """Leave out layers of a model, in place; return what puts them back into its trace, or None if all are needed."""
    rows = list(_rows(model))
    if not rows:
        return None
    whole = list_weights(model)
    for row in rows:
        row.cut()
    traced = list_weights(model)
    stacks = [row.stack for row in rows]

    def put_back(program: AtenProgram) -> AtenProgram:
        try:
            return repeat(program, stacks, traced, whole)
        except UnequalError:
            raise
        except Exception as error:  # a program of a form that is not known: the whole model can still be traced
            raise UnequalError(repr(error)) from error

    return put_back


class _Row:
    """A list of layers of which some can be left out."""

    def __init__(self, stack: Stack, layers: Any, numbers: Mapping[tuple[str, str], int], config: Any) -> None:
        self.stack, self.layers, self.numbers, self.config = stack, layers, numbers, config

    def cut(self) -> None:
        """Leave the layers out, and number those that are kept anew."""
        count, kept = len(self.stack.kinds), self.stack.kept
        for name, values in _per_layer(self.config, count).items():
            # past the checks of a config, which wants an entry for each layer
            object.__setattr__(self.config, name, type(values)(values[layer] for layer in kept))
        layers = [self.layers[layer] for layer in kept]
        for position, (old, layer) in enumerate(zip(kept, layers)):
            parts = dict(layer.named_modules())
            for (path, name), start in self.numbers.items():
                if path in parts and vars(parts[path]).get(name) == start + old:
                    setattr(parts[path], name, start + position)
        self.layers._modules = {str(position): layer for position, layer in enumerate(layers)}


def _rows(model: Any) -> Iterator[_Row]:
    torch = require("torch", extra="hf")
    modules = dict(model.named_modules())
    found: list[tuple[str, _Row]] = []
    configs: dict[str, Any] = {}
    for path, module in modules.items():
        if not isinstance(module, torch.nn.ModuleList) or not path:
            continue
        parents = [modules[""]]
        for part in path.split(".")[:-1]:
            parents.append(getattr(parents[-1], part))
        configs[path] = next((parent.config for parent in reversed(parents) if hasattr(parent, "config")), None)
        is_inner = any(path.startswith(outer + ".") for outer, _ in found)
        if type(module) is torch.nn.ModuleList and len(module) >= LEAST and not is_inner:
            row = _row(path, module, parents, configs[path])
            found += [] if row is None else [(path, row)]
    for path, row in found:
        # two rows of layers cannot both be what the lists of one configuration speak of
        others = [
            other
            for other, config in configs.items()
            if config is row.config and not other.startswith(path) and len(modules[other]) == len(row.layers)
        ]
        if not (others and _per_layer(row.config, len(row.layers))):
            yield row


def _row(path: str, layers: Any, parents: list[Any], config: Any) -> _Row | None:
    """How to shorten a list of layers; None if that is not known, or not worth it."""
    count = len(layers)
    lists = _per_layer(config, count)
    if not _is_plain(config, count, lists) or _shares_weights(layers):
        return None
    described = [dict(_describe(layer)) for layer in layers]
    numbers = _numbers(described)
    # what is left of the attributes, and the entries of lists, make the kind of a layer
    kinds: dict[Any, int] = {}
    found = []
    for number, description in enumerate(described):
        rest = frozenset((key, value) for key, value in description.items() if key not in numbers)
        entries = tuple(_token(values[number]) for values in lists.values())
        found.append(kinds.setdefault((rest, entries), len(kinds)))
    kept = keep(found)
    if len(kept) > count - 2:
        return None
    names = {name for _, name in numbers}
    if uses_number(layers, parents, path.rpartition(".")[2], names, set(lists)):
        return None
    return _Row(Stack(path, tuple(found), tuple(kept)), layers, numbers, config)


def keep(kinds: list[int]) -> list[int]:
    """The fewest layers that show each kind between its neighbours twice, or once where the whole has it once.

    Layers between two places that look the same are left out, the longest stretch first.

    >>> keep([0, 0, 0, 0, 0, 0, 0, 0])
    [0, 5, 6, 7]
    """
    kept = list(range(len(kinds)))

    def places(layers: list[int]) -> Counter[tuple[int, int, int]]:
        row = [-1, *(kinds[layer] for layer in layers), -1]
        return Counter(zip(row, row[1:], row[2:]))

    least = {place: min(2, count) for place, count in places(kept).items()}
    for length in range(len(kinds) - 2, 0, -1):
        start = 1
        while start + length < len(kept):
            end = start + length
            if kinds[kept[start - 1]] == kinds[kept[end - 1]] and kinds[kept[start]] == kinds[kept[end]]:
                rest = kept[:start] + kept[end:]
                left = places(rest)
                # where a layer without its like stands before the last one, nothing tells the next layer from the end
                before_last = left[kinds[rest[-3]], kinds[rest[-2]], kinds[rest[-1]]] if len(rest) > 2 else 0
                is_clear = before_last > 1 or rest[-2] == len(kinds) - 2
                if is_clear and all(left[place] >= count for place, count in least.items()):
                    kept = rest
                    continue
            start += 1
    return kept


def _per_layer(config: Any, count: int) -> dict[str, Any]:
    """The lists of a config that have an entry for each layer."""
    values: dict[str, Any] = {} if config is None else vars(config)
    # a list of all numbers of layers says of none more than of others
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, list | tuple) and len(value) == count and list(value) != list(range(count))
    }


def _is_plain(config: Any, count: int, lists: Mapping[str, Any]) -> bool:
    """Whether a config says of each layer the same, or what it is in a list."""
    if config is None:
        return True
    types_of_layers = getattr(config, "layer_types", None)
    return (
        all(any(word in name for word in _PER_LAYER) for name in lists)
        and (types_of_layers is None or len(types_of_layers) == count)
        and not getattr(config, "num_kv_shared_layers", None)
        and not getattr(config, "is_heterogeneous", False)
    )


def _shares_weights(layers: Any) -> bool:
    """Whether a part or a weight belongs to two layers."""
    owners: dict[int, int] = {}
    for number, layer in enumerate(layers):
        for part in (*layer.modules(), *layer.parameters(), *layer.buffers()):
            if owners.setdefault(id(part), number) != number:
                return True
    return False


def _numbers(described: list[dict[tuple[str, str], Any]]) -> dict[tuple[str, str], int]:
    """The attributes that are the number of the layer, each with its value in layer 0."""
    starts: dict[tuple[str, str], set[int]] = {}
    for number, description in enumerate(described):
        for key, value in description.items():
            starts.setdefault(key, set()).add(value[1] - number if value[0] is int else 0)
    several = Counter(key for description in described for key in description)
    found = {}
    for key, differences in starts.items():
        is_integer = all(description[key][0] is int for description in described if key in description)
        is_named = any(word in key[1] for word in _NUMBER)
        if is_integer and len(differences) == 1 and (several[key] > 1 or is_named):
            found[key] = next(iter(differences))
    return found


def _describe(layer: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    """Everything that a layer is: (the part and the name of an attribute, its value)."""
    for path, part in layer.named_modules():
        yield (path, "class"), ("class", type(part), tuple(part._modules))
        for name, weights in (("_parameters", part._parameters), ("_buffers", part._buffers)):
            shapes = [(n, w if w is None else (tuple(w.shape), w.dtype, w.device)) for n, w in weights.items()]
            yield (path, name), ("weights", tuple(shapes))
        for name, value in vars(part).items():
            if name not in _INTERNAL:
                yield (path, name), _token(value)


def _token(value: Any) -> Any:
    """What can be compared in place of a value; two values that cannot be are never equal."""
    torch = require("torch", extra="hf")
    if isinstance(value, (*_PLAIN, torch.dtype, torch.device)):
        return type(value), value if not isinstance(value, slice) else str(value)
    if isinstance(value, list | tuple):
        return type(value), tuple(_token(item) for item in value)
    if isinstance(value, Mapping) and type(value).__module__ in ("builtins", "collections"):
        return type(value), tuple((_token(key), _token(item)) for key, item in value.items())
    if isinstance(value, set | frozenset):
        return type(value), frozenset(_token(item) for item in value)
    if isinstance(value, functools.partial):
        return functools.partial, _token(value.func), _token(value.args), _token(value.keywords)
    return _Same(value)


class _Same:
    """An object that is equal to itself alone, such as a function or a config that all layers share."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)

    def __getitem__(self, _: int) -> Any:
        return None

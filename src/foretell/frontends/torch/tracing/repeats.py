"""Frontends: repeats layers in a traced program, so that a model of many equal layers is traced with a few of them.

Idea: of the layers of a model some were left out before it was traced (`Stack`). Each of them is written as a copy of a
layer that was traced: one of its kind, between neighbours of the same kinds. Names, module paths and weights get the
numbers that a trace of the whole model gives them; FX counts each name by itself, so that a layer adds as many to a
counter wherever it stands. When Python lets go of a tensor is copied, too, as a position within the layer or the next.

Proof: the layers that were traced are compared. All of a kind must make the same calls, all with equal neighbours must
also read the same and let go at the same place, and there must be two of each that is copied. A layer reads itself, the
layer before it, what all layers read, and nothing else. Whatever is not equal raises `UnequalError`; then the whole
model has to be traced.

Limits: that layers are of a kind, and that nothing but their number differs, is for the caller to know.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretell.frontends.torch.aten import AtenProgram
from foretell.frontends.torch.aten_operators import AtenCall, Ref
from foretell.graph import Tensor

_NUMBERED = re.compile(r"^(.*)_(\d+)$")
_INPUT_OF_LAYER = re.compile(r"^([a-z]+)_(\d+)_(\w+)$")
_LIFTED = re.compile(r"^c_(.*?)_?lifted_tensor_(\d+)$")
_CONSTANT = "lifted_tensor"  # how constants are numbered
_PART = "getitem"  # the parts of a list have names of their own in FX, and none in a program


class UnequalError(Exception):
    """The layers that were traced do not prove what those that were left out are."""


@dataclass(frozen=True)
class Stack:
    """Layers that run one after another.

    Attributes:
        path: The module that has them, such as ``model.layers``.
        kinds: The kind of every layer of the whole model.
        kept: Those that were traced, by their number in the whole model.
    """

    path: str
    kinds: tuple[int, ...]
    kept: tuple[int, ...]

    def place(self, layer: int) -> tuple[int, int, int]:
        """The kinds of the layer before one, of it, and of the one behind it; -1 where there is none."""
        around = (-1, *self.kinds, -1)
        return around[layer], around[layer + 1], around[layer + 2]

    def templates(self) -> list[int]:
        """For every layer of the whole model the traced one that it is written from."""
        traced: dict[tuple[int, int, int], list[int]] = {}
        for position, layer in enumerate(self.kept):
            traced.setdefault(self.place(layer), []).append(position)
        positions = {layer: position for position, layer in enumerate(self.kept)}
        found = []
        for layer in range(len(self.kinds)):
            if layer not in positions and len(traced.get(self.place(layer), ())) < 2:
                raise UnequalError(f"Layer {layer} of {self.path} is like no two that were traced")
            found.append(positions.get(layer, traced[self.place(layer)][-1]))
        return found


@dataclass(frozen=True)
class Weight:
    """A parameter or buffer of a module, and the weight that it shares its elements with, if that comes first."""

    path: str
    tensor: Tensor
    first: str = ""


def list_weights(module: Any) -> list[Weight]:
    """The weights of a module as ``torch.export`` lists them: parameters, then buffers, by their paths."""
    seen: dict[int, str] = {}
    weights = []
    named: tuple[tuple[Any, str, Iterable[tuple[str, Any]]], ...] = (
        ("parameter", "p_", module.named_parameters(remove_duplicate=False)),
        ("buffer", "b_", module.named_buffers(remove_duplicate=False)),
    )
    dtypes = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16", "float64": "fp64"}
    for kind, prefix, entries in named:
        for path, value in entries:
            name = prefix + _in_name(path)
            dtype = str(value.dtype).removeprefix("torch.")
            tensor = Tensor(name, tuple(value.shape), dtypes.get(dtype, dtype), kind)
            first = seen.setdefault(id(value), name)
            weights.append(Weight(path, tensor, "" if first == name else first))
    return weights


def repeat(
    program: AtenProgram, stacks: Sequence[Stack], traced: Sequence[Weight], whole: Sequence[Weight]
) -> AtenProgram:
    """The program of the whole model, from one with the ``kept`` layers of each stack.

    ``traced`` and ``whole`` are the weights of the module that was traced, and of the module with all layers.
    """
    weights = [tensor for tensor in program.tensors.values() if tensor.kind in ("parameter", "buffer")]
    listed = [weight.tensor for weight in traced if not weight.first]
    casts = {known.dtype: found.dtype for known, found in zip(listed, weights)}
    _need([replace(known, dtype=casts[known.dtype]) for known in listed] == weights, "weights")
    read = {name for call in program.calls for name in _references(call.arguments)}
    _need(all(name in read for name in program.inputs if _INPUT_OF_LAYER.match(name)), "inputs that nothing reads")
    paths = {weight.tensor.name: weight.path for weight in (*traced, *whole)}
    for stack in stacks:
        # a decoder that is given the states of an encoder does not run it
        if any(call.module.startswith(stack.path + ".") for call in program.calls):
            program = _Repetition(program, stack, paths).repeat()
    tensors = {
        weight.tensor.name: replace(weight.tensor, dtype=casts.get(weight.tensor.dtype, weight.tensor.dtype))
        for weight in whole
        if not weight.first
    }
    rest = {name: tensor for name, tensor in program.tensors.items() if tensor.kind not in ("parameter", "buffer")}
    _need(len({w.tensor.name for w in whole}) == len(whole) and not tensors.keys() & rest.keys(), "names")
    known = tensors.keys() | rest.keys()
    _need(all(name in known for call in program.calls for name in _references(call.arguments)), "operands")
    return replace(program, tensors=tensors | rest)


class _Repetition:
    """One stack of a program."""

    def __init__(self, program: AtenProgram, stack: Stack, paths: Mapping[str, str]) -> None:
        self.program, self.stack, self.paths = program, stack, paths
        _need(program.released is not None and bool(program.names), "lifetimes")
        self.count = len(stack.kept)
        self.templates = stack.templates()
        self.starts = self._find_starts()
        self.producers = {
            name: (position, index)
            for position, call in enumerate(program.calls)
            for index, name in enumerate(call.outputs)
            if name
        }
        self.constants = self._find_constants()
        self.offsets = self._count_names()
        # inputs and constants that belong to a layer, and its position
        self.mine = {name: segment for name, segment in self.constants.items() if 0 <= segment < self.count}
        self.ends: dict[tuple[int, int, int], list[frozenset[tuple[str, int]]]] = {}
        self.read_before = {n for call in program.calls[: self.starts[0]] for n in _references(call.arguments)}
        _need(all(self._owner(paths.get(name, "")) < 0 for name in self.read_before), "weights of layers")

    # what was traced

    def _owner(self, module: str) -> int:
        """The position of the layer that a module belongs to; -1 if to none."""
        head = self.stack.path + "."
        number = module[len(head) :].partition(".")[0] if module.startswith(head) else ""
        return int(number) if number.isdigit() else -1

    def _find_starts(self) -> list[int]:
        """The call at which each layer begins, and the one behind the last layer."""
        owners = [self._owner(call.module) for call in self.program.calls]
        calls: list[list[int]] = [[] for _ in range(self.count)]
        for position, owner in enumerate(owners):
            _need(owner < self.count, "layers")
            if owner >= 0:
                calls[owner].append(position)
        _need(all(calls), "layers")
        starts = [*(positions[0] for positions in calls), calls[-1][-1] + 1]
        _need(all(mine[-1] < start for mine, start in zip(calls, starts[1:])), "order of layers")
        return starts

    def _segment(self, position: int) -> int:
        """The layer that a call belongs to: -1 before the first, their number behind the last."""
        return bisect_right(self.starts, position) - 1

    def _find_constants(self) -> dict[str, int]:
        """The constants of the program, each with the layer whose calls read it first."""
        found: dict[str, int] = {}
        tensors = self.program.tensors
        for position, call in enumerate(self.program.calls):
            for name in _references(call.arguments):
                if name in tensors and tensors[name].kind == "constant":
                    found.setdefault(name, self._segment(position))
        constants = [name for name, tensor in tensors.items() if tensor.kind == "constant"]
        numbered = [name for name in constants if _LIFTED.match(name)]
        _need(list(found) == numbered or not any(0 <= segment for segment in found.values()), "constants")
        return found

    def _count_names(self) -> list[Counter[str]]:
        """How often each name was given out before each layer."""
        given = dict.fromkeys(self.program.names)
        order = {name: position for position, name in enumerate(given)}
        calls = self.program.calls
        bounds = []
        for start, end in zip(self.starts, self.starts[1:]):
            first = next((c.name for c in calls[start:end] if _last_part(c.name) in order), None)
            _need(first is not None, "names")
            bounds.append(order[_last_part(str(first))])
        _need(bounds == sorted(bounds), "order of names")
        counts = [Counter[str]() for _ in range(self.count + 1)]
        seen: dict[str, set[int]] = {}
        for name, position in order.items():
            base, number = _parsed(name)
            counts[bisect_right(bounds, position)][base] += 1
            seen.setdefault(base, set()).add(number)
        # names of calls that return several tensors, or none, are not among those of tensors
        for position, call in enumerate(calls):
            for part in call.name.split("/"):
                if part not in order:
                    order[part] = -1
                    base, number = _parsed(part)
                    counts[min(self._segment(position) + 1, self.count)][base] += 1
                    seen.setdefault(base, set()).add(number)
        for name, segment in self.constants.items():
            if _LIFTED.match(name):
                counts[min(segment + 1, self.count)][_CONSTANT] += 1
        for base, numbers in seen.items():
            least = min(numbers)
            _need(base == _PART or (least < 2 and max(numbers) - least + 1 == len(numbers)), f"numbers of {base}")
        offsets = [counts[0]]
        for layer in counts[1:]:
            offsets.append(offsets[-1] + layer)
        return offsets[: self.count]

    # layers as they are compared

    def _relative(self, name: str, layer: int) -> tuple[tuple[str, int], ...]:
        """A name with its numbers counted from the beginning of a layer."""
        parts = map(_parsed, name.split("/"))
        return tuple((base, number - self.offsets[layer][base]) for base, number in parts)

    def _source(self, name: str, layer: int) -> tuple[Any, ...]:
        """What an operand of a call of a layer is: its own, the last layer's, or the same for all layers."""
        tensors = self.program.tensors
        if name in self.producers:
            position, index = self.producers[name]
            segment = self._segment(position)
            if segment == layer:
                return "own", position - self.starts[layer], index
            if segment == layer - 1 >= 0:
                return "last", position - self.starts[layer - 1], index
            _need(segment in (-1, 0), "operands of earlier layers")
            return "shared", name
        _need(name in tensors, "operands")
        tensor = tensors[name]
        shape = tensor.shape, tensor.dtype, tensor.kind
        if name in self.paths:
            owner = self._owner(self.paths[name])
            _need(owner in (-1, layer), "weights of other layers")
            if owner == layer:
                return "weight", self.paths[name].removeprefix(f"{self.stack.path}.{layer}."), *shape
            return "shared", name
        match = _INPUT_OF_LAYER.match(name) if tensor.kind == "input" else None
        if match:
            _need(int(match[2]) == layer and self.mine.setdefault(name, layer) == layer, "inputs of other layers")
            return "input", match[1], match[3], *shape
        if self.constants.get(name, -1) == layer:
            return "constant", *self._constant(name, layer), *shape
        _need(self.constants.get(name, -1) <= 0, "constants of other layers")
        return "shared", name

    def _constant(self, name: str, layer: int) -> tuple[bool, str, int]:
        """The module path of a constant of a layer, without the number of the layer, and its number within the layer."""
        match = _LIFTED.match(name)
        assert match is not None
        is_inside, path = self._inside(match[1], layer, "_")
        return is_inside, path, int(match[2]) - self.offsets[layer][_CONSTANT]

    def _form(self, layer: int) -> tuple[list[Any], list[Any]]:
        """The calls of a layer by themselves, and what they read from elsewhere and when their results end."""
        inner: list[Any] = []
        outer: list[Any] = []

        def form(value: Any) -> Any:
            if isinstance(value, Ref):
                source = self._source(str(value), layer)
                if source[0] in ("last", "shared"):
                    outer.append(source)
                    return "outer"
                return source
            if isinstance(value, list | tuple):
                return [form(item) for item in value]
            return (type(value).__name__, str(value))

        for call in self._calls(layer):
            results = [
                (tensor.shape, tensor.dtype, tensor.kind) if (tensor := self.program.tensors.get(name)) else None
                for name in call.outputs
            ]
            arguments = {key: form(value) for key, value in call.arguments.items()}
            outputs = [self._result(call, name) for name in call.outputs]
            inner.append(
                (call.target, self._inside(call.module, layer), self._relative(call.name, layer), arguments, outputs,
                 results)
            )  # fmt: skip
        return inner, outer

    def _calls(self, layer: int) -> Sequence[AtenCall]:
        return self.program.calls[self.starts[layer] : self.starts[layer + 1]]

    def _inside(self, module: str, layer: int, dot: str = ".") -> tuple[bool, str]:
        """A module path, without the number of its layer."""
        path = self.stack.path if dot == "." else _in_name(self.stack.path)
        head = f"{path}{dot}{layer}"
        is_inside = module == head or module.startswith(head + dot)
        return is_inside, module[len(head) :] if is_inside else module

    def _result(self, call: AtenCall, name: str) -> str:
        """The end of the name of a result, behind that of its call."""
        _need(not name or name.startswith(call.name), "results")
        return name[len(call.name) :] if name else "none"

    def _ends(self, name: str, layer: int) -> frozenset[tuple[str, int]]:
        """Where a tensor of a layer ends: calls from the start of the layer, of the next, or of what follows them all.

        At the end of a program several of these are the same place.
        """
        assert self.program.released is not None
        end = self.program.released.get(name)
        if end is None:
            return frozenset()
        found = []
        for word, segment in (("own", layer), ("next", layer + 1)):
            if segment < self.count and self.starts[segment] < end <= self.starts[segment + 1]:
                found.append((word, end - self.starts[segment]))
        if end == len(self.program.calls):
            found.append(("end", 0))
        if end >= self.starts[-1]:
            found.append(("behind", end - self.starts[-1]))
        _need(bool(found), "lifetimes")
        return frozenset(found)

    def _compare(self) -> None:
        """Raise if layers that should be equal are not."""
        kinds: dict[int, list[Any]] = {}
        places: dict[tuple[int, int, int], list[Any]] = {}
        for position, layer in enumerate(self.stack.kept):
            inner, outer = self._form(position)
            place = self.stack.place(layer)
            # behind the last layer, what the model does in between cannot be told from what it does next
            if position < self.count - 1:
                _need(kinds.setdefault(place[1], inner) == inner, f"layers of a kind: {layer}")
            _need(places.setdefault(place, outer) == outer, f"layers between equal ones: {layer}")
            ends = [self._ends(name, position) for call in self._calls(position) for name in call.outputs]
            known = self.ends.setdefault(place, ends)
            common = [mine & others for mine, others in zip(ends, known)]
            _need(all(both or not mine for both, mine in zip(common, ends)), f"lifetimes: {layer}")
            self.ends[place] = common

    # the whole

    def repeat(self) -> AtenProgram:
        """The program with all layers."""
        self._compare()
        _need(not any(self.mine.get(name) for name in self.read_before), "inputs of layers")
        program, whole = self.program, len(self.stack.kinds)
        assert program.released is not None
        shifts, starts = self._places()
        calls: list[AtenCall] = list(program.calls[: self.starts[0]])
        made = {name: program.tensors[name] for call in calls for name in call.outputs if name in program.tensors}
        released: dict[str, int] = {}
        for name, end in program.released.items():
            if self._segment_of(name) == -1:
                _need(end <= self.starts[1] or end > self.starts[-2], "lifetimes of what all layers read")
                released[name] = end if end <= self.starts[1] else end + starts[-1] - self.starts[-1]
        total = len(program.calls) + starts[-1] - self.starts[-1]
        for layer in range(whole):
            template = self.templates[layer]
            ends = iter(self.ends[self.stack.place(layer)])
            bases = {"own": starts[layer], "next": starts[min(layer + 1, whole)], "behind": starts[-1], "end": total}
            for call in self._calls(template):
                copy = self._copy(call, layer, shifts)
                calls.append(copy)
                for old, new in zip(call.outputs, copy.outputs):
                    if old in program.tensors:
                        made[new] = replace(program.tensors[old], name=new)
                    released |= {new: bases[word] + number for word, number in next(ends)}
        for call in program.calls[self.starts[-1] :]:
            copy = self._copy_behind(call, shifts[-1])
            calls.append(copy)
            for old, new in zip(call.outputs, copy.outputs):
                if old in program.tensors:
                    made[new] = replace(program.tensors[old], name=new)
                if old in program.released:
                    released[new] = program.released[old] + total - len(program.calls)
        inputs = self._listed(program.inputs, shifts)
        of = {
            kind: [name for name, tensor in program.tensors.items() if tensor.kind == kind]
            for kind in ("parameter", "buffer", "constant", "input", "activation")
        }
        _need(of["activation"] == [n for c in program.calls for n in c.outputs if n in program.tensors], "tensors")
        _need(list(program.tensors) == [name for names in of.values() for name in names], "order of tensors")
        constants = self._listed(of["constant"], shifts)
        copied = {new: replace(program.tensors[old], name=new) for new, old in (constants | inputs).items()}
        _need(of["input"] == list(program.inputs) and len(copied) == len(constants) + len(inputs), "inputs")
        _need(len(made) == sum(1 for call in calls for name in call.outputs if name in made), "names of tensors")
        return replace(
            program,
            calls=tuple(calls),
            tensors={n: program.tensors[n] for n in (*of["parameter"], *of["buffer"])} | copied | made,
            inputs=tuple(inputs),
            outputs=tuple(self._listed(program.outputs, shifts)),
            released=released,
            names=tuple(self._all_names(shifts)),
        )

    def _places(self) -> tuple[list[Counter[str]], list[int]]:
        """For each layer of the whole what its numbers are more than its template's, and the call where it begins."""
        offset, start = self.offsets[0], self.starts[0]
        shifts, starts = [], []
        for template in self.templates:
            shifts.append(Counter(offset))
            shifts[-1].subtract(self.offsets[template])
            starts.append(start)
            start += self.starts[template + 1] - self.starts[template]
            if template + 1 < self.count:
                offset = Counter(offset)
                offset.update(self.offsets[template + 1])
                offset.subtract(self.offsets[template])
        return shifts, [*starts, start]

    def _segment_of(self, name: str) -> int:
        position = self.producers.get(name)
        return -1 if position is None else self._segment(position[0])

    def _copy(self, call: AtenCall, layer: int, shifts: list[Counter[str]]) -> AtenCall:
        """A call of a template as the call of a layer of the whole."""
        template = self.templates[layer]

        def operand(value: Any) -> Any:
            if isinstance(value, Ref):
                return Ref(self._operand(str(value), template, layer, shifts))
            if isinstance(value, list | tuple):
                return type(value)(operand(item) for item in value)
            return value

        name = _renumbered(call.name, shifts[layer])
        is_inside, rest = self._inside(call.module, template)
        return AtenCall(
            name,
            call.target,
            {key: operand(value) for key, value in call.arguments.items()},
            tuple(name + output[len(call.name) :] if output else "" for output in call.outputs),
            f"{self.stack.path}.{layer}{rest}" if is_inside else call.module,
        )

    def _operand(self, name: str, template: int, layer: int, shifts: list[Counter[str]]) -> str:
        source = self._source(name, template)
        if source[0] in ("own", "last"):
            made_by = layer - (source[0] == "last")
            call = self.program.calls[self.starts[self.templates[made_by]] + source[1]]
            return _renumbered(call.name, shifts[made_by]) + call.outputs[source[2]][len(call.name) :]
        if source[0] == "weight":
            path = f"{self.stack.path}.{layer}.{source[1]}"
            return {"parameter": "p_", "buffer": "b_"}[source[-1]] + _in_name(path)
        if source[0] == "constant":
            is_inside, path, number = source[1:4]
            path = f"{_in_name(self.stack.path)}_{layer}{path}" if is_inside else path
            return _constant_name(path, number + self.offsets[template][_CONSTANT] + shifts[layer][_CONSTANT])
        if source[0] == "input":
            return f"{source[1]}_{layer}_{source[2]}"
        return name

    def _copy_behind(self, call: AtenCall, shift: Counter[str]) -> AtenCall:
        """A call behind the last layer, with the numbers that it has in the whole."""

        def operand(value: Any) -> Any:
            if isinstance(value, Ref):
                return Ref(self._renamed_behind(str(value), shift))
            if isinstance(value, list | tuple):
                return type(value)(operand(item) for item in value)
            return value

        name = _renumbered(call.name, shift)
        outputs = tuple(name + output[len(call.name) :] if output else "" for output in call.outputs)
        arguments = {key: operand(value) for key, value in call.arguments.items()}
        return AtenCall(name, call.target, arguments, outputs, call.module)

    def _renamed_behind(self, name: str, shift: Counter[str]) -> str:
        """A tensor that is read behind the last layer."""
        if name in self.paths:
            _need(self._owner(self.paths[name]) < 0, "weights of layers")
        _need(name not in self.mine, "inputs of layers")
        if self.constants.get(name) == self.count:
            match = _LIFTED.match(name)
            _need(match is not None, "constants")
            return _constant_name(match[1], int(match[2]) + shift[_CONSTANT])
        if name not in self.producers:
            return name
        segment = self._segment_of(name)
        _need(segment == -1 or segment >= self.count - 1, "outputs of layers")
        if segment == -1:
            return name
        call = self.program.calls[self.producers[name][0]]
        return _renumbered(call.name, shift) + name[len(call.name) :]

    def _listed(self, names: Sequence[str], shifts: list[Counter[str]]) -> dict[str, str]:
        """Inputs or outputs of the whole, each with the traced one that it is written from: layer after layer."""
        layers = [self.mine[name] if name in self.mine else self._segment_of(name) for name in names]
        listed: dict[str, str] = {}
        position = 0
        while position < len(names):
            layer = layers[position]
            if layer in (-1, self.count):
                listed[self._renamed_behind(names[position], shifts[-1])] = names[position]
                position += 1
                continue
            group: list[list[str]] = [[] for _ in range(self.count)]
            while position < len(names) and layer <= layers[position] < self.count:
                layer = layers[position]
                group[layer].append(names[position])
                position += 1
            if not any(group[:-1]):
                listed |= {self._renamed_behind(name, shifts[-1]): name for name in group[-1]}
                continue
            kinds: dict[int, Any] = {}
            for number, members in enumerate(group):
                form = [self._source(name, number) for name in members]
                _need(kinds.setdefault(self.stack.kinds[self.stack.kept[number]], form) == form, "inputs and outputs")
            for whole, template in enumerate(self.templates):
                listed |= {self._operand(name, template, whole, shifts): name for name in group[template]}
        return listed

    def _all_names(self, shifts: list[Counter[str]]) -> Iterator[str]:
        """The names of the whole, in the order in which they were given out."""
        order = list(dict.fromkeys(self.program.names))
        index = {name: position for position, name in enumerate(order)}
        bounds = []
        for start, end in zip(self.starts, self.starts[1:]):
            names = (_last_part(call.name) for call in self.program.calls[start:end])
            bounds.append(next(index[name] for name in names if name in index))
        yield from order[: bounds[0]]
        ends = [*bounds[1:], len(order)]
        for layer, template in enumerate(self.templates):
            for name in order[bounds[template] : ends[template]]:
                yield _renumbered(name, shifts[layer])


def _need(condition: bool, what: str) -> None:
    if not condition:
        raise UnequalError(what)


def _in_name(path: str) -> str:
    """A module path as the names of its weights and constants have it."""
    return re.sub(r"[^a-zA-Z0-9]", "_", path).lower()


def _constant_name(path: str, number: int) -> str:
    return f"c_{path}_{_CONSTANT}_{number}" if path else f"c_{_CONSTANT}_{number}"


def _last_part(name: str) -> str:
    return name.rpartition("/")[2]


def _parsed(name: str) -> tuple[str, int]:
    """A name of FX and its number: ``add_3`` is the fourth ``add``."""
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match else (name, 0)


def _renumbered(name: str, shift: Mapping[str, int]) -> str:
    """A name with greater numbers."""
    parts = []
    for part in name.split("/"):
        base, number = _parsed(part)
        number += shift.get(base, 0)
        parts.append(f"{base}_{number}" if number or part != base else base)
    return "/".join(parts)


def _references(arguments: Mapping[str, Any]) -> Iterator[str]:
    for value in arguments.values():
        if isinstance(value, Ref):
            yield str(value)
        elif isinstance(value, list | tuple):
            yield from _references({str(i): item for i, item in enumerate(value)})

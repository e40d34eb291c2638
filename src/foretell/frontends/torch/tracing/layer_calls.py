"""Frontends: the layers of a traced program: their calls, what these read, and whether layers of a kind are equal.

Idea: a program with a row of layers is what runs before them, the layers one after another, and what runs behind. Some
models also make something for each layer before the first runs, such as the parts of a cache: its *preparation*. What
a layer reads is its own, its preparation's, the last layer's, or what all layers read. Whatever it reads besides, or
any other order of the calls, raises `UnequalError`.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from foretell.frontends.torch.aten import AtenProgram
from foretell.frontends.torch.aten_operators import AtenCall, Ref, references
from foretell.frontends.torch.tracing.stacks import Stack, name_of_path, need

NUMBERED_INPUT = re.compile(r"^([a-z]+)_(\d+)_(\w+)$")
CONSTANT = "lifted_tensor"  # how constants are numbered
LIFTED = re.compile(r"^c_(.*?)_?lifted_tensor_(\d+)$")
_NUMBERED = re.compile(r"^(.*)_(\d+)$")
_PART = "getitem"  # the parts of a list have names of their own in FX, and none in a program
Source = tuple[Any, ...]


class LayerCalls:
    """One row of layers of a program.

    ``starts`` are the calls with which the layers begin, and the one behind the last; ``prepared`` the same of their
    preparations. ``paths`` are the module paths of weights.
    """

    def __init__(self, program: AtenProgram, stack: Stack, paths: Mapping[str, str]) -> None:
        need(program.released is not None and bool(program.names), "lifetimes")
        self.program, self.stack, self.paths = program, stack, paths
        self.released: Mapping[str, int] = program.released or {}
        self.count = len(stack.kept)
        self.producers = {
            name: (position, index)
            for position, call in enumerate(program.calls)
            for index, name in enumerate(call.outputs)
            if name
        }
        self.starts = self._find_starts()
        self.prepared = self._find_preparations()
        self.constants = self._find_constants()
        self.slots = [0, *self.prepared, *self.starts[:-1]]  # the call with which each stretch of calls begins
        self.name_bounds = self._find_name_bounds()
        self.offsets = self._count_names()
        # inputs and constants that belong to a layer, and its position
        self.mine: dict[str, int] = {}
        for name, position in self.constants.items():
            layer = self.layer_of(position)
            if 0 <= layer < self.count:
                self.mine[name] = layer
        outside = [*program.calls[: self.prepared[0]], *program.calls[self.prepared[-1] : self.starts[0]]]
        self.read_before = {name for call in outside for name in references(call.arguments.values())}
        need(all(self.owner(paths.get(name, "")) < 0 for name in self.read_before), "weights of layers")

    # where calls are

    def owner(self, module: str) -> int:
        """The position of the layer that a module belongs to; -1 if to none."""
        head = self.stack.path + "."
        number = module[len(head) :].partition(".")[0] if module.startswith(head) else ""
        return int(number) if number.isdigit() else -1

    def _find_starts(self) -> list[int]:
        calls: list[list[int]] = [[] for _ in range(self.count)]
        for position, call in enumerate(self.program.calls):
            owner = self.owner(call.module)
            need(owner < self.count, "layers")
            if owner >= 0:
                calls[owner].append(position)
        need(all(calls), "layers that do not run")
        starts = [*(positions[0] for positions in calls), calls[-1][-1] + 1]
        need(all(mine[-1] < start for mine, start in zip(calls, starts[1:])), "order of layers")
        return starts

    def _find_preparations(self) -> list[int]:
        """The calls with which the preparations of layers begin, and the end of the last.

        A call before the layers belongs to one of them if this layer alone reads, by other such calls, what it makes.
        """
        calls, first = self.program.calls, self.starts[0]
        readers: list[set[int]] = [set() for _ in range(first)]
        for name in self.program.outputs:
            self._note_reader(readers, name, self.count)
        for position in range(len(calls) - 1, -1, -1):
            mine = readers[position] if position < first else {bisect_right(self.starts, position) - 1}
            for name in references(calls[position].arguments.values()):
                for layer in mine:
                    self._note_reader(readers, name, layer)
        # a constant that nothing uses may have been made for each layer
        for position, call in enumerate(calls[:first]):
            kinds = {
                self.program.tensors[n].kind for n in references(call.arguments.values()) if n not in self.producers
            }
            need(bool(readers[position]) or "constant" not in kinds, "unused constants")
        of_layers = [position for position in range(first) if len(readers[position]) == 1]
        later = [position for position in of_layers if 0 < min(readers[position]) < self.count]
        if not later:
            return [first] * (self.count + 1)
        blocks = Counter(min(readers[position]) for position in later)
        kinds_of = [self.stack.kinds[layer] for layer in self.stack.kept]
        # what only the first layer reads is its preparation where other layers of its kind have one
        alike = [blocks[layer] for layer in range(1, self.count) if kinds_of[layer] == kinds_of[0]]
        start = later[0] - (alike[0] if alike else 0)
        owners = [readers[position] for position in range(max(start, 0), later[-1] + 1)]
        need(start >= 0 and all(len(each) == 1 for each in owners), "preparations")
        order = [min(each) for each in owners]
        need(order == sorted(order) and order[-1] < self.count, "order of preparations")
        return [start + sum(1 for owner in order if owner < layer) for layer in range(self.count + 1)]

    def _note_reader(self, readers: list[set[int]], name: str, layer: int) -> None:
        position = self.producers[name][0] if name in self.producers else len(readers)
        if position < len(readers):
            readers[position].add(layer)

    def segment(self, position: int) -> int:
        """The layer in whose run a call is: -1 before the first, their number behind the last."""
        return bisect_right(self.starts, position) - 1

    def layer_of(self, position: int) -> int:
        """The layer that a call belongs to, if only as its preparation; like `segment` for others."""
        if self.prepared[0] <= position < self.prepared[-1]:
            return bisect_right(self.prepared, position) - 1
        return self.segment(position)

    def segment_of(self, name: str) -> int:
        """Like `layer_of`, of the call that makes a tensor."""
        return self.layer_of(self.producers[name][0]) if name in self.producers else -1

    def is_of_first(self, name: str) -> bool:
        """Whether the first layer makes a tensor."""
        return name in self.producers and self.segment(self.producers[name][0]) == 0

    def is_early(self, name: str) -> bool:
        """Whether a tensor or constant is there before any preparation."""
        position = self.producers[name][0] if name in self.producers else self.constants.get(name, -1)
        return position < self.prepared[0]

    def ranges(self, layer: int) -> tuple[range, range]:
        """The calls of the preparation of a layer, and of the layer."""
        return (
            range(self.prepared[layer], self.prepared[layer + 1]),
            range(self.starts[layer], self.starts[layer + 1]),
        )

    def _find_constants(self) -> dict[str, int]:
        """The constants of the program, each with the call that reads it first."""
        found: dict[str, int] = {}
        tensors = self.program.tensors
        for position, call in enumerate(self.program.calls):
            for name in references(call.arguments.values()):
                if name in tensors and tensors[name].kind == "constant":
                    found.setdefault(name, position)
        numbered = [name for name, tensor in tensors.items() if tensor.kind == "constant" and LIFTED.match(name)]
        need(list(found) == numbered or all(self.layer_of(position) == -1 for position in found.values()), "constants")
        return found

    # names

    def slot(self, position: int) -> int:
        """The stretch of calls that one belongs to: before all, a preparation, between, or a layer and what follows."""
        return bisect_right(self.slots, position) - 1

    def slot_of(self, layer: int, *, prepares: bool) -> int:
        """The stretch of a layer or of its preparation."""
        return 1 + layer + (0 if prepares else self.count + 1)

    def _find_name_bounds(self) -> list[int]:
        """For each stretch of calls the first of the names that were given out in it."""
        order = {name: position for position, name in enumerate(dict.fromkeys(self.program.names))}
        bounds = [len(order)]
        ends = [*self.slots[1:], len(self.program.calls)]
        for start, end in reversed(list(zip(self.slots, ends))):
            names = (last_part(call.name) for call in self.program.calls[start:end])
            first = next((order[name] for name in names if name in order), None)
            need(first is not None or start == end or start == 0, "names")
            bounds.insert(0, bounds[0] if first is None else first)
        bounds[0] = 0
        need(bounds == sorted(bounds), "order of names")
        return bounds

    def _count_names(self) -> list[Counter[str]]:
        """How often each name was given out before each stretch of calls."""
        names = list(dict.fromkeys(self.program.names))
        counts = [
            Counter(parsed(name)[0] for name in names[start:end])
            for start, end in zip(self.name_bounds, self.name_bounds[1:])
        ]
        # calls that return several tensors, or none, are not among the names of tensors
        seen = set(names)
        for position, call in enumerate(self.program.calls):
            for part in call.name.split("/"):
                if part not in seen:
                    seen.add(part)
                    counts[self.slot(position)][parsed(part)[0]] += 1
        for name, position in self.constants.items():
            if LIFTED.match(name):
                counts[self.slot(position)][CONSTANT] += 1
        numbers: dict[str, set[int]] = {}
        for name in seen:
            base, number = parsed(name)
            numbers.setdefault(base, set()).add(number)
        # a number that is missing was given to a call that is gone, perhaps once for each layer
        for base, given in numbers.items():
            least = min(given)
            need(base == _PART or (least < 2 and max(given) - least + 1 == len(given)), f"numbers of {base}")
        offsets = [Counter[str]()]
        for each in counts:
            offsets.append(offsets[-1] + each)
        return offsets

    # what is compared

    def source(self, name: str, layer: int) -> Source:
        """What an operand of a call of a layer is: its own, its preparation's, the last layer's, or that of all."""
        if name in self.producers:
            position, index = self.producers[name]
            segment = self.segment(position)
            if self.prepared[0] <= position < self.prepared[-1]:
                need(self.layer_of(position) == layer, "preparations of other layers")
                return "prepared", position - self.prepared[layer], index
            if segment == layer:
                return "own", position - self.starts[layer], index
            if segment == layer - 1 >= 0:
                return "last", position - self.starts[layer - 1], index
            need(segment in (-1, 0), "operands of earlier layers")
            return "shared", name
        need(name in self.program.tensors, "operands")
        tensor = self.program.tensors[name]
        shape = tensor.shape, tensor.dtype, tensor.kind
        if name in self.paths:
            owner = self.owner(self.paths[name])
            need(owner in (-1, layer), "weights of other layers")
            if owner == layer:
                return "weight", self.paths[name].removeprefix(f"{self.stack.path}.{layer}."), *shape
            return "shared", name
        match = NUMBERED_INPUT.match(name) if tensor.kind == "input" else None
        if match:
            need(int(match[2]) == layer and self.mine.setdefault(name, layer) == layer, "inputs of other layers")
            return "input", match[1], match[3], *shape
        if self.mine.get(name) == layer and name in self.constants:
            return "constant", *self._constant(name, layer), *shape
        need(self.mine.get(name, 0) == 0, "constants of other layers")
        return "shared", name

    def _constant(self, name: str, layer: int) -> tuple[bool, bool, str, int]:
        """Whether a constant of a layer prepares it, its module path, and its number within the layer."""
        prepares = self.constants[name] < self.starts[0]
        match = LIFTED.match(name)
        assert match is not None
        offset = self.offsets[self.slot_of(layer, prepares=prepares)][CONSTANT]
        return (prepares, *self._inside(match[1], name_of_path(self.stack.path), "_", layer), int(match[2]) - offset)

    def inside(self, module: str, layer: int) -> tuple[bool, str]:
        """A module path without the path of its layer, and whether it had one."""
        return self._inside(module, self.stack.path, ".", layer)

    @staticmethod
    def _inside(module: str, path: str, dot: str, layer: int) -> tuple[bool, str]:
        head = f"{path}{dot}{layer}"
        is_inside = module == head or module.startswith(head + dot)
        return is_inside, module[len(head) :] if is_inside else module

    def form(self, layer: int) -> tuple[list[Any], list[Source]]:
        """The calls of a layer by themselves, and what they read from elsewhere."""
        inner: list[Any] = []
        outer: list[Source] = []

        def form(value: Any) -> Any:
            if isinstance(value, Ref):
                source = self.source(str(value), layer)
                if source[0] not in ("last", "shared"):
                    return source
                outer.append(source)
                return "outer"
            if isinstance(value, list | tuple):
                return [form(item) for item in value]
            return type(value).__name__, str(value)

        for prepares, positions in zip((True, False), self.ranges(layer)):
            offsets = self.offsets[self.slot_of(layer, prepares=prepares)]
            for call in self.program.calls[positions.start : positions.stop]:
                parts = map(parsed, call.name.split("/"))
                need(all(not name or name.startswith(call.name) for name in call.outputs), "names of results")
                made = [self.program.tensors.get(name) for name in call.outputs]
                inner.append((
                    prepares,
                    call.target,
                    self.inside(call.module, layer),
                    [(base, number - offsets[base]) for base, number in parts],
                    {key: form(value) for key, value in call.arguments.items()},
                    [name[len(call.name) :] for name in call.outputs],
                    [tensor and (tensor.shape, tensor.dtype, tensor.kind) for tensor in made],
                ))  # fmt: skip
        return inner, outer

    def ends(self, name: str, layer: int) -> frozenset[tuple[str, int]]:
        """Where a tensor of a layer ends: calls from the start of the layer, of the next, or of what follows them all.

        At the end of a program several of these are the same place.
        """
        end = self.released.get(name)
        if end is None:
            return frozenset()
        found = []
        for word, starts, segment in (
            ("prepared", self.prepared, layer),
            ("own", self.starts, layer),
            ("next", self.starts, layer + 1),
        ):
            if segment < self.count and starts[segment] < end <= starts[segment + 1]:
                found.append((word, end - starts[segment]))
        if end == len(self.program.calls):
            found.append(("end", 0))
        if end >= self.starts[-1]:
            found.append(("behind", end - self.starts[-1]))
        need(bool(found), "lifetimes")
        return frozenset(found)

    def compare(self) -> dict[tuple[int, int, int], list[frozenset[tuple[str, int]]]]:
        """Raise if layers that should be equal are not; return where the results of each kind of layer end."""
        kinds: dict[int, list[Any]] = {}
        places: dict[tuple[int, int, int], list[Source]] = {}
        found: dict[tuple[int, int, int], list[frozenset[tuple[str, int]]]] = {}
        of_first = Counter[str]()
        named: dict[int, list[Counter[str]]] = {}
        for position, layer in enumerate(self.stack.kept):
            inner, outer = self.form(position)
            place = self.stack.place(layer)
            # names behind the last layer cannot be told from its own
            given = [self._given(self.slot_of(position, prepares=prepares)) for prepares in (True, False)]
            given = given[: 2 if position < self.count - 1 else 1]
            need(named.setdefault(place[1], given)[: len(given)] == given, f"names of a kind of layer: {layer}")
            if position > 1:
                of_first.update(
                    {source[1] for source in outer if source[0] == "shared" and self.is_of_first(source[1])}
                )
            # behind the last layer, what the model does in between cannot be told from what it does next
            if position < self.count - 1:
                need(kinds.setdefault(place[1], inner) == inner, f"layers of a kind: {layer}")
            need(places.setdefault(place, outer) == outer, f"layers between equal ones: {layer}")
            ends = [self.ends(name, position) for call in self.calls(position) for name in call.outputs]
            common = [mine & others for mine, others in zip(ends, found.get(place, ends))]
            need(all(both or not mine for both, mine in zip(common, ends)), f"lifetimes: {layer}")
            found[place] = common
        # before the last layer, the end of the next one is also that of all; in the whole another layer may come next
        if self.stack.kept[-2] != len(self.stack.kinds) - 2:
            words = [{word for word, _ in each} for each in found[self.stack.place(self.stack.kept[-2])]]
            need(not any("next" in each and each & {"behind", "end"} for each in words), "lifetimes at the end")
        # what one layer reads of the first may be of a layer so far before it
        need(all(readers > 1 for readers in of_first.values()), "operands of the first layer")
        need(not any(self.mine.get(name) for name in self.read_before), "inputs of layers")
        return found

    def _given(self, slot: int) -> Counter[str]:
        """How often each name is given out in a stretch of calls."""
        return Counter({base: count for base, count in (self.offsets[slot + 1] - self.offsets[slot]).items() if count})

    def calls(self, layer: int) -> Iterator[AtenCall]:
        """The calls of the preparation of a layer, then those of the layer."""
        for positions in self.ranges(layer):
            yield from self.program.calls[positions.start : positions.stop]

    def listed(self, names: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
        """Inputs, constants or outputs in groups: (-1, those of no layer), or (layer, those of one) for all layers."""
        layers = [self.mine[name] if name in self.mine else self.segment_of(name) for name in names]
        position = 0
        while position < len(names):
            layer = layers[position]
            if layer in (-1, self.count):
                yield -1, [names[position]]
                position += 1
                continue
            group: list[list[str]] = [[] for _ in range(self.count)]
            while position < len(names) and layer <= layers[position] < self.count:
                layer = layers[position]
                group[layer].append(names[position])
                position += 1
            if not any(group[:-1]):
                yield -1, group[-1]
                continue
            kinds: dict[int, list[Source]] = {}
            for number, members in enumerate(group):
                form = [self.source(name, number) for name in members]
                kind = self.stack.kinds[self.stack.kept[number]]
                need(kinds.setdefault(kind, form) == form, "inputs and outputs of layers")
            yield from enumerate(group)


def last_part(name: str) -> str:
    """The name of a call itself, without those around it."""
    return name.rpartition("/")[2]


def parsed(name: str) -> tuple[str, int]:
    """A name of FX and its number: ``add_3`` is the fourth ``add``.

    >>> parsed("add_3"), parsed("add")
    (('add', 3), ('add', 0))
    """
    match = _NUMBERED.match(name)
    return (match[1], int(match[2])) if match else (name, 0)

"""Frontends: repeats layers in a traced program, so that a model of many equal layers is traced with a few of them.

Idea: of the layers of a model some were left out before it was traced (`Stack`). Each of them is written as a copy of a
layer that was traced: one of its kind, between neighbours of the same kinds. Names, module paths and weights get the
numbers that a trace of the whole model gives them; FX counts each name by itself, so that a layer adds as many to a
counter wherever it stands. When Python lets go of a tensor is copied, too, as a position within the layer or the next.

Proof: the layers that were traced are compared (`foretell.frontends.torch.tracing.layer_calls`). All of a kind must
make the same calls, all with equal neighbours must also read the same and let go at the same place, and there must be
two of each that is copied. Whatever is not equal raises `UnequalError`; then the whole model has to be traced.

Limits: that layers are of a kind, and that nothing but their number differs, is for the caller to know.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from foretell.frontends.torch.aten import AtenProgram
from foretell.frontends.torch.aten_operators import AtenCall, Ref, references
from foretell.frontends.torch.tracing.layer_calls import CONSTANT, LIFTED, NUMBERED_INPUT, LayerCalls, parsed
from foretell.frontends.torch.tracing.stacks import Stack, Weight, name_of_path, need
from foretell.graph import Tensor


def repeat(
    program: AtenProgram, stacks: Sequence[Stack], traced: Sequence[Weight], whole: Sequence[Weight]
) -> AtenProgram:
    """The program of the whole model, from one with the ``kept`` layers of each stack.

    ``traced`` and ``whole`` are the weights of the module that was traced, and of the module with all layers.
    """
    weights = [tensor for tensor in program.tensors.values() if tensor.kind in ("parameter", "buffer")]
    listed = [weight.tensor for weight in traced if not weight.first]
    casts = {known.dtype: found.dtype for known, found in zip(listed, weights)}  # the program may run in bf16
    need([replace(known, dtype=casts.get(known.dtype, "")) for known in listed] == weights, "weights")
    read = {name for call in program.calls for name in references(call.arguments.values())}
    need(all(name in read for name in program.inputs if NUMBERED_INPUT.match(name)), "inputs that nothing reads")
    paths = {weight.tensor.name: weight.path for weight in (*traced, *whole)}
    done: list[str] = []
    for stack in stacks:
        # a decoder that is given the states of an encoder does not run it
        if any(call.module.startswith(stack.path + ".") for call in program.calls):
            program = _Repetition(LayerCalls(program, stack, paths)).repeat()
        done.append(stack.path + ".")
        # the weights of this stack are those of the whole model from here on
        written = [weight for weight in whole if weight.path.startswith(tuple(done))]
        others = [weight for weight in traced if not weight.path.startswith(tuple(done))]
        program = _with_weights(program, sorted((*written, *others), key=lambda w: w.tensor.kind == "buffer"), casts)
    need(len({weight.tensor.name for weight in whole}) == len(whole), "names of weights")
    program = _with_weights(program, whole, casts)
    known = program.tensors
    need(all(n in known for call in program.calls for n in references(call.arguments.values())), "operands")
    return program


def _with_weights(program: AtenProgram, weights: Sequence[Weight], casts: Mapping[str, str]) -> AtenProgram:
    """The program with these weights in place of its own, in its precision."""
    rest = {name: tensor for name, tensor in program.tensors.items() if tensor.kind not in ("parameter", "buffer")}
    tensors = {
        weight.tensor.name: replace(weight.tensor, dtype=casts.get(weight.tensor.dtype, weight.tensor.dtype))
        for weight in weights
        if not weight.first
    }
    need(not tensors.keys() & rest.keys(), "names of weights")
    return replace(program, tensors=tensors | rest)


class _Repetition:
    """Writes all layers of a stack from those that were traced."""

    def __init__(self, traced: LayerCalls) -> None:
        self.traced, self.stack, self.program = traced, traced.stack, traced.program
        self.templates = self.stack.templates()
        self.whole = len(self.templates)
        # what is added to the numbers of names in preparations, between these and the layers, in layers
        self.prepared_shifts, self.between = self._shifts(prepares=True, before=Counter())
        self.shifts, _ = self._shifts(prepares=False, before=self.between)
        self.prepared = self._starts(traced.prepared, 0)
        self.added = self.prepared[-1] - traced.prepared[-1]  # calls that preparations add
        self.starts = self._starts(traced.starts, self.added)
        self.total = len(self.program.calls) + self.starts[-1] - traced.starts[-1]

    def _shifts(self, *, prepares: bool, before: Counter[str]) -> tuple[list[Counter[str]], Counter[str]]:
        """For each layer of the whole what its numbers are more than its template's; and the same behind them all."""
        offsets = self.traced.offsets
        first = offsets[self.traced.slot_of(0, prepares=prepares)]
        last = offsets[self.traced.slot_of(self.traced.count, prepares=prepares)]
        shifts = []
        offset = Counter(first)
        offset.update(before)
        for template in self.templates:
            slot = self.traced.slot_of(template, prepares=prepares)
            shifts.append(_difference(offset, offsets[slot]))
            offset.update(_difference(offsets[slot + 1], offsets[slot]))
        return shifts, _difference(offset, last)

    def _starts(self, traced: list[int], added: int) -> list[int]:
        """The calls with which the layers of the whole begin, and the one behind the last."""
        starts = [traced[0] + added]
        for template in self.templates:
            starts.append(starts[-1] + traced[template + 1] - traced[template])
        return starts

    def repeat(self) -> AtenProgram:
        """The program with all layers."""
        ends = self.traced.compare()
        program, traced = self.program, self.traced
        calls: list[AtenCall] = list(program.calls[: traced.prepared[0]])
        made = {name: program.tensors[name] for call in calls for name in call.outputs if name in program.tensors}
        released = {name: self._end(program.released or {}, name) for call in calls for name in call.outputs}

        def add(call: AtenCall, copy: AtenCall) -> None:
            calls.append(copy)
            made.update(
                {new: replace(program.tensors[old], name=new) for old, new in zip(call.outputs, copy.outputs)
                 if old in program.tensors}
            )  # fmt: skip

        for layer, template in enumerate(self.templates):
            for position in traced.ranges(template)[0]:
                add(program.calls[position], self._copy(program.calls[position], layer, prepares=True))
        for call in program.calls[traced.prepared[-1] : traced.starts[0]]:
            add(call, self._copy_between(call, self.between))
            names = zip(call.outputs, calls[-1].outputs)
            released |= {new: self._end(program.released or {}, old) for old, new in names}
        for layer, template in enumerate(self.templates):
            for position in traced.ranges(template)[1]:
                add(program.calls[position], self._copy(program.calls[position], layer, prepares=False))
            released |= self._released(layer, ends[self.stack.place(layer)])
        for call in program.calls[traced.starts[-1] :]:
            add(call, self._copy_between(call, self.shifts[-1]))
            names = zip(call.outputs, calls[-1].outputs)
            released |= {new: self._end(program.released or {}, old) for old, new in names}
        need(len(made) == sum(name in made for call in calls for name in call.outputs), "names of tensors")
        return replace(
            program,
            calls=tuple(calls),
            tensors=self._tensors(made),
            inputs=tuple(self._listed(program.inputs)),
            outputs=tuple(self._listed(program.outputs)),
            released={name: end for name, end in released.items() if end >= 0},
            names=tuple(self._names()),
        )

    # lifetimes

    def _end(self, released: Mapping[str, int], name: str) -> int:
        """When a tensor ends that no layer makes; -1 if that is not known."""
        traced, end = self.traced, released.get(name, -1)
        if end <= traced.prepared[0]:
            return end
        if end > traced.starts[-2]:
            return end + self.total - len(self.program.calls)
        need(traced.prepared[-1] < end <= traced.starts[1], "lifetimes of what all layers read")
        return end + self.added

    def _released(self, layer: int, ends: list[frozenset[tuple[str, int]]]) -> dict[str, int]:
        """When the tensors of a layer end."""
        bases = {
            "prepared": self.prepared[layer],
            "own": self.starts[layer],
            "next": self.starts[min(layer + 1, self.whole)],
            "behind": self.starts[-1],
            "end": self.total,
        }
        template = self.templates[layer]
        names = [
            self._renamed(name, call, layer, prepares=prepares)
            for prepares, positions in zip((True, False), self.traced.ranges(template))
            for call in self.program.calls[positions.start : positions.stop]
            for name in call.outputs
        ]
        return {name: bases[word] + calls for name, each in zip(names, ends) for word, calls in each}

    # calls

    def _renamed(self, name: str, call: AtenCall, layer: int, *, prepares: bool) -> str:
        """The name of a result of a template's call, in a layer of the whole."""
        shift = (self.prepared_shifts if prepares else self.shifts)[layer]
        return _renumbered(call.name, shift) + name[len(call.name) :] if name else ""

    def _copy(self, call: AtenCall, layer: int, *, prepares: bool) -> AtenCall:
        """A call of a template as the call of a layer of the whole."""
        template = self.templates[layer]

        def operand(value: Any) -> Any:
            if isinstance(value, Ref):
                return Ref(self._operand(str(value), template, layer))
            return type(value)(map(operand, value)) if isinstance(value, list | tuple) else value

        is_inside, rest = self.traced.inside(call.module, template)
        return AtenCall(
            self._renamed(call.name, call, layer, prepares=prepares),
            call.target,
            {key: operand(value) for key, value in call.arguments.items()},
            tuple(self._renamed(name, call, layer, prepares=prepares) for name in call.outputs),
            f"{self.stack.path}.{layer}{rest}" if is_inside else call.module,
        )

    def _operand(self, name: str, template: int, layer: int) -> str:
        """What a layer of the whole reads where its template reads a tensor."""
        source = self.traced.source(name, template)
        word = source[0]
        if word in ("own", "last", "prepared"):
            made_by = layer - (word == "last")
            ranges = self.traced.ranges(self.templates[made_by])
            call = self.program.calls[ranges[word != "prepared"][source[1]]]
            return self._renamed(call.outputs[source[2]], call, made_by, prepares=word == "prepared")
        if word == "weight":
            kind = {"parameter": "p_", "buffer": "b_"}[source[-1]]
            return kind + name_of_path(f"{self.stack.path}.{layer}.{source[1]}")
        if word == "input":
            return f"{source[1]}_{layer}_{source[2]}"
        if word == "constant":
            prepares, is_inside, path, number = source[1:5]
            path = f"{name_of_path(self.stack.path)}_{layer}{path}" if is_inside else path
            number += self.traced.offsets[self.traced.slot_of(template, prepares=prepares)][CONSTANT]
            return _constant_name(path, number + (self.prepared_shifts if prepares else self.shifts)[layer][CONSTANT])
        return self._elsewhere(name)

    def _copy_between(self, call: AtenCall, shift: Mapping[str, int]) -> AtenCall:
        """A call of no layer, with the numbers that it has in the whole."""

        def operand(value: Any) -> Any:
            if isinstance(value, Ref):
                need(self.traced.segment_of(str(value)) in (-1, self.traced.count - 1, self.traced.count), "outputs")
                return Ref(self._elsewhere(str(value)))
            return type(value)(map(operand, value)) if isinstance(value, list | tuple) else value

        name = _renumbered(call.name, shift)
        outputs = tuple(name + output[len(call.name) :] if output else "" for output in call.outputs)
        arguments = {key: operand(value) for key, value in call.arguments.items()}
        return AtenCall(name, call.target, arguments, outputs, call.module)

    def _elsewhere(self, name: str) -> str:
        """The name of a tensor for calls of other layers or of none: it is of no layer, of the first or of the last."""
        traced = self.traced
        if name in traced.paths:
            need(traced.owner(traced.paths[name]) < 0, "weights of layers")
        layer = traced.mine.get(name, traced.segment_of(name))
        if name in traced.mine:
            need(layer == 0, "inputs of layers")
            return self._operand(name, 0, 0)
        if name in traced.producers:
            if traced.is_early(name):
                return name
            call = self.program.calls[traced.producers[name][0]]
            need(layer in (-1, 0, traced.count - 1, traced.count), "outputs of layers")
            shift = self.between if layer == -1 else self.shifts[0 if layer == 0 else -1]
            return _renumbered(call.name, shift) + name[len(call.name) :]
        match = LIFTED.match(name)
        if match and name in traced.constants and not traced.is_early(name):
            is_behind = traced.constants[name] >= traced.starts[-1]
            return _constant_name(match[1], int(match[2]) + (self.shifts[-1] if is_behind else self.between)[CONSTANT])
        return name

    # tables

    def _listed(self, names: Sequence[str]) -> dict[str, str]:
        """Inputs, constants or outputs of the whole, each with the traced one that it is written from."""
        listed: dict[str, str] = {}
        row: list[list[str]] = []
        for layer, members in self.traced.listed(names):
            if layer < 0:
                listed |= {self._elsewhere(name): name for name in members}
                continue
            row.append(members)
            if len(row) == self.traced.count:
                for whole, template in enumerate(self.templates):
                    listed |= {self._operand(name, template, whole): name for name in row[template]}
                row = []
        return listed

    def _tensors(self, made: dict[str, Tensor]) -> dict[str, Tensor]:
        """All tensors, in the order of an export."""
        tensors = self.program.tensors
        by_kind: dict[str, list[str]] = {
            kind: [] for kind in ("parameter", "buffer", "constant", "input", "activation")
        }
        for name, tensor in tensors.items():
            by_kind[tensor.kind].append(name)
        need(list(tensors) == [name for names in by_kind.values() for name in names], "order of tensors")
        outputs = [name for call in self.program.calls for name in call.outputs if name in tensors]
        need(by_kind["activation"] == outputs and by_kind["input"] == list(self.program.inputs), "tensors")
        constants, inputs = self._listed(by_kind["constant"]), self._listed(by_kind["input"])
        copied = {new: replace(tensors[old], name=new) for new, old in (constants | inputs).items()}
        need(len(copied) == len(constants) + len(inputs), "names of inputs")
        return {name: tensors[name] for name in (*by_kind["parameter"], *by_kind["buffer"])} | copied | made

    def _names(self) -> Iterator[str]:
        """The names of the whole, in the order in which they were given out."""
        traced = self.traced
        names = list(dict.fromkeys(self.program.names))

        def given(slot: int, shift: Mapping[str, int]) -> Iterator[str]:
            for name in names[traced.name_bounds[slot] : traced.name_bounds[slot + 1]]:
                yield _renumbered(name, shift)

        yield from given(0, {})
        for layer, template in enumerate(self.templates):
            yield from given(traced.slot_of(template, prepares=True), self.prepared_shifts[layer])
        yield from given(traced.count + 1, self.between)
        for layer, template in enumerate(self.templates):
            yield from given(traced.slot_of(template, prepares=False), self.shifts[layer])


def _difference(more: Counter[str], less: Counter[str]) -> Counter[str]:
    """What one counter has more than another, also where it is less."""
    left = Counter(more)
    left.subtract(less)
    return left


def _constant_name(path: str, number: int) -> str:
    return f"c_{path}_{CONSTANT}_{number}" if path else f"c_{CONSTANT}_{number}"


def _renumbered(name: str, shift: Mapping[str, int]) -> str:
    """A name with greater numbers."""
    parts = []
    for part in name.split("/"):
        base, number = parsed(part)
        number += shift.get(base, 0)
        parts.append(f"{base}_{number}" if number or part != base else base)
    return "/".join(parts)

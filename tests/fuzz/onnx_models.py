"""Random ONNX models: likely operators on tensors of known shapes, and odd ones; control flow, functions, sequences."""

from random import Random
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from fuzz.onnx_values import (
    CONTRIB,
    ELEMENTWISE,
    FLOATS,
    INTEGERS,
    PRODUCERS,
    READERS,
    SCHEMAS,
    SIZES,
    TEXTS,
    USUAL,
)

Shape = tuple[int, ...]


class Maker:
    """Makes one graph: knows the names that are visible and, of most, the shapes."""

    def __init__(self, random: Random, prefix: str = "", outer: dict[str, Shape] | None = None) -> None:
        self.random, self.prefix = random, prefix
        self.shapes: dict[str, Shape] = dict(outer or {})
        self.sequences: list[str] = []
        self.nodes: list[NodeProto] = []
        self.weights: list[TensorProto] = []
        self.made: list[str] = []
        self.count = 0

    # ── pieces ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def name(self) -> str:
        self.count += 1
        return (
            f"{self.prefix}t{self.count}" if self.random.random() < 0.9 else f"{self.prefix}block.{self.count}.weight"
        )

    def shape(self, rank: int | None = None) -> Shape:
        sizes = SIZES if self.random.random() < 0.05 else USUAL
        return tuple(
            self.random.choice(sizes)
            for _ in range(self.random.choice((0, 1, 2, 2, 3, 3, 4, 4, 5)) if rank is None else rank)
        )

    def weight(self, *shape: int, values: Any = None) -> str:
        """A weight: with values, with external data, or with less data than its shape needs."""
        name = self.name()
        kind = self.random.choice(
            (TensorProto.FLOAT,) * 96 + (TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT8, TensorProto.BOOL)
        )
        if values is not None:
            self.weights.append(numpy_helper.from_array(np.array(values), name))
        else:
            tensor = TensorProto(name=name, dims=shape, data_type=kind)
            if self.random.random() < 0.9:
                tensor.data_location = TensorProto.EXTERNAL
                tensor.external_data.add(key="location", value=self.random.choice(("w.bin",) * 500 + ("../w.bin",)))
            self.weights.append(tensor)
        self.shapes[name] = tuple(shape) if values is None else np.shape(values)
        return name

    def any(self, rank: int | None = None) -> str:
        """The name of a visible tensor; most often a recent one."""
        fitting = [n for n, s in self.shapes.items() if rank is None or len(s) == rank]
        if not fitting:
            return self.weight(*self.shape(rank))
        return fitting[-1 - min(int(self.random.expovariate(0.5)), len(fitting) - 1)]

    def add(self, op: str, inputs: list[str], *shapes: Shape, domain: str = "", **attributes: Any) -> str:
        """Add a node; returns its first output."""
        outputs = [self.name() for _ in shapes]
        node = helper.make_node(
            op,
            inputs,
            outputs,
            name=self.random.choice((self.name(), "", f"/a/b.{self.count}/{op}")),
            domain=domain,
            **attributes,
        )
        if self.random.random() < 0.1:
            node.metadata_props.add(
                key="pkg.torch.onnx.fx_node",
                value=f"%n : target=torch.ops.aten.{self.random.choice(('gelu', 'layer_norm', 'x'))}.default",
            )
            node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'layer', 'layer.0', 'n']")
        self.nodes.append(node)
        self.shapes.update(zip(outputs, shapes))
        self.made += outputs
        return outputs[0] if outputs else ""

    # ── likely nodes ──────────────────────────────────────────────────────────────────────────────────────────────────

    def likely(self) -> None:
        self.random.choice(
            (self.elementwise, self.elementwise, self.binary, self.matmul, self.gemm, self.conv, self.norm,
             self.softmax, self.reshape, self.transpose, self.concat, self.split, self.slice, self.gather,
             self.pool, self.reduce, self.recurrent,
             self.attention, self.einsum, self.topk, self.resize, self.expand, self.arithmetic)
        )()  # fmt: skip

    def elementwise(self) -> None:
        source = self.any()
        op = self.random.choice(ELEMENTWISE)
        shape = self.shapes[source]
        if op == "Dropout" and self.random.random() < 0.3:
            self.add(op, [source], shape, shape)
        else:
            self.add(op, [source], shape, **({"to": self.random.choice((1, 10, 7, 9))} if op == "Cast" else {}))

    def binary(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        other = self.random.choice((source, self.weight(*shape[-1:]), self.weight(*shape), self.any()))
        self.add(self.random.choice(("Add", "Mul", "Sub", "Div", "Pow", "Max", "Where")), [source, other], shape)

    def matmul(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        width = self.random.choice(USUAL)
        if shape:
            product = self.add("MatMul", [source, self.weight(shape[-1], width)], (*shape[:-1], width))
            if self.random.random() < 0.5:
                self.add("Add", [product, self.weight(width)], (*shape[:-1], width))

    def gemm(self) -> None:
        source = self.any(2)
        rows, inner = self.shapes[source]
        width = self.random.choice(USUAL)
        self.add("Gemm", [source, self.weight(width, inner), self.weight(width)], (rows, width), transB=1)

    def conv(self) -> None:
        source = self.any(4)
        n, c, h, w = self.shapes[source]
        out, k, groups = self.random.choice(USUAL), self.random.choice((1, 3)), self.random.choice((1, 1, max(c, 1)))
        pads = [k // 2] * 4
        self.add(
            "Conv",
            [source, self.weight(out * groups, max(c, 1) // groups, k, k)],
            (n, out * groups, h, w),
            pads=pads,
            group=groups,
        )

    def norm(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        if len(shape) > 1 and self.random.random() < 0.5:
            self.add("BatchNormalization", [source, *(self.weight(shape[1]) for _ in range(4))], shape)
        elif shape:
            self.add("LayerNormalization", [source, self.weight(shape[-1]), self.weight(shape[-1])], shape, axis=-1)

    def softmax(self) -> None:
        source = self.any()
        self.add(
            self.random.choice(("Softmax", "LogSoftmax", "CumSum")),
            [source],
            self.shapes[source],
            axis=self.random.choice((-1, 0, 1)),
        )

    def reshape(self) -> None:
        source = self.any()
        shape = list(self.shapes[source])
        self.random.shuffle(shape)
        target = self.random.choice((shape, [-1], [0, -1], [*shape[:1], -1], list(self.shape())))
        self.add("Reshape", [source, self.weight(values=np.array(target, np.int64))], tuple(max(d, 0) for d in target))

    def transpose(self) -> None:
        source = self.any()
        order = list(range(len(self.shapes[source])))
        self.random.shuffle(order)
        self.add("Transpose", [source], tuple(self.shapes[source][a] for a in order), perm=order)

    def concat(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        if shape:
            axis = self.random.randrange(len(shape))
            self.add("Concat", [source] * 3, (*shape[:axis], 3 * shape[axis], *shape[axis + 1 :]), axis=axis)

    def split(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        if shape:
            self.add(
                "Split", [source], (shape[0] // 2, *shape[1:]), (shape[0] - shape[0] // 2, *shape[1:]), num_outputs=2
            )

    def slice(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        if shape:
            start, end, axis, step = (
                self.weight(values=np.array([v], np.int64))
                for v in (0, max(shape[0] - 1, 0), 0, self.random.choice((1, 1, 2, -1)))
            )
            self.add("Slice", [source, start, end, axis, step], (max(shape[0] - 1, 0), *shape[1:]))

    def gather(self) -> None:
        table = self.weight(*self.shape(2))
        index = self.weight(values=self.random.choice((np.int64(0), np.zeros(3, np.int64), np.zeros((2, 0), np.int64))))
        self.add("Gather", [table, index], (*self.shapes[index], self.shapes[table][1]))

    def pool(self) -> None:
        source = self.any(4)
        n, c, h, w = self.shapes[source]
        if self.random.random() < 0.3:
            self.add("GlobalAveragePool", [source], (n, c, 1, 1))
        else:
            self.add(
                self.random.choice(("MaxPool", "AveragePool")),
                [source],
                (n, c, max(h - 1, 0), max(w - 1, 0)),
                kernel_shape=[2, 2],
            )

    def reduce(self) -> None:
        source = self.any()
        self.add(
            self.random.choice(("ReduceMean", "ReduceSum", "ReduceL2", "ArgMax")),
            [source],
            self.shapes[source][:-1],
            keepdims=0,
        )

    def recurrent(self) -> None:
        source = self.any(3)
        steps, batch, width = self.shapes[source]
        op, hidden = self.random.choice((("LSTM", 4), ("GRU", 3), ("RNN", 1))), self.random.choice(USUAL)
        weights = [self.weight(1, op[1] * hidden, width), self.weight(1, op[1] * hidden, hidden)]
        self.add(op[0], [source, *weights], (steps, 1, batch, hidden), (1, batch, hidden), hidden_size=hidden)
        if self.random.random() < 0.3:
            self.nodes[-1].output[0] = ""

    def attention(self) -> None:
        source = self.any(4)
        mask = [self.weight(1, 1, 1, self.shapes[source][2])] if self.random.random() < 0.4 else []
        self.add("Attention", [source, source, source, *mask], self.shapes[source])

    def einsum(self) -> None:
        left, right = self.any(2), self.any(2)
        equation = self.random.choice(
            ("ij,jk->ik", "ij,kj->ik", "ij,jk", "...j,jk->...k", "ab,cd->abcd", "ii,jj->", "ij,ij->")
        )
        self.add("Einsum", [left, right], (self.shapes[left][0], self.shapes[right][1]), equation=equation)

    def topk(self) -> None:
        source = self.any()
        shape = self.shapes[source]
        k = self.weight(values=np.array([self.random.choice((0, 1, 2))], np.int64))
        self.add("TopK", [source, k], (*shape[:-1], 1), (*shape[:-1], 1))

    def resize(self) -> None:
        source = self.any(4)
        n, c, h, w = self.shapes[source]
        scales = self.weight(values=np.array([1, 1, 2, 2], np.float32))
        self.add(
            "Resize",
            [source, "", scales],
            (n, c, 2 * h, 2 * w),
            mode=self.random.choice(("nearest", "linear", "cubic")),
        )

    def expand(self) -> None:
        source = self.any()
        shape = (self.random.choice(USUAL), *self.shapes[source])
        if self.random.random() < 0.5:
            repeats = np.ones(len(shape) - 1, np.int64)
            self.add("Tile", [source, self.weight(values=repeats)], shape[1:])
        else:
            self.add("Expand", [source, self.weight(values=np.array(shape, np.int64))], shape)

    def arithmetic(self) -> None:
        source = self.any()
        shape = self.add("Shape", [source], (len(self.shapes[source]),))
        op = self.random.choice(("ReduceProd", "Cast", "Neg", "ConstantOfShape", "Range", "Size", "Unsqueeze"))
        self.add(op, [shape], (1,), **({"to": 7} if op == "Cast" else {}))

    # ── odd nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def odd(self) -> None:
        """Any operator with any inputs, attributes and outputs."""
        random = self.random
        domain = random.choice(("", "", "", "com.microsoft", "com.microsoft.nchwc", "com.example", "ai.onnx.ml"))
        op = random.choice(CONTRIB) if domain.startswith("com") and random.random() < 0.8 else random.choice(SCHEMAS)
        inputs = [
            random.choice((self.any(), self.any(), self.weight(*self.shape()), ""))
            for _ in range(random.choice((0, 1, 1, 2, 2, 3, 4, 6)))
        ]
        self.add(
            op, inputs, *(self.shape() for _ in range(random.choice((1,) * 20 + (2,) * 6 + (0, 3)))), domain=domain
        )
        node = self.nodes[-1]
        for name, kind in self._attributes(op):
            if random.random() < 0.6:
                node.attribute.append(self.attribute(name, kind))
        if random.random() < 0.1 and node.output:
            node.output[random.randrange(len(node.output))] = ""

    def _attributes(self, op: str) -> list[tuple[str, int]]:
        try:
            schema = onnx.defs.get_schema(op, 18, "")
        except onnx.defs.SchemaError:
            schema = None
        known = [(n, int(a.type.value)) for n, a in schema.attributes.items()] if schema else []
        usual = [
            ("axis", 2), ("axes", 7), ("num_heads", 2), ("kv_num_heads", 2), ("hidden_size", 2), ("k", 2), ("N", 2),
            ("kernel_shape", 7), ("perm", 7), ("inplace", 2), ("trips", 2), ("equation", 3),
        ]  # fmt: skip
        return [*known, self.random.choice(usual)]

    def attribute(self, name: str, kind: int) -> AttributeProto:
        """An attribute of a type, or now and then of another one."""
        random = self.random
        kind = kind if random.random() < 0.95 else random.choice((1, 2, 3, 4, 5, 6, 7, 8, 11))
        entry = AttributeProto(name=name, type=kind)
        if kind == AttributeProto.INT:
            entry.i = random.choice(INTEGERS)
        elif kind == AttributeProto.FLOAT:
            entry.f = random.choice(FLOATS)
        elif kind == AttributeProto.STRING:
            entry.s = random.choice(TEXTS).encode() if random.random() < 0.95 else b"\xff\xfe"
        elif kind == AttributeProto.INTS:
            entry.ints.extend(
                random.choice(INTEGERS if random.random() < 0.3 else (0, 1, 2, 3)) for _ in range(random.randrange(6))
            )
        elif kind == AttributeProto.FLOATS:
            entry.floats.extend(random.choice(FLOATS) for _ in range(random.randrange(6)))
        elif kind == AttributeProto.STRINGS:
            entry.strings.extend(random.choice(TEXTS).encode() for _ in range(random.randrange(4)))
        elif kind == AttributeProto.TENSOR:
            entry.t.CopyFrom(numpy_helper.from_array(np.array(random.choice(INTEGERS)), "v"))
        elif kind == AttributeProto.GRAPH:
            entry.g.CopyFrom(self.body(random.randrange(3)))
        return entry

    # ── sub-graphs and sequences ──────────────────────────────────────────────────────────────────────────────────────

    def body(self, inputs: int, outputs: int = 1, nodes: int = 2) -> GraphProto:
        """A sub-graph that may read the tensors around it."""
        inner = Maker(self.random, f"{self.prefix}{self.name()}_", self.shapes if len(self.prefix) < 12 else None)
        entries = []
        for _ in range(inputs):
            name = inner.name()
            inner.shapes[name] = self.shape()
            entries.append(_info(name, inner.shapes[name]))
        inner.fill(nodes)
        results = [inner.any() for _ in range(outputs)]
        return helper.make_graph(
            inner.nodes, f"{self.prefix}body", entries, [_info(r, inner.shapes[r]) for r in results], inner.weights
        )

    def control(self) -> None:
        random = self.random
        kind = random.choice(("If", "Loop", "Scan"))
        source = self.any()
        if kind == "If":
            condition = self.random.choice((self.weight(values=np.array(True)), self.any(0)))
            self.add("If", [condition], self.shape(), then_branch=self.body(0), else_branch=self.body(0))
        elif kind == "Loop":
            trips = random.choice((self.weight(values=np.array(random.choice(INTEGERS), np.int64)), "", self.any(0)))
            self.add("Loop", [trips, "", source], self.shapes[source], body=self.body(3, 2))
        else:
            shape = self.shapes[source]
            self.add("Scan", [source], shape, body=self.body(1), num_scan_inputs=random.choice((1, 1, 1, 0, 2, 2**31)))

    def sequence(self) -> None:
        random = self.random
        source = self.any()
        shape = self.shapes[source]
        sequence = random.choice(self.sequences) if self.sequences and random.random() < 0.7 else self.name()
        if sequence not in self.sequences:
            op = random.choice(("SequenceConstruct", "SequenceEmpty", "SplitToSequence", "Optional"))
            inputs = {"SequenceEmpty": [], "SequenceConstruct": [source] * random.randrange(4)}.get(op, [source])
            if op == "SplitToSequence" and random.random() < 0.6:
                inputs.append(
                    self.weight(
                        values=random.choice(
                            (np.int64(1), np.int64(0), np.array([1, 1]), np.int64(-1), np.zeros(0, np.int64))
                        )
                    )
                )
            self.nodes.append(helper.make_node(op, inputs, [sequence]))
            self.sequences.append(sequence)
            return
        at = self.weight(values=np.array(random.choice((0, 1, -1, 9)), np.int64))
        op = random.choice(READERS)
        if op in ("SequenceInsert", "SequenceErase"):
            self.nodes.append(
                helper.make_node(
                    op, [sequence, source, at] if op == "SequenceInsert" else [sequence, at], [self.name()]
                )
            )
            self.sequences.append(self.nodes[-1].output[0])
        else:
            self.add(
                op,
                [sequence, at] if op == "SequenceAt" else [sequence],
                shape,
                **(
                    {"axis": random.choice((0, 1, -1)), "new_axis": random.randrange(2)}
                    if op == "ConcatFromSequence"
                    else {}
                ),
            )

    def fill(self, count: int) -> None:
        """Add so many nodes."""
        for _ in range(count):
            draw = self.random.random()
            if draw < 0.85:
                self.likely()
            elif draw < 0.93:
                self.odd()
            elif draw < 0.96:
                self.sequence()
            else:
                self.control()


def _info(name: str, shape: tuple[Any, ...], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def make_model(random: Random) -> ModelProto:
    """A random model; most of them are nearly right."""
    maker = Maker(random)
    entries = []
    for _ in range(random.choice((0, 1, 1, 1, 2, 3))):
        name, shape = maker.name(), maker.shape()
        maker.shapes[name] = shape
        listed: list[Any] = list(shape)
        if listed and random.random() < 0.4:
            listed[0] = random.choice(("batch", "N", "seq", "2*s", ""))
        entries.append(_info(name, tuple(listed), random.choice((1,) * 60 + (7, 10, 9, 99))))
    maker.fill(random.choice((1, 2, 3, 5, 8, 13, 30)))
    outputs = [
        _info(n, maker.shapes.get(n, ()))
        for n in dict.fromkeys([*maker.made[-1:], *(random.choices(maker.made, k=2) if maker.made else [])])
    ]
    if random.random() < 0.1:
        random.shuffle(maker.nodes)
    graph = helper.make_graph(
        maker.nodes, random.choice(("g", "", "PaddlePaddle Graph 0")), entries, outputs, maker.weights
    )
    if random.random() < 0.5:
        graph.value_info.extend(_info(n, s) for n, s in maker.shapes.items() if random.random() < 0.5)
    opset = random.choice((18,) * 8 + (23,) * 8 + (20, 21, 13, 11, 9, 7, 1))
    domains = ("com.microsoft", "com.microsoft.nchwc", "com.example", "ai.onnx.ml", "local")
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name=random.choice(PRODUCERS))
    if random.random() < 0.15:
        _add_functions(model, random)
    return model


def _add_functions(model: ModelProto, random: Random) -> None:
    """Functions that call each other, and nodes that call them."""
    for number in range(3):
        maker = Maker(random, "f", {"a": (2, 3)})
        maker.fill(random.choice((1, 2, 4)))
        nodes = [*maker.nodes, helper.make_node("Identity", [maker.any()], ["b"])]
        nodes = [n for n in nodes if all(i in {"a", *maker.made} for i in n.input)] or [
            helper.make_node("Relu", ["a"], ["b"])
        ]
        if random.random() < 0.3:
            nodes.append(
                helper.make_node(
                    f"F{random.choice((number + 1, number + 1, number + 2, random.randrange(4)))}",
                    ["a"],
                    ["c"],
                    domain="local",
                )
            )
        model.functions.append(helper.make_function("local", f"F{number}", ["a"], ["b"], nodes, model.opset_import))
    names = [i.name for i in model.graph.input]
    if names:
        model.graph.node.append(helper.make_node("F0", names[:1], ["called"], domain="local"))

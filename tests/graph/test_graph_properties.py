"""Laws that hold for every graph, tried on random ones."""

from dataclasses import fields, replace
from math import prod

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from foretell.graph import Cost, Graph, Node, Tensor, graph_costs, inference_peak, run_groups, training_peak
from foretell.graph.cost.node_costs import total
from foretell.graph.ir import serde
from foretell.graph.ir.batch import mark_batch_axes
from foretell.graph.ir.layout import layouts
from foretell.graph.ir.passes import autocast, fold_constants, remove_identities
from foretell.graph.ir.patterns import tie_patterns
from foretell.graph.memory.allocator import rounded
from foretell.graph.memory.liveness import cached_peak, inference_tape, state_bytes, working_blocks
from foretell.units import MIB

BATCH = 11  # a size that no other axis has
COUNTS = ("macs", "flops", "tensor_core_macs", "activation_bytes", "bytes_written")
OPERATORS = [
    "Conv",
    "Relu",
    "Gelu",
    "Add",
    "Mul",
    "MatMul",
    "Gemm",
    "Reshape",
    "Transpose",
    "Concat",
    "ReduceMean",
    "MaxPool",
    "Softmax",
    "Identity",
    "Slice",
    "Cast",
]

laws = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """A random DAG of valid shapes, its batch on axis 0 of the input."""
    tensors: dict[str, Tensor] = {}
    nodes: list[Node] = []
    live: list[str] = []

    def enter(
        name: str, shape: tuple[int, ...], kind: str = "activation", dtype: str = "fp32", axis: int | None = None
    ) -> str:
        tensors[name] = Tensor(name, shape, dtype, kind, axis)  # type: ignore[arg-type]
        return name

    live.append(enter("x", (BATCH, *draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))), "input", axis=0))
    for number in range(draw(st.integers(1, 10))):
        name = f"n{number}"
        source = draw(st.sampled_from(live))
        shape = tensors[source].shape
        op = draw(st.sampled_from(OPERATORS))
        inputs, attributes, out = [source], {}, shape
        if op == "Conv" and len(shape) == 4:
            channels, kernel = draw(st.integers(1, 4)), draw(st.integers(1, min(shape[2:])))
            inputs.append(enter(f"{name}.weight", (channels, shape[1], kernel, kernel), "parameter"))
            out = (shape[0], channels, shape[2] - kernel + 1, shape[3] - kernel + 1)
        elif op in ("Add", "Mul"):
            same = [n for n in live if tensors[n].shape == shape]
            other = draw(st.sampled_from([*same, f"{name}.scale"]))
            inputs.append(other if other in tensors else enter(other, shape[1:], "parameter"))
        elif op in ("MatMul", "Gemm") and len(shape) > 1:
            width = draw(st.integers(1, 5))
            weight = (width, shape[-1]) if op == "Gemm" else (shape[-1], width)
            inputs.append(enter(f"{name}.weight", weight, "parameter"))
            attributes, out = {"transB": 1} if op == "Gemm" else {}, (*shape[:-1], width)
        elif op == "Reshape":
            out = (shape[0], prod(shape[1:])) if draw(st.booleans()) else (*shape, 1)
        elif op == "Transpose":
            perm = (0, *draw(st.permutations(range(1, len(shape)))))
            attributes, out = {"perm": perm}, tuple(shape[p] for p in perm)
        elif op == "Concat" and len(shape) > 1:
            inputs.append(source)
            attributes, out = {"axis": 1}, (shape[0], 2 * shape[1], *shape[2:])
        elif op == "ReduceMean" and len(shape) > 1:
            axis = draw(st.integers(1, len(shape) - 1))
            attributes, out = {"axes": (axis,), "keepdims": 1}, (*shape[:axis], 1, *shape[axis + 1 :])
        elif op == "MaxPool" and len(shape) == 4 and min(shape[2:]) > 1:
            attributes, out = {"kernel_shape": (2, 2), "strides": (1, 1)}, (*shape[:2], shape[2] - 1, shape[3] - 1)
        elif op == "Slice" and len(shape) > 1 and shape[1] > 1:
            attributes, out = {"axes": (1,), "steps": (1,)}, (shape[0], shape[1] - 1, *shape[2:])
        elif op in ("Gelu", "Softmax", "Identity", "Cast"):
            pass
        else:
            op = "Relu"
            attributes = {"inplace": draw(st.integers(0, 1))}
        module = draw(st.sampled_from(["", "a", "a.b", "a.c", "d"]))
        origin = draw(st.sampled_from(["", "", "one", "two"]))
        nodes.append(
            Node(name, op, tuple(inputs), (enter(f"{name}.out", out),), attributes, module=module, origin=origin)
        )
        live.append(f"{name}.out")
    read = {i for node in nodes for i in node.inputs}
    ends = [n for n in live if n not in read and n != "x"]
    return mark_batch_axes(Graph.build("random", nodes, tensors, ["x"], ends, batch_size=BATCH))


def renamed(graph: Graph) -> Graph:
    """Other names for every tensor, node and module."""
    new = {name: f"t{i}" for i, name in enumerate(sorted(graph.tensors, reverse=True))}
    tensors = {new[n]: replace(t, name=new[n]) for n, t in graph.tensors.items()}
    nodes = [
        replace(
            n,
            name=f"k{i}",
            inputs=tuple(new[x] for x in n.inputs),
            outputs=tuple(new[x] for x in n.outputs),
            module="",
            origin="",
        )
        for i, n in enumerate(graph.nodes)
    ]
    return Graph.build(
        "other",
        nodes,
        tensors,
        [new[n] for n in graph.inputs],
        [new[n] for n in graph.outputs],
        batch_size=graph.batch_size,
    )


def reordered(graph: Graph, draw: st.DrawFn) -> Graph:
    """The nodes in another order in which they can run."""
    ready, left, nodes = {n for n, t in graph.tensors.items() if t.kind != "activation"}, list(graph.nodes), []
    while left:
        node = draw(st.sampled_from([n for n in left if ready.issuperset(n.inputs)]))
        left.remove(node)
        nodes.append(node)
        ready.update(node.outputs)
    return replace(graph, nodes=tuple(nodes))


@laws
@given(graphs())
def test_costs_are_additive(graph: Graph) -> None:
    table = graph_costs(graph)
    assert table.total == total(table.nodes)
    assert table.total.parameters == graph.parameter_count
    assert total(cost for _, cost in table.by_operator().values()) == table.total
    assert sum(count for count, _ in table.by_operator().values()) == len(graph.nodes)
    tops = table.by_module(depth=1)
    outside = total(c for n, c in zip(graph.nodes, table.nodes) if not n.module)
    assert total(cost for _, cost in tops.values()) + outside == table.total
    groups = run_groups(table)
    assert sorted(p for g in groups for p in g.nodes) == list(range(len(graph.nodes)))
    for name in ("macs", "flops", "parameters", "parameter_bytes", "tensor_core_macs"):
        assert sum(getattr(g.cost, name) for g in groups) == getattr(table.total, name)
    assert sum(g.cost.bytes_written for g in groups) <= table.total.bytes_written
    assert all(getattr(c, f.name) >= 0 for c in table.nodes for f in fields(Cost))


@laws
@given(graphs(), st.integers(1, 40))
def test_costs_are_linear_in_the_batch(graph: Graph, batch: int) -> None:
    one, many = graph_costs(graph.with_batch(1)).total, graph_costs(graph.with_batch(batch)).total
    for name in COUNTS:
        assert getattr(many, name) == batch * getattr(one, name)
    assert (many.parameters, many.parameter_bytes) == (one.parameters, one.parameter_bytes)
    assert many.bytes_read - one.bytes_read == (batch - 1) * (
        graph_costs(graph.with_batch(2)).total.bytes_read - one.bytes_read
    )


@laws
@given(graphs(), st.integers(1, 40), st.integers(1, 40))
def test_rescaling_a_batch_twice_equals_rescaling_once(graph: Graph, first: int, second: int) -> None:
    assert graph.with_batch(first).with_batch(second) == graph.with_batch(second)
    assert graph.with_batch(first).with_batch(BATCH) == graph


@laws
@given(graphs(), st.data())
def test_the_hash_is_of_the_computation(graph: Graph, data: st.DataObject) -> None:
    assert renamed(graph).hash == graph.hash
    assert reordered(graph, data.draw).hash == graph.hash  # type: ignore[arg-type]
    position = data.draw(st.integers(0, len(graph.nodes) - 1))
    node = graph.nodes[position]

    def with_node(changed: Node) -> Graph:
        return replace(graph, nodes=(*graph.nodes[:position], changed, *graph.nodes[position + 1 :]))

    assert with_node(replace(node, attributes={**node.attributes, "extra": 1})).hash != graph.hash
    assert with_node(replace(node, op="Other")).hash != graph.hash
    name = data.draw(st.sampled_from([*graph.inputs, *node.outputs, *node.inputs]))
    tensor = graph.tensors[name]
    for changed in (replace(tensor, dtype="fp16"), replace(tensor, shape=(*tensor.shape, 2))):
        assert replace(graph, tensors={**graph.tensors, name: changed}).hash != graph.hash
    assert graph.with_batch(BATCH + 1).hash != graph.hash


@laws
@given(graphs())
def test_files_hold_everything(graph: Graph) -> None:
    data = serde.to_bytes(graph)
    again = serde.from_bytes(data)
    assert again == graph
    assert serde.to_bytes(again) == data


@laws
@given(graphs())
def test_passes_keep_the_work(graph: Graph) -> None:
    before = graph_costs(graph).total
    for changed in (remove_identities(graph), fold_constants(graph), tie_patterns(graph), autocast(graph, "bf16")):
        changed.validate()
        after = graph_costs(changed).total
        assert changed.outputs == graph.outputs
        assert changed.parameter_count == graph.parameter_count
        assert after.macs == before.macs
        assert all(changed.tensors[o].shape == graph.tensors[o].shape for o in graph.outputs)
    assert graph_costs(remove_identities(graph)).total.flops == before.flops
    assert tie_patterns(graph).hash == graph.hash


@laws
@given(graphs(), st.integers(1, 30))
def test_peaks_are_bounded_and_grow_with_the_batch(graph: Graph, batch: int) -> None:
    peak, state = inference_peak(graph), state_bytes(graph)
    assert peak.state_bytes == state <= peak.bytes
    for node in graph.nodes:
        activations = {n for n in (*node.inputs, *node.outputs) if graph.tensors[n].kind in ("activation", "input")}
        own = {
            n
            for n in activations
            if not any(
                m.op in ("Reshape", "Transpose", "Slice", "Identity") or "inplace" in m.attributes
                for m in graph.nodes
                if n in m.outputs
            )
        }
        assert state + sum(rounded(graph.tensors[n].bytes) for n in own) <= peak.bytes
    everything = sum(rounded(t.bytes) for t in graph.tensors.values())
    working = (working_blocks(graph, node, layouts(graph)) for node in graph.nodes)
    beside = max((sum(map(rounded, blocks)) for blocks in working), default=0)
    assert peak.bytes <= everything + beside
    cached = cached_peak(graph, inference_tape(graph))
    assert peak.bytes <= cached.bytes <= peak.bytes + len(graph.tensors) * MIB  # at most 1 MiB too much a block
    training = training_peak(graph)
    assert training.bytes >= training.state_bytes >= state
    assert inference_peak(graph.with_batch(batch)).bytes <= inference_peak(graph.with_batch(batch + 1)).bytes
    assert training_peak(graph.with_batch(batch)).bytes <= training_peak(graph.with_batch(batch + 1)).bytes


@pytest.mark.slow
def test_a_chain_of_a_hundred_thousand_nodes() -> None:
    """Nothing recurses along the graph, nothing is quadratic in its length."""
    tensors = {"t0": Tensor("t0", (BATCH, 8), kind="input", batch_axis=0), "w": Tensor("w", (8, 8), kind="parameter")}
    nodes = []
    for i in range(100_000):
        op = ("MatMul", "Softmax", "Sigmoid", "Identity")[i % 4]
        inputs = (f"t{i}", "w") if op == "MatMul" else (f"t{i}",)
        nodes.append(
            Node(f"n{i}", op, inputs, (f"t{i + 1}",), module=f"blocks.{i // 40}.fc", origin="one" if i % 2 else "")
        )
        tensors[f"t{i + 1}"] = Tensor(f"t{i + 1}", (BATCH, 8))
    graph = mark_batch_axes(Graph.build("long", reversed(nodes), tensors, ["t0"], ["t100000"], batch_size=BATCH))
    assert serde.from_bytes(serde.to_bytes(graph)).hash == graph.hash
    table = graph_costs(graph.with_batch(2))
    assert table.total.macs == 25_000 * 2 * 64
    assert sum(g.cost.macs for g in run_groups(table)) == table.total.macs
    assert training_peak(graph).bytes > inference_peak(graph).bytes > 0
    assert len(remove_identities(graph).nodes) == 75_001

"""Peaks of a training step, in blocks of 512 bytes, and against live tensors counted in torch."""

import weakref
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from foretell.graph import Graph, Node, training_peak
from foretell.graph.memory.allocator import BLOCK_BYTES, Tape
from foretell.graph.memory.training import optimizer_states, training_tape
from foretell.testing import chain, tiny_graph

ONE = (128,)


def blocks(graph: Graph, optimizer: str = "sgd") -> int:
    return training_peak(graph, optimizer).bytes // 512


def perceptron() -> Graph:
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Mul", ("b", "w2"), ("c",)),
    ]
    return chain(nodes, dict.fromkeys(["x", "w1", "w2", "a", "b", "c"], ONE), ["x"], ["c"])


def test_by_hand() -> None:
    # held all the time: x, w1, w2 and a momentum for each weight: 5.
    # forward: `a` dies once `b` is made; `b` is saved by the ReLU and by the second product.
    # the loss, a mean square: b, its input c, three factors and the gradient: 5 + 6 = 11
    graph = perceptron()
    assert training_peak(graph).state_bytes == 4 * 512
    assert blocks(graph) == 11
    assert training_peak(graph).node == "loss"
    assert blocks(graph, "adamw") == 13


def test_the_update_may_be_the_peak() -> None:
    nodes = [Node("a", "MatMul", ("x", "w"), ("y",))]
    graph = chain(nodes, {"x": (1, 512), "w": (512, 512), "y": (1, 512)}, ["x"], ["y"])
    weights = 512 * 512 * 4
    peak = training_peak(graph, "adamw")
    assert peak.node == "adamw update"
    assert peak.bytes == 5 * weights + 2048  # weights, two states, the gradient, a temporary; and the input


def test_a_residual_shares_its_gradient() -> None:
    def graph(op: str) -> Graph:
        nodes = [
            Node("a", "Mul", ("x", "w1"), ("a",)),
            Node("b", "Identity", ("a",), ("b",)),
            Node("c", op, ("a", "b"), ("c",)),
        ]
        return chain(nodes, dict.fromkeys(["x", "w1", "a", "b", "c"], ONE), ["x"], ["c"])

    assert blocks(graph("Add")) < blocks(graph("Max"))


def test_training_takes_more_than_inference_and_grows_with_the_batch() -> None:
    from foretell.graph import inference_peak

    graph = tiny_graph()
    assert training_peak(graph).bytes > inference_peak(graph).bytes
    assert training_peak(graph.with_batch(8)).bytes > training_peak(graph).bytes
    assert training_peak(graph, "adamw").state_bytes > training_peak(graph, "sgd").state_bytes


# ── against torch ─────────────────────────────────────────────────────────────────────────────────────────────────────


def live_peak(torch: Any, module: Any, inputs: Any) -> int:
    """The largest sum of storages alive during the second of two training steps, each rounded as an allocator does."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from foretell.graph.memory.allocator import rounded

    class Tracker(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.live: dict[int, Any] = {}
            self.now = self.peak = 0

        def see(self, tensor: Any) -> None:
            storage = tensor.untyped_storage()
            key, size = storage._cdata, rounded(storage.nbytes())
            if key not in self.live:
                self.live[key] = weakref.ref(storage, lambda _: self.forget(key, size))
                self.now += size

        def forget(self, key: int, size: int) -> None:
            del self.live[key]
            self.now -= size

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function is torch.ops.aten.sum.dim_IntList and args[0].dtype is torch.bool:
                # the kernel copies its input, below what a dispatch mode sees: test_a_sum_of_a_mask_copies_it
                self.peak = max(self.peak, self.now + rounded(8 * args[0].numel()) + rounded(8 * len(args[0])))
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, list | tuple) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.see(tensor)
            self.peak = max(self.peak, self.now)
            return result

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=True)
    labels = torch.zeros(len(inputs), dtype=torch.int64)

    def loss_of(output: Any) -> Any:  # as in foretell.profiling.steps
        scores = output[0] if isinstance(output, tuple) else output
        if scores.ndim == 2:
            return torch.nn.functional.cross_entropy(scores, labels)
        return scores.float().square().mean()

    with Tracker() as tracker:
        for tensor in (*module.parameters(), *module.buffers(), inputs):
            tracker.see(tensor)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            tracker.peak = 0
            loss_of(module(inputs)).backward()
            optimizer.step()
    return tracker.peak


@pytest.mark.parametrize("inplace", [False, True])
@pytest.mark.filterwarnings("ignore")
def test_peak_is_that_of_live_tensors(inplace: bool) -> None:
    torch = pytest.importorskip("torch")
    from torch import nn

    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    module = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(inplace=inplace), nn.Conv2d(16, 16, 3, padding=1),
        nn.BatchNorm2d(16), nn.ReLU(inplace=inplace), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16 * 64, 32), nn.GELU(),
        nn.Linear(32, 10),
    )  # fmt: skip
    true = live_peak(torch, module.train(), torch.zeros(8, 3, 16, 16))
    program = TorchProgram("net", module.to("meta"), (torch.empty(8, 3, 16, 16, device="meta"),))
    predicted = training_peak(graph_from_program(program, batch_size=8, training=True))
    assert predicted.bytes == pytest.approx(true, rel=0.03)


def networks(torch: Any) -> dict[str, tuple[Any, Any]]:
    """Small networks, each with one thing that a step may hold, and an input."""
    from torch import nn

    class Largest(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lift, self.out = nn.Linear(8, 64), nn.Linear(64, 4)

        def forward(self, x: Any) -> Any:
            return self.out(self.reduced(self.lift(x)))

        def reduced(self, h: Any) -> Any:
            return h.amax(dim=1)

    class Einsum(Largest):
        def reduced(self, h: Any) -> Any:
            return torch.einsum("bnc,bnc->bc", h.sigmoid(), h.tanh())

    class TwoOutputs(Largest):
        def forward(self, x: Any) -> Any:
            h = self.lift(x)
            return h, h.sigmoid(), h.tanh()

    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(500, 16), nn.Linear(16, 500)

        def forward(self, tokens: Any) -> Any:
            return self.out(self.words(tokens))

    rows = torch.zeros(4, 256, 8)
    return {
        "amax": (Largest(), rows),
        "einsum": (Einsum(), rows),
        "outputs": (TwoOutputs(), rows),
        "language": (Language(), torch.zeros(2, 64, dtype=torch.int64)),
    }


@pytest.mark.parametrize("name", ["amax", "einsum", "outputs", "language"])
@pytest.mark.filterwarnings("ignore")
def test_peak_of_small_networks_is_that_of_live_tensors(name: str) -> None:
    torch = pytest.importorskip("torch")
    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    module, inputs = networks(torch)[name]
    true = live_peak(torch, module.train(), inputs)
    program = TorchProgram("net", module.to("meta"), (inputs.to("meta"),))
    predicted = training_peak(graph_from_program(program, batch_size=len(inputs), training=True))
    assert predicted.bytes == pytest.approx(true, rel=0.01)


def test_a_sum_of_a_mask_copies_it() -> None:
    torch = pytest.importorskip("torch")
    mask = torch.ones(1000, 3, dtype=torch.bool)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        mask.sum(dim=(0,), keepdim=True)
    copies = [event.cpu_memory_usage for event in profile.function_events if event.name == "aten::_to_copy"]
    assert copies == [8 * mask.numel()]


# ── what a step takes and gives back, in order, in blocks of 512 bytes ────────────────────────────────────────────────


def story(tape: Tape) -> dict[str, list[float]]:
    """For each node the blocks that are taken, and below zero those that are given back."""
    steps: dict[str, list[float]] = {}
    sizes: list[float] = []
    for node, (start, end) in zip(tape.nodes, pairwise([*tape.starts, len(tape.events)]), strict=True):
        steps[node] = []
        for event in tape.events[start:end]:
            if event >= 0:
                sizes.append(event / BLOCK_BYTES)
            steps[node].append(sizes[-1] if event >= 0 else -sizes[~event])
    return steps


def test_allocations_of_a_training_step() -> None:
    assert story(training_tape(perceptron(), "adamw")) == {
        "a": [1],
        "b": [1, -1],  # the ReLU saves its result
        "c": [1],
        "loss": [1, -1, 1, 1, 1, 1, -1, -1, -1, -1],  # the square; three factors, the gradient; the output dies
        "c (backward)": [1, 1, -1],
        "b (backward)": [1, -1, -1],
        "a (backward)": [1, -1],  # nobody asks for the gradient of the input
        "adamw update": [1, 1, -1, -1, -1, -1],  # a temporary for each weight, then the gradients
    }
    assert story(training_tape(perceptron(), "sgd"))["sgd update"] == [-1, -1]


def test_a_loss_works_in_full_precision() -> None:
    steps = story(training_tape(perceptron().with_dtype("fp16"), "sgd"))
    # saved, its square, the output dies, three factors and their product, and the gradient in half precision
    assert steps["loss"] == [1, 1, -1, -0.5, 1, 1, 1, 1, -1, -1, -1, -1, -1, 0.5]
    assert steps["c (backward)"] == [0.5, 0.5, -0.5]


def test_an_output_named_twice_has_one_loss_and_one_without_gradient_none() -> None:
    nodes = [Node("a", "Mul", ("x", "w"), ("a",)), Node("b", "Relu", ("x",), ("b",))]
    graph = chain(nodes, dict.fromkeys(["x", "w", "a", "b"], ONE), ["x"], ["a", "b", "a"])
    # the square; the output without a loss dies; three factors, the gradient; the other output dies with them
    assert story(training_tape(graph, "sgd"))["loss"] == [1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1]


def test_a_weight_that_is_used_twice_keeps_one_gradient() -> None:
    nodes = [Node("a", "Mul", ("x", "w"), ("a",)), Node("b", "Mul", ("a", "w"), ("b",))]
    steps = story(training_tape(chain(nodes, dict.fromkeys(["x", "w", "a", "b"], ONE), ["x"], ["b"]), "sgd"))
    assert steps["b (backward)"] == [1, 1, -1, -1]  # of `a` and of the weight; what came in; `a` itself
    assert steps["a (backward)"] == [1, -1, -1]  # the second gradient of the weight is added to the first
    assert steps["sgd update"] == [-1]


def test_summing_into_a_shared_gradient_allocates_a_new_one() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("b", "Relu", ("a",), ("b",)),
        Node("c", "Add", ("a", "b"), ("c",)),
    ]
    steps = story(training_tape(chain(nodes, dict.fromkeys(["x", "w1", "a", "b", "c"], ONE), ["x"], ["c"]), "sgd"))
    assert steps["c (backward)"] == []  # both operands take the gradient that came in
    assert steps["b (backward)"] == [1, 1, -1, -1, -1]
    own = [*nodes[:2], Node("d", "Silu", ("a",), ("d",)), Node("c", "Max", ("d", "b"), ("c",))]
    steps = story(training_tape(chain(own, dict.fromkeys(["x", "w1", *"abcd"], ONE), ["x"], ["c"]), "sgd"))
    assert steps["c (backward)"] == [1, 1, -1, -1]  # a new one for each, and the saved one dies; `b` is still needed
    assert steps["d (backward)"] == [1, -1, -1]  # nobody needs `a` any more
    assert steps["b (backward)"] == [1, -1, -1, -1]  # added to the one that is there


def test_the_gradient_of_a_broadcast_operand_is_large_until_it_is_summed() -> None:
    def gradient_sizes(op: str) -> list[float]:
        nodes = [Node("a", "Mul", ("x", "w1"), ("a",)), Node("b", op, ("a", "w2"), ("b",))]
        shapes = {"x": (4, 128), "w1": (4, 128), "a": (4, 128), "w2": (128,), "b": (4, 128)}
        return story(training_tape(chain(nodes, shapes, ["x"], ["b"]), "sgd"))["b (backward)"]

    assert gradient_sizes("Mul") == [4, 4, 1, -4, -4, -4]
    assert gradient_sizes("Add") == [1]  # summed at once; the other operand's gradient is the one that came in
    assert gradient_sizes("Mean") == [4, 1, -4]


def test_an_operand_of_a_shorter_type_is_not_broadcast() -> None:
    nodes = [Node("a", "Mul", ("x", "w1"), ("a",)), Node("b", "Mul", ("a", "w2"), ("b",))]
    graph = chain(nodes, dict.fromkeys(["x", "w1", "a", "w2", "b"], (256,)), ["x"], ["b"])
    shorter = {"w2": replace(graph.tensors["w2"], dtype="bf16")}
    steps = story(training_tape(replace(graph, tensors={**graph.tensors, **shorter}), "sgd"))
    assert steps["b (backward)"][:2] == [2, 1]  # at once as large as it stays
    assert -2 not in steps["b (backward)"][:2]


def test_indices_and_views() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("b", "MaxPool", ("a",), ("b",), {"kernel_shape": (2, 2)}),
        Node("v", "Reshape", ("b",), ("v",)),
    ]
    large = dict.fromkeys(["x", "w1", "a"], (1, 1, 32, 32))
    steps = story(training_tape(chain(nodes, {**large, "b": (1, 1, 16, 16), "v": (1, 256)}, ["x"], ["v"]), "sgd"))
    assert steps["b"] == [2, 4]  # the result and its indices, which are kept
    assert steps["v"] == steps["v (backward)"] == []
    assert steps["b (backward)"] == [8, -2, -4, -8]


def test_an_in_place_input_is_cloned_and_both_halves_are_saved() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("b", "Silu", ("a",), ("b",), {"inplace": 1}),
        Node("s", "Split", ("b",), ("s1", "s2"), {"axis": 0}),
        Node("c", "Mul", ("s1", "s2"), ("c",)),
    ]
    full, half = dict.fromkeys(["x", "w1", "a", "b"], (256,)), dict.fromkeys(["s1", "s2", "c"], ONE)
    assert story(training_tape(chain(nodes, {**full, **half}, ["x"], ["c"]), "sgd")) == {
        "a": [2],
        "b": [2],
        "s": [],
        "c": [1],
        "loss": [1, -1, 1, 1, 1, 1, -1, -1, -1, -1],
        "c (backward)": [1, 1, -1, -2],  # the storage of both halves dies once
        "s (backward)": [2, -1, -1],
        "b (backward)": [2, -2, -2],
        "a (backward)": [2, -2],
        "sgd update": [-2],
    }


def test_workspaces_are_taken_forward_and_back_on_cuda_only() -> None:
    node = Node("a", "Conv", ("x", "w"), ("y",), {"pads": (1, 1, 1, 1)})
    graph = chain([node], {"x": (1, 64, 16, 16), "w": (64, 64, 3, 3), "y": (1, 64, 16, 16)}, ["x"], ["y"])
    on_cuda, elsewhere = (story(training_tape(graph, "sgd", cuda=cuda)) for cuda in (True, False))
    assert on_cuda["a"] == [128, 128 + 288, -128 - 288]  # copies of the input and of the weights
    assert on_cuda["a (backward)"] == [288, 128 + 288, -128 - 288, -128]
    assert elsewhere["a"] == [128]
    assert elsewhere["a (backward)"] == [288, -128]


def test_an_attention_writes_its_scores_back_too_and_keeps_its_mask() -> None:
    shape = (1, 1, 16, 16)
    names = ["q", "k", "v", "m"]
    nodes = [Node(n, "Mul", ("x", f"w{n}"), (n,)) for n in names]
    nodes.append(Node("a", "Attention", ("q", "k", "v", "m"), ("y",)))
    graph = chain(nodes, dict.fromkeys(["x", *(f"w{n}" for n in names), *names, "y"], shape), ["x"], ["y"])
    steps = story(training_tape(graph, "sgd", cuda=True))
    assert steps["a"] == [2, 0.125, 0, 0, 0]  # sixteen log-sum-exps; no copy of the mask, whose rows are long enough
    # four gradients, the workspaces, what came in, the statistics; then operands, mask and result
    assert steps["a (backward)"] == [2, 2, 2, 2, 0, 2, 0, -2, -2, -0.125, 0, -2, -2, -2, -2, -2]
    assert steps["m (backward)"] == [2, -2]


def test_states_are_kept_in_full_precision_for_every_weight() -> None:
    graph = perceptron()
    assert optimizer_states(graph, "sgd") == [512, 512]
    assert optimizer_states(graph, "adamw") == [512] * 4
    assert optimizer_states(graph.with_dtype("fp16"), "sgd") == [512, 512]


def test_scores_have_a_cross_entropy() -> None:
    scores = chain([Node("a", "Mul", ("x", "w"), ("y",))], dict.fromkeys(["x", "w", "y"], (4, 32)), ["x"], ["y"])
    # what it saves; the output dies; between; the gradient
    assert story(training_tape(scores, "sgd"))["loss"] == [1, -1, 1, 1, -1, -1]


@pytest.mark.parametrize(
    ("module", "entropy"), [("lm_head", True), ("model.cls.predictions", True), ("", False), ("out", False)]
)
def test_scores_of_tokens_have_a_cross_entropy_where_a_head_of_transformers_makes_them(
    module: str, entropy: bool
) -> None:
    node = Node("a", "Mul", ("x", "w"), ("y",), module=module)
    graph = chain([node], dict.fromkeys(["x", "w", "y"], (1, 4, 32)), ["x"], ["y"])
    square = [1, -1, 1, 1, 1, 1, -1, -1, -1, -1]
    assert story(training_tape(graph, "sgd"))["loss"] == ([1, -1, 1, 1, -1, -1] if entropy else square)


@pytest.mark.parametrize("op", ["ReduceMax", "ReduceMin"])
def test_a_largest_value_without_its_place_is_looked_for_again(op: str) -> None:
    nodes = [Node("a", "Mul", ("x", "w1"), ("a",)), Node("b", op, ("a",), ("b",))]
    shapes = {"x": (64, 128), "w1": (64, 128), "a": (64, 128), "b": (128,)}
    steps = story(training_tape(chain(nodes, shapes, ["x"], ["b"]), "sgd", cuda=True))
    # the mask, its copy as integers, the count; then the gradient beside mask, count and quotient; what came in
    assert steps["b (backward)"][:14] == [16, 128, 2, -16, -128, -2, 64, 16, 2, 1, -16, -2, -1, -1]
    assert sorted(steps["b (backward)"][14:]) == [-64, -1]  # what was kept: where it was looked for, and the value
    two = [nodes[0], Node("b", op, ("a",), ("b", "i"))]
    steps = story(training_tape(chain(two, {**shapes, "i": (128,)}, ["x"], ["b"]), "sgd", cuda=True))
    assert steps["b"] == [1, 1, -64]  # its place is known: what it was looked for in goes
    assert steps["b (backward)"] == [64, -1, -1]


def test_a_softmax_copies_a_gradient_that_is_not_row_major() -> None:
    def gradient_of_scores(equation: str, between: list[Node]) -> list[float]:
        nodes = [
            Node("a", "Mul", ("x", "w"), ("a",)),
            Node("s", "Softmax", ("a",), ("s",), {"axis": 2}),
            *between,
            Node("y", "Einsum", (between[-1].outputs[0] if between else "s", "x2"), ("y",), {"equation": equation}),
        ]
        shape = (2, 8, 8, 8)
        names = ["x", "w", "x2", "y", *(o for node in nodes for o in node.outputs)]
        graph = chain(nodes, dict.fromkeys(names, shape), ["x", "x2"], ["y"])
        return story(training_tape(graph, "sgd", cuda=True))["s (backward)"]

    # the gradient and the product with the result; with heads in the middle of the equation also a copy
    assert gradient_of_scores("bhij,bhjd->bhid", []) == [8, 8, -8, -8, -8]
    assert gradient_of_scores("bijh,bjhd->bihd", []) == [8, 8, 8, -8, -8, -8, -8]
    # an element-wise operator hands the order on
    exponential = [Node("n", "Neg", ("s",), ("n",))]
    assert gradient_of_scores("bijh,bjhd->bihd", exponential) == [8, 8, 8, -8, -8, -8, -8]


def test_what_is_kept_of_a_nodes_work_is_allocated_once() -> None:
    shape, lying = (4, 8, 16), {"perm": (1, 0, 2)}
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("t", "Transpose", ("a",), ("t",), lying),
        Node("b", "Gemm", ("t", "w2"), ("b",)),
    ]
    shapes = {"x": shape, "w1": shape, "a": shape, "t": (8, 4, 16), "w2": (16, 16), "b": (8, 4, 16)}
    steps = story(training_tape(chain(nodes, shapes, ["x"], ["b"]), "sgd"))
    assert steps["b"] == [4, 4, -4]  # the result and the copy of the operand; then the operand itself goes


def test_an_output_without_a_loss_has_no_backward_and_no_states() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w1"), ("a",)),
        Node("b", "Mul", ("a", "w2"), ("b",)),
        Node("c", "Exp", ("b",), ("c",)),
    ]
    graph = chain(nodes, dict.fromkeys(["x", "w1", "w2", "a", "b", "c"], ONE), ["x"], ["a", "c"])
    steps = story(training_tape(graph, "sgd"))
    assert steps["c (backward)"] == steps["b (backward)"] == []
    assert steps["sgd update"] == [-1]
    assert len(optimizer_states(graph, "sgd")) == 1


def test_a_write_into_a_part_splits_the_gradient_of_the_whole() -> None:
    nodes = [
        Node("z", "ConstantOfShape", (), ("base",)),
        Node("a", "Mul", ("x", "w"), ("h",)),
        Node("s", "Slice", ("base",), ("part",), {"axes": (0,), "steps": (1,)}),
        Node("c", "CopyTo", ("part", "h"), ("filled",), {"inplace": 1}),
        Node("r", "Relu", ("base",), ("y",)),
    ]
    shapes = dict.fromkeys(["x", "w", "h", "part", "filled"], ONE) | {"base": (256,), "y": (256,)}
    steps = story(training_tape(chain(nodes, shapes, ["x"], ["y"]), "sgd"))
    # a copy of the whole gradient in place of the old one, and the part
    assert steps["c (backward)"][:3] == [2, -2, 1]


# ── branches without a loss ───────────────────────────────────────────────────────────────────────────────────────────


def end_of_h(*branch: Node) -> str:
    """After which node ``h`` is freed, which a sine saves, in a branch that the loss does not depend on."""
    nodes = [
        Node("h", "Mul", ("x", "w1"), ("h",)),
        Node("s", "Sin", ("h",), ("s",)),
        *branch,
        Node("y", "Mul", ("x", "w2"), ("y",)),
    ]
    shapes = dict.fromkeys(["x", "w1", "w2", *(o for node in nodes for o in node.outputs)], ONE) | {"h": (3 * 128,)}
    graph = chain(nodes, shapes, ["x"], ["y"])
    positions = {
        o: replace(graph.tensors[o], dtype="int64") for node in nodes if node.op == "ArgMax" for o in node.outputs
    }
    steps = story(training_tape(replace(graph, tensors={**graph.tensors, **positions}), "sgd"))
    (end,) = (node for node, sizes in steps.items() if -3 in sizes)
    return end


def test_what_is_saved_for_nothing_dies_with_what_was_computed_from_it() -> None:
    # nobody differentiates an arg-max: the sine, and what it saved, go as soon as it has run
    assert end_of_h() == "s"
    assert end_of_h(Node("k", "ArgMax", ("s",), ("k",))) == "k"
    assert end_of_h(Node("k", "ArgMax", ("s",), ("k",)), Node("l", "Identity", ("k",), ("l",))) == "k"
    # the tail of what was computed from the sine holds it, though nothing reads the sine any more
    tail = [Node("n", "Neg", ("s",), ("n",)), Node("k", "ArgMax", ("n",), ("k",))]
    assert end_of_h(*tail) == "k"
    # and so does the longest of two tails, in whichever order they come
    short = [Node("m", "Neg", ("s",), ("m",)), Node("l", "ArgMax", ("m",), ("l",))]
    assert end_of_h(*short, *tail) == "k"
    assert end_of_h(*tail, *short) == "l"
    # a frame may hold a tensor for longer than the backward that nobody runs
    assert end_of_h(*tail, Node("late", "ArgMax", ("h",), ("late",))) == "late"


def test_a_node_with_two_outputs_lives_as_long_as_the_later_one() -> None:
    halves = Node("c", "Split", ("s",), ("left", "right"))
    early = Node("e", "ArgMax", ("left",), ("e",))
    late = [Node("n", "Neg", ("right",), ("n",)), Node("k", "ArgMax", ("n",), ("k",))]
    assert end_of_h(halves, early, *late) == "k"

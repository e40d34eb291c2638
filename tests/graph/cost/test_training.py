"""A training step: backward by hand, the optimizer, and torch's own counter where it is installed."""

import math
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.graph import Cost, Graph, Node, training_step
from foretell.graph.cost.node_costs import total
from foretell.graph.cost.training import OPTIMIZERS, find_optimizer
from foretell.testing import chain, one_node, tiny_graph


def two_layers() -> Graph:
    nodes = [
        Node("a", "Gemm", ("x", "w1", "w1b"), ("h",)),
        Node("r", "Relu", ("h",), ("r",)),
        Node("b", "Gemm", ("r", "w2"), ("y",)),
    ]
    shapes = {"x": (4, 10), "w1": (10, 20), "w1b": (20,), "w2": (20, 5), "h": (4, 20), "r": (4, 20), "y": (4, 5)}
    return chain(nodes, shapes, ["x"], ["y"])


def test_backward_of_two_layers() -> None:
    first, relu, second = training_step(two_layers()).backward
    assert first.macs == 4 * 10 * 20  # the gradient of the weights alone: nobody asks for that of the input
    assert second.macs == 2 * 4 * 20 * 5
    assert relu.macs == 0
    assert relu.bytes_read == 2 * 4 * 80  # the incoming gradient and the saved result
    assert relu.bytes_written == 4 * 80
    assert first.launches == 1
    assert second.launches == 2


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name: str) -> None:
    step = training_step(two_layers(), name)
    update = find_optimizer(name)
    assert step.optimizer.flops == 320 * update.flops
    assert step.optimizer.bytes_read == 320 * 4 * update.reads
    assert step.optimizer.bytes_written == 320 * 4 * update.writes
    assert step.total == step.forward.total + total(step.backward) + step.optimizer
    assert step.total.parameters == 320


def test_unknown_optimizers_are_refused() -> None:
    with pytest.raises(InputError, match="Unknown optimizer 'lion'"):
        training_step(two_layers(), "lion")


def test_a_graph_without_parameters_has_no_backward() -> None:
    step = training_step(one_node("Relu", [(4,)], [(4,)]))
    assert step.backward == (Cost(),)
    assert step.optimizer == Cost()


def test_attention_recomputes_its_scores() -> None:
    nodes = [Node("p", "MatMul", ("x", "w"), ("q",)), Node("a", "Attention", ("q", "q", "q"), ("y",))]
    shapes = {"x": (2, 3, 8, 4), "w": (4, 4), "q": (2, 3, 8, 4), "y": (2, 3, 8, 4)}
    step = training_step(chain(nodes, shapes, ["x"], ["y"]))
    assert 2 * step.backward[1].macs == 5 * step.forward.nodes[1].macs


def test_recurrences() -> None:
    inputs = [(7, 2, 5), (1, 2, 3), (1, 2, 3), (12, 5), (12, 3)]
    step = training_step(one_node("LSTM", inputs, [(7, 2, 3)], weights=[3, 4], layers=1))
    assert step.backward[0].macs == 14 * (60 + 2 * 36)  # no gradient of the sequence


def test_views_cost_what_their_copies_cost_and_loops_their_bodies() -> None:
    step = training_step(tiny_graph())
    assert step.backward[3] == Cost()
    body = one_node("MatMul", [(2, 4), (4, 4)], [(2, 4)], weights=[1])
    looped = training_step(one_node("Loop", [(2, 4)], [(2, 4)], weights=[0], bodies=(body,), trips=3))
    assert looped.backward[0].macs == 2 * 3 * 32
    assert looped.backward[0].parameters == 0


# ── against torch ─────────────────────────────────────────────────────────────────────────────────────────────────────


def networks() -> dict[str, tuple[Any, tuple[int, ...]]]:
    from torch import nn

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
            self.body = nn.Conv2d(8, 8, 3, padding=2, dilation=2)
            self.norm = nn.BatchNorm2d(8)
            self.up = nn.ConvTranspose2d(8, 4, 4, 2)
            self.head = nn.Linear(4, 5)

        def forward(self, x: Any) -> Any:
            x = self.stem(x).relu()
            x = x + self.norm(self.body(x)).relu()
            return self.head(self.up(x).mean((2, 3)))

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(6, 8)  # so that the sequence needs a gradient
            self.layers = nn.GRU(8, 12, 2, batch_first=True, bidirectional=True)
            self.head = nn.Linear(24, 5)

        def forward(self, x: Any) -> Any:
            return self.head(self.layers(self.project(x))[0][:, -1])

    encoder = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    sequential = nn.Sequential(nn.Linear(6, 32), nn.GELU(), nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 5))
    return {
        "convolutions": (Residual(), (3, 16, 16)),
        "perceptron": (sequential, (6,)),
        "transformer": (encoder, (9, 16)),
        "recurrent": (Recurrent(), (7, 6)),
    }


@pytest.mark.parametrize("name", ["convolutions", "perceptron", "transformer", "recurrent"])
@pytest.mark.filterwarnings("ignore")
def test_flops_are_those_that_torch_counts(name: str) -> None:
    """Forward exactly; backward exactly but for the first states of a recurrence, whose gradient cuDNN computes."""
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter")
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from foretell.frontends.torch.export import graph_from_program
    from foretell.frontends.torch.program import TorchProgram

    module, shape = networks()[name]
    module.train()
    with sdpa_kernel(SDPBackend.MATH), counter.FlopCounterMode(display=False) as forward:
        loss = module(torch.zeros(2, *shape)).sum()
    with counter.FlopCounterMode(display=False) as backward:
        loss.backward()
    program = TorchProgram(name, module.to("meta"), (torch.empty(2, *shape, device="meta"),))
    step = training_step(graph_from_program(program, batch_size=2, training=True))
    assert 2 * step.forward.total.macs == forward.get_total_flops()
    mine, theirs = 2 * total(step.backward).macs, backward.get_total_flops()
    if name == "transformer":  # the math kernel keeps its scores, so four products against five
        mine -= step.forward.by_operator()["Attention"][1].macs
    first_states = 2 * 2 * 2 * 2 * 36 * 12 if name == "recurrent" else 0
    assert mine == theirs + first_states


def test_bytes_of_the_backward_of_two_layers() -> None:
    first, _, second = training_step(two_layers()).backward
    # the gradient of the result once for each product, what was saved, and the weights
    assert first.bytes_read == 4 * (4 * 20) + 4 * (4 * 10) + 4 * (10 * 20)
    assert first.bytes_written == 4 * (10 * 20 + 20)
    assert second.bytes_read == 2 * 4 * (4 * 5) + 4 * (4 * 20) + 4 * (20 * 5)
    assert second.bytes_written == 4 * (4 * 20 + 20 * 5)
    assert first.flops == 2 * 4 * 10 * 20 + 4 * 20  # and the bias
    assert second.flops == 2 * second.macs
    assert first.tensor_core_macs == second.tensor_core_macs == 0
    short = training_step(two_layers().with_dtype("bf16")).backward
    assert [cost.tensor_core_macs for cost in short] == [first.macs, 0, second.macs]


def test_an_elementwise_backward_takes_twice_the_operations() -> None:
    nodes = [Node("a", "Mul", ("x", "w"), ("h",)), Node("b", "Gelu", ("h",), ("y",))]
    product, activation = training_step(chain(nodes, dict.fromkeys("xwhy", (32,)), ["x"], ["y"])).backward
    assert (product.flops, activation.flops) == (2 * 32, 2 * 8 * 32)
    assert (product.bytes_read, product.bytes_written) == (2 * 128, 128)
    assert (activation.bytes_read, activation.bytes_written) == (2 * 128, 128)
    assert (product.launches, activation.launches) == (1, 1)


def test_an_attention_backward_takes_five_products_for_two() -> None:
    nodes = [Node("p", "MatMul", ("x", "w"), ("q",)), Node("a", "Attention", ("q", "q", "q"), ("y",))]
    shapes = {"x": (2, 3, 8, 4), "w": (4, 4), "q": (2, 3, 8, 4), "y": (2, 3, 8, 4)}
    graph = chain(nodes, shapes, ["x"], ["y"]).with_dtype("fp16")
    step = training_step(graph)
    forward, backward = step.forward.nodes[1], step.backward[1]
    assert (backward.macs, backward.flops) == (forward.macs * 5 // 2, forward.flops * 5 // 2)
    assert backward.tensor_core_macs == backward.macs > 0
    assert backward.bytes_read == 2 * 192 + 2 * (2 * 192)  # the gradient; the operand, once, and the result
    assert backward.bytes_written == 2 * 192
    assert backward.launches == 2


def test_recurrences_take_two_products_a_step() -> None:
    nodes = [Node("p", "MatMul", ("x", "w"), ("s",)), Node("r", "GRU", ("s", "h", "w1", "w2"), ("y",))]
    shapes = {"x": (7, 2, 4), "w": (4, 5), "s": (7, 2, 5), "h": (1, 2, 3), "w1": (9, 5), "w2": (9, 3), "y": (7, 2, 3)}
    step = training_step(chain(nodes, shapes, ["x", "h"], ["y"]))
    assert step.backward[1].macs == 2 * 14 * 9 * (5 + 3)
    assert step.backward[1].launches == 14


def test_products_of_more_than_two_operands() -> None:
    nodes = [Node("p", "Mul", ("x", "w"), ("h",)), Node("b", "Bilinear", ("h", "h2", "w3"), ("y",))]
    shapes = {"x": (2, 4), "w": (2, 4), "h": (2, 4), "h2": (2, 4), "w3": (3, 4, 4), "y": (2, 3)}
    graph = chain(nodes, shapes, ["x", "h2"], ["y"])
    step = training_step(graph)
    assert step.backward[1].macs == 2 * step.forward.nodes[1].macs  # of `h` and of the weight
    assert step.backward[1].launches == 2
    mixture = one_node("MoE", [(10, 8), (4, 16, 8), (4, 8, 16)], [(10, 8)], weights=[1, 2], experts=4, top_k=2)
    step = training_step(mixture)
    assert step.backward[0].macs == step.forward.nodes[0].macs  # of the weights alone
    experts = one_node("MoE", [(10, 8), (4, 16, 8), (4, 8, 16)], [(10, 8)], weights=[0, 1, 2], experts=4, top_k=2)
    step = training_step(experts)
    assert step.backward[0].macs == 2 * step.forward.nodes[0].macs
    summed = one_node("Einsum", [(2, 3), (3, 4), (4, 5)], [(2, 5)], weights=[0, 1, 2], equation="ai,ij,jk->ak")
    assert training_step(summed).backward[0].macs == 3 * (24 + 40)


def test_views_that_copy_are_copied_back() -> None:
    nodes = [
        Node("a", "Mul", ("x", "w"), ("h",)),
        Node("t", "Transpose", ("h",), ("t",), {"perm": (1, 0)}),
        Node("r", "Reshape", ("t",), ("y",)),
    ]
    step = training_step(chain(nodes, {"x": (4, 8), "w": (4, 8), "h": (4, 8), "t": (8, 4), "y": (32,)}, ["x"], ["y"]))
    assert step.backward[1] == Cost()
    assert step.backward[2] == Cost(bytes_read=128, bytes_written=128, launches=1)


def test_the_gradient_of_a_part_is_as_large_as_the_whole() -> None:
    """Zeros of the whole and a copy of the part: 128 and 32 bytes; and an addition where others read the whole, too."""
    shapes = {"x": (4, 8), "w": (4, 8), "h": (4, 8), "y": (1, 8), "z": (4, 8)}
    first, part = Node("a", "Mul", ("x", "w"), ("h",)), Node("s", "Slice", ("h",), ("y",))
    alone = training_step(chain([first, part], shapes, ["x"], ["y"]))
    assert alone.backward[1] == Cost(bytes_read=32, bytes_written=128 + 32, launches=2)
    both = training_step(chain([first, part, Node("m", "Mul", ("h", "y"), ("z",))], shapes, ["x"], ["z"]))
    assert both.backward[1] == Cost(flops=32, bytes_read=32 + 256, bytes_written=128 + 32 + 128, launches=3)


def test_the_gradients_of_the_parts_of_a_split_are_concatenated() -> None:
    for operator, part in (("Split", (4, 4)), ("Select", (8,))):
        whole = (4, 8) if operator == "Split" else (2, 8)
        shapes = {"x": whole, "w": whole, "h": whole, "y": part, "z": part, "s": part}
        nodes = [Node("a", "Mul", ("x", "w"), ("h",)), Node("p", operator, ("h",), ("y", "z"))]
        step = training_step(chain([*nodes, Node("s", "Add", ("y", "z"), ("s",))], shapes, ["x"], ["s"]))
        moved = 4 * math.prod(whole)
        assert step.backward[1] == Cost(bytes_read=moved, bytes_written=moved, launches=1)


def test_the_gradient_of_what_was_repeated_is_summed() -> None:
    shapes = {"x": (1, 8), "w": (1, 8), "h": (1, 8), "y": (4, 8)}
    nodes = [Node("a", "Mul", ("x", "w"), ("h",)), Node("e", "Expand", ("h",), ("y",))]
    step = training_step(chain(nodes, shapes, ["x"], ["y"]))
    assert step.backward[1] == Cost(flops=32, bytes_read=128, bytes_written=32, launches=1)


def test_what_the_loss_does_not_reach_has_no_backward() -> None:
    nodes = [Node("a", "Mul", ("x", "w"), ("y",)), Node("b", "Mul", ("x", "w2"), ("z",))]
    shapes = dict.fromkeys(("x", "w", "w2", "y", "z"), (4, 8))
    step = training_step(chain(nodes, shapes, ["x"], ["y", "z"]))
    assert step.backward[0].launches == 1
    assert step.backward[1] == Cost()


def test_a_loop_takes_its_body_twice_more() -> None:
    body = one_node("MatMul", [(2, 4), (4, 4)], [(2, 4)], weights=[1])
    step = training_step(one_node("Loop", [(2, 4)], [(2, 4)], weights=[0], bodies=(body,), trips=3))
    forward, backward = step.forward.nodes[0], step.backward[0]
    assert (backward.bytes_read, backward.launches) == (2 * forward.bytes_read, 2 * forward.launches)
    assert (backward.parameters, backward.parameter_bytes, backward.activation_bytes) == (0, 0, 0)


def test_the_published_optimizers() -> None:
    """Momentum: a state; read weight, gradient and state; write weight and state. AdamW has one more state."""
    sgd, adamw = find_optimizer("sgd"), find_optimizer("adamw")
    assert (sgd.flops, sgd.states, sgd.reads, sgd.writes, sgd.temporaries) == (4, 1, 3, 2, 0)
    assert (adamw.flops, adamw.states, adamw.reads, adamw.writes, adamw.temporaries) == (14, 2, 4, 3, 1)
    step = training_step(two_layers())
    assert step.optimizer == Cost(flops=4 * 320, bytes_read=3 * 4 * 320, bytes_written=2 * 4 * 320, launches=1)
    assert training_step(two_layers()) == training_step(two_layers(), "sgd")

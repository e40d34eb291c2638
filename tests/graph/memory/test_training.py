"""Peaks of a training step, in blocks of 512 bytes, and against live tensors counted in torch."""

import weakref
from typing import Any

import pytest

from foretell.graph import Graph, Node, training_peak
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
    # the loss: b, what it saves, and two gradients (`c` died with it): 5 + 4 = 9; backward of c takes as much again:
    # b, the gradients of c, b and w2
    graph = perceptron()
    assert training_peak(graph).state_bytes == 4 * 512
    assert blocks(graph) == 9
    assert training_peak(graph).node == "loss"
    assert blocks(graph, "adamw") == 11


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

    from foretell.graph.memory.liveness import rounded

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
            result = function(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, list | tuple) else [result]:
                if isinstance(tensor, torch.Tensor):
                    self.see(tensor)
            self.peak = max(self.peak, self.now)
            return result

    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, foreach=True)
    labels = torch.zeros(len(inputs), dtype=torch.int64)
    with Tracker() as tracker:
        for tensor in (*module.parameters(), *module.buffers(), inputs):
            tracker.see(tensor)
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            tracker.peak = 0
            torch.nn.functional.cross_entropy(module(inputs), labels).backward()
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

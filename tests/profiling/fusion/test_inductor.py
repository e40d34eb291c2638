from types import SimpleNamespace

import pytest

from foretell.errors import MeasurementError
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.zoo import Built, image_inputs

torch = pytest.importorskip("torch")

from foretell.profiling.fusion import inductor as fusion_inductor


class Net(torch.nn.Module):
    """A convolution with a norm, an activation and a residual; a softmax head."""

    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(4)
        self.drop = torch.nn.Dropout()
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.fc = torch.nn.Linear(4, 10)

    def forward(self, x):
        y = torch.relu(self.norm(self.conv(x)) + x)
        mask = torch.ones(8, 8, device=x.device).tril() > 0
        y = torch.nn.functional.scaled_dot_product_attention(self.query(y), self.key(y), y, attn_mask=mask)
        return torch.softmax(self.fc(self.drop(y).mean((2, 3))), -1)


@pytest.fixture(scope="module")
def exported():
    built = Built(Net().eval(), image_inputs)
    return fusion_inductor.export(built, Workload("test:net", 3, (4, 8, 8), "bf16"), "cpu")


@pytest.fixture(scope="module")
def compiled(exported):
    return fusion_inductor.compile_exported(exported)


def test_a_model_is_exported_without_weights_in_the_precision_that_was_asked_for(exported):
    values = [node.meta["val"] for node in exported.graph.nodes if node.op == "placeholder"]
    assert {type(value).__name__ for value in values} == {"FakeTensor"}
    assert {value.dtype for value in values if value.is_floating_point()} == {torch.bfloat16}
    assert exported.graph_module.graph.find_nodes(op="call_function", target=torch.ops.aten.conv2d.default)


def test_norm_sum_and_activation_share_a_kernel_and_the_convolution_is_a_library_call(compiled):
    homes = compiled.members
    assert homes["batch_norm"][0] == homes["add"][0] == homes["relu"][0]
    assert compiled.kernels[homes["conv2d"][0]] == "extern:convolution"
    assert homes["conv2d"][0] not in homes["relu"]
    assert compiled.kernels[homes["linear"][0]].startswith("extern:")
    assert compiled.kernels[homes["softmax"][0]] == "reduction"


def test_attention_is_a_kernel_of_its_own_and_so_are_the_products_before_it(compiled):
    homes = compiled.members
    attention = homes["scaled_dot_product_attention"]
    assert "scaled_dot_product" in compiled.kernels[attention[0]]
    products = [homes["linear"], homes["linear_1"]]
    assert all(compiled.kernels[home[0]].startswith("extern:") for home in products)
    assert len({*attention, *products[0], *products[1]}) == 3
    assert not {*homes["gt"]} & {*attention}


def test_every_operator_but_what_vanishes_has_a_kernel(exported, compiled):
    calls = {node.name for node in exported.graph.nodes if node.op == "call_function"}
    assert calls - set(compiled.members) <= {"dropout"}
    assert set(compiled.members) <= calls


def test_the_compiler_is_left_as_it_was(compiled):
    import torch._inductor.config as config
    from torch._inductor.scheduler import Scheduler

    assert compiled.kernels
    assert Scheduler.codegen.__name__ == "codegen"
    assert config.shape_padding


@pytest.mark.usefixtures("compiled")
def test_a_compiler_that_never_schedules_is_an_error(exported, monkeypatch):
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda *_: None)
    with pytest.raises(MeasurementError, match="scheduler"):
        fusion_inductor.compile_exported(exported)


def test_sources_are_followed_through_passes():
    first = SimpleNamespace(name="relu_", from_node=[])
    middle = SimpleNamespace(name="relu", from_node=[first])
    node = SimpleNamespace(name="relu_7", op="call_function", meta={"from_node": [middle]})
    assert fusion_inductor.source_names(node, {"relu_": "outer/relu_", "relu_7": "relu_7"}) == ["outer/relu_"]
    made = SimpleNamespace(name="relu_7", op="call_function", meta={})
    assert fusion_inductor.source_names(made, {"relu_7": "relu_7"}) == []

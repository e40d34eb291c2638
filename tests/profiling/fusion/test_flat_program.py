import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.fusion.flat_program import flatten


class Wrapping(torch.nn.Module):
    """Runs a part of itself under another autocast, as attention in full precision does."""

    def forward(self, x):
        y = torch.relu(x)
        with torch.autocast(device_type="cpu", enabled=False):
            z = torch.exp(y) + x
            w = torch.sin(z)
        return torch.tanh(z) * w


@pytest.fixture(scope="module")
def exported():
    return torch.export.export(Wrapping(), (torch.arange(4.0),), strict=False)


def test_wrapped_operators_are_put_in_place_and_keep_their_names(exported):
    flat, names = flatten(exported.graph_module)
    targets = [str(node.target) for node in flat.graph.nodes if node.op == "call_function"]
    assert not [target for target in targets if "wrap" in target or "getitem" in target]
    wrapped = {name.partition("/")[2] for name in names.values() if "/" in name}
    assert {"exp", "add", "sin"} <= wrapped
    assert {"relu", "tanh", "mul"} <= set(names.values())


def test_a_flat_program_computes_the_same(exported):
    x = torch.tensor([0.5, -1.0, 2.0, 0.0])
    flat, _ = flatten(exported.graph_module)
    torch.testing.assert_close(flat(x)[0], Wrapping()(x))


def test_a_program_without_wrappers_is_left_alone():
    module = torch.export.export(torch.nn.ReLU(), (torch.ones(2),), strict=False).graph_module
    flat, names = flatten(module)
    assert flat is module
    assert names["relu"] == "relu"

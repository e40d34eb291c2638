import pytest

torch = pytest.importorskip("torch")

from foretell.profiling.zoos.networks import LINKS, NETWORKS


@pytest.mark.parametrize(
    ("name", "arguments", "before", "after"),
    [
        ("mlp", {"widths": "8-6-3", "act": "gelu"}, (2, 8), (2, 3)),
        ("cnn", {"dims": 1, "channels": "3-4", "kernels": "3", "strides": "2"}, (2, 3, 8), (2, 10)),
        ("cnn", {"dims": 3, "channels": "1-6", "kernels": 3, "strides": 1, "norm": "group"}, (2, 1, 4, 4, 4), (2, 10)),
        ("residual", {"width": 4, "blocks": "1-2", "kernel": 3, "expand": 2, "se": True}, (2, 3, 16, 16), (2, 100)),
        ("residual", {"width": 4, "blocks": "2-1", "kernel": 3, "groups": 3, "classes": 5}, (2, 3, 16, 16), (2, 5)),
        ("transformer", {"width": 8, "depth": 1, "heads": 2, "inner": 16}, (2, 5, 8), (2, 5, 100)),
        (
            "recurrent",
            {"cell": "gru", "inputs": 4, "hidden": 3, "layers": 1, "bidirectional": True},
            (2, 5, 4),
            (2, 10),
        ),
        ("unet", {"base": 2, "depth": 2, "rise": 3, "convs": "1-2-1", "classes": 4}, (1, 3, 16, 16), (1, 4, 16, 16)),
        ("lenet", {"scale": 2}, (1, 1, 28, 28), (1, 10)),
        ("chain", {"ops": "conv3-max2-up2t-dw7", "channels": 4}, (1, 4, 8, 8), (1, 4, 8, 8)),
    ],
)
def test_networks_take_and_give_their_shapes(name, arguments, before, after):
    with torch.inference_mode():
        assert NETWORKS[name](arguments).eval()(torch.randn(before)).shape == after


def test_a_causal_transformer_does_not_look_ahead():
    sizes = {"width": 8, "depth": 2, "heads": 2, "inner": 16}
    first = torch.randn(1, 6, 8)
    second = first.clone()
    second[:, 3:] += 1 + torch.randn(1, 3, 8)
    for causal in (True, False):
        model = NETWORKS["transformer"]({**sizes, "causal": causal}).eval()
        with torch.inference_mode():
            same = torch.allclose(model(first)[:, :3], model(second)[:, :3], atol=1e-5)
        assert same == causal


def test_an_mlp_ends_without_activation_and_every_link_keeps_its_channels():
    assert isinstance(NETWORKS["mlp"]({"widths": "4-3-2"})[-1], torch.nn.Linear)
    for link in LINKS:
        with torch.inference_mode():
            assert NETWORKS["chain"]({"ops": link, "channels": 4}).eval()(torch.randn(1, 4, 6, 6)).shape[:2] == (1, 4)

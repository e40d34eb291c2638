import pytest

pytest.importorskip("torch")

from foretell.errors import ModelError
from foretell.frontends import ModelRequest, parse_inputs
from foretell.frontends.torch.torchvision_models import TorchvisionFrontend
from foretell.optional import repair_torchvision


@pytest.fixture(scope="module", autouse=True)
def _libraries():
    repair_torchvision()
    pytest.importorskip("torchvision")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("resnet18", (3, 224, 224)),
        ("efficientnet_b7", (3, 600, 600)),
        ("swin_v2_t", (3, 256, 256)),
        ("swin3d_t", (3, 16, 224, 224)),
        ("r3d_18", (3, 16, 112, 112)),
        ("fcn_resnet50", (3, 520, 520)),
        ("raft_small", (3, 360, 520)),
    ],
)
def test_models_are_read_at_the_size_of_their_recipe(name, shape):
    assert TorchvisionFrontend._default_shape(name) == shape


def test_a_model_is_exported_for_the_image_that_was_asked_for():
    graph = TorchvisionFrontend().load(ModelRequest("torchvision:squeezenet1_1", parse_inputs(["64x96"])))
    assert graph.name == "torchvision:squeezenet1_1"
    assert [graph.tensors[name].shape for name in graph.inputs] == [(graph.batch_size, 3, 64, 96)]


def test_a_failure_of_the_builder_names_the_model(monkeypatch):
    from torchvision import models

    def fail(*_, **__):
        raise ZeroDivisionError("no\nchannels")

    monkeypatch.setattr(models, "get_model", fail)
    with pytest.raises(ModelError, match="torchvision could not build 'alexnet': no channels"):
        TorchvisionFrontend().load(ModelRequest("torchvision:alexnet"))

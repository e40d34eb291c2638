import pytest

pytest.importorskip("torch")

from foretell.optional import available
from foretell.profiling.campaign.plan import Part
from foretell.profiling.zoos.registry import build
from foretell.profiling.zoos.torchvision_models import TorchvisionZoo

# importing torchvision here would come before torchvision is repaired
pytestmark = pytest.mark.skipif(
    not available("torchvision"), reason="torchvision is an extra: pip install 'foretell[vision]'"
)


def test_every_kind_of_model_has_its_own_shape():
    entries = {entry.spec: entry for entry in TorchvisionZoo().entries(Part("vision", 1.0, ("torchvision",)), 1)}
    shapes = {
        name: (entries[f"torchvision:{name}"].input_shape, entries[f"torchvision:{name}"].flexible)
        for name in ("resnet18", "inception_v3", "fcn_resnet50", "vit_b_16", "swin3d_t")
    }
    assert shapes == {
        "resnet18": ((3, 224, 224), True),
        "inception_v3": ((3, 299, 299), False),
        "fcn_resnet50": ((3, 256, 256), True),
        "vit_b_16": ((3, 224, 224), False),
        "swin3d_t": ((3, 16, 224, 224), False),
    }


def test_a_family_is_a_name_without_its_numbers():
    part = Part("vision", 1.0, ("torchvision",), families=("torchvision-vgg", "torchvision-densenet"))
    specs = {entry.spec for entry in TorchvisionZoo().entries(part, 1)}
    assert {"torchvision:vgg11", "torchvision:vgg19_bn", "torchvision:densenet201"} <= specs
    assert all(spec.startswith(("torchvision:vgg", "torchvision:densenet")) for spec in specs)


def test_heads_that_exist_for_training_alone_are_left_out():
    assert build("torchvision:googlenet").model.aux1 is None
    small = build("torchvision:resnet18?num_classes=7").model
    assert small.fc.out_features == 7
    assert not small.training

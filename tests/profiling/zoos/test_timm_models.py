import pytest

pytest.importorskip("torch")

from foretell.optional import available
from foretell.profiling.campaign.plan import Part
from foretell.profiling.zoos.registry import build
from foretell.profiling.zoos.timm_models import TimmZoo

# importing timm here would come before torchvision is repaired
pytestmark = pytest.mark.skipif(not available("timm"), reason="timm is an extra: pip install 'foretell[vision]'")


def test_a_part_that_names_families_gets_only_their_models():
    entries = {entry.spec: entry for entry in TimmZoo().entries(Part("vgg", 1.0, ("timm",), families=("vgg",)), 1)}
    assert {entry.family for entry in entries.values()} == {"vgg"}
    assert {"timm:vgg11", "timm:vgg19_bn"} <= set(entries)


def test_only_models_with_a_free_input_size_are_flexible():
    part = Part("vision", 1.0, ("timm",), families=("resnet", "vision_transformer"))
    entries = {entry.spec: entry for entry in TimmZoo().entries(part, 1)}
    assert entries["timm:resnet18"].flexible
    assert not entries["timm:vit_tiny_patch16_224"].flexible
    assert entries["timm:vit_base_patch16_384"].input_shape == (3, 384, 384)


def test_arguments_of_the_spec_shape_the_model():
    plain, small = build("timm:resnet18").model, build("timm:resnet18?num_classes=7&in_chans=1").model
    assert (plain.fc.out_features, small.fc.out_features) == (1000, 7)
    assert (plain.conv1.in_channels, small.conv1.in_channels) == (3, 1)
    assert not small.training

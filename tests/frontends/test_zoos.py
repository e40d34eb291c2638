"""timm and torchvision by name."""

import pytest

pytest.importorskip("torch")

from foretell.errors import InputError, ModelError
from foretell.frontends import ModelRequest, convert, parse_inputs
from foretell.graph import graph_costs
from foretell.optional import repair_torchvision


@pytest.fixture(scope="module", autouse=True)
def _libraries():
    repair_torchvision()
    pytest.importorskip("timm")


def read(source, *inputs):
    return convert(ModelRequest(source, parse_inputs(inputs)), use_cache=False).with_batch(1)


def test_resnet50_has_the_published_costs():
    graph = read("timm:resnet50")
    assert graph.parameter_count == 25_557_032
    assert graph_costs(graph).total.macs == 4_089_184_256


def test_the_bundled_onnx_graph_agrees_with_timm_to_the_last_operation():
    from pathlib import Path

    direct = graph_costs(read("timm:resnet50")).total
    bundled = graph_costs(read(str(Path(__file__).parents[2] / "examples" / "resnet50.onnx"))).total
    assert (direct.parameters, direct.macs, direct.flops, direct.launches) == (
        bundled.parameters,
        bundled.macs,
        bundled.flops,
        bundled.launches,
    )


@pytest.mark.parametrize(("text", "size"), [("160", 160), ("160x160", 160), ("3x192x192", 192)])
def test_image_sizes_in_every_spelling(text, size):
    assert read("timm:resnet10t", text).tensors["x"].shape == (1, 3, size, size)


def test_a_vision_transformer_is_built_for_another_size():
    assert read("timm:vit_tiny_patch16_224", "3x96x96").tensors["x"].shape == (1, 3, 96, 96)


def test_more_channels():
    graph = read("timm:resnet10t", "4x64x64")
    assert graph.tensors["x"].shape == (1, 4, 64, 64)


def test_torchvision_by_name():
    graph = read("torchvision:squeezenet1_1")
    assert graph.parameter_count == 1_235_496


@pytest.mark.parametrize("spec", ["timm:resnet5O", "torchvision:vgg61"])
def test_an_unknown_name_offers_the_closest(spec):
    with pytest.raises(ModelError, match="Did you mean"):
        read(spec)


def test_wrong_input_for_an_image_model():
    with pytest.raises(InputError, match="dimensions"):
        read("timm:resnet10t", "1x3x224x224x2")
    with pytest.raises(InputError, match="one input"):
        read("timm:resnet10t", "64", "64")

import pytest

pytest.importorskip("torch")

from foretell.errors import ModelError
from foretell.frontends import ModelRequest, parse_inputs
from foretell.frontends.torch.timm_models import TimmFrontend, build_timm
from foretell.optional import repair_torchvision


@pytest.fixture(scope="module", autouse=True)
def _libraries():
    repair_torchvision()
    pytest.importorskip("timm")


def build(name, *inputs):
    return build_timm(name, ModelRequest(f"timm:{name}", parse_inputs(inputs)))


def test_a_module_has_no_storage_and_the_size_it_was_made_for():
    module, shape = build("test_vit")
    assert shape == (3, 160, 160)
    assert all(p.is_meta for p in module.parameters())
    patches = module.patch_embed.num_patches
    module, shape = build("test_vit", "1x80x160")
    assert shape == (1, 80, 160)
    assert module.patch_embed.num_patches == patches // 2
    assert module.patch_embed.proj.in_channels == 1


def test_every_spelling_of_a_size_is_tried_before_an_error(monkeypatch):
    import timm

    tried = []

    def fail(name, *, pretrained, **arguments):
        tried.append((pretrained, arguments))
        raise ZeroDivisionError("no\nchannels")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ModelError, match="timm could not build 'test_resnet': no channels"):
        build("test_resnet", "64x96")
    assert tried == [(False, {"img_size": (64, 96)}), (False, {"input_size": (3, 64, 96)}), (False, {})]


def test_the_fingerprint_names_the_model_and_the_versions():
    first, second = (TimmFrontend().fingerprint(ModelRequest(f"timm:{name}")) for name in ("test_vit", "test_resnet"))
    assert first.startswith("timm:test_vit timm ")
    assert " torch " in first
    assert first != second

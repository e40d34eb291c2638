from types import SimpleNamespace

import pytest

from foretell.errors import InputError, ModelError
from foretell.frontends.huggingface.inputs import ModelInputs, Sizes, position_limit

torch = pytest.importorskip("torch")


class Reader(torch.nn.Module):
    main_input_name = "input_ids"

    def __init__(self, **config):
        super().__init__()
        self.config = SimpleNamespace(**config)

    def forward(self, input_ids):
        return input_ids


class Listener(Reader):
    main_input_name = "input_features"

    def forward(self, input_features):
        return input_features


def make(model, **sizes):
    return ModelInputs(model, Sizes(batch_size=2, **sizes), torch.float16)


def test_the_positions_of_a_model_leave_out_padding_and_pictures():
    model = Reader()
    model.text = torch.nn.ModuleDict({"position_embeddings": torch.nn.Embedding(20, 4, padding_idx=1)})
    model.vision = torch.nn.ModuleDict({"position_embedding": torch.nn.Embedding(5, 4)})
    assert position_limit(model) == 18
    assert position_limit(model, "decoder") is None
    assert make(model).source()["input_ids"].shape == (2, 18)
    with pytest.raises(InputError, match="19 tokens do not fit Reader; it has 18 positions"):
        make(model, sequence=19).source()


def test_an_image_is_as_large_as_asked_or_as_the_vision_part_says():
    model = Reader(vision_config=SimpleNamespace(image_size=[48, 32], num_channels=1), image_size=99)
    assert make(model).pixels().shape == (2, 1, 48, 32)
    assert make(model, image=(8, 16)).pixels().shape == (2, 1, 8, 16)
    assert make(Reader(image_size=16, num_frames=4)).pixels().shape == (2, 4, 3, 16, 16)
    with pytest.raises(InputError, match="got 1x2x3x4"):
        make(model, image=(1, 2, 3, 4)).pixels()


def test_speech_features_follow_the_config_and_unknown_ones_are_refused():
    features = make(Listener(num_mel_bins=8, max_source_positions=30)).source()["input_features"]
    assert (features.shape, features.dtype, features.is_meta) == ((2, 8, 60), torch.float16, True)
    with pytest.raises(ModelError, match="speech features"):
        make(Listener()).source()

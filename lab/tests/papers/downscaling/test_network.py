import pytest

torch = pytest.importorskip("torch")

from lab.papers.downscaling.network import OTHERS, TRAINABLE, build


def test_it_has_the_parameters_that_the_thesis_counts():
    network = build()
    assert sum(parameter.numel() for parameter in network.parameters()) == TRAINABLE
    norms = [buffer for name, buffer in network.named_buffers() if "num_batches" not in name]
    assert sum(buffer.numel() for buffer in norms) == OTHERS


def test_it_gives_two_pictures_of_the_size_of_its_input():
    with torch.inference_mode():
        answers = build().eval()(torch.zeros(1, 3, 96, 128))
    assert [tuple(answer.shape) for answer in answers] == [(1, 1, 96, 128)] * 2

import pytest

from foretell.frontends.huggingface.operators import selective_scan

torch = pytest.importorskip("torch")


def scan_inputs(device):
    batch, channels, states, length = 2, 6, 4, 5
    shapes = [(batch, channels, length)] * 2 + [(channels, states)] + [(batch, states, length)] * 2
    return [torch.zeros(shape, device=device, dtype=torch.bfloat16) for shape in shapes]


def test_the_scan_gives_the_shape_of_its_input_and_on_request_the_state():
    assert selective_scan(*scan_inputs("meta")).shape == (2, 6, 5)
    output, state = selective_scan(*scan_inputs("meta"), return_last_state=True, delta_softplus=True)
    assert (output.shape, state.shape) == ((2, 6, 5), (2, 6, 4))
    assert output.dtype == state.dtype == torch.bfloat16


def test_the_scan_has_no_kernel():
    with pytest.raises(NotImplementedError, match="has no kernel"):
        selective_scan(*scan_inputs("cpu"))

"""What a user asks of a model."""

import pytest

from foretell.errors import InputError
from foretell.frontends.request import InputSpec, ModelRequest, image_shape, match_inputs, parse_inputs


def test_inputs_as_people_write_them() -> None:
    assert parse_inputs(["3x224x224"]) == parse_inputs(["3,224,224"]) == parse_inputs([" 3×224×224 "])
    assert parse_inputs(["ids=128:long", "scalar"]) == (InputSpec("ids", (128,), "int64"), InputSpec(None, ()))
    assert parse_inputs(["a=2:float16"])[0].dtype == "fp16"


@pytest.mark.parametrize("text", ["", "x", "3x", "x3", "3xx4", "=3", "3x4:", "-1", "1.5", "3x4:nope", "3;4", "9" * 19])
def test_malformed_inputs_are_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_inputs([text])


def test_inputs_find_their_places() -> None:
    first, second = InputSpec(None, (1,)), InputSpec("b", (2,))
    assert match_inputs((first, second), ["a", "b", "c"]) == {"a": first, "b": second}
    with pytest.raises(InputError, match="2 inputs were given; the model has 1: b"):
        match_inputs((first, second), ["b"])
    with pytest.raises(InputError, match="no input 'b'"):
        match_inputs((second,), ["x"])


def test_images() -> None:
    for text in ("64", "64x64", "3x64x64"):
        assert image_shape(ModelRequest("m", parse_inputs([text])), (3, 224, 224)) == (3, 64, 64)
    assert image_shape(ModelRequest("m"), (3, 224, 224)) == (3, 224, 224)
    with pytest.raises(InputError, match="4 dimensions"):
        image_shape(ModelRequest("m", parse_inputs(["1x3x64x64"])), (3, 224, 224))
    with pytest.raises(InputError, match="one input"):
        image_shape(ModelRequest("m", parse_inputs(["64", "64"])), (3, 224, 224))

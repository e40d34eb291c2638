"""One tree of errors, each also the built-in that fits."""

import inspect

import pytest

from foretell import errors


def test_the_picture_is_the_tree() -> None:
    drawn = errors.__doc__ or ""
    classes = [c for _, c in inspect.getmembers(errors, inspect.isclass)]
    assert len(classes) > 5
    for cls in classes:
        assert issubclass(cls, errors.ForetellError)
        assert cls.__name__ in drawn
        assert cls.__doc__


@pytest.mark.parametrize(
    ("cls", "builtin"),
    [
        (errors.GraphError, ValueError),
        (errors.InputError, ValueError),
        (errors.DeviceError, ValueError),
        (errors.UnknownNameError, KeyError),
        (errors.MissingExtraError, ImportError),
        (errors.MeasurementError, RuntimeError),
        (errors.UntrustedModelError, errors.ModelError),
        (errors.UnsupportedOperatorError, errors.ModelError),
    ],
)
def test_errors_are_also_built_in(cls: type[Exception], builtin: type[Exception]) -> None:
    assert issubclass(cls, builtin)
    assert str(cls("what we got")) == "what we got", "no quotes around it, as KeyError would add"
    assert str(cls()) == cls.__name__


def test_a_message_can_always_be_written() -> None:
    assert str(errors.ModelError("the name \ud800 is odd")).encode() == b"the name \\ud800 is odd"

import pytest

from foretell.rendering.terminal.printable import printable


@pytest.mark.parametrize("text", ["conv\x1b[2J", "a\nb", "a\rb", "a\x07", "a\u202eb"])
def test_nothing_is_left_that_steers_a_terminal(text):
    assert printable(text).isprintable()
    assert len(printable(text)) == len(text)


def test_ordinary_names_stay_as_they_are():
    assert printable("layer1.0.conv → größe") == "layer1.0.conv → größe"

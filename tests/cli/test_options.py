import click
import pytest
from click.testing import CliRunner

from foretell.cli import options


def _parse(*argv: str) -> dict[str, object]:
    parsed: dict[str, object] = {}

    @click.command()
    @options.model
    @options.batch_size
    @options.inputs
    @options.context
    @options.trust
    @options.as_json
    def run(**values: object) -> None:
        parsed.update(values)

    parsed["code"] = CliRunner().invoke(run, list(argv)).exit_code
    return parsed


def test_inputs_repeat_and_short_names_work():
    parsed = _parse("net.onnx", "-b", "8", "-i", "ids=128:int64", "--input", "3x224x224")
    assert parsed["code"] == 0
    assert parsed["batch_size"] == 8
    assert parsed["inputs"] == ("ids=128:int64", "3x224x224")


def test_nothing_is_trusted_or_assumed_unless_asked():
    parsed = _parse("net.py:build")
    assert (parsed["code"], parsed["model"]) == (0, "net.py:build")
    assert (parsed["trust"], parsed["as_json"], parsed["context"]) == (False, False, None)
    parsed = _parse("net.py:build", "--trust", "--json", "--context", "64")
    assert (parsed["trust"], parsed["as_json"], parsed["context"]) == (True, True, 64)


@pytest.mark.parametrize("argv", [(), ("net.onnx", "-b", "many"), ("net.onnx", "--context", "1.5"), ("a", "--no-json")])
def test_unreadable_options_are_a_usage_error(argv):
    assert _parse(*argv) == {"code": 2}

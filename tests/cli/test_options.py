import click
import pytest
from click.testing import CliRunner

from foretell.cli import options


def _told(*argv: str) -> dict[str, object]:
    told: dict[str, object] = {}

    @click.command()
    @options.model
    @options.batch_size
    @options.inputs
    @options.context
    @options.trust
    @options.as_json
    def run(**values: object) -> None:
        told.update(values)

    told["code"] = CliRunner().invoke(run, list(argv)).exit_code
    return told


def test_inputs_repeat_and_short_names_work():
    told = _told("net.onnx", "-b", "8", "-i", "ids=128:int64", "--input", "3x224x224")
    assert told["code"] == 0
    assert told["batch_size"] == 8
    assert told["inputs"] == ("ids=128:int64", "3x224x224")


def test_nothing_is_trusted_or_assumed_unless_asked():
    told = _told("net.py:build")
    assert (told["code"], told["model"]) == (0, "net.py:build")
    assert (told["trust"], told["as_json"], told["context"]) == (False, False, None)
    told = _told("net.py:build", "--trust", "--json", "--context", "64")
    assert (told["trust"], told["as_json"], told["context"]) == (True, True, 64)


@pytest.mark.parametrize("argv", [(), ("net.onnx", "-b", "many"), ("net.onnx", "--context", "1.5"), ("a", "--no-json")])
def test_what_cannot_be_read_is_a_usage_error(argv):
    assert _told(*argv) == {"code": 2}

import json

import pytest

from command_line import run
from foretell.cli.main import main


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [(("-d", "t4"), 0, "yes"), (("-d", "t4", "-b", str(2**20)), 4, "no")],
)
def test_the_exit_code_is_the_answer(model, capsys, arguments, code, said):
    assert shown(capsys, "fit", model, *arguments, code=code).startswith(f"{said}: tiny.onnx needs about ")
    answer = json.loads(shown(capsys, "fit", model, *arguments, "--json", code=code))
    assert (answer["fits"], answer["model"]) == (said, model)
    assert answer["largest_batch"] <= answer["largest_batch_perhaps"]


def shown(capsys, *arguments, code):
    """What is printed; `run` returns the errors of a command whose exit code is not 0, but here it is an answer."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert ended.value.code == code
    return capsys.readouterr().out


def test_an_error_is_no_answer(model, capsys):
    assert "Unknown device" in run(capsys, "fit", model, "-d", "nothing", code=2)

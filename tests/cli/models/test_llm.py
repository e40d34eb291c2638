"""Tests of ``foretell llm``."""

import json

from click.testing import CliRunner

from foretell.cli.main import app

COMMAND = ["llm", "meta-llama/Llama-3.1-70B", "--device", "h100-sxm", "--concurrency", "64"]


def test_the_first_line_says_whether_it_fits_and_how_many_gpus_it_takes() -> None:
    result = CliRunner().invoke(app, COMMAND)
    assert result.exit_code == 0, result.output
    assert result.output.splitlines()[0] == (
        "meta-llama/Llama-3.1-70B fits on 4 × h100-sxm (tensor parallel 4); the least is 2"
    )
    assert "first token" in result.output


def test_json_is_one_object() -> None:
    result = CliRunner().invoke(app, [*COMMAND, "--json"])
    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["gpus"] == 4

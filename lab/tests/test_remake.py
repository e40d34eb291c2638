import importlib.util
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from foretell.errors import InputError
from lab.commands import ALONE, app
from lab.remake import REMADE, find, remake

ROOT = Path(__file__).parents[2]


def test_every_table_is_listed_with_its_time():
    output = CliRunner().invoke(app, ["remake"]).output
    assert len(output.splitlines()) == len(REMADE)
    assert "dippm" in output
    assert "90 min of two cores and 660 s of an H200" in output


def test_commands_name_modules_and_predictors_that_exist():
    judged = set()
    for entry in REMADE:
        for command in entry.commands:
            module, *words = command.split()
            assert importlib.util.find_spec(module), command
            judged |= set(words[1:]) if module == "lab" else set()
    assert set(ALONE) <= judged, "each comparison of its own has a table"


def test_reports_that_can_be_remade_are_there():
    made = {entry.report for entry in REMADE if entry.report}
    missing = {report for report in made if not (ROOT / report).exists()}
    assert missing <= {"reports/hierarchical-roofline.md"}, "it needs a GPU"


def test_commands_run_in_order_and_the_first_failure_ends_them(monkeypatch, tmp_path):
    ran, said = [], []

    def run(command, check):
        ran.append(command[2:])
        return SimpleNamespace(returncode=int("fits" in command[2]))

    monkeypatch.setattr(subprocess, "run", run)
    remake(["few-shot", "pairs"], tmp_path, said.append)
    assert ran == [["lab.papers.few_shot", str(tmp_path)], ["lab.papers.pairs"]]
    with pytest.raises(InputError, match="ended with the code 1"):
        remake(["dippm"], None, said.append)
    assert "fits" in ran[-1][0], "the report is not made"
    assert len(ran) == 2 + 1 + next(n for n, command in enumerate(find("dippm").commands) if "fits" in command)


def test_what_reads_public_tables_asks_for_them():
    with pytest.raises(InputError, match="--tables"):
        remake(["llm"], None, print)
    with pytest.raises(InputError, match="Did you mean 'dippm'"):
        remake(["dipm"], None, print)

"""The notebook in examples/: its cells run, without a network, and it is what make_notebook.py writes."""

import importlib.util
import json
import re
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


def maker() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebook", EXAMPLES / "make_notebook.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cells() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((EXAMPLES / "first-steps.ipynb").read_text(encoding="utf-8"))["cells"]
    return found


def test_the_notebook_is_what_its_script_writes() -> None:
    assert [(cell["cell_type"], "".join(cell["source"])) for cell in cells()] == maker().sources()


def test_its_cells_run_offline_and_print_something_like_what_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object, **_options: object) -> None:
        raise OSError("a notebook that runs offline opens no connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.chdir(EXAMPLES)
    names: dict[str, object] = {}
    for cell in cells():
        if cell["cell_type"] == "code":
            shown = maker().run("".join(cell["source"]), names)
            stored = "".join(text for output in cell["outputs"] for text in output["text"])
            # numbers move with every fit, and rows with every ranking: the first word of a cell stays
            assert bool(shown) is bool(stored)
            assert re.findall(r"[A-Za-z:]+", shown)[:1] == re.findall(r"[A-Za-z:]+", stored)[:1]


def test_the_notebook_is_small() -> None:
    assert (EXAMPLES / "first-steps.ipynb").stat().st_size < 20_000

"""``foretell serve``: its rules before anything heavy is loaded."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import run
from foretell.cli.servers import serve


def test_an_address_of_others_needs_a_token(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORETELL_TOKEN", raising=False)
    assert "--token" in run(capsys, "serve", "--host", "0.0.0.0", code=2)
    assert "between 1 and 64" in run(capsys, "serve", "--workers", "0", code=2)
    assert "8 or more" in run(capsys, "serve", "--token", "abc", code=2)


def test_settings_reach_the_server(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Any] = []
    load = serve.importlib.import_module

    def fake(name: str) -> Any:
        if name == "foretell.web.server":
            return SimpleNamespace(serve=lambda settings, say: (served.append(settings), say("http://127.0.0.1:1")))
        return load(name)

    monkeypatch.setattr(serve.importlib, "import_module", fake)
    monkeypatch.setattr(serve, "versions", lambda *_, **__: "")
    monkeypatch.setenv("FORETELL_TOKEN", "from-the-environment")
    shown = run(capsys, "serve", "--host", "0.0.0.0", "--port", "0", "--timeout-s", "5", "--max-upload-mib", "7")
    assert "http://127.0.0.1:1" in shown
    assert (served[0].token, served[0].timeout_s, served[0].max_upload_mib) == ("from-the-environment", 5.0, 7.0)
    assert (served[0].allowed_hosts, served[0].behind_proxy, served[0].cache_dir) == ((), False, None)
    assert served[0].workers >= 1
    monkeypatch.setenv("FORETELL_ANSWERS", "answers")
    run(
        capsys,
        "serve",
        "--allowed-host",
        "a.example",
        "--allowed-host",
        "b.example",
        "--behind-proxy",
        "--workers",
        "3",
    )
    assert (served[1].allowed_hosts, served[1].behind_proxy) == (("a.example", "b.example"), True)
    assert (served[1].cache_dir, served[1].workers) == (Path("answers"), 3)


def test_a_missing_library_names_the_extra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "LIBRARIES", ("no_such_library",))
    assert "pip install 'foretell[web]'" in run(capsys, "serve", code=2)


def test_the_command_line_loads_no_web_library() -> None:
    code = "import sys, foretell.cli.main; print({'fastapi', 'gradio', 'uvicorn', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"

"""The page itself, without a browser: it is there, it asks its queue, and it has no addresses of other hosts.

In a process of its own: Gradio leaves event loops open, which here would be errors of whatever test runs next.
"""

import json
import re
import subprocess
import sys
from typing import Any

import pytest

from foretell.optional import available

pytestmark = [
    pytest.mark.slow,  # Gradio alone takes seconds to load
    pytest.mark.skipif(not available("gradio"), reason="Gradio is an extra: pip install 'foretell[web]'"),
]

LOOK = """
import json
from fastapi.testclient import TestClient
from foretell.web.api import make_app
from foretell.web.settings import Settings

app = make_app(Settings(workers=1))
page = TestClient(app, base_url="http://localhost")  # not entered: no worker is needed to look at it
pages = {path: page.get(path).text for path in ("/", "/theme.css", "/config")}
message = {"data": [{"path": "http://example.org"}], "session_hash": "a"}
pages["statuses"] = [
    page.get("/api/devices").status_code,
    page.get("/healthz").status_code,
    page.get("/gradio_api/file=/etc/passwd").status_code,
    page.post("/gradio_api/upload", files={"files": ("a.onnx", b"x")}).status_code,
    page.post("/gradio_api/queue/join", json=message).status_code,
]
import asyncio, gradio
from gradio.helpers import special_args
from foretell.web.admission.clients import CLIENT
from foretell.web.page.page import _for_client

async def handler(*values):
    return [CLIENT.get(), *values]

wrapped = _for_client(handler, "Reading")
request = gradio.Request(client={"host": "10.0.0.9"}, headers={})
async def collect():
    return [answer async for answer in wrapped(*special_args(wrapped, ["a", "b"], request)[0])]

pages["handled"] = asyncio.run(collect())
app.state.queue.uploads.close()
print(json.dumps(pages))
"""


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    done = subprocess.run([sys.executable, "-c", LOOK], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "UserWarning" not in done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_the_page_has_five_tabs_and_loads_nothing_from_other_hosts(page: dict[str, Any]) -> None:
    for label in ("Predict", "Compare", "Share a GPU", "Advise", "Language models", "Download report"):
        assert f'"{label}"' in page["/"]
    loaded = re.findall(r"""(?:src|href)=["']?(https?://[^"' >]+)""", page["/"])
    assert [link for link in loaded if "localhost" not in link] == []
    assert not re.search(r"@import|url\([\"']?http", page["/theme.css"])


def test_a_button_knows_whose_it_is(page: dict[str, Any]) -> None:
    (busy, nothing), answer = page["handled"]
    assert "Reading" in busy
    assert nothing == ""
    assert answer == ["10.0.0.9", "a", "b"]


def test_analytics_are_off_and_no_button_is_an_api(page: dict[str, Any]) -> None:
    config = json.loads(page["/config"])
    assert config["analytics_enabled"] is False
    buttons = config["dependencies"]
    assert len(buttons) >= 8
    assert [button for button in buttons if button["api_visibility"] != "private"] == []


def test_the_api_is_beside_it_and_files_are_not(page: dict[str, Any]) -> None:
    assert page["statuses"] == [200, 200, 404, 404, 422]

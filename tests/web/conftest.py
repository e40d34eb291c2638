"""A small model, and a server without its page that reads it in a real worker; skipped where a library is absent."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foretell.optional import available
from foretell.testing import tiny_onnx

LIBRARIES = ("fastapi", "httpx", "prometheus_client", "python_multipart", "uvicorn")
collect_ignore_glob = [] if all(map(available, LIBRARIES)) else ["test_*.py"]


@pytest.fixture(scope="session")
def onnx_bytes() -> bytes:
    data: bytes = tiny_onnx().SerializeToString()
    return data


@pytest.fixture(scope="package")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from fastapi.testclient import TestClient

    from foretell.web.api import make_app
    from foretell.web.settings import Settings

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FORETELL_CACHE", str(tmp_path_factory.mktemp("cache")))
        app = make_app(Settings(max_upload_mib=1, workers=1), page=False)
        with TestClient(app, base_url="http://127.0.0.1:7860") as test_client:
            yield test_client


@pytest.fixture
def left_files(client: Any) -> Iterator[None]:
    """Fails where a request leaves a file."""
    folder: Path = client.app.state.queue.uploads.folder
    before = sorted(folder.rglob("*"))
    yield
    assert sorted(folder.rglob("*")) == before

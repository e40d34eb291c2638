"""The whole application without its page: a real worker, files that go, errors that are kind."""

import errno
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from foretell.testing import tiny_onnx
from foretell.web.api import make_app
from foretell.web.settings import Settings


def test_an_uploaded_model_is_predicted_and_deleted(client: TestClient, left_files: None, onnx_bytes: bytes) -> None:
    answer = client.post(
        "/api/predict", files={"model": ("my net.onnx", onnx_bytes)}, data={"batch_size": "8", "device": "a100"}
    )
    assert answer.status_code == 200, answer.text
    prediction = answer.json()
    assert prediction["model"] == "my_net.onnx"
    assert (prediction["device"], prediction["batch_size"]) == ("a100-sxm-40gb", 8)
    assert prediction["latency_ms"]["low"] < prediction["latency_ms"]["value"] < prediction["latency_ms"]["high"]


def test_two_models_are_compared(client: TestClient, left_files: None, onnx_bytes: bytes) -> None:
    files = {"model": ("a.onnx", onnx_bytes), "other": ("b.onnx", onnx_bytes)}
    answer = client.post("/api/compare", files=files)
    assert answer.json()["times"]["latency_ms"] == 1
    assert [row["model"] for row in answer.json()["models"]] == ["a.onnx", "b.onnx"]


def test_two_models_share_a_gpu(client: TestClient, left_files: None, onnx_bytes: bytes) -> None:
    files = {"model": ("a.onnx", onnx_bytes), "other": ("b.onnx", onnx_bytes)}
    answer = client.post("/api/share", files=files, data={"batch_size": "8", "method": "time-slicing"}).json()
    assert [(job["model"], job["batch_size"]) for job in answer["jobs"]] == [("a.onnx", 8), ("b.onnx", 8)]
    assert all(2 < job["slowdown"]["value"] < 2.5 for job in answer["jobs"])
    refused = client.post(
        "/api/share", files={"model": files["model"], "other": files["other"]}, data={"device": "cpu"}
    )
    assert refused.status_code == 422


def test_a_kept_file_answers_until_it_is_deleted(client: TestClient, left_files: None, onnx_bytes: bytes) -> None:
    upload = client.post("/api/uploads", files={"file": ("net.onnx", onnx_bytes)})
    assert (upload.status_code, upload.json()["name"]) == (201, "net.onnx")
    model = upload.json()["model"]
    advice = client.post("/api/advise", json={"model": model, "devices": ["h200", "l4"], "mig": False})
    assert advice.json()["choices"][0]["device"] in ("h200", "l4")
    report = client.post("/api/report", json={"model": model})
    assert report.headers["content-type"].startswith("text/html")
    assert "net.onnx" in report.text
    assert client.delete(f"/api/uploads/{model.removeprefix('upload:')}").status_code == 204
    gone = client.post("/api/predict", json={"model": model})
    assert (gone.status_code, gone.json()["error"]) == (422, "The uploaded file was deleted: upload it again.")


@pytest.mark.parametrize(
    ("name", "data", "status", "message"),
    [
        ("a.onnx", b"garbage", 422, "not an ONNX model"),
        ("a.onnx", b"", 422, "empty"),
        ("a.pt2", b"garbage", 422, "not a .pt2 archive"),
        ("a.pt", b"\x80\x04.", 422, ".onnx or .pt2"),
        ("a.onnx", b"\x80\x04.", 422, "never opened"),
        ("a.onnx", b"PK\x03\x04 no archive", 422, "zip"),
        ("a.txt", b"text", 422, ".onnx or .pt2"),
        ("a.onnx", b"x" * 3_000_000, 413, "1 MiB"),
        ("a.onnx", b"x" * 1_500_000, 413, "1 MiB"),
    ],
)  # fmt: skip
def test_what_is_no_model_is_refused_and_deleted(
    client: TestClient, left_files: None, name: str, data: bytes, status: int, message: str
) -> None:
    for path, field in (("/api/predict", "model"), ("/api/uploads", "file")):
        if path == "/api/uploads" and status == 422 and name.endswith((".onnx", ".pt2")) and data:
            continue  # what it holds is looked at when it is asked about
        answer = client.post(path, files={field: (name, data)})
        assert (answer.status_code, message in answer.json()["error"]) == (status, True), answer.text


@pytest.mark.parametrize(
    "kind", ["predict", "fit", "compare", "share", "sweep", "advise", "report", "llm", "advise-llm"]
)
def test_no_file_of_the_server_is_read(client: TestClient, tmp_path: Path, onnx_bytes: bytes, kind: str) -> None:
    secret = tmp_path / "secret.onnx"
    secret.write_bytes(onnx_bytes)
    for spec in (str(secret), f"../../..{secret}", f"hf:{tmp_path}", "net.py:build"):
        answer = client.post(
            f"/api/{kind}", json={"model": spec} | ({"other": spec} if kind in ("compare", "share") else {})
        )
        assert answer.status_code == 422
        assert "No file of the server is opened" in answer.json()["error"]


def test_a_worker_that_dies_is_one_line_and_the_next_question_is_answered(
    client: TestClient, left_files: None, onnx_bytes: bytes
) -> None:
    pool = client.app.state.pool  # type: ignore[attr-defined]
    (pid,) = pool.pids
    client.portal.call(lambda: next(iter(pool._alive)).end())  # type: ignore[union-attr]
    answer = client.post("/api/predict", files={"model": ("after.onnx", onnx_bytes)})
    assert answer.status_code == 200, answer.text
    assert pool.pids != [pid]


@pytest.mark.parametrize(
    ("headers", "status", "words"),
    [({"host": "evil.example"}, 421, "not this server"), ({"origin": "http://evil.example"}, 403, "another site")],
)
def test_other_sites_leave_nothing_here(
    client: TestClient, left_files: None, onnx_bytes: bytes, headers: dict[str, str], status: int, words: str
) -> None:
    answer = client.post("/api/uploads", files={"file": ("net.onnx", onnx_bytes)}, headers=headers)
    assert (answer.status_code, words in answer.json()["error"]) == (status, True)


def test_a_worker_that_is_killed_while_it_answers_is_not_noticed(
    client: TestClient, left_files: None, onnx_bytes: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = client.app.state.pool  # type: ignore[attr-defined]
    use, deaths = pool._use, pool.deaths

    async def kill(worker: Any, message: dict[str, Any]) -> Any:
        monkeypatch.setattr(pool, "_use", use)
        os.kill(worker.process.pid, signal.SIGKILL)
        return await use(worker, message)

    monkeypatch.setattr(pool, "_use", kill)
    answer = client.post("/api/predict", files={"model": ("killed.onnx", onnx_bytes)}, data={"batch_size": "77"})
    assert answer.status_code == 200, answer.text
    assert pool.deaths == deaths + 1


@pytest.mark.parametrize("place", ["tempfile.SpooledTemporaryFile.write", "foretell.web.admission.uploads._copy"])
def test_a_full_disk_is_503_and_the_server_goes_on(
    client: TestClient, left_files: None, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    # a content that nobody has uploaded: of one that lies on the disk already, nothing would be written
    onnx_bytes = tiny_onnx(size=40 + len(place)).SerializeToString()
    with monkeypatch.context() as patch:
        patch.setattr(place, fail)
        for path, field in (("/api/predict", "model"), ("/api/uploads", "file")):
            answer = client.post(path, files={field: ("a.onnx", onnx_bytes)})
            assert answer.status_code == 503
            assert "No space left on device" in answer.json()["error"]
            assert int(answer.headers["retry-after"]) > 0
    assert client.post("/api/predict", files={"model": ("a.onnx", onnx_bytes)}).status_code == 200


def test_a_full_disk_anywhere_else_is_503_too(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EDQUOT, "Disk quota exceeded")

    monkeypatch.setattr(client.app.state.queue, "ask", fail)  # type: ignore[attr-defined]
    answer = client.post("/api/predict", json={"model": "timm:resnet18"})
    assert (answer.status_code, "quota" in answer.json()["error"]) == (503, True)


def test_wrong_devices_and_precisions_are_reported(client: TestClient) -> None:
    for wrong in (
        {"device": "h2000"},
        {"mode": "dreaming"},
        {"slice": "mig:9g"},
        {"runtime": "x"},
        {"optimizer": "sgd"},
    ):
        answer = client.post("/api/predict", json={"model": "timm:resnet18", **wrong})
        assert answer.status_code == 422, answer.text
        assert len(answer.json()["error"]) > 10


def test_other_routes_answer(client: TestClient) -> None:
    assert client.get("/healthz").json()["status"] == "ok"
    assert "h200" in [device["id"] for device in client.get("/api/devices").json()]
    text = client.get("/metrics").text
    assert 'route="/api/predict"' in text
    assert "foretell_workers_busy 0.0" in text
    missing = client.get("/nothing/here")
    assert (missing.status_code, missing.json()) == (404, {"error": "Not Found"})
    assert client.get("/docs").status_code == 404  # its scripts would come from elsewhere
    assert client.put("/api/predict").status_code == 405
    assert json.loads(client.get("/openapi.json").text)["info"]["title"] == "foretell"


def test_a_full_queue_answers_with_retry_after(client: TestClient, onnx_bytes: bytes) -> None:
    queue = client.app.state.queue  # type: ignore[attr-defined]
    queue.places.take("others", 10_000)
    try:
        answer = client.post("/api/predict", files={"model": ("a.onnx", onnx_bytes)})
    finally:
        queue.places.take("others", -10_000)
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0


def test_a_token_guards_all_of_it_and_the_folder_goes_at_the_end() -> None:
    app = make_app(Settings(host="0.0.0.0", token="a-long-token", workers=1), page=False)
    folder: Path = app.state.queue.uploads.folder
    client = TestClient(app, base_url="http://10.0.0.5:7860")  # not entered: no worker is needed to be refused
    assert client.get("/api/devices").status_code == 401
    assert client.get("/openapi.json").status_code == 401
    assert client.get("/api/devices", headers={"authorization": "Bearer a-long-token"}).status_code == 200
    assert client.get("/api/devices?token=a-long-token").status_code == 200  # redirected, with a cookie
    assert client.get("/api/devices").status_code == 200
    app.state.queue.uploads.close()
    assert not folder.exists()

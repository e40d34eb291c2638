"""Bodies that are no question, through the whole application."""

import pytest
from fastapi.testclient import TestClient


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[]", "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b'{"model": "timm:x", "batch_size": ' + b"9" * 5000 + b"}", "application/json", 422),
        (b'{"model": "\\ud800"}', "application/json", 422),
        (b'{"model": "timm:x", "device": "\\ud800"}', "application/json", 422),
        (b'"' + b"x" * 1_100_000 + b'"', "application/json", 413),
        (b"\xff\xfe", "application/json", 422),
        (b"", "application/json", 422),
        (b"model=timm:x", "application/x-www-form-urlencoded", 415),
        (b"x", "text/plain", 415),
        (b"x", "multipart/form-data", 400),
        (b"x", "multipart/form-data; boundary=y", 400),
        (b"--y\r\n\r\n", "multipart/form-data; boundary=y", 400),
    ],
)
def test_bad_forms_are_refused_in_one_line(
    client: TestClient, left_files: None, content: bytes, kind: str, status: int
) -> None:
    answer = client.post("/api/predict", content=content, headers={"content-type": kind})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["error"]
    assert "\n" not in answer.json()["error"]


def test_fields_of_a_form(client: TestClient, left_files: None, onnx_bytes: bytes) -> None:
    file = {"model": ("net.onnx", onnx_bytes)}
    rows = client.post("/api/sweep", files=file, data={"batch_sizes": "1,2", "devices": ["h200", "l4"], "mode": ""})
    assert [(row["device"], row["batch_size"]) for row in rows.json()["points"]] == [
        ("h200", 1), ("h200", 2), ("l4", 1), ("l4", 2),
    ]  # fmt: skip
    twice = client.post("/api/predict", files=file, data={"device": ["h200", "l4"]})
    assert "given twice" in twice.json()["error"]
    wrong = client.post("/api/predict", files={"file": ("net.onnx", onnx_bytes)})
    assert "files go into the field model" in wrong.json()["error"]
    both = client.post("/api/predict", files=[("model", ("a.onnx", onnx_bytes)), ("model", ("b.onnx", onnx_bytes))])
    assert both.status_code == 422
    many = client.post("/api/predict", files=[("model", ("a.onnx", b"x"))] * 3)
    assert many.status_code == 400


def test_a_field_that_is_no_file_is_a_spec(client: TestClient) -> None:
    answer = client.post("/api/predict", files={"model": (None, "/etc/passwd")})
    assert answer.status_code == 422
    assert "No file of the server" in answer.json()["error"]

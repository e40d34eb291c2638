"""What OpenAPI says is what the routes do."""

from fastapi.testclient import TestClient

from foretell.web.questions import QUESTIONS
from foretell.web.schema import body_of


def test_every_question_has_a_route_with_two_kinds_of_body(client: TestClient) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for kind in QUESTIONS:
        route = paths[f"/api/{kind}"]["post"]
        assert set(route["requestBody"]["content"]) == {"application/json", "multipart/form-data"}
        assert {"200", "413", "422", "503", "504"} <= set(route["responses"])
    assert {"/healthz", "/metrics", "/api/devices", "/api/uploads"} <= set(paths)


def test_only_in_a_form_is_a_model_a_file() -> None:
    content = body_of("compare")["requestBody"]["content"]
    form, own = (content[kind]["schema"]["properties"] for kind in ("multipart/form-data", "application/json"))
    assert form["model"]["format"] == form["other"]["format"] == "binary"
    assert "format" not in own["model"]
    assert set(form) == set(own)

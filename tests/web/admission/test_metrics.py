"""What is counted, and that the number of names stays small."""

import re
from pathlib import Path

from foretell.web.admission.metrics import Metrics, route_of

ROOT = Path(__file__).resolve().parents[3]


def test_requests_times_and_refusals() -> None:
    metrics = Metrics()
    metrics.count("/api/predict", 200, 0.03)
    metrics.count("/api/predict", 422, 3.0)
    metrics.refuse("size")
    metrics.watch("workers_busy", "Busy.", lambda: 2.0)
    page = metrics.page().decode()
    assert 'foretell_requests_total{route="/api/predict",status="200"} 1.0' in page
    assert 'foretell_request_seconds_bucket{le="0.05",route="/api/predict"} 1.0' in page
    assert 'foretell_uploads_refused_total{reason="size"} 1.0' in page
    assert "foretell_workers_busy 2.0" in page


def test_unknown_paths_share_one_metric() -> None:
    assert {route_of(path) for path in ("/x", "/y/z", "/", "//")} == {"page"}
    assert {route_of(path) for path in ("/api/x", "/api/../y", "/api/")} == {"other"}


def test_every_metric_is_documented_and_no_other() -> None:
    names = set(re.findall(r"^# TYPE (foretell_\w+?)(?:_total)? ", Metrics().page().decode(), re.MULTILINE))
    names = {name for name in names if not name.endswith("_created")}
    watched = re.findall(r'metrics\.watch\("(\w+)"', (ROOT / "src/foretell/web/api.py").read_text(encoding="utf-8"))
    text = (ROOT / "docs/serving.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(foretell_\w+?)(?:_total)?(?:\{[^`]*\})?` ", text, re.MULTILINE))
    assert documented == names | {f"foretell_{name}" for name in watched}

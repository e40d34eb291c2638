"""Web: the metrics of the server, for Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
ROUTES = (
    "/healthz", "/metrics", "/openapi.json", "/api/devices", "/api/predict", "/api/compare", "/api/share",
    "/api/sweep", "/api/advise", "/api/report", "/api/uploads",
)  # fmt: skip
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "foretell_requests", "Requests by route and status; 0: the client left.", ["route", "status"],
            registry=self._registry,
        )  # fmt: skip
        self._seconds = Histogram(
            "foretell_request_seconds", "How long requests took.", ["route"], buckets=_BUCKETS,
            registry=self._registry,
        )  # fmt: skip
        self._refused = Counter(
            "foretell_uploads_refused", "Uploads refused, by reason: size, pace, busy, content.", ["reason"],
            registry=self._registry,
        )  # fmt: skip

        self._saved = Counter(
            "foretell_answers_saved", "Answers that cost no worker, by source: memory, folder, in flight.",
            ["source"], registry=self._registry,
        )  # fmt: skip

    def watch(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge that is computed when Prometheus reads it."""
        Gauge(f"foretell_{name}", text, registry=self._registry).set_function(value)

    def count(self, path: str, status: int, seconds: float) -> None:
        """Count a finished request."""
        route = route_of(path)
        self._requests.labels(route, str(status)).inc()
        self._seconds.labels(route).observe(seconds)

    def refuse(self, reason: str) -> None:
        """Count a refused upload."""
        self._refused.labels(reason).inc()

    def save(self, source: str) -> None:
        """Count an answer that cost no worker."""
        self._saved.labels(source).inc()

    def page(self) -> bytes:
        """All metrics in the text format of Prometheus."""
        return generate_latest(self._registry)


def route_of(path: str) -> str:
    """The label of a path.

    Paths that do not exist share one label: otherwise a scanner could fill the memory with labels.

    >>> route_of("/api/uploads/1f"), route_of("/api/predict"), route_of("/assets/index.js")
    ('/api/uploads', '/api/predict', 'page')
    """
    if path.startswith("/api/uploads/"):
        return "/api/uploads"
    return path if path in ROUTES else "other" if path.startswith("/api/") else "page"

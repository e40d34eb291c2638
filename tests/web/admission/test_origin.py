"""Requests for other hosts (DNS rebinding) and from pages of other sites (forms) are refused."""

import pytest

from foretell.web.admission.origin import check_host, check_origin
from foretell.web.refusals import ForeignError, MisdirectedError
from foretell.web.settings import Settings


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("127.0.0.1:7860", {}),
        ("localhost", {}),
        ("LOCALHOST.:7860", {}),
        ("[::1]:7860", {}),
        ("127.3.2.1", {}),
        ("192.168.1.5:7860", {"host": "192.168.1.5"}),
        ("models.example.org", {"host": "models.example.org"}),
        ("models.example.org", {"allowed_hosts": ("Models.example.org",)}),
        ("models.example.org:443", {"allowed_hosts": ("models.example.org:443",)}),
        ("10.1.2.3", {"host": "0.0.0.0"}),  # no rebinding without a name
        ("[2001:db8::1]:7860", {"host": "::"}),
    ],
)
def test_our_own_names_pass(host: str, settings: dict[str, object]) -> None:
    check_host({"host": host}, Settings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "settings"),
    [
        ("evil.example", {}),
        ("evil.example:7860", {"host": "0.0.0.0"}),
        ("127.0.0.1.evil.example", {}),
        ("localhost.evil.example", {}),
        ("evil.example@127.0.0.1", {}),
        ("127.0.0.1@evil.example", {}),
        ("10.1.2.3", {}),
        ("models.example.org.evil.example", {"allowed_hosts": ("models.example.org",)}),
        ("", {}),
        ("[", {}),
        ("localhost:99999999", {}),
    ],
)
def test_other_names_are_refused(host: str, settings: dict[str, object]) -> None:
    with pytest.raises(MisdirectedError, match="--allowed-host") as caught:
        check_host({"host": host}, Settings(**settings))  # type: ignore[arg-type]
    assert caught.value.status == 421


def test_a_health_check_may_name_no_host() -> None:
    check_host({}, Settings())


OWN = {"host": "127.0.0.1:7860"}


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:7860"},
        {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "same-origin"},
        {"referer": "http://127.0.0.1:7860/?a=1"},
        {"sec-fetch-site": "none"},
        {"origin": "https://models.example.org", "host": "models.example.org"},  # a proxy speaks HTTPS
        {"origin": "https://models.example.org", "host": "models.example.org:443"},
    ],
)
def test_our_own_page_and_programs_may_post(headers: dict[str, str]) -> None:
    check_origin("POST", {**OWN, **headers})


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": ""},
        {"origin": "http://127.0.0.1:8888"},  # another server on this machine
        {"origin": "http://127.0.0.1"},
        {"origin": "http://localhost:7860"},  # the same server, but to a browser another site
        {"origin": "http://127.0.0.1:7860.evil.example"},
        {"origin": "http://127.0.0.1:x"},
        {"referer": "http://evil.example/127.0.0.1:7860"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "cross-site"},
    ],
)
@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_pages_of_other_sites_may_not(method: str, headers: dict[str, str]) -> None:
    with pytest.raises(ForeignError, match="another site") as caught:
        check_origin(method, {**OWN, **headers})
    assert caught.value.status == 403


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_links_from_other_sites_work(method: str) -> None:
    check_origin(method, {**OWN, "sec-fetch-site": "cross-site", "referer": "http://elsewhere.example/"})

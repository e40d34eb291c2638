"""Web: whom a request is for and which page sent it.

A page of another site can make a browser send requests to this machine. It may let its own name resolve to our address
(DNS rebinding): then the Host header has its name. Or it may send a form: then Origin has its name. Browsers do not let
pages set these headers. Programs such as curl send no Origin.
"""

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from foretell.web.refusals import ForeignError, MisdirectedError
from foretell.web.settings import Settings, is_loopback

_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
_SAME_SITES = ("same-origin", "none")  # none: the user typed the address
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SHOWN_CHARACTERS = 80


def check_host(headers: Mapping[str, str], settings: Settings) -> None:
    """Refuse a request for a host that this server is not.

    A request without a Host header passes: browsers always send one, health checks of load balancers may not.
    """
    host = headers.get("host")
    if host is not None and not _is_ours(_split(host)[0], settings):
        raise MisdirectedError(
            f"Got a request for the host {host[:_SHOWN_CHARACTERS]!r}, which is not this server. Use the address that "
            "it printed when it started, or start it with --allowed-host NAME."
        )


def check_origin(method: str, headers: Mapping[str, str]) -> None:
    """Refuse a request that changes something and comes from a page of another site."""
    if method in _SAFE_METHODS:
        return
    site = headers.get("sec-fetch-site", "none").lower()
    page = headers.get("origin", headers.get("referer"))
    if site not in _SAME_SITES or (page is not None and not _same_origin(page, headers.get("host", ""))):
        raise ForeignError("A page of another site sent this request. Only the page of this server may.")


def _is_ours(name: str | None, settings: Settings) -> bool:
    if name is None:
        return False
    allowed = {settings.host.lower(), *(_split(host)[0] for host in settings.allowed_hosts)}
    if name in allowed or name in _LOOPBACK_NAMES:
        return True
    address = _address(name)
    if address is None:
        return False  # a name that nobody allowed
    # No rebinding needs an address instead of a name. On all interfaces we do not know which address a client sees.
    return address.is_loopback if is_loopback(settings.host) else _is_wildcard(settings.host)


def _same_origin(page: str, host: str) -> bool:
    """Whether the address of a page is on a host. The proxy in front may speak HTTPS, so any scheme will do.

    >>> _same_origin("http://a:80", "a"), _same_origin("https://a", "a:443"), _same_origin("http://a:81", "a")
    (True, True, False)
    """
    try:
        parts = urlsplit(page)
        page_port = parts.port or _DEFAULT_PORTS.get(parts.scheme)
    except ValueError:
        return False
    name, port = _split(host)
    return (
        parts.scheme in _DEFAULT_PORTS
        and name is not None
        and (parts.hostname or "").rstrip(".") == name
        and page_port == (port or _DEFAULT_PORTS[parts.scheme])
    )


def _split(host: str) -> tuple[str | None, int | None]:
    """The name and the port of a Host header; no name where it makes no sense.

    >>> _split("Example.org.:80"), _split("[::1]:7860"), _split("::1"), _split("a@b")
    (('example.org', 80), ('::1', 7860), ('::1', None), (None, None))
    """
    if _address(host) is not None:
        return host.lower(), None
    if any(character in host for character in "@/?# \\"):
        return None, None
    try:
        parts = urlsplit(f"//{host}")
        return (parts.hostname or "").rstrip(".") or None, parts.port
    except ValueError:
        return None, None


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def _is_wildcard(host: str) -> bool:
    address = _address(host)
    return host == "" or (address is not None and address.is_unspecified)

"""Web: where the server listens and what it allows."""

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from foretell.errors import InputError

SHORTEST_TOKEN = 8
MOST_WORKERS = 64
_MOST_DEFAULT_WORKERS = 16  # each takes about 450 MiB once it has loaded torch


def default_workers() -> int:
    """A worker for each core that this process may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST_DEFAULT_WORKERS)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a server.

    ``waiting`` is the length of the queue, ``memory_mib`` the memory limit of a worker. ``allowed_hosts`` are other
    names by which clients may call the server. ``behind_proxy`` takes the address of a client from X-Forwarded-For.
    ``cache_dir`` is a folder of answers that several servers may share.
    """

    host: str = "127.0.0.1"
    port: int = 7860
    token: str | None = None
    max_upload_mib: float = 200.0
    timeout_s: float = 60.0
    workers: int = field(default_factory=default_workers)
    waiting: int = 256
    memory_mib: float = 4096.0
    allowed_hosts: tuple[str, ...] = ()
    behind_proxy: bool = False
    cache_dir: Path | None = None

    def check(self) -> None:
        """Refuse invalid settings, and a public address without a token.

        >>> Settings(host="0.0.0.0").check()
        Traceback (most recent call last):
        ...
        foretell.errors.InputError: Got --host 0.0.0.0, which others can reach: add --token, or use 127.0.0.1.
        """
        if self.token is None and not is_loopback(self.host):
            raise InputError(f"Got --host {self.host}, which others can reach: add --token, or use 127.0.0.1.")
        if self.token is not None and not _is_token(self.token):
            raise InputError(f"The token must have {SHORTEST_TOKEN} or more ASCII characters, without spaces.")
        if not 0 <= self.port < 65536:
            raise InputError(f"Got the port {self.port}; it must be between 0 and 65535, where 0 is any free one.")
        for name, value in (("--max-upload-mib", self.max_upload_mib), ("--timeout-s", self.timeout_s)):
            if not 0 < value < float("inf"):
                raise InputError(f"Got {name} {value:g}; it must be above 0.")
        if not 1 <= self.workers <= MOST_WORKERS:
            raise InputError(f"Got {self.workers} workers; it must be between 1 and {MOST_WORKERS}.")
        for name in self.allowed_hosts:
            if not name or any(character in name for character in "/@*, ") or "://" in name:
                raise InputError(f"Got --allowed-host {name!r}; give a name or an address, such as models.example.org.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("192.168.0.2")
    (True, True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_token(text: str) -> bool:
    return len(text) >= SHORTEST_TOKEN and text.isascii() and text.isprintable() and " " not in text

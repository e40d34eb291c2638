"""An address that others can reach needs a token; numbers must make sense."""

import os
from typing import Any

import pytest

from foretell.errors import InputError
from foretell.web.settings import Settings


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_this_machine_needs_no_token(host: str) -> None:
    Settings(host=host).check()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_addresses_need_a_token(host: str) -> None:
    with pytest.raises(InputError, match="--token"):
        Settings(host=host).check()
    Settings(host=host, token="long-enough-token").check()


@pytest.mark.parametrize("token", ["", "short", "has a space in it", "ümlaut-token", "new\nline-token"])
def test_a_token_that_protects_nothing_is_refused(token: str) -> None:
    with pytest.raises(InputError, match="token"):
        Settings(token=token).check()


def test_there_is_a_worker_for_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(5)), raising=False)
    assert Settings().workers == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(500)))
    assert Settings().workers == 16


@pytest.mark.parametrize(
    "wrong",
    [{"port": 70000}, {"port": -1}, {"workers": 0}, {"timeout_s": 0.0}, {"max_upload_mib": -1.0},
     {"timeout_s": float("nan")}, {"allowed_hosts": ("",)}, {"allowed_hosts": ("http://a",)},
     {"allowed_hosts": ("*",)}],
)  # fmt: skip
def test_impossible_numbers_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        Settings(**wrong).check()

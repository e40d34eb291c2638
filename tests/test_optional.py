"""A heavy library is imported, or the extra that installs it is named."""

import math
import os
from importlib import metadata

import pytest

from foretell.errors import MissingExtraError
from foretell.optional import available, installed_version, require, versions


def test_present() -> None:
    assert available("math")
    assert require("math", extra="none") is math
    assert require("os.path", extra="none").__name__ in ("posixpath", "ntpath")
    assert versions("numpy", extra="none").startswith("numpy ")


@pytest.mark.parametrize("library", ["numpy", "onnx", "click", "rich"])
def test_versions_are_those_that_the_installer_wrote(library: str) -> None:
    assert installed_version(library) == metadata.version(library)


def test_absent() -> None:
    assert not available("no_such_library")
    assert not available("")
    assert not available("no_such_library.part")
    with pytest.raises(
        MissingExtraError, match=r"Reading Keras models needs no_such_library: pip install 'foretell\[keras\]'"
    ):
        require("no_such_library.part", extra="keras", purpose="Reading Keras models")
    with pytest.raises(MissingExtraError, match=r"This needs no_such_library"):
        versions("numpy", "no_such_library", extra="keras")


def test_onnxruntime_telemetry_is_off_unless_the_user_enables_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ORT_DISABLE_TELEMETRY", raising=False)
    require("onnxruntime", extra="profile")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "0")
    require("onnxruntime", extra="profile")
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "0"

"""What one model may take, and files whose size is checked before they are read."""

from pathlib import Path

import pytest

from foretell.errors import ModelError
from foretell.frontends import budget
from foretell.frontends.budget import Budget, check_size, digest_file, module_path, parse_json


def test_what_is_drawn_adds_up() -> None:
    left = Budget("net", {"nodes": 10, "bytes of names": 20})
    left.draw("nodes", 10)
    with pytest.raises(ModelError, match="net needs more than 10 nodes"):
        left.draw("nodes", 1)
    left.draw_names(["abcde", "fghij"], 2)
    with pytest.raises(ModelError, match="bytes of names"):
        left.draw_names(["a"])


def test_one_name_is_not_a_book() -> None:
    with pytest.raises(ModelError, match="a name of 16385 characters"):
        Budget("net").draw_names(["a", "n" * 16385])


def test_size_comes_before_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sparse.onnx"
    with path.open("wb") as file:
        file.truncate(3 * 2**30)
    monkeypatch.setattr(budget.hashlib, "file_digest", lambda *_: pytest.fail("the file was read"))
    with pytest.raises(ModelError, match=r"sparse.onnx has 3221225472 bytes"):
        digest_file(path, 2**31, "an ONNX file")
    with pytest.raises(ModelError, match="Cannot read"):
        check_size(tmp_path / "absent", 1, "a file")


def test_json_is_counted_before_it_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_json(b'{"a": [1, 2.5, "x"]}', Budget("net")) == {"a": [1, 2.5, "x"]}
    for text in (b"[NaN]", b"[-Infinity]", b"[1"):
        with pytest.raises(ValueError):
            parse_json(text, Budget("net"))
    monkeypatch.setattr(budget.json, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(ModelError, match="more than 100 elements"):
        parse_json(b"[" + b"[]," * 100 + b"[]]", Budget("net", {"elements": 100}))


def test_a_path_of_modules_has_an_end() -> None:
    assert module_path("") == ""
    assert module_path(".".join("a" * 64)) == ".".join("a" * 64)
    assert module_path(".".join("a" * 5000)) == ".".join("a" * 64)

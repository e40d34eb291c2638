"""Files with a checksum beside them: what was changed since is refused, what is absent is none."""

import json
from pathlib import Path

import pytest

from foretell.errors import ModelError
from foretell.predictors import fitted_files as shipped
from foretell.predictors.fitted_files import CHECKSUMS, TRAINED, read_shipped, write_fitted


def test_what_was_written_is_read_and_what_was_changed_since_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "TRAINED", tmp_path)
    assert read_shipped("one.json") is None
    assert write_fitted(tmp_path, "one.json", b"{}") == tmp_path / "one.json"
    write_fitted(tmp_path, "two.json", b"[]")
    assert read_shipped("one.json") == b"{}"
    assert read_shipped("two.json") == b"[]"
    write_fitted(tmp_path, "one.json", b"{1}")
    assert read_shipped("one.json") == b"{1}"
    (tmp_path / "two.json").write_bytes(b"[ ]")
    with pytest.raises(ModelError, match=r"two.json is damaged.*Install foretell again"):
        read_shipped("two.json")


def test_a_file_without_a_checksum_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shipped, "TRAINED", tmp_path)
    (tmp_path / "one.json").write_bytes(b"{}")
    with pytest.raises(ModelError, match="damaged"):
        read_shipped("one.json")


def test_shipped_files_match_their_checksums() -> None:
    known = json.loads((TRAINED / CHECKSUMS).read_text(encoding="utf-8"))
    others = {CHECKSUMS, *(file.name for file in TRAINED.iterdir() if file.name.startswith("unit-"))}
    assert set(known) == {file.name for file in TRAINED.iterdir()} - others
    assert all(read_shipped(name) for name in known)


def test_an_index_that_was_edited_is_refused(tmp_path: Path) -> None:
    write_fitted(tmp_path, "index.json", b'{"h200": {}}')
    assert shipped.shipped_index(tmp_path) == {"h200": {}}
    (tmp_path / "index.json").write_bytes(b'{"h100": {}}')
    with pytest.raises(ModelError, match=r"index.json is damaged"):
        shipped.shipped_index(tmp_path)

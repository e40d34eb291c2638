"""Answers that are kept: in memory up to a size, and in a folder that several servers share."""

import errno
import os
from pathlib import Path

import pytest

from foretell.errors import InputError
from foretell.web.admission import cache as caches
from foretell.web.admission.cache import AnswerCache, SharedCache, code_version


def test_answers_are_kept_up_to_a_size() -> None:
    cache = AnswerCache(10)
    cache.put("a", "x" * 6)
    cache.put("b", "y" * 4)
    assert cache.get("a") == "x" * 6
    cache.put("c", "z" * 3)  # b is the one that nobody asked for
    assert [cache.get(key) is not None for key in "abc"] == [True, False, True]
    cache.put("d", "w" * 11)
    assert cache.get("d") is None


def test_a_folder_is_shared_by_equal_versions(tmp_path: Path) -> None:
    one, same, other = (SharedCache(tmp_path / "answers", version) for version in ("1", "1", "2"))
    assert one.get("k") is None
    assert one.put("k", "größer")
    assert same.get("k") == "größer"
    assert other.get("k") is None


def test_a_damaged_answer_is_no_answer(tmp_path: Path) -> None:
    cache = SharedCache(tmp_path, "1")
    cache.put("k", "text")
    (path,) = tmp_path.glob("*/*")
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.get("k") is None
    assert not path.exists()


def test_a_full_disk_loses_the_copy_and_not_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = SharedCache(tmp_path, "1")
    with monkeypatch.context() as patch:
        patch.setattr("foretell.files.os.replace", fail)
        assert not cache.put("k", "text")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert cache.put("k", "text")


def test_the_folder_is_trimmed_by_last_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caches, "_TRIM_EVERY", 10**6)
    cache = SharedCache(tmp_path, "1", max_bytes=3 * 75)
    for number, key in enumerate("abcd"):
        cache.put(key, "x" * 10)
        newest = max(tmp_path.glob("*/*"), key=lambda path: path.stat().st_mtime_ns)
        os.utime(newest, (number, number))
    cache.trim()
    assert len(list(tmp_path.glob("*/*"))) == 3


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="--cache-dir"):
        SharedCache(tmp_path / "file", "1")


def test_the_version_is_that_of_the_code() -> None:
    assert code_version() == code_version()
    assert code_version() != code_version(("pytest",))

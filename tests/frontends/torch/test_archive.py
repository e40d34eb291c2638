import warnings
import zipfile

import pytest

from foretell.errors import ModelError, UntrustedModelError
from foretell.frontends.torch.archive import (
    archive_kind,
    check_members,
    check_unpacked_size,
    members_digest,
    members_size,
    read_members,
)


def archive(path, members, compression=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return path


@pytest.mark.parametrize(
    ("members", "kind"),
    [
        (["m/models/model.json", "m/data/weights/w"], "pt2"),
        (["m/code/__torch__.py", "m/constants.pkl", "m/data.pkl"], "torchscript"),
        (["m/data.pkl", "m/data/0"], "pickle"),
        (["m/code/__torch__.py", "m/data.pkl"], "pickle"),
        (["readme.txt"], "other"),
    ],
)
def test_archives_are_recognised_by_their_contents(tmp_path, members, kind):
    assert archive_kind(archive(tmp_path / "a.zip", dict.fromkeys(members, b"x"))) == kind


def test_what_is_no_archive_is_other(tmp_path):
    (tmp_path / "a.zip").write_bytes(b"PK\x03\x04 and then nothing")
    assert archive_kind(tmp_path / "a.zip") == "other"


def test_only_the_requested_members_are_read(tmp_path):
    path = archive(tmp_path / "a.zip", {"m/models/a.json": b"1", "m/models/b.pkl": b"2", "m/other/c.json": b"3"})
    assert read_members(path, "models/", ".json", 100) == {"models/a.json": b"1"}


def test_members_beyond_the_limit_are_refused(tmp_path):
    path = archive(tmp_path / "a.zip", {"m/models/a.json": b"x" * 60, "m/models/b.json": b"x" * 60})
    with pytest.raises(ModelError, match="too large"):
        read_members(path, "models/", ".json", 100)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path):
    path = archive(tmp_path / "a.zip", {"m/models/a.json": bytes(2**24)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelError, match="too large"):
        read_members(path, "models/", ".json", 2**30)
    with pytest.raises(ModelError, match="too large"):
        check_unpacked_size(path)


def test_a_digest_follows_names_and_contents():
    digests = {
        members_digest(m) for m in ({"a": b"1"}, {"a": b"2"}, {"b": b"1"}, {"a": b"1", "b": b""}, {"a": b""}, {})
    }
    assert len(digests) == 6


def test_a_directory_without_end_is_not_read(tmp_path, monkeypatch):
    path = tmp_path / "a.pt2"
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(50):
            archive.writestr(f"top/models/{number}.json", b"{}")
    assert archive_kind(path) == "pt2"
    monkeypatch.setattr("foretell.frontends.torch.archive.MAX_DIRECTORY_BYTES", 1000)
    with pytest.raises(ModelError, match=r"directory of a.pt2 has"):
        archive_kind(path)
    with pytest.raises(ModelError, match=r"directory of a.pt2 has"):
        read_members(path, "models/", ".json", 2**20)
    with pytest.raises(ModelError, match=r"directory of a.pt2 has"):
        check_unpacked_size(path)


def in_order(path, names):
    """An archive with members of these names in this order, whatever they are."""
    with zipfile.ZipFile(path, "w") as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that are there twice
        for name in names:
            info = zipfile.ZipInfo("x")
            info.filename = name  # set afterwards: ZipInfo would repair the name
            file.writestr(info, b"x")
    return path


PLAIN = ("net/code/__torch__.py", "net/code/__torch__.py.debug_pkl", "net/constants.pkl", "net/data.pkl", "net/version")


def test_an_archive_as_pytorch_writes_it_is_fine(tmp_path):
    check_members(in_order(tmp_path / "a.pt", (*PLAIN, "net/data/0", "net/.data/serialization_id")))
    check_members(in_order(tmp_path / "b.pt2", ("net/models/model.json", "net/data/weights/weight_0")))


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("net/code/__torch__.py", "there twice"),
        ("net/code/__TORCH__.py", "differs from another one only in case"),
        ("net/CODE/other.py", "odd case"),
        ("net/Code/other.py", "odd case"),
        ("net/code/other.PY", "odd case"),
        ("net/code/other.pY", "odd case"),
        ("net/Data.pkl", "odd case"),
        ("net/MODELS/model.json", "odd case"),
        ("net/models/model.JSON", "odd case"),
        ("/etc/passwd", "leads out"),
        ("net/../x", "leads out"),
        ("../x", "leads out"),
        ("net/code/..", "leads out"),
        ("net//code/x.py", "leads out"),
        ("net\\code\\x.py", "leads out"),
        ("C:/x", "leads out"),
        ("net/code/x.py\0.txt", "leads out"),
        ("other/code/x.py", "outside the folder"),
    ],
)
def test_members_that_two_readers_see_differently_are_refused(tmp_path, name, reason):
    for names in ((*PLAIN, name), (PLAIN[-1], name, *PLAIN[:-1])):
        with pytest.raises(UntrustedModelError, match=reason):
            check_members(in_order(tmp_path / "a.pt", names))


def test_data_around_an_archive_is_refused(tmp_path):
    content = in_order(tmp_path / "a.pt", PLAIN).read_bytes()
    for other in (b"#!/bin/sh\n" + content, content + b"x" * 30, content + content):
        (tmp_path / "b.pt").write_bytes(other)
        with pytest.raises(ModelError):
            check_members(tmp_path / "b.pt")
    with zipfile.ZipFile(tmp_path / "a.pt", "a") as file:
        file.comment = b"PK"
    with pytest.raises(UntrustedModelError, match="before or after"):
        check_members(tmp_path / "a.pt")


def test_the_size_of_some_members_is_known_before_they_are_read(tmp_path):
    path = archive(tmp_path / "a.pt2", {"m/models/a.json": b"12345", "m/data/w": b"x" * 99})
    assert members_size(path, "models/", ".json") == 5

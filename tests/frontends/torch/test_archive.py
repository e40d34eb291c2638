import zipfile

import pytest

from foretell.errors import ModelError
from foretell.frontends.torch.archive import archive_kind, check_unpacked_size, content_fingerprint, read_members


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


def test_a_fingerprint_follows_the_content(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    first = content_fingerprint(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"2")
    assert content_fingerprint(tmp_path / "a") != first
    with pytest.raises(ModelError, match="Cannot read"):
        content_fingerprint(tmp_path / "missing")

"""Files of others: named safely, limited, deleted."""

import asyncio
import errno
import io
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from foretell.errors import ModelError
from foretell.web.admission.clients import CLIENT
from foretell.web.admission.uploads import KEPT_S, MAX_KEPT_UPLOADS, Upload, Uploads, safe_name, sweep_forever
from foretell.web.refusals import FullDiskError, TooLargeError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def uploads(clock: Clock) -> Iterator[Uploads]:
    uploads_store = Uploads(100, clock)
    yield uploads_store
    uploads_store.close()
    assert not uploads_store.folder.exists()


def take(uploads: Uploads, data: bytes = b"abc", name: str = "a.onnx") -> Upload:
    return asyncio.run(uploads.take(io.BytesIO(data), name))


def files(uploads: Uploads) -> list[Path]:
    return [path for path in uploads.folder.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("name", "expected"),
    [("a.onnx", "a.onnx"), ("../../etc/x.ONNX", "x.onnx"), ("C:\\a b.pt2", "a_b.pt2"), ("..onnx", "model.onnx"),
     ("\0\n.onnx", "_.onnx"), ("é.onnx", "_.onnx"), ("x" * 300 + ".onnx", "x" * 80 + ".onnx")],
)  # fmt: skip
def test_names_have_no_folder_and_only_plain_characters(name: str, expected: str) -> None:
    assert safe_name(name) == expected


@pytest.mark.parametrize("name", ["", "a", "a.txt", "a.onnx.exe", "a.pt", "onnx", "a.onnx/", "a.py"])
def test_other_kinds_are_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"\.onnx or \.pt2"):
        safe_name(name)


def test_uploads_are_private_and_can_be_deleted(uploads: Uploads) -> None:
    upload = take(uploads)
    assert upload.path.read_bytes() == b"abc"
    assert stat.S_IMODE(uploads.folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(upload.path.parent.stat().st_mode) == 0o700
    upload.delete()
    assert files(uploads) == []


@pytest.mark.parametrize(("data", "error"), [(b"x" * 101, TooLargeError), (b"", ModelError)])
def test_what_is_refused_is_not_kept(uploads: Uploads, data: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        take(uploads, data)
    assert list(uploads.folder.iterdir()) == []


def test_a_file_stays_while_somebody_holds_it(uploads: Uploads) -> None:
    upload = take(uploads)
    upload.hold()
    upload.delete()
    assert upload.path.exists()
    upload.delete()
    assert not upload.path.parent.exists()


class FullDisk(io.BytesIO):
    """A file whose second half finds no space."""

    def read(self, size: int | None = -1) -> bytes:
        if self.tell():
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().read(2)


def test_a_full_disk_is_said_and_leaves_nothing(uploads: Uploads) -> None:
    with pytest.raises(FullDiskError, match="No space left") as caught:
        asyncio.run(uploads.take(FullDisk(b"abcd"), "a.onnx"))
    assert caught.value.status == 503
    assert list(uploads.folder.iterdir()) == []


def test_where_there_is_no_room_whoever_has_the_most_loses(uploads: Uploads) -> None:
    CLIENT.set("small")
    small = take(uploads, b"x" * 100)
    uploads.keep(small)
    CLIENT.set("large")
    large = [take(uploads, bytes([number]) * 100) for number in range(MAX_KEPT_UPLOADS + 3)]
    for upload in large:
        uploads.keep(upload)
    assert uploads.find(f"upload:{small.ident}") is small
    assert [upload.path.exists() for upload in large] == [False] * 4 + [True] * (MAX_KEPT_UPLOADS - 1)


def test_equal_files_have_equal_digests(uploads: Uploads) -> None:
    one, two, other = take(uploads), take(uploads), take(uploads, b"abd")
    assert one.path.name == two.path.name != other.path.name
    assert one.name == "a.onnx"


def test_equal_files_lie_on_the_disk_once_until_the_last_one_goes(uploads: Uploads) -> None:
    one, two, other = take(uploads), take(uploads, name="b.onnx"), take(uploads, name="a.pt2")
    assert one.path == two.path != other.path
    assert (one.name, two.name, len(files(uploads))) == ("a.onnx", "b.onnx", 2)
    one.delete()
    one.delete()  # once more than it was held: the other one still has it
    assert two.path.read_bytes() == b"abc"
    two.delete()
    assert files(uploads) == [other.path]
    again = take(uploads)
    assert again.path.read_bytes() == b"abc"


def test_what_is_kept_goes_when_it_is_old(uploads: Uploads, clock: Clock) -> None:
    upload = take(uploads)
    uploads.keep(upload)
    assert uploads.find(f"upload:{upload.ident}") == upload
    clock.now = KEPT_S + 1
    with pytest.raises(ModelError, match="upload it again"):
        uploads.find(f"upload:{upload.ident}")
    assert files(uploads) == []


def test_the_oldest_go_where_there_is_no_room(uploads: Uploads) -> None:
    stored = [take(uploads, bytes([number]) * 100) for number in range(MAX_KEPT_UPLOADS + 1)]
    for upload in stored:
        uploads.keep(upload)
    assert len(files(uploads)) == MAX_KEPT_UPLOADS
    assert not stored[0].path.exists()
    assert uploads.drop(stored[1].ident)
    assert not uploads.drop(stored[1].ident)


@pytest.mark.parametrize("ident", ["..", "../x", "", "nobody"])
def test_an_ident_is_no_path(uploads: Uploads, ident: str) -> None:
    with pytest.raises(ModelError):
        uploads.find(f"upload:{ident}")
    assert not uploads.drop(ident)


def test_old_uploads_are_removed_while_the_server_is_idle(uploads: Uploads, clock: Clock) -> None:
    async def wait() -> None:
        uploads.keep(await uploads.take(io.BytesIO(b"abc"), "a.onnx"))
        clock.now = KEPT_S + 1
        sweeping = asyncio.ensure_future(sweep_forever(uploads, 0.001))
        while files(uploads):
            await asyncio.sleep(0.001)
        sweeping.cancel()

    asyncio.run(asyncio.wait_for(wait(), 120))
    assert files(uploads) == []

"""Frontends: recognises the zip archives of PyTorch by the names of their members, and reads them within limits."""

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from foretell.errors import ModelError

MAX_RATIO = 50  # PyTorch does not compress its archives: one that unpacks to much more than its size is a zip bomb
MAX_FREE_BYTES = 2**22  # up to this size the ratio is not checked
MAX_MEMBERS = 500_000
MAX_DIRECTORY_BYTES = 2**26  # the list of members; Python needs ten times as much memory for it
_TAIL_BYTES = 2**16 + 128  # where the end record of an archive is
_DAMAGE = (
    zipfile.BadZipFile, OSError, NotImplementedError, EOFError, RuntimeError, ValueError, LookupError, zlib.error,
    struct.error,
)  # fmt: skip


def archive_kind(path: Path) -> str:
    """Return what a zip file contains: ``pt2``, ``torchscript``, ``pickle`` (a ``torch.save`` file) or ``other``."""
    try:
        with _open(path) as archive:
            names = archive.namelist()
    except ModelError:
        raise
    except _DAMAGE:
        return "other"
    # all members lie in one top folder, whose name is arbitrary
    inner = [n.partition("/")[2] for n in names]
    if any(n.startswith("models/") and n.endswith(".json") for n in inner):
        return "pt2"
    if any(n.startswith("code/") for n in inner) and "constants.pkl" in inner:
        return "torchscript"
    return "pickle" if any(n.endswith("data.pkl") for n in names) else "other"


def read_members(path: Path, prefix: str, suffix: str | tuple[str, ...], max_bytes: int) -> dict[str, bytes]:
    """Read the members below an archive's top folder with this prefix and suffix; raise if they are too large."""
    contents: dict[str, bytes] = {}
    left = max_bytes
    try:
        with _open(path) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise ModelError(f"{path.name} has {len(members)} members; at most {MAX_MEMBERS} are allowed.")
            for member in members:
                inner_name = member.filename.partition("/")[2]
                if not (inner_name.startswith(prefix) and inner_name.endswith(suffix)):
                    continue
                # sizes come from the directory of the archive: nothing is unpacked before it is checked
                left -= member.file_size
                if left < 0 or member.file_size > max(MAX_RATIO * member.compress_size, MAX_FREE_BYTES):
                    raise ModelError(f"{path.name} unpacks to {member.file_size} bytes or more, which is too large.")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise ModelError(f"{path.name} is compressed in a way that PyTorch does not use.")
                contents[inner_name] = archive.read(member)
    except ModelError:
        raise
    except _DAMAGE as error:
        raise ModelError(f"{path.name} is not an archive of PyTorch, or it is damaged.") from error
    return contents


def check_unpacked_size(path: Path) -> None:
    """Raise if an archive unpacks to much more than its own size."""
    try:
        with _open(path) as archive:
            members = archive.infolist()
    except ModelError:
        raise
    except _DAMAGE as error:
        raise ModelError(f"{path.name} is not an archive of PyTorch, or it is damaged.") from error
    unpacked = sum(m.file_size for m in members)
    if len(members) > MAX_MEMBERS or unpacked > MAX_RATIO * path.stat().st_size + MAX_FREE_BYTES:
        raise ModelError(f"{path.name} unpacks to {unpacked} bytes in {len(members)} members, which is too large.")


def members_digest(members: Mapping[str, bytes]) -> str:
    """Return a hash of the names and contents of an archive's members."""
    digest = hashlib.sha256()
    for name, content in members.items():
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogatepass") + content)
    return digest.hexdigest()


def _open(path: Path) -> zipfile.ZipFile:
    """Open an archive whose directory is not too large: Python reads all of it at once."""
    size = path.stat().st_size
    with path.open("rb") as file:
        file.seek(max(size - _TAIL_BYTES, 0))
        tail = file.read(_TAIL_BYTES)
    at = tail.rfind(b"PK\x05\x06")
    if at >= 0 and len(tail) >= at + 16:
        directory = int.from_bytes(tail[at + 12 : at + 16], "little")
        wide = tail.rfind(b"PK\x06\x06")  # the record of a large archive has 64 bits for the size
        if directory == 0xFFFFFFFF and wide >= 0:
            directory = int.from_bytes(tail[wide + 40 : wide + 48], "little")
        if min(directory, size) > MAX_DIRECTORY_BYTES:
            raise ModelError(f"The directory of {path.name} has {directory} bytes, which is too large.")
    return zipfile.ZipFile(path)

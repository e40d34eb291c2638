"""Frontends: recognises the zip archives of PyTorch by the names of their members, and reads them within limits."""

import hashlib
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

from foretell.errors import ModelError, UntrustedModelError

MAX_RATIO = 50  # PyTorch does not compress its archives: one that unpacks to much more than its size is a zip bomb
MAX_FREE_BYTES = 2**22  # up to this size the ratio is not checked
MAX_MEMBERS = 500_000
MAX_DIRECTORY_BYTES = 2**26  # the list of members; Python needs ten times as much memory for it
_TAIL_BYTES = 2**16 + 128  # where the end record of an archive is
_DAMAGE = (
    zipfile.BadZipFile, OSError, NotImplementedError, EOFError, RuntimeError, ValueError, LookupError, zlib.error,
    struct.error,
)  # fmt: skip
_END, _END_MAGIC = struct.Struct("<4s18x"), b"PK\x05\x06"  # the last record of an archive without a comment


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


def check_members(path: Path) -> None:
    """Refuse an archive of PyTorch whose members two readers could understand in two ways.

    PyTorch ignores the case of names and takes the first of two members with one name; Python's zipfile does neither.
    """
    try:
        with _open(path) as archive, path.open("rb") as file:
            members, comment = archive.infolist(), archive.comment
            file.seek(-_END.size, 2)
            is_last = _END.unpack(file.read(_END.size))[0] == _END_MAGIC
    except ModelError:
        raise
    except _DAMAGE as error:
        raise ModelError(f"{path.name} is not an archive of PyTorch, or it is damaged.") from error
    if comment or not is_last or min((m.header_offset for m in members), default=0):
        raise UntrustedModelError(f"{path.name} has data before or after its archive. PyTorch writes none: refused.")
    top, seen = members[0].filename.partition("/")[0] if members else "", set[str]()
    for member in members:
        # as it is in the file: zipfile cuts a name at a zero byte
        problem = _odd_name(member.orig_filename, top)
        if problem is None and member.filename.casefold() in seen:
            problem = "is there twice, or differs from another one only in case"
        if problem:
            raise UntrustedModelError(
                f"The member {member.orig_filename[:80]!r} of {path.name} {problem}. PyTorch writes no such archive: "
                "refused."
            )
        seen.add(member.filename.casefold())


def _odd_name(name: str, top: str) -> str | None:
    """What is wrong with the name of a member; None if nothing is."""
    folder, _, inner = name.partition("/")
    parts = name.removesuffix("/").split("/")
    if "\0" in name or "\\" in name or ":" in parts[0] or not all(parts) or {".", ".."} & set(parts):
        return "has a path that leads out of the archive"
    if folder != top:
        return "lies outside the folder of the others"
    first, last = inner.partition("/")[0], parts[-1]
    known = {"code", "constants.pkl", "constants", "data.pkl", "data", "models", "version", "extra"}
    if first.casefold() in known and first not in known:
        return "is written in an odd case"
    suffix = last.rpartition(".")[2]
    if suffix.casefold() in ("py", "pkl", "debug_pkl", "json") and not suffix.islower():
        return "is written in an odd case"
    return None


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


def members_size(path: Path, prefix: str, suffix: str) -> int:
    """The unpacked size of the members below an archive's top folder with this prefix and suffix."""
    try:
        with _open(path) as archive:
            members = archive.infolist()
    except ModelError:
        raise
    except _DAMAGE as error:
        raise ModelError(f"{path.name} is not an archive of PyTorch, or it is damaged.") from error
    inner = ((m.filename.partition("/")[2], m.file_size) for m in members)
    return sum(size for name, size in inner if name.startswith(prefix) and name.endswith(suffix))


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

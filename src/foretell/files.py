"""Files: writes a file completely or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file and create its folders. A process that is killed meanwhile leaves the old file, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(partial, 0o644)  # mkstemp makes files that only their owner can read
        os.replace(partial, path)
    except BaseException:  # also on Ctrl-C: no partial file may stay
        os.unlink(partial)
        raise

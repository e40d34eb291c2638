import io
import zipfile
from typing import Any

import numpy as np
import pytest

from foretell.predictors.arrays import read_arrays
from foretell.predictors.fitted_files import TRAINED


def saved(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def packed(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", data)
    return buffer.getvalue()


def one(array: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def equal(data: bytes) -> int:
    found, expected = read_arrays(data), np.load(io.BytesIO(data))
    assert list(found) == expected.files
    for name, array in found.items():
        assert (array.dtype, array.shape) == (expected[name].dtype, expected[name].shape)
        assert array.tobytes() == expected[name].tobytes()
        assert array.flags.c_contiguous == expected[name].flags.c_contiguous
        assert array.flags.writeable
    return len(found)


def test_arrays_are_those_of_numpy() -> None:
    assert equal(
        saved(
            fortran=np.asfortranarray(np.arange(12.0).reshape(3, 4)),
            empty=np.zeros((0, 5), bool),
            scalar=np.array(3, np.float16),
            text=np.array(["x", "yz"]),
            turned=np.arange(24, dtype=np.int8).reshape(2, 3, 4).T,
        )
    )


def test_shipped_files_are_read_as_numpy_reads_them() -> None:
    with zipfile.ZipFile(str(TRAINED / "unit-network-h200.zip")) as archive:
        networks = [archive.read(name) for name in archive.namelist() if name.endswith(".npz")]
    assert sum(map(equal, networks)) > 50


@pytest.mark.parametrize(
    "data",
    [
        b"",
        one(np.array([{}])),  # a pickle
        one(np.zeros(3, [("a", "O"), ("b", "i4")])),
        one(np.arange(9))[:-1],
        one(np.arange(9))[:20],
        one(np.arange(9)).replace(b"\x93NUMPY\x01", b"\x93NUMPY\x02"),
        one(np.arange(9)).replace(b"(9,)", b"(8**9,)"),
        one(np.arange(9)).replace(b"'<i8'", b"'|O8'"),
    ],
)
def test_damaged_arrays_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, EOFError)):
        read_arrays(packed(data))
    with pytest.raises((zipfile.BadZipFile, ValueError)):
        read_arrays(data)

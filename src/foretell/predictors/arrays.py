"""Predictors: reads the arrays of a .npz file: fitted files have a hundred small ones.

`numpy.load` parses the head of every array as an expression of Python, half of the time that a fitted predictor takes
to load. Most heads are equal, so each different one is parsed once here.
"""

import io
import math
import zipfile
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

_HEAD = 10  # bytes: magic, version, and the length of the rest of the head


def read_arrays(data: bytes) -> dict[str, NDArray[Any]]:
    """All arrays, by name. Of a damaged file it raises what zipfile and numpy raise; pickles are refused."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name.removesuffix(".npy"): _array(archive.read(name)) for name in archive.namelist()}


def _array(data: bytes) -> NDArray[Any]:
    start = _HEAD + int.from_bytes(data[_HEAD - 2 : _HEAD], "little")
    shape, order, dtype = _parsed(data[:start])
    found = np.frombuffer(data, dtype, math.prod(shape), start)
    return found.reshape(shape, order=order).copy(order="K")  # a copy, because what lies in bytes cannot be written to


@lru_cache(maxsize=1000)
def _parsed(head: bytes) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Shape, order and type of the array that begins with these bytes."""
    file = io.BytesIO(head)
    if npy.read_magic(file) != (1, 0):
        raise ValueError("the array is in a newer format than numpy.savez writes")
    shape, is_fortran, dtype = npy.read_array_header_1_0(file)
    if dtype.hasobject:
        raise ValueError("the array has objects, which only a pickle holds")
    return shape, "F" if is_fortran else "C", dtype

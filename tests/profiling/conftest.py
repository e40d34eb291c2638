"""What all tests of this room share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    """Workers collect garbage often; as in their own processes, what was loaded before is not looked through."""
    gc.freeze()
    yield
    gc.unfreeze()

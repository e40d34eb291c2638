"""What all tests share."""

import gc


def pytest_collection_finish() -> None:
    """What is imported by now stays until the end: no collection needs to look through it for garbage."""
    gc.freeze()

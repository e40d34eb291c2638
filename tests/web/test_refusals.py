"""Every error has its status; what is no refusal of the server is 422."""

from foretell.errors import DeviceError, ForetellError
from foretell.web import refusals


def test_statuses() -> None:
    kinds = (refusals.TooLargeError, refusals.SlowClientError, refusals.BusyError, refusals.TooSlowError)
    assert [refusals.status_of(kind("x")) for kind in kinds] == [413, 408, 503, 504]
    assert refusals.status_of(DeviceError("x")) == 422
    assert all(issubclass(kind, ForetellError) for kind in kinds)

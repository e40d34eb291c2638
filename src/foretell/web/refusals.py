"""Web: the errors of requests, each with its HTTP status.

ForetellError (422)
└─ RefusedError
   ├─ TooLargeError (413)       more bytes than allowed
   ├─ UnreadableError (415)     a body that is neither JSON nor a form
   ├─ SlowClientError (408)     a body that takes too long to arrive
   ├─ BusyError (503)           too many requests are waiting
   ├─ TooSlowError (504)        the answer takes too long
   └─ BrokenError (500)         a bug of ours
"""

from foretell.errors import ForetellError

UNPROCESSABLE = 422


class RefusedError(ForetellError):
    """A request that is refused."""

    status = UNPROCESSABLE


class TooLargeError(RefusedError):
    """More bytes than allowed."""

    status = 413


class UnreadableError(RefusedError):
    """A body that is neither JSON nor a form."""

    status = 415


class SlowClientError(RefusedError):
    """A body that takes too long to arrive."""

    status = 408


class BusyError(RefusedError):
    """Too many requests are waiting."""

    status = 503


class TooSlowError(RefusedError):
    """The answer takes too long."""

    status = 504


class BrokenError(RefusedError):
    """A bug of ours."""

    status = 500


def status_of(error: ForetellError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, RefusedError) else UNPROCESSABLE

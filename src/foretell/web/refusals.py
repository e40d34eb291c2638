"""Web: the errors of requests, each with its HTTP status.

ForetellError (422)
└─ RefusedError
   ├─ ForeignError (403)        a request that a page of another site sent
   ├─ MisdirectedError (421)    a request for a host that this server is not
   ├─ TooLargeError (413)       more bytes than allowed
   ├─ UnreadableError (415)     a body that is neither JSON nor a form
   ├─ SlowClientError (408)     a body that takes too long to arrive
   ├─ GoneError (499)           the client left before its answer came
   ├─ BusyError (503)           too many requests are waiting
   │  ├─ TooManyError (429)     one client takes more than its share
   │  ├─ FullDiskError (503)    there is no space for a file
   │  └─ WorkerKilledError (503)   somebody killed the worker, twice
   ├─ TooSlowError (504)        the answer takes too long
   └─ BrokenError (500)         a bug of ours
"""

import errno

from foretell.errors import ForetellError

UNPROCESSABLE = 422
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class RefusedError(ForetellError):
    """A request that is refused."""

    status = UNPROCESSABLE


class ForeignError(RefusedError):
    """A request that a page of another site sent."""

    status = 403


class MisdirectedError(RefusedError):
    """A request for a host that this server is not."""

    status = 421


class TooLargeError(RefusedError):
    """More bytes than allowed."""

    status = 413


class UnreadableError(RefusedError):
    """A body that is neither JSON nor a form."""

    status = 415


class SlowClientError(RefusedError):
    """A body that takes too long to arrive."""

    status = 408


class GoneError(RefusedError):
    """The client left before its answer came."""

    status = 499


class BusyError(RefusedError):
    """Too many requests are waiting. ``retry_s`` says when it may be better."""

    status = 503

    def __init__(self, text: str, retry_s: float = 5.0) -> None:
        super().__init__(text)
        self.retry_s = retry_s


class TooManyError(BusyError):
    """One client takes more than its share."""

    status = 429


class FullDiskError(BusyError):
    """There is no space for a file."""


class WorkerKilledError(BusyError):
    """Somebody killed the worker, twice."""


class TooSlowError(RefusedError):
    """The answer takes too long."""

    status = 504


class BrokenError(RefusedError):
    """A bug of ours."""

    status = 500


def status_of(error: ForetellError) -> int:
    """The HTTP status of an error."""
    return error.status if isinstance(error, RefusedError) else UNPROCESSABLE


def full_disk(error: OSError) -> FullDiskError | None:
    """The refusal for an error that means that the disk, or the table of open files, is full; else None.

    >>> full_disk(OSError(errno.ENOSPC, "No space left on device"))
    FullDiskError('The server cannot store a file now: No space left on device. Try again later.')
    """
    if error.errno not in _FULL:
        return None
    return FullDiskError(f"The server cannot store a file now: {error.strerror}. Try again later.", retry_s=30.0)

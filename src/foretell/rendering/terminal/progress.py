"""Rendering: show that a command is still working: a spinner on a terminal, one plain line elsewhere."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from foretell.rendering.terminal.printable import printable

PLAIN_LINE_AFTER_S = 15.0  # most commands are faster: logs and pipes stay free of progress messages


@contextmanager
def working(what: str) -> Iterator[Callable[[str], None]]:
    """Show that ``what`` is in progress; what is yielded shows another text on a terminal."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.text import Text

        with Console(stderr=True).status(Text(printable(f"{what} …")), spinner="dots") as status:
            yield lambda text: status.update(Text(printable(f"{text} …")))
        return
    line = printable(f"foretell: still {what[0].lower()}{what[1:]} …")
    timer = threading.Timer(PLAIN_LINE_AFTER_S, lambda: print(line, file=sys.stderr))  # noqa: T201
    # The timer must not keep the process alive after an error.
    timer.daemon = True
    timer.start()
    try:
        yield lambda _: None
    finally:
        timer.cancel()

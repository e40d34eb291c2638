"""A child in a cage that does what its task says, as somebody would who has taken it over."""

import mmap
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from foretell.processes.cage import end_out_of_memory, enter
from foretell.processes.confine import confined


def limits(_: str) -> str:
    import resource

    names = ("RLIMIT_FSIZE", "RLIMIT_CORE", "RLIMIT_NOFILE", "RLIMIT_CPU", "RLIMIT_DATA")
    return repr({name: resource.getrlimit(getattr(resource, name)) for name in names})


def forever(_: str) -> str:
    """Work longer than any test waits, but not for ever: a limit that does not hold must fail a test, not hang it."""
    time.sleep(200)
    return "unharmed"


def share(size: str) -> str:
    """Take memory that other processes could see, which the kernel does not count as this process's data."""
    with mmap.mmap(-1, int(size)) as memory:
        for place in range(0, int(size), mmap.PAGESIZE):
            memory[place] = 1
        return forever("")


def allocate(size: str) -> str:
    try:
        return str(len(bytearray(int(size))))
    except MemoryError:
        end_out_of_memory()
        raise


def in_thread(path: str) -> str:
    """Read a file in another thread: no thread is free."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(Path(path).read_text).result()


def descriptors(_: str) -> str:
    return " ".join(str(number) for number in range(200) if _is_open(number))


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


ATTACKS: dict[str, Callable[[str], Any]] = {
    "nothing": lambda _: "unharmed",
    "layers": lambda _: " ".join(sorted(confined())),
    "limits": limits,
    "read": lambda path: Path(path).read_text(),
    "read in a thread": in_thread,
    "list": os.listdir,
    "write": lambda path: Path(path).write_text("owned"),
    "truncate": lambda path: os.truncate(path, 0),
    "open to truncate": lambda path: os.open(path, os.O_RDONLY | os.O_TRUNC),
    "remove": os.unlink,
    "rename": lambda path: os.rename(path, path + "x"),
    "make a folder": lambda path: os.mkdir(path + "x"),
    "link": lambda path: os.symlink(path, path + "x"),
    "change the mode": lambda path: os.chmod(path, 0o777),
    "fork": lambda _: os.fork(),
    "run": lambda program: subprocess.run([program], check=True),
    "spawn": lambda program: os.posix_spawn(program, [program], {}),
    "exec": lambda program: os.execv(program, [program]),
    "socket": lambda _: socket.socket(),
    "signal": lambda _: os.kill(os.getppid(), 0),
    "environment": lambda _: repr(dict(os.environ)),
    "network": lambda _: Path("/proc/self/net/dev").read_text(),
    "descriptors": descriptors,
    "folder": lambda _: os.getcwd(),
    "forever": forever,
    "share": share,
    "allocate": allocate,
    "long": lambda size: "x" * int(size),
    "die": lambda _: os.abort(),
    "exit": lambda code: os._exit(int(code)),
    "print": lambda text: sys.stdout.write(text) and sys.stdout.flush(),
}


def main() -> None:
    """Run in the child: answer with what the attack brought, or with its error."""
    task, send = enter()
    try:
        answer = str(ATTACKS[task["attack"]](task["argument"]))
    except OSError as error:
        answer = f"refused: {type(error).__name__}"
    send(answer.encode())


if __name__ == "__main__":
    main()

"""What the benchmarks of ``foretell serve`` share: a server of this checkout or another, and sections of a report."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil

from foretell.units import mib

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "resnet50.onnx"
REPORT = ROOT / "reports" / "serve.md"


@contextmanager
def serving(
    folder: Path, *options: str, source: Path = ROOT, more: Mapping[str, str] | None = None
) -> Iterator[tuple[str, psutil.Process]]:
    """A server on a free port of this machine, with the code of a checkout; its files are below ``folder``."""
    environment = {
        "TMPDIR": str(folder), "FORETELL_CACHE": str(folder / "cache"), "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(source / "src"), **(more or {}),
    }  # fmt: skip
    command = [sys.executable, "-m", "foretell", "serve", "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().split()[0], psutil.Process(process.pid)
        finally:
            process.terminate()


def workers_of(server: psutil.Process) -> list[psutil.Process]:
    """The worker processes of a server."""
    return [child for child in server.children() if "foretell.web.admission.worker" in child.cmdline()]


def resident_mib(process: psutil.Process) -> float:
    """The memory of a server with its workers."""
    return sum(mib(each.memory_info().rss) for each in (process, *process.children(recursive=True)))


def cpu_s(process: psutil.Process) -> tuple[float, float]:
    """The CPU seconds that a server and its workers have taken, with those of workers that were replaced."""
    own = process.cpu_times()
    alive = [worker.cpu_times() for worker in workers_of(process)]
    ended_s = own.children_user + own.children_system
    return own.user + own.system, ended_s + sum(times.user + times.system for times in alive)


@contextmanager
def probing(url: str, pause_s: float = 0.25) -> Iterator[list[float | None]]:
    """Ask for /healthz again and again in a process of its own; the list then has seconds, or None for a failure."""
    found: list[float | None] = []
    with subprocess.Popen(
        [sys.executable, "-c", PROBE, url, str(pause_s)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield found
        finally:
            found += json.loads(process.communicate("stop")[0])


PROBE = """
import http.client, json, sys, threading, time
from urllib.parse import urlsplit
place, found, stop = urlsplit(sys.argv[1]), [], threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
while not stop.wait(float(sys.argv[2])):
    started = time.perf_counter()
    try:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=60)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        found.append(time.perf_counter() - started if answer.status == 200 else None)
        connection.close()
    except OSError:
        found.append(None)
    except http.client.HTTPException:
        found.append(None)
print(json.dumps(found))
"""


def machine() -> str:
    """The machine, and how busy it was before."""
    version = ".".join(map(str, sys.version_info[:3]))
    return f"{psutil.cpu_count()} cores, Python {version}; load average before: {os.getloadavg()[0]:.1f}"


def write_section(path: Path, title: str, lines: list[str]) -> None:
    """Replace one section of a report, or add it at the end."""
    text = path.read_text(encoding="utf-8") if path.exists() else "# The server under load\n"
    section = "\n".join([f"## {title}", "", *lines]).rstrip() + "\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.S | re.M)
    found = pattern.search(text)
    text = pattern.sub(lambda _: section + "\n", text) if found else text.rstrip() + "\n\n" + section
    path.write_text(text.rstrip() + "\n", encoding="utf-8")
    print(section)

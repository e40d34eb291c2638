"""Two ``foretell serve`` behind nginx on this machine, which share nothing but a folder of answers.

python benchmarks/serve_cluster.py [--clients 50] [--seconds 20] [--out reports/serve.md]

Clients with addresses of their own ask through nginx; each is sent to one server, by its address. Then every client
asks what others have asked before, uploads a file and asks about it, and at last one of the servers is killed. Exits 1
where a question gets no answer, or nothing was shared.
Needs nginx (Debian: ``apt install nginx-light``).
"""

import argparse
import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from serve_process import MODEL, REPORT, machine, serving, write_section

NAME = "models.example.org"
# Beside that of docs/serving.md: no daemon, all files in one folder, and a header that says who answered.
CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    upstream foretell {{
        hash $remote_addr consistent;
        {servers}
    }}
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 201m;
        location / {{
            proxy_pass http://foretell;
            proxy_http_version 1.1;
            proxy_set_header Host $http_host;
            proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
            proxy_buffering off;
            proxy_read_timeout 130s;
            proxy_next_upstream error timeout non_idempotent;
            add_header X-Answered-By $upstream_addr always;
        }}
    }}
}}
"""


@contextmanager
def proxying(folder: Path, urls: list[str]) -> Iterator[str]:
    """Nginx in front of servers, at a free port of this machine."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin")
    if program is None:
        raise SystemExit("nginx is not installed")
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    servers = " ".join(f"server {urlsplit(url).netloc} max_fails=1 fail_timeout=5s;" for url in urls)
    user = "user root;" if os.geteuid() == 0 else ""  # else its workers could not write into our folder
    file = folder / "nginx.conf"
    file.write_text(CONFIGURATION.format(folder=folder, servers=servers, port=port, user=user), encoding="utf-8")
    with subprocess.Popen([program, "-p", folder, "-c", file], stderr=subprocess.DEVNULL) as process:
        try:
            for _ in range(100):
                with socket.socket() as line:
                    if line.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.1)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()


@asynccontextmanager
async def client(url: str, number: int) -> AsyncIterator[httpx.AsyncClient]:
    """A client with an address of its own, which knows the proxy by its public name."""
    transport = httpx.AsyncHTTPTransport(local_address=f"127.0.3.{1 + number}", verify=False)
    async with httpx.AsyncClient(base_url=url, timeout=120, transport=transport, headers={"host": NAME}) as http:
        yield http


async def predict(http: httpx.AsyncClient, seen: Counter[str], batch_size: int, **more: Any) -> None:
    """One question; counted by who answered it, or by what was said instead."""
    data = {"batch_size": str(batch_size)}
    try:
        if more:
            answer = await http.post("/api/predict", json={**data, **more})
        else:
            answer = await http.post("/api/predict", files={"model": ("a.onnx", MODEL.read_bytes())}, data=data)
        # Behind a comma: the server that nginx tried after another.
        who = answer.headers.get("x-answered-by", "nobody").rpartition(",")[2].strip()
        seen[who if answer.status_code == 200 else str(answer.status_code)] += 1
    except httpx.HTTPError as error:
        seen[type(error).__name__] += 1


async def ask_for(url: str, number: int, until: float, seen: Counter[str]) -> None:
    """One client: one question after the other for a time, each of its own."""
    async with client(url, number) as http:
        step = 0
        while time.monotonic() < until:
            await predict(http, seen, 1 + number + 100 * step)
            step += 1


async def ask_equal(url: str, number: int, seen: Counter[str]) -> None:
    """What the first client has asked before."""
    async with client(url, number) as http:
        await predict(http, seen, 1)


async def ask_upload(url: str, number: int, seen: Counter[str]) -> None:
    """A file that is kept, and a question about it: both must reach the same server."""
    async with client(url, number) as http:
        stored = await http.post("/api/uploads", files={"file": ("kept.onnx", MODEL.read_bytes())})
        await predict(http, seen, 7, model=stored.json()["model"])


def shared(urls: list[str]) -> int:
    """How many answers came from the folder."""
    pattern = re.compile(r'^foretell_answers_saved_total\{source="folder"\} ([\d.]+)$', re.M)
    pages = [httpx.get(f"{url}/metrics").text for url in urls]
    return sum(int(float(number)) for page in pages for number in pattern.findall(page))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=REPORT)
    given = parser.parse_args()
    before = machine()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--allowed-host", NAME, "--behind-proxy", "--workers", "1", "--cache-dir", str(folder / "answers"))
        for part in ("one", "two"):
            (folder / part).mkdir()
        with (
            serving(folder / "one", *options) as (first, _),
            serving(folder / "two", *options) as (second, process),
            proxying(folder / "nginx", [first, second]) as url,
        ):
            failed, lines = show(url, [first, second], process.pid, given.clients, given.seconds)
    head = f"Remade by `python benchmarks/serve_cluster.py`. {given.clients} clients; one worker a server."
    write_section(given.out, "Two servers behind nginx", [f"{head} Machine: {before}.", "", *lines])
    sys.exit(1 if failed else 0)


def show(url: str, servers: list[str], victim: int, clients: int, seconds: float) -> tuple[bool, list[str]]:
    """Ask through the proxy; whether something failed, and a table of what happened."""
    names = [urlsplit(server).netloc for server in servers]
    news, equals, uploads, alone = (Counter[str]() for _ in range(4))

    async def all_of(ask: Any, *arguments: Any) -> None:
        await asyncio.gather(*(ask(url, number, *arguments) for number in range(clients)))

    asyncio.run(all_of(ask_for, time.monotonic() + seconds, news))
    before = shared(servers)
    asyncio.run(ask_equal(url, 0, Counter()))
    asyncio.run(all_of(ask_equal, equals))
    from_folder = shared(servers) - before
    asyncio.run(all_of(ask_upload, uploads))
    os.kill(victim, signal.SIGKILL)
    asyncio.run(all_of(ask_for, time.monotonic() + seconds / 2, alone))
    rows = [
        (f"new questions for {seconds:.0f} s", news),
        ("one question that all clients ask", equals),
        ("uploads that are kept, then asked about", uploads),
        (f"the same questions again for {seconds / 2:.0f} s, after the second server was killed", alone),
    ]
    lines = ["| | first server | second server | not answered |", "|---|---:|---:|---|"]
    for what, seen in rows:
        rest = {said: number for said, number in seen.items() if said not in names}
        lines.append(f"| {what} | {seen[names[0]]} | {seen[names[1]]} | {rest or 0} |")
    lines += ["", f"Of the equal questions {from_folder} came from the shared folder, the others from memory."]
    failed = any(set(seen) - set(names) for _, seen in rows) or not from_folder or not all(news[name] for name in names)
    return failed, lines


if __name__ == "__main__":
    main()

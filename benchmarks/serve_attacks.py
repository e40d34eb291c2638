"""Attacks and accidents that ``foretell serve`` has to stand, each with its count; ``serve_abuse.py`` runs them.

Slow clients, clients that leave, killed workers, a full disk, rebound names and forms of other sites. All of it is
bounded in number and time, and stays on this machine.
"""

import asyncio
import itertools
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil

from foretell.units import MIB
from serve_process import MODEL, probing, serving, workers_of

CONNECTIONS = 600
SMALL_DISK_MIB = 24
EVIL = "http://evil.example"
_BATCH_SIZES = itertools.count(1)  # every question is a new one


@dataclass
class Outcome:
    """What came of one attack."""

    count: str
    said: str
    good: bool


@dataclass
class Attacks:
    """One server under attack."""

    url: str
    process: psutil.Process
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    async def run(self) -> None:
        """All attacks that need no disk of their own."""
        half = b"GET / HTTP/1.1\r\nhost: localhost\r\nx: "
        for name, addresses in (("one address", 1), ("200 addresses", 200)):
            await self.hold(f"half-open connections, {name}", lambda number: half[: number % 30], addresses)
        head = b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9999\r\n\r\n{"
        await self.hold("bodies that trickle, one address", lambda _: head, 1)
        await self.leave()
        await self.kill()
        await self.rebind()
        await self.forms()

    async def hold(self, name: str, head: Callable[[int], bytes], addresses: int) -> None:
        """Keep many unfinished requests open; meanwhile others ask for health and for predictions."""
        place, lines = urlsplit(self.url), []
        for number in range(CONNECTIONS):
            local = (f"127.0.{2 + number % addresses // 250}.{1 + number % addresses % 250}", 0)
            with suppress(OSError):
                reader, writer = await asyncio.wait_for(
                    asyncio.open_connection(place.hostname, place.port, local_addr=local), 5
                )
                writer.write(head(number))
                lines.append((reader, writer))
        with probing(self.url, 0.1) as health_s:
            statuses = [await self.question() for _ in range(5)]
            await asyncio.sleep(3)
        for _, writer in lines:
            writer.transport.abort()
        await asyncio.sleep(0.5)
        answered = [value for value in health_s if value is not None]
        said = (
            f"/healthz {len(answered)} of {len(health_s)}, longest {max(answered, default=0):.2f} s; "
            f"questions {statuses.count('200')} of {len(statuses)}{others(statuses)}"
        )
        good = len(answered) == len(health_s) and statuses.count("200") == len(statuses)
        self.outcomes[name] = Outcome(f"{CONNECTIONS}", said, good)

    async def question(self, timeout_s: float = 20.0) -> str:
        """A new question of somebody else; its status."""
        data = {"batch_size": str(next(_BATCH_SIZES))}
        transport = httpx.AsyncHTTPTransport(local_address="127.0.9.9")
        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=timeout_s, transport=transport) as http:
                answer = await http.post("/api/predict", files={"model": ("a.onnx", MODEL.read_bytes())}, data=data)
            return str(answer.status_code)
        except httpx.HTTPError as error:
            return type(error).__name__

    async def leave(self) -> None:
        """Clients that ask for much and leave before the answer comes."""

        async def ask(_: int) -> None:
            with suppress(httpx.HTTPError):
                async with httpx.AsyncClient(base_url=self.url, timeout=3, verify=False) as http:
                    sizes = ",".join(str(next(_BATCH_SIZES)) for _ in range(16))
                    files = {"model": ("a.onnx", MODEL.read_bytes())}
                    await http.post("/api/sweep", files=files, data={"batch_sizes": sizes})

        await asyncio.gather(*(ask(number) for number in range(60)))
        started = time.monotonic()
        status = await self.question(120)
        took_s = time.monotonic() - started
        said = f"the next question: {status} after {took_s:.1f} s"
        self.outcomes["clients that leave"] = Outcome("60", said, status == "200")

    async def kill(self, times: int = 10) -> None:
        """Workers that are killed (kill -9) while they answer."""
        statuses, texts = [], []
        for _ in range(times):
            async with httpx.AsyncClient(base_url=self.url, timeout=120) as http:
                sizes = ",".join(str(next(_BATCH_SIZES)) for _ in range(16))
                files = {"model": ("a.onnx", MODEL.read_bytes())}
                asking = asyncio.ensure_future(http.post("/api/sweep", files=files, data={"batch_sizes": sizes}))
                while not asking.done() and "foretell_workers_busy 0.0" in (await http.get("/metrics")).text:
                    await asyncio.sleep(0.01)
                for worker in workers_of(self.process):
                    with suppress(psutil.NoSuchProcess):
                        worker.kill()
                answer = await asking
                statuses.append(str(answer.status_code))
                texts.append(answer.text)
        blamed = sum("damaged" in text for text in texts)
        said = f"{statuses.count('200')} answered{others(statuses)}, {blamed} blamed on the model"
        self.outcomes["questions whose workers are killed"] = Outcome(str(times), said, statuses.count("200") == times)

    async def rebind(self) -> None:
        """Reads and uploads under a name that resolves to this machine."""
        paths = ("/", "/api/devices", "/metrics", "/openapi.json", "/config")
        hosts = ("evil.example", "evil.example:7860", "127.0.0.1.evil.example", "localhost.evil.example")
        statuses: Counter[int] = Counter()
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            for host in hosts:
                for path in paths:
                    statuses[(await http.get(path, headers={"host": host})).status_code] += 1
                files = {"file": ("a.onnx", MODEL.read_bytes())}
                statuses[(await http.post("/api/uploads", files=files, headers={"host": host})).status_code] += 1
        self.note("requests under a rebound name", statuses, 421)

    async def forms(self) -> None:
        """Forms and scripts of other sites, as browsers send them."""
        statuses: Counter[int] = Counter()
        signs = (
            {"origin": EVIL}, {"origin": "null"}, {"origin": "http://127.0.0.1:1"}, {"referer": f"{EVIL}/page"},
            {"sec-fetch-site": "cross-site"}, {"origin": EVIL, "sec-fetch-site": "cross-site"},
        )  # fmt: skip
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            for sign in signs:
                for path, name in (("/api/uploads", "file"), ("/api/predict", "model"), ("/api/report", "model")):
                    files = {name: ("a.onnx", MODEL.read_bytes())}
                    statuses[(await http.post(path, files=files, headers=sign)).status_code] += 1
                statuses[(await http.delete("/api/uploads/1", headers=sign)).status_code] += 1
        self.note("forms of other sites", statuses, 403)

    def note(self, name: str, statuses: Counter[int], refused: int) -> None:
        """Requests that must all be refused."""
        count = statuses.total()
        said = f"{statuses[refused]} refused ({refused}), {count - statuses[refused]} taken"
        self.outcomes[name] = Outcome(str(count), said, statuses[refused] == count)


def others(statuses: list[str]) -> str:
    """What was said other than 200."""
    found = Counter(status for status in statuses if status != "200")
    return f" ({', '.join(f'{number} × {status}' for status, number in sorted(found.items()))})" if found else ""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path | None]:
    """A disk of a few MiB in memory, or None where that is not permitted."""
    place = folder / "small"
    place.mkdir()
    options = f"size={SMALL_DISK_MIB}m,mode=700"
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", place], capture_output=True, check=False)
    if done.returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", place], check=True)


def fill_disk(folder: Path, source: Path, *options: str) -> Outcome:
    """Uploads until the disk is full and beyond; afterwards there is space again and a question is answered."""
    with small_disk(folder) as disk:
        if disk is None:
            return Outcome("0", "no small disk could be mounted here", True)
        large, larger = b"x" * (5 * MIB), b"x" * (30 * MIB)  # one does not fit beside others, one not at all
        statuses, kept = Counter[int](), []
        with serving(disk, *options, source=source) as (url, _), httpx.Client(base_url=url, timeout=120) as http:
            for _ in range(8):
                answer = http.post("/api/uploads", files={"file": ("a.onnx", large)})
                statuses[answer.status_code] += 1
                kept += [answer.json()["model"]] if answer.status_code == 201 else []
            for _ in range(8):
                try:
                    statuses[http.post("/api/predict", files={"model": ("a.onnx", larger)}).status_code] += 1
                except httpx.HTTPError:  # an answer that broke off
                    statuses[0] += 1
            left = sum(path.is_file() for path in disk.glob("foretell-serve-*/**/*")) - len(kept)
            for model in kept:
                http.delete(f"/api/uploads/{model.removeprefix('upload:')}")
            good = http.post("/api/predict", files={"model": ("a.onnx", MODEL.read_bytes())}).status_code
    refused = statuses.total() - len(kept)
    said = f"{len(kept)} stored, {statuses[503]} of {refused} others 503"
    rest = {status or "broken off": number for status, number in statuses.items() if status not in (201, 503)}
    said += (f" {rest}" if rest else "") + f"; {left} files left behind; afterwards a question gets {good}"
    return Outcome(str(statuses.total()), said, statuses[503] == refused and not left and good == 200)


def attack(folder: Path, source: Path) -> dict[str, Outcome]:
    """All attacks on a server with the code of a checkout."""
    with serving(folder, source=source) as (url, process):
        attacks = Attacks(url, process)
        asyncio.run(attacks.run())
    outcomes = attacks.outcomes
    outcomes[f"uploads of 5 and 30 MiB to a disk of {SMALL_DISK_MIB} MiB"] = fill_disk(folder, source)
    return outcomes


def table(found: dict[str, dict[str, Outcome]]) -> list[str]:
    """The outcomes of several checkouts beside each other."""
    names = list(next(iter(found.values())))
    lines = ["| what | count |" + "".join(f" {name} |" for name in found), "|---|---:|" + "---|" * len(found)]
    for name in names:
        cells = " | ".join(outcomes[name].said for outcomes in found.values())
        lines.append(f"| {name} | {next(iter(found.values()))[name].count} | {cells} |")
    return lines

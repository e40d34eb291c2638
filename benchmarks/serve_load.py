"""100 clients at once for 90 s against ``foretell serve`` on this machine: answers, refusals, latencies, memory, files.

python benchmarks/serve_load.py [--clients 100] [--seconds 90] [--source CHECKOUT] [--out reports/serve.md]

Each client has an address of its own (127.0.1.1, …) and asks one question after the other, as fast as it is answered.
Of ten questions six bring an ONNX file, three name a spec, one looks at the page or the metrics. Batch sizes vary, so
that most answers are not kept from before. A process of its own asks for /healthz four times a second.
With --source (a ``git worktree`` of an older commit) that code is served first, then this one, in the same run. Exits
1 on an answer that is neither real nor a refusal (429, 503, 504), on a file that is left, or where memory of this code
has grown by more than a tenth after a first round.
"""

import argparse
import asyncio
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from serve_process import MODEL, REPORT, ROOT, cpu_s, machine, probing, resident_mib, serving, write_section

DEVICES = ("h200", "a100", "l4", "h100-sxm", "t4", "rtx-4090")
DTYPES = ("fp32", "fp16", "bf16")
REFUSED = ("429", "503", "504")
MOST_GROWTH = 1.10
TITLE = "Load"


@dataclass
class Load:
    """What the clients saw."""

    url: str
    model: bytes = field(default_factory=MODEL.read_bytes)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    statuses: Counter[str] = field(default_factory=Counter)
    health_s: list[float | None] = field(default_factory=list)
    cpu_s: tuple[float, float] = (0.0, 0.0)
    numbers: Any = field(default_factory=itertools.count)

    async def client(self, until: float, seed: int) -> None:
        """One client, with an address of its own."""
        choose = random.Random(seed)
        transport = httpx.AsyncHTTPTransport(local_address=f"127.0.{1 + seed // 250}.{1 + seed % 250}", verify=False)
        async with httpx.AsyncClient(base_url=self.url, timeout=120, transport=transport) as http:
            while time.monotonic() < until:
                await self.ask(http, choose)

    async def ask(self, http: httpx.AsyncClient, choose: random.Random) -> None:
        """One question."""
        kind = choose.choices(
            ("predict, file", "predict, spec", "sweep, file", "compare, file", "page"), (4, 3, 1, 1, 1)
        )[0]
        asked: dict[str, Any] = {"dtype": choose.choice(DTYPES), "batch_size": str(choose.randint(1, 512))}
        place = choose.choice(DEVICES)
        started = time.perf_counter()
        try:
            if kind == "predict, file":
                answer = await http.post("/api/predict", files={"model": self.file()}, data={**asked, "device": place})
            elif kind == "predict, spec":
                answer = await http.post("/api/predict", json={**asked, "device": place, "model": "timm:resnet18"})
            elif kind == "sweep, file":
                answer = await http.post("/api/sweep", files={"model": self.file()}, data={"devices": [place, "h200"]})
            elif kind == "compare, file":
                files = {"model": self.file(), "other": (None, "timm:resnet18")}
                answer = await http.post("/api/compare", files=files, data={**asked, "device": place})
            else:
                answer = await http.get(choose.choice(("/", "/metrics", "/api/devices")))
            said = str(answer.status_code)
        except httpx.HTTPError as error:
            said = type(error).__name__
        if said == "200":
            self.seconds[kind].append(time.perf_counter() - started)
        self.statuses[said] += 1

    def file(self) -> tuple[str, bytes]:
        """The model, under one of forty names."""
        return (f"net{next(self.numbers) % 40}.onnx", self.model)

    async def run(self, clients: int, seconds: float) -> None:
        """All clients, for a time."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(until, seed) for seed in range(clients)))

    @property
    def questions(self) -> list[float]:
        """The seconds of all real answers, without those of the page."""
        return [value for kind, values in self.seconds.items() if kind != "page" for value in values]

    @property
    def refused(self) -> int:
        """How many were told to wait."""
        return sum(self.statuses[status] for status in REFUSED)

    @property
    def errors(self) -> dict[str, int]:
        """What was neither an answer nor a refusal."""
        return {said: number for said, number in self.statuses.items() if said not in ("200", *REFUSED)}


@dataclass
class Found:
    """One server under load."""

    name: str
    before: str
    load: Load
    memory_mib: tuple[float, float]
    files_left: int
    seconds: float
    folders_left: int = 0


def percentile(values: list[float], share: float) -> float:
    """A percentile; 0 where there is nothing."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def measure(name: str, source: Path, clients: int, seconds: float) -> Found:
    """Serve the code of a checkout and load it."""
    with tempfile.TemporaryDirectory() as folder:
        before = machine()
        with serving(Path(folder), source=source) as (url, process):
            found = under_load(name, url, process, Path(folder), clients, seconds)
        found.before = before
        found.folders_left = len(list(Path(folder).glob("foretell-serve-*")))
    return found


def under_load(name: str, url: str, process: psutil.Process, folder: Path, clients: int, seconds: float) -> Found:
    """Load a server: half of the time to load torch into the workers and to fill what is kept, then for real."""
    asyncio.run(Load(url).run(clients, seconds / 2))
    before_mib = resident_mib(process)
    load = Load(url)
    started = time.monotonic()
    spent = cpu_s(process)
    with probing(url) as load.health_s:
        asyncio.run(load.run(clients, seconds))
        took_s = time.monotonic() - started  # the last answers come after the time is over
    load.cpu_s = tuple(after - before for after, before in zip(cpu_s(process), spent, strict=True))  # type: ignore[assignment]
    time.sleep(2)
    left = [path for path in folder.glob("foretell-serve-*/**/*") if path.is_file()]
    return Found(name, "", load, (before_mib, resident_mib(process)), len(left), took_s)


def table(found: list[Found]) -> list[str]:
    """All servers beside each other."""
    rows: dict[str, list[str]] = defaultdict(list)
    for each in found:
        load, questions = each.load, each.load.questions
        rows["requests"].append(str(sum(load.statuses.values())))
        rows["**real answers to questions**"].append(f"**{len(questions)}**")
        rows["a second"].append(f"{len(questions) / each.seconds:.1f}")
        rows["told to wait (429, 503, 504)"].append(str(load.refused))
        rows["errors"].append(str(load.errors or 0))
        for share, label in ((0.5, "median"), (0.9, "90 %"), (0.99, "99 %"), (1.0, "longest")):
            rows[f"real answers, {label}, s"].append(f"{percentile(questions, share):.2f}")
        health_s = [value for value in load.health_s if value is not None]
        rows["CPU seconds of the server, of its workers"].append(", ".join(f"{value:.0f}" for value in load.cpu_s))
        rows["**CPU ms for a real answer**"].append(f"**{sum(load.cpu_s) / max(1, len(questions)) * 1e3:.0f}**")
        rows["/healthz asked, failed"].append(f"{len(load.health_s)}, {load.health_s.count(None)}")
        rows["/healthz median, longest, s"].append(
            f"{statistics.median(health_s or [0]):.3f}, {max(health_s, default=0):.3f}"
        )
        rows["memory before, after, MiB"].append(" → ".join(f"{value:.0f}" for value in each.memory_mib))
        rows["files left, folders left at the end"].append(f"{each.files_left}, {each.folders_left}")
    head = ["| |" + "".join(f" {each.name} |" for each in found), "|---|" + "---:|" * len(found)]
    return [*head, *(f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows.items())]


def by_kind(load: Load) -> list[str]:
    """The latencies of real answers by question."""
    lines = ["| question | real answers | median s | 90 % | 99 % | longest |", "|---|---:|---:|---:|---:|---:|"]
    for name, values in sorted(load.seconds.items()):
        cells = [statistics.median(values), percentile(values, 0.9), percentile(values, 0.99), max(values)]
        lines.append(f"| {name} | {len(values)} | " + " | ".join(f"{value:.2f}" for value in cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--source", type=Path, help="a checkout of older code, which is served first")
    parser.add_argument("--out", type=Path, default=REPORT)
    given = parser.parse_args()
    checkouts = ([("before", given.source.resolve())] if given.source else []) + [("now", ROOT)]
    found = [measure(name, source, given.clients, given.seconds) for name, source in checkouts]
    now = found[-1]
    rate = len(now.load.questions) / now.seconds
    lines = [
        f"{given.clients} clients ask for {given.seconds:.0f} s, each from an address of its own and as fast as it is "
        "answered, on the machine that serves. Remade by `python benchmarks/serve_load.py --source CHECKOUT`. "
        + " ".join(f"Machine ({each.name}): {each.before}." for each in found),
        "",
        *table(found),
        "",
        f"**What one machine holds:** {rate:.0f} answers a second to this mix, most of them new questions, with "
        f"{given.clients} clients waiting at the same time. A question that was asked before costs no worker.",
        "",
        "The memory is lower after the load where a worker had just been replaced, which happens after 500 models. "
        "Other programs took part of the cores in both columns, and not the same part: the number of answers is what "
        "this machine gave then, not a limit.",
        "",
        *by_kind(now.load),
    ]
    write_section(given.out, TITLE, lines)
    grown = now.memory_mib[1] / now.memory_mib[0] > MOST_GROWTH
    sys.exit(1 if now.load.errors or now.files_left or now.folders_left or grown else 0)


if __name__ == "__main__":
    main()

"""50 clients at once for a minute against ``foretell serve`` on this machine: errors, latencies, memory, files left.

python benchmarks/serve_load.py [--clients 50] [--seconds 60] [--out reports/serve.md]

Each client asks one question after the other, as fast as it is answered. Of ten questions six bring an ONNX file, three
name a spec, one looks at the page or the metrics; batch sizes vary so that most answers are not kept from before. Exits
1 on any error, on a file that is left, or where memory has grown by more than a tenth after a first round.
"""

import argparse
import asyncio
import itertools
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import httpx
import psutil

from foretell.units import mib

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "examples" / "resnet50.onnx"
DEVICES = ("h200", "a100", "l4", "h100-sxm", "t4", "rtx-4090")
DTYPES = ("fp32", "fp16", "bf16")
MOST_GROWTH = 1.10


def resident(process: psutil.Process) -> dict[str, float]:
    """MiB of the server and of its workers."""
    found = {"server": mib(process.memory_info().rss), "workers": 0.0}
    for child in process.children(recursive=True):
        found["workers"] += mib(child.memory_info().rss)
    return found


class Load:
    """What the clients saw."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.model = MODEL.read_bytes()
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.statuses: Counter[str] = Counter()
        self.numbers = itertools.count()

    async def client(self, until: float, seed: int) -> None:
        """One client."""
        choose = random.Random(seed)
        async with httpx.AsyncClient(base_url=self.url, timeout=120) as http:
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
        self.seconds[kind].append(time.perf_counter() - started)
        self.statuses[said] += 1

    def file(self) -> tuple[str, bytes]:
        """The model, under one of forty names."""
        return (f"net{next(self.numbers) % 40}.onnx", self.model)

    async def run(self, clients: int, seconds: float) -> None:
        """All clients, for a time."""
        until = time.monotonic() + seconds
        await asyncio.gather(*(self.client(until, seed) for seed in range(clients)))


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def rows(load: Load) -> list[str]:
    everything = [value for values in load.seconds.values() for value in values]
    lines = ["| question | requests | median s | 90 % | 99 % | longest |", "|---|---:|---:|---:|---:|---:|"]
    for name, values in [*sorted(load.seconds.items()), ("all", everything)]:
        cells = [statistics.median(values), percentile(values, 0.9), percentile(values, 0.99), max(values)]
        lines.append(f"| {name} | {len(values)} | " + " | ".join(f"{value:.2f}" for value in cells) + " |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path, default=ROOT / "reports" / "serve.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        environment = {"TMPDIR": folder, "FORETELL_CACHE": f"{folder}/cache", "PATH": "/usr/bin:/bin"}
        command = [sys.executable, "-m", "foretell", "serve", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
            try:
                assert server.stdout is not None
                url = server.stdout.readline().split()[0]
                found = measure(url, psutil.Process(server.pid), Path(folder), given.clients, given.seconds)
            finally:
                server.terminate()
        left_after = [str(path) for path in Path(folder).glob("foretell-serve-*")]
    lines, failed = found
    lines.append(f"After the server had ended, {len(left_after)} of its folders were left.")
    given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(lines))
    sys.exit(1 if failed or left_after else 0)


def measure(url: str, process: psutil.Process, folder: Path, clients: int, seconds: float) -> tuple[list[str], bool]:
    before_load = os.getloadavg()[0]
    first = Load(url)
    asyncio.run(first.run(clients, seconds / 2))  # loads torch into the workers, fills what is kept
    before = resident(process)
    load = Load(url)
    asyncio.run(load.run(clients, seconds))
    time.sleep(2)
    after = resident(process)
    left = [path for path in folder.glob("foretell-serve-*/**/*") if path.is_file()]
    count = sum(load.statuses.values())
    errors = count - load.statuses["200"]
    grown = sum(after.values()) / sum(before.values())
    cores = psutil.cpu_count() or 1
    lines = [
        "# The server under load",
        "",
        f"{clients} clients on the same machine ({cores} cores, Python {platform.python_version()}) ask "
        f"`foretell serve` (2 workers) for {seconds:.0f} s, each as fast as it is answered. Remade by "
        f"`python benchmarks/serve_load.py`. Load average of the machine before: {before_load:.1f}.",
        "",
        f"{count} requests, {count / seconds:.1f} a second; **{errors} errors**"
        + (f" {dict(load.statuses)}" if errors else "")
        + f"; **{len(left)} files left** {' '.join(str(path.relative_to(folder)) for path in left)}".rstrip()
        + ".",
        "",
        *rows(load),
        "",
        "| memory, MiB | after a first round | after the load |",
        "|---|---:|---:|",
        *(f"| {name} | {before[name]:.0f} | {after[name]:.0f} |" for name in before),
        "",
        f"The first round takes {seconds / 2:.0f} s: it loads torch into the workers and fills the kept answers.",
    ]
    return lines, bool(errors or left or grown > MOST_GROWTH)


if __name__ == "__main__":
    main()

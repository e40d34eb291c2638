"""What nobody should send to ``foretell serve``: none of it brings the server down, none of it leaves a file.

python benchmarks/serve_abuse.py [--source CHECKOUT] [--only attacks] [--schemathesis PROGRAM] [--out reports/serve.md]

First attacks and accidents with their counts (``serve_attacks.py``); with --source on older code too, in the same run.
Then malformed and hostile uploads, 500 MB with and without their length, slow heads and bodies, clients that leave,
wrong types, paths, a bomb of a model, and (where the program is there) schemathesis on the OpenAPI schema. Exits 1 on
an answer of 500 or more other than 503 and 504, on a server or a worker that does not answer afterwards, on a file
left, or where an attack succeeds.
"""

import argparse
import asyncio
import io
import json
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
from onnx import ModelProto, TensorProto, helper

from foretell.units import MIB, mib
from serve_attacks import attack, table
from serve_process import MODEL, REPORT, ROOT, machine, serving, write_section

MAX_UPLOAD_MIB = 50
TIMEOUT_S = 5
HUGE = 500 * MIB
HEAD = b'--b\r\ncontent-disposition: form-data; name="model"; filename="a.onnx"\r\n\r\n'
TAIL = b"\r\n--b--\r\n"
ALLOWED = {503, 504}  # busy, and too slow


def graph(nodes: list[object], inputs: list[object], weights: list[TensorProto] | None = None) -> bytes:
    made = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", 1, None)], weights or [])
    data: bytes = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10
    ).SerializeToString()
    return data


def hostile() -> Iterator[tuple[str, str, bytes]]:
    """What it is, the name of the file, and its bytes."""
    good = MODEL.read_bytes()
    yield "nothing", "a.onnx", b""
    yield "text", "a.onnx", b"hello " * 1000
    yield "cut short", "a.onnx", good[: len(good) // 2]
    for place in range(0, len(good), len(good) // 12):
        yield f"byte {place} turned", "a.onnx", good[:place] + bytes([good[place] ^ 0xFF]) + good[place + 1 :]
    yield "a pickle", "a.onnx", pickle.dumps({"a": 1})
    yield "a pickle called .pt", "a.pt", pickle.dumps({"a": 1})
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/version", "3")
        file.writestr("archive/models/model.json", "[" * 200_000)
        file.writestr("archive/data.pkl", b"\0" * (200 * MIB))
    yield "a zip bomb", "a.pt2", archive.getvalue()
    yield "a zip cut short", "a.pt2", archive.getvalue()[:-100]
    x = helper.make_tensor_value_info("x", 1, [1, 3, 8, 8])
    yield (
        "a huge tensor",
        "a.onnx",
        graph([helper.make_node("Relu", ["x"], ["y"])], [helper.make_tensor_value_info("x", 1, [2**30, 2**30])]),
    )
    yield "a constant of 2^40", "a.onnx", graph(
        [helper.make_node("ConstantOfShape", ["s"], ["z"]), helper.make_node("Add", ["z", "z"], ["y"])], [],
        [helper.make_tensor("s", TensorProto.INT64, [2], [2**20, 2**20])],
    )  # fmt: skip
    yield (
        "a cycle",
        "a.onnx",
        graph([helper.make_node("Add", ["x", "y"], ["z"]), helper.make_node("Relu", ["z"], ["y"])], [x]),
    )
    outside = TensorProto(name="w", data_type=1, dims=[8], data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="/etc/passwd")
    yield "weights in /etc/passwd", "a.onnx", graph([helper.make_node("Add", ["x", "w"], ["y"])], [x], [outside])
    chain = [helper.make_node("Relu", [f"t{i}" if i else "x"], [f"t{i + 1}"]) for i in range(200_000)]
    yield "200,000 operators", "a.onnx", graph([*chain, helper.make_node("Relu", ["t200000"], ["y"])], [x])
    deep = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "b", [], [helper.make_tensor_value_info("y", 1, None)]
    )
    for _ in range(60):
        node = helper.make_node("If", ["c"], ["y"], then_branch=deep, else_branch=deep)
        deep = helper.make_graph([node], "b", [], [helper.make_tensor_value_info("y", 1, None)])
        if deep.ByteSize() > 20 * MIB:
            break
    yield (
        "nested branches",
        "a.onnx",
        ModelProto(ir_version=10, graph=deep, opset_import=[helper.make_opsetid("", 18)]).SerializeToString(),
    )
    for name in ("../../x.onnx", "/etc/x.onnx", "a\r\nb.onnx", "x" * 5000 + ".onnx", "a.onnx\0.txt", "é😀.onnx"):
        yield f"a file called {name[:20]!r}", name, good


async def flood(size: int) -> AsyncIterator[bytes]:
    """A form whose file does not end for a long time; its length is not told."""
    yield HEAD
    for _ in range(size // MIB):
        yield b"\0" * MIB
    yield TAIL


class Abuse:
    """One server under test."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.failed: list[str] = []
        self.counted: dict[int, int] = {}

    def note(self, what: str, status: int | None, text: str = "") -> None:
        """Count an answer; one that should not be is a failure."""
        if status is not None:
            self.counted[status] = self.counted.get(status, 0) + 1
            if status >= 500 and status not in ALLOWED:
                self.failed.append(f"{what}: {status} {text[:200]}")

    async def run(self) -> None:
        """All of it."""
        async with httpx.AsyncClient(base_url=self.url, timeout=60) as http:
            for what, name, data in hostile():
                for kind in ("predict", "report"):
                    answer = await http.post(f"/api/{kind}", files={"model": (name, data)})
                    self.note(what, answer.status_code, answer.text)
            await self.large(http)
            await self.texts(http)
        await asyncio.gather(*(self.slow(head) for head in self.heads()), *(self.leave() for _ in range(20)))

    async def large(self, http: httpx.AsyncClient) -> None:
        """500 MB, with and without its length told."""
        kind = {"content-type": "multipart/form-data; boundary=b"}
        for path in ("/api/predict", "/api/uploads", "/api/compare", "/gradio_api/upload", "/gradio_api/queue/join"):
            for told in ({}, {"content-length": str(len(HEAD) + HUGE + len(TAIL))}):
                try:
                    answer = await http.post(path, content=flood(HUGE), headers={**kind, **told})
                except httpx.HTTPError as error:  # hung up on while it sent: no answer, no harm
                    print(f"  {path} {told or 'chunked'}: {type(error).__name__}")
                    continue
                self.note(f"500 MB to {path}", answer.status_code, answer.text)
                if answer.status_code not in (404, 413):
                    self.failed.append(f"500 MB to {path}: {answer.status_code}")

    async def texts(self, http: httpx.AsyncClient) -> None:
        """Wrong types and specs that are no specs."""
        values = [
            "/etc/passwd",
            "net.py:build",
            "../x",
            "hf:../../etc",
            "\0",
            "x" * 10**5,
            5,
            None,
            [],
            {},
            "\ud800",
            1e308,
        ]
        for kind in ("predict", "fit", "compare", "share", "sweep", "advise", "report", "llm"):
            for value in values:
                for field in (
                    "model",
                    "device",
                    "devices",
                    "batch_size",
                    "dtype",
                    "slice",
                    "input_shape",
                    "predictor",
                    "mode",
                ):
                    body = json.dumps({"model": "timm:resnet18", "other": "timm:resnet18", field: value})
                    answer = await http.post(f"/api/{kind}", content=body, headers={"content-type": "application/json"})
                    self.note(f"{kind} {field}={str(value)[:30]!r}", answer.status_code, answer.text)
                    if field == "model" and answer.status_code == 200:
                        self.failed.append(f"{kind} took the model {value!r}")

    def heads(self) -> list[bytes]:
        """The beginnings of requests that never end."""
        post = b"POST /api/predict HTTP/1.1\r\nhost: localhost\r\n"
        form = post + b"content-type: multipart/form-data; boundary=b\r\n"
        part = b"content-disposition: form-data; name=model; filename=a.onnx\r\n\r\nx"
        return [
            b"", b"GET", b"GET / HTTP/1.1\r\n", post, post + b"content-length: 99999\r\n\r\n{",
            form + b"content-length: 99999\r\n\r\n--b\r\n" + part,
            form + b"transfer-encoding: chunked\r\n\r\n1\r\n-\r\n", b"\0" * 10, b"POST / HTTP/9.9\r\n\r\n",
            b"POST /gradio_api/queue/join HTTP/1.1\r\nhost: localhost\r\ncontent-length: 99\r\n\r\n{",
        ] * 10  # fmt: skip

    async def slow(self, head: bytes) -> None:
        """A byte now and then, until hung up on."""
        place = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(place.hostname, place.port)
        started = time.monotonic()
        writer.write(head)
        reading = asyncio.ensure_future(reader.read(-1))
        while not reading.done() and time.monotonic() - started < 10 * TIMEOUT_S:
            await asyncio.wait([reading], timeout=0.5)
            if not reading.done() and head:
                writer.write(b"x")
        if not reading.done():
            self.failed.append(f"still connected after {10 * TIMEOUT_S} s: {head[:60]!r}")
        reading.cancel()
        writer.close()

    async def leave(self) -> None:
        """Ask, and go before the answer comes."""
        try:
            async with httpx.AsyncClient(base_url=self.url, timeout=0.05) as http:
                await http.post("/api/advise", files={"model": ("a.onnx", MODEL.read_bytes())})
        except httpx.HTTPError:
            return


def check(abuse: Abuse, process: psutil.Process) -> None:
    """The server is there, its workers answer, and no file is left."""
    time.sleep(2 * TIMEOUT_S)  # those who left have workers that still work for them
    left = [path for path in abuse.folder.glob("foretell-serve-*/**/*") if path.is_file()]
    abuse.failed += [f"left: {path.relative_to(abuse.folder)}" for path in left]
    answer = httpx.post(f"{abuse.url}/api/predict", files={"model": ("a.onnx", MODEL.read_bytes())}, timeout=60)
    if answer.status_code != 200:
        abuse.failed.append(f"afterwards a good model gets {answer.status_code} {answer.text}")
    held = sum(mib(each.memory_info().rss) for each in (process, *process.children(recursive=True)))
    print(f"statuses {dict(sorted(abuse.counted.items()))}; files left {len(left)}; memory {held:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--schemathesis", default=shutil.which("schemathesis"))
    parser.add_argument("--source", type=Path, help="a checkout of older code, which is attacked first")
    parser.add_argument("--only", choices=("attacks", "abuse"))
    parser.add_argument("--out", type=Path, default=REPORT)
    given = parser.parse_args()
    failed = [] if given.only == "abuse" else attacked(given.source, given.out)
    failed += [] if given.only == "attacks" else abused(given.schemathesis)
    print("\n".join(failed) or "nothing brought it down, nothing was left")
    sys.exit(1 if failed else 0)


def attacked(source: Path | None, out: Path) -> list[str]:
    """Attack the code of another checkout and this one; what succeeded against this one."""
    before = machine()
    found = {}
    for name, code in ([("before", source.resolve())] if source else []) + [("now", ROOT)]:
        with tempfile.TemporaryDirectory() as folder:
            found[name] = attack(Path(folder), code)
    lines = [f"Remade by `python benchmarks/serve_abuse.py --only attacks --source CHECKOUT`. Machine: {before}.", ""]
    write_section(out, "Attacks and accidents", [*lines, *table(found)])
    return [f"{name}: {outcome.said}" for name, outcome in found["now"].items() if not outcome.good]


def abused(schemathesis: str | None) -> list[str]:
    """Send what nobody should send; what went wrong."""
    options = ("--timeout-s", str(TIMEOUT_S), "--max-upload-mib", str(MAX_UPLOAD_MIB))
    with tempfile.TemporaryDirectory() as name:
        with serving(Path(name), *options) as (url, process):
            abuse = Abuse(url, Path(name))
            asyncio.run(abuse.run())
            check(abuse, process)
            if schemathesis:
                checks = (
                    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
                )
                # busy and too slow are answers here, too
                allowed = ["2xx", "3xx", "4xx", *map(str, sorted(ALLOWED))]
                configuration = Path(name) / "schemathesis.toml"
                configuration.write_text(f"[checks.not_a_server_error]\nexpected-statuses = {allowed}\n")
                command = [schemathesis, "run", f"{url}/openapi.json", "--checks", checks, "--max-examples", "60"]
                command += ["--request-timeout", "30", "--seed", "1"]
                done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=name)
                print(done.stdout[-3000:])
                if done.returncode:
                    abuse.failed.append("schemathesis found something")
                check(abuse, process)
        if list(Path(name).glob("foretell-serve-*")):
            abuse.failed.append("the folder of the server is left")
    return abuse.failed


if __name__ == "__main__":
    main()

"""A hundred calls of foretell's tools side by side, by the client of the official SDK over standard input and output.

    python benchmarks/mcp_calls.py [--calls 100] [--workers 2]

Every third call is wrong on purpose. Printed are the seconds of all calls and of one after the other, how long a call
took in the median and at most, how long answers are, and how many were not as they should be: an answer where an error
is due, an error where an answer is due, or an answer to another question. Exit code 1 if there is one.
"""

import argparse
import asyncio
import json
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from mcp import Client, StdioServerParameters

ROOT = Path(__file__).resolve().parent.parent
Call = tuple[str, dict[str, Any], bool]


def calls(count: int) -> list[Call]:
    """Calls of all tools, each with arguments of its own; every third is wrong."""
    made: list[Call] = []
    for number in range(count):
        batch = 1 + number
        good: list[tuple[str, dict[str, Any]]] = [
            ("predict", {"model": "resnet50.onnx", "batch_size": batch}),
            ("fit", {"model": "resnet50.onnx", "batch_size": batch, "device": "l4"}),
            ("inspect", {"model": "resnet50.onnx", "batch_size": batch}),
            ("improve", {"model": "resnet50.onnx", "batch_size": batch}),
            ("share", {"of": ["resnet50.onnx", "resnet50.onnx"], "batch_sizes": [batch]}),
            ("llm", {"model": "meta-llama/Llama-3.1-8B", "concurrency": batch}),
            ("devices", {"name": "h200"}),
            ("advise", {"model": "resnet50.onnx", "devices": ["l4"], "mig": False, "slo_ms": 10 + batch}),
        ]
        wrong: list[tuple[str, dict[str, Any]]] = [
            ("predict", {"model": "../README.md", "batch_size": batch}),
            ("predict", {"model": "resnet50.onnx", "device": f"h{batch}00x"}),
            ("fit", {"model": "resnet50.onnx", "batch_size": -batch}),
            ("llm", {"model": "resnet50.onnx"}),
            ("shutdown", {"now": batch}),
        ]
        right = bool(number % 3)
        of = good if right else wrong
        made.append((*of[number % len(of)], right))
    return made


def is_as_expected(call: Call, is_error: bool, text: str) -> bool:
    """Whether an answer belongs to its call."""
    tool, values, right = call
    if is_error or not right:
        return is_error and not right and "\n" not in text
    answer = json.loads(text)
    echoed = {"predict": "batch_size", "fit": "batch_size", "inspect": "batch_size", "llm": "concurrency"}.get(tool)
    return echoed is None or answer[echoed] == values[echoed]


async def measure(count: int, workers: int) -> int:
    """Call side by side, then some of the same one after the other."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(ROOT / "examples" / "resnet50.onnx", folder)
        arguments = ["-m", "foretell", "mcp", "--folder", folder, "--workers", str(workers)]
        async with Client(StdioServerParameters(command=sys.executable, args=arguments)) as client:

            async def one(call: Call) -> tuple[bool, float, int]:
                started = time.perf_counter()
                result = await client.call_tool(call[0], call[1])
                text = result.content[0].text
                return is_as_expected(call, result.is_error, text), time.perf_counter() - started, len(text)

            await asyncio.gather(*(one(call) for call in calls(2 * workers)))  # the workers have started
            made = calls(count)
            started = time.perf_counter()
            answers = await asyncio.gather(*(one(call) for call in made))
            together_s = time.perf_counter() - started
            started = time.perf_counter()
            few = [await one(call) for call in made[: count // 4]]
            alone_s = (time.perf_counter() - started) * count / len(few)
    wrong = sum(not right for right, _, _ in [*answers, *few])
    times, lengths = [seconds for _, seconds, _ in answers], [length for *_, length in answers]
    print(f"{count} calls side by side, {workers} workers: {together_s:.1f} s; one after the other: {alone_s:.1f} s")
    print(f"a call: median {statistics.median(times):.2f} s, at most {max(times):.2f} s (waiting included)")
    print(f"an answer: median {statistics.median(lengths):.0f} characters, at most {max(lengths)}")
    print(f"not as they should be: {wrong}")
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    return asyncio.run(measure(options.calls, options.workers))


if __name__ == "__main__":
    sys.exit(main())

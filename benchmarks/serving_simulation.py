"""How fast the simulation of servers is, and how much memory it takes.

python benchmarks/serving_simulation.py --conv FILE --code FILE --report reports/serving-simulation.md

Every case runs in a process of its own, so that its peak of memory is its own. The step time is made up, and linear:
what is measured is the loop. Step by step is the same server with stretches cut to one step.
"""

import argparse
import math
import multiprocessing
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from foretell.scheduling.serving import (
    ENGINES,
    Arrival,
    Deployment,
    Rules,
    ServingTotals,
    closed_loop,
    fixed_lengths,
    poisson_arrivals,
    read_azure,
    simulate_serving,
    trace_arrivals,
)
from foretell.scheduling.serving.server import Server
from foretell.units import KIB, MEGA, mib


def step(prefill_tokens: int, prefill_context: float, decode_requests: int, decode_context: float) -> float:
    """About an 8B model on an H200."""
    tokens = prefill_tokens + decode_requests
    return 6e-3 + 2.5e-5 * tokens + 3e-9 * prefill_context + 3.3e-8 * decode_context


def slot() -> Callable[..., float]:
    """A fixed service time."""
    return lambda *_: 0.02


CASES: dict[str, Callable[[int, dict[str, Path]], tuple[Iterator[Arrival], Deployment, int | None]]] = {
    "Poisson, 512 and 128 tokens, 10 a second": lambda n, _: (
        poisson_arrivals(fixed_lengths(512, 128, n), 10.0), Deployment(step, 400_000), None
    ),
    "the same, 20 a second": lambda n, _: (
        poisson_arrivals(fixed_lengths(512, 128, n), 20.0), Deployment(step, 400_000), None
    ),
    "closed loop of 64, 1,024 and 256 tokens": lambda n, _: (
        closed_loop(fixed_lengths(1024, 256, n)), Deployment(step, 400_000), 64
    ),
    "the same, a cache that preempts": lambda n, _: (
        closed_loop(fixed_lengths(1024, 256, n)), Deployment(step, 60_000), 64
    ),
    "the same, SGLang's rules": lambda n, _: (
        closed_loop(fixed_lengths(1024, 256, n)), Deployment(step, 400_000, rules=ENGINES["sglang"]), 64
    ),
    "Azure's conversations, 8 a second": lambda n, files: (
        trace_arrivals(read_azure(files["conv"]), n, 8.0), Deployment(step, 400_000), None
    ),
    "the same, 1 server for prompts and 1 that generates": lambda n, files: (
        trace_arrivals(read_azure(files["conv"]), n, 8.0),
        Deployment(step, 400_000, prefill_servers=1, transfer_time=lambda tokens: 2e-6 * tokens), None,
    ),
    "Azure's code, 8 a second": lambda n, files: (
        trace_arrivals(read_azure(files["code"]), n, 8.0), Deployment(step, 400_000), None
    ),
}  # fmt: skip


def measure(name: str, requests: int, files: dict[str, Path]) -> tuple[ServingTotals, float, float, float]:
    """Results, seconds of the processor, the peak of memory and what the run added to it, in MiB."""
    arrivals, deployment, concurrency = CASES[name](requests, files)
    before = _peak_mib()
    began = time.process_time()
    totals = simulate_serving(arrivals, deployment, concurrency=concurrency)
    return totals, time.process_time() - began, _peak_mib(), _peak_mib() - before


def _peak_mib() -> float:
    return mib(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)


def _child(queue: "multiprocessing.Queue[object]", *arguments: object) -> None:
    queue.put(measure(*arguments))  # type: ignore[arg-type]


def isolated(*arguments: object) -> tuple[ServingTotals, float, float, float]:
    """`measure` in a process of its own."""
    context = multiprocessing.get_context("spawn")
    queue: multiprocessing.Queue[object] = context.Queue()
    process = context.Process(target=_child, args=(queue, *arguments))
    process.start()
    result = queue.get()
    process.join()
    return result  # type: ignore[return-value]


def single_steps(requests: int) -> tuple[float, float]:
    """How many times faster stretches are than single steps, and how far the mean latencies are apart."""
    name = "Poisson, 512 and 128 tokens, 10 a second"
    together, together_s, _, _ = measure(name, requests, {})
    stretch = Server._start_stretch

    def one(server: Server, now_s: float) -> float:
        return server._start(now_s, server._step_time(0, 0.0, server._decoding, server._context(0)), 0, 0.0, 1)

    Server._start_stretch = one  # type: ignore[method-assign]
    try:
        alone, alone_s, _, _ = measure(name, requests, {})
    finally:
        Server._start_stretch = stretch  # type: ignore[method-assign]
    return alone_s / together_s, abs(together.latency.mean_s / alone.latency.mean_s - 1)


def waiting(load: float, seeds: int = 20, requests: int = 20_000) -> tuple[float, float, float]:
    """The mean waiting of one server with fixed service: simulated, its 95 % confidence, and that of M/D/1."""
    service_s, means = slot()(), []
    for seed in range(seeds):
        arrivals = poisson_arrivals(fixed_lengths(10, 1, requests), load / service_s, seed)
        deployment = Deployment(slot(), 100, rules=Rules(max_requests=1))
        means.append(simulate_serving(arrivals, deployment, warmup=1_000).ttft.mean_s - service_s)
    mean = sum(means) / seeds
    error = math.sqrt(sum((own - mean) ** 2 for own in means) / (seeds - 1) / seeds)
    return mean, 2.093 * error, load / (2 * (1 - load)) * service_s


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--conv", type=Path, help="Azure's trace of conversations, as Parquet.")
    parser.add_argument("--code", type=Path, help="Azure's trace of code, as Parquet.")
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--report", type=Path)
    options = parser.parse_args()
    files = {name: path for name in ("conv", "code") if (path := getattr(options, name))}
    lines: list[str] = []

    def say(*text: str) -> None:
        lines.extend(text)
        sys.stdout.write("\n".join(text) + "\n")
        sys.stdout.flush()

    say("# The simulation of servers: speed, memory, queueing", "")
    say(f"{options.requests:,} requests each, made-up step times of an 8B model on an H200; one process, one core.", "")
    say(
        "| case | s | µs a request | steps | taken as | peak MiB | of it by the run | a tenth of the requests: s, MiB |"
    )
    say("|---|--:|--:|--:|--:|--:|--:|--:|")
    for name in CASES:
        if "Azure's conversations" in name or "prompts" in name:
            if "conv" not in files:
                continue
        elif "Azure" in name and "code" not in files:
            continue
        totals, seconds, peak, own = isolated(name, options.requests, files)
        _, tenth_s, _, tenth = isolated(name, options.requests // 10, files)  # memory must not grow with them
        assert totals.requests == options.requests
        assert totals.generated_tokens == totals.output_tokens
        say(
            f"| {name} | {seconds:.0f} | {seconds / options.requests * MEGA:.1f} | {totals.steps:,} "
            f"| {totals.stretches:,} | {peak:.0f} | {own:.1f} | {tenth_s:.1f}, {tenth:.1f} |"
        )
    ratio, apart = single_steps(max(options.requests // 50, 100))
    say("", f"Stretches against single steps: {ratio:.1f} times faster; mean latencies are {apart:.1e} apart.", "")
    say("| load of one server with fixed service | mean waiting, ms | M/D/1 | |", "|--:|--:|--:|---|")
    for load in (0.3, 0.5, 0.7, 0.9):
        mean, error, expected = waiting(load)
        inside = "inside" if abs(mean - expected) <= error else "outside"
        say(f"| {load} | {mean * 1e3:.3f} ± {error * 1e3:.3f} | {expected * 1e3:.3f} | {inside} |")
    if options.report:
        options.report.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""Lab: the utilisation that the driver shows, of workloads whose occupancy was counted.

    PYTHONPATH=src:. python -m lab.campaigns.utilisation data/h200 OUT.jsonl --seconds 120

NVML's utilisation is the share of time in which any kernel ran, however few SMs it filled. Each workload keeps the
device busy twice: replayed as a CUDA graph, and run eagerly. Meanwhile the driver is asked again and again; the first
readings are left out, because the driver looks back up to a second. Lines are appended: a second run goes on where the
first one stopped. A workload that cannot run is written with its error.
"""

import argparse
import gc
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from foretell.errors import ForetellError, MeasurementError
from foretell.profiling.campaign.done import find_tables, read_table
from foretell.profiling.campaign.selection import Row, spread_out
from foretell.profiling.trackers.nvml import Nvml
from foretell.profiling.workload import Workload, workload_from_row
from foretell.units import ms

_COLUMNS = (
    "workload_id", "spec", "family", "mode", "optimizer", "dtype", "batch_size", "input_shape", "status", "kernel_ms",
    "occupancy_weighted",
)  # fmt: skip
_LARGEST_BATCH = 64
_POLL_S = 0.02
_LEAD_S = 0.8  # readings before this may look back at what ran earlier
_WARMUPS = 3
_CHUNK_S = 0.025

Read = Callable[[], int | None]


def counted(store: Path, count: int, seed: str = "utilisation") -> list[Row]:
    """Some counted workloads, which differ as much as possible; any beginning of the list is spread out, too."""
    rows: dict[str, Row] = {}
    for file in find_tables(store, "occupancy"):
        for row in read_table(file, _COLUMNS).to_pylist():
            if row["status"] == "ok" and row["batch_size"] <= _LARGEST_BATCH and row["mode"] != "training":
                rows[str(row["workload_id"])] = {**row, "latency_ms": row["kernel_ms"]}
    if not rows:
        raise MeasurementError(f"No occupancy was counted below {store}.")
    return spread_out([rows[key] for key in sorted(rows)], count, seed)


def watch(busy: Callable[[float], int], read: Read, seconds: float) -> tuple[float | None, int, float]:
    """The mean reading while ``busy(seconds)`` runs, how many runs that returned, and the seconds of each run."""
    readings: list[int] = []
    stop, started = threading.Event(), time.perf_counter()

    def poll() -> None:
        while not stop.wait(_POLL_S):
            value = read()
            if value is not None and time.perf_counter() - started > min(_LEAD_S, seconds / 2):
                readings.append(value)

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    try:
        runs = busy(seconds)
    finally:
        elapsed_s = time.perf_counter() - started
        stop.set()
        thread.join()
    return (statistics.fmean(readings) if readings else None), runs, elapsed_s / max(runs, 1)


class Steps:
    """The runs of a workload on a device; on a CPU nothing is captured."""

    def __init__(self, device: str) -> None:
        self._cuda = device != "cpu"
        self._device = device

    def measure(self, workload: Workload, read: Read, seconds: float) -> dict[str, object]:
        """The utilisation in replays and in eager runs, in per cent, and the milliseconds of each run."""
        from foretell.profiling.skeleton import Weights
        from foretell.profiling.steps import make_step, weight_dtype
        from foretell.profiling.zoos.registry import build

        built = build(workload.spec)
        weights = Weights(built.model, cast_buffers=built.cast_buffers)
        weights.place(self._device, weight_dtype(workload), channels_last=workload.channels_last)
        step = make_step(built, workload, self._device)
        try:
            for _ in range(_WARMUPS):
                step.run()
            self._wait()
            replay = self._captured(step.run)
            replayed, replays, replay_s = watch(lambda limit: self._busy(replay, limit), read, seconds)
            eager, runs, run_s = watch(lambda limit: self._busy(step.run, limit), read, seconds)
        finally:
            step.close()
            weights.release()
        return {
            "nvml_utilisation_pct": replayed, "nvml_eager_utilisation_pct": eager, "latency_ms": ms(replay_s),
            "eager_ms": ms(run_s), "replays": replays, "eager_runs": runs,
        }  # fmt: skip

    def clear(self) -> None:
        """Free the memory of the last workload."""
        gc.collect()
        if self._cuda:
            import torch

            torch.cuda.empty_cache()

    def _wait(self) -> None:
        if self._cuda:
            import torch

            torch.cuda.synchronize()

    def _captured(self, run: Callable[[], Any]) -> Callable[[], Any]:
        if not self._cuda:
            return run
        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = run()

        def replay(kept: Any = output) -> None:  # the outputs live as long as the graph
            del kept
            graph.replay()

        return replay

    def _busy(self, run: Callable[[], Any], seconds: float) -> int:
        """Run for about ``seconds``; at most three chunks wait for the device, so that the end is near."""
        started = time.perf_counter()
        run()
        self._wait()
        chunk, runs = max(1, int(_CHUNK_S / (time.perf_counter() - started))), 1
        waiting: list[Any] = []
        while time.perf_counter() - started < seconds:
            for _ in range(chunk):
                run()
            runs += chunk
            if self._cuda:
                import torch

                event = torch.cuda.Event()
                event.record()
                waiting.append(event)
                if len(waiting) > 2:
                    waiting.pop(0).synchronize()
        self._wait()
        return runs


def main(argv: list[str] | None = None, read: Read | None = None) -> None:
    """Measure until the time is over or nothing is left; ``read`` stands in for the driver in tests."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--window", type=float, default=1.6, help="Seconds that a workload keeps the device busy.")
    parser.add_argument("--workloads", type=int, default=48)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args(argv)
    until = time.monotonic() + options.seconds
    rows = counted(options.store, options.workloads)
    if read is None:
        nvml = Nvml()
        nvml.open()
        read = nvml.utilisation_pct
    lines = options.out.read_text().splitlines() if options.out.exists() else []
    done = {json.loads(line)["workload_id"] for line in lines}
    left = [row for row in rows if row["workload_id"] not in done]
    steps, count = Steps(options.device), 0
    with options.out.open("a") as file:
        for record in _measured(left, steps, read, options.window, until):
            file.write(json.dumps(record) + "\n")
            file.flush()
            count += "error" not in record
    sys.stdout.write(f"{count} of {len(left)} workloads measured\n")


def _measured(
    rows: Iterable[Row], steps: Steps, read: Read, window_s: float, until: float
) -> Iterable[dict[str, object]]:
    for row in rows:
        if time.monotonic() + 2 * window_s > until:
            break
        workload = workload_from_row(row)
        record = {"workload_id": workload.id, **workload.to_json(), "occupancy_weighted": row["occupancy_weighted"]}
        try:
            yield {**record, **steps.measure(workload, read, window_s)}
        except (ForetellError, RuntimeError, ValueError, TypeError) as error:
            yield {**record, "error": str(error).splitlines()[0][:200]}
            if "CUDA error" in str(error):  # this process can no longer use the device
                break
        steps.clear()


if __name__ == "__main__":
    main()

"""What PyTorch's allocator hands out and takes back in one run on a GPU, allocation by allocation.

python benchmarks/memory_tapes.py WORKLOADS OUT.json     WORKLOADS has lines: spec batch dtype mode shape [optimizer]

Each workload runs three times. The second run is recorded by the allocator itself. The third one runs under a dispatch
mode that counts the allocations of every operator, which gives each allocation its name. The runs must allocate the
same sizes in the same order, else the names are left out. Compare the tapes with those of `foretell.graph.memory`.
"""

import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from foretell.files import write_whole
from foretell.profiling.skeleton import Weights
from foretell.profiling.steps import make_step, weight_dtype
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.registry import build
from foretell.units import mib

MAX_ENTRIES = 200_000


def read_workloads(path: Path) -> list[Workload]:
    """The workloads of a file; the shape of one item comes from the zoo."""
    workloads = []
    for line in path.read_text().splitlines():
        if not line.strip():
            continue
        spec, batch, dtype, mode, shape, *optimizer = line.split()
        sizes = tuple(int(size) for size in shape.split("x"))
        workloads.append(Workload(spec, int(batch), sizes, dtype, mode, *optimizer))
    return workloads


def tape_of(entries: list[dict[str, Any]]) -> tuple[list[int], list[str]]:
    """The events of a recorded run, and the line of code of each allocation.

    An event of 0 or more allocates so many bytes; one below 0 is ~number, and frees the allocation of that number. What
    was allocated before the recording is not on the tape.

    >>> tape_of([{"action": "alloc", "addr": 7, "size": 512, "frames": []}, {"action": "free_completed", "addr": 7}])
    ([512, -1], [''])
    """
    events: list[int] = []
    lines: list[str] = []
    numbers: dict[int, int] = {}
    for entry in entries:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = len(lines)
            events.append(entry["size"])
            lines.append(_line(entry.get("frames") or []))
        elif entry["action"] == "free_completed" and entry["addr"] in numbers:
            events.append(~numbers.pop(entry["addr"]))
    return events, lines


def _line(frames: list[dict[str, Any]]) -> str:
    """The innermost line that is not PyTorch's own; the innermost of all where there is none."""
    own = [f for f in frames if "/torch/" not in f["filename"] and not f["filename"].startswith("<")]
    frame = next(iter(own or frames), None)
    return f"{Path(frame['filename']).name}:{frame['line']} {frame['name']}" if frame else ""


class OperatorCounts:
    """The operators of a run in their order, each with the number of allocations up to its end."""

    def __init__(self, count: Any) -> None:
        import torch
        from torch.utils._python_dispatch import TorchDispatchMode

        counts: list[tuple[str, int, int]] = []
        self.counts = counts

        class Counting(TorchDispatchMode):
            def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
                before = count()
                result = func(*args, **(kwargs or {}))
                after = count()
                if after > before:
                    counts.append((str(func), before, after))
                return result

        self.mode = Counting()
        self.torch = torch

    def names(self, first: int, total: int) -> list[str]:
        """The operator of each of ``total`` allocations after the first ``first`` ones."""
        names = [""] * total
        for name, before, after in self.counts:
            for number in range(before - first, min(after - first, total)):
                names[number] = name
        return names


def allocations() -> int:
    """How many blocks the allocator has handed out so far."""
    import torch

    return int(torch.cuda.memory_stats()["allocation.all.allocated"])


def _recorded(run: Any, stacks: bool) -> list[dict[str, Any]]:
    import torch

    torch.cuda.synchronize()
    context = "all" if stacks else None
    torch.cuda.memory._record_memory_history(
        "all", context=context, stacks="python", max_entries=MAX_ENTRIES, clear_history=True
    )
    try:
        output = run()
        torch.cuda.synchronize()
        del output
        entries: list[dict[str, Any]] = torch.cuda.memory._snapshot()["device_traces"][0]
    finally:
        torch.cuda.memory._record_memory_history(None)
    return entries


def record(workload: Workload) -> dict[str, Any]:
    """The tape of a workload, its peak, and what each allocation was for."""
    import torch

    built = build(workload.spec)
    weights = Weights(built.model, cast_buffers=built.cast_buffers)

    def clear() -> None:
        gc.collect()
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()

    clear()
    weights.place("cuda", weight_dtype(workload))
    step = make_step(built, workload, "cuda")
    clear()
    torch.cuda.reset_peak_memory_stats()
    found: dict[str, Any] = {"baseline_mib": mib(torch.cuda.memory_allocated())}
    try:
        first, _ = tape_of(_recorded(step.run, stacks=False))
        found["first_mib"] = mib(torch.cuda.max_memory_allocated())
        before_mib = mib(torch.cuda.memory_allocated())
        events, lines = tape_of(_recorded(step.run, stacks=True))
        found |= {"memory_mib": mib(torch.cuda.max_memory_allocated()), "before_mib": before_mib}
        # blocks that the first run keeps: workspaces of libraries, states of the optimizer
        found["kept"] = _kept(first)
        counting = OperatorCounts(allocations)
        start = allocations()
        with counting.mode:
            third, _ = tape_of(_recorded(step.run, stacks=False))
        same = [e for e in third if e >= 0] == [e for e in events if e >= 0]
        names = counting.names(start, len(lines)) if same else [""] * len(lines)
    finally:
        step.close()
        weights.release()
    labels: dict[str, int] = {}
    labelled = [labels.setdefault(f"{name} {line}", len(labels)) for name, line in zip(names, lines, strict=True)]
    return found | {"events": events, "labels": list(labels), "label": labelled, "named": same}


def _kept(events: list[int]) -> list[int]:
    sizes = [event for event in events if event >= 0]
    freed = {~event for event in events if event < 0}
    return [size for number, size in enumerate(sizes) if number not in freed]


def main(workloads: str, out: str) -> None:
    import torch

    torch.cuda.set_stream(torch.cuda.Stream())
    rows, started = [], time.perf_counter()
    for workload in read_workloads(Path(workloads)):
        row: dict[str, Any] = {"spec": workload.spec, "batch_size": workload.batch_size, "dtype": workload.dtype}
        row |= {"mode": workload.mode, "optimizer": workload.optimizer}
        try:
            row |= record(workload)
        except Exception as error:  # noqa: BLE001 one that fails must not cost the others
            row["error"] = f"{type(error).__name__}: {error}"[:300]
        rows.append(row)
        print(
            f"{time.perf_counter() - started:.1f} s {workload.spec} {row.get('memory_mib', row.get('error'))}",
            flush=True,
        )
        write_whole(Path(out), json.dumps(rows, separators=(",", ":")).encode())


if __name__ == "__main__":
    main(*sys.argv[1:])

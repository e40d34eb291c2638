"""Lab: DIPPM's data in kind: its ten families at many batch sizes and resolutions in fp32, measured on this GPU.

``python -m lab.papers.dippm.grid OUT.jsonl --seconds 440 --processes 12``; with ``--dry`` it runs one setting on a CPU.

The paper has 10,508 graphs of ten families in one precision. Here every model of a family in timm, up to `MOST` of
them, is built once in a process of its own, because a process in which cuDNN used a second stream times later replays
slower. There its settings are warmed up and captured while others do the same, and timed alone. Latency is that of
replays; memory is the peak of the allocator; energy is not measured, because it would take a second for each setting.
"""

import argparse
import itertools
import json
import multiprocessing
import random
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from foretell.optional import repair_torchvision
from foretell.processes.device_lock import MAX_WORKERS
from lab.papers.dippm.sets import FAMILIES, family_of

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SIDES = (128, 160, 192, 224, 256, 288)
MOST = 14  # models of a family
SETTINGS = 48  # of a model
_MOST_PIXELS = 64 * 224 * 224
_SIZED = ("vit", "swin", "visformer")  # families whose models are built for one resolution
_SIDES_OF_SIZED, _SIDES_OF_14 = (224, 256, 288), (224, 252, 280)
_GIANTS = re.compile(r"giant|gigantic|huge|so\d+m|_\db_|7b|large_patch14|pe_|_xl")  # a few would take all the time
Row = dict[str, Any]


def models(names: Sequence[str]) -> list[str]:
    """The models of each family among some names of timm, spread evenly over the sorted names."""
    found: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        family = family_of(f"timm:{name}")
        if family is not None and not _GIANTS.search(name):
            found[family].append(name)
    chosen = []
    for family in FAMILIES:
        own = found[family]
        step = max(len(own) / MOST, 1)
        chosen += [own[int(place * step)] for place in range(min(len(own), MOST))]
    return chosen


def timm_names() -> list[str]:
    """All models of timm."""
    repair_torchvision()
    import timm

    return list(timm.list_models())


def settings(name: str) -> list[Row]:
    """The settings of a model in random order, as many as `SETTINGS`; what is too large for the time is left out."""
    draw = random.Random(name)
    sized = family_of(f"timm:{name}") in _SIZED
    sides = (_SIDES_OF_14 if "patch14" in name else _SIDES_OF_SIZED) if sized else SIDES
    rows = []
    for batch, side in itertools.product(BATCHES, sides):
        if batch * side * side <= _MOST_PIXELS:
            spec = f"timm:{name}?img_size={side}" if sized else f"timm:{name}"
            rows.append({"spec": spec, "batch_size": batch, "input_shape": [3, side, side], "dtype": "fp32"})
    draw.shuffle(rows)
    return rows[:SETTINGS]


def measure_model(name: str, folder: Path, worker: int, until: float) -> list[Row]:
    """Measure a model's settings until a moment; a setting that fails is a row with its error."""
    import torch

    from foretell.processes.device_lock import DeviceLock
    from foretell.profiling.campaign.plan import Measuring
    from foretell.profiling.runtimes.cuda import CudaRuntime

    lock = DeviceLock(folder, worker)
    lock.open()
    runtime = CudaRuntime(lock, Measuring(replays=10, tries=2))
    runtime.open(tracing=False)
    rows = []
    with torch.inference_mode():
        for spec, own in itertools.groupby(
            sorted(settings(name), key=lambda row: row["spec"]), lambda row: row["spec"]
        ):
            runtime.clear()
            try:
                model = build(spec, runtime.device)
            except Exception as error:  # noqa: BLE001 - a model that cannot be built is a row
                rows.append({"spec": spec, "error": str(error)[:200]})
                continue
            runtime.clear()
            for row in own:
                if time.time() > until:
                    return rows
                rows.append(_measured(row, model, runtime))
            del model
    return rows


def build(spec: str, device: str) -> Any:
    """The model of a spec in eval mode, made on the device."""
    import torch

    from foretell.profiling.zoos.timm_models import TimmZoo

    zoo = TimmZoo()
    zoo.prepare()
    with torch.device(device):
        return zoo.build(spec).model


def _measured(row: Row, model: Any, runtime: Any) -> Row:
    import torch

    from foretell.profiling.steps import Step

    try:
        image = torch.randn(row["batch_size"], *row["input_shape"], device=runtime.device)
        step = Step(lambda: model(image), lambda: None)
        runtime.reset_memory()
        memory, _ = runtime.warm_up(step, 2)
        measured = runtime.measure(step, energy=False, eager=False)
        kept = ("latency_ms", "latency_cv", "latency_source", "clock_mhz")
        return {**row, "memory_mib": memory["memory_mib"], **{name: measured.get(name) for name in kept}}
    except Exception as error:  # noqa: BLE001 - the row says what failed, and the grid goes on
        torch.cuda.synchronize()
        return {**row, "error": f"{type(error).__name__}: {error}".splitlines()[0][:200]}


def run(out: Path, seconds: float, processes: int) -> int:
    """Measure all models side by side; the number of settings with a time."""
    end = time.time() + seconds
    names = models(timm_names())
    random.Random(0).shuffle(names)  # when the time is over, no family is missing
    # a model's turn: all have the same time, twelve at once
    turn = (seconds - 20) * processes / len(names)
    context, count = multiprocessing.get_context("spawn"), 0
    with (
        tempfile.TemporaryDirectory() as folder,
        out.open("a") as file,
        ProcessPoolExecutor(processes, context, max_tasks_per_child=1) as pool,
    ):
        tasks = {
            pool.submit(_turn, name, Path(folder), place % MAX_WORKERS, turn, end): name
            for place, name in enumerate(names)
        }
        for task in as_completed(tasks):
            error = task.exception()
            rows = [{"spec": tasks[task], "error": str(error)[:200]}] if error is not None else task.result()
            file.writelines(f"{json.dumps(row)}\n" for row in rows)
            file.flush()
            count += sum("latency_ms" in row for row in rows)
    return count


def _turn(name: str, folder: Path, worker: int, seconds: float, end: float) -> list[Row]:
    return measure_model(name, folder, worker, min(time.time() + seconds, end)) if time.time() < end - 10 else []


def main() -> None:
    """Measure, or with ``--dry`` run the first setting of each family on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=440.0)
    parser.add_argument("--processes", type=int, default=12)
    parser.add_argument("--dry", action="store_true")
    options = parser.parse_args()
    if not options.dry:
        sys.stdout.write(f"{run(options.out, options.seconds, options.processes)} settings measured\n")
        return
    import torch

    names = models(timm_names())
    sys.stdout.write(f"{len(names)} models, {sum(len(settings(name)) for name in names)} settings\n")
    for family in FAMILIES:
        row = settings(next(name for name in names if family_of(f"timm:{name}") == family))[0]
        with torch.inference_mode():
            answer = build(row["spec"], "cpu")(torch.randn(1, *row["input_shape"]))
        sys.stdout.write(f"{family}: {row['spec']} {row['input_shape']} → {tuple(answer.shape)}\n")


if __name__ == "__main__":
    main()

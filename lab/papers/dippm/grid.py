"""Lab: DIPPM's data in kind: its ten families at many batch sizes and resolutions in fp32, measured on this GPU.

``python -m lab.papers.dippm.grid OUT.jsonl --seconds 430 --processes 16``; with ``--dry`` it runs one setting on a CPU.

The paper has 10,508 graphs of ten families in one precision. Here every model of a family in timm, up to `MOST` of
them, is measured in a process of its own, because a process in which cuDNN used a second stream times later replays
slower. The processes are forked copies with all imports done. There its settings are prepared while others do the same,
and timed alone, as a campaign does it. Latency is that of replays; memory is the peak of the allocator. Energy takes
most of a second for each setting, so only a share of them has it.

Each row is written at once, and the command ends with its seconds, whatever hangs. The same command goes on later. A
new sitting measures what the store lacks, when ``python -m lab.papers.dippm.grid_set lines OUT.jsonl`` ran before it
(with ``--energy``: what lacks energy); some twenty settings taken out of that file tell how this card differs.
"""

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import os
import random
import re
import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foretell.errors import MeasurementError
from foretell.optional import available, repair_torchvision
from foretell.processes.child import Message, configure_libraries, die_with_parent, stop_garbage_collection
from foretell.processes.device_lock import DeviceLock
from foretell.processes.forked import EndedError, run_forked
from foretell.profiling.campaign.plan import Limits, Measuring
from foretell.profiling.workload import Workload, fraction
from lab.papers.dippm.sets import FAMILIES, family_of

BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SIDES = (128, 160, 192, 224, 256, 288)
MOST = 14  # models of a family
SETTINGS = 48  # of a model
MEASURING = Measuring(warmups=2, replays=5, tries=2, eager_share=0.0, energy_s=0.7)
# a step of 50 ms takes half a second of the device alone, and one in twenty settings is longer
LIMITS = Limits(max_latency_ms=50.0)
KEPT = ("latency_ms", "latency_cv", "memory_mib", "reserved_mib", "power_w", "energy_j", "clock_mhz")
_NAMES = Path(__file__).with_name("grid_models.txt")
_MOST_PIXELS = 64 * 224 * 224
_SIZED = ("vit", "swin", "visformer")  # families whose models are built for one resolution
_SIDES_OF_SIZED, _SIDES_OF_14 = (224, 256, 288), (224, 252, 280)
_GIANTS = re.compile(r"giant|gigantic|huge|so\d+m|_\db_|7b|large_patch14|pe_|_xl")  # a few would take all the time
_LAST_S = 8.0  # before the end no setting begins
_LONGEST_S = 45  # a setting that takes longer hangs, and its process is ended
_TRIES = 2  # processes of a model, where one crashes
_NEWS_S = 30.0
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
    """The settings of a model in random order, as many as `SETTINGS`; what is too large for the time is left out.

    `LIMITS` leave out more, when the model's earlier settings show what one takes.
    """
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


def planned_names() -> list[str]:
    """The models of the grid. The list is a file, because another timm has other names."""
    return _NAMES.read_text(encoding="utf-8").split()


def workload_of_row(row: Mapping[str, Any]) -> Workload:
    """The workload of a row; its identifier is that of the store."""
    how = (row["dtype"], row.get("mode", "inference"), row.get("optimizer", ""))
    return Workload(row["spec"], row["batch_size"], tuple(row["input_shape"]), *how)


def row_of_workload(workload: Workload) -> Row:
    """The row of a workload, without what was measured; of inference, mode and optimizer are left out."""
    row: Row = {
        "spec": workload.spec, "batch_size": workload.batch_size, "input_shape": [*workload.input_shape],
        "dtype": workload.dtype,
    }  # fmt: skip
    return row if workload.mode == "inference" else row | {"mode": workload.mode, "optimizer": workload.optimizer}


Groups = list[tuple[str, list[Workload]]]


def groups_of(name: str) -> Groups:
    """The settings of a model by spec, each in random order: whenever the time is over, no side is preferred."""
    return grouped(name, settings(name))


def grouped(name: str, rows: Sequence[Row]) -> Groups:
    """Settings by spec, specs in random order."""
    ordered = sorted(rows, key=lambda row: str(row["spec"]))
    by_spec = itertools.groupby(ordered, lambda row: row["spec"])
    found = [(spec, [workload_of_row(row) for row in own]) for spec, own in by_spec]
    draw = random.Random(name)
    draw.shuffle(found)
    return found


@dataclass(frozen=True)
class Plan:
    """What is measured: names of models, and the settings of each; functions that another process can import."""

    names: Callable[[], Sequence[str]]
    groups: Callable[[str], Groups]


INFERENCE = Plan(planned_names, groups_of)


def energetic(plan: Plan, share: float) -> Plan:
    """The settings of a plan that are measured with energy, when a share of them is; the others are left out."""
    return Plan(plan.names, functools.partial(_energetic, plan, share))


def _energetic(plan: Plan, share: float, name: str) -> Groups:
    chosen = [(spec, [w for w in own if has_energy(w, share)]) for spec, own in plan.groups(name)]
    return [(spec, own) for spec, own in chosen if own]


def has_energy(workload: Workload, share: float) -> bool:
    """Whether a setting is among a share of them."""
    return fraction("energy", workload.id) < share


def read_rows(file: Path) -> list[Row]:
    """The rows of a file; a line that was cut short is left out."""
    rows = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            rows.append(json.loads(line))
        except ValueError:
            continue
    return rows


def append_row(file: Path, row: Mapping[str, object]) -> None:
    """Add a line at once; lines of several processes do not mix, because each is one short write."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, f"{json.dumps(row)}\n".encode())
    finally:
        os.close(handle)


class Recorder:
    """Writes the rows of a model's settings, from the messages of a campaign's worker."""

    def __init__(self, file: Path, workloads: Sequence[Workload]) -> None:
        self._file = file
        self._workloads = {workload.id: workload for workload in workloads}

    def send(self, message: Message) -> None:
        """Take a message; a setting that begins has its own time limit."""
        if message["event"] == "begin":
            signal.alarm(_LONGEST_S)
            return
        workload = self._workloads[message["id"]]
        row = row_of_workload(workload)
        if message["event"] == "record" and message["status"] == "ok":
            values = message["values"]
            append_row(self._file, row | {name: values[name] for name in KEPT if values.get(name) is not None})
        else:
            error = message.get("error") or message.get("values", {}).get("error") or ""
            append_row(self._file, row | {"error": f"{message.get('status', message['event'])}: {error}"[:200]})


def make_runtime(lock: DeviceLock) -> Any:
    """What drives the GPU; without pynvml, clocks and energy are missing, and all else is measured."""
    from foretell.profiling.runtimes.cuda import CudaRuntime

    class WithoutDriver(CudaRuntime):
        def open(self, *, tracing: bool) -> None:
            self._nvml.open = no_driver  # type: ignore[method-assign]
            super().open(tracing=tracing)

    return (CudaRuntime if available("pynvml") else WithoutDriver)(lock, MEASURING)


def no_driver() -> None:
    """Stands for a driver that cannot be asked."""
    raise MeasurementError("There is no pynvml.")


def measure_model(name: str, out: Path, lock: DeviceLock, stop: float, energy: float, plan: Plan = INFERENCE) -> None:
    """Measure a model's settings in this process until a moment; those that the file has already are left out."""
    from foretell.profiling.campaign.schedule import Group
    from foretell.profiling.campaign.worker import Worker, start_threads

    done = {workload_of_row(row).id for row in read_rows(out) if "batch_size" in row}
    groups = [(spec, left) for spec, own in plan.groups(name) if (left := [w for w in own if w.id not in done])]
    if not groups:
        return
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the kernel ends the process, even inside a driver that hangs
    signal.alarm(_LONGEST_S)
    lock.open()
    runtime = make_runtime(lock)
    # to measure the memory of a context takes the device alone; what nvidia-smi shows is not recorded here
    runtime.context_mib = math.nan
    runtime.open(tracing=False)
    start_threads(runtime.device, MEASURING)
    for number, (spec, own) in enumerate(groups):
        now = time.monotonic()
        worker = Worker(runtime, MEASURING, LIMITS, Recorder(out, own).send)
        chosen = {workload.id for workload in own if has_energy(workload, energy)}
        worker.run_group(Group("grid", spec, tuple(own), len(own)), chosen, now + (stop - now) / (len(groups) - number))
    signal.alarm(0)


def turn_s(left_s: float, models_left: int, processes: int) -> float:
    """The seconds of a model: all that are left have the same time, and those that run now are half done.

    >>> turn_s(420, 105, 14), turn_s(20, 1, 14)
    (52.5, 20)
    """
    return min(left_s * processes / (models_left + (processes - 1) // 2 + 1), left_s)


def claims(folder: Path, names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """The names that no other process has claimed, one after the other; a process that dies keeps nobody waiting."""
    for place, name in enumerate(names):
        try:
            os.close(os.open(folder / f"claim-{place}", os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            continue
        yield place, name


def serve(slot: int, out: Path, folder: Path, end: float, processes: int, energy: float, plan: Plan) -> None:
    """Measure one model after the other, each in a forked copy of this process, which never uses the device."""
    from foretell.profiling.campaign.worker import set_environment
    from foretell.profiling.zoos.registry import preload

    die_with_parent()
    configure_libraries(folder)
    set_environment("cuda")
    import torch

    import foretell.profiling.runtimes.cuda
    import foretell.profiling.skeleton
    import foretell.profiling.steps  # noqa: F401 imported before the fork, once for all models

    torch.set_num_threads(1)
    preload(["timm"])
    stop_garbage_collection()
    lock = DeviceLock(folder, slot)
    lock.open()
    names = list(plan.names())
    random.Random(0).shuffle(names)  # when the time is over, no family is missing
    for place, name in claims(folder, names):
        left = end - _LAST_S - time.monotonic()
        if left < _LAST_S:
            return
        stop = time.monotonic() + turn_s(left, len(names) - place, processes)
        for _ in range(_TRIES):
            if measured_in_copy(name, out, lock, stop, energy, plan) or time.monotonic() > stop:
                break


def measured_in_copy(
    name: str, out: Path, lock: DeviceLock, stop: float, energy: float, plan: Plan = INFERENCE
) -> bool:  # fmt: skip
    """Measure a model in a copy of this process; whether the copy came to its end."""
    try:
        run_forked(lambda: measure_model(name, out, lock, stop, energy, plan), lock.shared)
    except EndedError as error:
        append_row(out, {"spec": f"timm:{name}", "error": str(error)})
        return False
    finally:
        lock.mark_free()
    return True


def run(out: Path, seconds: float, processes: int, energy: float, plan: Plan = INFERENCE) -> int:
    """Measure all models side by side until the time is over; the number of settings with a time."""
    end, news = time.monotonic() + seconds, time.monotonic() + _NEWS_S
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        slots = [
            context.Process(target=serve, args=(slot, out, Path(folder), end, processes, energy, plan), daemon=True)
            for slot in range(processes)
        ]
        for slot in slots:
            slot.start()
        while any(slot.is_alive() for slot in slots) and time.monotonic() < end:
            time.sleep(0.2)
            if time.monotonic() > news:
                news += _NEWS_S
                say(f"{end - time.monotonic():.0f} s left, {measured(out)} settings measured")
        for slot in slots:
            slot.kill()  # its copy ends with it
        for slot in slots:
            slot.join(1)
    return measured(out)


def measured(out: Path) -> int:
    """The settings of a file that have a time."""
    return sum("latency_ms" in row for row in read_rows(out))


def say(text: str) -> None:
    """Write a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def build(spec: str) -> Any:
    """The model of a spec in eval mode, with small weights as its code gives them."""
    from foretell.profiling.zoos.timm_models import TimmZoo

    zoo = TimmZoo()
    zoo.prepare()
    return zoo.build(spec).model


def main() -> None:
    """Measure, or with ``--dry`` run the first setting of each family on a CPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=430.0, help="The command ends then [430].")
    parser.add_argument("--processes", type=int, default=16, help="Models at the same time [16].")
    parser.add_argument("--energy-share", type=float, default=0.0, help="The share of settings with energy [0].")
    parser.add_argument("--energy-alone", action="store_true", help="Leave out what is measured without energy.")
    parser.add_argument("--dry", action="store_true", help="Run one setting of each family on a CPU, and measure none.")
    parser.add_argument("--choose", action="store_true", help="Choose the models anew, from the timm of this machine.")
    options = parser.parse_args()
    if options.choose:
        _NAMES.write_text("".join(f"{name}\n" for name in models(timm_names())), encoding="utf-8")
    elif options.dry:
        dry()
    else:
        plan = energetic(INFERENCE, options.energy_share) if options.energy_alone else INFERENCE
        count = run(options.out.resolve(), options.seconds, options.processes, options.energy_share, plan)
        say(f"{count} settings measured")
        os._exit(0)  # a process that even the kernel cannot end must not keep this one


def dry() -> None:
    """Run one setting of each family on a CPU."""
    import torch

    names = planned_names()
    say(f"{len(names)} models, {sum(len(settings(name)) for name in names)} settings")
    for family in FAMILIES:
        row = settings(next(name for name in names if family_of(f"timm:{name}") == family))[0]
        with torch.inference_mode():
            answer = build(row["spec"])(torch.randn(1, *row["input_shape"]))
        say(f"{family}: {row['spec']} {row['input_shape']} → {tuple(answer.shape)}")


if __name__ == "__main__":
    main()

"""Lab: measure what `lab.campaigns.improvements.plan` predicted.

    PYTHONPATH=src:. python -m lab.campaigns.improvements.measure PLAN.json OUT.jsonl --seconds 220

Every state of a network (as it is, and with each change) runs in a process of its own, forked before the GPU is
touched: a process that has used a second stream is slower ever after. Processes prepare in parallel (build, fold,
compile, warm up, capture), a wave of them at a time; when all of a wave are ready, the replays of one after the other
are timed alone. No process ends before all of its wave were timed. Lines are written as they come, and a second run
goes on where the first one stopped. ``--device cpu`` tries the whole way without a GPU; nothing is compiled there.
"""

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretell.processes.child import die_with_parent, short
from foretell.profiling.campaign.plan import Measuring
from foretell.profiling.workload import TF32, Workload, parse_spec

BEFORE = "before"
COMPILE, FOLD, FUSE, CHANNELS_LAST = "torch.compile", "batch norms folded", "fused attention", "channels-last"
_PRECISIONS = ("fp16", "bf16", TF32)
_WAVE = 30
_PREPARE_S = {"plain": 40.0, "compiled": 100.0}  # the longest that a wave may prepare
_RUNS = 3  # of a compiled model before it is captured
_EXIT_S = 5.0

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Task:
    """One state of one network."""

    number: int
    rank: int
    workload: Workload
    parts: tuple[str, ...]

    @property
    def name(self) -> str:
        """The changes, as the plan names them."""
        return " + ".join(self.parts) or BEFORE

    @property
    def is_compiled(self) -> bool:
        """Whether it takes long to prepare."""
        return COMPILE in self.parts


def tasks_of(plan: Sequence[Row]) -> list[Task]:
    """All states of all networks: as they are, then the first suggestions, then the others; compiled ones last."""
    tasks = []
    for number, row in enumerate(plan):
        shape = tuple(row["input_shape"])
        plain = Workload(row["spec"], row["batch_size"], shape, row["dtype"], family=row["family"])
        tasks.append(Task(number, 0, plain, ()))
        for change in row["changes"]:
            parts = tuple(change["change"].split(" + "))
            dtype = next((part for part in parts if part in _PRECISIONS), plain.dtype)
            sized = replace(plain, batch_size=change["batch_size"], dtype=dtype, channels_last=CHANNELS_LAST in parts)
            tasks.append(Task(number, change["rank"], sized, parts))
    return sorted(tasks, key=lambda task: (task.rank > 1, task.is_compiled, task.rank, task.number))


def waves(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Tasks that are prepared together: compiled ones apart, since the others would wait for them."""
    wave: list[Task] = []
    for task in tasks:
        if wave and (len(wave) == _WAVE or wave[0].is_compiled != task.is_compiled):
            yield wave
            wave = []
        wave.append(task)
    if wave:
        yield wave


def fold_modules(model: Any, run: Any) -> int:
    """Fold every batch norm of a model on its device into the layer whose result it reads; returns how many.

    Which module reads whose result is seen while the model runs once.
    """
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

    layers = (torch.nn.Conv1d, torch.nn.Conv2d, torch.nn.Conv3d, torch.nn.Linear)
    norms = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
    made: dict[int, tuple[str, Any]] = {}
    pairs: list[tuple[str, str]] = []
    names = {module: name for name, module in model.named_modules()}

    def after(module: Any, inputs: Any, output: Any) -> None:
        if isinstance(module, norms) and id(inputs[0]) in made:
            pairs.append((made[id(inputs[0])][0], names[module]))
        elif isinstance(module, layers):
            made[id(output)] = names[module], output  # the tensor stays, so that no other gets its id

    hooks = [module.register_forward_hook(after) for module in names if isinstance(module, (*layers, *norms))]
    run()
    for hook in hooks:
        hook.remove()
    for layer_name, norm_name in pairs:
        layer, norm = model.get_submodule(layer_name), model.get_submodule(norm_name)
        fuse = fuse_linear_bn_eval if isinstance(layer, torch.nn.Linear) else fuse_conv_bn_eval
        _put(model, layer_name, fuse(layer, norm))
        # timm's batch norms have their activation inside
        rest = [part for name in ("drop", "act") if (part := getattr(norm, name, None)) is not None]
        _put(model, norm_name, torch.nn.Sequential(*rest) if rest else torch.nn.Identity())
    return len(pairs)


def _put(model: Any, name: str, module: Any) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, module)


def _fused_spec(spec: str) -> str:
    """The same network with fused attention: by its configuration, or by timm's switch."""
    parsed = parse_spec(spec)
    if parsed.zoo == "timm":
        import timm.layers

        timm.layers.set_fused_attn(True, experimental=True)
    left = {key: value for key, value in parsed.arguments.items() if key != "attn_implementation"}
    return str(replace(parsed, arguments=left))


def prepare(task: Task, runtime: Any) -> tuple[Any, dict[str, Any]]:
    """Build, change, compile and capture one state of a network."""
    from foretell.profiling.replays.compiled_worker import compile_model
    from foretell.profiling.skeleton import Weights
    from foretell.profiling.steps import make_step, weight_dtype
    from foretell.profiling.zoos.registry import build

    workload, facts = task.workload, dict[str, Any]()
    if FUSE in task.parts:
        workload = replace(workload, spec=_fused_spec(workload.spec))
    built = build(workload.spec)
    weights = Weights(built.model, cast_buffers=built.cast_buffers)
    weights.place(runtime.device, weight_dtype(workload), channels_last=workload.channels_last)
    step = make_step(built, workload, runtime.device)
    if FOLD in task.parts:
        facts["folded"] = fold_modules(built.model, step.run)
    runtime.warm_up(step, Measuring().warmups)
    if task.is_compiled:
        backend = "eager" if runtime.device == "cpu" else "inductor"
        step = make_step(replace(built, model=compile_model(built.model, backend)), workload, runtime.device)
        started = time.perf_counter()
        for _ in range(_RUNS):
            step.run()
        facts["compile_s"] = round(time.perf_counter() - started, 1)
    return runtime.capture(step), facts


def _serve(task: Task, device: str, pipe: Any, slots: Any) -> None:
    """In a fresh process: prepare, wait for the word, time, wait for the end. It never returns."""
    die_with_parent()
    try:
        with slots:
            from foretell.profiling.replays.captured import CpuReplays, CudaReplays

            started = time.perf_counter()
            runtime = CpuReplays(Measuring()) if device == "cpu" else CudaReplays(Measuring())
            runtime.open()
            captured, facts = prepare(task, runtime)
            facts["prepare_s"] = round(time.perf_counter() - started, 1)
        pipe.send({"ready": True})
        pipe.recv()
        pipe.send({**runtime.time(captured), **facts})
        pipe.recv()
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException as error:  # noqa: BLE001 a model that cannot run is a finding
        with suppress(OSError):
            pipe.send({"error": f"{type(error).__name__}: {short(error)}"})
            pipe.recv()
    finally:
        os._exit(0)


def run_wave(wave: Sequence[Task], device: str, parallel: int, until: float) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Prepare all tasks of a wave in parallel, then time them one by one."""
    context = multiprocessing.get_context("fork")
    slots = context.Semaphore(parallel)
    running = []
    for task in wave:
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(task, device, theirs, slots))
        process.start()
        theirs.close()
        running.append((task, ours, process))
    ready = []
    for task, pipe, process in running:
        answer = _receive(pipe, until)
        if "ready" in answer:
            ready.append((task, pipe, process))
        else:
            yield task, answer
    # whoever is late would disturb the timings of the others
    late = [process for task, _, process in running if task not in [one for one, _, _ in ready]]
    for process in late:
        process.kill()
    for task, pipe, _ in ready:
        pipe.send("time")
        yield task, _receive(pipe, time.monotonic() + _PREPARE_S["plain"])
    for _, pipe, process in running:
        with suppress(OSError):
            pipe.send("end")
        process.join(_EXIT_S)
        if process.is_alive():
            process.kill()


def _receive(pipe: Any, until: float) -> dict[str, Any]:
    try:
        if pipe.poll(max(until - time.monotonic(), 0.0)):
            answer: dict[str, Any] = pipe.recv()
            return answer
    except (EOFError, OSError):
        return {"error": "the process ended"}
    return {"error": "late: it was not ready in time"}


def main(arguments: Sequence[str]) -> int:
    """Measure until all is done or the time is over."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=220.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--parallel", type=int, default=max(1, os.cpu_count() or 1))
    parser.add_argument("--networks", type=int, default=1000, help="only the first so many")
    options = parser.parse_args(arguments)
    started = time.monotonic()
    end = started + options.seconds
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.mkdtemp(prefix="inductor-"))
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"  # looking for a GPU must not touch it before the forks
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # sixteen processes compile at once: no pool inside each
    _preload()
    plan = json.loads(options.plan.read_text(encoding="utf-8"))[: options.networks]
    done = _done(options.out)
    left = [task for task in tasks_of(plan) if (task.number, task.name) not in done]
    with options.out.open("a", encoding="utf-8") as file:
        for wave in waves(left):
            until = min(time.monotonic() + _PREPARE_S["compiled" if wave[0].is_compiled else "plain"], end)
            if until - time.monotonic() < _PREPARE_S["plain"] / 4:
                break
            for task, record in run_wave(wave, options.device, options.parallel, until):
                row = {"network": task.number, "spec": task.workload.spec, "change": task.name, "rank": task.rank}
                file.write(json.dumps({**row, **record}) + "\n")
                file.flush()
                shown = record.get("latency_ms", record.get("error"))
                sys.stdout.write(
                    f"{time.monotonic() - started:6.1f} s  {task.workload.spec[:50]}  {task.name}: {shown}\n"
                )
                sys.stdout.flush()
    return 0


def _preload() -> None:
    """Import everything before processes are forked; the GPU must not be touched."""
    import torch

    from foretell.profiling.replays import captured, compiled_worker  # noqa: F401
    from foretell.profiling.zoos.registry import preload

    torch.set_num_threads(1)
    preload(("timm", "torchvision", "hf", "wild", "synthetic"))


def _done(out: Path) -> set[tuple[int, str]]:
    """What an earlier run has timed."""
    if not out.exists():
        return set()
    rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {(row["network"], row["change"]) for row in rows if "latency_ms" in row}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

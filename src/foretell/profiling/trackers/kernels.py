"""Profiling: kernel traces: which kernels a run launches, how long each takes, and its operator and module.

A Kineto trace links a kernel to the call that launched it. The operators and module annotations that are open around
that call, on the same thread, name the rest. Operators are numbered in program order, including those without kernels,
so that number and module identify the node of an exported graph.
"""

import bisect
import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from foretell.units import ms, seconds_from_us

MODULE, RUN = "module:", "run:"
_LAUNCHES = ("cuda_runtime", "cuda_driver")
_DEVICE_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_NO_STREAM = -1
# operators that only call others: the kernels belong to those, as if the model had called them itself
_COMPOSED = frozenset(
    f"aten::{name}"
    for name in (
        "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "einsum", "lstm_cell", "gru_cell",
        "rnn_tanh_cell", "rnn_relu_cell",
    )
)  # fmt: skip
# spans around all that a compiled model runs
_COMPILED_REGIONS = ("Torch-Compiled Region", "## Call CompiledFxGraph")


@dataclass
class KernelTable:
    """The kernels of one run, in columns; ``op`` and ``module`` are what launched them.

    ``hidden_us`` is the part of a duration in which an earlier kernel was still running.
    """

    name: list[str] = field(default_factory=list)
    duration_us: list[float] = field(default_factory=list)
    hidden_us: list[float] = field(default_factory=list)
    grid: list[list[int]] = field(default_factory=list)
    block: list[list[int]] = field(default_factory=list)
    registers: list[int] = field(default_factory=list)
    shared_bytes: list[int] = field(default_factory=list)
    occupancy_pct: list[float] = field(default_factory=list)
    op_index: list[int] = field(default_factory=list)
    op: list[str] = field(default_factory=list)
    leaf_op: list[str] = field(default_factory=list)
    module: list[str] = field(default_factory=list)
    stream: list[int] = field(default_factory=list)

    def total_ms(self) -> float:
        """The time in which at least one kernel ran: the sum of all durations without what is hidden."""
        return ms(seconds_from_us(sum(self.duration_us) - sum(self.hidden_us)))

    def streams(self) -> int:
        """How many streams the kernels ran on; 0 if the trace does not record streams."""
        return len(set(self.stream) - {_NO_STREAM})

    def to_json(self) -> dict[str, object]:
        """The columns as plain JSON values."""
        return dict(vars(self))


@dataclass(frozen=True)
class _Origin:
    run: int
    op_index: int
    op: str
    leaf_op: str
    module: str


_UNKNOWN = _Origin(0, -1, "", "", "")


def parse_trace(trace: Mapping[str, Any], runs: int = 1) -> list[KernelTable]:
    """The kernels of each traced run, in the order in which they ran."""
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    origins, tops = _origins(events)
    kernels = [event for event in events if event.get("cat") in _DEVICE_WORK]
    if not kernels:  # a trace of a CPU: its outermost operators take the place of kernels
        kernels = [event for event in events if id(event) in tops and not _only_calls(event["name"])]
    tables = [KernelTable() for _ in range(runs)]
    # for each run the moment until which some earlier kernel was running: what lies before it is hidden time
    busy_until = [0.0] * runs
    for event in sorted(kernels, key=lambda event: float(event["ts"])):
        details = event.get("args", {})
        origin = tops.get(id(event)) or origins.get(details.get("correlation"), _UNKNOWN)
        run = min(origin.run, runs - 1)
        table, start, duration_us = tables[run], float(event["ts"]), float(event.get("dur", 0))
        table.name.append(event["name"])
        table.duration_us.append(round(duration_us, 3))
        table.hidden_us.append(round(min(max(busy_until[run] - start, 0.0), duration_us), 3))
        busy_until[run] = max(busy_until[run], start + duration_us)
        table.grid.append([int(size) for size in details.get("grid", ())])
        table.block.append([int(size) for size in details.get("block", ())])
        table.registers.append(int(details.get("registers per thread", 0)))
        table.shared_bytes.append(int(details.get("shared memory", 0)))
        table.occupancy_pct.append(float(details.get("est. achieved occupancy %", 0)))
        table.op_index.append(origin.op_index)
        table.op.append(origin.op)
        table.leaf_op.append(origin.leaf_op)
        table.module.append(origin.module)
        table.stream.append(int(details.get("stream", _NO_STREAM)))
    return tables


def _origins(events: Sequence[Any]) -> tuple[dict[int, _Origin], dict[int, _Origin]]:
    """Origins of launches by correlation, and of outermost operators by identity."""
    threads: dict[object, list[Any]] = defaultdict(list)
    for event in events:
        if event.get("cat") in ("cpu_op", "user_annotation", *_LAUNCHES):
            threads[event["tid"]].append(event)
    outermost: list[tuple[float, Any, _Origin]] = []
    launches: list[tuple[int, Any, float, _Origin]] = []
    for spans in threads.values():
        # of spans that begin together the longer one is outside
        spans.sort(key=lambda event: (float(event["ts"]), -float(event.get("dur", 0))))
        _walk(spans, outermost, launches)
    run_at = _runs(events)
    # number operators over all threads by time: the backward pass runs on a thread of its own
    outermost.sort(key=lambda item: item[0])
    counts: dict[int, int] = defaultdict(int)
    tops: dict[int, _Origin] = {}
    for at, event, origin in outermost:
        run = run_at(at)
        tops[id(event)] = replace(origin, run=run, op_index=counts[run])
        counts[run] += 1
    by_launch = {}
    for correlation, top, at, origin in launches:
        number = tops[id(top)].op_index if top is not None else -1
        by_launch[correlation] = replace(origin, run=run_at(at), op_index=number)
    return by_launch, tops


def _runs(events: Sequence[Any]) -> Callable[[float], int]:
    """Which run was active at a time; the thread that launches gradients has no annotation on its stack."""
    marks = [event for event in events if event.get("cat") == "user_annotation" and event["name"].startswith(RUN)]
    starts = sorted((float(event["ts"]), int(event["name"].removeprefix(RUN))) for event in marks)
    times = [start for start, _ in starts]

    def run_at(at: float) -> int:
        position = bisect.bisect_right(times, at) - 1
        return starts[position][1] if position >= 0 else 0

    return run_at


def _walk(spans: Sequence[Any], outermost: list[Any], launches: list[Any]) -> None:
    """Follow the stack of open spans of one thread; record it at each launch and each outermost operator."""
    stack: list[tuple[float, Any]] = []
    for event in spans:
        start = float(event["ts"])
        while stack and stack[-1][0] <= start:
            stack.pop()
        category = event["cat"]
        enclosing = [span for _, span in stack]
        if category in _LAUNCHES:
            correlation = event.get("args", {}).get("correlation")
            top, origin = _describe(enclosing)
            launches.append((correlation, top, start, origin))
            continue
        if category == "cpu_op":
            top, origin = _describe([*enclosing, event])
            if top is event:
                outermost.append((start, event, origin))
        stack.append((start + float(event.get("dur", 0)), event))


def _describe(spans: Sequence[Any]) -> tuple[Any, _Origin]:
    """The outermost operator within the innermost module, and the origin of both.

    An operator that only calls others is the outermost one only of what it launches itself.
    """
    module, top, leaf = "", None, None
    for span in spans:
        name = span["name"]
        if span["cat"] == "cpu_op":
            top = span if top is None or _only_calls(top["name"]) else top
            leaf = span
        elif name.startswith(MODULE):
            # a module that is called inside an operator starts again: its operators are not part of that operator
            module, top, leaf = name.removeprefix(MODULE), None, None
    op, leaf_op = (top["name"] if top else ""), (leaf["name"] if leaf else "")
    return top, _Origin(0, -1, op, leaf_op, module)


def _only_calls(name: str) -> bool:
    return name in _COMPOSED or name.startswith(_COMPILED_REGIONS)


@contextmanager
def annotated_modules(model: Any) -> Iterator[None]:
    """Within this context, the forward pass of each module is annotated with its name."""
    import torch
    from torch.nn.modules import module as hooks

    names = {id(module): name for name, module in model.named_modules()}
    open_spans: list[Any] = []

    def enter(module: Any, _inputs: Any) -> None:
        span = torch.profiler.record_function(MODULE + names.get(id(module), "?"))
        span.__enter__()
        open_spans.append(span)

    def leave(_module: Any, _inputs: Any, _outputs: Any) -> None:
        if open_spans:
            open_spans.pop().__exit__(None, None, None)

    before = hooks.register_module_forward_pre_hook(enter)
    # also after an exception: an open span would enclose all that follows
    after = hooks.register_module_forward_hook(leave, always_call=True)
    try:
        yield
    finally:
        before.remove()
        after.remove()


def trace_kernels(
    run: Callable[[], Any], model: Any, runs: int, *, cuda: bool, alone: Callable[[], Any]
) -> list[KernelTable]:
    """Run under Kineto; only the runs themselves have the device ``alone``.

    Without a ``model`` no module is annotated: a compiled model would be compiled again because of the hooks.
    """
    import torch

    activities = [torch.profiler.ProfilerActivity.CPU]
    activities += [torch.profiler.ProfilerActivity.CUDA] if cuda else []
    profiler = torch.profiler.profile(activities=activities)
    with annotated_modules(model) if model is not None else nullcontext():
        profiler.start()
        try:
            with alone():
                for number in range(runs):
                    with torch.profiler.record_function(f"{RUN}{number}"):
                        run()
                    if cuda:
                        torch.cuda.synchronize()
        finally:
            profiler.stop()
    handle, path = tempfile.mkstemp(suffix=".json", prefix="foretell-trace-")
    os.close(handle)
    try:
        profiler.export_chrome_trace(path)
        with open(path, encoding="utf-8", errors="replace") as file:
            # not strict: names of kernels and annotations may contain control characters
            trace = json.load(file, strict=False)
    finally:
        os.unlink(path)
    return parse_trace(trace, runs)

"""Profiling: what TorchInductor fuses; a model is lowered up to its scheduler's decision, nothing is generated or run.

Weights and inputs are fake tensors, so a model of any size costs no memory. No kernel is launched: everything that
would time candidates on the device is switched off. The kernels are those of ``torch.compile``'s defaults, except that
matrix products are not padded. The compilation is ended by an exception at the moment when the scheduler would generate
code; its list of kernels is then read.

Limits: private interfaces of torch are used (the scheduler, its nodes and their origins), so a new version of torch may
need changes here.
"""

import contextlib
import importlib
import io
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from foretell.errors import MeasurementError
from foretell.profiling.fusion.flat_program import flatten
from foretell.profiling.fusion.kernels import Compiled
from foretell.profiling.workload import Workload
from foretell.profiling.zoos.zoo import Built

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
# no timing on the device, no caches in place of the compiler, no pool of compiler processes
_SETTINGS = {
    "shape_padding": False,
    "max_autotune": False,
    "benchmark_fusion": False,
    "benchmark_combo_kernel": False,
    "force_disable_caches": True,
    "fx_graph_cache": False,
    "compile_threads": 1,
}


_VIEWS = {"aten.reshape.default", "aten._unsafe_view.default", "<built-in function getitem>"}


class _Scheduled(BaseException):
    """Ends a compilation when its kernels are known; a BaseException, so that no handler of errors catches it."""


def export(built: Built, workload: Workload, device: str) -> Any:
    """The exported program of a model with fake weights and inputs on ``device``."""
    fake_tensor = importlib.import_module("torch._subclasses.fake_tensor")
    mode = fake_tensor.FakeTensorMode(allow_non_fake_inputs=True)
    dtype = DTYPES[workload.dtype]
    known: dict[int, Any] = {}  # by id, so that tied weights stay tied

    def fake(tensor: Any, *, cast: bool) -> Any:
        if id(tensor) not in known:
            kind = dtype if cast and tensor.is_floating_point() else tensor.dtype
            with mode:
                copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=kind, device=device)
            # keep the tensor itself: if it were freed, another tensor could get its id
            known[id(tensor)] = tensor, copy
        return known[id(tensor)][1]

    def place(tensor: Any) -> Any:
        return fake(tensor, cast=built.cast_buffers or isinstance(tensor, torch.nn.Parameter))

    model = built.model.requires_grad_(False)
    inputs = built.make_inputs(workload, "cpu", dtype)
    with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        model._apply(place)
        args = tuple(fake(value, cast=True) for value in inputs.args)
        kwargs = {
            name: fake(value, cast=True) if isinstance(value, torch.Tensor) else value for name, value in inputs.kwargs
        }
        return torch.export.export(model, args, kwargs, strict=False)


def compile_exported(exported: Any) -> Compiled:
    """The kernels that Inductor would generate for an exported program."""
    compile_fx, config = _inductor("compile_fx"), _inductor("config")
    module, names = flatten(exported.graph_module)
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    # settings come and go with torch versions: use only those that this version has
    settings = {name: value for name, value in _SETTINGS.items() if hasattr(config, name)}
    with (
        _stopped_schedulers() as schedulers,
        config.patch(settings),
        torch.no_grad(),
        warnings.catch_warnings(),
        contextlib.suppress(_Scheduled),
    ):
        warnings.simplefilter("ignore")
        compile_fx.compile_fx(module, inputs)
    if not schedulers:
        raise MeasurementError("Inductor compiled the model without its scheduler, so its kernels are unknown.")
    return read_kernels(schedulers[0].nodes, names)


def _inductor(name: str) -> Any:
    with warnings.catch_warnings():  # torch warns about its own deprecated parts
        warnings.simplefilter("ignore")
        return importlib.import_module(f"torch._inductor.{name}")


@contextmanager
def _stopped_schedulers() -> Iterator[list[Any]]:
    """Within this context, compilations end when a scheduler would generate code; the schedulers are collected."""
    scheduler = _inductor("scheduler").Scheduler
    stopped: list[Any] = []
    real = scheduler.codegen

    def stop(self: Any) -> None:
        stopped.append(self)
        raise _Scheduled

    scheduler.codegen = stop
    try:
        yield stopped
    finally:
        scheduler.codegen = real


def read_kernels(scheduled: Iterable[Any], names: Mapping[str, str]) -> Compiled:
    """Which nodes of the exported program each scheduled kernel computes; ``names`` maps their names.

    An Inductor buffer lists all FX nodes that were in hand when it was made, even nodes that another buffer holds. What
    it really computes is found by walking back from its last node to the buffers that it reads.
    """
    scheduled = list(scheduled)
    order = _fx_order(scheduled)
    computed = find_computed(scheduled)
    kernels: list[str] = []
    shares_of: dict[str, dict[int, _Share]] = {}
    for kernel in scheduled:
        parts = [part for part in _parts(kernel) if not _is_empty(part)]
        if not parts:
            continue
        for part in parts:
            for node in computed(part):
                share = _Share(not _is_view(node), _is_external(part), order[node])
                for name in source_names(node, names):
                    places = shares_of.setdefault(name, {})
                    places[len(kernels)] = max(share, places.get(len(kernels), share))
        kernels.append(_describe(kernel, parts))
    return Compiled(tuple(kernels), {name: _main_kernels(places) for name, places in shares_of.items()})


def find_computed(scheduled: Iterable[Any]) -> Callable[[Any], set[Any]]:
    """A function that gives the FX nodes that the code of one buffer of these kernels evaluates."""
    scheduled = list(scheduled)
    order = _fx_order(scheduled)
    results = {
        output.get_name(): last
        for kernel in scheduled
        for part in _parts(kernel)
        if (last := _last(part, order)) is not None
        for output in part.get_outputs()
    }
    return lambda part: _computed(part, order, results)


class _Share(NamedTuple):
    """What a kernel does for an operator; the greatest of several shares counts."""

    computes: bool  # more than a view of it
    external: bool
    fx_position: int


def _main_kernels(places: Mapping[int, _Share]) -> tuple[int, ...]:
    """The kernels of one operator; the one that completes it comes first.

    Kernels that only view its result, or only prepare a library call, are left out where another kernel does the work.
    """
    best = max((share.computes, share.external) for share in places.values())
    chosen = [kernel for kernel, share in places.items() if (share.computes, share.external) == best]
    return tuple(sorted(chosen, key=lambda kernel: (-places[kernel].fx_position, kernel)))


def _fx_order(scheduled: Iterable[Any]) -> dict[Any, int]:
    graphs = {node.graph for kernel in scheduled for part in _parts(kernel) for node in _origins(part)}
    return {node: position for graph in graphs for position, node in enumerate(graph.nodes)}


def _parts(kernel: Any) -> list[Any]:
    """The buffers of a kernel; groups of kernels are expanded."""
    return [part for child in kernel.get_nodes() for part in ([child] if child is kernel else _parts(child))]


def _origins(part: Any) -> Iterable[Any]:
    return part.node.origins if part.node is not None else ()


def _last(part: Any, order: Mapping[Any, int]) -> Any:
    return max(_origins(part), key=order.__getitem__, default=None)


def _computed(part: Any, order: Mapping[Any, int], results: Mapping[str, Any]) -> set[Any]:
    """The FX nodes that the code of one buffer evaluates."""
    last, origins = _last(part, order), set(_origins(part))
    if last is None:
        return set()
    reads = {read.name for read in part.read_writes.reads}
    stored = {results.get(name) for name in reads} - {last}
    candidates, waiting = {last}, [last]
    while waiting:
        for node in waiting.pop().all_input_nodes:
            if _is_external(part) and not _is_view(node):
                continue  # a library call is one operator; its inputs were stored before
            if node in origins and node not in stored and node not in candidates:
                candidates.add(node)
                waiting.append(node)
    # A copy of a weight, made for a convolution, also lists the nodes of the convolution's other input, but reads none.
    in_buffers = set(results.values())
    evaluated: set[Any] = set()
    unread: set[Any] = set()

    def is_read(node: Any) -> bool:
        if node in evaluated or node in stored or node.name in reads:
            return True
        # a view of a stored tensor belongs to no buffer: look at its input
        if node in unread or node in in_buffers or not any(map(is_read, node.all_input_nodes)):
            unread.add(node)
            return False
        return True

    for node in sorted(candidates, key=order.__getitem__):
        if not node.all_input_nodes or any(map(is_read, node.all_input_nodes)):
            evaluated.add(node)
    return evaluated | {last}


def source_names(node: Any, known: Mapping[str, str]) -> list[str]:
    """The nodes of the exported program that an FX node came from, through all passes in between."""
    sources, names = list(node.meta.get("from_node") or ()), []
    while sources:
        source = sources.pop()
        deeper = list(getattr(source, "from_node", None) or ())
        if deeper:
            sources += deeper
        elif source.name in known:
            names.append(known[source.name])
    return names


def _is_empty(part: Any) -> bool:
    """Whether a part launches nothing: a concatenation that its inputs write in place, or one of several results."""
    return part.node is None or type(part).__name__.startswith("Nop") or type(part.node).__name__ == "MultiOutput"


def _is_external(part: Any) -> bool:
    return "Extern" in type(part).__name__


def _is_view(node: Any) -> bool:
    return bool(getattr(node.target, "is_view", False)) or str(node.target) in _VIEWS


def _describe(kernel: Any, parts: list[Any]) -> str:
    """``extern:aten.mm`` for a library call, else the kind of the generated kernel."""
    for part in parts:
        if _is_external(part):
            node = part.node
            name = (
                getattr(node, "python_kernel_name", None) or getattr(node, "op_overload", None) or type(node).__name__
            )
            return f"extern:{str(name).removeprefix('torch.ops.').removeprefix('extern_kernels.')}"
    if getattr(kernel, "is_template", bool)():
        return "template"
    return "reduction" if any(part.is_reduction() for part in parts) else "pointwise"

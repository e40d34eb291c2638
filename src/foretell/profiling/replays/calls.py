"""Profiling: the calls of a model that TorchInductor compiled, tied to nodes and to the kernels that they launch.

While Inductor generates code, every call that it writes is recorded in order: a generated kernel, or a function of a
library. The record has the nodes that the call computes, with their operators and modules, how many elements it has,
and what it reads and writes. A trace has the kernels of one run in order. `tie` finds the kernels of each call: a
generated kernel by its name, those of a library by the operator that launched them.

Limits: private interfaces of torch are used (the scheduler and its nodes). A call whose details a version of torch does
not show is recorded without them; a model that comes from Inductor's cache has no calls.
"""

import importlib
import json
import math
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from itertools import groupby, pairwise
from typing import Any

# where a backend of Inductor defines a generated kernel
_BACKENDS = (("codegen.triton", "TritonScheduling"), ("codegen.cpp", "CppScheduling"))
_UNKNOWN = -1


@dataclass
class Call:
    """One call of compiled code: the name of a generated kernel or of a library's operator, and what it computes.

    ``sizes`` are the loops of a generated kernel: sizes of the axes that run in parallel, and ``reduced`` the number of
    elements that each of them reduces. ``nodes`` are those of Inductor's graph. A tensor is ``dtype shape strides``.
    """

    library: bool
    name: str
    nodes: list[str] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    reduced: int = 1
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    read_bytes: int = 0
    written_bytes: int = 0
    loads: int = 0
    stores: int = 0
    arguments: str = ""


_Wrap = Callable[[Callable[..., Any], list[Call]], Callable[..., Any]]


@contextmanager
def recorded_calls() -> Iterator[list[Call]]:
    """Within this context, the calls of everything that Inductor compiles are recorded, in the order of its code."""
    calls: list[Call] = []
    places: list[tuple[Any, str, _Wrap]] = [
        (_inductor("scheduler").Scheduler, "codegen_extern_call", _with_library_call)
    ]
    for module, name in _BACKENDS:
        with suppress(ImportError, AttributeError):
            places.append((getattr(_inductor(module), name), "define_kernel", _with_generated_kernel))
    # a version of torch without one of these places records fewer calls
    originals = [(owner, name, getattr(owner, name), wrap) for owner, name, wrap in places if hasattr(owner, name)]
    for owner, name, real, wrap in originals:
        setattr(owner, name, wrap(real, calls))
    try:
        yield calls
    finally:
        for owner, name, real, _ in originals:
            setattr(owner, name, real)


def _inductor(name: str) -> Any:
    with warnings.catch_warnings():  # torch warns about its own deprecated parts
        warnings.simplefilter("ignore")
        return importlib.import_module(f"torch._inductor.{name}")


def _with_library_call(real: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    def codegen_extern_call(self: Any, node: Any, *args: Any, **kwargs: Any) -> Any:
        # one of several results of a call is no call
        if type(node.node).__name__ != "MultiOutput":
            calls.append(Call(library=True, name=_library_name(node)))
            _describe(calls[-1], [node])
        return real(self, node, *args, **kwargs)

    return codegen_extern_call


def _with_generated_kernel(real: Callable[..., Any], calls: list[Call]) -> Callable[..., Any]:
    def define_kernel(self: Any, source: Any, nodes: Any, *args: Any, **kwargs: Any) -> Any:
        name = real(self, source, nodes, *args, **kwargs)
        calls.append(call := Call(library=False, name=str(name)))
        # a schedule also has marks, which open and close loops
        _describe(call, [node for node in nodes if hasattr(node, "read_writes")])
        with suppress(Exception):
            call.loads, call.stores = str(source).count("tl.load("), str(source).count("tl.store(")
        kernel: Any = args[0] if args else kwargs.get("kernel")
        with suppress(Exception):
            _describe_loops(call, kernel.numels)
        return name

    return define_kernel


def _library_name(node: Any) -> str:
    """The operator, as in ``aten.mm``."""
    inner = getattr(node, "node", None)
    name = getattr(inner, "python_kernel_name", None) or getattr(inner, "op_overload", None) or type(inner).__name__
    return str(name).removeprefix("torch.ops.").removeprefix("extern_kernels.")


def _describe(call: Call, scheduled: Sequence[Any]) -> None:
    """Add what the scheduler knows; whatever it does not show stays unknown, because compiling matters more."""
    for add in (_add_nodes, _add_tensors, _add_arguments):
        with suppress(Exception):
            add(call, scheduled)


def _add_nodes(call: Call, scheduled: Sequence[Any]) -> None:
    nodes = dict.fromkeys(node for part in scheduled for node in _computed(part))
    for node in sorted(nodes, key=lambda node: str(node.name)):
        call.nodes.append(str(node.name))
        call.operators.append(str(node.meta.get("original_aten") or node.target))
        stack = node.meta.get("nn_module_stack") or {}
        # the innermost module; its entry is a path and a class
        call.modules.append(str(next(reversed(stack.values()))[0]) if stack else "")


def _computed(part: Any) -> Iterable[Any]:
    """The nodes that a part computes; what its scheduler knows is found once."""
    from foretell.profiling.fusion.inductor import find_computed

    known = vars(part.scheduler)
    if "_foretell_computed" not in known:
        known["_foretell_computed"] = find_computed(part.scheduler.nodes)
    return known["_foretell_computed"](part)  # type: ignore[no-any-return]


def _add_tensors(call: Call, scheduled: Sequence[Any]) -> None:
    reads, writes = dict[str, None](), dict[str, None]()
    for part in scheduled:
        reads |= dict.fromkeys(read.name for read in part.read_writes.reads)
        writes |= dict.fromkeys(write.name for write in part.read_writes.writes)
    inside = {id(part) for part in scheduled}
    stored = [name for name in writes if _leaves(scheduled, name, inside)]
    call.reads, call.read_bytes = _tensors(name for name in reads if name not in writes)
    call.writes, call.written_bytes = _tensors(stored)


def _tensors(names: Iterable[str]) -> tuple[list[str], int]:
    """The tensors with these names, and the bytes of all; one that has no size of its own is left out."""
    texts, total = list[str](), 0
    for name in names:
        with suppress(Exception):
            text, size = _tensor(name)
            texts.append(text)
            total += size
    return texts, total


def _leaves(scheduled: Sequence[Any], name: str, inside: set[int]) -> bool:
    """Whether a buffer that a kernel makes is read outside it."""
    buffer = scheduled[0].scheduler.name_to_buf.get(name)
    return buffer is None or any(id(user.node) not in inside for user in buffer.users)


def _tensor(name: str) -> tuple[str, int]:
    graph = _inductor("virtualized").V.graph
    buffer = graph.get_buffer(name) if hasattr(graph, "get_buffer") else graph.try_get_buffer(name)
    dtype, shape = buffer.get_dtype(), [_number(size) for size in buffer.get_size()]
    strides = [_number(stride) for stride in buffer.get_stride()]
    shape_text, stride_text = ("x".join(map(str, sizes)) for sizes in (shape, strides))
    # what a broadcast repeats is stored once
    count = math.prod(size for size, stride in zip(shape, strides, strict=True) if stride or size == 0)
    return f"{str(dtype).removeprefix('torch.')} {shape_text} {stride_text}", count * dtype.itemsize


def _number(size: Any) -> int:
    try:
        return int(size)
    except TypeError:  # a dynamic size
        return _UNKNOWN


def _add_arguments(call: Call, scheduled: Sequence[Any]) -> None:
    """What a library gets besides tensors: the stride, padding and groups of a convolution."""
    if call.library:
        node = scheduled[0].node
        values = {"args": list(getattr(node, "constant_args", ()) or ()), "kwargs": dict(getattr(node, "kwargs", {}))}
        call.arguments = json.dumps(values, default=str)


def _describe_loops(call: Call, loops: Mapping[str, Any]) -> None:
    call.sizes = [_number(size) for name, size in loops.items() if not name.startswith("r")]
    call.reduced = math.prod(_number(size) for name, size in loops.items() if name.startswith("r"))


@dataclass(frozen=True)
class _Launches:
    """Kernels in a row that one operator launched, or one generated kernel."""

    positions: range
    library: bool
    name: str


def tie(calls: Sequence[Call], names: Sequence[str], operators: Sequence[str], numbers: Sequence[int]) -> list[int]:
    """For each kernel of a trace the position of its call, or -1 where it is unknown.

    A kernel has a name, and the operator that launched it with the number of that operator in the run.
    """
    owner = [_UNKNOWN] * len(names)
    generated = {call.name for call in calls if not call.library}
    launches = _in_groups(names, operators, numbers, generated)
    ends = [(-1, -1), *_common(calls, launches), (len(calls), len(launches))]
    for (call_before, before), (call_after, after) in pairwise(ends):
        between = [group for group in launches[before + 1 : after] if group.library]
        skipped = enumerate(calls[call_before + 1 : call_after], start=call_before + 1)
        waiting = [position for position, call in skipped if call.library]
        # libraries name some operators otherwise than the trace: a single call has all that is launched in between
        pairs = [(waiting[0], group) for group in between] if len(waiting) == 1 else []
        pairs += [(call_after, launches[after])] if after < len(launches) else []
        for caller, group in pairs:
            for position in group.positions:
                owner[position] = caller
    return owner


def _in_groups(
    names: Sequence[str], operators: Sequence[str], numbers: Sequence[int], generated: Collection[str]
) -> list[_Launches]:
    groups = list[_Launches]()
    keys = [(name, i) if name in generated else ("", numbers[i]) for i, name in enumerate(names)]
    for _, members in groupby(range(len(names)), key=lambda i: keys[i]):
        own = list(members)
        library = names[own[0]] not in generated
        groups.append(_Launches(range(own[0], own[-1] + 1), library, (operators if library else names)[own[0]]))
    return groups


def _common(calls: Sequence[Call], launches: Sequence[_Launches]) -> list[tuple[int, int]]:
    """Pairs of a call and its launches, in order: the longest row of equal names, then those before and after it."""
    wanted = [(call.library, _plain(call.name)) for call in calls]
    launched = [(group.library, _plain(group.name)) for group in launches]
    blocks = SequenceMatcher(None, wanted, launched, autojunk=False).get_matching_blocks()
    return [(block.a + step, block.b + step) for block in blocks for step in range(block.size)]


def _plain(name: str) -> str:
    """The name of an operator without its namespace and overload: ``aten.mm.default`` and ``aten::mm`` are ``mm``."""
    return name.removeprefix("aten::").removeprefix("aten.").partition(".")[0]


def to_columns(calls: Sequence[Call], owner: Sequence[int], durations_us: Sequence[float]) -> dict[str, list[object]]:
    """The calls as columns, with the number and the time of the kernels of each."""
    rows = [asdict(call) for call in calls]
    columns: dict[str, list[object]] = {"call": list(range(len(calls)))}
    for name in Call.__dataclass_fields__:
        columns[name] = [_text(row[name]) for row in rows]
    kernels, times_us = [0] * len(calls), [0.0] * len(calls)
    for call, time_us in zip(owner, durations_us, strict=True):
        if call != _UNKNOWN:
            kernels[call] += 1
            times_us[call] += time_us
    first = [owner.index(call) if kernels[call] else _UNKNOWN for call in range(len(calls))]
    columns |= {"first_kernel": list(first), "kernels": list(kernels)}
    return columns | {"duration_us": [round(time_us, 3) for time_us in times_us]}


def _text(value: object) -> object:
    return json.dumps(value) if isinstance(value, list) else value

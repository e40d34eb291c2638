"""Frontends: watches when a program lets go of its tensors while ``torch.export`` runs it.

Idea: an export in the non-strict mode runs the model's own Python code, on fake tensors. CPython frees an object as
soon as nothing refers to it: no local name, no list, no calling frame. A weak reference to every traced tensor
therefore tells, between two calls, exactly which tensors an eager run would free there. Nothing has to be guessed from
names in the source, and code from libraries is watched like the user's own.

How: the tracer passes each tensor that it meets to ``track_tensor``, which ties it to a node of the FX graph. We take
its place, call it, and add the weak reference. The tracer itself refers to tensors weakly, and the values that it keeps
in the graph are detached copies.

Limits: ``track_tensor`` is no public function of PyTorch. Where it is missing, nothing is watched and lifetimes are
guessed from module paths (`foretell.graph.memory.liveness`). What only C++ holds, such as tensors saved for backward,
is not seen: exports run without gradients. Tensors in reference cycles live until the garbage collector runs.
"""

import contextlib
import importlib
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

_PART = "getitem"  # how the FX graph names the parts of a list


class Releases:
    """The traced tensors, by FX node in the order of the calls, and when the program let go of each."""

    def __init__(self) -> None:
        self._order: list[str] = []
        self._released: dict[str, int] = {}  # FX node → how many nodes had been traced when its tensor was freed
        self._references: list[Any] = []  # a weak reference only calls back while it is alive itself

    def watch(self, tensor: Any, node: str) -> None:
        """Note that a node made a tensor, and wait for its end."""
        self._order.append(node)

        def note(_: object) -> None:
            self._released[node] = len(self._order)

        self._references.append(weakref.ref(tensor, note))

    def stop(self) -> None:
        """Stop waiting; what is still alive is held until the end."""
        self._references.clear()

    @property
    def names(self) -> tuple[str, ...]:
        """The FX nodes of all tensors, in the order of the calls."""
        return tuple(self._order)

    def by_tensor(self, traced: Mapping[str, tuple[str, int]]) -> dict[str, int]:
        """For each tensor the number of calls after which the program let go of it.

        ``traced`` maps the nodes of the final FX graph to their tensor and to the number of calls up to it. Nodes that
        a later pass of the export removed stand for the last one before them that is left.
        """
        # of the parts of a list, the export gives out names anew where it wraps other calls (torch.no_grad)
        parts = [[node for node in nodes if node.startswith(_PART)] for nodes in (self._order, traced)]
        renamed = dict(zip(*parts)) if len(parts[0]) == len(parts[1]) else {}
        order = [renamed.get(node, node) for node in self._order]
        ends = {renamed.get(node, node): end for node, end in self._released.items()}
        calls_until = [0]
        for node in order:
            calls_until.append(traced[node][1] if node in traced else calls_until[-1])
        end = max(calls_until)
        released: dict[str, int] = {}
        for node in order:
            if node in traced:
                tensor = traced[node][0]
                # several nodes may stand for one tensor, such as the parts of a list: it lives until the last is gone
                calls = calls_until[ends[node]] if node in ends else end
                released[tensor] = max(released.get(tensor, 0), calls)
        return released


@contextlib.contextmanager
def watch_releases() -> Iterator[Releases | None]:
    """Within this context, watch the tensors of an export; None where this PyTorch cannot be watched."""
    try:
        tracing: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
        track_tensor = tracing.track_tensor
    except (ImportError, AttributeError):
        yield None
        return
    releases = Releases()

    def track_and_watch(tensor: Any, proxy: Any, **options: Any) -> None:
        track_tensor(tensor, proxy, **options)
        releases.watch(tensor, proxy.node.name)

    tracing.track_tensor = track_and_watch
    try:
        yield releases
    finally:
        tracing.track_tensor = track_tensor
        releases.stop()

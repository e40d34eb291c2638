"""Frontends: counts what a TorchScript program would do before it runs.

Idea: exporting a script runs it once, with tensors that have no data. Its loops really turn, and its lists really grow.
So the loops, calls and lists of a script are counted in its code first. A loop counts its body as often as it turns; a
call counts the method that it calls. Methods that call methods twice each grow exponentially, in the same way as the
functions of an ONNX file.

Limits: a number of turns that the script computes counts as one turn: most follow a size of the input, which the user
has given. What the count cannot see is for the limits of the process that reads the file.
"""

from typing import Any

from foretell.errors import UntrustedModelError
from foretell.frontends.budget import Budget

MAX_TURNS = 2**62  # a while loop has the largest integer as its number of turns
MAX_REPEATS = 2**16  # of a list that is multiplied by a number
MAX_JOINS = 16  # of lists with lists, which may double them
MAX_CALL_DEPTH = 100
_JOINS = ("aten::add", "aten::add_", "aten::extend")


def check_work(script: Any, budget: Budget) -> None:
    """Raise if a loaded script would run more nodes than the budget has, has a while loop, or lists that may double."""
    _Counter(script, budget).check()


class _Counter:
    """Counts the nodes that every method of a script runs; methods are known by their class and name."""

    def __init__(self, script: Any, budget: Budget) -> None:
        self.budget = budget
        self.modules = {str(m._c._type().qualified_name()): m for m in script.modules()}
        self.root = str(script._c._type().qualified_name())
        self.sizes: dict[tuple[str, str], int] = {}
        self.pending: list[tuple[str, str]] = []
        self.joins = 0

    def check(self) -> None:
        module = self.modules[self.root]
        for name in module._method_names() if hasattr(module, "_method_names") else ["forward"]:
            self.budget.draw("nodes", self._method(self.root, str(name)))

    def _method(self, kind: str, name: str) -> int:
        """The number of nodes that a method runs; 1 if it is not one of the script's."""
        key = (kind, name)
        if key in self.sizes:
            return self.sizes[key]
        method = getattr(self.modules.get(kind), name, None)
        graph = getattr(method, "graph", None)
        if graph is None:
            return 1
        if key in self.pending or len(self.pending) > MAX_CALL_DEPTH:
            raise self._refused(f"the method {name!r} calls itself, or calls go more than {MAX_CALL_DEPTH} deep")
        self.pending.append(key)
        self.sizes[key] = self._block(graph, looping=False)
        self.pending.pop()
        return self.sizes[key]

    def _block(self, block: Any, *, looping: bool) -> int:
        count = 0
        for node in block.nodes():
            kind = node.kind()
            turns = self._turns(node) if kind == "prim::Loop" else 1
            count += 1 + turns * sum(self._block(b, looping=looping or kind == "prim::Loop") for b in node.blocks())
            if kind == "prim::CallMethod":
                owner = next(iter(node.inputs())).type()
                count += self._method(_qualified_name(owner), node.s("name"))
            elif kind in _JOINS or kind == "aten::mul":
                self._check_list(node, looping=looping)
        Budget(self.budget.model, self.budget.limits).draw("nodes", count)
        return count

    def _turns(self, node: Any) -> int:
        """How often a loop turns."""
        turns = next(iter(node.inputs())).toIValue()
        if isinstance(turns, int) and turns >= MAX_TURNS:
            raise self._refused("it has a while loop, which may never end")
        return max(turns, 0) if isinstance(turns, int) else 1

    def _check_list(self, node: Any, *, looping: bool) -> None:
        """Refuse lists and texts that are joined in a loop, or often, and lists that are multiplied."""
        numbers = [i for i in node.inputs() if i.type().kind() not in ("ListType", "StringType")]
        if len(numbers) == len(list(node.inputs())):
            return
        if node.kind() == "aten::mul":
            times = numbers[0].toIValue() if numbers else None
            if looping or not isinstance(times, int) or times > MAX_REPEATS:
                raise self._refused(f"it repeats a list in a loop, or more than {MAX_REPEATS} times")
            return
        self.joins += 1
        if looping or self.joins > MAX_JOINS:
            raise self._refused("it joins lists or texts in a loop, which may double them every time")

    def _refused(self, reason: str) -> UntrustedModelError:
        return UntrustedModelError(
            f"{self.budget.model} is not run: {reason}. If you trust it, add --trust, or export it as .pt2 or ONNX."
        )


def _qualified_name(kind: Any) -> str:
    name = getattr(kind, "qualified_name", None)
    return str(name()) if callable(name) else ""

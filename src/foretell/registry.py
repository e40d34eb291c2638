"""Registry: maps names to classes ("module:Class") that are imported only when they are used.

An unknown name raises an error that suggests the closest known name.

>>> shapes = Registry("shape", {"square": "fractions:Fraction"})
>>> shapes.load("square").__name__
'Fraction'
>>> shapes.load("sqare")
Traceback (most recent call last):
...
foretell.errors.UnknownNameError: Unknown shape 'sqare'. Did you mean 'square'?
"""

import importlib
from collections.abc import Iterable, Iterator
from typing import Any

from foretell.errors import UnknownNameError
from foretell.frozen import dataclass


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return a sentence that suggests the closest choice, or lists all choices if they are few, or is empty."""
    known = sorted(set(choices))
    import difflib  # only where somebody mistypes a name: start-up time counts

    # 0.6, the default of difflib, finds one or two typing errors in a short name
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if close:
        return f" Did you mean {close[0]!r}?"
    return f" Choose from: {', '.join(known)}." if 0 < len(known) <= 20 else ""


@dataclass(frozen=True)
class Registry:
    """A table of plug-ins of one kind, which are imported when they are first used."""

    kind: str
    targets: dict[str, str]

    def __iter__(self) -> Iterator[str]:
        return iter(self.targets)

    def __contains__(self, name: object) -> bool:
        return name in self.targets

    def register(self, name: str, target: str) -> None:
        """Add a plug-in that lives outside the package."""
        self.targets[name] = target

    def load(self, name: str) -> Any:
        """Import and return the class that ``name`` stands for."""
        if name not in self.targets:
            raise UnknownNameError(f"Unknown {self.kind} {name!r}.{did_you_mean(name, self.targets)}")
        module, _, attribute = self.targets[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

"""Lab: power of several sittings as one card would show it.

Cards of one kind differ: at the same clock, another H200 took a tenth less power for the same settings. A paper has one
card. So settings are measured again in another sitting, and the median of their ratios brings a sitting to the newest.
"""

import statistics
from collections.abc import Mapping

Powers = Mapping[str, Mapping[str, float]]  # by sitting and setting, in watts
_LEAST = 8  # settings that both sittings measured


def factors(powers: Powers) -> dict[str, tuple[float, int]]:
    """By sitting: what its watts are multiplied by, and from how many settings that is known; 1 where from too few.

    >>> before = {f"w{n}": 100.0 + n for n in range(9)}
    >>> factors({"a": before, "b": {name: 0.5 * watts for name, watts in before.items()}, "c": {"w0": 7.0}})
    {'a': (1.0, 1), 'b': (1.0, 1), 'c': (1.0, 0)}
    >>> factors({"a": before, "b": {name: 0.5 * watts for name, watts in before.items()}})
    {'a': (0.5, 9), 'b': (1.0, 0)}
    """
    newest = max(powers, default="")
    found = {}
    for sitting, own in powers.items():
        both = own.keys() & powers[newest].keys() if sitting != newest else set()
        ratio = statistics.median(powers[newest][name] / own[name] for name in both) if len(both) >= _LEAST else 1.0
        found[sitting] = (ratio, len(both))
    return found

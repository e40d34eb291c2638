"""Datasets: many similar names as few templates and small numbers.

``layers.0.norm`` and ``layers.1.norm`` are one template, ``layers.#.norm``, with the numbers 0 and 1. Within a graph
the numbers of a template mostly stay or grow by one from use to use, so that their differences are kept: these repeat,
and what repeats compresses. A name may also contain another that the reader knows already (a weight has the path of its
module in its name); a marker stands for that.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# a number that stands alone, so that writing it in decimals gives the same text again
_NUMBER = re.compile(r"(?<![A-Za-z0-9])(?:0|[1-9][0-9]{0,8})(?![A-Za-z0-9])")
_RESERVED = frozenset("#{}")
# marker → how the known text stands in the name
FORMS: dict[str, Callable[[str], str]] = {
    "{is}": lambda text: text,
    "{is_}": lambda text: text.replace(".", "_"),
    "{is_low}": lambda text: text.replace(".", "_").lower(),
}

Numbers = NDArray[np.int32]


class TemplateWriter:
    """The names of one graph on their way into columns; ``templates`` are shared by all of them."""

    def __init__(self) -> None:
        self.templates: dict[str, int] = {}

    def write(self, names: Iterable[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """The template of every name, and the differences of their numbers; a name comes with the text known to it.

        >>> writer = TemplateWriter()
        >>> writer.write([("conv_1", ""), ("conv_2", ""), ("conv_3.weight", "conv_3")])
        ([0, 0, 1], [1, 1])
        >>> list(writer.templates)
        ['conv_#', '{is}.weight']
        """
        places: list[int] = []
        differences: list[int] = []
        last: dict[int, list[int]] = {}
        for name, known in names:
            if not _RESERVED.isdisjoint(name):
                raise ValueError(f"{name!r} has one of the characters that mark a template.")
            text = _marked(name, known)
            place = self.templates.setdefault(_NUMBER.sub("#", text), len(self.templates))
            places.append(place)
            numbers = [int(number) for number in _NUMBER.findall(text)]
            if numbers:
                before = last.get(place) or [0] * len(numbers)
                differences += [number - old for number, old in zip(numbers, before, strict=True)]
                last[place] = numbers
        return places, differences


def _marked(name: str, known: str) -> str:
    if known:
        for marker, form in FORMS.items():
            part = form(known)
            if part in name:
                return name.replace(part, marker, 1)
    return name


class TemplateReader:
    """The templates of one graph, to be filled."""

    def __init__(self, templates: Sequence[str]) -> None:
        self._counts = np.array([text.count("#") for text in templates], np.int64)
        self._formats = [text.replace("%", "%%").replace("#", "%d") if "#" in text else text for text in templates]
        self._markers = [next((marker for marker in FORMS if marker in text), "") for text in templates]

    def read(self, places: Numbers, differences: Numbers, known: Iterable[str]) -> list[str]:
        """The names that `TemplateWriter.write` was given, each with the text known to it."""
        if places.size and (places.min() < 0 or places.max() >= len(self._formats)):
            raise ValueError("A name has a template that the graph lacks.")
        numbers = self._numbers(places, differences)
        formats, markers, counts = self._formats, self._markers, self._counts.tolist()
        names, start = list[str](), 0
        for place, text in zip(places.tolist(), known, strict=True):
            name, count = formats[place], counts[place]
            if count == 1:
                name %= numbers[start]
            elif count:
                name %= tuple(numbers[start : start + count])
            start += count
            marker = markers[place]
            names.append(name.replace(marker, FORMS[marker](text), 1) if marker else name)
        return names

    def _numbers(self, places: Numbers, differences: Numbers) -> list[int]:
        """Sum up the differences of each number of each template, all at once."""
        counts = self._counts[places]
        if counts.sum() != differences.size:
            raise ValueError("The names have more numbers or fewer than their templates.")
        if not differences.size:
            return []
        first = np.cumsum(self._counts) - self._counts  # of the numbers of a template among those of all
        within = np.arange(differences.size) - np.repeat(np.cumsum(counts) - counts, counts)
        slots = np.repeat(first[places], counts) + within
        order = np.argsort(slots, kind="stable")
        sums = np.cumsum(differences[order], dtype=np.int64)
        starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
        before = np.where(starts > 0, sums[starts - 1], 0)
        sums -= np.repeat(before, np.diff(starts, append=differences.size))
        numbers = np.empty_like(sums)
        numbers[order] = sums
        return numbers.tolist()  # type: ignore[no-any-return]

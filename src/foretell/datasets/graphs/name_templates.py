"""Datasets: name templates: many similar names as few templates and small numbers.

``layers.0.norm`` and ``layers.1.norm`` are one template, ``layers.#.norm``, with the numbers 0 and 1. From one use of a
template to the next its numbers mostly stay or grow by one, so their differences are stored: these repeat, and what
repeats compresses. A name may also contain a text that the reader knows already (the name of a weight contains the path
of its module); a marker such as ``{is}`` stands for it.

Limits: a name that contains ``#``, ``{`` or ``}`` cannot be written. Numbers with leading zeros stay part of the
template, because decimal digits must give the same text back.
"""

import re
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# a number that stands alone and has no leading zero: printing it gives the same text
_NUMBER = re.compile(r"(?<![A-Za-z0-9])(?:0|[1-9][0-9]{0,8})(?![A-Za-z0-9])")
_RESERVED = frozenset("#{}")
# marker → the form in which the known text appears in the name
FORMS: dict[str, Callable[[str], str]] = {
    "{is}": lambda text: text,
    "{is_}": lambda text: text.replace(".", "_"),
    "{is_low}": lambda text: text.replace(".", "_").lower(),
}

Numbers = NDArray[np.int32]


class TemplateWriter:
    """Writes the names of one graph as columns; all of them share ``templates``."""

    def __init__(self) -> None:
        self.templates: dict[str, int] = {}

    def write(self, names: Iterable[tuple[str, str]]) -> tuple[list[int], list[int]]:
        """The template of every name, and the differences of their numbers; each name comes with its known text.

        >>> writer = TemplateWriter()
        >>> writer.write([("conv_1", ""), ("conv_2", ""), ("conv_3.weight", "conv_3")])
        ([0, 0, 1], [1, 1])
        >>> list(writer.templates)
        ['conv_#', '{is}.weight']
        """
        template_ids: list[int] = []
        differences: list[int] = []
        last_numbers: dict[int, list[int]] = {}
        for name, known in names:
            if not _RESERVED.isdisjoint(name):
                raise ValueError(f"{name!r} contains one of the characters #, {{ and }}, which mark templates.")
            text = _marked(name, known)
            template_id = self.templates.setdefault(_NUMBER.sub("#", text), len(self.templates))
            template_ids.append(template_id)
            numbers = [int(number) for number in _NUMBER.findall(text)]
            if numbers:
                previous = last_numbers.get(template_id) or [0] * len(numbers)
                differences += [number - old for number, old in zip(numbers, previous, strict=True)]
                last_numbers[template_id] = numbers
        return template_ids, differences


def _marked(name: str, known: str) -> str:
    if known:
        for marker, form in FORMS.items():
            part = form(known)
            if part in name:
                # the reader replaces the first marker back, so only one may be written
                return name.replace(part, marker, 1)
    return name


class TemplateReader:
    """Reads names from the templates of one graph."""

    def __init__(self, templates: Sequence[str]) -> None:
        self._counts = np.array([text.count("#") for text in templates], np.int64)
        self._formats = [text.replace("%", "%%").replace("#", "%d") if "#" in text else text for text in templates]
        self._markers = [next((marker for marker in FORMS if marker in text), "") for text in templates]

    def read(self, places: Numbers, differences: Numbers, known: Iterable[str]) -> list[str]:
        """The names that `TemplateWriter.write` got; ``known`` has the known text of each."""
        if places.size and (places.min() < 0 or places.max() >= len(self._formats)):
            raise ValueError("A name refers to a template that does not exist.")
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
        """The numbers of all names: running sums of the differences, separately for each number of each template.

        All at once: sort the differences by their place in a template (stable, so the order of use stays), take one
        cumulative sum, subtract what was summed before each place begins, and undo the sort.
        """
        counts = self._counts[places]
        if counts.sum() != differences.size:
            raise ValueError("The count of numbers does not match the templates.")
        if not differences.size:
            return []
        first = np.cumsum(self._counts) - self._counts  # the first place of each template
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

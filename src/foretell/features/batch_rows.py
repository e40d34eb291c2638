"""Features: the rows of units at a new batch size, from those at three others (`foretell.graph.batch_sizes`).

A column is the same at all batch sizes, or a number or the logarithm of a number that is a + b · batch size. Three rows
tell which, and all rows of a graph are computed at once. What is neither is computed from those that are: tiles from
the sizes of the product, alignments from the length of a run, the intensity from the cost.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.features.schema import COLUMNS
from foretell.features.shapes import TILE, alignments
from foretell.frozen import dataclass
from foretell.graph import Cost
from foretell.graph.batch_sizes import Family, Sized

_AT = {name: position for position, name in enumerate(COLUMNS)}
_COMPUTED = [_AT[name] for name in ("log_tiles", "waves", "wave_fill", "run_alignment", "log_intensity")]
_PRODUCT = [_AT[name] for name in ("log_m", "log_n", "log_many")]
_COST = {each.name: position for position, each in enumerate(fields(Cost))}
_CLOSE = 1e-14  # of two logarithms of the same number
_MOST_EXACT = 2.0**45  # a larger number is not told from its neighbours by its logarithm

Values = NDArray[np.float64]


@dataclass(frozen=True)
class RowLines:
    """a and b of each column of each template, and which columns are logarithms; ``is_known`` flags the templates."""

    start: Values
    slope: Values
    is_log: NDArray[np.bool_]
    is_known: NDArray[np.bool_]

    @classmethod
    def of(cls, sizes: Sequence[int], rows: Values) -> "RowLines":
        """The lines through rows at three batch sizes, (batch sizes, templates, columns)."""
        rows = rows.copy()
        rows[:, :, _COMPUTED] = 0.0
        is_fixed = (rows == rows[0]).all(axis=0)
        numbers = np.rint(np.exp2(np.minimum(rows, 60.0)) - 1.0)
        is_log = (np.abs(np.log2(numbers + 1.0) - rows) <= _CLOSE * np.maximum(rows, 1.0)).all(axis=0)
        is_log &= (numbers.max(axis=0) < _MOST_EXACT) & ~is_fixed & _LOGARITHMS
        values = np.where(is_log, numbers, rows)
        slope = (values[1] - values[0]) / (sizes[1] - sizes[0])
        start = values[0] - slope * sizes[0]
        fits = (start + slope * sizes[2] == values[2]) & (slope == np.rint(slope)) & (is_log | is_fixed | ~_LOGARITHMS)
        return cls(start, slope, is_log, fits.all(axis=1))

    def at(self, batch_size: int, chosen: NDArray[np.intp], flops: Values, moved: Values) -> Values:
        """The rows of some templates, given the operations and the bytes of each."""
        values = self.start[chosen] + self.slope[chosen] * batch_size
        is_log = self.is_log[chosen]
        rows = np.where(is_log, np.log2(np.where(is_log, values, 0.0) + 1.0), values)
        m, n, many = _sizes(rows[:, _PRODUCT])
        tiles = np.ceil(m / TILE) * np.ceil(n / TILE) * many
        has_tiles = rows[:, _AT["log_m"]] >= 0
        rows[:, _AT["log_tiles"]] = np.where(has_tiles, np.log2(tiles + 1.0), -1.0)
        rows[:, _AT["waves"]] = np.where(has_tiles, tiles, -1.0)  # of a device with one SM
        rows[:, _AT["wave_fill"]] = np.where(has_tiles, tiles > 0, -1.0)
        run = rows[:, _AT["log_run"]]
        (lengths,) = _sizes(run[:, None])
        rows[:, _AT["run_alignment"]] = np.where(run >= 0, alignments(lengths.astype(np.int64)), -1.0)
        intensity = np.log2(flops / np.maximum(moved, 1.0) + 1e-4)
        rows[:, _AT["log_intensity"]] = np.where(moved > 0, intensity, -20.0)
        return rows


_LOGARITHMS = np.array([name.startswith("log_") for name in COLUMNS])


def _sizes(logarithms: Values) -> Values:
    return np.rint(np.exp2(np.maximum(logarithms, 0.0)) - 1.0).T


def add_rows(sized: Sized, table: Any) -> None:
    """Describe the units of all nodes whose records were computed from other batch sizes, and add them to a table."""
    lines = _lines(sized.family, table)
    if lines is None:
        return
    known, rates = lines
    new = [(number, record) for number, record in sized.made.items() if record.row is None and known.is_known[number]]
    if not new:
        return
    chosen = np.array([number for number, _ in new], np.intp)
    costs = sized.costs[chosen].T
    flops, moved = (
        costs[_COST["flops"]].astype(np.float64),
        (costs[_COST["bytes_read"]] + costs[_COST["bytes_written"]]),
    )
    rows = known.at(sized.batch_size, chosen, flops, moved.astype(np.float64))
    # the order is that of `foretell.features.unit_columns.WORK`
    behind = (flops, 2.0 * costs[_COST["tensor_core_macs"]], moved, costs[_COST["launches"]], rates[chosen])
    first = table.extend(np.concatenate([rows, np.stack(behind, axis=1)], axis=1))
    for place, (_, record) in enumerate(new):
        record.row = first + place


def _lines(family: Family, table: Any) -> tuple[RowLines, Values] | None:
    """The lines of a family, and the last column of each template; None where some row is not described yet."""
    if family.rows is None:
        of_batch = [[laid_out.records[position] for position in family.positions] for laid_out in family.known.values()]
        if not family.positions or any(record.row is None for records in of_batch for record in records):
            return None
        numbers = np.array([[record.row for record in records] for records in of_batch])
        rows = table.take(numbers.ravel()).reshape(*numbers.shape, -1)
        lines = RowLines.of(list(family.known), rows[:, :, : len(COLUMNS)])
        lines.is_known[:] &= (numbers >= 0).all(axis=0)  # −1: nothing is launched
        family.rows = lines, rows[0, :, -1]
    return family.rows  # type: ignore[no-any-return]

"""Features: one row for each unit of work of a workload.

A unit of work is what a framework launches as one: an operator in the forward pass (a group of nodes, see
`foretell.graph.ir.groups`), the backward of a node, or the update of the optimizer. Units that launch no kernel, such
as views, have no row.

Idea: the time of a workload is close to the sum of the times of its units, and a unit's time depends on the unit and
the hardware, not on the model around it. So a predictor learns the time of one row, and can predict models that it has
never seen. A row (`foretell.features.schema`) has three parts. First what the unit computes and moves, and its bound:
the time that the hardware needs at least (a roofline: the larger of compute and memory time, plus launch overhead).
Second the reuse distance of its input, which decides whether it is read from cache (`foretell.features.reuse`). Third
the sizes that decide which kernel a library picks (`foretell.features.shapes`). What does not depend on the hardware is
described once for a graph (`foretell.features.unit_columns`); the rest is added here.

Limits: gaps between kernels, overlap of streams and the host's own time are not visible in a row. The backward of a
node is one unit even if a framework launches several kernels for it.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from foretell.devices import Hardware
from foretell.features.schema import COLUMNS, DTYPES, KINDS, PHASES, SCHEMA
from foretell.features.unit_columns import RATES, UnitColumns, Values, unit_columns
from foretell.frozen import dataclass
from foretell.records import Workload
from foretell.units import bytes_per_s, flops_per_s, us

__all__ = ["COLUMNS", "DTYPES", "KINDS", "PHASES", "SCHEMA", "Units", "columns_of", "extract_units"]

_AT = {name: position for position, name in enumerate(COLUMNS)}


@dataclass(frozen=True)
class Units:
    """The units of a workload in the order in which they run; ``member`` is the row of each.

    ``row_bound_us`` is the least time that the unit of a row needs.
    """

    operators: tuple[str, ...]
    phases: tuple[str, ...]
    nodes: tuple[tuple[int, ...], ...]
    rows: NDArray[np.float32]
    row_bound_us: NDArray[np.float64]
    member: NDArray[np.intp]

    def __len__(self) -> int:
        return len(self.operators)

    @cached_property
    def features(self) -> NDArray[np.float32]:
        """The row of each unit."""
        return self.rows[self.member]

    @cached_property
    def bound_us(self) -> NDArray[np.float64]:
        """The least time that each unit needs."""
        return self.row_bound_us[self.member]


def columns_of(workload: Workload) -> UnitColumns:
    """The units of a workload, whatever the device."""
    optimizer = (workload.optimizer or "sgd") if workload.is_training else None
    return unit_columns(workload.running_graph, optimizer)


def extract_units(workload: Workload) -> Units:
    """Return all units of a workload.

    >>> from foretell.devices import find_device
    >>> from foretell.records import Target
    >>> from foretell.testing import tiny_graph
    >>> units = extract_units(Workload(tiny_graph(), Target(find_device("h200"))))
    >>> units.features.shape == (len(units), len(COLUMNS))
    True
    """
    units, hardware = columns_of(workload), workload.target.hardware
    rows = units.rows[:, : len(COLUMNS)].copy()
    compute_us, memory_us = _minimum_us(units, hardware)
    launches = units.work_of_rows("launches")
    bound_us = np.maximum(compute_us, memory_us) + launches * hardware.device.launch_overhead_us
    for name, time_us in (("log_compute_us", compute_us), ("log_memory_us", memory_us), ("log_bound_us", bound_us)):
        rows[:, _AT[name]] = np.log2(time_us + 1e-4)  # still tells times far below a microsecond apart
    # the rows are those of a device of one SM, where there are as many waves as tiles
    has_tiles = rows[:, _AT["log_tiles"]] >= 0
    waves = rows[has_tiles, _AT["waves"]] / max(hardware.sms, 1)
    rows[has_tiles, _AT["waves"]] = waves
    rows[has_tiles, _AT["wave_fill"]] = waves / np.maximum(np.ceil(waves), 1.0)
    return Units(units.operators, units.phases, units.nodes, rows.astype(np.float32), bound_us, units.member)


def _minimum_us(units: UnitColumns, hardware: Hardware) -> tuple[Values, Values]:
    """The least time that the arithmetic and the memory traffic of each row's unit need, in µs."""
    rate = units.work_of_rows("rate").astype(np.intp)
    on_tensor_cores, elsewhere = (
        np.array([flops_per_s(hardware.peak_tflops(dtype, tensor_cores=cores)) for dtype in RATES])[rate]
        for cores in (True, False)
    )
    of_tensor_cores = units.work_of_rows("tensor_core_flops")
    compute_s = of_tensor_cores / on_tensor_cores + (units.work_of_rows("flops") - of_tensor_cores) / elsewhere
    memory_s = units.work_of_rows("bytes") / bytes_per_s(hardware.bandwidth_gb_per_s)
    return compute_s * us(1.0), memory_s * us(1.0)

"""Devices: how a CPU runs a model: by which runtime, and on how many threads.

A store may have the same workload several times, once a run: a predictor learns from one of them, and never from all.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from foretell.frozen import dataclass

EAGER, ONNX_RUNTIME = "eager", "onnxruntime"


@dataclass(frozen=True)
class CpuRun:
    """A runtime and its threads; measurements on a GPU count as eager ones on one thread."""

    runtime: str = EAGER
    threads: int = 1

    def __str__(self) -> str:
        name = "ONNX Runtime" if self.runtime == ONNX_RUNTIME else "eager PyTorch"
        return f"{name} on {_COUNTS.get(self.threads, str(self.threads))} thread{'s' * (self.threads > 1)}"

    @property
    def file(self) -> str:
        """The name of the fitted file.

        >>> CpuRun("onnxruntime", 2).file
        'cpu-onnxruntime-2.zip'
        """
        return f"cpu-{self.runtime}-{self.threads}.zip"

    def has(self, row: Mapping[str, Any]) -> bool:
        """Whether a row of the table ``measurements`` is of this run; older tables have no threads, which means one."""
        return CpuRun.of(row) == self

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "CpuRun":
        """The run of a row."""
        runtime = str(row.get("runtime") or EAGER)
        return cls(EAGER if runtime in _AS_STORED else runtime, row.get("threads") or 1)


_AS_STORED = ("cpu", "cuda-graph")  # eager PyTorch as it is stored, and a GPU
_COUNTS = {1: "one", 2: "two"}
ONE_THREAD = CpuRun()
OTHERS = (CpuRun(EAGER, 2), CpuRun(ONNX_RUNTIME, 1), CpuRun(ONNX_RUNTIME, 2))
RUN_COLUMNS = ("runtime", "threads", "campaign_id")


def runs_of_campaigns(rows: Iterable[Mapping[str, Any]]) -> dict[str, CpuRun]:
    """The run of every campaign that has a row."""
    return {str(row["campaign_id"]): CpuRun.of(row) for row in rows if row.get("campaign_id")}

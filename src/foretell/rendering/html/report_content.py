"""Rendering: what a report shows, as plain records: a workflow gathers them, a page draws them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.records import Estimate, Prediction
from foretell.rendering.svg.roofline import Roofline

ADVICE, BATCHES, KERNELS, ROOFLINE = "advice", "batch sizes", "kernels", "roofline"
"""The parts that may be missing, besides devices, each by its name."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """What the memory is made of, by name in MiB, and what the device has."""

    parts: tuple[tuple[str, float], ...]
    need: Estimate
    capacity_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """A prediction at another batch size or on another device; ``fits`` is None where it is not known."""

    prediction: Prediction
    name: str
    fits: bool | None

    @property
    def need_mib(self) -> Estimate | None:
        """The memory that it takes on the device."""
        return self.prediction.device_memory_mib or self.prediction.memory_mib

    @property
    def capacity_mib(self) -> float | None:
        """The memory that there is."""
        return self.prediction.facts.get("memory_capacity_mib")


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """A place with its cheapest instance; ``others`` more can be rented. What is not known is None."""

    place: str
    instance: str
    others: int
    batch_size: int
    latency_ms: Estimate
    usd: Estimate | None
    kwh: Estimate | None
    kg_co2e: Estimate | None
    extrapolated: bool
    hours: Estimate | None = None
    instances: Estimate | None = None
    at_risk: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class FrontPoint:
    """A choice that none beats in both latency and dollars."""

    latency_ms: float
    usd: float
    label: str


@dataclass(frozen=True, slots=True)
class AdviceTable:
    """The best places from the cheapest on, and why the others fell out; all costs are of ``amount``.

    ``limits`` are those that the places keep, in words.
    """

    amount: str
    rows: tuple[AdviceRow, ...]
    refused: tuple[tuple[str, str], ...]
    front: tuple[FrontPoint, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """Where facts of one kind come from; ``about`` says which of them, or of when they are."""

    kind: str
    about: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from, and how to get them again; ``held_out`` has mean errors, by metric."""

    version: str
    made: str
    graph_hash: str
    nodes: int
    inputs: tuple[str, ...]
    trained_on: int | None
    held_out: Mapping[str, float] = field(hash=False)
    sources: tuple[Source, ...]
    command: str


@dataclass(frozen=True)
class Report:
    """Everything that a report shows; ``missing`` says by the name of a part why it is not there."""

    name: str
    device_name: str
    prediction: Prediction
    memory: MemoryParts | None
    provenance: Provenance
    batches: tuple[Row, ...] = ()
    devices: tuple[Row, ...] = ()
    advice: AdviceTable | None = None
    roofline: Roofline | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

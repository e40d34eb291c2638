"""Rendering: the content of a report as plain records. A workflow makes them, the page shows them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.records import Estimate, Prediction
from foretell.rendering.svg.roofline import Roofline

ADVICE, BATCHES, KERNELS, ROOFLINE = "advice", "batch sizes", "kernels", "roofline"
"""The names of parts that may be missing from a report; so may single devices, by their names."""


@dataclass(frozen=True, slots=True)
class MemoryParts:
    """The memory by use, in MiB, and the capacity of the device."""

    parts: tuple[tuple[str, float], ...]
    need: Estimate
    capacity_mib: float


@dataclass(frozen=True, slots=True)
class Row:
    """A prediction at another batch size or on another device; ``fits`` is None if it is not known."""

    prediction: Prediction
    name: str
    fits: bool | None

    @property
    def need_mib(self) -> Estimate | None:
        """The memory that the model needs on the device."""
        return self.prediction.device_memory_mib or self.prediction.memory_mib

    @property
    def capacity_mib(self) -> float | None:
        """The memory of the device."""
        return self.prediction.facts.get("memory_capacity_mib")


@dataclass(frozen=True, slots=True)
class AdviceRow:
    """A place with its cheapest instance; ``others`` counts the other instances. Unknown values are None."""

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
    """A choice for which no other one is both faster and cheaper."""

    latency_ms: float
    usd: float
    label: str


@dataclass(frozen=True, slots=True)
class AdviceTable:
    """The best places, cheapest first, and why others were refused.

    Costs are those of ``amount``, such as a million inferences. ``limits`` describes the user's requirements in words.
    """

    amount: str
    rows: tuple[AdviceRow, ...]
    refused: tuple[tuple[str, str], ...]
    front: tuple[FrontPoint, ...] = ()
    limits: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Source:
    """The source of some facts; ``about`` names the facts or their dates."""

    kind: str
    about: tuple[str, ...]
    text: str


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where the numbers come from, and the command that makes the report again; ``held_out`` has mean errors."""

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
    """Everything that a report shows; ``missing`` maps the name of a missing part to the reason.

    ``saturation`` says at which batch size the occupancy saturates, where that is known.
    """

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
    saturation: str = ""

"""Scheduling: where jobs run: a cluster is a list of places, and a place is a whole GPU or one of its MIG slices."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from foretell.devices import Device, Slice, effective
from foretell.units import bytes_from_gib, mib

EXCLUSIVE, MPS, TIME_SLICING = "exclusive", "mps", "time-slicing"
METHODS = (EXCLUSIVE, MPS, TIME_SLICING)
"""How a place is shared: not at all, by CUDA MPS, or by the time slices of the driver."""


@dataclass(frozen=True)
class PlaceKind:
    """All places that are alike. ``name`` has the device and the slice, such as ``h200 mig:3g.71gb``.

    At most ``max_jobs`` run together; ``slots`` is what slot packing offers, which looks at nothing else.
    """

    name: str
    device: Device
    slice: Slice | None
    method: str
    max_jobs: int
    slots: int = 1

    @cached_property
    def memory_mib(self) -> float:
        """The memory that the jobs of such a place share; a driver may show a little more."""
        whole = self.device.memory_mib if self.slice is None else None
        return float(whole) if whole else mib(bytes_from_gib(effective(self.device, self.slice).memory_gib))

    @cached_property
    def sm_fraction(self) -> float:
        """The share of the device's SMs."""
        return effective(self.device, self.slice).sm_fraction

    @cached_property
    def bandwidth_fraction(self) -> float:
        """The share of the device's memory bandwidth."""
        return effective(self.device, self.slice).bandwidth_gb_per_s / self.device.bandwidth_gb_per_s


@dataclass(frozen=True, slots=True)
class Place:
    """One place; ``gpu`` is the number of the GPU that it is, or is a part of."""

    number: int
    gpu: int
    kind: PlaceKind


@dataclass(frozen=True, slots=True)
class Cluster:
    """Places, in the order in which equal ones are used."""

    places: tuple[Place, ...]

    @property
    def gpus(self) -> int:
        """The number of GPUs."""
        return len({place.gpu for place in self.places})

    @property
    def kinds(self) -> tuple[PlaceKind, ...]:
        """The kinds of places, each once."""
        return tuple({place.kind.name: place.kind for place in self.places}.values())


def kind_name(device: Device, part: Slice | None, method: str) -> str:
    """The name of a kind of place.

    >>> from foretell.devices import find_device, parse_slice
    >>> h200 = find_device("h200")
    >>> kind_name(h200, None, "mps"), kind_name(h200, parse_slice("mig:3g.71gb", h200), "exclusive")
    ('h200, mps', 'h200 mig:3g.71gb')
    """
    where = f"{device.id} {part.text}" if part else device.id
    return where if method == EXCLUSIVE else f"{where}, {method}"


def build_cluster(gpus: Iterable[tuple[PlaceKind, ...]]) -> Cluster:
    """A cluster of GPUs, each given by its parts: one kind for a whole GPU, several for MIG slices."""
    places: list[Place] = []
    for gpu, parts in enumerate(gpus):
        places += [Place(len(places) + part, gpu, kind) for part, kind in enumerate(parts)]
    return Cluster(tuple(places))

"""Predictors: collectives: how long GPUs take to exchange data, by size, number of GPUs and fabric.

Idea: inside a node a collective takes a latency, a ramp and the time of its bytes,

    t = latency · (1 + step · (n - 1)) + ramp · n^power · √(S / B) + (local + wire · f(n)) · S / B

where S is the size, n the number of GPUs, B the bandwidth of a GPU's link in one direction, and f(n) the share of S
that crosses it: (n - 1) / n, twice that for an all-reduce. The square root stands for protocols and channels that NCCL
changes with the size: bandwidth rises slowly, over four orders of magnitude. ``local`` is work beside the wire; power
is 0, and 1 for the kernels of engines. There are five constants a kind, and a latency, a rate and what NVLink SHARP
adds (an all-reduce of 8 GPUs inside the switch) an architecture; `collectives.toml` has them with their spread, and
``python -m lab evaluate collectives`` fits and judges them (aiconfigurator's tables, 2, 4 and 8 GPUs of a node).

Between nodes NCCL's rings use all network cards, so a large collective is bound by the slower of the links and the
cards of a node; hops have the latencies that NCCL itself chooses by: a ring passes every GPU, which costs milliseconds
on a thousand of them. Only an all-to-all was measured
across nodes (DeepEP, 2 to 8 nodes). Everything else across nodes, and GPUs of other architectures, is extrapolated, and
the result says so.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal, get_args

from foretell.devices import Device
from foretell.errors import InputError
from foretell.records import Estimate
from foretell.registry import did_you_mean
from foretell.toml_rows import Row, read_shipped
from foretell.units import GIGA, MEGA, MIB, seconds_from_us

Kind = Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "point-to-point"]
Library = Literal["nccl", "engine", "vllm", "sglang", "trtllm"]
KINDS: tuple[Kind, ...] = get_args(Kind)
GPUS_PER_NODE = 8
MAX_GPUS = 1024
# one direction of one network card a GPU, GB/s: 400, 200 and 100 Gb/s
NETWORKS = {"infiniband-ndr": 50.0, "infiniband-hdr": 25.0, "infiniband-edr": 12.5}
_MEASURED_GPUS = (2, 4, 8)
# from this number on, and for what is beyond this size, the NVLink switch adds (NVLS), where there is one that can
SWITCH_GPUS, SWITCH_BYTES = 8, 32 * MIB
# engines (vLLM, SGLang) reduce up to this size by kernels of their own, and leave the rest to NCCL
ENGINE_LIMIT_BYTES = 8 * MIB
# how much slower one engine's all-reduce is than the mean of them, at these sizes; measured on an H200
FACTOR_BYTES = tuple(2**power for power in range(14, 26))
_FACTORS_OF = "Hopper"
# NCCL's src/graph/tuning.cc (2.27), for its protocols LL, LL128 and Simple: microseconds of a hop inside a node and
# between nodes, and the share of the bandwidth
_RING = ((0.6, 2.7, 0.25), (1.9, 4.0, 0.92), (3.4, 14.0, 1.0))
_TREE = ((0.6, 5.0, 0.25), (1.25, 8.5, 0.85), (4.0, 14.0, 0.92))
# what is not measured may be this many times faster or slower
_EXTRAPOLATED = 2.0


@dataclass(frozen=True, slots=True)
class Fabric:
    """How the GPUs of a job are connected. Bandwidths are those of one GPU in one direction, in GB/s.

    ``link`` is "nvlink" or "pcie". ``bridged`` says that NVLink connects pairs only. Without a network there is one
    node.
    """

    architecture: str
    link: Literal["nvlink", "pcie"]
    link_gb_per_s: float
    pcie_gb_per_s: float | None
    bridged: bool = False
    gpus_per_node: int = GPUS_PER_NODE
    network: str | None = None
    network_gb_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class CollectiveTime:
    """How long a collective takes, and what of that is extrapolated, a sentence each."""

    seconds: Estimate
    extrapolated: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Shape:
    """The constants of one kind; times in microseconds."""

    latency_us: float
    step: float
    ramp: float
    ramp_power: float
    local: float
    wire: float
    spread: float

    def us(self, moved_us: float, crossing: float, gpus: int, latency_factor: float) -> float:
        """The time, where ``moved_us`` is S / B and ``crossing`` the share of S that crosses a link."""
        start_us = self.latency_us * latency_factor * (1 + self.step * (gpus - 1))
        ramp_us = self.ramp * math.pow(gpus, self.ramp_power) * math.sqrt(moved_us)
        return start_us + ramp_us + (self.local + self.wire * crossing) * moved_us


def fabric_of(device: Device, *, gpus_per_node: int = GPUS_PER_NODE, network: str | None = None) -> Fabric:
    """The fabric of a device; ``network`` between nodes is a name of `NETWORKS`, or GB/s of a GPU as text.

    >>> from foretell.devices import find_device
    >>> fabric_of(find_device("h100-sxm")).link_gb_per_s, fabric_of(find_device("l40s")).link
    (450.0, 'pcie')
    """
    if device.is_cpu:
        raise InputError(f"{device.id} is a CPU; several GPUs need a GPU, such as --device h100-sxm.")
    if not 1 <= gpus_per_node <= MAX_GPUS:
        raise InputError(f"Got {gpus_per_node} GPUs a node; it must be between 1 and {MAX_GPUS:,}.")
    if device.nvlink_gb_per_s is None and device.pcie_gb_per_s is None:
        raise InputError(
            f"Neither NVLink nor PCIe of {device.id} is known, so several of them cannot be predicted; "
            "give nvlink_gb_per_s or pcie_gb_per_s in a device file."
        )
    pcie = None if device.pcie_gb_per_s is None else device.pcie_gb_per_s / 2  # the catalogue adds both directions
    if device.nvlink_gb_per_s is None:
        assert pcie is not None
        fabric = Fabric(device.architecture, "pcie", pcie, pcie, gpus_per_node=gpus_per_node)
    else:
        # a switch connects SXM modules; cards have bridges over two of them
        switched = "sxm" in device.id or "sxm" in device.name.lower() or device.nvlink_gb_per_s >= 900
        fabric = Fabric(
            device.architecture, "nvlink", device.nvlink_gb_per_s / 2, pcie,
            bridged=not switched and pcie is not None, gpus_per_node=gpus_per_node,
        )  # fmt: skip
    return fabric if network is None else replace(fabric, network=network, network_gb_per_s=_network_gb_per_s(network))


def check_gpus(gpus: int, fabric: Fabric) -> None:
    """Refuse a number of GPUs that the fabric does not connect."""
    if isinstance(gpus, bool) or not isinstance(gpus, int) or not 1 <= gpus <= MAX_GPUS:
        raise InputError(f"Got {gpus!r} GPUs; it must be a whole number between 1 and {MAX_GPUS:,}.")
    if gpus > fabric.gpus_per_node:
        if fabric.network_gb_per_s is None:
            raise InputError(
                f"{gpus:,} GPUs are more than the {fabric.gpus_per_node} of a node; "
                f"give the network between nodes, such as --network infiniband-ndr, or use at most that many."
            )
        if gpus % fabric.gpus_per_node:
            below = gpus - gpus % fabric.gpus_per_node
            raise InputError(
                f"{gpus:,} GPUs do not fill nodes of {fabric.gpus_per_node}; "
                f"use {below:,} or {below + fabric.gpus_per_node:,}."
            )


def collective_time(
    kind: Kind, size_bytes: float, gpus: int, fabric: Fabric, library: Library = "nccl"
) -> CollectiveTime:
    """How long one collective takes.

    Args:
        kind: Which one.
        size_bytes: As nccl-tests count it: the tensor that every GPU has (all-reduce), the gathered one (all-gather),
            the one before (reduce-scatter), all that one GPU sends, with the part that it keeps (all-to-all), the
            message (point-to-point).
        gpus: How many take part. Above a node's, they fill nodes.
        fabric: How they are connected.
        library: "nccl", or "engine": the all-reduce kernels of vLLM, SGLang and TensorRT-LLM under CUDA graphs, for
            small sizes, averaged; "vllm", "sglang" and "trtllm" are those of one of them, where they were measured.

    >>> from foretell.devices import find_device
    >>> fabric = fabric_of(find_device("h100-sxm"))
    >>> 1.5e-3 < collective_time("all-reduce", 2**29, 8, fabric).seconds.value < 2.7e-3
    True
    >>> collective_time("all-reduce", 2**29, 1, fabric).seconds.value
    0.0
    """
    if kind not in KINDS:
        raise InputError(f"Unknown collective {kind!r}.{did_you_mean(kind, KINDS)}")
    check_gpus(gpus, fabric)
    if not (size_bytes >= 0 and math.isfinite(size_bytes)):
        raise InputError(f"Got a message of {size_bytes} bytes; it must be a number of at least 0.")
    if gpus == 1 or size_bytes == 0:
        return CollectiveTime(Estimate(0.0, 0.0, 0.0))
    if kind == "point-to-point":
        if gpus != 2 and gpus <= fabric.gpus_per_node:
            raise InputError(f"A point-to-point message is between 2 GPUs, not {gpus}.")
        if gpus <= fabric.gpus_per_node:
            # two GPUs that exchange all they have in an all-to-all send each other half of it
            return collective_time("all-to-all", 2 * size_bytes, 2, fabric, library)
    local = min(gpus, fabric.gpus_per_node)
    inside = _inside(kind, size_bytes, local, fabric, library)
    if gpus <= fabric.gpus_per_node:
        return inside
    return _across(kind, size_bytes, gpus, fabric, inside)


def _inside(kind: Kind, size_bytes: float, gpus: int, fabric: Fabric, library: Library) -> CollectiveTime:
    """Inside one node."""
    if kind == "point-to-point":
        kind, size_bytes, gpus = "all-to-all", 2 * size_bytes, 2
    constants = _constants()
    if fabric.link == "pcie" or (fabric.bridged and gpus > 2):
        return _over_pcie(kind, size_bytes, gpus, fabric, constants)
    known = constants.architectures.get(fabric.architecture)
    latency_factor, rate, switch = known or constants.typical
    moved_us = size_bytes / (fabric.link_gb_per_s * rate * GIGA) * MEGA
    crossing = _crossing(kind, gpus)
    shape = constants.shapes[kind]
    if kind == "all-reduce" and gpus >= SWITCH_GPUS and size_bytes > SWITCH_BYTES:
        beyond = 1 - SWITCH_BYTES / size_bytes
        crossing *= 1 - beyond + beyond / switch
    us, spread = shape.us(moved_us, crossing, gpus, latency_factor), shape.spread
    if library != "nccl" and kind == "all-reduce":
        own, engine = constants.engine, constants.engine_architectures.get(fabric.architecture)
        engine_factor, engine_rate, _ = engine or constants.engine_typical
        small_us = min(size_bytes, ENGINE_LIMIT_BYTES) / (fabric.link_gb_per_s * engine_rate * GIGA) * MEGA
        custom_us = own.us(small_us, crossing, gpus, engine_factor)
        us = custom_us if size_bytes <= ENGINE_LIMIT_BYTES else max(custom_us, us)
        spread = own.spread if size_bytes <= ENGINE_LIMIT_BYTES else spread
        if fabric.architecture == _FACTORS_OF:
            us *= _engine_factor(constants.engine_factors.get(library, {}), size_bytes, gpus)
    notes = []
    if known is None:
        notes.append(f"collectives of {fabric.architecture} GPUs were not measured")
    if gpus > max(_MEASURED_GPUS):
        notes.append(f"more than {max(_MEASURED_GPUS)} GPUs on one NVLink were not measured")
    factor = math.exp(spread) * (_EXTRAPOLATED if notes else 1.0)
    seconds = seconds_from_us(us)
    return CollectiveTime(Estimate(seconds, seconds / factor, seconds * factor), tuple(notes))


def _engine_factor(factors: Mapping[int, tuple[float, ...]], size_bytes: float, gpus: int) -> float:
    """What one engine's all-reduce takes over the mean of all, between the sizes at which it was measured."""
    if not factors:
        return 1.0
    own = factors[min(factors, key=lambda count: abs(math.log(count / gpus)))]
    place = math.log2(min(max(size_bytes, FACTOR_BYTES[0]), FACTOR_BYTES[-1])) - math.log2(FACTOR_BYTES[0])
    at = min(int(place), len(own) - 2)
    return own[at] + (place - at) * (own[at + 1] - own[at])


def _over_pcie(kind: Kind, size_bytes: float, gpus: int, fabric: Fabric, constants: "Constants") -> CollectiveTime:
    """Over PCIe the path between more than two GPUs depends on the host.

    On one L40S host every pair has the bandwidth of two GPUs alone, on another it falls nearly with the square of their
    number: its bridges are shared, and crossed twice. The value is the middle: one path that all share.
    """
    assert fabric.pcie_gb_per_s is not None
    shape = constants.pcie
    crossing = _crossing(kind, gpus)
    moved_us = size_bytes / (fabric.pcie_gb_per_s * GIGA) * MEGA

    def seconds(sharing: float) -> float:
        return seconds_from_us(shape.us(moved_us * (gpus / 2) ** sharing, crossing, gpus, 1.0))

    spread = math.exp(shape.spread)
    estimate = Estimate(seconds(1.0), seconds(0.0) / spread, seconds(2.0) * spread)
    notes = [] if gpus == 2 else ["PCIe between more than two GPUs depends on the host; two L40S hosts differ tenfold"]
    if fabric.architecture not in constants.pcie_architectures:
        notes.append(f"collectives of {fabric.architecture} GPUs over PCIe were not measured")
    return CollectiveTime(estimate, tuple(notes))


def _across(kind: Kind, size_bytes: float, gpus: int, fabric: Fabric, inside: CollectiveTime) -> CollectiveTime:
    """Across nodes: the links and the network work at the same time, so the slower one counts."""
    assert fabric.network_gb_per_s is not None
    constants = _constants()
    nodes, local = gpus // fabric.gpus_per_node, fabric.gpus_per_node
    card = fabric.network_gb_per_s * constants.network_share * GIGA
    if kind == "point-to-point":
        seconds = seconds_from_us(constants.network_latency_us) + size_bytes / card
    elif kind == "all-to-all":
        # every GPU sends its own data through its own card; measured for DeepEP
        remote = (gpus - local) / gpus
        seconds = max(inside.seconds.value, size_bytes * remote / card) + seconds_from_us(constants.network_latency_us)
    else:
        # a ring through all GPUs leaves and enters a node once in each of its channels, which share all cards
        moved = size_bytes * _crossing(kind, gpus) / (card * local)
        reached = min(moved / share + seconds_from_us(hops) for hops, share in _routes(kind, nodes, local))
        seconds = max(inside.seconds.value, reached)
    measured = kind == "all-to-all" and fabric.network == "infiniband-ndr" and not inside.extrapolated and nodes <= 8
    notes = () if measured else (f"{kind} over {nodes} nodes was not measured",)
    factor = math.exp(constants.network_spread) if measured else _EXTRAPOLATED
    return CollectiveTime(Estimate(seconds, seconds / factor, seconds * factor), (*inside.extrapolated, *notes))


def _routes(kind: Kind, nodes: int, local: int) -> Iterator[tuple[float, float]]:
    """Ways of NCCL across nodes: microseconds of all hops, and the share of the bandwidth.

    A ring passes every GPU, an all-reduce twice; only an all-reduce has a tree, whose hops grow with the logarithm.
    """
    turns = 2 if kind == "all-reduce" else 1
    for inner_us, outer_us, share in _RING:
        yield turns * (nodes * (local - 1) * inner_us + (nodes - 1) * outer_us), share
    if kind == "all-reduce":
        for inner_us, outer_us, share in _TREE:
            yield 2 * ((local - 1) * inner_us + math.log2(nodes) * outer_us), share


def _crossing(kind: Kind, gpus: int) -> float:
    """The share of the size that crosses a link of each GPU."""
    return (gpus - 1) / gpus * (2 if kind == "all-reduce" else 1)


def _network_gb_per_s(network: str) -> float:
    known = NETWORKS.get(network)
    if known is not None:
        return known
    try:
        gb_per_s = float(network)
    except ValueError:
        gb_per_s = math.nan
    if not (0 < gb_per_s < math.inf):
        raise InputError(
            f"Unknown network {network!r}. Choose from: {', '.join(NETWORKS)}, or give the GB/s of one GPU, such as 25."
        )
    return gb_per_s


Factors = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class Constants:
    """What was fitted; an architecture has factors of the latency, of the rate, and of the rate inside the switch."""

    shapes: dict[str, Shape]
    architectures: dict[str, Factors]
    engine: Shape
    engine_architectures: dict[str, Factors]
    engine_factors: dict[str, dict[int, tuple[float, ...]]]
    pcie: Shape
    pcie_architectures: tuple[str, ...]
    network_share: float
    network_latency_us: float
    network_spread: float

    @property
    def typical(self) -> Factors:
        """The factors of an architecture that was not measured."""
        return _mean(self.architectures)

    @property
    def engine_typical(self) -> Factors:
        """The same for the kernels of engines."""
        return _mean(self.engine_architectures)


def _mean(factors: dict[str, Factors]) -> Factors:
    latency, rate, switch = zip(*factors.values(), strict=True)
    return _geometric_mean(latency), _geometric_mean(rate), _geometric_mean(switch)


def _geometric_mean(values: tuple[float, ...]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@lru_cache(maxsize=1)
def _constants() -> Constants:
    return read_constants(read_shipped("foretell.predictors.llm", "collectives.toml"))


def read_constants(file: Row) -> Constants:
    """The constants of a file."""
    network = file.row("network")
    return Constants(
        shapes={kind: _shape(row) for kind, row in file.rows("nccl").items()},
        architectures={name: _factors(row) for name, row in file.rows("architecture").items()},
        engine=_shape(file.row("engine")),
        engine_architectures={name: _factors(row) for name, row in file.rows("engine_architecture").items()},
        engine_factors={name: _by_gpus(row) for name, row in file.rows("engine_factors").items()},
        pcie=_shape(file.row("pcie")),
        pcie_architectures=tuple(file.row("pcie").texts("architectures")),
        network_share=_number(network, "share"),
        network_latency_us=_number(network, "latency_us"),
        network_spread=_number(network, "spread"),
    )


def _by_gpus(row: Row) -> dict[int, tuple[float, ...]]:
    return {gpus: tuple(map(float, row.text(f"gpus_{gpus}").split())) for gpus in _MEASURED_GPUS}


def _shape(row: Row) -> Shape:
    names = ("latency_us", "step", "ramp", "ramp_power", "local", "wire", "spread")
    return Shape(*(_number(row, name) for name in names))


def _factors(row: Row) -> Factors:
    return _number(row, "latency"), _number(row, "rate"), row.maybe_number("switch", least=0) or 1.0


def _number(row: Row, name: str) -> float:
    value = row.maybe_number(name, least=-math.inf)
    assert value is not None, name
    return value

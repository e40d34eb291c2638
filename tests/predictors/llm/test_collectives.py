"""Collectives: measured points, physics, and refusals."""

import itertools
import math

import pytest

from foretell.devices import find_device
from foretell.errors import InputError
from foretell.predictors.llm.collectives import (
    ENGINE_LIMIT_BYTES,
    KINDS,
    MAX_GPUS,
    Fabric,
    Kind,
    Library,
    collective_time,
    fabric_of,
)
from foretell.units import KIB, MIB

SIZES = [float(2**power) for power in range(9, 34)]

# aiconfigurator's tables, NCCL 2.27 to 2.29 and vLLM 0.19, medians over versions, microseconds
MEASURED: list[tuple[str, Kind, Library, int, int, float]] = [
    ("h100-sxm", "all-reduce", "nccl", 8, 512 * MIB, 2111),
    ("h100-sxm", "all-gather", "nccl", 2, 1 * MIB, 11.3),
    ("h200", "all-to-all", "nccl", 8, 256 * MIB, 752),
    ("a100-sxm-80gb", "reduce-scatter", "nccl", 4, 128 * MIB, 539),
    ("a100-sxm-80gb", "all-reduce", "nccl", 8, 64 * KIB, 28),
    ("b200", "all-reduce", "nccl", 4, 512 * MIB, 1270),
    ("h200", "all-reduce", "engine", 8, 16 * KIB, 5),
    ("l40s", "all-reduce", "nccl", 2, 64 * MIB, 3359),
]


@pytest.mark.parametrize(("device", "kind", "library", "gpus", "size", "us"), MEASURED)
def test_measured_points(device: str, kind: Kind, library: Library, gpus: int, size: int, us: float) -> None:
    """A few measured times are within a quarter, and inside the interval."""
    time = collective_time(kind, size, gpus, fabric_of(find_device(device)), library)
    assert abs(math.log(time.seconds.value * 1e6 / us)) < math.log(1.25)
    assert time.seconds.low < us * 1e-6 < time.seconds.high
    assert not time.extrapolated


def test_slow_and_fast_pcie_host() -> None:
    """Two L40S hosts differ tenfold on 8 GPUs; both are inside the interval, and the result says why it is wide."""
    time = collective_time("all-reduce", 512 * MIB, 8, fabric_of(find_device("l40s")))
    assert time.seconds.low < 45_253e-6 < time.seconds.value < 649_471e-6 < time.seconds.high
    assert "depends on the host" in time.extrapolated[0]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "point-to-point"])
@pytest.mark.parametrize("library", ["nccl", "engine"])
@pytest.mark.parametrize("device", ["h200", "l40s", "a40"])
def test_larger_is_slower(kind: Kind, library: Library, device: str) -> None:
    """Time rises with the size and never beats the wire."""
    fabric = fabric_of(find_device(device), network="infiniband-ndr")
    for gpus in (2, 4, 8, 16, 1024):
        times = [collective_time(kind, size, gpus, fabric, library).seconds.value for size in SIZES]
        assert times == sorted(times)
        wire_s = SIZES[-1] * (gpus - 1) / gpus / max(fabric.link_gb_per_s, fabric.pcie_gb_per_s or 0) / 1e9
        # NVLink SHARP adds inside the switch, so that an all-reduce may send less than twice its size
        assert times[-1] > 0.9 * wire_s


def test_engine_joins_nccl() -> None:
    """Where an engine hands over to NCCL, time does not fall."""
    fabric = fabric_of(find_device("h200"))
    below = collective_time("all-reduce", ENGINE_LIMIT_BYTES, 8, fabric, "engine").seconds.value
    above = collective_time("all-reduce", ENGINE_LIMIT_BYTES + 1, 8, fabric, "engine").seconds.value
    assert below <= above
    small = collective_time("all-reduce", 16 * KIB, 8, fabric, "engine").seconds.value
    assert small < 0.5 * collective_time("all-reduce", 16 * KIB, 8, fabric).seconds.value


def test_what_is_extrapolated_is_said() -> None:
    """Nodes, and architectures that nobody measured, have a wide interval and a sentence."""
    nodes = collective_time("all-reduce", MIB, 16, fabric_of(find_device("h200"), network="infiniband-ndr"))
    assert nodes.extrapolated == ("all-reduce over 2 nodes was not measured",)
    assert nodes.seconds.high == pytest.approx(2 * nodes.seconds.value)
    volta = collective_time("all-reduce", MIB, 8, fabric_of(find_device("v100-sxm2-16gb")))
    assert "Volta" in volta.extrapolated[0]
    measured = collective_time("all-to-all", MIB, 16, fabric_of(find_device("h200"), network="infiniband-ndr"))
    assert not measured.extrapolated


def test_network_bounds_nodes() -> None:
    """A slower network makes large collectives slower, in proportion."""
    device = find_device("h100-sxm")
    fast = collective_time("all-gather", 2**33, 64, fabric_of(device, network="infiniband-ndr"))
    slow = collective_time("all-gather", 2**33, 64, fabric_of(device, network="5"))
    assert slow.seconds.value / fast.seconds.value > 5


def test_bridges_connect_pairs() -> None:
    """NVLink of cards connects two; four of them talk over PCIe."""
    fabric = fabric_of(find_device("a100-pcie-80gb"))
    assert fabric.bridged
    two = collective_time("all-reduce", 64 * MIB, 2, fabric).seconds.value
    assert collective_time("all-reduce", 64 * MIB, 4, fabric).seconds.value > 5 * two


def test_point_to_point() -> None:
    """A message is half of an all-to-all between two; across nodes it goes through one card."""
    fabric = fabric_of(find_device("h200"), network="infiniband-ndr")
    whole = collective_time("all-to-all", 2 * MIB, 2, fabric)
    assert collective_time("point-to-point", MIB, 2, fabric) == whole
    assert collective_time("point-to-point", 2**33, 16, fabric).seconds.value > 2**33 / 50e9


@pytest.mark.parametrize(
    ("gpus", "network", "says"),
    [
        (0, None, "between 1 and 1,024"),
        (MAX_GPUS + 8, "infiniband-ndr", "between 1 and 1,024"),
        (16, None, "--network infiniband-ndr"),
        (12, "infiniband-ndr", "use 8 or 16"),
    ],
)
def test_refused_gpus(gpus: int, network: str | None, says: str) -> None:
    """The message says what would work."""
    with pytest.raises(InputError, match=says):
        collective_time("all-reduce", MIB, gpus, fabric_of(find_device("h200"), network=network))


def test_other_refusals() -> None:
    """Unknown kinds and networks, CPUs, and sizes that are no sizes."""
    fabric = fabric_of(find_device("h200"))
    with pytest.raises(InputError, match="all-reduce"):
        collective_time("allreduce", 1.0, 2, fabric)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="infiniband-hdr"):
        fabric_of(find_device("h200"), network="ethernet")
    with pytest.raises(InputError, match="CPU"):
        fabric_of(find_device("cpu"))
    with pytest.raises(InputError, match="at least 0"):
        collective_time("all-reduce", math.nan, 2, fabric)
    with pytest.raises(InputError, match="between 2 GPUs"):
        collective_time("point-to-point", 1.0, 4, fabric)


def test_each_engine_reduces_by_its_own_kernels() -> None:
    """On 8 GPUs vLLM's kernel is the quickest for a few MiB, and TensorRT-LLM's for a few KiB."""
    fabric = fabric_of(find_device("h200"))

    def us(library: Library, size: int, where: Fabric = fabric) -> float:
        return collective_time("all-reduce", size, 8, where, library).seconds.value * 1e6

    # medians of the versions that were measured on an H200
    measured = (
        ("vllm", 2 * MIB, 18.4),
        ("trtllm", 2 * MIB, 30.4),
        ("sglang", 2 * MIB, 20.0),
        ("trtllm", 16 * KIB, 3.5),
    )
    for library, size, truth in measured:
        assert us(library, size) == pytest.approx(truth, rel=0.06)  # type: ignore[arg-type]
    sizes = [2**power for power in range(8, 30)]
    for library in ("vllm", "sglang", "trtllm"):
        times = [us(library, size) for size in sizes]  # type: ignore[arg-type]
        assert all(after > 0.97 * before for before, after in itertools.pairwise(times))
    ampere = fabric_of(find_device("a100-sxm-80gb"))
    assert us("vllm", MIB, ampere) == us("engine", MIB, ampere)

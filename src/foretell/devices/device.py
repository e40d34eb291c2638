"""The devices room: the record of one device, as its documents describe it.

Peaks are dense, never sparse, and with FP32 accumulation where FP16 accumulation would be faster,
because that is what the frameworks ask for (GeForce cards halve the rate for it). Link speeds are
the sum of both directions, as datasheets print them. What no document says is ``None``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foretell.errors import DeviceError
from foretell.registry import did_you_mean

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""The number formats that a peak can be asked for."""

# Where a device lacks a format, values are computed in the next one of the row; the vector row ends in fp32,
# which every device has. bf16 before Ampere is emulated in fp32; fp8 and fp4 weights are widened to fp16.
_TENSOR_ROW = {
    "fp64": ("fp64",),
    "fp32": ("tf32",),
    "tf32": ("tf32",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("fp8", "fp16"),
    "fp4": ("fp4", "fp8", "fp16"),
    "int8": ("int8",),
}
_VECTOR_ROW = {
    "fp64": ("fp64",),
    "fp32": (),
    "tf32": (),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "fp8": ("fp16",),
    "fp4": ("fp16",),
    "int8": ("int8",),
}


@dataclass(frozen=True, slots=True)
class SmLimits:
    """What one streaming multiprocessor can hold at a time: the bounds of occupancy."""

    max_warps: int
    max_threads: int
    max_blocks: int
    registers: int
    shared_memory_kib: float


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One way to cut a GPU with MIG; memory slices carry bandwidth and L2 with them."""

    name: str
    sms: int
    memory_gib: float
    bandwidth_eighths: int
    l2_eighths: int
    max_instances: int

    @property
    def bandwidth_fraction(self) -> float:
        """Share of the device's memory bandwidth."""
        return self.bandwidth_eighths / 8

    @property
    def l2_fraction(self) -> float:
        """Share of the device's L2 cache."""
        return self.l2_eighths / 8


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or CPU; ``sources`` names where every field comes from.

    On a CPU ``sms`` counts cores, ``l2_mib`` is the last-level cache and ``limits`` is absent.
    """

    id: str
    name: str
    vendor: str
    architecture: str
    sms: int
    tensor_tflops: Mapping[str, float] = field(hash=False)
    vector_tflops: Mapping[str, float] = field(hash=False)
    bandwidth_gb_per_s: float
    l2_mib: float
    memory_gib: float
    tdp_w: float
    launch_overhead_us: float
    sources: Mapping[str, str] = field(hash=False, repr=False)
    compute_capability: str | None = None
    base_clock_mhz: float | None = None
    boost_clock_mhz: float | None = None
    memory_mib: int | None = None
    idle_power_w: float | None = None
    limits: SmLimits | None = None
    nvlink_gb_per_s: float | None = None
    pcie_generation: int | None = None
    pcie_gb_per_s: float | None = None
    mig_profiles: tuple[MigProfile, ...] = ()
    price_keys: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()

    @property
    def is_cpu(self) -> bool:
        """Whether this is a processor without a GPU's SMs, MIG and MPS."""
        return self.compute_capability is None

    @property
    def has_tensor_cores(self) -> bool:
        """Whether any format runs on matrix units."""
        return bool(self.tensor_tflops)

    def peak_tflops(self, dtype: str, *, tensor_cores: bool) -> float:
        """Highest dense rate for ``dtype``, with the format the device would really compute in.

        With tensor cores, fp32 means TF32 where the device has it. A format that the matrix units lack
        falls back to the vector units, and one that those lack to fp32 (bf16 before Ampere, for example).

        >>> from foretell.devices import find_device
        >>> h200, t4 = find_device("h200"), find_device("t4")
        >>> h200.peak_tflops("bf16", tensor_cores=True), h200.peak_tflops("fp32", tensor_cores=False)
        (989.4, 66.9)
        >>> t4.peak_tflops("bf16", tensor_cores=True) == t4.peak_tflops("fp32", tensor_cores=False)
        True
        """
        if dtype not in DTYPES:
            raise DeviceError(f"Unknown dtype {dtype!r} for a peak.{did_you_mean(dtype, DTYPES)}")
        if tensor_cores:
            for native in _TENSOR_ROW[dtype]:
                if native in self.tensor_tflops:
                    return self.tensor_tflops[native]
        for native in _VECTOR_ROW[dtype]:
            if native in self.vector_tflops:
                return self.vector_tflops[native]
        return self.vector_tflops["fp32"]

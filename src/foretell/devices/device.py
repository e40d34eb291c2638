"""Devices: the record of one device, with the values of its datasheets.

Peaks are dense, never sparse. They are those with FP32 accumulation, because frameworks ask for it, even if FP16
accumulation is faster (GeForce cards halve their rate for FP32). Link speeds add up both directions, as datasheets do.
A value that no document states is ``None``.
"""

from collections.abc import Mapping
from dataclasses import field

from foretell.errors import DeviceError
from foretell.frozen import dataclass
from foretell.registry import did_you_mean

DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "fp4", "int8")
"""The number formats that have a peak."""

# If a device lacks a format, it computes in the next format of the row. The vector rows end in fp32, which every device
# has: bf16 before Ampere is emulated in fp32, and fp8 and fp4 weights are widened to fp16.
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
    """What one streaming multiprocessor can hold at a time. These limits bound the occupancy."""

    max_warps: int
    max_threads: int
    max_blocks: int
    registers: int
    shared_memory_kib: float


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One MIG profile of a GPU. A share of the memory comes with a share of the bandwidth and of the L2 cache."""

    name: str
    sms: int
    memory_gib: float
    bandwidth_eighths: int
    l2_eighths: int
    max_instances: int

    @property
    def bandwidth_fraction(self) -> float:
        """The share of the device's memory bandwidth."""
        return self.bandwidth_eighths / 8

    @property
    def l2_fraction(self) -> float:
        """The share of the device's L2 cache."""
        return self.l2_eighths / 8


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU or CPU; ``sources`` maps every field to the document that it comes from.

    For a CPU, ``sms`` is the number of cores, ``l2_mib`` the last-level cache, and ``limits`` is None. For a GPU of
    AMD, Intel or Apple, ``compute_capability`` is the target that compilers name (``gfx942``, ``apple9``), ``sms`` the
    number of compute units or cores, ``l2_mib`` the last-level cache, and ``limits`` is None.
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
    rated_tdp_w: float | None = None  # the maker's power limit, where the user's, ``tdp_w``, is another

    @property
    def is_cpu(self) -> bool:
        """Whether this is a CPU, which has no SMs, no MIG and no MPS."""
        return self.compute_capability is None

    @property
    def is_nvidia(self) -> bool:
        """Whether this is a GPU of NVIDIA. Nothing was measured on those of other makers."""
        return not self.is_cpu and self.vendor.lower() == "nvidia"

    @property
    def has_tensor_cores(self) -> bool:
        """Whether the device has tensor cores or other matrix units."""
        return bool(self.tensor_tflops)

    def peak_tflops(self, dtype: str, *, tensor_cores: bool) -> float:
        """Return the highest dense rate for ``dtype``, in the format that the device really computes in.

        With tensor cores, fp32 means TF32 if the device has it. A format that the matrix units lack falls back to the
        vector units; a format that these lack, too, falls back to fp32 (bf16 before Ampere, for example).

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

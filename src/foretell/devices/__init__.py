"""Devices: facts about GPUs and CPUs, and what a slice of a GPU (MIG, MPS, some SMs) leaves to use."""

from foretell.devices.bandwidth import attainable_bandwidth_gb_per_s
from foretell.devices.catalog import all_devices, cite, find_device
from foretell.devices.device import DTYPES, Device, MigProfile, SmLimits
from foretell.devices.device_file import device_of
from foretell.devices.slices import Hardware, Slice, effective, parse_slice

__all__ = [
    "DTYPES",
    "Device",
    "Hardware",
    "MigProfile",
    "Slice",
    "SmLimits",
    "all_devices",
    "attainable_bandwidth_gb_per_s",
    "cite",
    "device_of",
    "effective",
    "find_device",
    "parse_slice",
]

"""The devices room: how much memory bandwidth a few SMs can draw, an analytic model.

Little's law bounds what one SM can pull: bytes in flight over latency. With every resident thread waiting
for one 16-byte load and a DRAM round trip of about 0.7 µs, a Hopper SM draws at most 2048 × 16 B / 0.7 µs =
47 GB/s, so that an H200 needs about 100 of its 132 SMs to fill 4.8 TB/s and an RTX 4090 29 of its 128.
Both constants are assumptions, not measurements; a fitted predictor corrects what they miss.
A whole device always reaches its documented bandwidth, also where the law alone would say less.
"""

from foretell.devices.device import Device
from foretell.units import GIGA, seconds_from_us

BYTES_IN_FLIGHT_PER_THREAD = 16
DRAM_LATENCY_US = 0.7


def attainable_bandwidth_gb_per_s(device: Device, sms: int, share: float = 1.0) -> float:
    """Bandwidth that ``sms`` SMs reach when ``share`` of the device's memory slices is theirs.

    >>> from foretell.devices import find_device
    >>> h200 = find_device("h200")
    >>> round(attainable_bandwidth_gb_per_s(h200, 26)), attainable_bandwidth_gb_per_s(h200, 132)
    (1217, 4800.0)
    """
    whole = device.bandwidth_gb_per_s
    if sms >= device.sms or device.limits is None:
        return whole * share
    per_sm_bytes = device.limits.max_threads * BYTES_IN_FLIGHT_PER_THREAD
    per_sm_gb_per_s = per_sm_bytes / seconds_from_us(DRAM_LATENCY_US) / GIGA
    return min(whole * share, sms * max(per_sm_gb_per_s, whole / device.sms))

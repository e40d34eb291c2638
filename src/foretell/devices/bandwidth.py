"""Devices: an analytic model of the memory bandwidth that some of a GPU's SMs can use.

Idea: Little's law bounds the bandwidth of one SM by the bytes that it has in flight, divided by the latency of the
memory. If every resident thread waits for one 16-byte load, and a round trip to DRAM takes 0.7 µs, a Hopper SM with
2048 threads reaches at most 2048 × 16 B / 0.7 µs = 47 GB/s. An H200 then needs about 100 of its 132 SMs to reach
4.8 TB/s, and an RTX 4090 needs 29 of its 128. A slice gets the smaller of two bounds: this one, and its share of the
device's bandwidth.

Source: J. D. C. Little, "A Proof for the Queuing Formula L = λW", Operations Research 9(3), 1961.

Limits: 16 bytes per thread and 0.7 µs are assumptions, not measurements; a fitted predictor corrects what they miss. A
whole device always reaches its documented bandwidth, even where the law alone would give less. Caches and neighbours
that share the memory are not considered.
"""

from foretell.devices.device import Device
from foretell.units import GIGA, seconds_from_us

BYTES_IN_FLIGHT_PER_THREAD = 16
DRAM_LATENCY_US = 0.7


def attainable_bandwidth_gb_per_s(device: Device, sms: int, share: float = 1.0) -> float:
    """Return the bandwidth that ``sms`` SMs can reach if they own ``share`` of the device's memory bandwidth.

    >>> from foretell.devices import find_device
    >>> h200 = find_device("h200")
    >>> round(attainable_bandwidth_gb_per_s(h200, 26)), attainable_bandwidth_gb_per_s(h200, 132)
    (1217, 4800.0)
    """
    device_gb_per_s = device.bandwidth_gb_per_s
    if sms >= device.sms or device.limits is None:  # the full device, or a CPU
        return device_gb_per_s * share
    per_sm_bytes = device.limits.max_threads * BYTES_IN_FLIGHT_PER_THREAD
    per_sm_gb_per_s = per_sm_bytes / seconds_from_us(DRAM_LATENCY_US) / GIGA
    # at least a proportional share: all SMs together reach the documented bandwidth
    return min(device_gb_per_s * share, sms * max(per_sm_gb_per_s, device_gb_per_s / device.sms))

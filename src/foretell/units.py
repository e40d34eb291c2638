"""Units: conversions between units. Powers such as 1e3 and 2**20 are written here and nowhere else.

>>> mib(1048576), ms(0.0025), gflops_from_tflops(1.5)
(1.0, 2.5, 1500.0)
"""

# decimal prefixes are floats; binary ones are integers, because bytes are counted
KILO = 1e3
MEGA = 1e6
GIGA = 1e9
TERA = 1e12
KIB = 2**10
MIB = 2**20
GIB = 2**30


def mib(size_bytes: float) -> float:
    """Bytes to MiB."""
    return size_bytes / MIB


def bytes_from_mib(size_mib: float) -> int:
    """MiB to whole bytes."""
    return round(size_mib * MIB)


def gib(size_bytes: float) -> float:
    """Bytes to GiB."""
    return size_bytes / GIB


def bytes_from_gib(size_gib: float) -> int:
    """GiB to whole bytes."""
    return round(size_gib * GIB)


def ms(seconds: float) -> float:
    """Seconds to milliseconds."""
    return seconds * KILO


def seconds_from_ms(duration_ms: float) -> float:
    """Milliseconds to seconds."""
    return duration_ms / KILO


def us(seconds: float) -> float:
    """Seconds to microseconds."""
    return seconds * MEGA


def seconds_from_us(duration_us: float) -> float:
    """Microseconds to seconds."""
    return duration_us / MEGA


def per_second(count: float, duration_ms: float) -> float:
    """Items per second when ``count`` of them take ``duration_ms``."""
    return count / seconds_from_ms(duration_ms)


def flops_per_s(tflops: float) -> float:
    """TFLOP/s to FLOP/s."""
    return tflops * TERA


def bytes_per_s(gb_per_s: float) -> float:
    """GB/s (decimal, as in datasheets) to bytes/s."""
    return gb_per_s * GIGA


def gflops_from_tflops(tflops: float) -> float:
    """TFLOP/s to GFLOP/s."""
    return tflops * KILO


def engineering(value: float, unit: str = "") -> str:
    """Format a number with a decimal prefix.

    >>> engineering(4_089_184_256), engineering(25_557_032), engineering(512), engineering(0)
    ('4.09 G', '25.6 M', '512', '0')
    """
    # above 1000 T there is no larger prefix: more digits are shown instead
    for scale, prefix in ((TERA, "T"), (GIGA, "G"), (MEGA, "M"), (KILO, "k")):
        if abs(value) >= scale:
            return (
                f"{value / scale:.3g} {prefix}{unit}"
                if abs(value) < scale * KILO
                else f"{value / scale:.0f} {prefix}{unit}"
            )
    return f"{value:.3g}{' ' + unit if unit else ''}"


def size(size_bytes: float) -> str:
    """Format a size in binary units.

    >>> size(102_228_128), size(2**31), size(100)
    ('97.5 MiB', '2 GiB', '100 B')
    """
    for scale, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= scale:
            return (
                f"{size_bytes / scale:.4g} {unit}" if size_bytes / scale >= 1000 else f"{size_bytes / scale:.3g} {unit}"
            )
    return f"{size_bytes:.0f} B"

"""Devices: measured ceilings: the bandwidth and the rate of matrix products that devices really reach."""

from collections.abc import Mapping
from dataclasses import field
from functools import lru_cache

from foretell.errors import DataError
from foretell.frozen import dataclass
from foretell.toml_rows import Row, read_shipped, sources_of

FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
_NUMBERS = ("dram_gb_per_s", "cache_gb_per_s", "l1_gb_per_s", "reference_ms")
_FIELDS = ("name", "date", "source", *_NUMBERS, "tflops", "plain_tflops")


@dataclass(frozen=True, slots=True)
class Ceilings:
    """What one device reached, with date and source. A value that was not measured is None or absent."""

    device: str
    name: str
    date: str
    source: str
    dram_gb_per_s: float | None = None
    cache_gb_per_s: float | None = None
    tflops: Mapping[str, float] = field(default_factory=dict, hash=False)
    reference_ms: float | None = None  # of a CPU: a product of two 192 × 192 matrices on one core
    l1_gb_per_s: float | None = None
    plain_tflops: Mapping[str, float] = field(default_factory=dict, hash=False)  # of a GPU, without tensor cores

    def to_toml(self) -> str:
        """Write the entry of ceilings.toml.

        >>> print(Ceilings("h200", "NVIDIA H200", "2026-11-15", "a test", 4000.0, None, {"fp32": 50.0}).to_toml())
        [ceilings.h200]
        name = "NVIDIA H200"
        date = "2026-11-15"
        source = "a test"
        dram_gb_per_s = 4000.0
        tflops = { fp32 = 50.0 }
        <BLANKLINE>
        """
        lines = [f"[ceilings.{self.device}]"]
        lines += [f"{key} = {_quoted(getattr(self, key))}" for key in ("name", "date", "source")]
        # five digits: more would only be the noise of the measurement
        for key in _NUMBERS:
            if getattr(self, key) is not None:
                lines.append(f"{key} = {float(f'{getattr(self, key):.5g}')}")
        lines.append(f"tflops = {{ {_rates(self.tflops)} }}")
        lines += [f"plain_tflops = {{ {_rates(self.plain_tflops)} }}"] if self.plain_tflops else []
        return "\n".join([*lines, ""])


def _rates(tflops: Mapping[str, float]) -> str:
    return ", ".join(f"{name} = {float(f'{rate:.5g}')}" for name, rate in tflops.items())


def _quoted(text: str) -> str:
    """A basic string of TOML, without quotes, backslashes and control characters."""
    return '"' + "".join(c for c in text if c.isprintable() and c not in '"\\') + '"'


@lru_cache(maxsize=1)
def load_ceilings() -> Mapping[str, Ceilings]:
    """Read the shipped ceilings, by device id."""
    return parse_ceilings(read_shipped(__package__, "ceilings.toml"))


def parse_ceilings(file: Row) -> dict[str, Ceilings]:
    """Read the entries of a file, by device id."""
    sources = sources_of(file.allow("sources", "ceilings"))
    return {device: parse_row(device, row, sources) for device, row in file.rows("ceilings").items()}


def parse_row(device: str, row: Row, sources: Mapping[str, object]) -> Ceilings:
    """Read and check one entry: every value is above zero, and at least one is present."""
    row.allow(*_FIELDS)
    ceilings = Ceilings(
        device,
        row.text("name"),
        row.date(),
        row.source(sources),
        row.maybe_number("dram_gb_per_s", least=0, open_end=True),
        row.maybe_number("cache_gb_per_s", least=0, open_end=True),
        _tflops(row, "tflops"),
        row.maybe_number("reference_ms", least=0, open_end=True),
        row.maybe_number("l1_gb_per_s", least=0, open_end=True),
        _tflops(row, "plain_tflops"),
    )
    if ceilings.dram_gb_per_s is None and ceilings.cache_gb_per_s is None and not ceilings.tflops:
        raise DataError(f"{row.where}: nothing was measured; give dram_gb_per_s, cache_gb_per_s or tflops")
    return ceilings


def _tflops(row: Row, name: str) -> dict[str, float]:
    """The rates of one table by number format."""
    fields = row.fields.get(name, {})
    if not isinstance(fields, Mapping):
        raise DataError(f"{row.where}: {name} is not a table; write it as {{ fp32 = 50.0 }}")
    rates = Row(f"{row.where}, {name}", fields).allow(*FORMATS)
    tflops = {key: rates.maybe_number(key, least=0, open_end=True) for key in rates.fields}
    return {key: rate for key, rate in tflops.items() if rate is not None}

"""Serving: requests: arrivals at a rate, and Azure's traces."""

from pathlib import Path

import pytest

from foretell.errors import DataError, InputError
from foretell.scheduling.serving import fixed_lengths, poisson_arrivals, read_azure, trace_arrivals


def test_poisson_has_its_rate() -> None:
    """The mean distance is one over the rate; the same seed gives the same times."""
    arrivals = list(poisson_arrivals(fixed_lengths(3, 4, 20_000), 5.0, seed=1))
    assert arrivals[-1][0] == pytest.approx(4_000, rel=0.03)
    assert arrivals == list(poisson_arrivals(fixed_lengths(3, 4, 20_000), 5.0, seed=1))
    with pytest.raises(InputError, match="above 0"):
        poisson_arrivals(fixed_lengths(3, 4, 1), 0.0)


def test_azure_trace_is_read_and_repeated(tmp_path: Path) -> None:
    """Times begin at 0, in order; a short trace begins anew, stretched to a rate."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    stamps = ["2023-11-16 18:15:50.0000000", "2023-11-16 18:15:46.5000000"]
    columns = {"TIMESTAMP": stamps, "ContextTokens": [396, 374], "GeneratedTokens": [0, 44]}
    parquet.write_table(pa.table(columns), tmp_path / "trace.parquet")
    trace = read_azure(tmp_path / "trace.parquet")
    assert trace == [(0.0, 374, 44), (3.5, 396, 1)]
    many = list(trace_arrivals(trace, 1_001, requests_per_s=2.0))
    assert many[-1][0] == pytest.approx(500)
    assert [own[0] for own in many] == sorted(own[0] for own in many)
    parquet.write_table(pa.table(columns | {"TIMESTAMP": ["soon", "later"]}), tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="'soon' is no time"):
        read_azure(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match="no request"):
        list(trace_arrivals([], 1))

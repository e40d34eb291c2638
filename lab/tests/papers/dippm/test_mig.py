import pytest

from lab.papers.dippm.mig import dippm_mig


@pytest.mark.parametrize(
    ("memory_mib", "profile"),
    [
        (0, None), (0.1, "1g.5gb"), (4999.9, "1g.5gb"), (5000, None), (5000.1, "2g.10gb"), (10000, None),
        (10001, "3g.20gb"), (20000, None), (20001, "7g.40gb"), (39999, "7g.40gb"), (40000, None), (41000, None),
    ],
)  # fmt: skip
def test_dippm_has_open_ends(memory_mib: float, profile: str | None) -> None:
    assert dippm_mig(memory_mib) == profile


@pytest.mark.parametrize(
    ("memory_mib", "profile"),
    [(2865, "1g.5gb"), (5952, "2g.10gb"), (2873, "1g.5gb"), (6736, "2g.10gb"), (4771, "1g.5gb"), (26439, "7g.40gb")],
)
def test_dippm_gives_what_its_table_5_prints(memory_mib: float, profile: str) -> None:
    assert dippm_mig(memory_mib) == profile

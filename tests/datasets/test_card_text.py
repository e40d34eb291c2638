"""A card for people."""

from pathlib import Path

import pytest

from foretell.datasets.card import Card
from foretell.datasets.card_text import sections, to_markdown
from foretell.datasets.repeatability import Repeatability, Spread


@pytest.fixture
def card() -> Card:
    return Card(
        counts={"measurements": 1234},
        by_table={"measurements": 1300, "kernel_names": 7},
        ranges={"latency_ms": {"min": 0.01, "median": 2.0, "max": 95.0}},
        by={"family": {f"family|{i}": 30 - i for i in range(30)}, "device_name": {}},
        noise={"records": 5, "noisy_share": 0.25},
        repeatability=Repeatability(100, 100, 100, 26.0, 30.0, {"latency_ms": Spread(100, 0.004, 0.007, 0.02, 0.05)}),
        kernel_time={"share": 0.984, "share_tied_to_calls": 1.0},
        failures={"slices": {"oom": 3}},
        campaigns=[{"campaign_id": "c", "device": "d", "first": "1", "last": "2", "records": 5}],
        size_bytes=2_000_000,
        gaps=["no slices"],
    )


def test_long_tables_are_cut_and_empty_ones_left_out(card: Card) -> None:
    by_title = {section.title: section for section in sections(card)}
    assert by_title["workloads by family"].rows[-1] == ("6 more", "21")
    assert "workloads by device" not in by_title
    assert by_title["kernel time"].rows == [("a graph node", "98.40%"), ("an ATen call", "100.00%")]
    [repeats] = [s for title, s in by_title.items() if title.startswith("repeatability")]
    assert "100 on another day" in repeats.title
    assert repeats.rows[0][:4] == ("latency_ms", "100", "0.400%", "0.700%")


def test_counts_are_explained_and_tables_have_the_names_that_queries_use(card: Card) -> None:
    by_title = {section.title: section for section in sections(card)}
    assert by_title["records"].rows[0] == ("measurements", "1,234", "workloads with latency and memory")
    assert by_title["rows"].rows[-2][0] == "kernel_names"


def test_markdown_says_how_it_is_made_again(card: Card, tmp_path: Path) -> None:
    text = to_markdown(card, "foretell data card --markdown data/CARD.md")
    assert "`foretell data card --markdown data/CARD.md`" in text
    assert "| measurements | 1,234 |" in text
    assert "family\\|0" in text
    assert text.endswith("- no slices\n")
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.count("|") - line.count("\\|") >= 3 for line in tables)

"""One table read field by field."""

import datetime

import pytest

from foretell.errors import DataError
from foretell.toml_rows import Row, read_shipped, sources_of


@pytest.mark.parametrize("written", ["2026", "2026-08", "2026-08-15", "2024-02-29"])
def test_a_date_is_a_year_a_month_or_a_day(written):
    assert Row("here", {"date": written}).date() == written


@pytest.mark.parametrize(
    "written", ["26", "2026-8", "2026-00", "2025-02-29", "2026-08-15-01", 2026, "٢٠٢٦", datetime.datetime(2026, 8, 1)]
)
def test_what_is_no_date_is_refused(written):
    with pytest.raises(DataError, match=r"here: date is .*; it must be a date"):
        Row("here", {"date": written}).date()


def test_a_toml_date_is_one():
    assert Row("here", {"date": datetime.date(2026, 8, 1)}).maybe_date() == "2026-08-01"
    assert Row("here", {}).maybe_date() is None


def test_a_long_value_is_cut_in_the_message():
    with pytest.raises(DataError) as caught:
        Row("here", {"a": ["x" * 500], "b": b"y" * 500}).text("b")
    assert "…" in str(caught.value)
    assert len(str(caught.value)) < 140


def test_an_open_end_is_not_in_the_range():
    row = Row("here", {"zero": 0})
    assert row.maybe_number("zero", least=0) == 0
    with pytest.raises(DataError, match="above 0"):
        row.maybe_number("zero", least=0, open_end=True)
    assert row.maybe_number("absent", least=0) is None


def test_a_source_is_a_name_or_its_own_text():
    sources = {"list": "A price list"}
    assert Row("here", {"source": "list"}).source(sources) == "A price list"
    assert Row("here", {"source": "a letter"}).source(sources) == "a letter"


def test_shipped_files_name_themselves():
    file = read_shipped("foretell.advisors", "prices.toml")
    assert file.where == "prices.toml"
    assert all(isinstance(text, str) for text in sources_of(file).values())

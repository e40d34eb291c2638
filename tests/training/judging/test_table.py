import dataclasses
import json

import pytest

from foretell.errors import DataError
from foretell.training.judging import Comparison, accuracy, over_seeds
from foretell.training.judging.table import page

TABLE = Comparison(
    "Latency, by architecture",
    {
        "roofline": {"count": 40, "mape": 0.31, "kendall_tau": 0.9},
        "dippm": {"count": 40, "mape": over_seeds([0.06, 0.07]), "kendall_tau": 0.95, "coverage": 0.91},
        "trees": {"count": 40, "mape": over_seeds([0.04, 0.05]), "kendall_tau": None, "coverage": 0.88},
    },
)


def test_markdown_marks_the_best_and_shows_per_cent():
    lines = TABLE.to_markdown().splitlines()
    assert lines[2:] == [
        "| predictor | count | mape % | kendall_tau | coverage % |",
        "|---|---:|---:|---:|---:|",
        "| roofline | 40 | 31 | 0.9 | – |",
        "| dippm | 40 | 6.5 ± 0.71 | **0.95** | 91 |",
        "| trees | 40 | **4.5 ± 0.71** | – | 88 |",
    ]


def test_json_keeps_all_digits_and_names_what_is_absent():
    read = json.loads(TABLE.to_json())
    assert read["title"] == TABLE.title
    assert read["rows"]["roofline"] == {"count": 40, "mape": 0.31, "kendall_tau": 0.9, "coverage": None}
    assert read["rows"]["trees"]["mape"]["seeds"] == 2
    assert read["rows"]["trees"]["mape"]["mean"] == pytest.approx(0.045)


def test_the_best_may_be_several_and_one_predictor_alone_is_not_best():
    assert Comparison("", {"a": {"mape": 1.0}, "b": {"mape": 1.0}, "c": {"mape": 2.0}}).best("mape") == ("a", "b")
    assert Comparison("", {"a": {"mape": 1.0}}).best("mape") == ()
    assert TABLE.best("coverage") == ()


def test_accuracies_are_rows():
    row = dataclasses.asdict(accuracy([1.0, 2.0], [1.0, 2.2]))
    assert Comparison("", {"a": row}).metrics[:2] == ("count", "mape")
    assert "| a | 2 | 5 |" in Comparison("", {"a": row}).to_markdown()


def test_nothing_and_infinity_are_errors():
    with pytest.raises(DataError, match="no metric"):
        Comparison("x", {}).to_markdown()
    with pytest.raises(DataError, match="mape of 'a' is nan"):
        Comparison("x", {"a": {"mape": float("nan")}}).to_json()


def test_a_page_has_its_text_and_every_table():
    tables = [Comparison(title, {"a": {"mape": 0.5}}) for title in ("one", "two")]
    text = page("# Head\n\nWords.", tables).decode()
    assert text.startswith("# Head\n\nWords.\n\n### one\n")
    assert text.endswith(tables[1].to_markdown() + "\n")

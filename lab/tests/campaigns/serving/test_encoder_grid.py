"""The grid of encoders: nine of them, every setting once, in every precision."""

from foretell.profiling.workload import parse_spec
from lab.campaigns.serving.encoder_grid import DTYPES, encoders, settings


def test_the_nine_encoders_of_the_thesis_are_listed_once() -> None:
    specs = list(encoders())
    assert len(set(specs)) == len(specs) == 9
    assert {parse_spec(spec).name for spec in specs} == {"bert", "roberta", "xlm-roberta", "distilbert", "deberta-v2"}


def test_a_setting_is_measured_in_every_precision_and_is_never_too_large() -> None:
    rows = settings(next(encoders()))
    asked = {(row["batch_size"], row["tokens"]) for row in rows}
    assert len(rows) == len(DTYPES) * len(asked)
    assert max(batch * tokens for batch, tokens in asked) <= 32768
    assert 0 < sum(row["with_energy"] for row in rows) < len(rows) / 2

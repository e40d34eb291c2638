"""The parts of a serving engine: each is listed once, fits the memory, and is found again after a stop."""

import json

from lab.campaigns.serving_parts import PRECISIONS, key, parts


def test_parts_are_listed_once_and_in_every_precision() -> None:
    all_parts = list(parts())
    assert len({key(part) for part in all_parts}) == len(all_parts) > 4000
    assert {part["precision"] for part in all_parts if part["part"] == "product"} == set(PRECISIONS)
    assert {part["part"] for part in all_parts} == {"product", "decode", "prefill"}


def test_a_cache_of_keys_and_values_takes_no_more_than_a_quarter_of_the_limit() -> None:
    decoded = [part for part in parts() if part["part"] == "decode"]
    sizes = [4 * part["batch"] * part["context"] * part["kv_heads"] * part["head_size"] for part in decoded]
    assert max(sizes) <= 6 * 2**30


def test_a_result_names_its_part() -> None:
    part = next(parts())
    measured = json.loads(json.dumps({**part, "us": 3.2, "copies": 4}))
    assert key(measured) == key(part)
    assert key({**part, "error": "refused"}) == key(part)

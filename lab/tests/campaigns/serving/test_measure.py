"""The parts of a serving engine: each is listed once, fits the memory, and is found again after a stop."""

import json

from lab.campaigns.serving.grid import PRECISIONS, key, parts, step_products, steps
from lab.campaigns.serving.measure import _BUILDERS


def test_parts_are_listed_once_and_in_every_precision() -> None:
    all_parts = list(parts())
    assert len({key(part) for part in all_parts}) == len(all_parts) > 4000
    assert {part["precision"] for part in all_parts if part["part"] == "product"} == set(PRECISIONS)
    assert {part["part"] for part in all_parts} == set(_BUILDERS)


def test_steps_are_listed_once_and_have_models_whose_sizes_we_know() -> None:
    from foretell.predictors.llm.architecture import load_architecture

    all_steps = list(steps())
    assert len({key(step) for step in all_steps}) == len(all_steps) > 1000
    assert all(load_architecture(step["model"]).layers > 20 for step in all_steps[::100])
    assert {("prompt" in step, step["attention"]) for step in all_steps} == {
        (True, "sdpa"), (False, "sdpa"), (False, "paged"),
    }  # fmt: skip


def test_a_cache_of_keys_and_values_takes_no_more_than_a_quarter_of_the_limit() -> None:
    decoded = [part for part in parts() if part["part"] == "decode"]
    sizes = [4 * part["batch"] * part["context"] * part["kv_heads"] * part["head_size"] for part in decoded]
    assert max(sizes) <= 6 * 2**30


def test_a_result_names_its_part() -> None:
    part = next(parts())
    measured = json.loads(json.dumps({**part, "us": 3.2, "copies": 4}))
    assert key(measured) == key(part) == key({**part, "peak_mib": 1.0, "allocated_mib": 2.0})
    assert key({**part, "error": "refused"}) == key(part)


def test_the_products_of_the_steps_are_those_of_their_models() -> None:
    listed = list(step_products())
    assert len({key(part) for part in listed}) == len(listed)
    assert {"part": "product", "precision": "fp8", "m": 8, "n": 6144, "k": 4096} in listed  # Llama-3.1-8B's queries
    assert not [part for part in listed if part["precision"] == "int4-weights" and part["m"] > 16]

import random

import pytest

from foretell.profiling.workload import parse_spec
from foretell.profiling.zoos.hf_architectures import (
    CAUSAL,
    SIZE_NAMES,
    architecture,
    estimate,
    known_causal,
    known_encoders,
    max_sequence,
    random_causal,
    random_encoder,
)


@pytest.mark.parametrize(
    ("kind", "more", "longest"),
    [
        ("roberta", {"max_position_embeddings": 514}, 512),
        ("xlm-roberta", {"max_position_embeddings": 130}, 128),
        ("roberta", {}, 510),
        ("bert", {"max_position_embeddings": 514}, 514),
        ("electra", {}, 512),
        ("gpt2", {"n_positions": 8192}, 8192),
        ("gpt2", {}, 1024),
        ("opt", {}, 2048),
    ],
)
def test_roberta_takes_two_tokens_less_than_its_positions(kind, more, longest):
    assert max_sequence(architecture(kind, 64, 2, 2, 128, 1000, **more)) == longest


def test_estimates_match_a_published_model():
    spec = next(spec for spec in known_causal() if spec.arguments.get("intermediate_size") == 14336)
    parameters, cache = estimate(spec)
    assert parameters == pytest.approx(8.03e9, rel=0.01)  # Llama 3 8B
    assert cache == 2 * 2 * 32 * 8 * 128  # keys and values, two bytes, layers, heads, size


def test_every_architecture_survives_being_written_and_heads_divide_its_width():
    draw = random.Random(7)
    drawn = [make(draw) for make in (random_encoder, random_causal) for _ in range(50)]
    for spec in [*known_encoders(), *known_causal(), *drawn]:
        assert parse_spec(str(spec)) == spec
        width, _, heads = (spec.arguments[name] for name in SIZE_NAMES[spec.name][:3])
        assert width % heads == 0
        assert heads % spec.arguments.get("num_key_value_heads", 1) == 0
    assert {spec.name for spec in known_causal()} == set(CAUSAL)


def test_mpnet_counts_its_positions_as_roberta_does():
    assert max_sequence(parse_spec("hf:mpnet?hidden_size=64")) == 510

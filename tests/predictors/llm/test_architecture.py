"""Tests of language models' architectures: weights, cache and what a configuration may say."""

import json

import pytest

from foretell.errors import ModelError
from foretell.predictors.llm.architecture import (
    Experts,
    GroupedAttention,
    LatentAttention,
    LinearAttention,
    cache_elements,
    known_models,
    load_architecture,
    read_architecture,
)

# billions of parameters that the authors publish, and those active for a token where they publish that
PUBLISHED = {
    "meta-llama/Llama-2-7b-hf": (6.74, None),
    "meta-llama/Llama-2-13b-hf": (13.0, None),
    "meta-llama/Llama-2-70b-hf": (69.0, None),
    "meta-llama/Meta-Llama-3-8B": (8.03, None),
    "meta-llama/Meta-Llama-3-70B": (70.6, None),
    "meta-llama/Llama-3.1-8B": (8.03, None),
    "meta-llama/Llama-3.1-70B": (70.6, None),
    "meta-llama/Llama-3.1-405B": (405.9, None),
    "meta-llama/Llama-3.2-1B": (1.24, None),
    "meta-llama/Llama-3.2-3B": (3.21, None),
    "mistralai/Mistral-7B-v0.1": (7.24, None),
    "mistralai/Mistral-7B-Instruct-v0.3": (7.25, None),
    "mistralai/Mistral-Small-24B-Instruct-2501": (23.6, None),
    "mistralai/Mixtral-8x7B-v0.1": (46.7, 12.9),
    "mistralai/Mixtral-8x22B-v0.1": (141.0, 39.0),
    "Qwen/Qwen2.5-0.5B": (0.49, None),
    "Qwen/Qwen2.5-7B": (7.61, None),
    "Qwen/Qwen2.5-14B": (14.7, None),
    "Qwen/Qwen2.5-32B": (32.5, None),
    "Qwen/Qwen2.5-72B": (72.7, None),
    "Qwen/Qwen3-0.6B": (0.6, None),
    "Qwen/Qwen3-8B": (8.2, None),
    "Qwen/Qwen3-14B": (14.8, None),
    "Qwen/Qwen3-32B": (32.8, None),
    "Qwen/Qwen3-30B-A3B": (30.5, 3.3),
    "Qwen/Qwen3-235B-A22B": (235.0, 22.0),
    "Qwen/Qwen3-235B-A22B-FP8": (235.0, 22.0),
    "Qwen/Qwen3.5-397B-A17B": (397.0, 17.0),
    "google/gemma-2-9b": (9.24, None),
    "google/gemma-2-27b": (27.2, None),
    "google/gemma-3-27b-it": (27.0, None),
    "microsoft/Phi-3-mini-4k-instruct": (3.82, None),
    "microsoft/phi-4": (14.7, None),
    "deepseek-ai/DeepSeek-V2-Lite": (15.7, 2.4),
    "deepseek-ai/DeepSeek-V2": (236.0, 21.0),
    "deepseek-ai/DeepSeek-V3": (671.0, 37.0),
    "moonshotai/Kimi-K2-Instruct": (1026.0, 32.0),
    "moonshotai/Kimi-K2.5": (1026.0, 32.0),
    "zai-org/GLM-5": (744.0, 40.0),
    "openai/gpt-oss-20b": (20.9, 3.6),
    "openai/gpt-oss-120b": (116.8, 5.1),
    "MiniMaxAI/MiniMax-M2.5": (229.0, 10.0),
}


@pytest.mark.parametrize("name", known_models())
def test_a_shipped_model_has_its_published_parameters(name: str) -> None:
    total, active = PUBLISHED[name]
    model = load_architecture(name)
    assert model.parameters == pytest.approx(total * 1e9, rel=0.02)
    if active is not None:  # some authors count the embedding table, some do not
        assert model.active_parameters == pytest.approx(active * 1e9, rel=0.09)
    assert 0 < model.active_parameters <= model.parameters


def test_a_cache_holds_grouped_heads_or_a_latent() -> None:
    llama = load_architecture("meta-llama/Llama-3.1-8B")
    assert sum(group.count * cache_elements(group.attention) for group in llama.groups) == 32 * 2 * 8 * 128
    deepseek = load_architecture("deepseek-ai/DeepSeek-R1")
    assert sum(group.count * cache_elements(group.attention) for group in deepseek.groups) == 61 * (512 + 64)
    assert all(isinstance(group.attention, LatentAttention) for group in deepseek.groups)


def test_layers_alternate_as_the_configuration_says() -> None:
    gemma = load_architecture("google/gemma-3-27b-it")
    windows = {
        group.attention.window: group.count for group in gemma.groups if isinstance(group.attention, GroupedAttention)
    }
    assert windows == {1024: 52, 0: 10}
    hybrid = load_architecture("Qwen/Qwen3.5-397B-A17B")
    assert {type(group.attention): group.count for group in hybrid.groups} == {
        LinearAttention: 45,
        GroupedAttention: 15,
    }
    deepseek = load_architecture("deepseek-ai/DeepSeek-V3")
    assert [group.count for group in deepseek.groups if isinstance(group.feed_forward, Experts)] == [58]


def test_a_config_file_is_read_with_its_quantisation(tmp_path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100, "max_position_embeddings": 512,
        "quantization_config": {"quant_method": "awq", "bits": 4},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = load_architecture(str(tmp_path))
    assert model.stored == "int4_weights"
    assert model.parameters == 2 * 64 * 100 + 2 * (64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 128)


@pytest.mark.parametrize(
    ("config", "word"),
    [
        ({"model_type": "t5", "d_model": 8}, "encoder–decoder"),
        ({"model_type": "llama"}, "hidden_size"),
        ({"model_type": "llama", "hidden_size": -4}, "above 0"),
        ({"model_type": "llama", "hidden_size": "big"}, "above 0"),
        (
            {
                "model_type": "mixtral",
                "hidden_size": 64,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "vocab_size": 9,
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "first_k_dense_replace": "two",
            },
            "does not describe",
        ),
    ],
)
def test_what_is_no_decoder_is_refused(config: dict[str, object], word: str) -> None:
    with pytest.raises(ModelError, match=word):
        read_architecture("mine", config)


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(ModelError, match=r"Did you mean 'Llama-3\.1-8B'"):
        load_architecture("lama-3.1-8b")

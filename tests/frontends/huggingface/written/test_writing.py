"""Graphs that are written from a configuration are those that a trace finds, node by node."""

import hashlib
import json
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from foretell.frontends.huggingface.configs import HfConfig
from foretell.frontends.huggingface.written import writing
from foretell.frontends.huggingface.written.writing import FAMILIES, TRANSFORMERS, plan
from foretell.graph import Graph
from foretell.graph.ir import serde

ROOT = Path(__file__).parents[4]
TABLE = Path(__file__).with_name("graphs.json")
BATCH = 11
MODES = ("inference", "training", "prefill", "decode")

# what a random configuration is drawn from; "_heads" and "_head" are a number of heads and the width of each
_SHARED: dict[str, list[Any]] = {
    "vocab_size": [64, 99], "num_hidden_layers": [1, 2], "tie_word_embeddings": [True, False], "_heads": [2, 4, 8],
    "_head": [4, 8, 12], "max_position_embeddings": [64, 512],
}  # fmt: skip
_ROTARY: dict[str, list[Any]] = _SHARED | {
    "intermediate_size": [24, 48], "hidden_act": ["silu", "gelu", "gelu_new", "relu"], "attention_dropout": [0.0, 0.1],
    "num_key_value_heads": [1, 2, "_heads"], "rope_theta": [10000.0, 500000],
    "rope_scaling": [
        None, {"type": "linear", "factor": 2.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 32},
        {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ],
}  # fmt: skip
_MIXTURE = {"num_experts": [4, 6], "num_experts_per_tok": [1, 2, 3], "moe_intermediate_size": [8, 16]}
_QWEN_MIXTURE = _MIXTURE | {
    "norm_topk_prob": [True, False], "decoder_sparse_step": [1, 2], "mlp_only_layers": [[], [0]],
}  # fmt: skip
_LATENT = _ROTARY | {
    "num_key_value_heads": ["_heads"], "kv_lora_rank": [12, 20], "q_lora_rank": [None, 16], "qk_rope_head_dim": [4, 6],
    "qk_nope_head_dim": [8, 10], "v_head_dim": [8, 12], "attention_bias": [True, False], "n_routed_experts": [8],
    "num_experts_per_tok": [1, 2, 3], "moe_intermediate_size": [8, 16], "n_shared_experts": [1, 2], "n_group": [2, 4],
    "topk_group": [1, 2], "first_k_dense_replace": [0, 1],
}  # fmt: skip
_BERT = {
    "vocab_size": [64, 99], "num_hidden_layers": [1, 2], "_heads": [2, 4], "_head": [4, 8],
    "intermediate_size": [24, 48], "hidden_act": ["gelu", "relu", "gelu_new"], "hidden_dropout_prob": [0.0, 0.1],
    "attention_probs_dropout_prob": [0.0, 0.2], "max_position_embeddings": [16, 64], "type_vocab_size": [1, 2],
}  # fmt: skip
_QWEN = {key: choices for key, choices in _ROTARY.items() if key != "num_key_value_heads"} | {
    "num_key_value_heads": [1, 2]
}
SPACES: dict[str, dict[str, list[Any]]] = {
    "llama": _ROTARY | {"attention_bias": [True, False], "mlp_bias": [True, False], "head_dim": [None, 6]},
    "mistral": _ROTARY | {"sliding_window": [None, 512], "head_dim": [None, 6]},
    "qwen2": _QWEN | {"sliding_window": [4096], "use_sliding_window": [False], "head_dim": ["_absent", 6]},
    "qwen3": _QWEN | {"attention_bias": [True, False], "head_dim": [6, 8]},
    "gemma": _QWEN | {"attention_bias": [True, False], "head_dim": [8, 264], "pad_token_id": [0, None]},
    "phi3": {key: choices for key, choices in _QWEN.items() if key != "rope_scaling"}
    | {
        "sliding_window": [None, 512], "resid_pdrop": [0.0, 0.1], "partial_rotary_factor": [0.5, 1.0],
        "pad_token_id": [0, None],
    },
    "mixtral": _QWEN
    | {
        "num_local_experts": [4, 6], "num_experts_per_tok": [1, 2, 3], "sliding_window": [None, 512], "head_dim": [6],
    },
    "qwen2_moe": _QWEN | _QWEN_MIXTURE
    | {"shared_expert_intermediate_size": [8, 16], "qkv_bias": [True, False], "head_dim": ["_absent", 6]},
    "qwen3_moe": _QWEN | _QWEN_MIXTURE | {"attention_bias": [True, False], "head_dim": [6, 8]},
    "deepseek_v2": _LATENT | {"mlp_bias": [True, False], "topk_method": ["greedy", "group_limited_greedy"]},
    "deepseek_v3": _LATENT
    | {
        "rope_interleave": [True, False], "norm_topk_prob": [True, False], "quantization_config": [{"fmt": "e4m3"}],
    },
    "gpt2": {
        "vocab_size": [64, 99], "n_layer": [1, 2], "_heads": [2, 4], "_head": [4, 8], "n_inner": [None, 24],
        "n_positions": [64, 128], "activation_function": ["gelu_new", "gelu", "relu"], "resid_pdrop": [0.0, 0.1],
        "embd_pdrop": [0.0, 0.1], "attn_pdrop": [0.0, 0.1], "tie_word_embeddings": [True, False],
    },
    "gpt_neox": _SHARED
    | {
        "intermediate_size": [24, 48], "hidden_act": ["gelu", "gelu_new"], "use_parallel_residual": [True, False],
        "rotary_pct": [0.5, 1.0], "attention_bias": [True, False], "hidden_dropout": [0.0, 0.1],
        "attention_dropout": [0.0, 0.1],
    },
    "phi": _SHARED
    | {
        "intermediate_size": [24, 48], "hidden_act": ["gelu_new", "gelu"], "num_key_value_heads": [None, 2],
        "partial_rotary_factor": [0.5, 1.0], "qk_layernorm": [True, False], "resid_pdrop": [0.0, 0.1],
        "embd_pdrop": [0.0, 0.1], "attention_dropout": [0.0, 0.1],
    },
    "opt": _SHARED
    | {
        "ffn_dim": [24, 48], "do_layer_norm_before": [True, False], "word_embed_proj_dim": [None, 10],
        "dropout": [0.0, 0.1], "attention_dropout": [0.0, 0.1], "activation_function": ["relu", "gelu"],
        "enable_bias": [True, False],
    },
    "falcon": _SHARED
    | {
        "new_decoder_architecture": [False, True], "multi_query": [True, False], "bias": [True, False],
        "ffn_hidden_size": [None, 24], "hidden_dropout": [0.0, 0.1],
    },
    "bert": _BERT | {"architectures": [["BertModel"], ["BertForMaskedLM"]]},
    "xlm-roberta": _BERT,
    "roberta": _BERT | {"architectures": [["RobertaModel"], ["RobertaForMaskedLM"]]},
    "distilbert": {
        "vocab_size": [64, 99], "n_layers": [1, 2], "_heads": [2, 4], "_head": [4, 8], "hidden_dim": [24, 48],
        "dropout": [0.0, 0.1], "attention_dropout": [0.0, 0.1], "activation": ["gelu", "relu"],
        "max_position_embeddings": [16, 64], "architectures": [["DistilBertModel"], ["DistilBertForMaskedLM"]],
    },
    "t5": {
        "vocab_size": [64, 99], "num_layers": [1, 2], "num_decoder_layers": [None, 1], "_heads": [2, 4],
        "_head": [4, 8], "d_kv": [4, 8], "d_ff": [24, 48], "relative_attention_num_buckets": [8, 32],
        "dropout_rate": [0.0, 0.1], "feed_forward_proj": ["relu", "gated-gelu", "gated-silu"],
        "tie_word_embeddings": [True, False],
    },
}  # fmt: skip
_WIDTHS = {"t5": ("d_model", "num_heads"), "gpt2": ("n_embd", "n_head"), "distilbert": ("dim", "n_heads")}


def configuration(family: str, seed: int) -> dict[str, Any]:
    """A random configuration of a family; the same for the same seed."""
    draw = random.Random(f"{family} {seed}")
    values = {key: draw.choice(choices) for key, choices in SPACES[family].items()}
    heads, head = values.pop("_heads"), values.pop("_head")
    width, count = _WIDTHS.get(family, ("hidden_size", "num_attention_heads"))
    values = {key: heads if value == "_heads" else value for key, value in values.items() if value != "_absent"}
    return {"model_type": family, width: heads * head, count: heads, **values}


def modes_of(family: str) -> tuple[str, ...]:
    return MODES if FAMILIES[family].generates else MODES[:2]


def write(values: dict[str, Any], mode: str, tokens: int = 8) -> Graph:
    sizes = (None, tokens) if mode == "decode" else (tokens, None)
    written = plan(HfConfig("a", values, "a"), mode, *sizes)
    assert written is not None, f"{values} is not written"
    return written.write(BATCH)


def trace(values: dict[str, Any], mode: str, tokens: int = 8) -> Graph:
    pytest.importorskip("transformers")
    from foretell.frontends.huggingface.building import build_program
    from foretell.frontends.torch.export import graph_from_program

    sizes = {"context": tokens} if mode == "decode" else {"sequence": tokens}
    program = build_program(HfConfig("a", values, "a"), mode=mode, batch_size=BATCH, **sizes)
    return graph_from_program(program, batch_size=BATCH, training=mode == "training")


def assert_equal(written: Graph, traced: Graph) -> None:
    """The hash is what is promised; names, layers, batch axes, lifetimes and fixed dtypes decide predictions, too."""
    assert written.hash == traced.hash
    assert written.nodes == traced.nodes
    assert list(written.tensors.items()) == list(traced.tensors.items())
    assert written.held == traced.held
    assert written == traced


def digest(graph: Graph) -> list[str]:
    return [graph.hash, hashlib.sha256(serde.to_document(graph).encode()).hexdigest()[:16]]


def test_every_family_has_a_space() -> None:
    assert SPACES.keys() == FAMILIES.keys()


@pytest.mark.parametrize("family", FAMILIES)
def test_written_graphs_are_those_that_were_compared_to_traces(family: str) -> None:
    table = json.loads(TABLE.read_text())[family]
    for mode in modes_of(family):
        assert digest(write(configuration(family, 0), mode)) == table[mode], mode


@pytest.mark.parametrize(("family", "mode"), [("llama", "prefill"), ("bert", "training")])
def test_a_written_graph_is_the_traced_one(family: str, mode: str) -> None:
    values = configuration(family, 0)
    assert_equal(write(values, mode), trace(values, mode))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(10))
def test_graphs_of_random_configurations_are_the_traced_ones(family: str, seed: int) -> None:
    """Of the first configuration, which the default tests know by its digests, all modes; of the others every second.

    One token and a length that no other test has go with the last ones.
    """
    values = configuration(family, seed)
    modes = modes_of(family) if seed == 0 else modes_of(family)[seed % 2 :: 2]
    for mode in modes:
        tokens = {8: 1, 9: 13}.get(seed, 8)
        written = write(values, mode, tokens)
        assert_equal(written, trace(values, mode, tokens))
        if seed == 0:
            assert digest(written) == json.loads(TABLE.read_text())[family][mode]


LLAMA = {"model_type": "llama", "hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "vocab_size": 99}


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "unheard_of"},
        {"model_type": ["llama"]},
        {"architectures": ["LlamaModel"]},
        {"architectures": "LlamaForCausalLM"},
        {"auto_map": {"AutoModel": "m.M"}},
        {"attn_implementation": "eager"},
        {"_attn_implementation": "flash_attention_2"},
        {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]}},
        {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "linear", "factor": "2"}},
        {"rope_scaling": [2.0]},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        {"rope_theta": "10000"},
        {"a_key_of_tomorrow": 1},
        {"hidden_size": 30},
        {"hidden_size": "32"},
        {"hidden_size": True},
        {"num_key_value_heads": 3},
        {"head_dim": 7},
        {"hidden_act": "a_new_one"},
        {"attention_bias": 1},
        {"attention_dropout": None},
        {"attention_dropout": 1.5},
        {"pad_token_id": 99},
        {"tie_word_embeddings": None},
        {"per_layer_config": {}},
        {"quantization_config": "fp8"},
        {"rms_norm_eps": "small"},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_not_known_is_traced(change: dict[str, Any]) -> None:
    assert plan(HfConfig("a", LLAMA, "a"), "prefill", 8, None) is not None
    assert plan(HfConfig("a", LLAMA | change, "a"), "prefill", 8, None) is None


@pytest.mark.parametrize(
    ("values", "mode", "tokens"),
    [
        (LLAMA | {"model_type": "mistral", "sliding_window": 8}, "prefill", 8),
        (LLAMA | {"model_type": "mistral", "sliding_window": 8}, "decode", 7),
        (LLAMA | {"model_type": "qwen2", "use_sliding_window": True}, "prefill", 8),
        ({"model_type": "gpt2", "n_positions": 16}, "prefill", 17),
        ({"model_type": "gpt2", "n_positions": 16}, "decode", 16),
        ({"model_type": "bert"}, "decode", 8),
        (LLAMA | {"model_type": "qwen2", "head_dim": None}, "prefill", 8),
        (LLAMA | {"model_type": "mixtral", "rope_scaling": {"type": "linear", "factor": 2.0}}, "prefill", 8),
        ({"model_type": "roberta", "max_position_embeddings": 10}, "inference", 9),
        (LLAMA, "prefill", 0),
    ],
)  # fmt: skip
def test_sizes_that_change_the_program_are_traced(values: dict[str, Any], mode: str, tokens: int) -> None:
    lengths = (None, tokens) if mode == "decode" else (tokens, None)
    assert plan(HfConfig("a", values, "a"), mode, *lengths) is None


def test_another_version_of_transformers_is_traced_and_none_at_all_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing.metadata, "version", lambda _: "4.0.0")
    assert plan(HfConfig("a", LLAMA, "a"), "prefill", 8, None) is None

    def missing(_: str) -> str:
        raise writing.metadata.PackageNotFoundError

    monkeypatch.setattr(writing.metadata, "version", missing)
    assert plan(HfConfig("a", LLAMA, "a"), "prefill", 8, None) is not None


def test_models_are_written_as_in_the_version_that_is_pinned() -> None:
    assert re.search(rf"^transformers=={re.escape(TRANSFORMERS)}$", (ROOT / "constraints.txt").read_text(), re.M)


def test_a_quantised_model_says_that_its_weights_are_not() -> None:
    graph = write(LLAMA | {"quantization_config": {"quant_method": "fp8"}}, "prefill")
    assert graph.warnings == ("quantization_config is ignored: weights count as fp32",)


def test_reading_a_configuration_imports_neither_torch_nor_transformers(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    program = (
        "import sys, foretell; foretell.load_graph(sys.argv[1], mode='decode');"
        "print([name for name in ('torch', 'transformers', 'huggingface_hub') if name in sys.modules])"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip() == "[]"

"""Random configurations of small transformers models: usual values, and odd ones."""

from random import Random
from typing import Any

TYPES = (
    "bert", "gpt2", "llama", "t5", "vit", "opt", "mistral", "roberta", "distilbert", "bart", "mamba", "whisper",
    "clip", "mixtral", "electra", "albert", "gpt_neox", "phi", "qwen2", "deit", "nothing", None, 7,
)  # fmt: skip
KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "n_embd", "n_layer",
    "n_head", "d_model", "num_layers", "num_heads", "d_ff", "d_kv", "max_position_embeddings", "n_positions",
    "image_size", "patch_size", "num_channels", "num_key_value_heads", "num_local_experts", "encoder_layers",
    "decoder_layers", "state_size", "ffn_dim", "dim", "n_layers", "n_heads",
)  # fmt: skip
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 99,
         "n_embd": 32, "n_layer": 1, "n_head": 4, "d_model": 32, "num_layers": 1, "num_heads": 4, "d_ff": 64, "d_kv": 8,
         "max_position_embeddings": 128, "n_positions": 128, "image_size": 32, "patch_size": 8, "encoder_layers": 1,
         "decoder_layers": 1, "ffn_dim": 64, "dim": 32, "n_layers": 1, "n_heads": 4, "hidden_dim": 64,
         "num_key_value_heads": 4, "num_local_experts": 2, "encoder_attention_heads": 4,
         "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}  # fmt: skip
ODD = (
    None,
    True,
    -1,
    0,
    1,
    3,
    7,
    2.5,
    1e300,
    2048,
    2**20,
    2**28,
    2**31,
    2**63,
    "",
    "32",
    [],
    [1, 2],
    {},
    {"a": 1},
    "\ud800",
)
MORE = ("hidden_act", "layer_types", "rope_scaling", "architectures", "auto_map", "quantization_config", "dtype",
        "text_config", "vision_config", "is_encoder_decoder", "tie_word_embeddings", "sliding_window", "num_labels",
        "pad_token_id", "conv_dim", "attn_implementation", "id2label", "num_mel_bins", "head_dim")  # fmt: skip


def make_config(random: Random) -> dict[str, Any]:
    """A configuration with a few wrong values."""
    values: dict[str, Any] = {"model_type": random.choice(TYPES), **SMALL}
    for _ in range(random.choice((0, 1, 1, 2, 3, 6))):
        key = random.choice(KEYS) if random.random() < 0.7 else random.choice(MORE)
        if random.random() < 0.2:
            values.pop(key, None)
        else:
            values[key] = random.choice(ODD)
    return values

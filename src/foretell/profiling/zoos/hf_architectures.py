"""Profiling: transformers as arguments of their Hugging Face configurations, published and random ones."""

import random
from collections.abc import Iterator, Mapping
from types import MappingProxyType

from foretell.profiling.workload import Spec, Value

Arguments = dict[str, Value]

# The names of the same five sizes in different configurations.
_BERT = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size")
SIZE_NAMES: Mapping[str, tuple[str, str, str, str, str]] = MappingProxyType(
    {
        "bert": _BERT,
        "roberta": _BERT,
        "xlm-roberta": _BERT,
        "electra": _BERT,
        "albert": _BERT,
        "mpnet": _BERT,
        "deberta-v2": _BERT,
        "llama": _BERT,
        "mistral": _BERT,
        "qwen2": _BERT,
        "qwen3": _BERT,
        "gemma": _BERT,
        "phi": _BERT,
        "gpt_neox": _BERT,
        "distilbert": ("dim", "n_layers", "n_heads", "hidden_dim", "vocab_size"),
        "gpt2": ("n_embd", "n_layer", "n_head", "n_inner", "vocab_size"),
        "opt": ("hidden_size", "num_hidden_layers", "num_attention_heads", "ffn_dim", "vocab_size"),
        "t5": ("d_model", "num_layers", "num_heads", "d_ff", "vocab_size"),
        "whisper": ("d_model", "encoder_layers", "encoder_attention_heads", "encoder_ffn_dim", "vocab_size"),
        "vit": _BERT,
        "dinov2": _BERT,
        "clip_vision_model": _BERT,
        "wav2vec2": _BERT,
    }
)
CAUSAL = ("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "gpt_neox", "gpt2", "opt")
_NO_VOCABULARY = ("vit", "dinov2", "clip_vision_model", "wav2vec2", "whisper")
_DEBERTA_V3: Arguments = {
    "relative_attention": True,
    "position_buckets": 256,
    "norm_rel_ebd": "layer_norm",
    "share_att_key": True,
    "pos_att_type": "p2c|c2p",
    "position_biased_input": False,
    "max_relative_positions": -1,
    "type_vocab_size": 0,
}


def architecture(kind: str, hidden: int, layers: int, heads: int, inner: int, vocab: int = 0, **more: Value) -> Spec:
    """The spec of one architecture from its sizes."""
    names = SIZE_NAMES[kind]
    sizes: Arguments = dict(zip(names[:4], (hidden, layers, heads, inner)))
    if kind not in _NO_VOCABULARY:
        sizes[names[4]] = vocab
    if kind == "deberta-v2":
        sizes |= _DEBERTA_V3
    if kind == "opt":
        more.setdefault("word_embed_proj_dim", hidden)
    return Spec("hf", kind, sizes | more)


def known_encoders() -> Iterator[Spec]:
    """Published encoders, and two decoders run as one full forward pass."""
    for hidden, layers in ((128, 2), (256, 4), (512, 4), (512, 8), (768, 12), (1024, 24)):
        yield architecture("bert", hidden, layers, hidden // 64, hidden * 4, 30522)
    for kind, vocab, positions in (("roberta", 50265, 514), ("xlm-roberta", 250002, 514), ("electra", 30522, 512)):
        for hidden, layers in ((768, 12), (1024, 24)):
            yield architecture(kind, hidden, layers, hidden // 64, hidden * 4, vocab, max_position_embeddings=positions)
    yield architecture("distilbert", 768, 6, 12, 3072, 30522)
    yield architecture("albert", 768, 12, 12, 3072, 30000, embedding_size=128)
    yield architecture("albert", 2048, 24, 16, 8192, 30000, embedding_size=128)
    yield architecture("mpnet", 768, 12, 12, 3072, 30527)
    for hidden, layers in ((384, 12), (768, 6), (768, 12), (1024, 24)):
        yield architecture("deberta-v2", hidden, layers, hidden // 64, hidden * 4, 128100)
    for hidden, layers, heads in ((768, 12, 12), (1024, 24, 16), (1280, 36, 20)):
        yield architecture("gpt2", hidden, layers, heads, hidden * 4, 50257)
    yield architecture("opt", 768, 12, 12, 3072, 50272)
    for hidden, layers, heads, inner in ((512, 6, 8, 2048), (768, 12, 12, 3072), (1024, 24, 16, 4096)):
        yield architecture("t5", hidden, layers, heads, inner, 32128, d_kv=64)
    yield architecture("t5", 768, 12, 12, 2048, 32128, d_kv=64, feed_forward_proj="gated-gelu")
    for hidden, layers, patch in ((192, 12, 16), (384, 12, 16), (768, 12, 32), (768, 12, 16), (1024, 24, 14)):
        for kind in ("vit", "clip_vision_model"):
            yield architecture(kind, hidden, layers, hidden // 64, hidden * 4, patch_size=patch, image_size=224)
    for hidden, layers in ((384, 12), (768, 12), (1024, 24)):
        # its configuration has a ratio where the others have a width
        spec = architecture("dinov2", hidden, layers, hidden // 64, 0, patch_size=14, image_size=224, mlp_ratio=4)
        yield Spec("hf", "dinov2", {key: value for key, value in spec.arguments.items() if key != "intermediate_size"})
    for hidden, layers, bins in ((384, 4, 80), (512, 6, 80), (768, 12, 80), (1024, 24, 80), (1280, 32, 128)):
        yield architecture("whisper", hidden, layers, hidden // 64, hidden * 4, num_mel_bins=bins)
    for hidden, layers in ((768, 12), (1024, 24)):
        yield architecture("wav2vec2", hidden, layers, hidden // 64, hidden * 4)


def random_encoder(draw: random.Random) -> Spec:
    """An encoder that no zoo has."""
    kind = draw.choice(("bert", "roberta", "distilbert", "t5", "deberta-v2", "vit", "clip_vision_model", "gpt2"))
    head = draw.choice((32, 48, 64, 64, 64, 80, 96, 128))
    heads = draw.choice((2, 3, 4, 6, 8, 10, 12, 16, 20))
    hidden, layers = head * heads, draw.randint(2, 20)
    inner = int(hidden * draw.choice((1, 2, 3, 4, 4, 4, 6)))
    if kind in ("vit", "clip_vision_model"):
        patch = draw.choice((8, 14, 16, 32))
        size = patch * draw.randint(6, 16 if patch > 8 else 20)
        return architecture(kind, hidden, layers, heads, inner, patch_size=patch, image_size=size)
    more: Arguments = {"d_kv": head} if kind == "t5" else {}
    return architecture(kind, hidden, layers, heads, inner, draw.choice((1000, 8000, 30522, 50257, 128000)), **more)


def _llama_like(kind: str, hidden: int, layers: int, heads: int, kv: int, inner: int, vocab: int, tied: bool) -> Spec:
    more: Arguments = {"num_key_value_heads": kv, "tie_word_embeddings": tied, "max_position_embeddings": 32768}
    if kind == "mistral":
        more["sliding_window"] = "none"
    if kind in ("qwen3", "gemma"):
        more["head_dim"] = 256 if kind == "gemma" else 128
    return architecture(kind, hidden, layers, heads, inner, vocab, **more)


def known_causal() -> Iterator[Spec]:
    """Published language models from 60 million to 8 billion parameters."""
    for kind, *sizes in (
        ("llama", 576, 30, 9, 3, 1536, 49152, True),
        ("llama", 2048, 22, 32, 4, 5632, 32000, False),
        ("llama", 2048, 16, 32, 8, 8192, 128256, True),
        ("llama", 3072, 28, 24, 8, 8192, 128256, True),
        ("llama", 2048, 24, 32, 32, 8192, 49152, True),
        ("llama", 4096, 32, 32, 32, 11008, 32000, False),
        ("llama", 4096, 32, 32, 8, 14336, 128256, False),
        ("mistral", 4096, 32, 32, 8, 14336, 32000, False),
        ("qwen2", 896, 24, 14, 2, 4864, 151936, True),
        ("qwen2", 1536, 28, 12, 2, 8960, 151936, True),
        ("qwen2", 2048, 36, 16, 2, 11008, 151936, True),
        ("qwen2", 3584, 28, 28, 4, 18944, 152064, False),
        ("qwen3", 1024, 28, 16, 8, 3072, 151936, True),
        ("qwen3", 2560, 36, 32, 8, 9728, 151936, True),
        ("gemma", 2048, 18, 8, 1, 16384, 256000, True),
    ):
        yield _llama_like(str(kind), *sizes)  # type: ignore[arg-type]
    for hidden, layers, heads in ((768, 12, 12), (1024, 24, 16), (1280, 36, 20), (1600, 48, 25)):
        yield architecture("gpt2", hidden, layers, heads, hidden * 4, 50257, n_positions=1024)
    for hidden, layers, heads in ((768, 12, 12), (2048, 24, 32), (2560, 32, 32), (4096, 32, 32)):
        yield architecture("opt", hidden, layers, heads, hidden * 4, 50272, max_position_embeddings=2048)
    for hidden, layers, heads in ((512, 6, 8), (768, 12, 12), (1024, 16, 8), (2048, 24, 16), (2560, 32, 32)):
        yield architecture("gpt_neox", hidden, layers, heads, hidden * 4, 50304, max_position_embeddings=8192)
    yield architecture("phi", 2048, 24, 32, 8192, 51200, max_position_embeddings=8192)
    yield architecture("phi", 2560, 32, 32, 10240, 51200, max_position_embeddings=8192)


def random_causal(draw: random.Random) -> Spec:
    """A language model that no zoo has, mostly a small one."""
    kind = draw.choice(("llama", "llama", "qwen2", "mistral", "gpt2", "gpt_neox", "opt"))
    head = draw.choice((64, 64, 80, 128))
    heads = draw.choice((4, 6, 8, 12, 16, 20, 24, 32))
    hidden, layers = head * heads, draw.randint(2, 24)
    vocab = draw.choice((8000, 32000, 50257, 128256))
    if kind in ("llama", "qwen2", "mistral"):
        shared = draw.choice([group for group in (1, 2, 4, 8) if heads % group == 0])
        inner = 64 * round(hidden * draw.choice((2.0, 2.7, 3.5, 4.0)) / 64)
        return _llama_like(kind, hidden, layers, heads, heads // shared, inner, vocab, draw.random() < 0.5)
    positions = "n_positions" if kind == "gpt2" else "max_position_embeddings"
    more: Arguments = {positions: 8192}
    return architecture(kind, hidden, layers, heads, hidden * 4, vocab, **more)


def estimate(spec: Spec) -> tuple[float, float]:
    """Parameters, and bytes of key-value cache for each token in 16-bit precision."""
    hidden, layers, heads, inner, vocab = (
        float(spec.arguments.get(name, 0) or 0) for name in SIZE_NAMES.get(spec.name, _BERT)
    )
    head = float(spec.arguments.get("head_dim", 0) or hidden / max(heads, 1))
    kv = float(spec.arguments.get("num_key_value_heads", heads)) * head
    mlp = (3 if spec.name in ("llama", "mistral", "qwen2", "qwen3", "gemma") else 2) * hidden * inner
    block = 2 * hidden * heads * head + 2 * hidden * kv + mlp
    return layers * block + 2 * vocab * hidden, 4 * layers * kv


def max_sequence(spec: Spec) -> int:
    """The longest sequence that the position embeddings allow."""
    # RoBERTa and MPNet number their positions from the padding token's id plus one
    unused = 2 if "roberta" in spec.name or spec.name == "mpnet" else 0
    for name in ("n_positions", "max_position_embeddings"):
        if name in spec.arguments:
            return int(spec.arguments[name]) - unused
    return {"t5": 1 << 20, "gpt2": 1024, "opt": 2048}.get(spec.name, 512) - unused

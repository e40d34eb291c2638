"""Profiling: wild networks step by step and word by word: recurrences, texts, and few latents for many inputs."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


@network(
    "recurrence",
    "attentive-gru",
    lambda s: (integers(20000, s["length"]),),
    "width=128&length=64",
    "width=512&length=256",
)
class _AttentiveGru(Module):
    """Words through a GRU in both directions; a learned query weighs the steps."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(20000, width)
        self.gru = nn.GRU(width, width, 2, batch_first=True, bidirectional=True)
        self.look, self.query = nn.Linear(2 * width, width), nn.Parameter(torch.randn(width))
        self.out = nn.Linear(2 * width, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        h, _ = self.gru(self.words(tokens))
        weights = torch.softmax(torch.tanh(self.look(h)) @ self.query, dim=1)
        return self.out((h * weights.unsqueeze(-1)).sum(dim=1))


@network("recurrence", "own-lstm", lambda s: (numbers(s["steps"], 32),), "width=64&steps=24", "width=256&steps=64")
class _OwnLstm(Module):
    """An LSTM written out: a loop over time, one product, four chunks."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.width, self.gates, self.norm = width, nn.Linear(32 + width, 4 * width), nn.LayerNorm(width)
        self.out = nn.Linear(width, 32)

    def forward(self, x: Tensor) -> Tensor:
        h = c = torch.zeros(x.size(0), self.width, device=x.device, dtype=x.dtype)
        outputs = []
        for t in range(x.size(1)):
            i, f, g, o = self.gates(torch.cat([x[:, t], h], dim=-1)).chunk(4, dim=-1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * self.norm(c).tanh()
            outputs.append(h)
        return self.out(torch.stack(outputs, dim=1))


@network(
    "recurrence",
    "translator",
    lambda s: (integers(8000, s["length"]), integers(8000, s["length"] // 2)),
    "width=256&length=32",
    "width=512&length=64",
)
class _Translator(Module):
    """Encoder and decoder: ``GRUCell`` in a loop, additive attention over the source at each step."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(8000, width), nn.Embedding(8000, width)
        self.encoder, self.cell = nn.GRU(width, width, batch_first=True), nn.GRUCell(2 * width, width)
        self.key, self.query, self.score = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 1)
        self.out = nn.Linear(2 * width, 8000)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(source))
        keys, h, words = self.key(memory), last[0], self.target(target)
        steps = []
        for t in range(target.shape[1]):
            weights = self.score(torch.tanh(keys + self.query(h)[:, None])).softmax(dim=1)
            seen = (weights * memory).sum(1)
            h = self.cell(torch.cat((words[:, t], seen), -1), h)
            steps.append(torch.cat((h, seen), -1))
        return self.out(torch.stack(steps, 1))


@network("recurrence", "quasi", lambda s: (numbers(s["steps"], 64),), "width=128&steps=32", "width=512&steps=100")
class _Quasi(Module):
    """Gates by causal 1-D convolutions, and only a cheap recurrence by hand."""

    def __init__(self, width: int, steps: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv1d(64, 3 * width, 3), nn.Conv1d(width, 3 * width, 3)])
        self.out = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.transpose(1, 2)
        for conv in self.convs:
            z, f, o = conv(F.pad(x, (2, 0))).chunk(3, dim=1)
            z, f, o = torch.tanh(z), torch.sigmoid(f), torch.sigmoid(o)
            c, states = torch.zeros_like(z[..., 0]), []
            for t in range(z.shape[-1]):
                c = f[..., t] * c + (1 - f[..., t]) * z[..., t]
                states.append(c)
            x = o * torch.stack(states, dim=-1)
        return self.out(x[..., -1])


@network(
    "text",
    "torch-encoder",
    lambda s: (integers(30000, s["length"]),),
    "width=256&depth=4&length=128",
    "width=512&depth=6&length=256",
    "width=768&depth=12&length=512",
)
class _TorchEncoder(Module):
    """``nn.TransformerEncoder`` as the tutorial has it, over words and places."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.scale = nn.Embedding(30000, width), math.sqrt(width)
        self.places = nn.Parameter(torch.zeros(length, width))
        layer = nn.TransformerEncoderLayer(width, 8, 4 * width, dropout=0.1, batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, depth), nn.Linear(width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        h = self.words(tokens) * self.scale + self.places[: tokens.shape[1]]
        return self.out(self.encoder(h)[:, 0])


class _OwnBlock(Module):
    """Causal attention by hand: a buffer of ones below the diagonal, masked_fill, softmax, matmul."""

    def __init__(self, width: int, heads: int, length: int) -> None:
        super().__init__()
        self.heads, self.drop = heads, nn.Dropout(0.1)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.register_buffer("mask", torch.tril(torch.ones(length, length, dtype=torch.bool))[None, None])

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = self.attn(self.ln1(x)).split(c, dim=2)
        k = k.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        q = q.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        v = v.view(b, t, self.heads, c // self.heads).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(~self.mask[:, :, :t, :t], float("-inf"))
        y = self.drop(F.softmax(att, dim=-1)) @ v
        x = x + self.drop(self.proj(y.transpose(1, 2).contiguous().view(b, t, c)))
        h = self.fc1(self.ln2(x))
        h = 0.5 * h * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (h + 0.044715 * h * h * h)))
        return x + self.drop(self.fc2(h))


@network(
    "text",
    "own-gpt",
    lambda s: (integers(65, s["length"]),),
    "width=192&depth=4&length=128",
    "width=384&depth=6&length=256",
    "width=768&depth=8&length=512",
)
class _OwnGpt(Module):
    """A language model of characters with attention and activation written by hand."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(65, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(_OwnBlock(width, width // 64, length) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 65, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


@network("text", "text-cnn", lambda s: (integers(50000, s["length"]),), "width=128&length=100", "width=300&length=400")
class _TextCnn(Module):
    """1-D convolutions of widths 3, 4 and 5 over words, each pooled to its maximum."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(50000, width)
        self.convs = nn.ModuleList(nn.Conv1d(width, 128, k) for k in (3, 4, 5))
        self.out = nn.Linear(3 * 128, 20)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens).permute(0, 2, 1)
        pooled = [F.relu(conv(x)).max(dim=2).values for conv in self.convs]
        return self.out(F.dropout(torch.cat(pooled, 1), 0.5, self.training))


def _turn(x: Tensor) -> Tensor:
    """Rotate pairs of channels by an angle that grows with the place."""
    t, d = x.shape[-2], x.shape[-1]
    frequency = 10000.0 ** (-torch.arange(0, d, 2, device=x.device).float() / d)
    angle = torch.outer(torch.arange(t, device=x.device).float(), frequency)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


@network(
    "text",
    "rotary-lm",
    lambda s: (integers(16000, s["length"]),),
    "width=256&depth=4&length=256",
    "width=768&depth=8&length=1024",
)
class _RotaryLm(Module):
    """A small language model: root-mean-square norms by hand, rotations, gated feed-forward, tied words."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.heads = nn.Embedding(16000, width), width // 64
        self.gains = nn.ParameterList(nn.Parameter(torch.ones(width)) for _ in range(2 * depth + 1))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width, bias=False) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(depth))
        self.gate = nn.ModuleList(nn.Linear(width, 6 * width, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(3 * width, width, bias=False) for _ in range(depth))

    def _norm(self, x: Tensor, gain: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-5).to(x.dtype) * gain

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        b, t, c = x.shape
        for i, (qkv, proj, gate, down) in enumerate(zip(self.qkv, self.proj, self.gate, self.down)):
            q, k, v = qkv(self._norm(x, self.gains[2 * i])).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(_turn(q), _turn(k), v, is_causal=True)
            x = x + proj(y.transpose(1, 2).reshape(b, t, c))
            one, two = gate(self._norm(x, self.gains[2 * i + 1])).chunk(2, -1)
            x = x + down(F.silu(one) * two)
        return F.linear(self._norm(x, self.gains[-1]), self.words.weight)


def _attend(q: Tensor, kv: Tensor, heads: int) -> Tensor:
    k, v = kv.chunk(2, dim=-1)
    q, k, v = (t.reshape(t.shape[0], t.shape[1], heads, -1).transpose(1, 2) for t in (q, k, v))
    weights = ((q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


@network(
    "latents",
    "perceiver",
    lambda s: (numbers(s["inputs"], 64),),
    "width=256&latents=64&inputs=1024",
    "width=512&latents=256&inputs=8192",
)
class _Perceiver(Module):
    """Few latents look at many inputs, twice, and think among themselves."""

    def __init__(self, width: int, latents: int, inputs: int) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(latents, width) * 0.02)
        self.kv, self.norm = nn.Linear(64, 2 * width), nn.LayerNorm(64)
        self.q = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.think = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True, norm_first=True, dropout=0.0)
            for _ in range(4)
        )
        self.out = nn.Linear(width, 100)

    def forward(self, x: Tensor) -> Tensor:
        kv, z = self.kv(self.norm(x)), self.latents.expand(x.shape[0], -1, -1)
        for i, q in enumerate(self.q):
            z = z + _attend(q(z), kv, 8)
            for layer in self.think[2 * i : 2 * i + 2]:
                z = layer(z)
        return self.out(z.mean(dim=1))


@network("latents", "set-mixer", lambda s: (numbers(s["points"], 3),), "width=128&points=256", "width=256&points=2048")
class _SetMixer(Module):
    """A set through induced points and pooled by seeds."""

    def __init__(self, width: int, points: int) -> None:
        super().__init__()
        self.stem = nn.Linear(3, width)
        self.induced = nn.ParameterList(nn.Parameter(torch.randn(32, width)) for _ in range(3))
        self.seeds, self.out = nn.Parameter(torch.randn(4, width)), nn.Linear(4 * width, 40)
        self.q, self.kv = (nn.ModuleList(nn.Linear(width, w) for _ in range(7)) for w in (width, 2 * width))

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for i, points in enumerate(self.induced):
            few = points.expand(h.shape[0], -1, -1)
            few = few + _attend(self.q[2 * i](few), self.kv[2 * i](h), 4)
            h = F.layer_norm(h + _attend(self.q[2 * i + 1](h), self.kv[2 * i + 1](few), 4), h.shape[-1:])
        seeds = self.seeds.expand(h.shape[0], -1, -1)
        return self.out((seeds + _attend(self.q[6](seeds), self.kv[6](h), 4)).flatten(1))

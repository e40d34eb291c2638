"""Profiling: wild networks over time series, and over pictures and texts together."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


@network(
    "series",
    "patched-series",
    lambda s: (numbers(s["length"], s["channels"]),),
    "width=128&length=336&channels=7",
    "width=256&length=720&channels=64",
)
class _PatchedSeries(Module):
    """Each channel by itself, cut into overlapping patches, through ``nn.TransformerEncoder``, scaled back."""

    def __init__(self, width: int, length: int, channels: int) -> None:
        super().__init__()
        count = (length - 16) // 8 + 1
        self.patch, self.place = nn.Linear(16, width), nn.Parameter(torch.randn(count, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, batch_first=True, activation="gelu")
        self.encoder, self.out = nn.TransformerEncoder(layer, 3), nn.Linear(count * width, 96)

    def forward(self, x: Tensor) -> Tensor:
        mean, spread = x.mean(1, keepdim=True), x.std(1, keepdim=True) + 1e-3
        h = ((x - mean) / spread).transpose(1, 2)
        b, c, _ = h.shape
        h = self.patch(h.unfold(-1, 16, 8)) + self.place
        h = self.encoder(h.flatten(0, 1)).view(b, c, -1)
        return self.out(h).transpose(1, 2) * spread + mean


@network(
    "series",
    "stacked-bases",
    lambda s: (numbers(s["length"]),),
    "width=256&stacks=6&length=120",
    "width=512&stacks=30&length=480",
)
class _StackedBases(Module):
    """Fully connected blocks that explain a part of the past each and add to the forecast."""

    def __init__(self, width: int, stacks: int, length: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Linear(length if i == 0 else width, width) for i in range(4)) for _ in range(stacks)
        )
        self.heads = nn.ModuleList(nn.Linear(width, length + 24) for _ in range(stacks))

    def forward(self, x: Tensor) -> Tensor:
        forecast = torch.zeros_like(x[:, :24])
        for block, head in zip(self.blocks, self.heads):
            h = x
            for layer in block:
                h = F.relu(layer(h))
            past, future = head(h).split([x.shape[1], 24], dim=1)
            x, forecast = x - past, forecast + future
        return forecast.unsqueeze(-1)


@network(
    "series",
    "dilated-series",
    lambda s: (numbers(s["channels"], s["length"]),),
    "width=32&channels=8&length=512",
    "width=128&channels=32&length=4096",
)
class _DilatedSeries(Module):
    """Causal dilated 1-D convolutions with residuals, cut to length after each."""

    def __init__(self, width: int, channels: int, length: int) -> None:
        super().__init__()
        self.one = nn.ModuleList(
            nn.Conv1d(channels if i == 0 else width, width, 3, padding=2 * 2**i, dilation=2**i) for i in range(6)
        )
        self.two = nn.ModuleList(nn.Conv1d(width, width, 3, padding=2 * 2**i, dilation=2**i) for i in range(6))
        self.match, self.out = nn.Conv1d(channels, width, 1), nn.Conv1d(width, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h, skip = x, self.match(x)
        for one, two in zip(self.one, self.two):
            y = F.relu(one(h)[..., : x.shape[-1]])
            y = F.dropout(F.relu(two(y)[..., : x.shape[-1]]), 0.1, self.training)
            h = skip = F.relu(y + skip)
        return self.out(h)


@network(
    "series",
    "decomposed",
    lambda s: (numbers(s["length"], s["channels"]),),
    "width=64&length=96&channels=21",
    "width=256&length=336&channels=321",
)
class _Decomposed(Module):
    """Trend and season by a moving mean, correlation with itself by Fourier transforms, weighed shifts."""

    def __init__(self, width: int, length: int, channels: int) -> None:
        super().__init__()
        self.stem, self.out, self.trend = (
            nn.Linear(channels, width),
            nn.Linear(width, channels),
            nn.Linear(length, length),
        )
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def _smooth(self, x: Tensor) -> Tensor:
        return F.avg_pool1d(F.pad(x.transpose(1, 2), (12, 12), mode="replicate"), 25, 1).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        trend = self._smooth(x)
        h = self.stem(x - trend)
        q, k = (torch.fft.rfft(layer(h).float(), dim=1) for layer in (self.q, self.k))
        likeness = torch.fft.irfft(q * torch.conj(k), n=x.shape[1], dim=1).mean(-1) / x.shape[1]
        weights, lags = likeness.topk(5, dim=1)
        weights, v = weights.softmax(-1).to(h.dtype), self.v(h)
        steps, mixed = torch.arange(x.shape[1], device=x.device), 0
        for i in range(5):
            index = torch.remainder(steps + lags[:, i, None], x.shape[1])
            mixed = mixed + weights[:, i, None, None] * v.gather(1, index[..., None].expand(-1, -1, v.shape[-1]))
        h = h + mixed
        h = h - self._smooth(h)
        season = self.out(h + self.feed(h))
        return season + self.trend(trend.transpose(1, 2)).transpose(1, 2)


class _TextTower(Module):
    """Words through post-norm blocks of ``nn.MultiheadAttention``."""

    def __init__(self, width: int, depth: int, length: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(20000, width), nn.Parameter(torch.randn(length, width) * 0.01)
        self.attend = nn.ModuleList(nn.MultiheadAttention(width, width // 64, batch_first=True) for _ in range(depth))
        self.feed = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)) for _ in range(depth)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * depth))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places
        for i, (attend, feed) in enumerate(zip(self.attend, self.feed)):
            x = self.norms[2 * i](x + attend(x, x, x, need_weights=False)[0])
            x = self.norms[2 * i + 1](x + feed(x))
        return x


@network(
    "multimodal",
    "two-towers",
    lambda s: (numbers(3, s["size"], s["size"]), integers(20000, 32)),
    "width=256&depth=4&size=128",
    "width=512&depth=8&size=224",
)
class _TwoTowers(Module):
    """A picture and a text, each to a unit vector; all pairs of a batch against each other."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 16, 16)
        self.place = nn.Parameter(torch.randn((size // 16) ** 2, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, batch_first=True, norm_first=True, activation="gelu"
        )
        self.see = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.read = _TextTower(width, depth, 32)
        self.image, self.text = nn.Linear(width, 256, bias=False), nn.Linear(width, 256, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.6))

    def forward(self, picture: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.see(self.patch(picture).flatten(2).transpose(1, 2) + self.place).mean(1)
        image = F.normalize(self.image(seen), dim=-1)
        text = F.normalize(self.text(self.read(tokens)[:, -1]), dim=-1)
        return torch.cat([image, text], -1) * self.scale.exp(), image


@network(
    "multimodal",
    "answers",
    lambda s: (numbers(3, s["size"], s["size"]), integers(20000, 20)),
    "width=256&size=112",
    "width=512&size=224",
)
class _Answers(Module):
    """A question to a picture: convolutions, an LSTM, two glimpses, a product of both."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [3, 64, 128, 256, width]
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 3, 2, 1) for a, b in zip(w, w[1:]))
        self.words, self.lstm = nn.Embedding(20000, 300), nn.LSTM(300, width, batch_first=True)
        self.see, self.ask, self.glimpse = nn.Conv2d(width, 256, 1), nn.Linear(width, 256), nn.Conv2d(256, 2, 1)
        self.fuse, self.out = nn.Linear(2 * width, width), nn.Linear(width, 3000)

    def forward(self, picture: Tensor, question: Tensor) -> Tensor:
        for conv in self.convs:
            picture = F.relu(conv(picture))
        _, (state, _) = self.lstm(torch.tanh(self.words(question)))
        asked = state[-1]
        joint = F.relu(self.see(picture) + self.ask(asked)[..., None, None])
        weights = self.glimpse(joint).flatten(2).softmax(-1)
        seen = torch.einsum("bgn,bcn->bgc", weights, F.normalize(picture, dim=1).flatten(2)).flatten(1)
        return self.out(F.relu(self.fuse(seen) * asked))


@network(
    "multimodal",
    "caption",
    lambda s: (numbers(s["regions"], 512), integers(20000, 24)),
    "width=256&depth=3&regions=36",
    "width=512&depth=6&regions=196",
)
class _Caption(Module):
    """``nn.TransformerDecoder`` writes about regions of a picture under a causal mask."""

    def __init__(self, width: int, depth: int, regions: int) -> None:
        super().__init__()
        self.lift, self.words = nn.Linear(512, width), nn.Embedding(20000, width)
        layer = nn.TransformerDecoderLayer(width, 8, 4 * width, batch_first=True)
        self.decoder, self.out = nn.TransformerDecoder(layer, depth), nn.Linear(width, 20000)

    def forward(self, regions: Tensor, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.full((length, length), float("-inf"), device=regions.device, dtype=regions.dtype).triu(1)
        return self.out(self.decoder(self.words(tokens), F.relu(self.lift(regions)), tgt_mask=mask, tgt_is_causal=True))


@network(
    "multimodal",
    "sound-and-sight",
    lambda s: (numbers(s["frames"], 1, 48, 48), numbers(1, 16 * s["frames"])),
    "width=64&frames=8",
    "width=128&frames=16",
)
class _SoundAndSight(Module):
    """Lips and sound step by step: frames folded into the batch, both streams gated into one GRU."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.look = nn.Sequential(
            nn.Conv2d(1, width // 2, 5, 2, 2),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, 2, 1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
        )
        self.hear, self.gate = nn.Conv1d(1, width, 16, 16), nn.Linear(2 * width, width)
        self.gru, self.out = nn.GRU(width, 2 * width, 2, batch_first=True), nn.Linear(2 * width, 30)

    def forward(self, frames: Tensor, sound: Tensor) -> Tensor:
        b, t = frames.shape[:2]
        seen = self.look(frames.reshape(b * t, *frames.shape[2:])).view(b, t, -1)
        heard = F.relu(self.hear(sound)).transpose(1, 2)
        gate = torch.sigmoid(self.gate(torch.cat([seen, heard], dim=-1)))
        h, _ = self.gru(torch.lerp(seen, heard, gate))
        return self.out(h)

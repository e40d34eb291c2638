"""Profiling: wild networks over sound: what is said, and voices, instruments and raw waves."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, network, numbers


@network(
    "speech",
    "raw-encoder",
    lambda s: (numbers(s["samples"]),),
    "width=256&depth=4&samples=16000",
    "width=512&depth=8&samples=48000",
)
class _RawEncoder(Module):
    """Seven strided convolutions over raw audio, one norm group a channel, and ``nn.TransformerEncoder``."""

    def __init__(self, width: int, depth: int, samples: int) -> None:
        super().__init__()
        kernels, strides = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
        half = width // 2
        self.convs = nn.ModuleList(
            nn.Conv1d(1 if i == 0 else half, half, k, s, bias=False) for i, (k, s) in enumerate(zip(kernels, strides))
        )
        self.norm, self.project = nn.GroupNorm(half, half), nn.Linear(half, width)
        self.place = nn.Conv1d(width, width, 64, padding=32, groups=16)
        layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, activation="gelu", batch_first=True)
        self.encoder, self.out = nn.TransformerEncoder(layer, depth), nn.Linear(width, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-5)
        x = x.unsqueeze(1)
        for i, conv in enumerate(self.convs):
            x = conv(x)
            x = F.gelu(self.norm(x) if i == 0 else x)
        h = self.project(x.transpose(1, 2))
        h = h + F.gelu(self.place(h.transpose(1, 2))[..., :-1]).transpose(1, 2)
        return self.out(self.encoder(h)).log_softmax(-1)


class _ConformerBlock(Module):
    """Half a feed-forward, attention, a gated depthwise convolution, half a feed-forward."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.feed1, self.feed2 = (
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norm1, self.norm2, self.norm3 = nn.LayerNorm(width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.o = (nn.Linear(width, width) for _ in range(4))
        self.near = nn.Parameter(torch.zeros(heads, 1, 1))
        self.point1, self.point2 = nn.Conv1d(width, 2 * width, 1), nn.Conv1d(width, width, 1)
        self.depth, self.bn = nn.Conv1d(width, width, 31, padding=15, groups=width), nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.shape
        x = x + 0.5 * self.feed1(x)
        h = self.norm1(x)
        q, k, v = (layer(h).view(b, t, self.heads, -1).permute(0, 2, 1, 3) for layer in (self.q, self.k, self.v))
        place = torch.arange(t, device=x.device)
        bias = self.near * (place[None, :] - place[:, None]).abs().to(x.dtype) / t
        scores = q @ k.transpose(-2, -1) / math.sqrt(c // self.heads) - bias
        x = x + self.o((scores.softmax(dim=-1) @ v).permute(0, 2, 1, 3).reshape(b, t, c))
        h = F.glu(self.point1(self.norm2(x).transpose(1, 2)), dim=1)
        x = x + self.point2(F.silu(self.bn(self.depth(h)))).transpose(1, 2)
        return self.norm3(x + 0.5 * self.feed2(x))


@network(
    "speech",
    "conformer",
    lambda s: (numbers(s["frames"], 80),),
    "width=144&depth=4&frames=400",
    "width=256&depth=12&frames=1000",
)
class _Conformer(Module):
    """Spectrogram frames, four times fewer after two strides, through conformer blocks."""

    def __init__(self, width: int, depth: int, frames: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 64, 3, 2), nn.Conv2d(64, 64, 3, 2)
        self.project, self.out = nn.Linear(64 * 19, width), nn.Linear(width, 500)
        self.blocks = nn.ModuleList(_ConformerBlock(width, 4) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.conv2(F.relu(self.conv1(x.unsqueeze(1)))))
        h = self.project(h.transpose(1, 2).flatten(2))
        for block in self.blocks:
            h = block(h)
        return self.out(h)


@network("speech", "speaker", lambda s: (numbers(40, s["frames"]),), "width=256&frames=300", "width=512&frames=1000")
class _Speaker(Module):
    """Who speaks: dilated 1-D convolutions in scales, attentive mean and spread over time."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.stem, self.part = nn.Conv1d(40, width, 5, padding=2), width // 4
        kinds = [[nn.Conv1d(self.part, self.part, 3, padding=d, dilation=d) for _ in range(3)] for d in (2, 3, 4)]
        self.inner = nn.ModuleList(map(nn.ModuleList, kinds))
        self.mix = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(3))
        self.norm = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(3))
        self.merge = nn.Conv1d(3 * width, 2 * width, 1)
        self.weigh = nn.Sequential(nn.Conv1d(2 * width, 128, 1), nn.Tanh(), nn.Conv1d(128, 2 * width, 1))
        self.out = nn.Linear(4 * width, 192)

    def forward(self, x: Tensor) -> Tensor:
        h, kept = F.relu(self.stem(x)), []
        for inner, mix, norm in zip(self.inner, self.mix, self.norm):
            first, *others = torch.split(h, self.part, dim=1)
            parts, last = [first], first
            for layer, other in zip(inner, others):
                last = F.relu(layer(last + other))
                parts.append(last)
            h = h + F.relu(norm(mix(torch.cat(parts, 1))))
            kept.append(h)
        h = F.relu(self.merge(torch.cat(kept, 1)))
        weight = torch.softmax(self.weigh(h), dim=2)
        mean = (weight * h).sum(2)
        spread = ((weight * h * h).sum(2) - mean**2).clamp(min=1e-4).sqrt()
        return F.normalize(self.out(torch.cat((mean, spread), 1)), dim=1)


@network(
    "speech", "pyramid-listener", lambda s: (numbers(s["frames"], 80),), "width=128&frames=256", "width=320&frames=800"
)
class _PyramidListener(Module):
    """LSTMs in both directions, half as many steps after each, with a connectionist output."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.LSTM(80 if i == 0 else 4 * width, width, batch_first=True, bidirectional=True) for i in range(3)
        )
        self.out = nn.Linear(2 * width, 40)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            if i:
                b, t, c = x.shape
                x = x.reshape(b, t // 2, 2 * c)
            x, _ = layer(x)
        return F.log_softmax(self.out(x), dim=2)


@network(
    "audio",
    "wave",
    lambda s: (numbers(1, s["samples"]), numbers(80, s["samples"])),
    "width=32&layers=10&samples=4000",
    "width=64&layers=20&samples=16000",
)
class _Wave(Module):
    """Causal dilated convolutions with gates; the sum of all skips becomes a distribution a sample."""

    def __init__(self, width: int, layers: int, samples: int) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2 ** (i % 10)) for i in range(layers))
        self.condition = nn.ModuleList(nn.Conv1d(80, 2 * width, 1) for _ in range(layers))
        self.res, self.skip = (nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers)) for _ in range(2))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 256, 1))

    def forward(self, x: Tensor, mel: Tensor) -> Tensor:
        h, total = self.stem(x), 0
        for i, (dilated, condition) in enumerate(zip(self.dilated, self.condition)):
            a, b = (dilated(F.pad(h, (2 ** (i % 10), 0))) + condition(mel)).chunk(2, dim=1)
            z = torch.tanh(a) * torch.sigmoid(b)
            total = total + self.skip[i](z)
            h = h + self.res[i](z)
        return self.out(total)


def _weight_normed(conv: nn.Conv1d, gain: Tensor) -> Tensor:
    return gain * conv.weight / conv.weight.norm(dim=(1, 2), keepdim=True)


@network("audio", "vocoder", lambda s: (numbers(80, s["frames"]),), "width=128&frames=32", "width=256&frames=100")
class _Vocoder(Module):
    """A spectrogram to raw audio: transposed convolutions, and residual stacks of several kernels and dilations."""

    def __init__(self, width: int, frames: int) -> None:
        super().__init__()
        self.stem, self.rates = nn.Conv1d(80, width, 7, padding=3), (8, 8, 4)
        self.rise = nn.ModuleList(
            nn.ConvTranspose1d(width >> i, width >> (i + 1), 2 * r, r, r // 2) for i, r in enumerate(self.rates)
        )
        self.convs, self.gains = nn.ModuleList(), nn.ParameterList()
        for i in range(3):
            for kernel in (3, 7):
                for d in (1, 3, 5):
                    self.convs.append(
                        nn.Conv1d(width >> (i + 1), width >> (i + 1), kernel, padding=d * (kernel // 2), dilation=d)
                    )
                    self.gains.append(nn.Parameter(torch.ones(width >> (i + 1), 1, 1)))
        self.out = nn.Conv1d(width >> 3, 1, 7, padding=3)

    def forward(self, mel: Tensor) -> Tensor:
        x = self.stem(mel)
        for i, rise in enumerate(self.rise):
            x, sums = rise(F.leaky_relu(x, 0.1)), []
            for stack in range(2):
                h = x
                for j in range(3):
                    conv, gain = self.convs[6 * i + 3 * stack + j], self.gains[6 * i + 3 * stack + j]
                    w = _weight_normed(conv, gain)
                    h = h + F.conv1d(F.leaky_relu(h, 0.1), w, conv.bias, padding=conv.padding, dilation=conv.dilation)
                sums.append(h)
            x = sum(sums) / len(sums)
        return torch.tanh(self.out(F.leaky_relu(x)))


@network("audio", "separator", lambda s: (numbers(s["samples"]),), "width=128&samples=16000", "width=256&samples=32000")
class _Separator(Module):
    """Two voices apart: a learned filter bank, dilated depthwise blocks under one norm group, masks, and back."""

    def __init__(self, width: int, samples: int) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, 256, 16, 8, bias=False), nn.ConvTranspose1d(256, 1, 16, 8, bias=False)
        self.norm, self.entry = nn.GroupNorm(1, 256, eps=1e-5), nn.Conv1d(256, width, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv1d(width, 2 * width, 1), nn.PReLU(), nn.GroupNorm(1, 2 * width),
                nn.Conv1d(2 * width, 2 * width, 3, padding=2**d, dilation=2**d, groups=2 * width), nn.PReLU(),
                nn.GroupNorm(1, 2 * width), nn.Conv1d(2 * width, width, 1),
            )
            for _ in range(2) for d in range(6)
        )  # fmt: skip
        self.mask = nn.Conv1d(width, 2 * 256, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.encode(x.unsqueeze(1)))
        y = self.entry(self.norm(h))
        for block in self.blocks:
            y = y + block(y)
        masks = torch.sigmoid(self.mask(y)).view(x.shape[0], 2, 256, -1)
        return torch.stack([self.decode(h * masks[:, i]).squeeze(1) for i in range(2)], dim=1)


@network(
    "audio", "wave-unet", lambda s: (numbers(2, s["samples"]),), "width=24&samples=16384", "width=48&samples=65536"
)
class _WaveUnet(Module):
    """A 1-D U-Net over stereo sound with gated convolutions and an LSTM in the middle."""

    def __init__(self, width: int, samples: int) -> None:
        super().__init__()
        w = [2, width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(nn.Conv1d(a, b, 8, 4, 2) for a, b in zip(w, w[1:]))
        self.gate = nn.ModuleList(nn.Conv1d(b, 2 * b, 1) for b in w[1:])
        self.lstm, self.lin = (
            nn.LSTM(w[-1], w[-1], 1, bidirectional=True, batch_first=True),
            nn.Linear(2 * w[-1], w[-1]),
        )
        back = w[::-1]
        self.ungate = nn.ModuleList(nn.Conv1d(a, 2 * a, 3, padding=1) for a in back[:-1])
        self.up = nn.ModuleList(nn.ConvTranspose1d(a, b, 8, 4, 2) for a, b in zip(back, back[1:]))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for down, gate in zip(self.down, self.gate):
            x = F.glu(gate(F.relu(down(x))), dim=1)
            skips.append(x)
        x = self.lin(self.lstm(x.transpose(1, 2))[0]).transpose(1, 2)
        for i, (ungate, up) in enumerate(zip(self.ungate, self.up)):
            x = up(F.glu(ungate(x + skips.pop()), dim=1))
            x = F.relu(x) if i < 3 else x
        return x


@network(
    "audio", "spectrum-mask", lambda s: (numbers(s["samples"]),), "width=16&samples=16384", "width=32&samples=65536"
)
class _SpectrumMask(Module):
    """A short-time Fourier transform by frames and ``rfft``, a mask by dilated convolutions, and the way back."""

    def __init__(self, width: int, samples: int) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512), persistent=False)
        self.convs = nn.ModuleList(
            nn.Conv2d(1 if i == 0 else width, width, 3, padding=(1, 2**i), dilation=(1, 2**i)) for i in range(5)
        )
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        frames = x.float().unfold(-1, 512, 256) * self.window.float()
        spectrum = torch.fft.rfft(frames, dim=-1).transpose(1, 2)
        h = torch.log1p(spectrum.abs()).unsqueeze(1).to(x.dtype)
        for conv in self.convs:
            h = F.elu(conv(h))
        mask = torch.sigmoid(self.out(h)).squeeze(1).float()
        return torch.fft.irfft((spectrum * mask).transpose(1, 2), n=512, dim=-1) * self.window.float()

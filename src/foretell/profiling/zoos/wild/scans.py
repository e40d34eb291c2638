"""Profiling: wild networks that look again and again: films, pictures of patients, lines of writing."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, network, numbers


class _ConvLstmCell(Module):
    """An LSTM cell whose products are convolutions."""

    def __init__(self, before: int, width: int) -> None:
        super().__init__()
        self.width, self.conv = width, nn.Conv2d(before + width, 4 * width, 3, padding=1)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        i, f, o, g = torch.split(self.conv(torch.cat([x, h], dim=1)), self.width, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


@network(
    "film", "next-frames", lambda s: (numbers(10, 1, s["size"], s["size"]),), "width=32&size=32", "width=64&size=64"
)
class _NextFrames(Module):
    """Convolutional LSTMs read ten frames and draw five more, step by step."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.width, self.one, self.two = width, _ConvLstmCell(1, width), _ConvLstmCell(width, width)
        self.out = nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, t, _, h, w = x.shape
        h1 = c1 = h2 = c2 = x.new_zeros(b, self.width, h, w)
        frames: list[Tensor] = []
        for step in range(t + 5):
            frame = x[:, step] if step < t else frames[-1]
            h1, c1 = self.one(frame, h1, c1)
            h2, c2 = self.two(h1, h2, c2)
            if step >= t - 1:
                frames.append(torch.sigmoid(self.out(h2)))
        return torch.stack(frames, dim=1)


@network(
    "film",
    "actions",
    lambda s: (numbers(3, s["frames"], s["size"], s["size"]),),
    "width=24&frames=8&size=64",
    "width=48&frames=16&size=112",
)
class _Actions(Module):
    """Convolutions over space and over time by turns, and a mean over both."""

    def __init__(self, width: int, frames: int, size: int) -> None:
        super().__init__()
        w = [3, width, 2 * width, 4 * width, 8 * width]
        self.space = nn.ModuleList(
            nn.Conv3d(a, b, (1, 3, 3), (1, 2, 2), (0, 1, 1), bias=False) for a, b in zip(w, w[1:])
        )
        self.time = nn.ModuleList(nn.Conv3d(b, b, (3, 1, 1), padding=(1, 0, 0), bias=False) for b in w[1:])
        self.norm = nn.ModuleList(nn.BatchNorm3d(b) for b in w[1:])
        self.out = nn.Linear(w[-1], 101)

    def forward(self, x: Tensor) -> Tensor:
        for space, time, norm in zip(self.space, self.time, self.norm):
            x = F.relu(space(x))
            x = x + F.relu(norm(time(x)))
        return self.out(x.mean([2, 3, 4]))


class _Double3d(Module):
    """Two 3-D convolutions with instance norms and leaky slopes."""

    def __init__(self, before: int, after: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv3d(before, after, 3, stride, 1), nn.Conv3d(after, after, 3, 1, 1)
        self.norm1, self.norm2 = nn.InstanceNorm3d(after, affine=True), nn.InstanceNorm3d(after, affine=True)

    def forward(self, x: Tensor) -> Tensor:
        x = F.leaky_relu(self.norm1(self.conv1(x)), 0.01)
        return F.leaky_relu(self.norm2(self.conv2(x)), 0.01)


@network(
    "medicine",
    "organs",
    lambda s: (numbers(1, s["size"], s["size"], s["size"]),),
    "width=16&size=48",
    "width=32&size=64",
)
class _Organs(Module):
    """A 3-D U-Net over a scan, strided down, transposed up, judged at two scales."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(_Double3d(a, b, 1 if i == 0 else 2) for i, (a, b) in enumerate(zip([1, *w], w)))
        self.rise = nn.ModuleList(nn.ConvTranspose3d(b, a, 2, 2) for a, b in reversed(list(zip(w, w[1:]))))
        self.up = nn.ModuleList(_Double3d(2 * a, a) for a in reversed(w[:-1]))
        self.heads = nn.ModuleList([nn.Conv3d(width, 4, 1), nn.Conv3d(2 * width, 4, 1)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        skips, levels = [], []
        for down in self.down:
            x = down(x)
            skips.append(x)
        for skip, rise, up in zip(skips[-2::-1], self.rise, self.up):
            x = up(torch.cat((rise(x), skip), dim=1))
            levels.append(x)
        return self.heads[0](levels[-1]), self.heads[1](levels[-2])


@network(
    "medicine", "gated-unet", lambda s: (numbers(1, s["size"], s["size"]),), "width=24&size=128", "width=48&size=256"
)
class _GatedUnet(Module):
    """A U-Net whose skips are weighed by what the decoder looks for."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        w = [width, 2 * width, 4 * width, 8 * width]
        self.down = nn.ModuleList(self._block(a, b) for a, b in zip([1, *w], w))
        pairs = list(reversed(list(zip(w, w[1:]))))
        self.shrink = nn.ModuleList(nn.Conv2d(b, a, 3, padding=1) for a, b in pairs)
        self.see, self.want = (nn.ModuleList(nn.Conv2d(a, a // 2, 1) for a, _ in pairs) for _ in range(2))
        self.weigh = nn.ModuleList(nn.Conv2d(a // 2, 1, 1) for a, _ in pairs)
        self.up = nn.ModuleList(self._block(2 * a, a) for a, _ in pairs)
        self.out = nn.Conv2d(width, 1, 1)

    def _block(self, before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(),
            nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        skips: list[Tensor] = []
        for down in self.down:
            x = down(F.max_pool2d(skips[-1], 2) if skips else x)
            skips.append(x)
        for i, skip in enumerate(skips[-2::-1]):
            g = F.relu(self.shrink[i](F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=True)))
            gate = torch.sigmoid(self.weigh[i](F.relu(self.see[i](skip) + self.want[i](g))))
            x = self.up[i](torch.cat((skip * gate, g), 1))
        return self.out(x)


@network(
    "medicine",
    "scan-transformer",
    lambda s: (numbers(1, s["size"], s["size"], s["size"]),),
    "width=192&depth=4&size=64",
    "width=384&depth=8&size=96",
)
class _ScanTransformer(Module):
    """Patches of a scan through ``nn.TransformerEncoderLayer``s, brought back to voxels in two steps."""

    def __init__(self, width: int, depth: int, size: int) -> None:
        super().__init__()
        self.patch = nn.Conv3d(1, width, 8, 8)
        self.place = nn.Parameter(torch.zeros(1, (size // 8) ** 3, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, width // 32, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.up1, self.up2 = (
            nn.ConvTranspose3d(width, width // 4, 2, 2),
            nn.ConvTranspose3d(width // 4, width // 16, 4, 4),
        )
        self.mix, self.out = _Double3d(width // 16 + 1, 16), nn.Conv3d(16, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.patch(x)
        shape = h.shape
        tokens = h.flatten(2).transpose(-1, -2) + self.place
        for layer in self.layers:
            tokens = layer(tokens)
        h = tokens.transpose(-1, -2).reshape(shape)
        return self.out(self.mix(torch.cat([self.up2(F.relu(self.up1(h))), x], 1)))


@network(
    "medicine", "heartbeats", lambda s: (numbers(12, s["length"]),), "width=32&length=1000", "width=64&length=5000"
)
class _Heartbeats(Module):
    """A cardiogram of twelve leads through wide 1-D convolutions, squeezed, excited and read by a GRU."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        w = [12, width, 2 * width, 4 * width]
        self.conv = nn.ModuleList(nn.Conv1d(a, b, 15, 2, 7) for a, b in zip(w, w[1:]))
        self.norm = nn.ModuleList(nn.BatchNorm1d(b) for b in w[1:])
        self.gate = nn.ModuleList(nn.Sequential(nn.Linear(b, b // 4), nn.ReLU(), nn.Linear(b // 4, b)) for b in w[1:])
        self.gru, self.out = nn.GRU(w[-1], width, batch_first=True, bidirectional=True), nn.Linear(2 * width, 71)

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm, gate in zip(self.conv, self.norm, self.gate):
            x = F.max_pool1d(F.relu(norm(conv(x))), 2)
            x = x * torch.sigmoid(gate(x.mean(-1))).unsqueeze(-1)
        h, _ = self.gru(x.transpose(1, 2))
        return self.out(torch.maximum(h[:, -1], h.mean(1)))


@network(
    "writing", "line-reader", lambda s: (numbers(1, 32, s["width"]),), "channels=32&width=128", "channels=64&width=400"
)
class _LineReader(Module):
    """A picture of a line: convolutions squeeze its height, LSTMs read its width."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        c = channels
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, 1, 1) for a, b in ((1, c), (c, 2 * c), (2 * c, 4 * c), (4 * c, 4 * c), (4 * c, 8 * c))
        )
        self.norm, self.last = nn.BatchNorm2d(8 * c), nn.Conv2d(8 * c, 8 * c, 2)
        self.pools = ((2, 2), (2, 2), (1, 1), (2, 1), (2, 1))
        self.lstm, self.out = nn.LSTM(8 * c, 4 * c, 2, bidirectional=True, batch_first=True), nn.Linear(8 * c, 97)

    def forward(self, x: Tensor) -> Tensor:
        for conv, pool in zip(self.convs, self.pools):
            x = F.max_pool2d(F.relu(conv(x)), pool)
        x = F.relu(self.last(self.norm(x)))
        h, _ = self.lstm(x.squeeze(2).permute(0, 2, 1))
        return self.out(h).log_softmax(2)


@network(
    "writing",
    "letter-speller",
    lambda s: (numbers(1, 48, s["width"]),),
    "channels=32&width=160&letters=12",
    "channels=64&width=320&letters=25",
)
class _LetterSpeller(Module):
    """Looks again at the picture for each letter: two-dimensional attention in a loop of ``LSTMCell``."""

    def __init__(self, channels: int, width: int, letters: int) -> None:
        super().__init__()
        c, self.letters = channels, letters
        self.body = nn.Sequential(
            nn.Conv2d(1, c, 3, 2, 1), nn.BatchNorm2d(c), nn.ReLU(), nn.Conv2d(c, 2 * c, 3, 2, 1), nn.BatchNorm2d(2 * c),
            nn.ReLU(), nn.Conv2d(2 * c, 4 * c, 3, 2, 1),
        )  # fmt: skip
        self.key, self.query, self.score = nn.Conv2d(4 * c, 64, 3, padding=1), nn.Linear(4 * c, 64), nn.Conv2d(64, 1, 1)
        self.cell, self.out = nn.LSTMCell(4 * c + 97, 4 * c), nn.Linear(8 * c, 97)

    def forward(self, x: Tensor) -> Tensor:
        memory = self.body(x)
        keys, b = self.key(memory), memory.shape[0]
        h = s = memory.mean((2, 3))
        letter, spelt = x.new_zeros(b, 97), []
        for _ in range(self.letters):
            weights = self.score(torch.tanh(keys + self.query(h)[:, :, None, None])).flatten(1).softmax(-1)
            seen = torch.bmm(memory.flatten(2), weights.unsqueeze(-1)).squeeze(-1)
            h, s = self.cell(torch.cat([seen, letter], 1), (h, s))
            spelt.append(self.out(torch.cat([h, seen], 1)))
            letter = spelt[-1].softmax(-1)
        return torch.stack(spelt, 1)

"""Profiling: wild networks that remove noise: U-Nets over pixels, latents and trajectories, and transformers."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from foretell.profiling.zoos.named_networks import Module, integers, network, numbers


def embed_time(t: Tensor, width: int) -> Tensor:
    """Sines and cosines of a step's number."""
    frequencies = torch.exp(-math.log(10000.0) * torch.arange(width // 2, device=t.device) / (width // 2))
    angles = t[:, None].float() * frequencies[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


class _ResBlock(Module):
    """Two convolutions, scaled and shifted by the time's embedding."""

    def __init__(self, before: int, after: int, time: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, before), nn.Conv2d(before, after, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, after), nn.Conv2d(after, after, 3, padding=1)
        self.time = nn.Linear(time, 2 * after)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor, emb: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        scale, shift = self.time(F.silu(emb))[:, :, None, None].chunk(2, dim=1)
        h = self.norm2(h) * (1 + scale) + shift
        return self.skip(x) + self.conv2(F.silu(h))


class _PixelAttention(Module):
    """Every pixel attends to every other, written with einsum."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.GroupNorm(8, width)
        self.qkv, self.out = nn.Conv2d(width, 3 * width, 1), nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(b * self.heads, -1, h * w).chunk(3, dim=1)
        attention = torch.einsum("bci,bcj->bij", q * q.shape[1] ** -0.5, k).softmax(dim=-1)
        return x + self.out(torch.einsum("bij,bcj->bci", attention, v).reshape(b, c, h, w))


class _CrossAttention(Module):
    """Pixels attend to words: matmul, scale, softmax, matmul."""

    def __init__(self, width: int, context: int, heads: int = 8) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.q, self.kv = nn.Linear(width, width, bias=False), nn.Linear(context, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        b, c, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q = self.q(self.norm(tokens))
        k, v = self.kv(words).chunk(2, dim=-1)
        q, k, v = (t.view(b, -1, self.heads, c // self.heads).transpose(1, 2) for t in (q, k, v))
        weights = torch.softmax(torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(c // self.heads), dim=-1)
        out = self.out(torch.matmul(weights, v).transpose(1, 2).reshape(b, h * w, c))
        return (tokens + out).transpose(1, 2).reshape(b, c, h, w)


@network(
    "diffusion",
    "pixel-unet",
    lambda s: (numbers(3, s["size"], s["size"]), integers(1000)),
    "width=64&size=32",
    "width=96&size=64",
)
class _PixelUnet(Module):
    """A U-Net that removes noise from small pictures, with a list of skips."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.width, widths, time = width, [width, 2 * width, 2 * width], 4 * width
        self.time = nn.Sequential(nn.Linear(width, time), nn.SiLU(), nn.Linear(time, time))
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down, self.shrink, self.up = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        before = width
        for after in widths:
            self.down.append(nn.ModuleList([_ResBlock(before, after, time), _ResBlock(after, after, time)]))
            self.shrink.append(nn.Conv2d(after, after, 3, stride=2, padding=1))
            before = after
        self.middle = nn.ModuleList([_ResBlock(before, before, time), _ResBlock(before, before, time)])
        self.attend = _PixelAttention(before)
        for after in reversed(widths):
            self.up.append(nn.ModuleList([_ResBlock(before + after, after, time), _ResBlock(after, after, time)]))
            before = after
        self.out = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1))

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.time(embed_time(t, self.width).to(x.dtype))
        h, skips = self.stem(x), []
        for (one, two), shrink in zip(self.down, self.shrink):
            h = two(one(h, emb), emb)
            skips.append(h)
            h = shrink(h)
        h = self.middle[1](self.attend(self.middle[0](h, emb)), emb)
        for one, two in self.up:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = two(one(torch.cat([h, skips.pop()], dim=1), emb), emb)
        return self.out(h)


@network(
    "diffusion",
    "latent-unet",
    lambda s: (numbers(4, s["size"], s["size"]), integers(1000), numbers(77, 512)),
    "width=128&size=32",
    "width=192&size=64",
)
class _LatentUnet(Module):
    """A U-Net over latents that looks at a text in every block."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.width = width
        self.time, self.stem = nn.Linear(width, 4 * width), nn.Conv2d(4, width, 3, padding=1)
        self.down1, self.look1 = _ResBlock(width, width, 4 * width), _CrossAttention(width, 512)
        self.down2, self.look2 = _ResBlock(width, 2 * width, 4 * width), _CrossAttention(2 * width, 512)
        self.middle, self.attend = _ResBlock(2 * width, 2 * width, 4 * width), _PixelAttention(2 * width, 8)
        self.up2, self.look3 = _ResBlock(4 * width, 2 * width, 4 * width), _CrossAttention(2 * width, 512)
        self.up1, self.look4 = _ResBlock(3 * width, width, 4 * width), _CrossAttention(width, 512)
        self.out = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, words: Tensor) -> Tensor:
        emb = self.time(embed_time(t, self.width).to(x.dtype))
        a = self.look1(self.down1(self.stem(x), emb), words)
        b = self.look2(self.down2(F.avg_pool2d(a, 2), emb), words)
        c = self.attend(self.middle(F.avg_pool2d(b, 2), emb))
        c = F.interpolate(c, scale_factor=2.0, mode="bilinear", align_corners=False)
        d = self.look3(self.up2(torch.cat((c, b), 1), emb), words)
        d = F.interpolate(d, scale_factor=2.0, mode="bilinear", align_corners=False)
        return self.out(F.silu(self.look4(self.up1(torch.cat((d, a), 1), emb), words)))


class _DitBlock(Module):
    """A transformer block whose normalisations are set by the condition."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width))
        self.adapt = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        b, n, d = x.shape
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adapt(c).unsqueeze(1).chunk(6, dim=2)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + gate1 * self.proj(h)
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


@network(
    "diffusion",
    "dit",
    lambda s: (numbers(4, 32, 32), integers(1000), integers(1000)),
    "width=384&depth=8&patch=2",
    "width=768&depth=12&patch=4",
)
class _Dit(Module):
    """A transformer that removes noise from latents, patch by patch."""

    def __init__(self, width: int, depth: int, patch: int) -> None:
        super().__init__()
        self.width, self.patch = width, patch
        self.stem = nn.Conv2d(4, width, patch, patch)
        self.place = nn.Parameter(torch.randn(1, (32 // patch) ** 2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.label = nn.Embedding(1000, width)
        self.blocks = nn.ModuleList(_DitBlock(width, width // 64) for _ in range(depth))
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 8 * patch * patch)

    def forward(self, x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        b, _, h, w = x.shape
        c = self.time(embed_time(t, 256).to(x.dtype)) + self.label(y)
        z = self.stem(x).flatten(2).transpose(1, 2) + self.place
        for block in self.blocks:
            z = block(z, c)
        z = self.out(self.norm(z)).view(b, h // self.patch, w // self.patch, self.patch, self.patch, 8)
        return torch.einsum("bhwpqc->bchpwq", z).reshape(b, 8, h, w)


@network(
    "diffusion",
    "trajectory-unet",
    lambda s: (numbers(s["length"], 14), integers(100)),
    "width=64&length=32",
    "width=256&length=128",
)
class _TrajectoryUnet(Module):
    """A 1-D U-Net that plans a robot's way, normalised in few groups."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.width = width
        self.time = nn.Sequential(nn.Linear(width, width * 4), nn.Mish(), nn.Linear(width * 4, width))
        channels = [(14, width), (width, 2 * width), (2 * width, 4 * width)]
        self.down = nn.ModuleList(self._block(before, after) for before, after in channels)
        self.shrink = nn.ModuleList(nn.Conv1d(after, after, 3, 2, 1) for _, after in channels[:-1])
        self.grow = nn.ModuleList(nn.ConvTranspose1d(after, after, 4, 2, 1) for _, after in reversed(channels[:-1]))
        self.lift = nn.ModuleList(nn.Conv1d(2 * after, after, 1) for _, after in reversed(channels[:-1]))
        self.up = nn.ModuleList(self._block(2 * after, after) for _, after in reversed(channels[:-1]))
        self.add = nn.ModuleList(nn.Linear(width, after) for _, after in channels)
        self.out = nn.Conv1d(width, 14, 1)

    def _block(self, before: int, after: int) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv1d(before, after, 5, padding=2),
            nn.GroupNorm(8, after),
            nn.Mish(),
            nn.Conv1d(after, after, 5, padding=2),
            nn.GroupNorm(8, after),
            nn.Mish(),
        )

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        emb = self.time(embed_time(t, self.width).to(x.dtype))
        h, skips = x.permute(0, 2, 1), []
        for level, down in enumerate(self.down):
            h = down(h) + self.add[level](emb)[:, :, None]
            if level < len(self.shrink):
                skips.append(h)
                h = self.shrink[level](h)
        for lift, grow, up in zip(self.lift, self.grow, self.up):
            h = grow(lift(h))
            h = up(torch.cat((h, skips.pop()), dim=1))
        return self.out(h).permute(0, 2, 1)
